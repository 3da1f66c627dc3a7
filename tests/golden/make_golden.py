"""Makes every golden file of this folder, with Hugging Face as the outside judge.

    python make_golden.py [tokenizers] [families] [prefix_space] [special_tokens] [chat] [requests]
                          [models] [mixtures] [quantized] [logits] [scores] [embeddings] [beams] [quant] [kv_quant]

Without arguments, all parts in that order. Wants the packages of
../models/requirements.txt (the families others, see README.md), Debian's bible-kjv, and for what the trained models say
../models/llama-kjv, opt-kjv and qwen3-moe-kjv. Everything is seeded: a second run on the same
machine writes the same bytes (logits of another CPU may differ in the last bits).
"""

import argparse
import importlib
import os

PARTS = {
    "tokenizers": "make_tokenizers",
    "families": "make_families",
    "prefix_space": "make_prefix_space",
    "special_tokens": "make_special_tokens",
    "chat": "make_chat",
    "requests": "make_requests",
    "models": "make_models",
    "mixtures": "make_mixtures",
    "quantized": "make_quantized",
    "logits": "make_logits",
    "scores": "make_scores",
    "embeddings": "make_embeddings",
    "beams": "make_beams",
    "quant": "make_quant_golden",
    "kv_quant": "make_kv_quant_golden",
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="part",
                        help=f"any of: {' '.join(PARTS)}; default all")
    args = parser.parse_args()
    unknown = set(args.parts) - set(PARTS)
    if unknown:
        parser.error(f"no such part: {' '.join(sorted(unknown))}")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    for part in args.parts or PARTS:
        # Imported late: the tokenizers need no torch.
        importlib.import_module(PARTS[part]).make_all()


if __name__ == "__main__":
    main()
