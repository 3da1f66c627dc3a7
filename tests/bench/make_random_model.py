#!/usr/bin/env python3
"""Writes a model of random weights as model repositories have them.

    make_random_model.py DIR [--hidden 768 --layers 12 --heads 12 --mlp 2048 --vocab 32000]
                         [--family llama|qwen3] [--format bf16|fp8|gptq|gptq-order] [--shard-bytes N]

For benchmarks: the shape is real, the text it generates is not. Uses Python's
standard library only. The tokenizer is that of tests/models/llama-kjv: token
ids above its vocabulary decode to nothing, so benchmarks send token ids.
With --shard-bytes, shards of at most so many bytes and an index beside them,
as transformers writes them; a layer's matrices in float8 with a scale for each
128 x 128, or in 4 bits by groups of 128 as GPTQ packs them.
"""

import argparse
import array
import json
import math
import os
import random
import shutil
import struct

HERE = os.path.dirname(os.path.abspath(__file__))
BLOCK = 1 << 18  # random values, repeated over the tensors at varying offsets
GROUP = 128
FORMATS = {
    "bf16": None,
    "fp8": {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
            "weight_block_size": [GROUP, GROUP]},
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False, "sym": True},
    "gptq-order": {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": True, "sym": True},
}
BYTES = {"BF16": 2, "F16": 2, "F32": 4, "I32": 4, "F8_E4M3": 1}


def random_bfloat16(count, std, rng):
    floats = array.array("f", (rng.gauss(0.0, std) for _ in range(count)))
    halves = array.array("H")
    halves.frombytes(floats.tobytes())
    return halves[1::2].tobytes()  # the high half of a little-endian float32


class Contents:
    """What tensors hold, by dtype: bytes of any number of elements."""

    def __init__(self, rng):
        self.rng = rng
        codes = rng.randbytes(2 * BLOCK)
        self.pools = {"BF16": random_bfloat16(BLOCK, 0.02, rng), "I32": codes,
                      "F8_E4M3": bytes(code & 0xF7 for code in codes)}  # no NaN

    def pieces(self, dtype, shape, value):
        """Yields bytes: `value` over and over, as it is, or random ones if there is none."""
        left = math.prod(shape) * BYTES[dtype]
        if isinstance(value, bytes):
            yield value * (left // len(value))
            return
        pool = self.pools[dtype]
        while left > 0:
            start = self.rng.randrange(len(pool) // 8) * 4
            piece = pool[start:start + left]
            yield piece
            left -= len(piece)


def coded(kind, name, rows, columns):
    """The tensors of a matrix: name, dtype, shape, and their value, None for random ones."""
    if kind == "fp8":
        scale = struct.pack("<f", 0.02 / 100)
        return [(name + ".weight", "F8_E4M3", (rows, columns), None),
                (name + ".weight_scale_inv", "F32", (-(-rows // GROUP), -(-columns // GROUP)), scale)]
    if kind.startswith("gptq"):
        groups = columns // GROUP
        order = [i // GROUP for i in range(columns)]
        if kind == "gptq-order":  # the same for all weights with these inputs
            random.Random(columns).shuffle(order)
        return [(name + ".qweight", "I32", (columns // 8, rows), None),
                (name + ".qzeros", "I32", (groups, rows // 8), b"\x77\x77\x77\x77"),
                (name + ".scales", "F16", (groups, rows), struct.pack("<e", 0.005)),
                (name + ".g_idx", "I32", (columns,), array.array("i", order).tobytes())]
    return [(name + ".weight", "BF16", (rows, columns), None)]


def tensors_of(a):
    kv_heads, head_dim = a.kv_heads or a.heads, a.hidden // a.heads
    q, kv = a.heads * head_dim, kv_heads * head_dim

    def norm(name, size):
        return [(name + ".weight", "BF16", (size,), b"\x80\x3f")]

    found = coded("bf16", "model.embed_tokens", a.vocab, a.hidden) + norm("model.norm", a.hidden)
    found += coded("bf16", "lm_head", a.vocab, a.hidden)
    for i in range(a.layers):
        p = f"model.layers.{i}."
        found += norm(p + "input_layernorm", a.hidden) + norm(p + "post_attention_layernorm", a.hidden)
        for name, rows, columns in (
                ("self_attn.q_proj", q, a.hidden), ("self_attn.k_proj", kv, a.hidden),
                ("self_attn.v_proj", kv, a.hidden), ("self_attn.o_proj", a.hidden, q),
                ("mlp.gate_proj", a.mlp, a.hidden), ("mlp.up_proj", a.mlp, a.hidden),
                ("mlp.down_proj", a.hidden, a.mlp)):
            found += coded(a.format, p + name, rows, columns)
        if a.family == "qwen3":
            found += norm(p + "self_attn.q_norm", head_dim) + norm(p + "self_attn.k_norm", head_dim)
    return found


def write_shard(path, tensors, contents):
    header, offset = {}, 0
    for name, dtype, shape, _ in tensors:
        size = math.prod(shape) * BYTES[dtype]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for _, dtype, shape, value in tensors:
            f.writelines(contents.pieces(dtype, shape, value))


def shards_of(tensors, most):
    """Cuts a list of tensors into shards of at most so many bytes."""
    shards, room = [], 0
    for tensor in tensors:
        size = math.prod(tensor[2]) * BYTES[tensor[1]]
        if not shards or size > room:
            shards.append([])
            room = most
        shards[-1].append(tensor)
        room -= size
    return shards


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("directory")
    for name, value in [("hidden", 768), ("layers", 12), ("heads", 12), ("kv-heads", 0),
                        ("mlp", 2048), ("vocab", 32000), ("positions", 2048), ("shard-bytes", 0)]:
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--family", choices=("llama", "qwen3"), default="llama")
    parser.add_argument("--format", choices=FORMATS, default="bf16")
    a = parser.parse_args()
    os.makedirs(a.directory, exist_ok=True)

    tensors = tensors_of(a)
    contents = Contents(random.Random(1))
    if a.shard_bytes == 0:
        write_shard(os.path.join(a.directory, "model.safetensors"), tensors, contents)
    else:
        shards, places = shards_of(tensors, a.shard_bytes), {}
        for i, shard in enumerate(shards, 1):
            name = f"model-{i:05}-of-{len(shards):05}.safetensors"
            write_shard(os.path.join(a.directory, name), shard, contents)
            places.update({tensor[0]: name for tensor in shard})
        total = sum(math.prod(shape) * BYTES[dtype] for _, dtype, shape, _ in tensors)
        with open(os.path.join(a.directory, "model.safetensors.index.json"), "w") as f:
            json.dump({"metadata": {"total_size": total}, "weight_map": places}, f, indent=1)

    config = {"architectures": ["LlamaForCausalLM" if a.family == "llama" else "Qwen3ForCausalLM"],
              "model_type": a.family, "hidden_size": a.hidden, "num_hidden_layers": a.layers,
              "num_attention_heads": a.heads, "num_key_value_heads": a.kv_heads or a.heads,
              "head_dim": a.hidden // a.heads, "intermediate_size": a.mlp, "vocab_size": a.vocab,
              "max_position_embeddings": a.positions, "hidden_act": "silu",
              "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False,
              "bos_token_id": 0, "eos_token_id": 1, "torch_dtype": "bfloat16"}
    if FORMATS[a.format]:
        config["quantization_config"] = FORMATS[a.format]
    with open(os.path.join(a.directory, "config.json"), "w") as f:
        json.dump(config, f, indent=1)
    tokenizer = os.path.join(HERE, "..", "models", "llama-kjv")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(os.path.join(tokenizer, name), a.directory)


if __name__ == "__main__":
    main()
