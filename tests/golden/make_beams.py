"""Beam searches over answers of trained models, by transformers' generate(num_beams=...).

Writes beams/<name>.json (README.md has the format). The judge computes as for the logits. Called by make_golden.py; on
its own it takes the names of models.
"""

import json
import sys

import torch
from transformers import AutoTokenizer

from make_logits import HERE, MODELS, load
# The ways to search: (num_beams, length_penalty, early_stopping, max_new_tokens).
WAYS = [
    (2, 1.0, False, 12), (3, 1.0, True, 32), (4, 0.0, "never", 24), (4, 2.0, "never", 40), (5, -1.0, False, 24),
    (5, 0.5, True, 48), (8, 1.0, False, 64), (16, 1.5, False, 20),
]
PROMPTS = [
    "In the beginning God created", "And it came to pass", "The LORD is my", "Blessed are the", "Verily, verily, I say",
    "Behold", "And he said unto them, Go ye into", "And there was war between the house of Saul and the house of David, and",
    "For God so loved the world, that he gave his only begotten Son, that whosoever believeth in him should not perish, but",
]


def search(model, tokenizer, prompt, way):
    width, length_penalty, early_stopping, max_tokens = way
    ids = tokenizer(prompt, return_tensors="pt").input_ids
    ends = model.generation_config.eos_token_id
    ends = ends if isinstance(ends, list) else [ends]
    found = model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, temperature=None, top_p=None, num_beams=width,
        num_return_sequences=width, length_penalty=length_penalty, early_stopping=early_stopping,
        max_new_tokens=max_tokens, return_dict_in_generate=True, output_scores=True)
    answers = []
    for row, score in zip(found.sequences.tolist(), found.sequences_scores.tolist()):
        tokens = row[ids.shape[1]:]
        end = next((i for i, token in enumerate(tokens) if token in ends), None)
        answers.append({"tokens": tokens[:end] if end is not None else tokens[:max_tokens], "ended": end is not None,
                        "score": round(score, 5)})
    for answer in answers:
        answer["text"] = tokenizer.decode(ids[0].tolist() + answer["tokens"], skip_special_tokens=True)[
            len(tokenizer.decode(ids[0], skip_special_tokens=True)):]
    return {"prompt": prompt, "width": width, "length_penalty": length_penalty, "early_stopping": early_stopping,
            "max_tokens": max_tokens, "answers": answers}


def make_all(names=("llama-kjv", "opt-kjv")):
    torch.set_num_threads(1)
    for name in names:
        model, tokenizer = load(MODELS / name), AutoTokenizer.from_pretrained(MODELS / name)
        cases = [search(model, tokenizer, prompt, WAYS[(i + k) % len(WAYS)])
                 for i, prompt in enumerate(PROMPTS) for k in range(3)]
        path = HERE / "beams" / f"{name}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n")


if __name__ == "__main__":
    make_all(sys.argv[1:] or ("llama-kjv", "opt-kjv"))
