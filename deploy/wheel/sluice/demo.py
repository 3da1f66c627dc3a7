"""python -m sluice.demo: answers a few prompts with the small model that the wheel brings. Further words go to sluice run."""

import os
import sys

from sluice import programs

if __name__ == "__main__":
    demo = os.path.join(programs.HERE, "share", "sluice", "demo")
    os.execv(programs.path("sluice"), ["sluice", "run", "--model", os.path.join(demo, "llama-kjv"), "-i",
                                       os.path.join(demo, "prompts.jsonl"), "-o", "-", *sys.argv[1:]])
