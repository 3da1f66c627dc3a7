"""Tests the memory hierarchy: the tokens are the same wherever weights and KV cache lie, and a disk
that is not as it should be leads to an error or a remedy."""

import glob
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.request

import harness

LLAMA = os.path.join(harness.MODELS, "llama-kjv")
OPT = os.path.join(harness.MODELS, "opt-kjv")
FP32 = ("--dtype", "float32")
# Few sequences in a block, so that several blocks' worth of them share pages.
SMALL = (*FP32, "--gbs", "4", "--max-step-tokens", "37")


class DiskDir:
    def __enter__(self):
        self.path = tempfile.mkdtemp(prefix="sluice-disk-")
        return self.path

    def __exit__(self, *_):
        shutil.rmtree(self.path, ignore_errors=True)


def policy(text):
    return ("--policy", text)


def images(disk):
    """The weight images: path, and what changes when one is made anew."""
    found = glob.glob(os.path.join(disk, "**", "*.img"), recursive=True)
    return {p: (os.stat(p).st_ino, os.stat(p).st_mtime_ns) for p in found}


def left_over(disk):
    """Files that are no finished image and no memory of file hashes."""
    found = []
    for directory, _, names in os.walk(disk):
        if os.path.basename(directory) == "content-hashes.pieces":
            continue
        found += [os.path.join(directory, n) for n in names
                  if not n.endswith(".img") and not n.startswith("content-hashes")]
    return found


def realised(figures, kind, tier):
    return figures["policy"]["realised"][kind][tier]


def check_placements(model):
    lines = harness.mixed_requests(20)
    figures, results = harness.run(model, lines, *SMALL)
    base = harness.answers(results)
    assert figures["completed"] == len(lines), figures
    assert not any(figures["bytes_moved"].values()), figures
    assert realised(figures, "weights", "host") == 1
    with DiskDir() as disk:
        for text, weights, kv in [
                ("w=auto c=auto", 0, 0),
                ("w=0/100/0 c=0/100/0", 0, 0),
                ("w=0/50/50", 0.5, 0),
                ("w=0/0/100", 1, 0),
                ("w=0/100/0 c=0/0/100", 0, 1),
                ("w=0/0/100 c=0/0/100", 1, 1),
                ("w=0/30/70 c=0/50/50", 0.7, 0.5),
                ("w=0/0/100 num-microbatches=3", 1, 0),
                ("w=0/20/80 c=0/0/100 num-microbatches=3", 0.8, 1),
                ("w=0/0/100 c=0/50/50 schedule=row num-microbatches=2", 1, 0.5),
                ("w=0/50/50 c=0/0/100 overlap=off", 0.5, 1),
                ("packing=off num-microbatches=2", 0, 0),
                ("w.host=0.25 w.disk=0.75 threads=1", 0.75, 0)]:
            figures, results = harness.run(model, lines, *SMALL, "--disk-dir", disk,
                                           *policy(text))
            got = harness.answers(results)
            for name, answer in base.items():
                assert got[name] == answer, (
                    f"{name} differs with {text}:\n{answer}\n{got[name]}")
            assert abs(realised(figures, "weights", "disk") - weights) < 0.01, (text, figures)
            # A page is a large part of a cache as small as these.
            assert abs(realised(figures, "kv_cache", "disk") - kv) < 0.1, (text, figures)
            moved = figures["bytes_moved"]
            assert (moved["disk_read"] > 0) == (weights > 0 or kv > 0), (text, figures)
            assert (moved["disk_write"] > 0) == (kv > 0), (text, figures)
            of = figures["disk_bytes"]
            assert (of["weights"]["read"] > 0) == (weights > 0), (text, figures)
            assert (of["kv_cache"]["read"] > 0) == (kv > 0), (text, figures)
            # The last writes may be under way still.
            assert of["kv_cache"]["write"] >= moved["disk_write"], (text, figures)
            assert not left_over(disk), left_over(disk)


def test_llama_says_the_same_wherever_its_data_lies():
    check_placements(LLAMA)


def test_opt_says_the_same_wherever_its_data_lies():
    check_placements(OPT)


def test_activations_on_disk_say_the_same():
    lines = harness.mixed_requests(20)
    flags = (*FP32, "--gbs", "4", "--max-step-tokens", "128")
    base = harness.answers(harness.run(LLAMA, lines, *flags)[1])
    with DiskDir() as disk:
        for text, workers, share in [
                ("h=0/0/100 num-microbatches=4", 1, 1),
                ("h=0/50/50 num-microbatches=4 w=0/50/50 c=0/0/100", 1, 0.5),
                ("h=0/0/100 num-microbatches=4", 2, 1),
                ("h=0/0/100 num-microbatches=4 overlap=off", 1, 1),
                # A micro-batch that is alone stays in memory.
                ("h=0/0/100 num-microbatches=1", 1, 0)]:
            figures, results = harness.run(
                LLAMA, lines, *flags, "--workers", str(workers), "--disk-dir", disk,
                *policy(text))
            assert harness.answers(results) == base, text
            assert abs(realised(figures, "activations", "disk") - share) < 0.03, (text, figures)
            moved = figures["bytes_moved"]
            assert (moved["disk_write"] > 0) == (share > 0), (text, figures)
            assert (figures["stall_seconds"]["activations"] > 0) <= (share > 0), (text, figures)
            assert not left_over(disk), left_over(disk)


def test_a_device_with_memory_of_its_own():
    lines = harness.mixed_requests(20)
    base = harness.answers(harness.run(LLAMA, lines, *SMALL)[1])
    device = ("--device", "cpu-discrete", "--device-memory", "64MiB")
    with DiskDir() as disk, tempfile.TemporaryDirectory() as directory:
        trace = os.path.join(directory, "trace.json")
        for text, flags, weights, kv, h in [
                ("", (), (1, 0, 0), (1, 0, 0), 1),
                ("w=40/30/30 c=30/30/40 h=50/50/0 num-microbatches=2",
                 ("--disk-dir", disk, "--trace", trace),
                 (0.4, 0.3, 0.3), (0.3, 0.3, 0.4), 0.5),
                ("w=20/30/50 c=0/50/50 h=0/100/0 num-microbatches=2 attention-site=device",
                 ("--disk-dir", disk, "--workers", "2"), (0.2, 0.3, 0.5), (0, 0.5, 0.5), 0),
                ("h=40/30/30 num-microbatches=5", ("--disk-dir", disk), (1, 0, 0), (1, 0, 0), 0.4)]:
            figures, results = harness.run(LLAMA, lines, *SMALL, *device, *flags, *policy(text))
            assert harness.answers(results) == base, text
            for share, tier in zip(weights, ("device", "host", "disk")):
                assert abs(realised(figures, "weights", tier) - share) < 0.01, (text, figures)
            for share, tier in zip(kv, ("device", "host", "disk")):
                # A page is a large part of a cache as small as these.
                assert abs(realised(figures, "kv_cache", tier) - share) < 0.1, (text, figures)
            assert realised(figures, "activations", "device") == h, (text, figures)
            moved = figures["bytes_moved"]
            assert moved["h2d"] > 0 and moved["d2h"] > 0, figures
            assert 0 < figures["wire_seconds"]["h2d"] <= figures["wall_seconds"] * 2.05, figures
            assert 0 < figures["peak_memory_bytes"]["device"] <= 64 << 20, figures
            assert not left_over(disk), left_over(disk)
        with open(trace) as f:
            rows = {e["args"]["name"] for e in json.load(f)["traceEvents"]
                    if e["name"] == "thread_name"}
        assert {"compute", "h2d", "d2h", "host attention", "disk read"} <= rows, rows


def test_a_device_that_cannot_be_used():
    error = refused("--device", "cuda", "--device-memory", "1GiB")
    assert "is without CUDA" in error or "there is no GPU" in error, error
    assert "--device-memory" in refused("--device", "cpu-discrete")
    assert "--host-memory" in refused("--device-memory", "1GiB")
    error = refused("--device", "cpu-discrete", "--device-memory", "3MiB",
                    *policy("w=100/0/0"))
    assert "--device-memory" in error and "3145728" in error, error
    assert re.search(r"\n +weights +\d+", error), error


def test_stages_share_a_disk():
    lines = harness.mixed_requests(20)
    base = harness.answers(harness.run(LLAMA, lines, *SMALL)[1])
    with DiskDir() as disk:
        figures, results = harness.run(
            LLAMA, lines, *SMALL, "--workers", "2", "--disk-dir", disk,
            *policy("w=0/0/100,c=0/0/100,num-microbatches=2"))
        assert harness.answers(results) == base
        assert realised(figures, "weights", "disk") > 0.99, figures
    # Padding goes over links, too.
    results = harness.run(LLAMA, lines, *SMALL, "--workers", "3", *policy("packing=off"))[1]
    assert harness.answers(results) == base


def test_compressed_data_says_the_same_in_memory_and_on_disk():
    lines = harness.mixed_requests(16)
    for formats in ("compress-weights=int8", "compress-weights=int4",
                    "compress-kv=int8", "compress-weights=int4 compress-kv=int4",
                    "sparsity=0.1", "compress-weights=int8 num-microbatches=2"):
        figures, results = harness.run(LLAMA, lines, *SMALL, *policy(formats))
        assert figures["completed"] == len(lines), (formats, figures)
        base = harness.answers(results)
        with DiskDir() as disk:
            results = harness.run(LLAMA, lines, *SMALL, "--disk-dir", disk,
                                  *policy(formats), *policy("w=0/0/100 c=0/0/100"))[1]
            assert harness.answers(results) == base, formats


def test_a_second_start_takes_the_images_of_the_first():
    lines = harness.mixed_requests(4)
    with DiskDir() as disk:
        flags = (*SMALL, "--disk-dir", disk, *policy("w=0/0/100"))
        base = harness.answers(harness.run(LLAMA, lines, *flags)[1])
        first = images(disk)
        assert first
        assert harness.answers(harness.run(LLAMA, lines, *flags)[1]) == base
        assert images(disk) == first
        # Another split of the layers needs the same images.
        harness.run(LLAMA, lines, *flags, "--workers", "2")
        assert images(disk) == first
        # Another form does not disturb them.
        harness.run(LLAMA, lines, *flags, *policy("compress-weights=int8"))
        assert {p: i for p, i in images(disk).items() if p in first} == first
        assert len(images(disk)) > len(first)


def run_bounded(*flags):
    """`sluice run` that must end, well or not."""
    with tempfile.TemporaryDirectory(prefix="sluice-e2e-") as directory:
        source = os.path.join(directory, "in.jsonl")
        target = os.path.join(directory, "out.jsonl")
        harness.write_lines(source, harness.mixed_requests(4))
        try:
            done = subprocess.run(
                [os.path.join(harness.BIN, "sluice"), "run", "--model", LLAMA,
                 "--input", source, "--output", target, *flags],
                capture_output=True, text=True, timeout=60 * harness.SLOW)
        except subprocess.TimeoutExpired as e:
            raise AssertionError(f"sluice run {flags} did not end:\n{e.stderr}")
        results = []
        if done.returncode == 0:
            with open(target) as f:
                results = [json.loads(line) for line in f]
        return done, results


def check_damaged(damage, says, *weights):
    """After `damage` (a function of a file), a run says what is wrong with which
    file, and gives the right tokens or that as its error; and a start after that
    is as good as new."""
    with DiskDir() as disk:
        flags = (*SMALL, "--disk-dir", disk, *weights)
        done, results = run_bounded(*flags)
        assert done.returncode == 0, done.stderr
        base = harness.answers(results)
        names = set(images(disk))
        victim = sorted(names)[0]
        damage(victim)
        done, results = run_bounded(*flags)
        assert f"{victim} is {says}" in done.stderr, done.stderr
        if done.returncode == 0:
            assert harness.answers(results) == base, done.stderr
        else:
            done, results = run_bounded(*flags)
            assert done.returncode == 0, done.stderr
            assert harness.answers(results) == base
        # The damage is mended: there is nothing to say of it any more, and no other file is there.
        done, results = run_bounded(*flags)
        assert done.returncode == 0 and victim not in done.stderr, done.stderr
        assert set(images(disk)) == names and not left_over(disk), os.listdir(disk)


def flip(path, offset):
    with open(path, "r+b") as f:
        f.seek(offset)
        byte = f.read(1)[0]
        f.seek(offset)
        f.write(bytes([byte ^ 0x10]))


def test_a_flipped_byte_in_an_image():
    check_damaged(lambda p: flip(p, os.path.getsize(p) * 2 // 3), "damaged",
                  *policy("w=0/0/100"))


def test_a_flipped_byte_in_the_part_that_stays_in_memory():
    check_damaged(lambda p: flip(p, os.path.getsize(p) * 2 // 3), "damaged",
                  *policy("w=0/90/10"))


def test_a_flipped_byte_in_an_images_header():
    check_damaged(lambda p: flip(p, 1200), "damaged", *policy("w=0/0/100"))


def test_a_truncated_image():
    check_damaged(lambda p: os.truncate(p, os.path.getsize(p) // 2 // 4096 * 4096),
                  "damaged", *policy("w=0/0/100"))


def test_an_empty_image():
    check_damaged(lambda p: os.truncate(p, 0), "damaged", *policy("w=0/0/100"))


def test_an_image_of_another_version():
    def other_version(path):
        with open(path, "r+b") as f:
            f.seek(8)  # behind the magic
            f.write((999).to_bytes(4, "little"))
    check_damaged(other_version, "an image of another version", *policy("w=0/0/100"))


def test_changed_weights_make_other_images():
    lines = harness.mixed_requests(4)
    with DiskDir() as disk, tempfile.TemporaryDirectory() as directory:
        model = os.path.join(directory, "model")
        shutil.copytree(OPT, model)
        flags = (*SMALL, "--disk-dir", disk, *policy("w=0/0/100"))
        harness.run(model, lines, *flags)
        first = images(disk)
        flip(os.path.join(model, "model.safetensors"),
             os.path.getsize(os.path.join(model, "model.safetensors")) - 2)
        base = harness.answers(harness.run(model, lines, *SMALL)[1])
        assert harness.answers(harness.run(model, lines, *flags)[1]) == base
        assert len(images(disk)) == 2 * len(first)


def refused(*flags):
    done, _ = run_bounded(*SMALL, *flags)
    assert done.returncode in (1, 2), (flags, done.returncode, done.stderr)
    return done.stderr


def test_errors_name_the_cause():
    with DiskDir() as disk:
        file = os.path.join(disk, "file")
        open(file, "w").close()
        assert file in refused("--disk-dir", os.path.join(file, "below"))
        assert file in refused("--disk-dir", file)
        assert "--disk-dir" in refused("--disk-space", "1GiB")
        assert "--disk-space" in refused("--disk-dir", disk, "--disk-space", "lots")
        # Without a disk there is nowhere to put them.
        assert "--disk-dir" in refused(*policy("w=0/50/50"))
        assert "--disk-dir" in refused(*policy("c=0/0/100"))
        assert "--disk-dir" in refused(*policy("h=0/0/100"))
        for text in ("w=0/50/51", "gbs=0", "speed=9", "@/nowhere/policy", "schedule=up"):
            assert "policy: " in refused(*policy(text)), text
        assert "max_step_tokens is 37" in refused(*policy("gbs=38"))
        assert "/nowhere/trace" in refused("--trace", "/nowhere/trace")


def test_too_little_disk_space_is_refused_with_a_table():
    with DiskDir() as disk:
        error = refused("--disk-dir", disk, "--disk-space", "64KiB", *policy("w=0/0/100"))
        assert "disk" in error and "65536" in error and "budget" in error, error
        assert not images(disk) and not left_over(disk), os.listdir(disk)
        error = refused("--disk-dir", disk, "--disk-space", "64KiB",
                        *policy("w=0/100/0 c=0/0/100"))
        assert "disk" in error and "65536" in error, error
        error = refused("--disk-dir", disk, "--disk-space", "64KiB",
                        *policy("h=0/0/100 num-microbatches=8"))
        assert "activations" in error and "65536" in error, error


def test_too_little_memory_is_refused_with_a_table():
    with DiskDir() as disk:
        # Even with all on disk, something passes through memory.
        error = refused("--disk-dir", disk, "--host-memory", "256KiB",
                        *policy("w=0/0/100 c=0/0/100"))
        assert "256.0 KiB" in error, error
        error = refused("--host-memory", "3MiB")
        assert "3145728" in error and re.search(r"\n +weights in memory +\d", error), error


def test_a_model_larger_than_memory_moves_to_the_disk_by_itself():
    lines = harness.mixed_requests(8)
    base = harness.answers(harness.run(LLAMA, lines, *SMALL)[1])
    everything, _ = harness.run(LLAMA, lines, *SMALL, "--max-model-len", "128")
    with DiskDir() as disk:
        memory = everything["peak_memory_bytes"]["host"] * 85 // 100
        figures, results = harness.run(
            LLAMA, lines, *SMALL, "--max-model-len", "128", "--disk-dir", disk,
            "--host-memory", str(memory))
        assert harness.answers(results) == base
        assert figures["peak_memory_bytes"]["host"] <= memory, figures
        assert realised(figures, "weights", "disk") + realised(figures, "kv_cache", "disk") > 0


def test_figures_and_trace():
    lines = harness.mixed_requests(12)
    with DiskDir() as disk, tempfile.TemporaryDirectory() as directory:
        trace = os.path.join(directory, "trace.json")
        file = os.path.join(directory, "policy")
        with open(file, "w") as f:
            f.write("w=0/0/100  # all of them\ngbs=3\n")
        figures, _ = harness.run(LLAMA, lines, *SMALL, "--disk-dir", disk, "--trace",
                                 trace, *policy("@" + file), *policy("num-microbatches=2"))
        asked = figures["policy"]["asked"]
        assert "gbs=3 num-microbatches=2 " in asked and " w=0/0/100 c=auto " in asked, asked
        assert figures["gbs"] == 3
        wall = figures["wall_seconds"]
        compute = figures["compute_seconds"]
        assert set(compute) == {"projections", "attention", "dequantize", "head"}
        assert compute["projections"] > 0 and compute["head"] > 0, figures
        stalls = figures["stall_seconds"]
        assert set(stalls) == {"weights", "kv_cache", "activations", "host_attention"}
        assert sum(compute.values()) + sum(stalls.values()) <= wall * 1.05, figures
        assert 0 < figures["wire_seconds"]["disk_read"] <= wall * 1.05, figures
        assert figures["peak_memory_bytes"]["host"] > 0
        assert figures["peak_memory_bytes"]["disk"] >= 0
        with open(trace) as f:
            events = json.load(f)["traceEvents"]
        assert any(e["ph"] == "X" and e["dur"] >= 0 for e in events)


def test_the_end_of_a_run_shows_where_time_went():
    done, _ = run_bounded(*SMALL)
    for words in ("projections", "between steps", "peak memory"):
        assert words in done.stderr, done.stderr
    assert "disk read" not in done.stderr
    done, _ = run_bounded(*SMALL, "--quiet")
    assert "projections" not in done.stderr, done.stderr


DUMMY = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64,
    "intermediate_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 1000, "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
    "torch_dtype": "bfloat16", "bos_token_id": 1, "eos_token_id": 2,
    "tie_word_embeddings": False}


def test_random_weights_need_only_a_config():
    lines = [json.dumps({"custom_id": f"r{i}", "method": "POST", "url": "/v1/completions",
                         "body": {"prompt": prompt, "max_tokens": 12, "temperature": 0}})
             for i, prompt in enumerate(
                 ["In the beginning", "caf\u00e9", [5, 900, 17], list(range(40, 90))])]
    with tempfile.TemporaryDirectory() as model, DiskDir() as disk:
        with open(os.path.join(model, "config.json"), "w") as f:
            json.dump(DUMMY, f)
        flags = ("--load-format", "dummy", *FP32, "--ignore-eos")
        figures, results = harness.run(model, lines, *flags)
        assert figures["completed"] == 4 and figures["generation_tokens"] == 48, results
        base = harness.answers(results)
        assert harness.answers(harness.run(model, lines, *flags)[1]) == base
        assert harness.answers(harness.run(model, lines, *flags, "--workers", "3")[1]) == base
        on_disk = harness.run(model, lines, *flags, "--disk-dir", disk, *policy("w=0/0/100"))
        assert harness.answers(on_disk[1]) == base
        # Without the flag, that is no model.
        done = harness.sluice("run", "--model", model, "-i", os.devnull, "-o", os.devnull,
                              check=False)
        assert done.returncode == 2 and "no weights" in done.stderr, done.stderr


def test_what_stays_on_disk_is_said():
    lines = harness.mixed_requests(4)
    with DiskDir() as disk:
        for _ in range(2):  # made, then found
            figures, _ = harness.run(LLAMA, lines, *SMALL, "--disk-dir", disk, *policy("w=0/0/100 c=0/0/100"))
            kept = sum(os.path.getsize(path) for path in images(disk))
            assert figures["weight_image_bytes"] == kept, figures
            assert figures["peak_memory_bytes"]["disk"] > kept, figures


def test_random_weights_in_place_of_a_models_own():
    lines = harness.mixed_requests(4)
    own = harness.answers(harness.run(LLAMA, lines)[1])
    random = harness.answers(harness.run(LLAMA, lines, "--load-format", "dummy")[1])
    assert own.keys() == random.keys() and own != random


def test_workers_of_a_cluster_use_their_disk():
    lines = harness.mixed_requests(12)
    base = harness.answers(harness.run(LLAMA, lines, *SMALL)[1])
    with DiskDir() as disk, tempfile.TemporaryDirectory() as directory:
        source = os.path.join(directory, "in.jsonl")
        harness.write_lines(source, lines)
        trace = os.path.join(directory, "trace.json")
        with harness.Cluster(
                LLAMA, workers=2,
                coordinator_flags=(*SMALL, *policy("w=0/0/100"), *policy("c=0/50/50")),
                worker_flags=("--disk-dir", disk, "--disk-space", "1GiB")) as cluster:
            cluster.start_worker("spare", "--trace", trace)
            job = cluster.submit(source)["id"]
            assert cluster.wait_for_end(job)["status"] == "completed"
            assert harness.answers(cluster.results(job)) == base
            text = ""
            for worker in cluster.workers.values():
                with urllib.request.urlopen(worker.metrics_url) as reply:
                    text += reply.read().decode()

            def total(pattern):
                found = re.findall(rf"^{pattern} (\S+)$", text, re.M)
                assert found, (pattern, text)
                return sum(map(float, found))
            assert total(r'sluice_tier_bytes_total{.*wire="disk_read".*}') > 0
            assert total(r'sluice_runtime_seconds_total{.*activity="projection".*}') > 0
            assert total(r'sluice_runtime_seconds_total{.*activity="stall_weights".*}') >= 0
            assert total(r'sluice_placement_bytes{.*kind="weights".*tier="disk".*}') > 0
            assert total(r'sluice_placement_bytes{.*kind="kv".*tier="host".*}') > 0
            assert total(r'sluice_placement_bytes{.*kind="activations".*tier="host".*}') > 0
            assert total(r'sluice_memory_peak_bytes{.*tier="host".*}') > 0
        with open(trace) as f:
            assert "traceEvents" in json.load(f)


if __name__ == "__main__":
    harness.run_tests(sys.modules[__name__])
