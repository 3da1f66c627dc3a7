"""Log-probabilities of given tokens, and perplexities, by the trained models.

Writes scores/<name>.json (README.md has the format). The judge computes as for the logits:
float32 weights, transformers' "eager" attention, batch 1, one thread; softmax in float64.
Called by make_golden.py; on its own it takes the names of models.
"""

import json
import math
import sys

import torch
import transformers
from transformers import AutoTokenizer

import make_logits
from make_logits import HERE, MODELS, kjv, load, number

TOP = 5
# (text, tokens of it to keep, BOS included; None for all)
TEXTS = [
    ("", None),
    ("The", None),
    ("In the beginning God created the heaven and the earth.", None),
    ("Ruth 1\n1 Now it came to pass: \u00c6gypt, \u4e2d\u6587, caf\u00e9 \U0001f600!", None),
    ("A text that  the king\tnever wrote; 12345 & <|x|> </s>.\r\n\r\n", None),
]
CHAPTER_TOKENS = (97, 512)
# A text of these held-out chapters, cut in these ways: (context, stride, start).
DOCUMENTS = (3, 4)
WINDOWS = [
    (512, 512, "each"), (512, 512, "first"), (512, 512, "none"),
    (128, 128, "each"), (128, 128, "first"), (128, 40, "first"), (128, 40, "each"),
    (128, 1, "none"), (64, 63, "each"), (2, 2, "each"), (2, 1, "none"), (511, 300, "none"),
]


def logprobs(model, ids):
    """float64 [len(ids), vocab]: row i is about position i + 1."""
    return torch.log_softmax(make_logits.all_logits(model, ids).double(), -1)


def case(model, text, ids):
    rows = logprobs(model, ids)
    top = rows[:-1].topk(TOP, dim=-1)
    return {
        "text": text, "ids": ids,
        # Each token but the first has a log-probability.
        "logprobs": [number(rows[i, ids[i + 1]].item()) for i in range(len(ids) - 1)],
        "top_ids": top.indices.tolist(),
        "top_logprobs": [[number(v) for v in row] for row in top.values.tolist()],
    }


def windowed(model, bos, documents, context, stride, start):
    """(nll, tokens counted): Hugging Face's recipe for texts of any length, generalized to
    several documents and to a BOS in each window, and with each token's own weight."""
    nll, counted = 0.0, 0
    lead = [bos] if start == "each" else []
    room = context - len(lead)
    for ids in documents:
        ids = [bos, *ids] if start == "first" else ids
        previous_end = 0
        for begin in range(0, len(ids), min(stride, room)):
            end = min(begin + room, len(ids))
            window = [*lead, *ids[begin:end]]
            first = len(lead) + previous_end - begin
            first = max(first, 1)  # nothing predicts the first
            if first < len(window):
                rows = logprobs(model, window)
                for i in range(first, len(window)):
                    nll -= rows[i - 1, window[i]].item()
                counted += len(window) - first
            previous_end = end
            if end == len(ids):
                break
    return nll, counted


@torch.no_grad()
def make_all(names=()):
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    (HERE / "scores").mkdir(exist_ok=True)
    _, held_out = kjv.split(kjv.load_chapters())
    for name in ("llama-kjv", "opt-kjv", "qwen3-moe-kjv"):
        if names and name not in names:
            continue
        model = load(MODELS / name)
        tokenizer = AutoTokenizer.from_pretrained(MODELS / name)
        cases = []
        for text, keep in TEXTS:
            cases.append(case(model, text, tokenizer(text).input_ids[:keep]))
        for length in CHAPTER_TOKENS:
            ids = next(i for i in (tokenizer(c.text).input_ids for c in held_out)
                       if len(i) >= length)
            cases.append(case(model, None, ids[:length]))
        # The documents are not whole chapters, so that the smallest strides stay affordable.
        texts = [held_out[i].text[:900 + 700 * n] for n, i in enumerate(DOCUMENTS)]
        documents = [tokenizer(t, add_special_tokens=False).input_ids for t in texts]
        bos = tokenizer("a").input_ids[0]
        windows = []
        for context, stride, start in WINDOWS:
            nll, counted = windowed(model, bos, documents, context, stride, start)
            windows.append({"context": context, "stride": stride, "bos": start,
                            "nll_nats": round(nll, 4), "tokens_scored": counted,
                            "perplexity": round(math.exp(nll / counted), 5)})
        head = {"model": f"models/{name}", "texts": texts,
                "tokens": sum(len(d) for d in documents), "windows": windows}
        lines = ",\n".join(json.dumps(row) for row in cases)
        (HERE / "scores" / f"{name}.json").write_text(
            json.dumps(head)[:-1] + ', "cases": [\n' + lines + "\n]}\n")
        print(f"scores {name}: {len(cases)} cases, {len(windows)} ways to cut "
              f"{head['tokens']} tokens", flush=True)


if __name__ == "__main__":
    make_all(sys.argv[1:])
