#!/usr/bin/env python3
"""Perplexity of llama-kjv under our number formats and under llama.cpp's.

    quality_llamacpp.py --source LLAMA_CPP --build LLAMA_CPP_BUILD [--bin build/release/bin]

Both get the same lists of token ids, cut as `sluice score` does: BOS and up to
511 tokens of a held-out chapter. Each token behind BOS counts. For each file
that llama.cpp's own quantizer makes, two perplexities: what its library
computes (for quantized weights it rounds activations to 8 bits, too), with KV
in float32; and "of weights", of the same file's weights, turned back to float32
and run by Sluice, so that they alone differ from our rows.

"nll over 4-bit" is the mean of -log p less that of our 4-bit weights, with its
standard error, the tokens being paired: above zero, ours are better.

Prints a table and puts it under "beside llama.cpp" in
tests/bench/results/quality.json. Needs Debian's bible-kjv, the packages gguf,
numpy, safetensors and tokenizers of PyPI, and a build of llama.cpp with static
libraries (README.md), against which it compiles llamacpp_peer.cc. OPT is not
among llama.cpp's architectures.
"""

import argparse
import glob
import json
import os
import shutil
import subprocess
import sys
import tempfile
from importlib import metadata

import gguf
import numpy as np

import make_gguf
from machine import machine, today

HERE = os.path.dirname(os.path.abspath(__file__))
MODELS = os.path.join(HERE, "..", "models")
MODEL = os.path.join(MODELS, "llama-kjv")
sys.path.insert(0, MODELS)
KEY = "beside llama.cpp"
OURS = (("float32", ""), ("8-bit weights", "compress-weights=int8"),
        ("4-bit weights", "compress-weights=int4"))
# Name, which file it is made from, and for llamacpp_peer: type of the file, whether pure, of head
# and of embedding; None: that file itself. By default a head that is the embedding becomes Q6_K,
# or Q8_0 where, as here, a row is no multiple of 256 numbers; pure, it has the type of the rest.
# A "tied" file has one matrix for both. "like ours" has the head in 8 bits and the embedding in
# full.
FILE = gguf.LlamaFileType
Q8_0, F32 = gguf.GGMLQuantizationType.Q8_0, gguf.GGMLQuantizationType.F32
THEIRS = (
    ("F32", "tied", None),
    ("F16", "f16", None),
    ("Q8_0", "tied", (FILE.MOSTLY_Q8_0, 0, -1, -1)),
    ("Q4_0", "tied", (FILE.MOSTLY_Q4_0, 0, -1, -1)),
    ("Q4_0 pure", "tied", (FILE.MOSTLY_Q4_0, 1, -1, -1)),
    ("Q4_0 like ours", "untied", (FILE.MOSTLY_Q4_0, 0, Q8_0, F32)),
    ("Q4_1 like ours", "untied", (FILE.MOSTLY_Q4_1, 0, Q8_0, F32)),
)


def windows_of(texts, context, model=MODEL):
    """(ids, first that counts), cut as `sluice score` does (server/cli/run/score_windows.h)."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(os.path.join(model, "tokenizer.json"))
    start = tokenizer.encode("").ids
    room = context - len(start)
    for text in texts:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        for at in range(0, len(ids), room):
            yield start + ids[at:at + room], len(start)


def compile_peer(source, build, to):
    libraries = [os.path.join(build, "src", "libllama.a")]
    for name in ("ggml", "ggml-cpu", "ggml-base"):  # in the linker's order
        libraries += glob.glob(os.path.join(build, "ggml", "**", f"lib{name}.a"), recursive=True)
    subprocess.run(
        ["c++", "-std=c++17", "-O2", os.path.join(HERE, "llamacpp_peer.cc"), "-o", to,
         "-I", os.path.join(source, "include"), "-I", os.path.join(source, "ggml", "include"),
         *libraries, "-fopenmp", "-ldl"], check=True)


def nll_by_llama_cpp(peer, path, windows, context):
    """-log p of each counted token."""
    lines = "".join(" ".join(map(str, ids)) + "\n" for ids, _ in windows)
    done = subprocess.run([peer, "score", path, str(context), str(os.cpu_count())], input=lines,
                          stdout=subprocess.PIPE, text=True, check=True)
    every = np.array(done.stdout.split(), dtype=np.float64)
    nll, at = [], 0
    for ids, first in windows:
        nll.append(every[at + first - 1:at + len(ids) - 1])
        at += len(ids) - 1
    assert at == every.size
    return np.concatenate(nll)


def full_names(layers):
    """GGUF's names of matrices and norms to Hugging Face's."""
    names = {"token_embd": "model.embed_tokens", "output": "lm_head", "output_norm": "model.norm"}
    parts = {"attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj",
             "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
             "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm",
             "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
    for i in range(layers):
        names |= {f"blk.{i}.{a}": f"model.layers.{i}.{b}" for a, b in parts.items()}
    return names


def turn_back(path, shape, directory):
    """A GGUF file as a model directory in float32; also bits per weight by kind of matrix."""
    from safetensors.numpy import save_file

    names = full_names(shape.layers)
    tensors, types = {}, {}
    for t in gguf.GGUFReader(path).tensors:
        name = t.name.removesuffix(".weight")
        values = gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float32)
        values = values.reshape(tuple(int(n) for n in reversed(t.shape)))
        part = name.split(".")[-1]
        if part in ("attn_q", "attn_k"):
            heads = shape.heads if part == "attn_q" else shape.kv_heads
            values = values.reshape(heads, -1, 2, values.shape[1]).swapaxes(1, 2)
            values = values.reshape(-1, shape.hidden)
        tensors[names[name] + ".weight"] = np.ascontiguousarray(values)
        if values.ndim == 2:
            kind = {"token_embd": "embedding", "output": "head"}.get(name, "layers")
            sums = types.setdefault(kind, {"types": set(), "bytes": 0, "weights": 0})
            sums["types"].add(t.tensor_type.name)
            sums["bytes"] += int(t.n_bytes)
            sums["weights"] += values.size
    os.makedirs(directory)
    for name in os.listdir(MODEL):
        if not name.startswith("model"):
            shutil.copy(os.path.join(MODEL, name), directory)
    with open(os.path.join(MODEL, "config.json")) as f:
        config = json.load(f)
    config["tie_word_embeddings"] = "lm_head.weight" not in tensors
    with open(os.path.join(directory, "config.json"), "w") as f:
        json.dump(config, f)
    save_file(tensors, os.path.join(directory, "model.safetensors"), {"format": "pt"})
    return {kind: {"type": "+".join(sorted(s["types"])),
                   "bits_per_weight": 8 * s["bytes"] / s["weights"]}
            for kind, s in types.items()}


def our_bits(shape, bits):
    """Bits per weight of the layers' matrices, without padding. runtime/quant/panel_codec.h:
    for each input, a scale and a minimum of 16 bits for each 64 columns of a panel of 128."""
    kv = shape.head_dim * shape.kv_heads
    stored = weights = 0
    for columns, inputs in ((shape.hidden + 2 * kv, shape.hidden), (shape.hidden, shape.hidden),
                            (2 * shape.inner, shape.hidden), (shape.hidden, shape.inner)):
        groups = -(-columns // 64)  # panels are multiples of the group
        stored += inputs * (bits * columns + 32 * groups)
        weights += inputs * columns
    return stored / weights


def nll_by_sluice(a, model, windows, policy=""):
    """-log p of each counted token."""
    with tempfile.TemporaryDirectory(prefix="sluice-quality-") as d:
        requests, results = os.path.join(d, "in.jsonl"), os.path.join(d, "out.jsonl")
        with open(requests, "w") as f:
            for ids, _ in windows:
                json.dump({"prompt": ids, "max_tokens": 0, "echo": True, "logprobs": 0}, f)
                f.write("\n")
        done = subprocess.run(
            [os.path.join(a.bin, "sluice"), "run", "--model", model, "-i", requests, "-o", results,
             "--dtype", "float32", "-q", *(["--policy", policy] if policy else [])],
            capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"{model}, {policy}: {done.stderr}")
        with open(results) as f:
            answers = [json.loads(line) for line in f]
    nll = []
    for (ids, first), answer in zip(windows, answers, strict=True):
        logprobs = answer["response"]["body"]["choices"][0]["logprobs"]["token_logprobs"]
        assert len(logprobs) == len(ids)
        nll += logprobs[first:]
    return -np.array(nll)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default=os.path.join(HERE, "..", "..", "build/release/bin"))
    parser.add_argument("--source", required=True, help="of llama.cpp")
    parser.add_argument("--build", required=True, help="where CMake built it")
    parser.add_argument("--chapters", type=int, default=0, help="the first so many; 0: all")
    parser.add_argument("--result", default=os.path.join(HERE, "results", "quality.json"))
    a = parser.parse_args()
    import kjv

    _, held_out = kjv.split(kjv.load_chapters())
    texts = [chapter.text for chapter in held_out[:a.chapters or None]]
    shape = make_gguf.shape_of_model(MODEL)
    windows = list(windows_of(texts, shape.context))
    rows = []
    nlls = {name: nll_by_sluice(a, MODEL, windows, policy) for name, policy in OURS}

    def perplexity(nll):
        return float(np.exp(nll.mean()))

    def over_ours(nll):
        over = nll - nlls["4-bit weights"]
        return {"mean": float(over.mean()),
                "standard_error": float(over.std(ddof=1) / np.sqrt(over.size))}

    def add(by, name, figures):
        rows.append({"by": by, "format": name, **figures})
        over = figures["nll_over_4_bit"]
        print(f"{by:9} {name:15} {figures['perplexity']:8.4f}",
              f"of weights {figures.get('perplexity_of_weights', figures['perplexity']):8.4f}",
              f"nll over 4-bit {over['mean']:+.5f} ({over['standard_error']:.5f})",
              *(f"{part} {m['type']} {m['bits_per_weight']:.2f}"
                for part, m in figures["matrices"].items()), flush=True)

    full = {"type": "F32", "bits_per_weight": 32}
    for (name, policy), nll in zip(OURS, nlls.values()):
        bits = {"int8": 8, "int4": 4}.get(policy.partition("=")[2])
        add("sluice", name, {
            "perplexity": perplexity(nll), "nll_over_4_bit": over_ours(nll),
            "matrices": {
                "embedding": full,
                "layers": {"type": f"{bits}-bit", "bits_per_weight": our_bits(shape, bits)}
                if bits else full,
                "head": {"type": "8-bit", "bits_per_weight": 8.5} if bits else full}})
    with tempfile.TemporaryDirectory(prefix="sluice-quality-") as d:
        peer = os.path.join(d, "llamacpp_peer")
        compile_peer(a.source, a.build, peer)
        version, features = subprocess.run(
            [peer, "version"], capture_output=True, text=True, check=True).stdout.splitlines()
        sources = {}
        for name, file_type, untie in (("tied", "f32", False), ("untied", "f32", True),
                                       ("f16", "f16", False)):
            sources[name] = os.path.join(d, name + ".gguf")
            make_gguf.write(sources[name], shape, make_gguf.ModelWeights(MODEL), file_type, untie)
        for number, (name, source, arguments) in enumerate(THEIRS):
            path = sources[source]
            if arguments:
                path = os.path.join(d, f"{number}.gguf")
                subprocess.run([peer, "quantize", sources[source], path,
                                *(str(int(x)) for x in arguments)], check=True)
            back = os.path.join(d, f"model{number}")
            matrices = turn_back(path, shape, back)
            nll = nll_by_llama_cpp(peer, path, windows, shape.context)
            of_weights = nll_by_sluice(a, back, windows)
            add("llama.cpp", name, {
                "perplexity": perplexity(nll), "nll_over_4_bit": over_ours(nll),
                "perplexity_of_weights": perplexity(of_weights),
                "nll_of_weights_over_4_bit": over_ours(of_weights), "matrices": matrices})
    result = {}
    if os.path.exists(a.result):  # bench_quality.py writes there, too
        with open(a.result) as f:
            result = json.load(f)
    result[KEY] = {
        "date": today(), "machine": machine(), "model": "llama-kjv",
        "chapters": len(texts), "windows": len(windows), "tokens_scored": nlls["float32"].size,
        "llama_cpp": version, "llama_cpp_features": features, "gguf": metadata.version("gguf"),
        "rows": rows}
    with open(a.result, "w") as f:
        json.dump(result, f, indent=1)
        f.write("\n")


if __name__ == "__main__":
    main()
