#!/usr/bin/env python3
"""GGUF files beside llama.cpp: tokens of texts, greedy answers to chats, and perplexity.

    quality_gguf.py --peer PEER --text FILE FILE.gguf... [--bin build/release/bin]

PEER is llamacpp_peer.cc, compiled as quality_llamacpp.py does. Both programs get
the same file and the same token ids. llama.cpp rounds activations to 8 bits before
it multiplies; Sluice computes in float32 here.

tokens      lines of FILE whose ids differ, of all
greedy      chats whose first 24 ids are the same, of 100; of the others, how
            near to a tie llama.cpp was where they part: the logits' difference
perplexity  of FILE's first windows of 256 tokens
"""

import argparse
import json
import math
import os
import subprocess
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
CHATS, NEW, WINDOW, WINDOWS = 100, 24, 256, 12
TOPICS = ("rivers", "copper", "the moon", "bread", "glaciers", "violins", "ants", "salt", "maps", "tides",
          "prime numbers", "silk", "volcanoes", "clocks", "owls", "cement", "honey", "locks", "rain", "chess")
QUESTIONS = ("What is the most surprising fact about {}?", "Write two sentences on {}.",
             "Explain {} to a child.", "List three words that go with {}.",
             "Why do people care about {}?")


class Programs:
    """Sluice and llama.cpp on one file."""

    def __init__(self, args, gguf):
        self.args, self.gguf = args, gguf

    def peer(self, lines, command, *words):
        done = subprocess.run([self.args.peer, command, self.gguf, *map(str, words)],
                              input="".join(line + "\n" for line in lines),
                              check=True, capture_output=True, text=True)
        return done.stdout.rstrip("\n").split("\n")

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
    theirs = programs.peer([line.encode().hex() for line in lines], "tokenize")
    differ = [i for i, (a, b) in enumerate(zip(ours, theirs)) if join(a) != b.strip()]
    return {"lines": len(lines), "differ": len(differ), "first": [lines[i] for i in differ[:3]]}


def greedy(programs, frame):
    prompts = programs.ids([frame.format(question.format(topic)) for topic in TOPICS
                            for question in QUESTIONS][:CHATS])
    ours = [choice["text"] for choice in programs.run(prompts, max_tokens=NEW)]
    parted, same = [], 0
    for mine, line in zip(ours, programs.peer(map(join, prompts), "generate", 512, 1, NEW)):
        pieces = [word.split(":") for word in line.split()]
        read = b""
        for margin, piece in pieces:
            read += bytes.fromhex(piece)
            # A character may be in several tokens.
            if not mine.startswith(read.decode(errors="ignore")):
                parted.append(float(margin))
                break
        else:
            same += 1
    return {"chats": len(prompts), "same": same, "margins where they part": sorted(parted)}


def perplexity(programs, text, bos):
    ids = programs.ids([text])[0]
    windows = [[bos] * (bos is not None) + ids[i * WINDOW:(i + 1) * WINDOW] for i in range(WINDOWS)]
    windows = [w for w in windows if len(w) > 1]
    theirs = [float(x) for x in programs.peer(map(join, windows), "score", 512, 1)]
    ours = []
    for choice in programs.run(windows, max_tokens=0, echo=True, logprobs=0):
        ours += [-x for x in choice["logprobs"]["token_logprobs"] if x is not None]
    assert len(ours) == len(theirs), (len(ours), len(theirs))
    mine, other = (math.exp(sum(x) / len(x)) for x in (ours, theirs))
    return {"tokens": len(ours), "ours": round(mine, 4), "llama.cpp": round(other, 4),
            "percent": round(100 * (mine / other - 1), 3)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("files", nargs="+")
    parser.add_argument("--peer", required=True)
    parser.add_argument("--text", required=True)
    parser.add_argument("--bin", default=os.path.join(HERE, "..", "..", "build/release/bin"))
    parser.add_argument("--frame", default="{}", help="a chat as the model wants it, {} its question")
    parser.add_argument("--bos", type=int, help="the id that begins a text")
    args = parser.parse_args()
    with open(args.text) as f:
        text = f.read()
    for file in args.files:
        programs = Programs(args, file)
        parts = {"perplexity": lambda: perplexity(programs, text, args.bos),
                 "tokens": lambda: tokens(programs, text.split("\n")),
                 "greedy": lambda: greedy(programs, args.frame.replace("\\n", "\n"))}
        for name, part in parts.items():
            print(json.dumps({"file": os.path.basename(file), name: part()}), flush=True)


if __name__ == "__main__":
    main()
