"""Workers without a copy of the model: exactly their tensors cross the wire, a transfer that was
cut goes on where it was, a corrupted piece is fetched again, and the cache keeps to its space."""

import json
import os
import re
import shutil
import socket
import struct
import subprocess
import sys
import threading
import urllib.request

import harness
from disk_faults_test import Disk, in_own_mounts
from offload_test import images, policy

PIECE = 1 << 20
LLAMA = os.path.join(harness.MODELS, "llama-kjv")
LAYERS = 8


def make_model(directory):
    """A model of 25 MB in one file; its path."""
    path = os.path.join(directory, "model")
    maker = os.path.join(harness.TESTS, "bench", "make_random_model.py")
    subprocess.run([sys.executable, maker, path, "--hidden", "256", "--layers", str(LAYERS),
                    "--heads", "4", "--mlp", "1024", "--vocab", "8192", "--positions", "512"],
                   check=True)
    return path


def without_weights(model, directory):
    path = os.path.join(directory, "head")
    shutil.copytree(model, path, ignore=shutil.ignore_patterns("*.safetensors*"))
    return path


def pieces_of(model, begin, end, num_layers):
    """The pieces that layers [begin, end) need, as {file: {piece}}, and their bytes."""
    needed = {}
    for name in sorted(os.listdir(model)):
        if not name.endswith(".safetensors"):
            continue
        path = os.path.join(model, name)
        with open(path, "rb") as f:
            [length] = struct.unpack("<Q", f.read(8))
            header = json.loads(f.read(length))
        extents = [(0, 8 + length)]
        for tensor, entry in header.items():
            layer = re.match(r"model\.layers\.(\d+)\.", tensor)
            wanted = (begin <= int(layer.group(1)) < end if layer else
                      begin == 0 if tensor == "model.embed_tokens.weight" else end == num_layers)
            if tensor != "__metadata__" and wanted:
                extents.append(tuple(8 + length + x for x in entry["data_offsets"]))
        needed[name] = {i for b, e in extents for i in range(b // PIECE, -(-e // PIECE))}
    return needed, bytes_of(model, needed)


def bytes_of(model, pieces):
    return sum(min(PIECE, os.path.getsize(os.path.join(model, name)) - i * PIECE)
               for name, numbers in pieces.items() for i in numbers)


def weight_bytes(model):
    return sum(os.path.getsize(os.path.join(model, f)) for f in os.listdir(model)
               if f.endswith(".safetensors"))


def scrape(url):
    """{name: sum over labels, name{source=x}: value}."""
    values = {}
    for line in urllib.request.urlopen(url).read().decode().splitlines():
        if line.startswith("#"):
            continue
        series, value = line.rsplit(" ", 1)
        name = series.split("{")[0]
        values[name] = values.get(name, 0) + float(value)
        source = re.search(r'source="(\w+)"', series)
        if source:
            values[f"{name}/{source.group(1)}"] = float(value)
    return values


def fetched(worker, source=None):
    name = "sluice_weights_fetched_bytes_total"
    return scrape(worker.metrics_url).get(f"{name}/{source}" if source else name, 0)


def states(cluster):
    return json.loads(cluster.sluice("cluster", "--json").stdout)["workers"]


class Cluster(harness.Cluster):
    """One whose test starts its programs, some of them without the model."""

    def __init__(self, model, workers, **kwargs):
        super().__init__(model, workers=workers, started=False, coordinator_flags=[
            "--served-model-name", "m", "--dtype", "float32"], **kwargs)
        self.cache = os.path.join(self.directory, "cache")

    def start_fetcher(self, name, *flags, cache=None):
        model, self.model = self.model, None
        try:
            self.start_worker(name, "--cache-dir", cache or self.cache, *flags)
        finally:
            self.model = model
        return self.workers[name]

    def layers(self, name):
        for worker in states(self):
            if worker["name"] == name:
                return worker["layer_begin"], worker["layer_end"]

    def answer(self, lines, seconds=120):
        path = os.path.join(self.directory, "in.jsonl")
        harness.write_lines(path, lines)
        job = self.submit(path)["id"]
        assert self.wait_for_end(job, seconds)["status"] == "completed"
        return harness.answers(self.results(job))

    def present(self):
        """The pieces that the cache's records count, over all models."""
        count = 0
        for folder, _, names in os.walk(self.cache):
            count += sum(os.path.getsize(os.path.join(folder, n)) // 8
                         for n in names if n.endswith(".present"))
        return count


class Proxy:
    """Stands before a port: passes bytes on until its allowance is used up, and then none, or
    breaks the connections."""

    def __init__(self, port):
        self.target, self.left, self.cut = port, 1 << 60, False
        self.changed = threading.Condition()
        self.sockets = []
        self.server = socket.create_server(("127.0.0.1", 0))
        self.port = self.server.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def allow(self, count, cut=False):
        with self.changed:
            self.left, self.cut = count, cut
            self.changed.notify_all()

    def close(self):
        self.server.close()
        for s in self.sockets:
            s.close()

    def _accept(self):
        while True:
            try:
                near, _ = self.server.accept()
                far = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                return
            self.sockets += [near, far]
            for a, b, counted in ((near, far, False), (far, near, True)):
                threading.Thread(target=self._pump, args=(a, b, counted), daemon=True).start()

    def _pump(self, source, to, counted):
        try:
            while data := source.recv(1 << 16):
                if counted:
                    with self.changed:
                        self.changed.wait_for(lambda: self.left > 0 or self.cut)
                        if self.left <= 0:
                            break
                        self.left -= len(data)
                to.sendall(data)
        except OSError:
            pass
        for s in (source, to):
            try:
                s.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


def test_only_its_layers_cross_the_wire(directory):
    model = make_model(directory)
    lines = harness.mixed_requests(12)
    expected = harness.answers(harness.run(model, lines, "--dtype", "float32")[1])
    with Cluster(model, workers=2) as cluster:
        cluster.start_coordinator()
        first = cluster.start_fetcher("w1")
        second = cluster.start_fetcher("w2", cache=os.path.join(cluster.directory, "other"))
        assert cluster.answer(lines) == expected
        for name, worker in (("w1", first), ("w2", second)):
            begin, end = cluster.layers(name)
            assert end - begin == LAYERS // 2
            _, needed = pieces_of(model, begin, end, LAYERS)
            assert fetched(worker) == fetched(worker, "coordinator") == needed
            assert needed < 0.65 * weight_bytes(model), (needed, weight_bytes(model))
        served = scrape(cluster.metrics_url)["sluice_weights_served_bytes_total"]
        assert served == fetched(first) + fetched(second)
        # A worker that comes again finds what it had.
        [(name, had)] = pieces_of(model, *cluster.layers("w1"), LAYERS)[0].items()
        cluster.workers.pop("w1").close()
        again = cluster.start_fetcher("w1")
        assert cluster.answer(lines) == expected
        now = pieces_of(model, *cluster.layers("w1"), LAYERS)[0][name]
        assert fetched(again) == bytes_of(model, {name: now - had})


def test_a_worker_with_an_empty_disk_joins_a_running_job(directory):
    model = make_model(directory)
    lines = harness.mixed_requests(max(60, 240 // harness.SLOW), max_tokens=64)
    expected = harness.answers(harness.run(model, lines, "--dtype", "float32")[1])
    with Cluster(model, workers=1) as cluster:
        cluster.start_coordinator()
        cluster.start_worker("has-it")
        path = os.path.join(cluster.directory, "in.jsonl")
        harness.write_lines(path, lines)
        job = cluster.submit(path)["id"]
        harness.wait_for(lambda: cluster.status(job)["request_counts"]["completed"] > 0,
                         "the first answer")
        fetcher = cluster.start_fetcher("fetcher")
        harness.wait_for(lambda: [w for w in states(cluster) if w["name"] == "fetcher"
                                  and w["state"] == "ready"], "the worker to join")
        _, needed = pieces_of(model, *cluster.layers("fetcher"), LAYERS)
        assert fetched(fetcher) == needed < 0.65 * weight_bytes(model)
        assert cluster.wait_for_end(job)["status"] == "completed"
        assert harness.answers(cluster.results(job)) == expected


def test_shards_and_peers(directory):
    lines = harness.mixed_requests(12)
    expected = harness.answers(harness.run(LLAMA, lines, "--dtype", "float32")[1])
    with Cluster(without_weights(LLAMA, directory), workers=2) as cluster:
        cluster.start_coordinator()
        fetcher = cluster.start_fetcher("fetcher")
        head, cluster.model = cluster.model, LLAMA
        cluster.start_worker("has-it")
        cluster.model = head
        assert cluster.answer(lines) == expected
        layers = json.load(open(os.path.join(LLAMA, "config.json")))["num_hidden_layers"]
        _, needed = pieces_of(LLAMA, *cluster.layers("fetcher"), layers)
        assert fetched(fetcher) == fetched(fetcher, "worker") == needed


def test_workers_share_a_cache(directory):
    model = make_model(directory)
    lines = harness.mixed_requests(12)
    expected = harness.answers(harness.run(model, lines, "--dtype", "float32")[1])
    with Cluster(model, workers=3) as cluster:
        cluster.start_coordinator()
        workers = [cluster.start_fetcher(f"w{i}") for i in range(3)]
        assert cluster.answer(lines) == expected
        # Each worker's pieces, of which those of two may have come twice.
        needed = [pieces_of(model, *cluster.layers(w), LAYERS)[0]["model.safetensors"]
                  for w in cluster.workers]
        assert set().union(*needed) == set(range(-(-weight_bytes(model) // PIECE)))
        assert weight_bytes(model) <= sum(fetched(w) for w in workers) \
            <= sum(len(n) for n in needed) * PIECE
        # Whoever dies, the others find his layers on the disk.
        before = [fetched(w) for w in workers]
        cluster.min_workers = 2
        cluster.workers.pop("w1").kill9()
        again = cluster.start_fetcher("again")
        assert cluster.answer(lines) == expected
        assert fetched(again) == 0
        assert [fetched(workers[0]), fetched(workers[2])] == [before[0], before[2]]


def through_a_proxy(cluster, model):
    """Starts a worker with the model whose peers reach it by a proxy; returns that."""
    port = harness.free_port()
    proxy = Proxy(port)
    head, cluster.model = cluster.model, model
    cluster.start_worker("has-it", "--port", str(port), "--advertise", f"127.0.0.1:{proxy.port}")
    cluster.model = head
    return proxy


def test_a_cut_transfer_goes_on_where_it_was(directory):
    model = make_model(directory)
    lines = harness.mixed_requests(12)
    expected = harness.answers(harness.run(model, lines, "--dtype", "float32")[1])
    with Cluster(without_weights(model, directory), workers=2) as cluster:
        cluster.start_coordinator()
        proxy = through_a_proxy(cluster, model)
        proxy.allow(5 * PIECE)
        fetcher = cluster.start_fetcher("fetcher")
        harness.wait_for(lambda: proxy.left <= 0 and cluster.present() > 0, "some pieces")
        fetcher.kill9()
        had = cluster.present()
        assert 0 < had <= 5, had
        proxy.allow(1 << 60)
        fetcher = cluster.start_fetcher("fetcher")
        assert cluster.answer(lines) == expected
        needed, total = pieces_of(model, *cluster.layers("fetcher"), LAYERS)
        count = sum(len(p) for p in needed.values())
        assert count - had == cluster.present() - had
        assert fetched(fetcher) == total - had * PIECE, (fetched(fetcher), total, had)
        proxy.close()


def test_a_worker_that_fetches_ends_when_it_is_told_to(directory):
    model = make_model(directory)
    with Cluster(without_weights(model, directory), workers=2) as cluster:
        cluster.start_coordinator()
        proxy = through_a_proxy(cluster, model)
        proxy.allow(3 * PIECE)
        cluster.start_fetcher("fetcher")
        harness.wait_for(lambda: proxy.left <= 0 and cluster.present() > 0, "some pieces")
        harness.wait_for(
            lambda: re.search(r"fetching weights: [1-9]\d? %", cluster.sluice("cluster").stdout),
            "the progress")
        cluster.workers.pop("fetcher").close()
        proxy.allow(0, cut=True)
        proxy.close()


def test_a_source_that_dies_midway(directory):
    model = make_model(directory)
    lines = harness.mixed_requests(12)
    expected = harness.answers(harness.run(model, lines, "--dtype", "float32")[1])
    with Cluster(without_weights(model, directory), workers=2) as cluster:
        cluster.start_coordinator()
        proxy = through_a_proxy(cluster, model)
        proxy.allow(4 * PIECE, cut=True)
        fetcher = cluster.start_fetcher("fetcher")
        harness.wait_for(lambda: "it is tried again" in fetcher.log(), "the loss of the source")
        proxy.allow(1 << 60)
        assert cluster.answer(lines) == expected
        _, total = pieces_of(model, *cluster.layers("fetcher"), LAYERS)
        assert fetched(fetcher) == total
        proxy.close()


def flip_every_piece(path):
    """Changes a byte in each piece of a file, behind the header."""
    with open(path, "r+b") as f:
        for begin in range(0, os.path.getsize(path), PIECE):
            f.seek(min(begin + PIECE // 2, os.path.getsize(path) - 1))
            byte = f.read(1)[0]
            f.seek(-1, os.SEEK_CUR)
            f.write(bytes([byte ^ 1]))


def test_a_corrupted_piece_comes_from_another_source(directory):
    model = make_model(directory)
    good = os.path.join(directory, "good")
    shutil.copytree(model, good)
    lines = harness.mixed_requests(12)
    expected = harness.answers(harness.run(good, lines, "--dtype", "float32")[1])
    with Cluster(model, workers=2) as cluster:
        cluster.start_coordinator()
        cluster.model = good
        cluster.start_worker("has-it")
        harness.wait_for(lambda: [w for w in states(cluster) if w["state"] == "spare"],
                         "the hashes")
        flip_every_piece(os.path.join(model, "model.safetensors"))
        fetcher = cluster.start_fetcher("fetcher")
        assert cluster.answer(lines) == expected
        _, total = pieces_of(good, *cluster.layers("fetcher"), LAYERS)
        assert fetched(fetcher, "coordinator") == 0
        assert fetched(fetcher, "worker") == total
        assert scrape(fetcher.metrics_url)["sluice_weights_refused_pieces_total"] >= 1
        assert "from the coordinator is corrupted" in fetcher.log()


def test_a_damaged_cache_is_mended(directory):
    model = make_model(directory)
    lines = harness.mixed_requests(12)
    expected = harness.answers(harness.run(model, lines, "--dtype", "float32")[1])
    with Cluster(model, workers=1) as cluster:
        cluster.start_coordinator()
        cluster.start_fetcher("fetcher")
        assert cluster.answer(lines) == expected
        cluster.workers.pop("fetcher").close()
        path = cached_file(cluster.cache)
        before = os.stat(path)
        with open(path, "r+b") as f:
            f.seek(7 * PIECE + 12345)
            byte = f.read(1)[0]
            f.seek(7 * PIECE + 12345)
            f.write(bytes([byte ^ 4]))
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        fetcher = cluster.start_fetcher("fetcher")
        assert cluster.answer(lines) == expected
        assert fetched(fetcher) == PIECE, fetched(fetcher)
        assert "piece 7 is damaged" in fetcher.log()


def cached_file(cache):
    [path] = [os.path.join(folder, "model.safetensors") for folder, _, names
              in os.walk(cache) if "model.safetensors" in names]
    return path


def join_a_removed_cache(model, lines, expected):
    """Two share a cache, which is removed, and a third one joins with it."""
    with Cluster(model, workers=2) as cluster:
        cluster.start_coordinator()
        for name in ("w1", "w2"):
            cluster.start_fetcher(name)
        assert cluster.answer(lines) == expected
        shutil.rmtree(cluster.cache)
        cluster.start_fetcher("w3")
        assert cluster.answer(lines) == expected
        cluster.workers.pop("w1").kill9()
        assert cluster.answer(lines) == expected
        cluster.start_fetcher("w4")
        cluster.workers.pop("w2").kill9()
        assert cluster.answer(lines) == expected


def lose_the_own_cache(model, lines, expected):
    """Of two, one's cache is removed, and then the other one dies."""
    with Cluster(model, workers=1) as cluster:
        cluster.start_coordinator()
        own = os.path.join(cluster.directory, "own")
        worker = cluster.start_fetcher("w1", cache=own)
        assert cluster.answer(lines) == expected
        had = fetched(worker)
        cluster.start_fetcher("w2")
        harness.wait_for(lambda: [w["state"] for w in states(cluster)] == ["ready"] * 2,
                         "both to work")
        shutil.rmtree(own)
        cluster.workers.pop("w2").kill9()
        assert cluster.answer(lines) == expected
        # All is there again, for its next start.
        assert fetched(worker) == had + weight_bytes(model)
        assert os.path.getsize(cached_file(own)) == weight_bytes(model)


def load_a_changed_cache(model, lines, expected):
    """One has all layers, gives half of them away, its files change, and it needs them again."""
    with Cluster(model, workers=1) as cluster:
        cluster.start_coordinator()
        worker = cluster.start_fetcher("w1")
        assert cluster.answer(lines) == expected
        had = fetched(worker)
        cluster.start_fetcher("w2", cache=os.path.join(cluster.directory, "other"))
        harness.wait_for(lambda: [w["state"] for w in states(cluster)] == ["ready"] * 2,
                         "both to work")
        flip_every_piece(cached_file(cluster.cache))
        cluster.workers.pop("w2").kill9()
        assert cluster.answer(lines) == expected
        assert fetched(worker) == had + weight_bytes(model)
        assert "is damaged; it is fetched again" in worker.log()


def test_a_changed_or_removed_cache_never_changes_answers(directory):
    model = make_model(directory)
    lines = harness.mixed_requests(12)
    expected = harness.answers(harness.run(model, lines, "--dtype", "float32")[1])
    for trial in (join_a_removed_cache, lose_the_own_cache, load_a_changed_cache):
        trial(model, lines, expected)


def test_images_on_disk_are_those_of_whole_files(directory):
    model = make_model(directory)
    lines = harness.mixed_requests(8)
    expected = harness.answers(harness.run(model, lines, "--dtype", "float32")[1])
    disk = os.path.join(directory, "disk")
    with Cluster(model, workers=1) as cluster:
        cluster.coordinator_flags += policy("w=0/0/100")
        cluster.start_coordinator()
        cluster.start_fetcher("fetcher", "--disk-dir", disk)
        assert cluster.answer(lines) == expected
        made = images(disk)
        assert made
        cluster.workers.pop("fetcher").close()
        cluster.start_worker("has-it", "--disk-dir", disk)
        assert cluster.answer(lines) == expected
        assert images(disk) == made


def add_tensors(path, tensors):
    """Adds {name: (dtype, shape, bytes)} to a file of weights."""
    with open(path, "rb") as f:
        [length] = struct.unpack("<Q", f.read(8))
        header, data = json.loads(f.read(length)), f.read()
    for name, (dtype, shape, more) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape,
                        "data_offsets": [len(data), len(data) + len(more)]}
        data += more
    text = json.dumps(header).encode()
    os.chmod(path, 0o644)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


def with_stale_copies(directory):
    """A copy of LLAMA in which other shards have zeros for two tensors of each shard; its path."""
    path = os.path.join(directory, "stale")
    shutil.copytree(LLAMA, path)
    with open(os.path.join(path, "model.safetensors.index.json")) as f:
        home = json.load(f)["weight_map"]
    copies = {}
    shards = sorted(set(home.values()))
    for shard in shards:
        with open(os.path.join(path, shard), "rb") as f:
            [length] = struct.unpack("<Q", f.read(8))
            header = json.loads(f.read(length))
        for name in sorted(t for t in home if home[t] == shard and "proj" in t)[:2]:
            begin, end = header[name]["data_offsets"]
            for other in set(shards) - {shard}:
                copies.setdefault(other, {})[name] = (
                    header[name]["dtype"], header[name]["shape"], bytes(end - begin))
    for shard, tensors in copies.items():
        add_tensors(os.path.join(path, shard), tensors)
    return path


def test_copies_that_the_index_does_not_name_do_not_count(directory):
    lines = harness.mixed_requests(8)
    expected = harness.answers(harness.run(LLAMA, lines, "--dtype", "float32")[1])
    model = with_stale_copies(directory)
    _, results = harness.run(model, lines, "--dtype", "float32")
    assert harness.answers(results) == expected
    # From the coordinator, and from a worker where the coordinator has no weights and no index.
    for head in model, without_weights(model, directory):
        with Cluster(head, workers=2) as cluster:
            cluster.start_coordinator()
            cluster.model = model
            if head == model:
                cluster.start_fetcher("other")
            else:
                cluster.start_worker("has-it")
            fetcher = cluster.start_fetcher("fetcher")
            assert cluster.answer(lines) == expected
            assert fetched(fetcher) > 0


def test_missing_biases_are_zero(directory):
    lines = harness.mixed_requests(8)
    model = os.path.join(directory, "biased")
    shutil.copytree(LLAMA, model)
    with open(os.path.join(model, "config.json")) as f:
        config = {**json.load(f), "attention_bias": True}
    os.chmod(os.path.join(model, "config.json"), 0o644)
    with open(os.path.join(model, "config.json"), "w") as f:
        json.dump(config, f)
    layers = config["num_hidden_layers"]
    shard = os.path.join(model, sorted(f for f in os.listdir(model) if f.endswith("tensors"))[-1])
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    width = config["hidden_size"] // heads

    def biases(letter, count):
        ones = struct.pack("<f", 0.125) * count if letter != "o" else bytes(4 * count)
        return {f"model.layers.{i}.self_attn.{letter}_proj.bias": ("F32", [count], ones)
                for i in range(layers)}

    add_tensors(shard, {**biases("q", heads * width), **biases("k", kv_heads * width),
                        **biases("v", kv_heads * width)})
    _, results = harness.run(model, lines, "--dtype", "float32")
    expected = harness.answers(results)
    with Cluster(model, workers=2) as cluster:
        cluster.start_coordinator()
        for name in "one", "two":
            cluster.start_fetcher(name, cache=os.path.join(directory, name))
        assert cluster.answer(lines) == expected
    add_tensors(shard, biases("o", config["hidden_size"]))
    _, results = harness.run(model, lines, "--dtype", "float32")
    assert harness.answers(results) == expected


def why_not(cluster):
    return harness.wait_for(
        lambda: [w["detail"] for w in states(cluster) if w["state"] == "failed"], "a failure")[0]


def test_the_cache_keeps_to_its_space(directory):
    model = make_model(directory)
    lines = harness.mixed_requests(8)
    expected = harness.answers(harness.run(model, lines, "--dtype", "float32")[1])
    other = harness.answers(harness.run(LLAMA, lines, "--dtype", "float32")[1])
    with Cluster(model, workers=1) as cluster:
        cluster.start_coordinator()
        cluster.start_fetcher("small", "--cache-space", "8MiB")
        detail = why_not(cluster)
        assert "the weights of this stage take" in detail and "--cache-space" in detail, detail
        cluster.workers.pop("small").close()
        cluster.start_fetcher("fetcher", "--cache-space", "30MiB")
        assert cluster.answer(lines) == expected
        # The next model takes the place of this one.
        cluster.workers.pop("fetcher").close()
        cluster.coordinator.close()
        shutil.rmtree(os.path.join(cluster.directory, "state"))
        cluster.model = LLAMA
        cluster.start_coordinator()
        cluster.start_fetcher("fetcher", "--cache-space",
                              str(weight_bytes(LLAMA) + 4 * PIECE))
        assert cluster.answer(lines) == other
        models = [e for e in os.scandir(cluster.cache) if e.is_dir()]
        assert len(models) == 1, models


def test_a_full_disk_says_so(directory):
    model = make_model(directory)
    with Disk("72m") as disk, Cluster(model, workers=1) as cluster:
        cluster.start_coordinator()
        cluster.start_fetcher("fetcher", "--cache-space", "1GiB", cache=disk.path)
        detail = why_not(cluster)
        assert "no room for" in detail and disk.path in detail, detail
        assert "free, of which 64.0 MiB must stay free" in detail, detail
        disk.grow("256m")
        cluster.workers.pop("fetcher").close()
        cluster.start_fetcher("fetcher", "--cache-space", "1GiB", cache=disk.path)
        assert cluster.answer(harness.mixed_requests(4))


def test_flags_for_one_kind_of_worker(directory):
    def fails(*flags, **kwargs):
        done = subprocess.run([os.path.join(harness.BIN, "sluice-worker"), "--no-profile",
                               "--host-memory", "512MiB", "--port", "0", "--metrics-port", "0",
                               *flags], capture_output=True, text=True, timeout=60, **kwargs)
        assert done.returncode != 0, done
        return done.stderr
    assert "for workers without --model" in fails("--model", LLAMA, "--cache-space", "1GiB")
    assert "--cache-space" in fails("--cache-space", "plenty")
    blocked = os.path.join(directory, "file")
    with open(blocked, "w"):
        pass
    assert "--cache-dir: can't make" in fails("--cache-dir", os.path.join(blocked, "cache"))
    nowhere = {k: v for k, v in os.environ.items() if k not in ("HOME", "XDG_CACHE_HOME")}
    assert "needs a --cache-dir" in fails(env=nowhere)


def test_random_weights_need_no_files(directory):
    model = make_model(directory)
    lines = harness.mixed_requests(8)
    expected = harness.answers(
        harness.run(model, lines, "--dtype", "float32", "--load-format", "dummy")[1])
    with Cluster(without_weights(model, directory), workers=2) as cluster:
        cluster.coordinator_flags += ["--load-format", "dummy"]
        cluster.start_coordinator()
        fetcher = cluster.start_fetcher("w1")
        cluster.start_fetcher("w2", "--load-format", "dummy")
        assert cluster.answer(lines) == expected
        assert fetched(fetcher) == 0


harness.give_directories(globals())

if __name__ == "__main__":
    in_own_mounts()
    harness.run_tests(sys.modules[__name__])
