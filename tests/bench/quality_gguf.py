#!/usr/bin/env python3
"""GGUF files beside llama.cpp: tokens of texts, greedy answers to chats, and perplexity.

    quality_gguf.py --peer PEER --text FILE FILE.gguf... [--exact FILE.gguf] [--judge]

PEER is llamacpp_peer.cc, compiled as quality_llamacpp.py does. Both programs get
the same file and the same token ids. llama.cpp rounds activations to 8 bits before
it multiplies codes; Sluice computes in float32 here. --exact names the same weights
as numbers, with which llama.cpp computes in float32, too:

    PEER quantize FILE.gguf EXACT.gguf 0 0 -1 -1

perplexity  of FILE's first windows of 256 tokens
tokens      lines of FILE whose ids differ, of all
greedy      chats (chats.py) whose 48 tokens are the same, of 100; of the others, where they
            part, and there both tokens and how far each program has its own above the other's.
            With --judge, how far `transformers` has ours above llama.cpp's, in float32 on the
            file's weights, and its own choice.

Prints these and records them in tests/bench/results/gguf_quality.json.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import tempfile

from chats import chats
from machine import machine, record_case

HERE = os.path.dirname(os.path.abspath(__file__))
NEW, WINDOW, WINDOWS = 48, 256, 16


class Programs:
    """Sluice and llama.cpp on one file."""

    def __init__(self, args, gguf):
        self.args, self.gguf = args, gguf

    def peer(self, file, lines, command, *words):
        done = subprocess.run([self.args.peer, command, file, *map(str, words)],
                              input="".join(line + "\n" for line in lines),
                              check=True, capture_output=True, text=True)
        return done.stdout.rstrip("\n").split("\n")

    def peers(self):
        """Name and file of each run of llama.cpp."""
        yield "llama.cpp", self.gguf
        if self.args.exact:
            yield "llama.cpp, weights as numbers", self.args.exact

    def ids(self, texts):
        """Sluice's ids of texts, with no special tokens around them."""
        done = subprocess.run([os.path.join(self.args.bin, "tokenizer_run"), self.gguf],
                              input="".join(json.dumps(t) + "\n" for t in texts),
                              check=True, capture_output=True, text=True)
        return [json.loads(line)["ids_no_special"]
                for line in done.stdout.rstrip("\n").split("\n")]

    def run(self, prompts, **body):
        """The choices of completions of lists of ids, by Sluice."""
        with tempfile.TemporaryDirectory(prefix="sluice-quality-") as d:
            requests, answers = os.path.join(d, "in.jsonl"), os.path.join(d, "out.jsonl")
            with open(requests, "w") as f:
                for i, prompt in enumerate(prompts):
                    f.write(json.dumps({"custom_id": str(i), "method": "POST",
                                        "url": "/v1/completions",
                                        "body": {"prompt": prompt, "temperature": 0, **body}}) + "\n")
            subprocess.run([os.path.join(self.args.bin, "sluice"), "run", "--model", self.gguf, "-i",
                            requests, "-o", answers, "-q", "--dtype", "float32"], check=True)
            with open(answers) as f:
                lines = [json.loads(line) for line in f]
        return [line["response"]["body"]["choices"][0] for line in lines]


def join(ids):
    return " ".join(map(str, ids))


def tokens(programs, lines):
    ours = programs.ids(lines)
    theirs = programs.peer(programs.gguf, [line.encode().hex() for line in lines], "tokenize")
    differ = [i for i, (a, b) in enumerate(zip(ours, theirs)) if join(a) != b.strip()]
    return {"lines": len(lines), "differ": len(differ), "first": [lines[i] for i in differ[:3]]}


def our_tokens(choice):
    """The tokens of an answer, a map of the likeliest to their log-probabilities for each: in bytes as
    the peer has them, "end" at last if the model ended it."""
    def bytes_of(token):
        if token.startswith("bytes:"):
            return token[len("bytes:"):].replace("\\x", "")
        return token.encode().hex()

    found = choice["logprobs"]
    tokens = [bytes_of(token) for token in found["tokens"]]
    largest = [{bytes_of(token): x for token, x in some.items()} for some in found["top_logprobs"]]
    if choice["finish_reason"] == "stop":
        largest[-1]["end"] = largest[-1].pop(tokens[-1])
        tokens[-1] = "end"
    return tokens, largest


class Judge:
    """What `transformers` computes in float32 on the weights of a file."""

    def __init__(self, file):
        import torch
        from transformers import AutoModelForCausalLM

        self.torch = torch
        self.model = AutoModelForCausalLM.from_pretrained(
            os.path.dirname(os.path.abspath(file)), gguf_file=os.path.basename(file),
            dtype=torch.float32)

    def logits(self, ids):
        with self.torch.no_grad():
            return self.model(self.torch.tensor([ids])).logits[0, -1]


def parting(choice, words, prompt, judge):
    """Where two answers part; None if they do not."""
    tokens, largest = our_tokens(choice)
    ids = list(prompt)
    for i, word in enumerate(words):
        theirs = [x.split(":") for x in word.split(",")]
        theirs = [(int(token), piece, float(logit)) for token, piece, logit in theirs]
        token, piece, logit = theirs[0]
        if i == len(tokens) or tokens[i] != piece:
            break
        ids.append(token)
    else:
        return None
    mine = next((x for x in theirs if i < len(tokens) and x[1] == tokens[i]), None)
    found = {"at": i, "ours": tokens[i] if i < len(tokens) else None, "theirs": piece}
    if mine and piece in largest[i]:
        found["we have ours above by"] = round(largest[i][tokens[i]] - largest[i][piece], 5)
        found["llama.cpp has its above by"] = round(logit - mine[2], 5)
    if judge and mine:
        logits = judge.logits(ids)
        found["transformers has ours above by"] = round(float(logits[mine[0]] - logits[token]), 5)
        best = int(logits.argmax())
        found["transformers' choice"] = {mine[0]: "ours", token: "theirs"}.get(best, best)
    return found


def greedy(programs, texts, frame):
    prompts = programs.ids([frame.format(text) for text in texts])
    judge = Judge(programs.gguf) if programs.args.judge else None
    ours = programs.run(prompts, max_tokens=NEW, logprobs=5)
    result = {"chats": len(prompts), "prompt tokens": sum(map(len, prompts)), "new tokens": NEW}
    for name, file in programs.peers():
        lines = programs.peer(file, map(join, prompts), "generate", 2048, 1, NEW)
        parted = [parting(choice, line.split(), prompt, judge)
                  for choice, line, prompt in zip(ours, lines, prompts, strict=True)]
        parted = [{"chat": i, **found} for i, found in enumerate(parted) if found]
        result[name] = {"same": len(prompts) - len(parted), "parted": parted}
    return result


def perplexity(programs, text, bos):
    ids = programs.ids([text])[0]
    windows = [[bos] * (bos is not None) + ids[i * WINDOW:(i + 1) * WINDOW] for i in range(WINDOWS)]
    windows = [w for w in windows if len(w) > 1]
    ours = []
    for choice in programs.run(windows, max_tokens=0, echo=True, logprobs=0):
        ours += [-x for x in choice["logprobs"]["token_logprobs"] if x is not None]
    mine = math.exp(statistics.fmean(ours))
    result = {"tokens": len(ours), "ours": round(mine, 4)}
    for name, file in programs.peers():
        theirs = [float(x) for x in programs.peer(file, map(join, windows), "score", 512, 1)]
        assert len(ours) == len(theirs), (len(ours), len(theirs))
        other = math.exp(statistics.fmean(theirs))
        result[name] = {"perplexity": round(other, 4),
                        "we are off by percent": round(100 * (mine / other - 1), 4),
                        "largest difference of a token": round(max(abs(a - b) for a, b in zip(ours, theirs)), 5)}
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("files", nargs="+")
    parser.add_argument("--peer", required=True)
    parser.add_argument("--text", required=True)
    parser.add_argument("--exact", help="of one file: its weights as numbers, for llama.cpp")
    parser.add_argument("--judge", action="store_true", help="have transformers judge differences")
    parser.add_argument("--bin", default=os.path.join(HERE, "..", "..", "build/release/bin"))
    parser.add_argument("--frame", default="{}", help="a chat as the model wants it, {} its question")
    parser.add_argument("--bos", type=int, help="the id that begins a text")
    parser.add_argument("--parts", default="perplexity,tokens,greedy")
    args = parser.parse_args()
    with open(args.text) as f:
        text = f.read()
    parts = {"perplexity": lambda programs: perplexity(programs, text, args.bos),
             "tokens": lambda programs: tokens(programs, text.split("\n")),
             "greedy": lambda programs: greedy(programs, chats(text), args.frame.replace("\\n", "\n"))}
    for file in args.files:
        for name in args.parts.split(","):
            figures = parts[name](Programs(args, file))
            print(json.dumps({"file": os.path.basename(file), name: figures}), flush=True)
            record_case(os.path.join(HERE, "results", "gguf_quality.json"),
                        f"{os.path.basename(file)}, {name}", figures, machine())


if __name__ == "__main__":
    main()
