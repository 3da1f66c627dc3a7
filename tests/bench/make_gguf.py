#!/usr/bin/env python3
"""Writes a Llama, or a Qwen3, as a GGUF file, for llama.cpp: of random weights, or a model's own.

    make_gguf.py FILE [--layers 22] [--hidden 2048] [--heads 32] [--kv-heads 4]
                 [--inner 5632] [--vocab 32000] [--type f16|f32|q4_k_m] [--qwen3]
    make_gguf.py FILE --model DIR [--type f32] [--untie]

llama.cpp is measured with it beside us: the same shapes, or the same weights.
The vocabulary is of bytes and made-up words: prompts are token ids. q4_k_m has the
matrices' formats of llama-quantize's Q4_K_M, with random codes. --model reads
a directory in Hugging Face's layout, of the plain Llama architecture. Needs the packages gguf
and numpy of PyPI; --model also safetensors.
"""

import argparse
import dataclasses
import glob
import json
import os
import sys

import gguf
import numpy as np

TYPES = {"f32": (np.float32, gguf.LlamaFileType.ALL_F32),
         "f16": (np.float16, gguf.LlamaFileType.MOSTLY_F16),
         "q4_k_m": (np.uint8, gguf.LlamaFileType.MOSTLY_Q4_K_M)}


@dataclasses.dataclass
class Shape:
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    inner: int
    vocab: int
    context: int = 2048
    norm_eps: float = 1e-5
    rope_theta: float = 10000.0
    own_head: bool = True  # or the embedding is the head
    family: str = "llama"

    @property
    def head_dim(self):
        return self.hidden // self.heads


class RandomWeights:
    """Matrices [rows, cols] of normal numbers with variance 1 / cols; norms of ones."""

    def __init__(self):
        self.rng = np.random.default_rng(1)
        # One matrix of numbers, cut anew for each tensor: drawing 10^9 takes minutes.
        self.pool = self.rng.standard_normal(1 << 22, dtype=np.float32).astype(np.float16)

    def norm(self, name, size):
        return np.ones(size, dtype=np.float32)

    def matrix(self, name, rows, cols, rotary_heads=0):
        start = int(self.rng.integers(0, 1 << 20))
        values = np.resize(self.pool[start:], rows * cols).reshape(rows, cols)
        return values * np.float16(cols ** -0.5)


class RandomBlocks(RandomWeights):
    """Matrices in blocks of Q4_K and Q6_K: rows of bytes."""

    # Where a block has its float16 scales, and these, for weights of some hundredths.
    SCALES = {gguf.GGMLQuantizationType.Q4_K: ((0, 7e-5), (2, 5e-4)),
              gguf.GGMLQuantizationType.Q6_K: ((208, 2e-5),)}

    def __init__(self, layers):
        super().__init__()
        self.layers = layers
        self.pools = {}
        for kind, scales in self.SCALES.items():
            blocks = self.rng.integers(0, 256, (1 << 14, gguf.GGML_QUANT_SIZES[kind][1]), dtype=np.uint8)
            for at, scale in scales:
                blocks[:, at:at + 2] = np.array([scale], dtype=np.float16).view(np.uint8)
            self.pools[kind] = blocks.reshape(-1)

    def kind_of(self, name):
        """The type that llama-quantize gives the matrix of this name, by Hugging Face's."""
        if name.startswith("lm_head"):
            return gguf.GGMLQuantizationType.Q6_K
        if "v_proj" in name or "down_proj" in name:
            layer, n = int(name.split(".")[2]), self.layers
            if layer < n // 8 or layer >= 7 * n // 8 or (layer - n // 8) % 3 == 2:
                return gguf.GGMLQuantizationType.Q6_K
        return gguf.GGMLQuantizationType.Q4_K

    def matrix(self, name, rows, cols, rotary_heads=0):
        elements, size = gguf.GGML_QUANT_SIZES[self.kind_of(name)]
        row_bytes = cols // elements * size
        return np.resize(self.pools[self.kind_of(name)], rows * row_bytes).reshape(rows, row_bytes)


class ModelWeights:
    """The tensors of a model directory, by Hugging Face's names."""

    def __init__(self, directory):
        from safetensors.numpy import load_file

        self.tensors = {}
        for path in sorted(glob.glob(os.path.join(directory, "*.safetensors"))):
            self.tensors.update(load_file(path))

    def norm(self, name, size):
        values = self.tensors.pop(name).astype(np.float32)
        assert values.shape == (size,), (name, values.shape)
        return values

    def matrix(self, name, rows, cols, rotary_heads=0):
        values = self.tensors.pop(name)
        assert values.shape == (rows, cols), (name, values.shape)
        if rotary_heads:
            # Hugging Face rotates the pairs (i, i + half) of a head, llama.cpp (2 i, 2 i + 1).
            values = values.reshape(rotary_heads, 2, -1, cols).swapaxes(1, 2)
        return values.reshape(rows, cols)


def shape_of_model(directory):
    """Returns the shape in config.json; exits if what it says has no place in the file that `write`
    makes."""
    with open(os.path.join(directory, "config.json")) as f:
        c = json.load(f)
    rope = c.get("rope_parameters") or c.get("rope_scaling") or {}
    heads, hidden = c["num_attention_heads"], c["hidden_size"]
    if (c["model_type"] != "llama" or c.get("attention_bias") or c.get("mlp_bias")
            or rope.get("rope_type", "default") != "default"
            or c.get("head_dim", hidden // heads) * heads != hidden):
        sys.exit(f"{directory}: not a plain Llama")
    return Shape(layers=c["num_hidden_layers"], hidden=hidden, heads=heads,
                 kv_heads=c.get("num_key_value_heads", heads), inner=c["intermediate_size"],
                 vocab=c["vocab_size"], context=c["max_position_embeddings"],
                 norm_eps=c["rms_norm_eps"],
                 rope_theta=rope.get("rope_theta", c.get("rope_theta", 10000.0)),
                 own_head=not c.get("tie_word_embeddings", False))


def add_vocabulary(writer, size):
    """Adds a SentencePiece vocabulary: three special tokens, all bytes, then words that no text has."""
    kinds = gguf.TokenType
    tokens = [("<unk>", kinds.UNKNOWN), ("<s>", kinds.CONTROL), ("</s>", kinds.CONTROL)]
    tokens += [(f"<0x{byte:02X}>", kinds.BYTE) for byte in range(256)]
    tokens += [(f"\u2581word{i}", kinds.NORMAL) for i in range(len(tokens), size)]
    writer.add_tokenizer_model("llama")
    writer.add_token_list([text for text, _ in tokens])
    writer.add_token_types([int(kind) for _, kind in tokens])
    writer.add_token_scores([-float(i) for i in range(len(tokens))])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)


def write(path, shape, weights, file_type, untie=False):
    """untie: a head of its own, equal to the embedding that the model uses as its head."""
    dtype, kind = TYPES[file_type]
    s = shape
    writer = gguf.GGUFWriter(path, s.family)
    writer.add_block_count(s.layers)
    writer.add_context_length(s.context)
    writer.add_embedding_length(s.hidden)
    writer.add_feed_forward_length(s.inner)
    writer.add_head_count(s.heads)
    writer.add_head_count_kv(s.kv_heads)
    writer.add_rope_dimension_count(s.head_dim)
    if s.family == "qwen3":
        writer.add_key_length(s.head_dim)
        writer.add_value_length(s.head_dim)
    writer.add_rope_freq_base(s.rope_theta)
    writer.add_layer_norm_rms_eps(s.norm_eps)
    writer.add_vocab_size(s.vocab)
    writer.add_file_type(kind)
    add_vocabulary(writer, s.vocab)

    def norm(name, source, size=s.hidden):
        writer.add_tensor(name + ".weight", weights.norm(source + ".weight", size))

    def matrix(name, source, rows, cols, rotary_heads=0):
        values = weights.matrix(source + ".weight", rows, cols, rotary_heads)
        values = np.ascontiguousarray(values, dtype=dtype)
        writer.add_tensor(name + ".weight", values,
                          raw_dtype=weights.kind_of(source) if dtype is np.uint8 else None)
        return values

    kv = s.head_dim * s.kv_heads
    embedding = matrix("token_embd", "model.embed_tokens", s.vocab, s.hidden)
    for i in range(s.layers):
        to, layer = f"blk.{i}.", f"model.layers.{i}."
        norm(to + "attn_norm", layer + "input_layernorm")
        matrix(to + "attn_q", layer + "self_attn.q_proj", s.hidden, s.hidden, s.heads)
        matrix(to + "attn_k", layer + "self_attn.k_proj", kv, s.hidden, s.kv_heads)
        if s.family == "qwen3":
            norm(to + "attn_q_norm", layer + "self_attn.q_norm", s.head_dim)
            norm(to + "attn_k_norm", layer + "self_attn.k_norm", s.head_dim)
        matrix(to + "attn_v", layer + "self_attn.v_proj", kv, s.hidden)
        matrix(to + "attn_output", layer + "self_attn.o_proj", s.hidden, s.hidden)
        norm(to + "ffn_norm", layer + "post_attention_layernorm")
        matrix(to + "ffn_gate", layer + "mlp.gate_proj", s.inner, s.hidden)
        matrix(to + "ffn_up", layer + "mlp.up_proj", s.inner, s.hidden)
        matrix(to + "ffn_down", layer + "mlp.down_proj", s.hidden, s.inner)
    norm("output_norm", "model.norm")
    if s.own_head:
        matrix("output", "lm_head", s.vocab, s.hidden)
    elif untie:
        writer.add_tensor("output.weight", embedding)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("file")
    parser.add_argument("--model", help="a model directory, whose weights and shape are taken")
    parser.add_argument("--type", choices=TYPES, default="f16", help="of the matrices")
    parser.add_argument("--qwen3", action="store_true", help="its architecture")
    parser.add_argument("--untie", action="store_true",
                        help="write a tied head as a matrix of its own")
    for name, value in (("layers", 22), ("hidden", 2048), ("heads", 32), ("kv-heads", 4),
                        ("inner", 5632), ("vocab", 32000)):
        parser.add_argument(f"--{name}", type=int, default=value)
    a = parser.parse_args()
    if a.model and a.type == "q4_k_m":
        parser.error("--type q4_k_m is of random codes; llama-quantize makes a model's own")
    if a.model:
        write(a.file, shape_of_model(a.model), ModelWeights(a.model), a.type, a.untie)
    else:
        shape = Shape(a.layers, a.hidden, a.heads, a.kv_heads, a.inner, a.vocab,
                      family="qwen3" if a.qwen3 else "llama")
        write(a.file, shape, RandomBlocks(a.layers) if a.type == "q4_k_m" else RandomWeights(), a.type)


if __name__ == "__main__":
    main()
