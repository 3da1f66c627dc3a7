"""Golden data of the tokenizers of tokenizer_families.py.

Writes tokenizer_families/<family>/ with the tokenizer's own files, golden.jsonl and decode.jsonl,
in the form of tokenizers/<kind>/ but with fewer strings. Called by make_golden.py.
"""

import pathlib
import random
import shutil

import transformers
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from hostile_strings import SEED, hostile_strings
from make_tokenizers import write_lines
from tokenizer_families import FAMILIES

HERE = pathlib.Path(__file__).resolve().parent
TEXTS = 160
LONGEST = 120


class Judge:
    def __init__(self, added, size):
        self.added = added
        self.size = size

    def row(self, text):
        ids, plain = self.encode(text, True), self.encode(text, False)
        return {"text": text, "ids": ids, "ids_no_special": plain,
                "decoded": self.decode(plain, True), "decoded_special": self.decode(ids, False)}


class JsonJudge(Judge):
    """tokenizers.Tokenizer itself."""

    def __init__(self, folder):
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        super().__init__([t.content for t in self.tokenizer.get_added_tokens_decoder().values()],
                         self.tokenizer.get_vocab_size(with_added_tokens=True))

    def encode(self, text, add_special_tokens):
        return self.tokenizer.encode(text, add_special_tokens=add_special_tokens).ids

    def decode(self, ids, skip_special_tokens):
        return self.tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)


class ModelJudge(Judge):
    """transformers, for a directory that has only a tokenizer.model."""

    def __init__(self, folder):
        # The first version that follows the settings in the file, as SentencePiece itself does.
        if tuple(map(int, transformers.__version__.split(".")[:2])) < (5, 24):
            raise RuntimeError("tokenizer.model wants transformers 5.24")
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        super().__init__([t.content for t in self.tokenizer.added_tokens_decoder.values()], len(self.tokenizer))

    def encode(self, text, add_special_tokens):
        return self.tokenizer(text, add_special_tokens=add_special_tokens).input_ids

    def decode(self, ids, skip_special_tokens):
        return self.tokenizer.decode(
            ids, skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False)


def judge_of(folder):
    return JsonJudge(folder) if (folder / "tokenizer.json").exists() else ModelJudge(folder)


def make_family(name, number):
    folder = HERE / "tokenizer_families" / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    FAMILIES[name](folder)
    judge = judge_of(folder)
    rng = random.Random(SEED + number)
    # All families together see most strings.
    strings = [s for s in hostile_strings(judge.added) if len(s) <= LONGEST]
    write_lines(folder / "golden.jsonl", [judge.row(text) for text in rng.sample(strings, TEXTS)])
    rows = []
    for _ in range(50):
        limit = judge.size if rng.random() < 0.5 else 300  # the low ids are mostly bytes
        ids = [rng.randrange(limit) for _ in range(rng.randint(1, 12))]
        rows.append({"ids": ids, "decoded": judge.decode(ids, True), "decoded_special": judge.decode(ids, False)})
    write_lines(folder / "decode.jsonl", rows)


def make_all():
    for number, name in enumerate(FAMILIES):
        make_family(name, number)
    print(f"families: {len(FAMILIES)} tokenizers of {TEXTS} texts")


if __name__ == "__main__":
    make_all()
