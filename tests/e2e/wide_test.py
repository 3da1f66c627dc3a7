"""Models as wide as real ones: the same answers on any number of workers, in
the process and as processes, wherever data lies, and when one is killed.

The models are shallow and have random weights, but the hidden sizes, heads,
positions and vocabularies of published ones; where only the width of a step
counts, their heads are small, so that it takes seconds."""

import json
import os
import shutil
import sys
import tempfile
import urllib.request

import harness

SKINNY = {"num_attention_heads": 32, "num_key_value_heads": 1, "head_dim": 8,
          "intermediate_size": 16, "vocab_size": 512}
LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
    "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16", "bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": True}
WIDE_4096 = {**LLAMA, **SKINNY, "hidden_size": 4096, "num_hidden_layers": 3}
WIDE_8192 = {**LLAMA, **SKINNY, "hidden_size": 8192, "num_hidden_layers": 3}
LLAMA_8B = {**LLAMA, "hidden_size": 4096, "intermediate_size": 64, "num_hidden_layers": 2,
            "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256}
LLAMA_70B = {**LLAMA, "hidden_size": 8192, "intermediate_size": 64, "num_hidden_layers": 3,
             "num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": 512}
QWEN_7B = {**LLAMA, "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2",
           "hidden_size": 3584, "intermediate_size": 64, "num_hidden_layers": 2,
           "num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 152064,
           "rope_theta": 1000000.0}
OPT_30B = {
    "architectures": ["OPTForCausalLM"], "model_type": "opt", "activation_function": "relu",
    "do_layer_norm_before": True, "hidden_size": 7168, "word_embed_proj_dim": 7168,
    "ffn_dim": 64, "num_hidden_layers": 2, "num_attention_heads": 56, "vocab_size": 50272,
    "max_position_embeddings": 2048, "torch_dtype": "float16", "bos_token_id": 2,
    "eos_token_id": 2, "pad_token_id": 1, "tie_word_embeddings": True}

DUMMY = ("--load-format", "dummy")
MEMORY = ("--host-memory", "3GiB")


class Model:
    """A model directory of one config.json."""

    def __init__(self, config):
        self.config = config

    def __enter__(self):
        self.path = tempfile.mkdtemp(prefix="sluice-wide-")
        with open(os.path.join(self.path, "config.json"), "w") as f:
            json.dump(self.config, f)
        return self.path

    def __exit__(self, *_):
        shutil.rmtree(self.path, ignore_errors=True)


def request(name, prompt, **body):
    return json.dumps({"custom_id": name, "method": "POST", "url": "/v1/completions",
                       "body": {"prompt": prompt, "ignore_eos": True, **body}})


def prompt(tokens, vocab, seed):
    state = seed * 2654435761 + 12345
    ids = []
    for _ in range(tokens):
        state = (state * 1103515245 + 12345) % (1 << 31)
        ids.append(3 + (state >> 8) % (vocab - 3))
    return ids


def requests(vocab, lengths, max_tokens=3):
    """Greedy and sampled, some with 20 alternatives, one with its prompt scored."""
    lines = []
    for i, length in enumerate(lengths):
        body = {"max_tokens": max_tokens, "logprobs": (0, 20)[i % 2]}
        if i % 3 == 1:
            body.update(temperature=0.8, seed=i, top_p=0.9)
        else:
            body.update(temperature=0)
        lines.append(request(f"r{i}", prompt(length, vocab, i), **body))
    lines.append(request("scored", prompt(40, vocab, 99), max_tokens=1, echo=True, logprobs=20,
                         temperature=0))
    return lines


def check(model, lines, *variants, flags=()):
    """Each of `variants`, tuples of flags, answers as one worker with all in memory does."""
    flags = (*DUMMY, *flags)
    if "--host-memory" not in flags:
        flags = (*flags, *MEMORY)
    figures, results = harness.run(model, lines, *flags, "--workers", "1")
    assert figures["completed"] == len(lines), figures
    base = harness.answers(results)
    for variant in variants:
        figures, results = harness.run(model, lines, *flags, *variant)
        assert figures["completed"] == len(lines), (variant, figures)
        compare(base, harness.answers(results), variant)
    return base


def compare(base, got, what):
    assert got.keys() == base.keys(), (what, got.keys())
    for name, answer in base.items():
        assert got[name] == answer, (
            f"{name} differs with {what}:\n{str(answer)[:2000]}\n{str(got[name])[:2000]}")


def run_on_processes(model, lines, workers, *flags, worker_flags=(), disturb=None):
    """The answers of a cluster of processes; disturb(cluster, job) may break things."""
    with harness.Cluster(model, workers=workers, coordinator_flags=(*DUMMY, *flags),
                         worker_flags=(*DUMMY, "--host-memory", "2GiB", *worker_flags)) as cluster:
        path = os.path.join(cluster.directory, "in.jsonl")
        harness.write_lines(path, lines)
        job = cluster.submit(path)["id"]
        if disturb:
            disturb(cluster, job)
        state = cluster.wait_for_end(job, 300)
        assert state["status"] == "completed", state
        assert state["request_counts"]["completed"] == len(lines), state
        return harness.answers(cluster.results(job))


def bytes_between_workers(cluster):
    """What all workers have sent to each other."""
    total = 0
    for worker in cluster.workers.values():
        with urllib.request.urlopen(worker.metrics_url) as answer:
            for line in answer.read().decode().splitlines():
                if line.startswith("sluice_link_bytes_total") and 'direction="sent"' in line:
                    total += float(line.split()[-1])
    return total


def needs_speed():
    """Skips tests whose vocabularies alone are a gigabyte where a sanitizer would take minutes."""
    if harness.SLOW > 1:
        raise harness.Skipped("a sanitizer would take minutes for so large a vocabulary")


def shorter(lengths):
    """Cuts lengths to at most 520 under a sanitizer, which takes its time."""
    return lengths if harness.SLOW == 1 else [min(n, 520) for n in lengths]


# ---- activations of half the bytes

def test_half_the_bytes_on_the_wire():
    """They are halved, and the answers still do not depend on what shares a step."""
    with Model(WIDE_4096) as model:
        lines = requests(512, shorter([700, 40, 900, 1, 300]))
        sent, got = {}, {}
        for flags in (("--link-dtype", "float32"), ("--link-dtype", "bfloat16"),
                      ("--link-dtype", "bfloat16", "--gbs", "2", "--max-step-tokens", "96")):
            def look(cluster, job):
                cluster.wait_for_end(job, 300)
                sent[flags] = bytes_between_workers(cluster)
            got[flags] = run_on_processes(model, lines, 2, "--plan", "off", *flags, disturb=look)
        wide, narrow, other = sent.values()
        assert 0.48 < narrow / wide < 0.52, sent
        answers = list(got.values())
        compare(answers[1], answers[2], "other steps")


# ---- steps beyond 4 MiB, beyond 64 MiB, and of 8,192 rows of 8,192 numbers

def test_a_step_of_more_than_grpcs_4_mib():
    with Model({**WIDE_4096, "num_hidden_layers": 2}) as model:
        lines = [request("r", [7] * 300, max_tokens=1)]
        base = check(model, lines, ("--workers", "2"))
        compare(base, run_on_processes(model, lines, 2), "processes")


def test_decoding_steps_of_more_than_4_mib():
    with Model({**WIDE_4096, "num_hidden_layers": 2}) as model:
        lines = [request(f"r{i}", [3 + i % 500], max_tokens=2, temperature=0)
                 for i in range(400)]
        check(model, lines, ("--workers", "2"), flags=("--gbs", "400"))


def test_defaults_on_1_to_3_workers():
    with Model(WIDE_4096) as model:
        lines = requests(512, shorter([1, 255, 256, 257, 2047, 4096, 1000, 17]))
        base = check(model, lines, ("--workers", "2"), ("--workers", "3"))
        compare(base, run_on_processes(model, lines, 3), "processes")


def test_score():
    with Model(WIDE_4096) as model:
        text = os.path.join(model, "text.txt")
        with open(text, "w") as f:
            f.write("In the beginning was the width, and the width was not tested. " * 30)
        said = []
        for workers in ("1", "2", "3"):
            done = harness.sluice("score", "--model", model, *DUMMY, *MEMORY, "--json",
                                  "--context", "300", "--workers", workers, "--input", text)
            figures = json.loads(done.stdout.splitlines()[-1])
            said.append([figures[k] for k in ("nll_nats", "perplexity", "tokens_scored", "windows")])
        assert said[0] == said[1] == said[2], said


def test_a_step_of_8192_rows_of_8192_numbers():
    rows = shorter([4096, 4096, 1])
    with Model({**WIDE_8192, "num_hidden_layers": 2}) as model:
        lines = requests(512, rows, max_tokens=2)
        flags = ("--max-step-tokens", "8192", "--host-memory", "4GiB")
        base = check(model, lines, ("--workers", "2"), flags=flags)
        compare(base, run_on_processes(model, lines, 2, "--max-step-tokens", "8192"), "processes")


# ---- heads and vocabularies of published models

def test_qwen_2_5_7b():
    needs_speed()
    with Model(QWEN_7B) as model:
        lines = requests(152064, shorter([1, 300, 33]))
        check(model, lines, ("--workers", "2"))


def test_opt_30b():
    needs_speed()
    with Model(OPT_30B) as model:
        lines = requests(50272, shorter([1, 300, 33]))
        check(model, lines, ("--workers", "2"), flags=("--host-memory", "4GiB"))


def test_llama_3_70b_as_processes():
    with Model(LLAMA_70B) as model:
        lines = requests(512, shorter([1, 300, 64]))
        base = check(model, lines)
        compare(base, run_on_processes(model, lines, 3), "processes")


# ---- data on any tier

def test_disk_and_device():
    with Model({**LLAMA_8B, "vocab_size": 1000, "num_hidden_layers": 3}) as model, \
            tempfile.TemporaryDirectory(prefix="sluice-wide-disk-") as disk:
        lines = requests(1000, shorter([1, 300, 64]))
        on_disk = ("--disk-dir", disk, "--disk-space", "2GiB")
        device = ("--device", "cpu-discrete", "--device-memory", "2GiB")
        check(model, lines,
              ("--workers", "2", *on_disk, "--policy", "w=0/0/100 c=0/0/100"),
              ("--workers", "3", *on_disk, "--policy", "w=0/50/50 c=0/50/50 num-microbatches=2"),
              ("--workers", "1", *on_disk, "--policy", "h=0/0/100 num-microbatches=3"),
              ("--workers", "2", *device, "--policy", "w=50/50/0 c=50/50/0"),
              ("--workers", "2", *device, *on_disk, "--policy",
               "w=20/20/60 c=20/40/40 attention-site=device"),
              flags=("--gbs", "4", "--max-model-len", "1024"))


# ---- stages of several ranks, and several pipelines

def test_llama_3_8b_on_stages_and_ranks():
    needs_speed()
    with Model(LLAMA_8B) as model:
        lines = requests(128256, [1, 2, 1100, 300])
        base = check(model, lines, ("--workers", "2"), ("--tensor-parallel", "4"), flags=("--host-memory", "4GiB"))
        compare(base, run_on_processes(model, lines, 2, worker_flags=("--tensor-parallel", "2")),
                "processes of two ranks")


def test_ranks_on_devices():
    with Model({**WIDE_8192, "num_key_value_heads": 4}) as model:
        lines = requests(512, shorter([1, 4096, 2500, 64]))
        device = ("--device", "cpu-discrete", "--device-memory", "1GiB")
        flags = ("--max-step-tokens", "4096", "--host-memory", "4GiB")
        check(model, lines, (*device, "--tensor-parallel", "2"),
              (*device, "--tensor-parallel", "4", "--workers", "2"), flags=flags)


def test_pipelines():
    with Model({**LLAMA_8B, "vocab_size": 1000}) as model:
        lines = requests(1000, shorter([1, 2, 1100, 700, 300, 41]))
        base = check(model, lines)
        for workers, replicas in ((2, 2), (4, 2)):
            compare(base, run_on_processes(model, lines, workers, "--replicas", str(replicas)),
                    f"{replicas} pipelines of {workers} workers")


# ---- a worker that dies in the middle of a large step

def test_killed_in_the_middle_of_a_large_step():
    with Model(WIDE_8192) as model:
        lines = requests(512, shorter([4096, 3000, 4096, 1, 2500]), max_tokens=4)
        base = check(model, lines)

        def kill_both(cluster, job):
            for victim in ("worker-1", "worker-0"):
                # The prompts are under way, whose step takes seconds.
                state = harness.wait_for(
                    lambda: (s := cluster.status(job))["request_counts"]["running"] > 0 and s
                    or s["status"] == "completed" and s, "the job to run")
                assert state["status"] != "completed", state
                cluster.workers[victim].kill9()
                cluster.start_worker(victim)

        compare(base, run_on_processes(model, lines, 2, "--max-step-tokens", "4096",
                                       disturb=kill_both), "kill -9")


# ---- what is too large says so

def test_steps_that_no_link_could_carry_are_refused():
    with Model(WIDE_8192) as model:
        done = harness.sluice("run", "--model", model, "-i", os.devnull, "-o", os.devnull, *DUMMY,
                              "--max-step-tokens", "32769", check=False)
        assert done.returncode == 2, done
        for words in ("max_step_tokens is 32769", "hidden size of 8192", "at most 32768"):
            assert words in done.stderr, done.stderr


if __name__ == "__main__":
    harness.run_tests(sys.modules[__name__])
