"""Logits and greedy tokens of the random models here and of the trained ones.

Writes logits/<name>.json and logits/<name>.bin (README.md has the format). Weights are
widened to float32 whatever they are stored as; attention is transformers' "eager", batch 1,
one thread. Called by make_golden.py; on its own it takes the names of models.
"""

import copy
import json
import pathlib
import random
import sys
import zlib

import numpy as np
import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer

HERE = pathlib.Path(__file__).resolve().parent
MODELS = HERE.parent / "models"
sys.path[:0] = [str(MODELS), str(HERE)]
import kjv  # noqa: E402
import make_mixtures  # noqa: E402
import make_quantized  # noqa: E402

RANDOM_LENGTHS = (1, 2, 7, 33, 70)
# These prompts go beyond max_position_embeddings (160), as far as the scaling of their positions
# goes.
SCALED_LENGTHS = {"llama-linear-rope": (200,), "qwen2-yarn": (200,)}
# With what is generated, these take the pages of their windows a second time.
WINDOW_LENGTHS = dict.fromkeys(["mistral-window", "qwen2-window", "gemma3-base"], (120,))
DETAILED_LENGTH = 33  # the prompt whose every position is recorded
TOP = 8
NEW_TOKENS = 32
# Equal tokens are only a fair demand where the best token is clearly the best. Two correct
# float32 implementations differ by some 1e-5 here.
MIN_MARGIN = 5e-3
# A run that repeats itself would hide errors in positions and in the KV cache.
MIN_DISTINCT = 10


def load(folder):
    if quantized := make_quantized.quantized_config(folder):
        made_by = make_mixtures if quantized["quant_method"] == "mxfp4" else make_quantized
        return made_by.load(folder)
    # transformers' eager attention adds Falcon's ALiBi twice, its default does not.
    alibi = json.loads((folder / "config.json").read_text()).get("alibi", False)
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="sdpa" if alibi else "eager").eval()
    model.set_experts_implementation("eager")
    return model


def all_logits(model, ids):
    row = torch.tensor([ids])
    return model(input_ids=row, attention_mask=torch.ones_like(row), use_cache=False).logits[0]


def greedy(model, ids):
    """(tokens, margins): the margin is the best logit less the second best."""
    tokens, margins = [], []
    step, cache, length = ids, None, len(ids)
    for _ in range(NEW_TOKENS):
        out = model(input_ids=torch.tensor([step]), attention_mask=torch.ones(1, length),
                    past_key_values=cache, use_cache=True)
        best = out.logits[0, -1].topk(2)
        tokens.append(best.indices[0].item())
        margins.append((best.values[0] - best.values[1]).item())
        step, cache, length = tokens[-1:], out.past_key_values, length + 1
    return tokens, margins


def check_against_one_pass(model, ids, tokens):
    """The same tokens must come out without a cache."""
    logits = all_logits(model, ids + tokens[:-1])
    again = logits[len(ids) - 1:].argmax(-1).tolist()
    if again != tokens:
        raise RuntimeError("the cached run differs from one pass over the whole sequence")


def exact_copy(model):
    """A float64 copy of a model with experts; None for others."""
    experts = any("experts" in name for name, _ in model.named_parameters())
    return copy.deepcopy(model).to(torch.float64) if experts else None


def is_steady(exact, model, ids):
    """Whether float32 chooses the experts that float64 does: a row that takes another one, as
    rounding decides between two, is far off."""
    return exact is None or (all_logits(exact, ids) - all_logits(model, ids)).abs().max() < 1e-4


def number(value):
    """float32 in the fewest digits that read back as the same float32."""
    return float(np.format_float_positional(np.float32(value), unique=True))


def every_position(logits):
    top = logits.topk(TOP, dim=-1)
    return {"top_ids": top.indices.tolist(),
            "top_logits": [[number(v) for v in row] for row in top.values.tolist()]}


def random_prompts(model, name):
    """Yields, for each length, the first random prompt whose greedy run is clear and not dull."""
    rng = random.Random(zlib.crc32(name.encode()))
    exact = exact_copy(model)
    for length in (RANDOM_LENGTHS + SCALED_LENGTHS.get(name, ()) + WINDOW_LENGTHS.get(name, ())):
        # A model's weights decide how lively it can be, so the bar is lowered slowly.
        for attempt in range(400):
            ids = [rng.randrange(3, model.config.get_text_config().vocab_size) for _ in range(length)]
            tokens, margins = greedy(model, ids)
            distinct = MIN_DISTINCT - attempt // 40
            if (min(margins) >= MIN_MARGIN and len(set(tokens)) >= distinct
                    and is_steady(exact, model, ids + tokens)):
                yield {"ids": ids}, tokens, margins
                break
        else:
            raise RuntimeError(f"{name}: no clear prompt of {length} tokens")


TEXT_PROMPTS = [
    # (text, number of tokens of it to keep, BOS included)
    ("", 1),
    ("The", 2),
    ("And God said unto Noah,", 7),
    ("Blessed", 2),
    ("And it came to pass, when", 7),
]


def text_prompts(model, tokenizer):
    """Prompts of real text; the long ones are the beginnings of held-out chapters."""
    _, held_out = kjv.split(kjv.load_chapters())
    candidates = [*TEXT_PROMPTS]
    wanted = {1: 1, 2: 1, 7: 1, 33: 2, 70: 2, 200: 2}
    for length in (2, 7, 33, 70, 200):
        candidates += [(chapter.text, length) for chapter in held_out]
    for text, length in candidates:
        ids = tokenizer(text).input_ids[:length]
        if len(ids) < length or not wanted[length]:
            continue
        tokens, margins = greedy(model, ids)
        if min(margins) >= MIN_MARGIN:
            wanted[length] -= 1
            yield {"ids": ids}, tokens, margins
    wanted[1] = 0  # there is but one of one token, and it may not be clear
    if any(wanted.values()):
        raise RuntimeError(f"too few clear prompts: {wanted}")


def write_logits(name, folder, model, runs):
    rows, last = [], []
    for prompt, tokens, margins in runs:
        ids = prompt["ids"]
        check_against_one_pass(model, ids, tokens)
        logits = all_logits(model, ids)
        row = {**prompt, "greedy": tokens, "margins": [round(m, 5) for m in margins],
               "min_margin": round(min(margins), 5)}
        if len(ids) == DETAILED_LENGTH and not any("every_position" in r for r in rows):
            row["every_position"] = every_position(logits)
        last.append(logits[-1].numpy().astype("<f4"))
        rows.append(row)
    out = HERE / "logits"
    out.mkdir(exist_ok=True)
    (out / f"{name}.bin").write_bytes(np.stack(last).tobytes())
    head = {"model": folder, "vocab_size": model.config.get_text_config().vocab_size, "prompt_count": len(rows)}
    # A prompt a line.
    lines = ",\n".join(json.dumps(row) for row in rows)
    (out / f"{name}.json").write_text(
        json.dumps(head)[:-1] + ', "prompts": [\n' + lines + "\n]}\n")
    spread = float(np.stack(last).std())
    print(f"logits {name}: {len(rows)} prompts, margins from "
          f"{min(r['min_margin'] for r in rows)}, std {spread:.2f}, distinct "
          f"{[len(set(r['greedy'])) for r in rows]}", flush=True)


@torch.no_grad()
def make_all(names=()):
    """All models, or only those named."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)  # one order of summation, whatever the machine
    for folder in sorted((HERE / "models").iterdir()):
        if names and folder.name not in names:
            continue
        model = load(folder)
        write_logits(folder.name, f"golden/models/{folder.name}", model,
                     random_prompts(model, folder.name))
    for name in ("llama-kjv", "opt-kjv", "qwen3-moe-kjv"):
        if names and name not in names:
            continue
        folder = MODELS / name
        model = load(folder)
        write_logits(name, f"models/{name}", model,
                     text_prompts(model, AutoTokenizer.from_pretrained(folder)))


if __name__ == "__main__":
    make_all(sys.argv[1:])
