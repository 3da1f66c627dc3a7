#!/usr/bin/env python3
"""Writes a GGUF file with random weights of a Llama's shape, for llama.cpp.

    make_gguf.py FILE [--layers 22] [--hidden 2048] [--heads 32] [--kv-heads 4]
                 [--inner 5632] [--vocab 32000]

What llama.cpp is measured with beside us: the same shapes, 16 bits, no
vocabulary. Needs the packages gguf and numpy of PyPI.
"""

import argparse

import gguf
import numpy as np


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("file")
    for name, value in (("layers", 22), ("hidden", 2048), ("heads", 32), ("kv-heads", 4),
                        ("inner", 5632), ("vocab", 32000)):
        parser.add_argument(f"--{name}", type=int, default=value)
    a = parser.parse_args()
    head_dim = a.hidden // a.heads
    kv = head_dim * a.kv_heads
    rng = np.random.default_rng(1)
    # One matrix of numbers, cut anew for each tensor: drawing 10^9 takes minutes.
    pool = rng.standard_normal(1 << 22, dtype=np.float32).astype(np.float16)

    def matrix(rows, cols):
        start = int(rng.integers(0, 1 << 20))
        values = np.resize(pool[start:], rows * cols).reshape(rows, cols)
        return values * np.float16(cols ** -0.5)

    writer = gguf.GGUFWriter(a.file, "llama")
    writer.add_block_count(a.layers)
    writer.add_context_length(2048)
    writer.add_embedding_length(a.hidden)
    writer.add_feed_forward_length(a.inner)
    writer.add_head_count(a.heads)
    writer.add_head_count_kv(a.kv_heads)
    writer.add_rope_dimension_count(head_dim)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(a.vocab)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    writer.add_tokenizer_model("no_vocab")
    ones = np.ones(a.hidden, dtype=np.float32)
    writer.add_tensor("token_embd.weight", matrix(a.vocab, a.hidden))
    for i in range(a.layers):
        writer.add_tensor(f"blk.{i}.attn_norm.weight", ones)
        writer.add_tensor(f"blk.{i}.attn_q.weight", matrix(a.hidden, a.hidden))
        writer.add_tensor(f"blk.{i}.attn_k.weight", matrix(kv, a.hidden))
        writer.add_tensor(f"blk.{i}.attn_v.weight", matrix(kv, a.hidden))
        writer.add_tensor(f"blk.{i}.attn_output.weight", matrix(a.hidden, a.hidden))
        writer.add_tensor(f"blk.{i}.ffn_norm.weight", ones)
        writer.add_tensor(f"blk.{i}.ffn_gate.weight", matrix(a.inner, a.hidden))
        writer.add_tensor(f"blk.{i}.ffn_up.weight", matrix(a.inner, a.hidden))
        writer.add_tensor(f"blk.{i}.ffn_down.weight", matrix(a.hidden, a.inner))
    writer.add_tensor("output_norm.weight", ones)
    writer.add_tensor("output.weight", matrix(a.vocab, a.hidden))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
