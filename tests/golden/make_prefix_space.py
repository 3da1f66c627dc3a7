"""Records what add_prefix_space of tokenizer_config.json makes of the tokenizers here.

Writes tokenizers/prefix_space.json. The judge is AutoTokenizer, whose classes GPT2Tokenizer
and LlamaTokenizer heed the key whatever tokenizer.json says. Called by make_golden.py.
"""

import json
import pathlib
import shutil
import tempfile

from transformers import AutoTokenizer

HERE = pathlib.Path(__file__).resolve().parent
TOKENIZERS = HERE / "tokenizers"

CASES = [  # (tokenizer, tokenizer_class, add_prefix_space)
    ("gpt2", "GPT2Tokenizer", True),
    ("gpt2", "GPT2TokenizerFast", False),
    ("gpt2-prefix-space", "GPT2Tokenizer", False),
    ("gpt2-prefix-space", "GPT2TokenizerFast", True),
    ("llama2", "LlamaTokenizer", False),
    ("llama2", "LlamaTokenizerFast", False),
    ("mistral-metaspace", "LlamaTokenizer", False),
]

TEXTS = ["In the beginning", " In", "  two", "a", "", " ", "\nnew", "caf\u00e9 \u4e2d\u6587",
         "one two  three", "\u2581mark", "it's 1611.", "\u00e9", "\U0001f600 smile", "\tTab"]


def encode(kind, name, prefix):
    with tempfile.TemporaryDirectory() as folder:
        for file in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(TOKENIZERS / kind / file, folder)
        path = pathlib.Path(folder) / "tokenizer_config.json"
        config = json.loads(path.read_text())
        config.update(tokenizer_class=name, add_prefix_space=prefix)
        path.write_text(json.dumps(config))
        tokenizer = AutoTokenizer.from_pretrained(folder)
        if type(tokenizer).__name__ != name.removesuffix("Fast"):
            raise RuntimeError(f"{name} became {type(tokenizer).__name__}")
        for text in TEXTS:
            ids = tokenizer(text, add_special_tokens=False).input_ids
            yield {"text": text, "ids": ids, "decoded": tokenizer.decode(
                ids, clean_up_tokenization_spaces=False)}


def make_all():
    rows = [{"tokenizer": kind, "tokenizer_class": name, "add_prefix_space": prefix,
             "texts": list(encode(kind, name, prefix))} for kind, name, prefix in CASES]
    body = ",\n".join(json.dumps(row) for row in rows)
    (TOKENIZERS / "prefix_space.json").write_text(f"[\n{body}\n]\n", encoding="ascii")
    print(f"prefix_space: {len(rows)} tokenizers of {len(TEXTS)} texts")


if __name__ == "__main__":
    make_all()
