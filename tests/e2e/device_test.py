"""Tests that `--device` says one clear sentence of what is not here, or not at all."""

import os
import subprocess
import sys
import tempfile

import harness

LLAMA = os.path.join(harness.MODELS, "llama-kjv")
# No machine has this device: the build is without CUDA, or the machine without a GPU, or without so
# many.
NOWHERE = "cuda:99"
# A program that is asked for that device says one of these.
REASONS = ["this build of Sluice is without CUDA", "there is no GPU that this process can use",
           "there is no GPU 99: this process can use "]


def ends_of_all_programs(*device):
    """Yields the command and the ended process of each program that takes --device."""
    with tempfile.TemporaryDirectory(prefix="sluice-e2e-") as directory:
        lines = os.path.join(directory, "in.jsonl")
        harness.write_lines(lines, ['{"prompt": "In the", "max_tokens": 2}'])
        output = ["--output", os.path.join(directory, "out.jsonl")]
        for name, *args in [
            ("sluice", "run", "--model", LLAMA, "--input", lines, *output),
            ("sluice", "run", "--model", LLAMA, "--input", lines, *output, "--plan", "on"),
            ("sluice", "profile"),
            ("sluice-worker", "--model", LLAMA),
            ("sluice-worker", "--model", LLAMA, "--no-profile", "--link", "nccl"),
        ]:
            done = subprocess.run(
                [os.path.join(harness.BIN, name), *args, "--device", *device],
                capture_output=True, text=True, timeout=60 * harness.SLOW)
            yield [name, *args], done


def complaint(done, name):
    """The program's last line; what comes before it is its log."""
    last = done.stderr.rstrip("\n").split("\n")[-1]
    assert last.startswith(f"{name}: "), done.stderr
    return last


def test_a_gpu_that_is_not_here():
    for command, done in ends_of_all_programs(NOWHERE):
        assert done.returncode == 1, (command, done)
        last = complaint(done, command[0])
        assert last.startswith(f"{command[0]}: --device {NOWHERE}: "), (command, last)
        assert any(reason in last for reason in REASONS), (command, last)
        assert done.stdout == "", (command, done.stdout)
    print(last)


def test_float16_without_a_gpu():
    with tempfile.TemporaryDirectory(prefix="sluice-e2e-") as directory:
        lines = os.path.join(directory, "in.jsonl")
        harness.write_lines(lines, ['{"prompt": "In the", "max_tokens": 2}'])
        done = subprocess.run(
            [os.path.join(harness.BIN, "sluice"), "run", "--model", LLAMA, "--input", lines,
             "--output", os.path.join(directory, "out.jsonl"), "--dtype", "float16"],
            capture_output=True, text=True, timeout=60 * harness.SLOW)
    assert done.returncode == 2, done
    assert "--dtype float16 is for --device cuda" in complaint(done, "sluice"), done.stderr
    assert "bfloat16" in complaint(done, "sluice"), done.stderr


def test_a_name_of_nothing():
    for device in ["gpu", "cuda:one", "cuda:-1"]:
        for command, done in ends_of_all_programs(device):
            assert done.returncode == 2, (command, done)
            last = complaint(done, command[0])
            assert (f'no device "{device}": expected cpu, cpu-discrete, cuda, or cuda:N'
                    in last), (command, last)


def test_memory_of_a_gpu_that_is_not_here():
    for command, done in ends_of_all_programs(NOWHERE, "--device-memory", "16GiB"):
        assert done.returncode == 1, (command, done)
        assert f"--device {NOWHERE}: " in complaint(done, command[0]), (command, done)


if __name__ == "__main__":
    harness.run_tests(sys.modules[__name__])
