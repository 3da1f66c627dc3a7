"""GGUF files: a model made of the trained llama, as float32 and in 8 bits, in one file and in
parts, alone and over workers of which one has no copy."""

import json
import os
import struct
import sys

import harness

LLAMA = os.path.join(harness.MODELS, "llama-kjv")
F32, Q8_0 = 0, 8
ALIGNMENT = 32


def text(value):
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def value_of(value):
    """The type and the bytes of a value."""
    if isinstance(value, bool):
        return 7, struct.pack("<B", value)
    if isinstance(value, int):
        return 4, struct.pack("<I", value)
    if isinstance(value, float):
        return 6, struct.pack("<f", value)
    if isinstance(value, str):
        return 8, text(value)
    kind = value_of(value[0])[0]
    return 9, struct.pack("<IQ", kind, len(value)) + b"".join(value_of(v)[1] for v in value)


def write_gguf(path, metadata, tensors):
    """tensors: {name: (shape, type, bytes)}, the outermost dimension first."""
    header = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    for key, value in metadata.items():
        kind, data = value_of(value)
        header += text(key) + struct.pack("<I", kind) + data
    offset, body = 0, []
    for name, (shape, kind, data) in tensors.items():
        header += text(name) + struct.pack("<I", len(shape))
        header += b"".join(struct.pack("<Q", n) for n in reversed(shape))
        header += struct.pack("<IQ", kind, offset)
        body.append(data + bytes(-len(data) % ALIGNMENT))
        offset += len(body[-1])
    with open(path, "wb") as f:
        f.write(header + bytes(-len(header) % ALIGNMENT) + b"".join(body))


def tensors_of(model):
    """{name: (shape, float32 bytes)} of a directory's safetensors."""
    found = {}
    for name in sorted(os.listdir(model)):
        if name.endswith(".safetensors"):
            with open(os.path.join(model, name), "rb") as f:
                data = f.read()
            [length] = struct.unpack_from("<Q", data)
            for tensor, entry in json.loads(data[8:8 + length]).items():
                if tensor != "__metadata__":
                    assert entry["dtype"] == "F32"
                    begin, end = entry["data_offsets"]
                    found[tensor] = (entry["shape"], data[8 + length + begin:8 + length + end])
    return found


def quantized(data):
    """Float32 as blocks of Q8_0."""
    out = []
    for block in struct.iter_unpack("<32f", data):
        scale = max(map(abs, block)) / 127
        codes = [round(x / scale) if scale else 0 for x in block]
        out.append(struct.pack("<e32b", scale, *codes))
    return b"".join(out)


NAMES = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
         "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
         "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
         "mlp.down_proj": "ffn_down"}


def name_of(tensor):
    """llama.cpp's name."""
    if tensor == "model.embed_tokens.weight":
        return "token_embd.weight"
    if tensor == "model.norm.weight":
        return "output_norm.weight"
    _, _, layer, rest = tensor.split(".", 3)
    return f"blk.{layer}.{NAMES[rest.removesuffix('.weight')]}.weight"


def side_by_side(shape, data, head):
    """Rows of a head with its halves in turn, as llama.cpp has them."""
    row = len(data) // shape[0]
    order = [h * head + half * head // 2 + i for h in range(shape[0] // head)
             for i in range(head // 2) for half in (0, 1)]
    return b"".join(data[r * row:(r + 1) * row] for r in order)


def as_gguf(kind):
    """The trained llama's metadata and tensors."""
    with open(os.path.join(LLAMA, "config.json")) as f:
        config = json.load(f)
    with open(os.path.join(LLAMA, "tokenizer.json")) as f:
        tokenizer = json.load(f)
    with open(os.path.join(LLAMA, "chat_template.jinja")) as f:
        template = f.read()
    vocabulary = dict(tokenizer["model"]["vocab"])
    special = {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    tokens = [t for t, _ in sorted({**vocabulary, **special}.items(), key=lambda item: item[1])]
    merges = [m if isinstance(m, str) else " ".join(m) for m in tokenizer["model"]["merges"]]
    metadata = {
        "general.architecture": "llama", "llama.block_count": config["num_hidden_layers"],
        "llama.context_length": config["max_position_embeddings"],
        "llama.embedding_length": config["hidden_size"],
        "llama.feed_forward_length": config["intermediate_size"],
        "llama.attention.head_count": config["num_attention_heads"],
        "llama.attention.head_count_kv": config["num_key_value_heads"],
        "llama.attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "llama.rope.freq_base": config["rope_parameters"]["rope_theta"],
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "llama-bpe",
        "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.token_type": [3 if t in special else 1 for t in tokens],
        "tokenizer.ggml.bos_token_id": config["bos_token_id"],
        "tokenizer.ggml.eos_token_id": config["eos_token_id"],
        "tokenizer.chat_template": template,
    }
    tensors = {}
    for tensor, (shape, data) in tensors_of(LLAMA).items():
        name = name_of(tensor)
        if ".attn_q." in name or ".attn_k." in name:
            data = side_by_side(shape, data, config["head_dim"])
        matrix = len(shape) == 2
        tensors[name] = (shape, kind if matrix else F32,
                         quantized(data) if matrix and kind == Q8_0 else data)
    return metadata, tensors


def write_model(directory, kind, parts=1):
    """Writes the files; returns the path of the last one."""
    metadata, tensors = as_gguf(kind)
    if parts == 1:
        path = os.path.join(directory, "model.gguf")
        write_gguf(path, metadata, tensors)
        return path
    names = list(tensors)
    for i in range(parts):
        own = {"split.no": i, "split.count": parts, "split.tensors.count": len(names)}
        path = os.path.join(directory, f"model-{i + 1:05}-of-{parts:05}.gguf")
        write_gguf(path, {**(metadata if i == 0 else {}), **own},
                   {name: tensors[name] for name in names[i::parts]})
    return path


def requests():
    chat = {"messages": [{"role": "user", "content": "Blessed are the poor"}], "max_tokens": 12,
            "temperature": 0}
    return [*harness.mixed_requests(12),
            json.dumps({"custom_id": "chat", "method": "POST", "url": "/v1/chat/completions", "body": chat})]


def test_float32_answers_as_the_directory_does(directory):
    expected = harness.answers(harness.run(LLAMA, requests(), "--dtype", "float32")[1])
    assert not any("error" in str(key) for key in expected)
    path = write_model(directory, F32)
    assert harness.answers(harness.run(path, requests(), "--dtype", "float32")[1]) == expected
    last = write_model(directory, F32, parts=3)
    assert harness.answers(harness.run(last, requests(), "--dtype", "float32")[1]) == expected


def test_a_worker_without_a_copy_fetches_it(directory):
    path = write_model(directory, Q8_0)
    expected = harness.answers(harness.run(path, requests(), "--dtype", "float32")[1])
    parts = os.path.join(directory, "parts")
    os.mkdir(parts)
    for model in (path, write_model(parts, Q8_0, parts=2)):
        with harness.Cluster(model, workers=2, started=False,
                             coordinator_flags=("--dtype", "float32")) as cluster:
            cluster.start_coordinator()
            cluster.start_worker("has-it")
            cluster.model = None
            cluster.start_worker("fetcher", "--cache-dir", os.path.join(cluster.directory, "cache"))
            source = os.path.join(cluster.directory, "in.jsonl")
            harness.write_lines(source, requests())
            job = cluster.submit(source)["id"]
            assert cluster.wait_for_end(job)["status"] == "completed"
            assert harness.answers(cluster.results(job)) == expected


def test_models_tells_what_a_file_is(directory):
    path = write_model(directory, Q8_0)
    told = json.loads(harness.sluice("models", path, "--json").stdout)
    [model] = told["models"] if "models" in told else [told]
    assert model["model_type"] == "llama" and model["runs"], model
    assert set(model["weight_bytes"]) == {"F32", "Q8_0"}, model
    assert model["tokens_per_second"] is None and "sluice profile" in model["no_speed"], model
    shown = harness.sluice("models", path).stdout
    assert "llama" in shown and "Q8_0" in shown and "speed        unknown" in shown, shown


def test_a_broken_file_is_refused(directory):
    path = write_model(directory, Q8_0)
    with open(path, "r+b") as f:
        f.truncate(os.path.getsize(path) - 1000)
    done = harness.sluice("run", "--model", path, "-i", "/dev/null", "-o", "-", check=False)
    assert done.returncode != 0 and "the file was cut" in done.stderr, done.stderr
    assert path in done.stderr, done.stderr


if __name__ == "__main__":
    harness.give_directories(globals())
    harness.run_tests(sys.modules[__name__])
