#!/usr/bin/env python3
"""Writes a mixture of experts of random weights as a GGUF file, for llama.cpp and for us.

    make_mixture.py FILE.gguf --shape qwen3-30b-a3b [--layers 14]
    make_mixture.py FILE.gguf --shape gpt-oss-120b [--layers 9]
    make_mixture.py FILE.gguf --model DIR [--experts MXFP4]

The shapes are published models' with fewer layers and random weights: qwen3-30b-a3b in bfloat16,
gpt-oss-120b with its experts in MXFP4 and the rest in bfloat16. --model takes a directory's own
weights (Qwen3-MoE in Hugging Face's layout): experts in the type that is named, the rest in
float32. Tensors are written one after the other, so that a file may be larger than memory.
Prompts are token ids (make_gguf.py's vocabulary). Needs the packages gguf and numpy of PyPI;
--model also safetensors and ml_dtypes.
"""

import argparse
import json
import os

import gguf
import numpy as np

from make_gguf import add_vocabulary

BF16, F32, MXFP4 = (gguf.GGMLQuantizationType.BF16, gguf.GGMLQuantizationType.F32,
                    gguf.GGMLQuantizationType.MXFP4)
SHAPES = {
    "qwen3-30b-a3b": dict(
        architecture="qwen3moe", layers=48, hidden=2048, heads=32, kv_heads=4, head_dim=128,
        experts=128, chosen=8, inner=768, vocab=151936, theta=1e6, epsilon=1e-6, kind=BF16),
    "gpt-oss-120b": dict(
        architecture="gpt-oss", layers=36, hidden=2880, heads=64, kv_heads=8, head_dim=64,
        experts=128, chosen=4, inner=2880, vocab=201088, theta=150000.0, epsilon=1e-5, kind=MXFP4,
        window=128),
}


def bytes_of(kind, elements):
    block, size = gguf.GGML_QUANT_SIZES[kind]
    return elements // block * size


class RandomValues:
    """Random numbers; one pool of bytes for each kind, cut anew for each tensor."""

    def __init__(self):
        self.rng = np.random.default_rng(1)
        self.normal = self.rng.standard_normal(1 << 23, dtype=np.float32)
        # Codes of a normal distribution's size: scales near 2^-7, all codes alike.
        blocks = self.rng.integers(0, 256, ((1 << 18), 17), dtype=np.uint8)
        blocks[:, 0] = 127 - 8
        self.codes = blocks.reshape(-1)

    def make(self, name, shape, kind, scale):
        elements = int(np.prod(shape))
        if scale is None:
            return np.ones(shape, np.float32)
        if kind == F32:
            return np.resize(self.normal, elements).astype(np.float32) * np.float32(scale)
        if kind == MXFP4:
            size = bytes_of(kind, elements)
            start = 17 * int(self.rng.integers(0, 1 << 17))
            return np.resize(self.codes[start:start + 17 * (1 << 17)], size)
        # The upper half of a float32 is a bfloat16.
        pool = (self.normal * np.float32(scale)).view(np.uint32) >> 16
        start = int(self.rng.integers(0, 1 << 20))
        return np.resize(pool[start:].astype(np.uint16), elements)


class ModelValues:
    """The tensors of a Qwen3-MoE directory, by Hugging Face's names."""

    PARTS = {"attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj",
             "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
             "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm",
             "attn_k_norm": "self_attn.k_norm", "ffn_norm": "post_attention_layernorm",
             "ffn_gate_inp": "mlp.gate"}
    WHOLE = {"token_embd": "model.embed_tokens", "output": "lm_head", "output_norm": "model.norm"}

    def __init__(self, directory):
        import ml_dtypes  # noqa: F401  (numpy has no bfloat16 of its own)
        from safetensors.numpy import load_file

        self.tensors = load_file(os.path.join(directory, "model.safetensors"))

    def full(self, name):
        return self.tensors[name + ".weight"].astype(np.float32)

    def make(self, name, shape, kind, scale):
        name = name.removesuffix(".weight")
        if name in self.WHOLE:
            return self.full(self.WHOLE[name])
        _, layer, part = name.split(".")
        at = f"model.layers.{layer}."
        if part in self.PARTS:
            return self.full(at + self.PARTS[part])
        matrix = part.split("_")[1]  # ffn_gate_exps
        values = np.stack([self.full(f"{at}mlp.experts.{e}.{matrix}_proj")
                           for e in range(shape[0])])
        assert values.shape == shape, (name, values.shape)
        return gguf.quants.quantize(values, kind)


def shape_of_model(directory, experts):
    with open(os.path.join(directory, "config.json")) as f:
        c = json.load(f)
    assert c["model_type"] == "qwen3_moe", c["model_type"]
    return dict(
        architecture="qwen3moe", layers=c["num_hidden_layers"], hidden=c["hidden_size"],
        heads=c["num_attention_heads"], kv_heads=c["num_key_value_heads"], head_dim=c["head_dim"],
        experts=c["num_experts" if "num_experts" in c else "num_local_experts"],
        chosen=c["num_experts_per_tok"], inner=c["moe_intermediate_size"], vocab=c["vocab_size"],
        theta=c["rope_parameters"]["rope_theta"], epsilon=c["rms_norm_eps"],
        kind=gguf.GGMLQuantizationType[experts], rest=F32, tied=c["tie_word_embeddings"])


def tensors(s):
    """(name, shape with the contiguous axis last, kind, scale; scale None: ones)."""
    hidden, inner, experts = s["hidden"], s["inner"], s["experts"]
    queries, keys = s["heads"] * s["head_dim"], s["kv_heads"] * s["head_dim"]
    oss = s["architecture"] == "gpt-oss"

    def matrix(name, rows, cols, kind=s.get("rest", BF16), count=()):
        yield name + ".weight", (*count, rows, cols), kind, cols ** -0.5
        if oss and name.startswith("blk."):
            yield name + ".bias", (*count, rows), F32, 0.01

    yield from matrix("token_embd", s["vocab"], hidden)
    for i in range(s["layers"]):
        at = f"blk.{i}."
        yield at + "attn_norm.weight", (hidden,), F32, None
        yield from matrix(at + "attn_q", queries, hidden)
        yield from matrix(at + "attn_k", keys, hidden)
        yield from matrix(at + "attn_v", keys, hidden)
        yield from matrix(at + "attn_output", hidden, queries)
        if oss:
            yield at + "attn_sinks.weight", (s["heads"],), F32, 1.0
            yield at + "post_attention_norm.weight", (hidden,), F32, None
        else:
            yield at + "attn_q_norm.weight", (s["head_dim"],), F32, None
            yield at + "attn_k_norm.weight", (s["head_dim"],), F32, None
            yield at + "ffn_norm.weight", (hidden,), F32, None
        yield from matrix(at + "ffn_gate_inp", experts, hidden, F32)
        yield from matrix(at + "ffn_gate_exps", inner, hidden, s["kind"], (experts,))
        yield from matrix(at + "ffn_up_exps", inner, hidden, s["kind"], (experts,))
        yield from matrix(at + "ffn_down_exps", hidden, inner, s["kind"], (experts,))
    yield "output_norm.weight", (hidden,), F32, None
    if not s.get("tied"):
        yield from matrix("output", s["vocab"], hidden)


def write(path, s, values):
    writer = gguf.GGUFWriter(path, s["architecture"])
    writer.add_block_count(s["layers"])
    writer.add_context_length(4096)
    writer.add_embedding_length(s["hidden"])
    writer.add_feed_forward_length(s["inner"])
    writer.add_head_count(s["heads"])
    writer.add_head_count_kv(s["kv_heads"])
    writer.add_key_length(s["head_dim"])
    writer.add_value_length(s["head_dim"])
    writer.add_rope_freq_base(s["theta"])
    writer.add_layer_norm_rms_eps(s["epsilon"])
    writer.add_vocab_size(s["vocab"])
    writer.add_expert_count(s["experts"])
    writer.add_expert_used_count(s["chosen"])
    writer.add_expert_feed_forward_length(s["inner"])
    if "window" in s:
        writer.add_sliding_window(s["window"])
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(32.0)
        writer.add_rope_scaling_orig_ctx_len(4096)
    add_vocabulary(writer, s["vocab"])
    for name, shape, kind, _ in tensors(s):
        # The writer takes a shape of bytes where it is told of a packed type.
        block, size = gguf.GGML_QUANT_SIZES[kind]
        packed = block > 1
        writer.add_tensor_info(
            name, (*shape[:-1], shape[-1] // block * size) if packed else shape,
            np.dtype(np.uint8 if packed else np.float32), bytes_of(kind, int(np.prod(shape))),
            raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for tensor in tensors(s):
        writer.write_tensor_data(values.make(*tensor))
    writer.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("file")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--shape", choices=sorted(SHAPES))
    which.add_argument("--model", help="a directory, whose weights and shape are taken")
    parser.add_argument("--layers", type=int, help="fewer than the published model's")
    parser.add_argument("--experts", default="F32", help="type of --model's experts")
    args = parser.parse_args()
    if args.model:
        write(args.file, shape_of_model(args.model, args.experts), ModelValues(args.model))
        return
    shape = dict(SHAPES[args.shape])
    shape["layers"] = args.layers or shape["layers"]
    write(args.file, shape, RandomValues())


if __name__ == "__main__":
    main()
