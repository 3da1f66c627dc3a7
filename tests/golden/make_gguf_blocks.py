"""Blocks of GGUF's types and the floats that they stand for, for runtime/gguf.

    python make_gguf_blocks.py    # needs numpy and gguf, ggml's own package

Writes gguf_blocks/<type>.bin: blocks of random bytes, some with scales that are 0, subnormal,
negative or the largest; then float32, what gguf.quants.dequantize makes of them.
"""

import pathlib

import gguf
import numpy as np

OUT = pathlib.Path(__file__).resolve().parent / "gguf_blocks"
TYPES = ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K",
         "IQ4_NL", "MXFP4"]
# Where the float16 scales of a block are, in bytes; MXFP4 has one byte, which may be any.
SCALES = {"Q8_0": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q2_K": [80, 82],
          "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0], "F16": [0]}
EXTREME = np.array([0, 0x8000, 1, 0x83FF, 0x7BFF, 0xFBFF, 0x0400, 0x3C00], np.uint16)


def main():
    OUT.mkdir(exist_ok=True)
    rng = np.random.default_rng(39)
    for name in TYPES:
        kind = gguf.GGMLQuantizationType[name]
        elements, size = gguf.GGML_QUANT_SIZES[kind]
        count = 512 if elements == 1 else 1024 // elements + 8
        blocks = rng.integers(0, 256, (count, size), np.uint8)
        for at in SCALES.get(name, []):
            scales = (rng.standard_normal(count) * 0.02).astype(np.float16).view(np.uint16)
            scales[:8] = rng.permutation(EXTREME)
            blocks[:, at:at + 2] = scales.view(np.uint8).reshape(count, 2)
        if name == "MXFP4":
            blocks[:8, 0] = [0, 1, 2, 127, 128, 254, 3, 120]
            blocks[8:, 0] = rng.integers(100, 140, count - 8)
        if name == "BF16":
            blocks[:, 1] &= 0x3F  # neither infinite nor NaN
        with np.errstate(over="ignore"):
            floats = gguf.quants.dequantize(blocks.reshape(-1), kind).astype(np.float32)
        (OUT / f"{name}.bin").write_bytes(blocks.tobytes() + floats.tobytes())


if __name__ == "__main__":
    main()
