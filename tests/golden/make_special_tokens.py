"""Records what special tokens that only the files beside the vocabulary name make of the tokenizers here.

Writes tokenizers/special_tokens.json. The judge is AutoTokenizer: it adds them behind the vocabulary. Each case has the
files that differ from the tokenizer's own (null: the file is not there). Called by make_golden.py.
"""

import json
import pathlib
import shutil
import tempfile

from transformers import AutoTokenizer

HERE = pathlib.Path(__file__).resolve().parent
TOKENIZERS = HERE / "tokenizers"


def typed(content, **flags):
    """An added token as save_pretrained writes it into tokenizer_config.json."""
    return {"__type": "AddedToken", **plain(content, **flags)}


def plain(content, **flags):
    return {"content": content, "lstrip": False, "normalized": False, "rstrip": False,
            "single_word": False, **flags}


FAST = {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>",
        "tokenizer_class": "PreTrainedTokenizerFast"}

# What tokenizer_config.json has beside its class, for each of two tokenizers: one of tokenizer.json, one of vocab.json.
CONFIGS = [
    {"additional_special_tokens": ["<x1>", "<x2>"]},
    {"extra_special_tokens": ["<x2>", "<x1>"]},
    {"extra_special_tokens": [], "additional_special_tokens": ["<x1>"]},
    {"extra_special_tokens": ["<x2>"], "additional_special_tokens": ["<x1>"]},
    {"extra_special_tokens": {"image_token": "<x2>", "audio_token": "<x1>"}},
    {"extra_special_tokens": {"z": "<x1>", "a": typed("<x2>", lstrip=True)},
     "additional_special_tokens": ["<x3>"]},
    {"pad_token": "<x1>"},
    {"eos_token": "<x1>", "pad_token": "<x1>"},
    {"mask_token": "<x1>", "bos_token": "<x2>", "cls_token": "<x3>", "unk_token": "<x4>", "sep_token": "<x5>"},
    {"pad_token": typed("<x1>", rstrip=True, special=True), "mask_token": typed("<x2>", normalized=True)},
    {"pad_token": {"__type": "AddedToken", "content": "<x1>"}},
    {"video_token": "<x2>", "image_token": "<x1>", "pad_token": "<x3>"},
    {"video_token": "<x2>", "image_token": typed("<x1>")},
    {"image_token": {"content": "<x1>"}},
    {"extra_special_tokens": [typed("<x1>", special=False), typed("<x2>", special=True), "<x3>"]},
    {"extra_special_tokens": ["<x1>", "<x1>"], "pad_token": "<x1>"},
    {"pad_token": "the", "extra_special_tokens": ["in"]},  # words of the vocabulary
    {"pad_token": None, "extra_special_tokens": ["<x1>"]},
    {"add_bos_token": True, "some_token": 7, "other_token": None, "extra_special_tokens": ["<x1>"]},
    {"added_tokens_decoder": {"1500": plain("<x2>", special=True), "1400": plain("<x1>", normalized=True)},
     "pad_token": "<x3>", "mask_token": "<x1>", "extra_special_tokens": ["<x2>", "<x4>"]},
]

# Files of their own.
OTHERS = [
    ("llama3", {"special_tokens_map.json": {"pad_token": "<x1>", "additional_special_tokens": ["<x2>"]}}),
    ("llama3", {"special_tokens_map.json": {"pad_token": plain("<x1>", lstrip=True)},
                "tokenizer_config.json": {**FAST, "pad_token": "<x2>"}}),
    ("llama3", {"special_tokens_map.json": {"image_token": plain("<x1>"), "extra_special_tokens": ["<x3>"]},
                "tokenizer_config.json": {**FAST, "extra_special_tokens": ["<x2>"]}}),
    ("llama3", {"special_tokens_map.json": {"additional_special_tokens": ["<x1>"]},
                "tokenizer_config.json": {**FAST, "extra_special_tokens": ["<x2>"]}}),
    ("llama3", {"added_tokens.json": {"<x2>": 1700, "<x1>": 1600},
                "tokenizer_config.json": {**FAST, "pad_token": "<x1>"}}),
    ("llama3", {"added_tokens.json": {"<x1>": 1600, "<x2>": 1601, "<x3>": 1602},
                "special_tokens_map.json": {"additional_special_tokens": ["<x2>"]},
                "tokenizer_config.json": {**FAST, "additional_special_tokens": ["<x1>"]}}),
    ("llama3", {"tokenizer_config.json": {**FAST, "added_tokens_decoder": {
        "1404": plain("<|eot_id|>", special=False, rstrip=True)}, "pad_token": "<x1>"}}),
    ("opt", {"special_tokens_map.json": {"pad_token": "<x1>", "additional_special_tokens": ["<x2>"]}}),
    ("opt", {"special_tokens_map.json": None, "tokenizer_config.json": {
        "tokenizer_class": "Qwen2Tokenizer", "pad_token": typed("<x1>", lstrip=True),
        "additional_special_tokens": ["<x2>"], "image_token": "<x3>"}}),
    ("opt", {"special_tokens_map.json": None, "tokenizer_config.json": {
        "tokenizer_class": "Qwen2TokenizerFast", "extra_special_tokens": {"a": "<x1>", "b": typed("<x2>", rstrip=True)},
        "eos_token": "<x4>"}}),
]

TEXTS = ["a<x1>b <x2> c <x3>  <x4><x5>d", "in the <X1> <x1 >", "<|eot_id|> the </s><pad>  <x2>\nx"]


def cases():
    for config in CONFIGS:
        yield "llama3", {"tokenizer_config.json": {**FAST, **config}}
        yield "opt", {"tokenizer_config.json": {"tokenizer_class": "GPT2Tokenizer", **config},
                      "special_tokens_map.json": None}
    yield from OTHERS


def judge(kind, files):
    with tempfile.TemporaryDirectory() as folder:
        for file in (TOKENIZERS / kind).iterdir():
            if file.suffix != ".jsonl":
                shutil.copy(file, folder)
        for name, value in files.items():
            path = pathlib.Path(folder) / name
            path.unlink(missing_ok=True)
            if value is not None:
                path.write_text(json.dumps(value))
        tokenizer = AutoTokenizer.from_pretrained(folder)
        texts = []
        for text in TEXTS:
            ids = tokenizer(text, add_special_tokens=False).input_ids
            texts.append({"text": text, "ids": ids, "decoded": tokenizer.decode(ids, skip_special_tokens=True),
                          "decoded_special": tokenizer.decode(ids)})
        size = max(max(tokenizer.get_vocab().values()), max(tokenizer.added_tokens_decoder)) + 1
        return {"tokenizer": kind, "files": files, "vocab_size": size, "texts": texts}


def make_all():
    rows = [judge(kind, files) for kind, files in cases()]
    body = ",\n".join(json.dumps(row) for row in rows)
    (TOKENIZERS / "special_tokens.json").write_text(f"[\n{body}\n]\n", encoding="ascii")
    print(f"special_tokens: {len(rows)} tokenizers of {len(TEXTS)} texts")


if __name__ == "__main__":
    make_all()
