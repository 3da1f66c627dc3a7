"""Small tokenizers of every kind that Sluice reads, and what Hugging Face makes of them.

Writes tokenizers/<kind>/ with the tokenizer's own files, golden.jsonl and decode.jsonl
(README.md has the formats). Called by make_golden.py.
"""

import json
import pathlib
import random
import sys

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import AutoTokenizer

from hostile_strings import EMOJI, EVERYDAY, MARKS, SCRIPTS, SEED, hostile_strings

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "models"))
import kjv  # noqa: E402  (beside the trained models, which share it)

VOCAB_SIZE = 1400
BYTE_TOKENS = [f"<0x{b:02X}>" for b in range(256)]

LLAMA3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2_PATTERN = LLAMA3_PATTERN.replace(r"\p{N}{1,3}", r"\p{N}")


def special(content, **flags):
    return AddedToken(content, special=True, **{"normalized": False, **flags})


def plain(content, **flags):
    return AddedToken(content, special=False, **flags)


def corpus():
    """A fifth of the training chapters, and enough of everything else to be learned."""
    train, _ = kjv.split(kjv.load_chapters())
    return [c.text for c in train[::5]] + (EVERYDAY + EMOJI + MARKS + SCRIPTS) * 12


def add(tokenizer, *tokens):
    for token in tokens:
        (tokenizer.add_special_tokens if token.special else tokenizer.add_tokens)([token])


def template(tokenizer, single, *names):
    return processors.TemplateProcessing(
        single=single,
        pair=single + " " + single.replace("$A", "$B"),
        special_tokens=[(n, tokenizer.token_to_id(n)) for n in names],
    )


# --- byte-level kinds ---------------------------------------------------------------------


def train_byte_level(tokenizer, specials=(), vocab_size=VOCAB_SIZE):
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(corpus(), trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(specials),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    ))
    return tokenizer


def make_gpt2():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    train_byte_level(tokenizer)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    # GPT-2's only added token comes first, then one for each flag that added tokens have.
    add(tokenizer,
        special("<|endoftext|>"),
        plain("<left>", lstrip=True, normalized=False),
        plain("<right>", rstrip=True, normalized=False),
        plain("<both>", lstrip=True, rstrip=True, normalized=False),
        plain("solo", single_word=True, normalized=False),
        plain("in the", normalized=False))
    # One added token that begins like another: the longest match wins.
    add(tokenizer, plain("<left><right>", normalized=False))
    return tokenizer, {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>",
                       "unk_token": "<|endoftext|>", "add_prefix_space": False}


def make_gpt2_prefix_space():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    train_byte_level(tokenizer, ["<s>", "<pad>", "</s>", "<unk>"])
    add(tokenizer, special("<mask>", lstrip=True), plain("<word>", single_word=True))
    # The post-processor adds a token at both ends.
    tokenizer.post_processor = template(tokenizer, "<s> $A </s>", "<s>", "</s>")
    return tokenizer, {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>",
                       "unk_token": "<unk>", "mask_token": "<mask>",
                       "add_prefix_space": True}


def make_llama3():
    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(LLAMA3_PATTERN), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    train_byte_level(tokenizer)
    # ignore_merges only shows on a word that is in the vocabulary but that the merges do
    # not reach: give the model three such words.
    state = json.loads(tokenizer.to_str())
    for word in ("unmergeable", "Ġunmergeable", "Ġxylographic"):
        state["model"]["vocab"][word] = len(state["model"]["vocab"])
    tokenizer = Tokenizer.from_str(json.dumps(state))
    bos = "<|begin_of_text|>"
    add(tokenizer, special(bos), special("<|end_of_text|>"),
        special("<|start_header_id|>"), special("<|end_header_id|>"),
        special("<|eot_id|>"), special("<|python_tag|>"))
    tokenizer.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        template(tokenizer, f"{bos} $A", bos),
    ])
    return tokenizer, {"bos_token": bos, "eos_token": "<|eot_id|>"}


def make_qwen2():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(QWEN2_PATTERN), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    train_byte_level(tokenizer)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    add(tokenizer, special("<|endoftext|>"), special("<|im_start|>"), special("<|im_end|>"),
        plain("<tool_call>", normalized=False), plain("</tool_call>", normalized=False),
        # This token is looked for in the normalized text, so it is also found when written
        # decomposed.
        plain("<café>", normalized=True),
        # This token is looked for in the text as it came, so it is not found when written
        # decomposed.
        plain("<naïve>", normalized=False))
    return tokenizer, {"bos_token": None, "eos_token": "<|im_end|>",
                       "pad_token": "<|endoftext|>", "add_bos_token": False}


# --- SentencePiece-like kinds -------------------------------------------------------------


def train_pieces():
    """Pieces over "▁"-joined words, as SentencePiece makes them: (vocabulary, merges).

    The order of ids is SentencePiece's (unknown, control, bytes, merged pieces, single
    characters), and the merges are derived as the converters derive them from a
    SentencePiece model: every way to split a piece in two pieces, best piece first. So
    there are many merges for one piece, unlike in a list that a BPE trainer makes.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(
        replacement="▁", prepend_scheme="always", split=True)
    tokenizer.train_from_iterator(corpus(), trainers.BpeTrainer(
        vocab_size=1000, limit_alphabet=250, show_progress=False))
    trained = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    characters = [t for t, _ in trained if len(t) == 1]
    pieces = ["▁▁", "▁▁▁▁", "▁▁▁▁▁▁▁▁"] + [t for t, _ in trained if len(t) > 1]

    ordered = ["<unk>", "<s>", "</s>", *BYTE_TOKENS, *pieces, *characters]
    vocab = {token: i for i, token in enumerate(ordered)}
    merges = []
    for piece in pieces:
        splits = [(piece[:i], piece[i:]) for i in range(1, len(piece))]
        splits = [s for s in splits if s[0] in vocab and s[1] in vocab]
        merges += sorted(splits, key=lambda s: (vocab[s[0]], vocab[s[1]]))
    return vocab, merges


def make_llama2():
    vocab, merges = train_pieces()
    tokenizer = Tokenizer(models.BPE(
        vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([
        normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence([
        decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
        decoders.Strip(" ", 1, 0)])
    add(tokenizer, special("<unk>"), special("<s>"), special("</s>"))
    tokenizer.post_processor = template(tokenizer, "<s> $A", "<s>")
    return tokenizer, {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>",
                       "add_bos_token": True, "add_eos_token": False}


def make_mistral_metaspace():
    vocab, merges = train_pieces()
    tokenizer = Tokenizer(models.BPE(
        vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(
        replacement="▁", prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence([
        decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
        decoders.Strip(" ", 1, 0)])
    add(tokenizer, special("<unk>"), special("<s>"), special("</s>"),
        special("[INST]"), special("[/INST]"), special("[TOOL_CALLS]"),
        plain("[note]", rstrip=True))
    tokenizer.post_processor = template(tokenizer, "<s> $A", "<s>")
    return tokenizer, {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>",
                       "add_bos_token": True, "add_eos_token": False}


# --- OPT: no tokenizer.json ---------------------------------------------------------------


def make_opt():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return train_byte_level(tokenizer, ["<s>", "<pad>", "</s>", "<unk>"])


def save_opt(tokenizer, folder):
    """Exactly the files and fields of the published OPT repositories."""
    tokenizer.model.save(str(folder))
    token = lambda content: {"content": content, "lstrip": False, "normalized": True,
                             "rstrip": False, "single_word": False}
    typed = lambda content: {"__type": "AddedToken", **token(content)}
    write_json(folder / "tokenizer_config.json", {
        "errors": "replace", "unk_token": typed("</s>"), "bos_token": typed("</s>"),
        "eos_token": typed("</s>"), "pad_token": typed("<pad>"), "add_prefix_space": False,
        "add_bos_token": True, "special_tokens_map_file": None,
        "tokenizer_class": "GPT2Tokenizer"})
    write_json(folder / "special_tokens_map.json", {
        "bos_token": token("</s>"), "eos_token": token("</s>"),
        "unk_token": token("</s>"), "pad_token": token("<pad>")})


# --- writing ------------------------------------------------------------------------------


def write_json(path, value):
    path.write_text(json.dumps(value, indent=1, ensure_ascii=True) + "\n")


def write_lines(path, rows):
    path.write_text("".join(json.dumps(r, ensure_ascii=True) + "\n" for r in rows))


def save(tokenizer, config, folder, old_merges):
    """tokenizer.json, with merges as "a b" (as older files have them) or as ["a", "b"]."""
    state = json.loads(tokenizer.to_str())
    if old_merges:
        state["model"]["merges"] = [" ".join(m) for m in state["model"]["merges"]]
    # json.dumps alone would give each half of a merge a line: the merges are put in with one entry
    # a line, so that the file stays small.
    text = json.dumps(state, ensure_ascii=False, indent=1)
    compact = json.dumps(state["model"]["merges"], ensure_ascii=False, indent=1)
    spaced = text[text.index('"merges": ') + len('"merges": '):]
    end = spaced.rindex("]") + 1
    if not old_merges:
        compact = "[\n" + ",\n".join(
            json.dumps(m, ensure_ascii=False) for m in state["model"]["merges"]) + "\n]"
    text = text[:text.index('"merges": ') + len('"merges": ')] + compact + spaced[end:]
    assert json.loads(text) == state
    (folder / "tokenizer.json").write_text(text + "\n", encoding="utf-8")
    write_json(folder / "tokenizer_config.json", {
        **config, "clean_up_tokenization_spaces": False,
        "tokenizer_class": "PreTrainedTokenizerFast"})


class RawJudge:
    """tokenizers.Tokenizer itself, reading the file that was written."""

    def __init__(self, folder):
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.added = [t.content for t in self.tokenizer.get_added_tokens_decoder().values()]
        self.size = self.tokenizer.get_vocab_size(with_added_tokens=True)

    def encode(self, text, add_special_tokens):
        return self.tokenizer.encode(text, add_special_tokens=add_special_tokens).ids

    def decode(self, ids, skip_special_tokens):
        return self.tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)


class AutoJudge:
    """transformers, for a directory that has no tokenizer.json."""

    def __init__(self, folder):
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        # Those that are no added tokens are asked for too: they must stay text.
        self.added = ["<s>", "<pad>", "</s>", "<unk>"]
        self.size = len(self.tokenizer)

    def encode(self, text, add_special_tokens):
        return self.tokenizer(text, add_special_tokens=add_special_tokens).input_ids

    def decode(self, ids, skip_special_tokens):
        return self.tokenizer.decode(
            ids, skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False)


def judge_kind(folder, judge):
    rows = []
    for text in hostile_strings(judge.added):
        ids = judge.encode(text, True)
        ids_no_special = judge.encode(text, False)
        rows.append({
            "text": text,
            "ids": ids,
            "ids_no_special": ids_no_special,
            "decoded": judge.decode(ids_no_special, True),
            "decoded_special": judge.decode(ids, False),
        })
    write_lines(folder / "golden.jsonl", rows)

    # Ids that no text gives: broken UTF-8, specials anywhere.
    rng = random.Random(SEED)
    rows = []
    for _ in range(200):
        limit = judge.size if rng.random() < 0.5 else 300  # the low ids are mostly bytes
        ids = [rng.randrange(limit) for _ in range(rng.randint(1, 12))]
        rows.append({"ids": ids, "decoded": judge.decode(ids, True),
                     "decoded_special": judge.decode(ids, False)})
    write_lines(folder / "decode.jsonl", rows)
    return len(rows)


KINDS = {
    # name: (maker, merges written the old way)
    "gpt2": (make_gpt2, True),
    "gpt2-prefix-space": (make_gpt2_prefix_space, False),
    "llama3": (make_llama3, False),
    "qwen2": (make_qwen2, True),
    "llama2": (make_llama2, True),
    "mistral-metaspace": (make_mistral_metaspace, False),
}


def make_all():
    for kind, (maker, old_merges) in KINDS.items():
        folder = HERE / "tokenizers" / kind
        folder.mkdir(parents=True, exist_ok=True)
        tokenizer, config = maker()
        save(tokenizer, config, folder, old_merges)
        judge_kind(folder, RawJudge(folder))
        print("tokenizer", kind)
    folder = HERE / "tokenizers" / "opt"
    folder.mkdir(parents=True, exist_ok=True)
    save_opt(make_opt(), folder)
    judge_kind(folder, AutoJudge(folder))
    print("tokenizer opt")


if __name__ == "__main__":
    make_all()
