"""Small seeded random models of every family, in the spellings that model repositories use.

Writes models/<name>/ (config.json and safetensors). Random weights say nothing about
quality; they are for exactness: every bias, norm and scale is drawn so that leaving it out
changes the logits. Called by make_golden.py; on its own it takes the names of models.
"""

import dataclasses
import json
import math
import pathlib
import shutil
import sys
import zlib

import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    GraniteConfig,
    LlamaConfig,
    MistralConfig,
    OPTConfig,
    Phi3Config,
    Qwen2Config,
    Qwen3Config,
    StableLmConfig,
    Starcoder2Config,
)

HERE = pathlib.Path(__file__).resolve().parent
VOCAB_SIZE = 256
LOGIT_SPREAD = 3.0


@dataclasses.dataclass(frozen=True)
class Spec:
    config: transformers.PreTrainedConfig
    dtype: torch.dtype = torch.float32  # of the stored weights
    old_spelling: bool = False  # config.json as transformers 4 wrote it
    rope_type_key: str = "rope_type"  # older still: "type"
    max_shard_size: str = "1GB"
    # Renames tensors in the file; some repositories were saved from the inner model.
    strip_prefix: str = ""
    # Llama 2's files carry these buffers; they are not weights and must be ignored.
    rotary_buffers: bool = False


def common(**overrides):
    return {"vocab_size": VOCAB_SIZE, "max_position_embeddings": 160, "bos_token_id": 1,
            "eos_token_id": 2, "pad_token_id": None, **overrides}


def opt(**overrides):
    return OPTConfig(**common(**{"pad_token_id": 1, "bos_token_id": 2, "dropout": 0.0,
                                 **overrides}))


def rope(theta, **scaling):
    return {"rope_type": "default", "rope_theta": theta, **scaling}


def specs():
    # Two rms_norm_eps are larger than any published one, so that a forgotten one shows.
    return {
        # --- llama
        "llama-base": Spec(LlamaConfig(**common(
            hidden_size=48, num_attention_heads=4, num_key_value_heads=2,
            num_hidden_layers=3, intermediate_size=72, rope_parameters=rope(10000.0),
            tie_word_embeddings=False, rms_norm_eps=1e-3)), old_spelling=True),
        # All heads together are wider than the hidden size; there is one KV head.
        "llama-mqa-head20": Spec(LlamaConfig(**common(
            hidden_size=40, num_attention_heads=4, num_key_value_heads=1, head_dim=20,
            num_hidden_layers=4, intermediate_size=56, rope_parameters=rope(10000.0),
            tie_word_embeddings=True)), dtype=torch.bfloat16, max_shard_size="60KB"),
        "llama-llama3-rope-biases": Spec(LlamaConfig(**common(
            hidden_size=48, num_attention_heads=6, num_key_value_heads=2,
            num_hidden_layers=5, intermediate_size=64, tie_word_embeddings=True,
            rope_parameters=rope(500.0, rope_type="llama3", factor=8.0,
                                 low_freq_factor=1.0, high_freq_factor=4.0,
                                 original_max_position_embeddings=32),
            attention_bias=True, mlp_bias=True)), dtype=torch.float16, old_spelling=True),
        "llama-linear-rope": Spec(LlamaConfig(**common(
            hidden_size=48, num_attention_heads=3, num_key_value_heads=3,
            num_hidden_layers=3, intermediate_size=64, tie_word_embeddings=False,
            rope_parameters=rope(100000.0, rope_type="linear", factor=2.5),
            rms_norm_eps=1e-6)), old_spelling=True, rope_type_key="type",
            rotary_buffers=True),
        # --- mistral
        "mistral-window": Spec(MistralConfig(**common(
            hidden_size=48, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
            num_hidden_layers=4, intermediate_size=64, rope_parameters=rope(10000.0),
            sliding_window=16, tie_word_embeddings=False)),
            dtype=torch.bfloat16, max_shard_size="80KB"),
        # All heads together are narrower than the hidden size.
        "mistral-head10": Spec(MistralConfig(**common(
            hidden_size=56, num_attention_heads=4, num_key_value_heads=1, head_dim=10,
            num_hidden_layers=3, intermediate_size=88, rope_parameters=rope(1000000.0),
            sliding_window=None, tie_word_embeddings=False)),
            dtype=torch.float16, old_spelling=True),
        # --- qwen2
        "qwen2-base": Spec(Qwen2Config(**common(
            hidden_size=56, num_attention_heads=4, num_key_value_heads=2,
            num_hidden_layers=3, intermediate_size=72, rope_parameters=rope(1000000.0),
            tie_word_embeddings=True, rms_norm_eps=2e-3))),
        "qwen2-yarn": Spec(Qwen2Config(**common(
            hidden_size=48, num_attention_heads=3, num_key_value_heads=1,
            num_hidden_layers=4, intermediate_size=64, tie_word_embeddings=False,
            rope_parameters=rope(10000.0, rope_type="yarn", factor=4.0,
                                 original_max_position_embeddings=64))),
            dtype=torch.bfloat16, old_spelling=True, rope_type_key="type"),
        # Layers 0 and 1 attend to everything, 2 to 4 to a window.
        "qwen2-window": Spec(Qwen2Config(**common(
            hidden_size=48, num_attention_heads=4, num_key_value_heads=4,
            num_hidden_layers=5, intermediate_size=56, rope_parameters=rope(10000.0),
            use_sliding_window=True, sliding_window=12, max_window_layers=2,
            tie_word_embeddings=True)), dtype=torch.float16, old_spelling=True),
        # --- qwen3: q and k are normed by head
        "qwen3-base": Spec(Qwen3Config(**common(
            hidden_size=48, num_attention_heads=3, num_key_value_heads=1, head_dim=20,
            num_hidden_layers=3, intermediate_size=72, rope_parameters=rope(1000000.0),
            tie_word_embeddings=True, rms_norm_eps=2e-3))),
        "qwen3-bias-window": Spec(Qwen3Config(**common(
            hidden_size=40, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
            num_hidden_layers=4, intermediate_size=56, rope_parameters=rope(10000.0),
            attention_bias=True, use_sliding_window=True, sliding_window=12,
            max_window_layers=2, tie_word_embeddings=False)), dtype=torch.bfloat16,
            max_shard_size="60KB"),
        "qwen3-yarn": Spec(Qwen3Config(**common(
            hidden_size=56, num_attention_heads=4, num_key_value_heads=4, head_dim=10,
            num_hidden_layers=3, intermediate_size=64, tie_word_embeddings=False,
            rope_parameters=rope(10000.0, rope_type="yarn", factor=4.0,
                                 original_max_position_embeddings=64))),
            dtype=torch.float16, old_spelling=True),
        # --- phi3: q, k and v are one tensor, gate and up another
        "phi3-base": Spec(Phi3Config(**common(
            hidden_size=48, num_attention_heads=4, num_key_value_heads=2,
            num_hidden_layers=3, intermediate_size=56, rope_parameters=rope(10000.0),
            tie_word_embeddings=False, original_max_position_embeddings=160))),
        "phi3-partial-window": Spec(Phi3Config(**common(
            hidden_size=60, num_attention_heads=3, num_key_value_heads=3,
            num_hidden_layers=4, intermediate_size=40, sliding_window=16,
            rope_parameters=rope(10000.0, partial_rotary_factor=0.6),
            tie_word_embeddings=True, original_max_position_embeddings=160)),
            dtype=torch.bfloat16, max_shard_size="60KB"),
        # Sequences of up to 120 positions have the short factors.
        "phi3-longrope": Spec(Phi3Config(**common(
            hidden_size=48, num_attention_heads=4, num_key_value_heads=4,
            num_hidden_layers=3, intermediate_size=64, tie_word_embeddings=False,
            original_max_position_embeddings=120,
            rope_parameters=rope(10000.0, rope_type="longrope",
                                 original_max_position_embeddings=120,
                                 short_factor=[1.0, 1.1, 1.2, 1.4, 1.7, 2.0],
                                 long_factor=[1.5, 2.5, 3.5, 5.0, 7.0, 9.0]))),
            dtype=torch.float16),
        # --- granite: factors of the embedding, the residual stream, q k and the logits
        "granite-base": Spec(GraniteConfig(**common(
            hidden_size=48, num_attention_heads=4, num_key_value_heads=2,
            num_hidden_layers=3, intermediate_size=72, rope_parameters=rope(10000.0),
            tie_word_embeddings=False, rms_norm_eps=1e-3, embedding_multiplier=3.5,
            logits_scaling=2.5, residual_multiplier=0.7, attention_multiplier=0.35))),
        "granite-biases": Spec(GraniteConfig(**common(
            hidden_size=40, num_attention_heads=5, num_key_value_heads=1,
            num_hidden_layers=4, intermediate_size=56, rope_parameters=rope(5000.0),
            tie_word_embeddings=False, attention_bias=True, mlp_bias=True,
            embedding_multiplier=0.8, logits_scaling=0.5, residual_multiplier=1.3,
            attention_multiplier=0.4)), dtype=torch.bfloat16, max_shard_size="60KB"),
        "granite-mqa": Spec(GraniteConfig(**common(
            hidden_size=54, num_attention_heads=3, num_key_value_heads=1,
            num_hidden_layers=3, intermediate_size=50, rope_parameters=rope(10000.0),
            tie_word_embeddings=True, embedding_multiplier=0.2, logits_scaling=8.0,
            residual_multiplier=1.22, attention_multiplier=0.25)), dtype=torch.float16,
            old_spelling=True),
        # --- starcoder2: LayerNorm and a plain MLP with rotary positions
        "starcoder2-base": Spec(Starcoder2Config(**common(
            hidden_size=48, num_attention_heads=4, num_key_value_heads=2,
            num_hidden_layers=3, intermediate_size=72, rope_parameters=rope(10000.0),
            tie_word_embeddings=True, norm_epsilon=1e-3))),
        "starcoder2-window": Spec(Starcoder2Config(**common(
            hidden_size=40, num_attention_heads=4, num_key_value_heads=1,
            num_hidden_layers=4, intermediate_size=100, rope_parameters=rope(100000.0),
            sliding_window=16, tie_word_embeddings=False)), dtype=torch.bfloat16,
            max_shard_size="60KB"),
        "starcoder2-no-bias": Spec(Starcoder2Config(**common(
            hidden_size=42, num_attention_heads=3, num_key_value_heads=3,
            num_hidden_layers=3, intermediate_size=64, rope_parameters=rope(10000.0),
            use_bias=False, tie_word_embeddings=True)), dtype=torch.float16,
            old_spelling=True),
        # --- stablelm: LayerNorm, a gated MLP, and a part of each head rotated
        "stablelm-base": Spec(StableLmConfig(**common(
            hidden_size=64, num_attention_heads=4, num_key_value_heads=2,
            num_hidden_layers=3, intermediate_size=72, layer_norm_eps=1e-3,
            rope_parameters=rope(10000.0, partial_rotary_factor=0.25),
            tie_word_embeddings=False))),
        "stablelm-bias": Spec(StableLmConfig(**common(
            hidden_size=60, num_attention_heads=3, num_key_value_heads=1,
            num_hidden_layers=4, intermediate_size=56, use_qkv_bias=True,
            rope_parameters=rope(10000.0, partial_rotary_factor=0.5),
            tie_word_embeddings=False)), dtype=torch.bfloat16, max_shard_size="60KB"),
        "stablelm-tied": Spec(StableLmConfig(**common(
            hidden_size=48, num_attention_heads=2, num_key_value_heads=2,
            num_hidden_layers=3, intermediate_size=64,
            rope_parameters=rope(10000.0, partial_rotary_factor=1.0),
            tie_word_embeddings=True)), dtype=torch.float16),
        # --- opt
        "opt-base": Spec(opt(
            hidden_size=45, num_attention_heads=3, num_hidden_layers=4, ffn_dim=100),
            dtype=torch.float16, old_spelling=True),
        # The model is like opt-350m: norms come after the blocks, and embeddings are narrower.
        "opt-post-norm": Spec(opt(
            hidden_size=48, num_attention_heads=4, num_hidden_layers=3, ffn_dim=96,
            do_layer_norm_before=False, word_embed_proj_dim=28),
            old_spelling=True, strip_prefix="model."),
        "opt-no-bias-gelu": Spec(opt(
            hidden_size=44, num_attention_heads=4, num_hidden_layers=6, ffn_dim=72,
            enable_bias=False, activation_function="gelu", tie_word_embeddings=False),
            dtype=torch.bfloat16, max_shard_size="80KB"),
        "opt-bare-norms": Spec(opt(
            hidden_size=36, num_attention_heads=2, num_hidden_layers=3, ffn_dim=64,
            word_embed_proj_dim=52, layer_norm_elementwise_affine=False,
            _remove_final_layer_norm=True)),
    }


def draw_weights(model, seed):
    """Draws every parameter so that activations keep their size and logits spread."""
    generator = torch.Generator().manual_seed(seed)
    normal = lambda p, std, mean=0.0: p.data.copy_(
        mean + std * torch.randn(p.shape, generator=generator))
    for name, p in model.named_parameters():
        if p.ndim == 1:
            # Norm weights around one; norm biases and linear biases around zero.
            is_norm_weight = "norm" in name and name.endswith("weight")
            normal(p, 0.25, 1.0 if is_norm_weight else 0.0)
        elif "embed_positions" in name:
            normal(p, 0.6)
        elif "embed_tokens" in name:
            normal(p, 1.0)
        else:
            # Sharper attention than a fresh model's, so that positions and windows matter.
            gain = 1.7 if "q_proj" in name or "k_proj" in name else 1.2
            normal(p, gain / math.sqrt(p.shape[1]))
    calibrate_head(model, generator)


@torch.no_grad()
def calibrate_head(model, generator):
    """Scales the head until the logits' standard deviation is about LOGIT_SPREAD.

    Iterated, because tied embeddings are the head and the input at once. The factors are
    rounded, so that a last bit of rounding on another machine does not change the weights.
    """
    head = model.get_output_embeddings().weight
    ids = torch.randint(3, VOCAB_SIZE, (8, 32), generator=generator)
    for _ in range(6):
        spread = model.eval()(input_ids=ids, use_cache=False).logits.std().item()
        head.mul_(round(LOGIT_SPREAD / spread, 1) or 0.1)


def old_config(config, spec, dtype):
    """The same facts under transformers 4's names."""
    del config["dtype"]
    config.pop("layer_types", None)  # derived from max_window_layers
    config["torch_dtype"] = dtype
    config["transformers_version"] = "4.40.0"
    if config.get("use_sliding_window") is False:
        # Published Qwen2 files name a window that this switch turns off.
        config.update(sliding_window=8, max_window_layers=1)
    parameters = config.pop("rope_parameters", None)
    if parameters is not None:
        config["rope_theta"] = parameters.pop("rope_theta")
        kind = parameters.pop("rope_type")
        config["rope_scaling"] = (
            None if kind == "default" else {**parameters, spec.rope_type_key: kind})
        derived = spec.config.hidden_size // spec.config.num_attention_heads
        if config.get("head_dim") == derived:
            del config["head_dim"]
    return config


def edit_tensors(folder, spec):
    path = folder / "model.safetensors"
    tensors = load_file(path)
    tensors = {k.removeprefix(spec.strip_prefix): v for k, v in tensors.items()}
    if spec.rotary_buffers:
        head_dim = spec.config.hidden_size // spec.config.num_attention_heads
        for layer in range(spec.config.num_hidden_layers):
            tensors[f"model.layers.{layer}.self_attn.rotary_emb.inv_freq"] = (
                10000.0 ** (-torch.arange(0, head_dim, 2) / head_dim))
    save_file(tensors, path, metadata={"format": "pt"})


def make_model(name, spec):
    folder = HERE / "models" / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    # zlib.crc32, because Python's hash of a string differs from run to run.
    seed = zlib.crc32(name.encode())
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(spec.config)
    draw_weights(model, seed)
    model.to(spec.dtype).save_pretrained(folder, max_shard_size=spec.max_shard_size)
    (folder / "generation_config.json").unlink(missing_ok=True)
    if spec.strip_prefix or spec.rotary_buffers:
        edit_tensors(folder, spec)
    if spec.old_spelling:
        path = folder / "config.json"
        config = json.loads(path.read_text())
        config = old_config(config, spec, str(spec.dtype).removeprefix("torch."))
        path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    for path in folder.iterdir():
        path.chmod(0o644)
    check(folder, model)
    size = sum(p.stat().st_size for p in folder.iterdir())
    print(f"model {name}: {size // 1024} KiB")


def check(folder, model):
    """transformers must read back, from the edited files, the model that was drawn."""
    loaded, info = AutoModelForCausalLM.from_pretrained(
        folder, dtype=model.dtype, output_loading_info=True)
    unexpected = [k for k in info["unexpected_keys"] if "inv_freq" not in k]
    if info["missing_keys"] or unexpected or info["mismatched_keys"]:
        raise RuntimeError(f"{folder.name}: {info}")
    for (name, a), (_, b) in zip(model.named_parameters(), loaded.named_parameters()):
        if not torch.equal(a, b):
            raise RuntimeError(f"{folder.name}: {name} differs after loading")
    for key in ("rope_parameters", "layer_types", "sliding_window", "head_dim"):
        want, got = getattr(model.config, key, None), getattr(loaded.config, key, None)
        if key == "rope_parameters" and got is not None:
            got.pop("type", None)  # the oldest spelling is kept beside the newest
        if want != got:
            raise RuntimeError(f"{folder.name}: {key} is {got}, not {want}")


def make_all(names=None):
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    for name, spec in specs().items():
        if not names or name in names:
            make_model(name, spec)


if __name__ == "__main__":
    make_all(sys.argv[1:])
