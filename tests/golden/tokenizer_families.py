"""Small tokenizers with the exact parts of each model family's, trained here.

`FAMILIES` has a function for each, which writes a model directory. What a family publishes
was taken from its tokenizer.json or tokenizer.model; only the vocabulary is our own.
"""

import json

import sentencepiece
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

from hostile_strings import EMOJI, EVERYDAY, LETTERS, MARKS, PUNCTUATION, SCRIPTS, SPACES

CORPUS = (EVERYDAY + EMOJI + MARKS + SCRIPTS) * 8 + (LETTERS + PUNCTUATION + SPACES) * 2

CONTRACTION = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
CL100K = (CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN = CL100K.replace(r"\p{N}{1,3}", r"\p{N}")
UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
O200K = (rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{CONTRACTION}?"
         rf"|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{CONTRACTION}?"
         r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
BLOOM = " ?[^(\\s|[.,!?…。，、।۔،])]+"

BYTE_LEVEL = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
GPT2 = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
BYTES = [f"<0x{b:02X}>" for b in range(256)]


def special(content, **flags):
    return AddedToken(content, special=True, **{"normalized": False, **flags})


def plain(content, **flags):
    return AddedToken(content, special=False, **{"normalized": False, **flags})


def split(pattern, behavior="isolated", invert=False):
    return pre_tokenizers.Split(Regex(pattern), behavior=behavior, invert=invert)


def template(tokenizer, single):
    names = [part for part in single.split() if part != "$A"]
    return processors.TemplateProcessing(
        single=single, special_tokens=[(n, tokenizer.token_to_id(n)) for n in names])


def save(tokenizer, folder, **config):
    """Writes the directory. The vocabulary stays on one line."""
    (folder / "tokenizer.json").write_text(
        json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=False) + "\n", encoding="utf-8")
    write_config(folder, tokenizer_class="PreTrainedTokenizerFast", **config)


def write_config(folder, **config):
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"clean_up_tokenization_spaces": False, **config}, ensure_ascii=True, indent=1) + "\n")


# --- byte-level BPE -----------------------------------------------------------------------


def byte_level(size, steps, tokens, single=None, normalizer=None, **options):
    """A function that writes byte-level BPE of so many tokens under these pre-tokenizers."""
    def write(folder):
        tokenizer = Tokenizer(models.BPE(**options))
        if normalizer:
            tokenizer.normalizer = normalizer
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps) if len(steps) > 1 else steps[0]
        tokenizer.decoder = decoders.ByteLevel()
        tokenizer.train_from_iterator(CORPUS, trainers.BpeTrainer(
            vocab_size=size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
        for token in tokens:
            (tokenizer.add_special_tokens if token.special else tokenizer.add_tokens)([token])
        tokenizer.post_processor = (
            template(tokenizer, single) if single else processors.ByteLevel(trim_offsets=False))
        save(tokenizer, folder, eos_token=next(t.content for t in tokens if t.special))
    return write


EOT = special("<|endoftext|>")
DIGITS = pre_tokenizers.Digits(individual_digits=True)

BYTE_LEVEL_FAMILIES = {
    "gpt-oss": byte_level(701, [split(O200K), BYTE_LEVEL], [
        EOT, special("<|startoftext|>"), special("<|return|>"), special("<|channel|>"), special("<|message|>")]),
    # The converter of tiktoken's files writes the same split in this way.
    "phi-4": byte_level(653, [split(O200K, "removed", invert=True), BYTE_LEVEL], [
        EOT, special("<|im_start|>", lstrip=True, rstrip=True), special("<|end|>", rstrip=True),
        plain("<|tool|>", rstrip=True)]),
    "falcon": byte_level(689, [
        pre_tokenizers.Punctuation("contiguous"), GPT2, pre_tokenizers.Digits(individual_digits=False),
        split("[0-9][0-9][0-9]")], [EOT, special(">>TITLE<<"), special(">>QUESTION<<")]),
    "gpt-neox": byte_level(647, [GPT2], [
        EOT, special("<|padding|>"), *(plain(" " * n, normalized=True) for n in (24, 12, 7, 4, 3, 2))],
        normalizer=normalizers.NFC()),
    "bloom": byte_level(673, [split(BLOOM), BYTE_LEVEL], [
        special("</s>"), special("<s>"), special("<unk>"), special("<pad>")]),
    "glm-4": byte_level(659, [split(CL100K), BYTE_LEVEL], [
        EOT, special("[gMASK]"), special("<sop>"), special("<|user|>"), plain("<|observation|>")],
        single="[gMASK] <sop> $A"),
    "command-r": byte_level(661, [DIGITS, GPT2], [
        special("<EOS_TOKEN>"), special("<BOS_TOKEN>"), special("<|START_OF_TURN_TOKEN|>"),
        plain("<|USER_TOKEN|>", normalized=True)], single="<BOS_TOKEN> $A", normalizer=normalizers.NFC()),
    "starcoder2": byte_level(677, [DIGITS, GPT2], [EOT, special("<fim_prefix>"), special("<repo_name>")]),
    "granite": byte_level(643, [DIGITS, GPT2], [
        special("<|end_of_text|>"), special("<fim_middle>"), special("<|start_of_role|>"), special("<|tool_call|>")]),
    "qwen3": byte_level(683, [split(QWEN), BYTE_LEVEL], [
        EOT, special("<|im_start|>"), special("<|im_end|>"), plain("<think>"), plain("</think>")],
        normalizer=normalizers.NFC()),
    "olmo2": byte_level(641, [split(CL100K), BYTE_LEVEL], [
        EOT, special("<|pad|>"), plain("|||IP_ADDRESS|||"), plain("<|extra_id_0|>")]),
    "smollm3": byte_level(691, [split(CL100K), BYTE_LEVEL], [
        special("<|im_end|>"), special("<|begin_of_text|>"), plain("<think>")],
        single="<|begin_of_text|> $A", ignore_merges=True),
    "stablelm": byte_level(631, [split(CL100K), BYTE_LEVEL], [
        EOT, special("<|im_start|>"), special("<|reg0|>")], normalizer=normalizers.NFC()),
}


# --- pieces with "▁" in tokenizer.json ----------------------------------------------------


def pieces(first, size):
    """A vocabulary as SentencePiece orders it, and all merges that make its pieces."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.train_from_iterator(CORPUS, trainers.BpeTrainer(
        vocab_size=size, limit_alphabet=230, show_progress=False))
    trained = [t for t, _ in sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])]
    longer = [t for t in trained if len(t) > 1]
    vocab = {t: i for i, t in enumerate([*first, *BYTES, *longer, *(t for t in trained if len(t) == 1)])}
    merges = []
    for piece in longer:
        halves = [(piece[:i], piece[i:]) for i in range(1, len(piece))]
        merges += [h for h in halves if h[0] in vocab and h[1] in vocab]
    return vocab, merges


def byte_fallback_decoder(strip):
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    return decoders.Sequence(steps + ([decoders.Strip(" ", 1, 0)] if strip else []))


def write_gemma(folder):
    vocab, merges = pieces(["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"], 610)
    tokenizer = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = byte_fallback_decoder(strip=False)
    tokenizer.add_special_tokens([special(t) for t in ("<pad>", "<eos>", "<bos>", "<unk>", "<mask>")])
    tokenizer.add_special_tokens([special("<start_of_turn>"), special("<end_of_turn>")])
    tokenizer.add_tokens([plain("\n" * n) for n in (2, 3, 4)] + [plain("▁" * n) for n in (2, 3, 4, 8)]
                         + [plain("<table>"), plain("</table>")])
    tokenizer.post_processor = template(tokenizer, "<bos> $A")
    save(tokenizer, folder, bos_token="<bos>", eos_token="<eos>", unk_token="<unk>", pad_token="<pad>")


def write_phi3(folder):
    vocab, merges = pieces(["<unk>", "<s>", "</s>"], 570)
    tokenizer = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = byte_fallback_decoder(strip=True)
    tokenizer.add_special_tokens([special("<unk>"), special("<s>"), special("</s>", rstrip=True)])
    tokenizer.add_special_tokens([special("<|endoftext|>"), special("<|assistant|>", rstrip=True),
                                  special("<|user|>", rstrip=True), special("<|end|>", rstrip=True)])
    tokenizer.post_processor = template(tokenizer, "$A")
    save(tokenizer, folder, bos_token="<s>", eos_token="<|endoftext|>", unk_token="<unk>")


# --- SentencePiece ------------------------------------------------------------------------


def train_spm(folder, kind, size, **options):
    """Trains folder/tokenizer.model."""
    lines = [line for text in CORPUS for line in text.split("\n") if line.strip() and "\0" not in line]
    with open(folder / "tokenizer.model", "wb") as out:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines), model_writer=out, model_type=kind, vocab_size=size,
            character_coverage=0.985, hard_vocab_limit=False, minloglevel=2, num_threads=1,
            **{"byte_fallback": True, **options})


LLAMA_SPM = dict(normalization_rule_name="identity", remove_extra_whitespaces=False, split_digits=True,
                 allow_whitespace_only_pieces=True, control_symbols=["<|im_start|>"],
                 user_defined_symbols=["<|user|>", "<sep>"])


def spm(kind, size, config, **options):
    def write(folder):
        train_spm(folder, kind, size, **options)
        write_config(folder, **config)
    return write


def unigram_json(size, byte_fallback, rule):
    """Unigram in tokenizer.json, as the converters of T5's and XGLM's kin build it."""
    def write(folder):
        train_spm(folder, "unigram", size, byte_fallback=byte_fallback, normalization_rule_name=rule)
        from sentencepiece import sentencepiece_model_pb2
        proto = sentencepiece_model_pb2.ModelProto()
        proto.ParseFromString((folder / "tokenizer.model").read_bytes())
        (folder / "tokenizer.model").unlink()
        tokenizer = Tokenizer(models.Unigram(
            [(p.piece, p.score) for p in proto.pieces], unk_id=0, byte_fallback=byte_fallback))
        tokenizer.normalizer = normalizers.Sequence([
            normalizers.Precompiled(proto.normalizer_spec.precompiled_charsmap),
            normalizers.Strip(left=False, right=True), normalizers.Replace(Regex(" {2,}"), "▁")])
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
        tokenizer.decoder = (byte_fallback_decoder(strip=True) if byte_fallback
                             else decoders.Metaspace(prepend_scheme="always"))
        tokenizer.add_special_tokens([special(t) for t in ("<unk>", "<s>", "</s>")])
        tokenizer.add_tokens([plain("<extra>", lstrip=True), plain("né", single_word=True, normalized=True)])
        tokenizer.post_processor = template(tokenizer, "$A </s>")
        save(tokenizer, folder, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    return write


def write_other_parts(folder):
    """What no family here has, but a decoder model's file may."""
    train_spm(folder, "unigram", 917, byte_fallback=False, normalization_rule_name="nmt_nfkc")
    spm_model = sentencepiece.SentencePieceProcessor(str(folder / "tokenizer.model"))
    (folder / "tokenizer.model").unlink()
    tokenizer = Tokenizer(models.Unigram(
        [(spm_model.id_to_piece(i), spm_model.get_score(i)) for i in range(len(spm_model))], unk_id=0))
    tokenizer.normalizer = normalizers.Sequence([
        normalizers.Nmt(), normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase(),
        normalizers.Replace(Regex("[.]{3,}"), "…"), normalizers.Strip()])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.CharDelimiterSplit("|"), pre_tokenizers.UnicodeScripts(),
        pre_tokenizers.Metaspace(prepend_scheme="first"), pre_tokenizers.Punctuation("merged_with_next")])
    tokenizer.decoder = decoders.Sequence([decoders.Metaspace(prepend_scheme="first"), decoders.Replace(Regex("e+"), "E"), decoders.Fuse()])
    tokenizer.add_special_tokens([special(t) for t in ("<unk>", "<s>", "</s>")])
    tokenizer.post_processor = template(tokenizer, "<s> $A")
    save(tokenizer, folder, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


LLAMA = {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>",
         "add_bos_token": True, "add_eos_token": False}

FAMILIES = {
    **BYTE_LEVEL_FAMILIES,
    "gemma": write_gemma,
    "phi-3": write_phi3,
    "unigram": unigram_json(907, False, "nmt_nfkc"),
    "unigram-bytes": unigram_json(1103, True, "nmt_nfkc_cf"),
    "other-parts": write_other_parts,
    "spm-llama": spm("bpe", 1019, {**LLAMA, "legacy": False}, **LLAMA_SPM),
    "spm-llama-legacy": spm("bpe", 1021, {**LLAMA, "legacy": True, "add_eos_token": True}, **LLAMA_SPM),
    "spm-gemma": spm("bpe", 1013, {
        "tokenizer_class": "GemmaTokenizer", "add_bos_token": True, "eos_token": "<eos>"},
        **{**LLAMA_SPM, "add_dummy_prefix": False, "pad_id": 0, "eos_id": 1, "bos_id": 2, "unk_id": 3,
           "pad_piece": "<pad>", "eos_piece": "<eos>", "bos_piece": "<bos>",
           "user_defined_symbols": ["<mask>", "\n\n", "▁▁", "<start_of_turn>"]}),
    "spm-bpe": spm("bpe", 1031, {"eos_token": "</s>"}, normalization_rule_name="nfkc",
                   user_defined_symbols=["<sep>", "nt"]),
    "spm-unigram": spm("unigram", 1151, {"eos_token": "</s>", "add_bos_token": True},
                       user_defined_symbols=["<sep>", "the"], control_symbols=["<ctl>"]),
    "spm-unigram-plain": spm("unigram", 911, {"eos_token": "</s>"}, byte_fallback=False,
                             add_dummy_prefix=False, remove_extra_whitespaces=False),
}
