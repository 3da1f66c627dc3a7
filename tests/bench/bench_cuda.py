#!/usr/bin/env python3
"""`sluice run` on a GPU, on real shapes with dummy weights.

    bench_cuda.py --sluice PROGRAM [--device cuda] [--dtype auto] [--out FILE]
                  [--cases NAME,...] [--limit 150] [--total 1800] [--memory-gb-s 3350]
                  [--no-flexgen] [--no-plan] [--tiny]

Shapes of OPT-6.7B and 30B, Llama-3-8B and 70B; prompts of 512 and 1024 tokens,
32 generated; with `--device-memory 16GiB` (the T4 of FlexGen's paper) and with
all that the device has. There are as many sequences as memory has room for, 256 at
most. They are computed in bfloat16, or in float16 on GPUs without it (before compute
capability 8.0), by `--plan on` and a profile that is measured once; predicted is
beside measured.
FlexGen runs the OPT cases, too, right after ours and within the same memory, where
Python has torch and the package flexgen.

Each run ends after `--limit` seconds, the whole after `--total`: cases that no
time is left for are "skipped". One JSON object to --out, or to stdout:
"cases" has a member for each, in the order in which they ran, the first ones
those that matter most; "profile" is the machine's. --tiny is for the emulated GPU:
small shapes, few sequences, a profile that is not exact. Standard library only: it
runs on a bare machine.
"""

import argparse
import importlib.util
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time

GIB = 1 << 30
NEW = 32
MOST_SEQUENCES = 256

OPT = {"architectures": ["OPTForCausalLM"], "model_type": "opt", "vocab_size": 50272,
       "max_position_embeddings": 2048, "activation_function": "relu", "do_layer_norm_before": True,
       "word_embed_proj_dim": 0, "enable_bias": True, "torch_dtype": "bfloat16", "bos_token_id": 2,
       "eos_token_id": 2, "pad_token_id": 1, "prefix": "</s>"}
LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 128256,
         "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "hidden_act": "silu",
         "rope_theta": 500000.0, "torch_dtype": "bfloat16", "tie_word_embeddings": False,
         "bos_token_id": 128000, "eos_token_id": 128001}


def opt(hidden, layers, heads, **more):
    return {**OPT, "hidden_size": hidden, "num_hidden_layers": layers,
            "num_attention_heads": heads, "ffn_dim": 4 * hidden, "word_embed_proj_dim": hidden,
            **more}


def llama(hidden, layers, heads, kv_heads, mlp, **more):
    return {**LLAMA, "hidden_size": hidden, "num_hidden_layers": layers,
            "num_attention_heads": heads, "num_key_value_heads": kv_heads,
            "intermediate_size": mlp, **more}


SHAPES = {"opt-6.7b": opt(4096, 32, 32), "opt-30b": opt(7168, 48, 56),
          "llama-3-8b": llama(4096, 32, 32, 8, 14336),
          "llama-3-70b": llama(8192, 80, 64, 8, 28672),
          "opt-tiny": opt(128, 6, 4, vocab_size=512),
          "llama-tiny": llama(128, 3, 4, 2, 256, vocab_size=512, bos_token_id=1, eos_token_id=2)}

# shape, device memory, prompt: what matters most comes first.
CASES = [("opt-30b", "16GiB", 512), ("llama-3-8b", "", 512), ("opt-6.7b", "", 512),
         ("llama-3-8b", "16GiB", 512), ("opt-6.7b", "16GiB", 512), ("opt-30b", "", 512),
         ("llama-3-70b", "16GiB", 512), ("llama-3-70b", "", 512), ("opt-30b", "16GiB", 1024),
         ("llama-3-8b", "", 1024), ("opt-6.7b", "", 1024), ("llama-3-8b", "16GiB", 1024),
         ("opt-6.7b", "16GiB", 1024), ("opt-30b", "", 1024), ("llama-3-70b", "16GiB", 1024),
         ("llama-3-70b", "", 1024)]
TINY_CASES = [("opt-tiny", "20MiB", 24), ("llama-tiny", "", 24)]
TINY_PROFILE = ["--seconds", "0.02", "--device-memory", "128MiB", "--host-memory", "256MiB"]


def bytes_of(text):
    """16GiB -> 17179869184"""
    number, unit = re.fullmatch(r"(\d+)([KMGT]iB)", text).groups()
    return int(number) << {"K": 10, "M": 20, "G": 30, "T": 40}[unit[0]]


def weight_bytes(shape):
    """Returns the bytes of a model's weights in 16 bits, biases and norms left out."""
    hidden, layers = shape["hidden_size"], shape["num_hidden_layers"]
    if shape["model_type"] == "opt":
        layer = 12 * hidden * hidden
        embeddings = shape["vocab_size"] * hidden
    else:
        kv = hidden // shape["num_attention_heads"] * shape["num_key_value_heads"]
        layer = 2 * hidden * hidden + 2 * hidden * kv + 3 * hidden * shape["intermediate_size"]
        embeddings = 2 * shape["vocab_size"] * hidden
    return 2 * (layer * layers + embeddings)


def kv_bytes(shape):
    """Returns the bytes of a token's K and V in 16 bits."""
    heads = shape.get("num_key_value_heads", shape["num_attention_heads"])
    head_dim = shape["hidden_size"] // shape["num_attention_heads"]
    return 2 * 2 * heads * head_dim * shape["num_hidden_layers"]


def free_host_bytes():
    with open("/proc/meminfo") as f:
        for line in f:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return 8 * GIB


def ask_gpu(field):
    """Returns what nvidia-smi says of the first GPU; "" if it can't."""
    try:
        out = subprocess.run(["nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader,nounits"],
                             capture_output=True, text=True, timeout=30).stdout
        return out.split("\n")[0].strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def device_bytes():
    """Returns the bytes of the first GPU's memory; 0 if nvidia-smi can't tell."""
    try:
        return int(ask_gpu("memory.total")) << 20
    except ValueError:
        return 0


def dtype_here():
    """Returns the type of 16 bits that the first GPU computes with."""
    try:
        return "bfloat16" if float(ask_gpu("compute_cap")) >= 8 else "float16"
    except ValueError:
        return "bfloat16"


def sequences_for(shape, device, prompt):
    """Returns how many sequences have room, with their KV beside the weights in 60 % of what host
    and device have."""
    room = 0.6 * (free_host_bytes() + device) - weight_bytes(shape)
    count = int(room // (kv_bytes(shape) * (prompt + NEW)))
    return max(8, min(MOST_SEQUENCES, count // 8 * 8))


def run(command, limit, env=None):
    """(exit status, stdout, stderr, seconds); status None if it was out of time."""
    start = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               start_new_session=True, env=env)
    try:
        out, err = process.communicate(timeout=max(1, limit))
        status = process.returncode
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        status = None
    return status, out, err, time.monotonic() - start


def tail(text, lines=8):
    return "\n".join(text.strip().splitlines()[-lines:])


def failure(status, err, limit):
    if status is None:
        return {"outcome": "timed out", "limit_seconds": limit}
    return {"outcome": "failed", "exit": status, "error": tail(err)}


def write_requests(path, sequences, prompt, vocabulary):
    rng = random.Random(5)
    with open(path, "w") as f:
        for i in range(sequences):
            ids = [rng.randrange(5, min(vocabulary, 8000)) for _ in range(prompt)]
            f.write(json.dumps({
                "custom_id": f"b{i}", "method": "POST", "url": "/v1/completions",
                "body": {"prompt": ids, "max_tokens": NEW, "ignore_eos": True,
                         "temperature": 0}}) + "\n")


def measure(a, directory, name, memory, prompt, sequences, profile, limit):
    shape = SHAPES[name]
    model = os.path.join(directory, name)
    os.makedirs(model, exist_ok=True)
    with open(os.path.join(model, "config.json"), "w") as f:
        json.dump(shape, f)
    requests = os.path.join(directory, f"{sequences}x{prompt}.jsonl")
    write_requests(requests, sequences, prompt, shape["vocab_size"])
    command = [a.sluice, "run", "--model", model, "--load-format", "dummy",
               "-i", requests, "-o", os.path.join(directory, "out.jsonl"), "--json", "--quiet",
               "--dtype", a.dtype, "--device", a.device, "--no-refill"]
    if memory:
        command += ["--device-memory", memory]
    if profile:
        command += ["--plan", "on", "--profile", profile]
    else:
        command += ["--gbs", str(min(sequences, 64)), "--num-microbatches",
                    str((sequences + 63) // 64)]
    status, out, err, seconds = run(command, limit)
    entry = {"command": " ".join(command[1:]), "seconds": seconds}
    if status != 0:
        return {**entry, **failure(status, err, limit)}
    figures = json.loads(out.strip().splitlines()[-1])
    entry["outcome"] = "passed"
    entry["sluice"] = figures
    generated = figures.get("generation_tokens_per_second")
    if generated:
        entry["generation_tokens_per_second"] = generated
    predicted = (figures.get("predicted") or {}).get("tokens_per_second")
    if predicted and generated:
        entry["predicted_tokens_per_second"] = predicted
        entry["measured_to_predicted"] = generated / predicted
    decode = figures.get("decode_seconds")
    if a.memory_gb_s and decode:
        # Weights and KV of each decode step, read once.
        step = weight_bytes(shape) + sequences * kv_bytes(shape) * (prompt + NEW / 2)
        bound = (NEW - 1) * step / (a.memory_gb_s * 1e9)
        entry["decode_roofline_seconds"] = bound
        entry["decode_share_of_roofline"] = bound / decode
    return entry


# FlexGen's own program, with its memory bounded, and without its tokenizer, which
# it would fetch: its benchmark's prompt is one sentence, repeated and padded.
FLEXGEN = r"""
import runpy, sys, types
import torch, transformers
share = float(sys.argv.pop(1))
if share < 1: torch.cuda.set_per_process_memory_fraction(share, 0)
class Tokenizer:
    def __call__(self, prompts, padding=None, max_length=8, **_):
        ids = [[1] * (max_length - 7) + [2, 100, 200, 300, 400, 500, 600] for _ in prompts]
        return types.SimpleNamespace(input_ids=ids)
    def batch_decode(self, rows, **_): return [""] * len(rows)
transformers.AutoTokenizer.from_pretrained = staticmethod(lambda *_, **__: Tokenizer())
sys.argv[0] = "flex_opt"
runpy.run_module("flexgen.flex_opt", run_name="__main__")
"""


def flexgen_missing():
    for package in ("torch", "transformers", "flexgen"):
        if importlib.util.find_spec(package) is None:
            return f"Python has no package {package}"
    return None


def measure_flexgen(name, memory, prompt, sequences, device, limit):
    shape = SHAPES[name]
    total = min(device, bytes_of(memory)) if memory else device
    # All KV is on the host, as in the paper's runs; the device holds as much of the weights as half
    # of it has room for.
    share = int(min(100, 100 * 0.5 * total / weight_bytes(shape)))
    gbs = min(48, sequences)
    while sequences % gbs:
        gbs -= 1
    command = [sys.executable, "-c", FLEXGEN, f"{min(1.0, total / device):.4f}", "--model",
               f"facebook/{name}", "--path", "_DUMMY_", "--prompt-len", str(prompt), "--gen-len",
               str(NEW), "--percent", str(share), str(100 - share), "0", "100", "0", "100",
               "--gpu-batch-size", str(gbs), "--num-gpu-batches", str(sequences // gbs),
               "--log-file", os.devnull]
    status, out, err, seconds = run(command, limit)
    entry = {"percent": [share, 100 - share, 0, 100, 0, 100], "gbs": gbs,
             "sequences": sequences, "seconds": seconds}
    if status != 0:
        return {**entry, **failure(status, err, limit)}
    rates = dict(re.findall(r"(prefill|decode|total) throughput:\s*([\d.]+)", out))
    if "total" not in rates:
        return {**entry, "outcome": "failed", "error": "no throughput in its output: " + tail(out)}
    return {**entry, "outcome": "passed",
            **{f"{k}_tokens_per_second": float(v) for k, v in rates.items()}}


def measure_profile(a, directory, limit):
    """(path or None, what to say of it)"""
    path = os.path.join(directory, "profile.json")
    sizes = TINY_PROFILE if a.tiny else []
    status, _, err, seconds = run([a.sluice, "profile", "--device", a.device, "-o", path, *sizes],
                                  limit)
    if status != 0:
        return None, {"seconds": seconds, **failure(status, err, limit)}
    with open(path) as f:
        return path, {"outcome": "passed", "seconds": seconds, "profile": json.load(f)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sluice", required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="auto", choices=["auto", "bfloat16", "float16", "float32"])
    parser.add_argument("--out")
    parser.add_argument("--cases", help="as opt-30b/16GiB/512, comma-separated; default: all")
    parser.add_argument("--limit", type=float, default=150, help="seconds of a run")
    parser.add_argument("--total", type=float, default=1800, help="seconds of all")
    parser.add_argument("--memory-gb-s", type=float, default=0, help="of the device, for rooflines")
    parser.add_argument("--no-flexgen", action="store_true")
    parser.add_argument("--no-plan", action="store_true")
    parser.add_argument("--tiny", action="store_true")
    a = parser.parse_args()

    start = time.monotonic()
    left = lambda: a.total - (time.monotonic() - start)
    cases = TINY_CASES if a.tiny else CASES
    label = lambda case: f"{case[0]}/{case[1] or 'all'}/{case[2]}"
    if a.cases:
        wanted = a.cases.split(",")
        unknown = set(wanted) - {label(c) for c in cases}
        if unknown:
            parser.error(f"no such case: {', '.join(sorted(unknown))}; there are "
                         + " ".join(label(c) for c in cases))
        cases = [c for c in cases if label(c) in wanted]
    device = device_bytes()
    without = "--no-flexgen" if a.no_flexgen or a.tiny else flexgen_missing()
    if a.dtype == "auto":
        a.dtype = dtype_here()
    results = {"device": a.device, "device_bytes": device, "dtype": a.dtype, "generated": NEW,
               "cases": {}}
    if without:
        results["flexgen"] = f"not run: {without}"
    failed = False
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as directory:
        profile = None
        if not a.no_plan:
            profile, results["profile"] = measure_profile(a, directory, min(a.limit, left()))
            # Without one, plans are left out.
            failed |= profile is None
        for case in cases:
            name, memory, prompt = case
            if left() < 5:
                results["cases"][label(case)] = {"outcome": "skipped", "why": "no time was left"}
                continue
            on_device = min(device, bytes_of(memory)) if memory and device else device
            sequences = 6 if a.tiny else sequences_for(SHAPES[name], on_device, prompt)
            entry = measure(a, directory, name, memory, prompt, sequences, profile,
                            min(a.limit, left()))
            entry = {"sequences": sequences, **entry}
            failed |= entry["outcome"] != "passed"
            if not without and name.startswith("opt") and device and left() > 5:
                peer = measure_flexgen(name, memory, prompt, sequences, device,
                                       min(a.limit, left()))
                entry["flexgen"] = peer
                rate = peer.get("total_tokens_per_second")
                if rate and entry.get("generation_tokens_per_second"):
                    entry["times_flexgen"] = entry["generation_tokens_per_second"] / rate
            results["cases"][label(case)] = entry
            print(f"{label(case)}: {entry['outcome']}, "
                  f"{entry.get('generation_tokens_per_second', 0):.1f} tokens/s", file=sys.stderr)
    results["seconds"] = time.monotonic() - start
    text = json.dumps(results, indent=1) + "\n"
    if a.out:
        with open(a.out, "w") as f:
            f.write(text)
    else:
        sys.stdout.write(text)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
