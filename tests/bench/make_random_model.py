#!/usr/bin/env python3
"""Writes a Llama-architecture model with random bfloat16 weights.

    make_random_model.py DIR [--hidden 768 --layers 12 --heads 12 --mlp 2048 --vocab 32000]

For benchmarks: the shape is real, the text it generates is not. Uses Python's
standard library only. The tokenizer is that of tests/models/llama-kjv: token
ids above its vocabulary decode to nothing, so benchmarks send token ids.
"""

import argparse
import array
import json
import os
import random
import shutil
import struct

HERE = os.path.dirname(os.path.abspath(__file__))
BLOCK = 1 << 18  # random values, repeated over the tensors at varying offsets


def random_bfloat16(count, std, rng):
    floats = array.array("f", (rng.gauss(0.0, std) for _ in range(count)))
    halves = array.array("H")
    halves.frombytes(floats.tobytes())
    return halves[1::2]  # the high half of a little-endian float32


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("directory")
    for name, value in [("hidden", 768), ("layers", 12), ("heads", 12), ("kv-heads", 0),
                        ("mlp", 2048), ("vocab", 32000), ("positions", 2048)]:
        parser.add_argument(f"--{name}", type=int, default=value)
    a = parser.parse_args()
    kv_heads = a.kv_heads or a.heads
    head_dim = a.hidden // a.heads
    os.makedirs(a.directory, exist_ok=True)

    tensors = {"model.embed_tokens.weight": (a.vocab, a.hidden),
               "model.norm.weight": (a.hidden,),
               "lm_head.weight": (a.vocab, a.hidden)}
    for i in range(a.layers):
        p = f"model.layers.{i}."
        tensors.update({
            p + "input_layernorm.weight": (a.hidden,),
            p + "self_attn.q_proj.weight": (a.heads * head_dim, a.hidden),
            p + "self_attn.k_proj.weight": (kv_heads * head_dim, a.hidden),
            p + "self_attn.v_proj.weight": (kv_heads * head_dim, a.hidden),
            p + "self_attn.o_proj.weight": (a.hidden, a.heads * head_dim),
            p + "post_attention_layernorm.weight": (a.hidden,),
            p + "mlp.gate_proj.weight": (a.mlp, a.hidden),
            p + "mlp.up_proj.weight": (a.mlp, a.hidden),
            p + "mlp.down_proj.weight": (a.hidden, a.mlp)})

    rng = random.Random(1)
    weights = random_bfloat16(BLOCK, 0.02, rng)
    header, offset = {}, 0
    for name, shape in tensors.items():
        size = 2
        for dim in shape:
            size *= dim
        header[name] = {"dtype": "BF16", "shape": list(shape),
                        "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(os.path.join(a.directory, "model.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for name, shape in tensors.items():
            begin, end = header[name]["data_offsets"]
            count = (end - begin) // 2
            if "norm" in name:
                array.array("H", [0x3F80] * count).tofile(f)  # 1.0
                continue
            while count > 0:
                start = rng.randrange(BLOCK // 2)
                piece = weights[start:start + count]
                piece.tofile(f)
                count -= len(piece)

    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama",
              "hidden_size": a.hidden, "num_hidden_layers": a.layers,
              "num_attention_heads": a.heads, "num_key_value_heads": kv_heads,
              "intermediate_size": a.mlp, "vocab_size": a.vocab,
              "max_position_embeddings": a.positions, "hidden_act": "silu",
              "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False,
              "bos_token_id": 0, "eos_token_id": 1, "torch_dtype": "bfloat16"}
    with open(os.path.join(a.directory, "config.json"), "w") as f:
        json.dump(config, f, indent=1)
    tokenizer = os.path.join(HERE, "..", "models", "llama-kjv")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(os.path.join(tokenizer, name), a.directory)


if __name__ == "__main__":
    main()
