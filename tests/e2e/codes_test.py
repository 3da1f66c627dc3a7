"""Quantized safetensors files: the trained llama in 8 bits a weight answers as the numbers that
its codes stand for, alone and over workers of which one has no copy."""

import json
import os
import shutil
import struct
import sys

import gguf_test
import harness

LLAMA = gguf_test.LLAMA
CONFIG = {"quant_method": "compressed-tensors", "format": "int-quantized",
          "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "int", "strategy": "channel"}}}}


def write_safetensors(path, tensors):
    """tensors: {name: (dtype, shape, bytes)}."""
    header, offset = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        f.write(b"".join(data for _, _, data in tensors.values()))


def rounded(data, rows):
    """Codes and a scale for each row of float32, and the numbers that they stand for."""
    width = len(data) // rows
    codes, scales, numbers = [], [], []
    for row in range(rows):
        values = struct.unpack(f"<{width // 4}f", data[row * width:(row + 1) * width])
        [scale] = struct.unpack("<f", struct.pack("<f", max(map(abs, values)) / 127))
        of_row = [max(-127, min(127, round(x / scale))) for x in values]
        codes.append(struct.pack(f"<{len(of_row)}b", *of_row))
        scales.append(struct.pack("<f", scale))
        numbers.append(struct.pack(f"<{len(of_row)}f", *(code * scale for code in of_row)))
    return b"".join(codes), b"".join(scales), b"".join(numbers)


def write_models(directory):
    """Writes the model in codes and in numbers; returns their directories."""
    coded, plain = {}, {}
    for name, (shape, data) in gguf_test.tensors_of(LLAMA).items():
        plain[name] = coded[name] = ("F32", shape, data)
        if name.endswith("_proj.weight"):
            codes, scales, numbers = rounded(data, shape[0])
            plain[name] = ("F32", shape, numbers)
            coded[name] = ("I8", shape, codes)
            coded[name + "_scale"] = ("F32", [shape[0], 1], scales)
    paths = []
    for kind, tensors in (("coded", coded), ("plain", plain)):
        path = os.path.join(directory, kind)
        shutil.copytree(LLAMA, path, ignore=shutil.ignore_patterns("*.safetensors*"))
        write_safetensors(os.path.join(path, "model.safetensors"), tensors)
        paths.append(path)
    config_path = os.path.join(paths[0], "config.json")
    with open(config_path) as f:
        config = json.load(f)
    with open(config_path, "w") as f:
        json.dump({**config, "quantization_config": CONFIG}, f)
    return paths


def test_answers_are_those_of_the_numbers(directory):
    coded, plain = write_models(directory)
    lines = harness.mixed_requests(12)
    for dtype in ("float32", "bfloat16"):
        expected = harness.answers(harness.run(plain, lines, "--dtype", dtype)[1])
        assert harness.answers(harness.run(coded, lines, "--dtype", dtype)[1]) == expected, dtype
    told = json.loads(harness.sluice("models", coded, "--json").stdout)
    [model] = told["models"] if "models" in told else [told]
    assert set(model["weight_bytes"]) == {"F32", "INT8_F32"}, model
    harness.run(coded, lines[:2], "--load-format", "dummy")

    with harness.Cluster(coded, workers=2, started=False,
                         coordinator_flags=("--dtype", dtype)) as cluster:
        cluster.start_coordinator()
        cluster.start_worker("has-it")
        cluster.model = None
        cluster.start_worker("fetcher", "--cache-dir", os.path.join(cluster.directory, "cache"))
        source = os.path.join(cluster.directory, "in.jsonl")
        harness.write_lines(source, lines)
        job = cluster.submit(source)["id"]
        assert cluster.wait_for_end(job)["status"] == "completed"
        assert harness.answers(cluster.results(job)) == expected


if __name__ == "__main__":
    harness.give_directories(globals())
    harness.run_tests(sys.modules[__name__])
