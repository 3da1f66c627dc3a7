"""Tests models that are named as the Hugging Face Hub names them and lie in its local cache: what
runs from there, what is said of one that is not there or not whole."""

import contextlib
import json
import os
import shutil
import subprocess
import sys

import harness

LLAMA = os.path.join(harness.MODELS, "llama-kjv")
COMMIT = "0123456789abcdef0123456789abcdef01234567"
OTHER = "89abcdef0123456789abcdef0123456789abcdef"
NAME = "org/kjv"
# Of a machine that need not exist, so that nothing is measured.
PROFILE = {
    "version": 1, "name": "small", "host_memory_bytes": 512 << 20, "threads": 2,
    "host": {
        "memory_bytes_per_second": 2e10,
        "products": [{"dtype": "float32", "weights": "none",
                      "flops_by_rows": [[1, 5e9], [512, 3e11]]}],
        "attention": [{"format": "float32", "decode_bytes_by_context": 1e10,
                       "prefill_flops_by_context": 1e11}],
        "quantize_bytes_per_second": 1e9, "dequantize_bytes_per_second": 5e9,
        "layer_seconds": 5e-5, "row_element_seconds": 1e-9, "logit_seconds": 2e-10,
        "share_by_threads": [[1, 0.55], [2, 1]]},
    "step_seconds": 5e-4}


class Hub:
    """A cache in a directory, laid out as huggingface_hub does: files are links to blobs."""

    def __init__(self, path):
        self.path = path

    def folder(self, name=NAME):
        return os.path.join(self.path, "models--" + name.replace("/", "--"))

    def snapshot(self, commit=COMMIT, name=NAME):
        return os.path.join(self.folder(name), "snapshots", commit)

    def ref(self, revision, commit, name=NAME):
        path = os.path.join(self.folder(name), "refs", revision)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as f:
            f.write(commit)

    def add(self, source, commit=COMMIT, revision="main", name=NAME):
        """Adds all files of a directory; returns the snapshot."""
        blobs = os.path.join(self.folder(name), "blobs")
        os.makedirs(blobs, exist_ok=True)
        os.makedirs(self.snapshot(commit, name))
        for file in os.listdir(source):
            if not os.path.isfile(os.path.join(source, file)):
                continue
            blob = f"{commit[:6]}-{file}"
            shutil.copyfile(os.path.join(source, file), os.path.join(blobs, blob))
            os.symlink(f"../../blobs/{blob}", os.path.join(self.snapshot(commit, name), file))
        if revision:
            self.ref(revision, commit, name)
        return self.snapshot(commit, name)


@contextlib.contextmanager
def cache(directory):
    """A cache that programs use which are started meanwhile."""
    former = os.environ.get("HF_HUB_CACHE")
    os.environ["HF_HUB_CACHE"] = os.path.join(directory, "hub")
    os.makedirs(os.environ["HF_HUB_CACHE"], exist_ok=True)
    try:
        yield Hub(os.environ["HF_HUB_CACHE"])
    finally:
        if former is None:
            del os.environ["HF_HUB_CACHE"]
        else:
            os.environ["HF_HUB_CACHE"] = former


def refused(program, *args):
    """Returns what a program says that does not even start."""
    done = subprocess.run([os.path.join(harness.BIN, program), *args], capture_output=True,
                          text=True, timeout=60 * harness.SLOW)
    assert done.returncode in (1, 2), (args, done)
    return done.stderr


def test_a_named_model_answers_as_its_directory(directory):
    lines = harness.mixed_requests(8)
    with cache(directory) as hub:
        hub.add(LLAMA)
        hub.ref("v1/final", COMMIT)
        _, expected = harness.run(LLAMA, lines)
        expected = harness.answers(expected)
        os.makedirs(f"{directory}/disk")
        disk = ("--disk-dir", f"{directory}/disk", "--policy", "w=0/0/100")
        for name, flags in ((NAME, ()), (f"{NAME}@v1/final", disk), (f"{NAME}@{COMMIT}", disk)):
            _, results = harness.run(name, lines, *flags)
            assert harness.answers(results) == expected, name
            assert {r["response"]["body"]["model"] for r in results} == {NAME}, results[0]
        harness.write_lines(f"{directory}/text", ["In the beginning God created"])
        scores = []
        for name in LLAMA, NAME:
            done = harness.sluice("score", "--model", name, "-i", f"{directory}/text",
                                  "--host-memory", "1GiB", "--json")
            scores.append(json.loads(done.stdout)["perplexity"])
        assert scores[0] == scores[1], scores


def test_a_plan_needs_no_weights(directory):
    with cache(directory) as hub:
        snapshot = hub.add(LLAMA)
        for file in os.listdir(snapshot):
            if file.endswith(".safetensors"):
                os.remove(os.path.join(snapshot, file))
        profile = f"{directory}/profile.json"
        with open(profile, "w") as f:
            json.dump(PROFILE, f)
        picture = f"{directory}/frontier.svg"
        plan = ("--model", NAME, "--lengths", "16:8:10", "--profile", profile)
        harness.sluice("plan", *plan, "--frontier", "--svg", picture)
        assert f"{NAME}: throughput over latency" in open(picture).read()
        harness.sluice("simulate", *plan)
        # Random weights are made by config.json.
        harness.run(NAME, ['{"prompt": "In the", "max_tokens": 2}'], "--load-format", "dummy")
        done = harness.sluice("run", "--model", NAME, "-i", profile, "-o", "x", check=False)
        assert done.returncode == 2 and "has 0 of the 3 shards" in done.stderr, done


def test_a_cluster_takes_names(directory):
    lines = harness.mixed_requests(6)
    _, expected = harness.run(LLAMA, lines)
    harness.write_lines(f"{directory}/in", lines)
    with cache(directory) as hub:
        snapshot = hub.add(LLAMA)
        with harness.Cluster(NAME, workers=2) as cluster:
            assert f"--model {NAME}: {snapshot}" in cluster.coordinator.log()
            assert f"--model {NAME}: {snapshot}" in cluster.workers["worker-0"].log()
            job = cluster.submit(f"{directory}/in")["id"]
            assert cluster.wait_for_end(job)["status"] == "completed"
            assert harness.answers(cluster.results(job)) == harness.answers(expected)
            state = json.loads(cluster.sluice("cluster", "--json").stdout)
            assert (state["model"], state["model_commit"]) == (NAME, COMMIT[:12]), state
            text = cluster.sluice("cluster").stdout
            assert f"model {NAME} (commit {COMMIT[:12]}, " in text, text
            # Links do not make another model of it, and a worker can fetch what they lead to.
            cluster.model = LLAMA
            cluster.start_worker("copy")
            cluster.model = ""
            cluster.start_worker("fetching", "--cache-dir", f"{directory}/pieces")
            harness.wait_for(lambda: len(json.loads(cluster.sluice(
                "cluster", "--json").stdout)["workers"]) == 4, "four workers that agree")


def test_what_a_link_leads_to_is_hashed(directory):
    with cache(directory) as hub, harness.Cluster(LLAMA, workers=1) as cluster:
        snapshot = hub.add(LLAMA)
        shard = sorted(f for f in os.listdir(snapshot) if f.endswith(".safetensors"))[0]
        with open(os.path.join(snapshot, shard), "r+b") as blob:
            blob.seek(-1, os.SEEK_END)
            last = blob.read(1)
            blob.seek(-1, os.SEEK_END)
            blob.write(bytes([last[0] ^ 1]))
        cluster.model = NAME
        cluster.start_worker("spoiled")
        reason = harness.wait_for(
            lambda: [a["reason"] for a in json.loads(cluster.sluice(
                "cluster", "--json").stdout)["absent"] if a["name"] == "spoiled"],
            "the worker to be refused")[0]
        assert shard in reason, reason


def test_what_is_missing_is_one_sentence_for_all_programs(directory):
    with cache(directory) as hub:
        hub.add(LLAMA)
        harness.write_lines(f"{directory}/in", ['{"prompt": "In the"}'])
        job = ("-i", f"{directory}/in", "-o", f"{directory}/out")
        commands = [("sluice", "run", *job), ("sluice", "score", *job[:2]),
                    ("sluice", "plan", "--lengths", "16:8:10"),
                    ("sluice", "simulate", "--lengths", "16:8:10"),
                    ("sluice-coordinator", "--state-dir", f"{directory}/state"),
                    ("sluice-worker", "--no-profile")]
        said = {
            "org/none": "org/none: no such directory, and no such model in the Hugging Face cache "
                        f"({hub.path}): if it is a model of the Hub, get it with "
                        "`hf download org/none`",
            f"{NAME}@v2": f"{NAME}@v2: the Hugging Face cache has this model ({hub.folder()}), but "
                          "not its revision v2 (there is: main): get it with "
                          f"`hf download {NAME} --revision v2`",
            f"{NAME}@../x": f"{NAME}@../x: no such directory, and what follows the @ is no "
                            f"revision of {NAME}: give a branch, a tag or a commit's 40 digits",
            "google/gemma-3n-E2B": "google/gemma-3n-E2B: no such directory; by its name it is a "
                                   "gemma model, which Sluice does not run: it runs bloom, ",
        }
        for model, message in said.items():
            for program, *args in commands:
                error = refused(program, *args, "--model", model)
                last = error.splitlines()[-1]
                assert last.startswith(f"{program}: {message}"), (program, error)
        os.remove(os.path.join(hub.snapshot(), "config.json"))
        for program, *args in commands:
            error = refused(program, *args, "--model", NAME)
            assert (f"{NAME}: the snapshot in the Hugging Face cache ({hub.snapshot()}) has no "
                    f"config.json: get the rest with `hf download {NAME}`") in error, error


def altered(hub, name, **config):
    """Adds a model with other values in its config.json; returns the snapshot."""
    snapshot = hub.add(LLAMA, name=name)
    with open(os.path.join(snapshot, "config.json"), "r+") as f:
        values = json.load(f)
        f.seek(0)
        f.truncate()
        json.dump({**values, **config}, f)
    return snapshot


def remove(directory, *parts):
    """Removes the files whose names have one of these parts."""
    for file in os.listdir(directory):
        if any(part in file for part in parts):
            os.remove(os.path.join(directory, file))


def test_models_says_what_runs_and_why_not(directory):
    with cache(directory) as hub:
        empty = harness.sluice("models").stdout
        assert empty.startswith("These run:   bloom, cohere, cohere2, "), empty
        assert f"No model is in the Hugging Face cache ({hub.path})" in " ".join(empty.split())
        hub.add(LLAMA)
        hub.ref("v1", COMMIT)
        hub.add(LLAMA, commit=OTHER, revision=None)
        altered(hub, "org/mamba", model_type="mamba")
        altered(hub, "org/bnb", quantization_config={"quant_method": "bitsandbytes"})
        altered(hub, "org/wide", hidden_size=1234)
        altered(hub, "org/wordpiece")
        tokenizer = os.path.join(hub.snapshot(name="org/wordpiece"), "tokenizer.json")
        with open(tokenizer, "w") as f:
            json.dump({"model": {"type": "WordPiece", "vocab": {}}}, f)
        remove(altered(hub, "org/cut"), "model-00002")
        remove(altered(hub, "org/no-weights"), "safetensors")
        pickled = altered(hub, "org/pickled")
        remove(pickled, "safetensors")
        open(os.path.join(pickled, "pytorch_model.bin"), "w").close()
        remove(altered(hub, "org/no-tokenizer"), "token", "vocab", "merges")
        os.makedirs(os.path.join(hub.folder("org/begun"), "blobs"))
        found = json.loads(harness.sluice("models", "--json").stdout)
        assert "llama" in found["model_types"] and found["cache"] == hub.path, found
        runs = {(m["name"], m["commit"]) for m in found["models"] if m["runs"]}
        assert runs == {(NAME, COMMIT), (NAME, OTHER)}, runs
        reasons = {m["name"]: m["why_not"] for m in found["models"]}
        for name, reason in {
                "org/mamba":
                    'config.json: model_type "mamba" is not supported',
                "org/bnb": 'config.json: quantization_config.quant_method "bitsandbytes" is not supported',
                "org/wide": "but config.json asks for [2048, 1234]",
                "org/wordpiece": "WordPiece",
                "org/cut": "it has 2 of the 3 shards that model.safetensors.index.json names",
                "org/no-weights": "it has no weights: get the rest with `hf download "
                                  "org/no-weights`",
                "org/pickled": "pytorch_model.bin is not read",
                "org/no-tokenizer": "neither tokenizer.json nor",
                "org/begun": "it has no snapshot: get it with `hf download org/begun`",
                NAME: ""}.items():
            assert reason in reasons.pop(name), (name, found["models"])
        assert not reasons, reasons
        assert directory not in "".join(m["why_not"] for m in found["models"]), found
        model = next(m for m in found["models"] if m["commit"] == COMMIT and m["runs"])
        size = sum(os.path.getsize(os.path.join(LLAMA, f)) for f in os.listdir(LLAMA))
        assert (model["bytes"], model["revisions"]) == (size, ["main", "v1"]), model
        assert (model["parameters"], model["layers"]) == (1451040, 6), model
        table = harness.sluice("models").stdout
        assert all(len(line) <= 80 for line in table.splitlines()), table
        assert f"{NAME:20} main,v1      llama       1.45 M" in table, table
        assert f"{NAME:20} {OTHER[:12]} llama" in table, table
        for name in f"{NAME}@{OTHER}", hub.snapshot(OTHER), NAME, LLAMA:
            one = json.loads(harness.sluice("models", name, "--json").stdout)
            assert one["runs"] and one["parameters"] == 1451040, one
            assert one["commit"] == {NAME: COMMIT, LLAMA: ""}.get(name, OTHER), one
        text = harness.sluice("models", "org/cut").stdout
        assert "no: it has 2 of the 3 shards" in " ".join(text.split()), text
        for name, part in (("org/none", "get it with `hf download org/none`"),
                           (directory, "config.json: no such file"),
                           (os.path.join(LLAMA, "config.json"), "give the model's directory")):
            done = harness.sluice("models", name, check=False)
            assert done.returncode == 2 and part in done.stderr, done


def test_a_download_that_was_cut_is_said_to_be(directory):
    with cache(directory) as hub:
        snapshot = hub.add(LLAMA)
        shard = sorted(f for f in os.listdir(snapshot) if f.endswith(".safetensors"))[1]
        blob = os.path.realpath(os.path.join(snapshot, shard))
        os.rename(blob, blob + ".incomplete")
        run = ("--model", NAME, "-i", "/dev/null", "-o", f"{directory}/out")
        error = refused("sluice", "run", *run)
        assert f"has a {shard} that leads nowhere; its download goes on, or was cut" in error, error
        os.remove(os.path.join(snapshot, shard))
        for program, *args in (("sluice", "run", *run),
                               ("sluice-coordinator", "--model", NAME, "--state-dir",
                                f"{directory}/state"), ("sluice-worker", "--model", NAME)):
            error = refused(program, *args)
            assert ("has 2 of the 3 shards that model.safetensors.index.json names (the first that "
                    f"is missing is {shard}); its download goes on, or was cut: go on with "
                    f"`hf download {NAME}`") in error, error


if __name__ == "__main__":
    harness.give_directories(globals())
    harness.run_tests(sys.modules[__name__])
