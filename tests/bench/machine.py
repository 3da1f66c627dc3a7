"""Describes the machine that a recorded figure was measured on.

A name like "AMD EPYC" is many machines: the family, model and stepping tell them apart, and
machine_peak's rates tell what they can do at most, at the time of the measurement.
"""

import datetime
import json
import os
import platform
import subprocess

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "..", "..")
FIELDS = {"model name": "cpu", "cpu family": "family", "model": "model", "stepping": "stepping",
          "CPU part": "part", "CPU implementer": "implementer"}
ISA = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8", "asimd", "i8mm")


def processor(cpuinfo="/proc/cpuinfo"):
    """The first processor's name, family, model, stepping and instruction sets."""
    info = {}
    with open(cpuinfo) as f:
        for line in f:
            key, _, value = (x.strip() for x in line.partition(":"))
            if key in FIELDS:
                info[FIELDS[key]] = int(value) if value.isdigit() else value
            if key in ("flags", "Features"):
                flags = set(value.split())
                info["isa"] = [x for x in ISA if x in flags]
            if not key:
                break
    return info


def commit():
    """The commit of the tree, with "+" if files differ from it."""
    def git(*words):
        return subprocess.run(["git", "-c", "safe.directory=*", "-C", ROOT, *words],
                              capture_output=True, text=True).stdout.strip()
    return (git("rev-parse", "--short=12", "HEAD") or "unknown") + \
        ("+" if git("status", "--porcelain", "--untracked-files=no") else "")


def peaks(bin_dir, disk_dir="/var/tmp", repeats=5):
    """machine_peak's rates: name to {median, least, most}; takes about 20 seconds."""
    return json.loads(subprocess.run(
        [os.path.join(bin_dir, "machine_peak"), disk_dir, str(repeats)],
        check=True, capture_output=True, text=True).stdout)


def machine(bin_dir=None, disk_dir="/var/tmp"):
    """Returns all that is said of the machine in a results file; without bin_dir no rates are
    measured."""
    info = {**processor(), "cores": os.cpu_count(), "kernel": platform.release(),
            "load": os.getloadavg()[0], "commit": commit()}
    if bin_dir is not None:
        info["peak"] = peaks(bin_dir, disk_dir)
    return info


def headline(info):
    """Returns what machine() says in one line, for results that are text."""
    name = f"{info.get('cpu', platform.machine())}, family {info.get('family')} model " \
           f"{info.get('model')} stepping {info.get('stepping')}, {info['cores']} cores, load {info['load']:.2f}"
    rates = ", ".join(f"{k} {v['median']:.1f}" for k, v in info.get("peak", {}).items()
                      if "one core" not in k)
    return f"{name}, commit {info['commit']}" + (f"; peak: {rates}" if rates else "")


def shares(info, seconds, flops=0, disk_read=0, dtype="bfloat16"):
    """Returns the shares of this machine's measured peaks that work had which took so many
    seconds."""
    peak = info["peak"]
    name = {"bfloat16": "bf16 GFLOP/s", "float32": "f32 GFLOP/s"}[dtype]
    if name not in peak:  # a processor without bfloat16 products
        name = "f32 GFLOP/s"
    found = {}
    if flops:
        found[f"share of the peak, {name}"] = flops / seconds / 1e9 / peak[name]["median"]
    if disk_read and "disk read GB/s" in peak:
        found["share of the peak, disk read GB/s"] = \
            disk_read / seconds / 1e9 / peak["disk read GB/s"]["median"]
    return found


def model_flops(shape, prompt_tokens, new_tokens, requests):
    """Operations of a decoder's matrix products (attention left out), as config.json names its sizes."""
    h, heads = shape["hidden_size"], shape["num_attention_heads"]
    q = shape.get("head_dim", h // heads) * heads
    kv = q // heads * shape.get("num_key_value_heads", heads)
    layer = 2 * h * q + 2 * h * kv + 3 * h * shape["intermediate_size"]
    rows = prompt_tokens + new_tokens - requests  # the last new token is not computed with
    return 2 * (shape["num_hidden_layers"] * layer * rows + h * shape["vocab_size"] * new_tokens)


def today():
    return datetime.date.today().isoformat()


def record_case(path, case, entry, info):
    """Puts a case, with date and machine, into a file of results."""
    results = {}
    if os.path.exists(path):
        with open(path) as f:
            results = json.load(f)
    results[case] = {"date": today(), "machine": info, **entry}
    with open(path, "w") as f:
        json.dump(results, f, indent=1)
        f.write("\n")
