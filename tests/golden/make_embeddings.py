"""Embeddings by a trained model, for each pooling of sentence-transformers.

Writes embeddings/llama-kjv.json (README.md has the format). The judge is sentence-transformers over the model's float32
weights, one text at a time, from a directory with modules.json and 1_Pooling/config.json. Called by make_golden.py.
"""

import json
import pathlib
import shutil
import tempfile

import numpy as np
import torch
from sentence_transformers import SentenceTransformer

HERE = pathlib.Path(__file__).resolve().parent
MODEL = HERE.parent / "models" / "llama-kjv"
MODES = ("cls", "lasttoken", "max", "mean", "mean_sqrt_len_tokens", "weightedmean")
TEXTS = [
    "The",
    "In the beginning God created the heaven and the earth.",
    "Ruth 1\n1 Now it came to pass: \u00c6gypt, \u4e2d\u6587, caf\u00e9 \U0001f600!",
    "And the king said unto the prophet, " * 12,
]


def number(value):
    """float32 in the fewest digits that read back as the same float32."""
    return float(np.format_float_positional(np.float32(value), unique=True))


def repository(folder, mode, normalize):
    """The model as a repository of sentence-transformers would hold it."""
    shutil.copytree(MODEL, folder)
    modules = [("Transformer", ""), ("Pooling", "1_Pooling")] + [("Normalize", "2_Normalize")] * normalize
    (folder / "modules.json").write_text(json.dumps([
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (kind, path) in enumerate(modules)]))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(
        {"word_embedding_dimension": json.loads((MODEL / "config.json").read_text())["hidden_size"],
         "pooling_mode": mode}))


def embed(mode, normalize):
    with tempfile.TemporaryDirectory() as directory:
        folder = pathlib.Path(directory) / "model"
        repository(folder, mode, normalize)
        judge = SentenceTransformer(str(folder), device="cpu", model_kwargs={
            "dtype": torch.float32, "attn_implementation": "eager"})
        return [judge.encode(text) for text in TEXTS]


@torch.no_grad()
def make_all():
    torch.set_num_threads(1)
    out = {"model": str(MODEL.relative_to(HERE.parent)), "texts": TEXTS, "vectors": {}}
    for mode in MODES:
        plain = embed(mode, False)
        # The test normalizes by the definition; here it is shown to be the judge's.
        expected = [v / np.linalg.norm(v.astype(np.float64)) for v in plain]
        assert np.allclose(embed(mode, True), expected, atol=1e-6)
        out["vectors"][mode] = [[number(x) for x in vector] for vector in plain]
    folder = HERE / "embeddings"
    folder.mkdir(exist_ok=True)
    text = json.dumps(out, ensure_ascii=True, separators=(",", ":"))
    (folder / "llama-kjv.json").write_text(text.replace("]],", "]],\n").replace("],[", "],\n[") + "\n")


if __name__ == "__main__":
    make_all()
