"""Small seeded random models of the families with experts, as make_models.py makes the others.

Writes models/<name>/. Called by make_golden.py; on its own it takes the names of models.
"""

import json
import sys

import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    Ernie4_5_MoeConfig,
    Glm4MoeConfig,
    GptOssConfig,
    GraniteMoeConfig,
    GraniteMoeSharedConfig,
    MiniMaxM2Config,
    MixtralConfig,
    OlmoeConfig,
    Qwen2MoeConfig,
    Qwen3MoeConfig,
)
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from make_models import HERE, Spec, common, make_model, rope

# Each config has one stored as float32, one as bfloat16 in shards and one as float16.
SHARDS = {"dtype": torch.bfloat16, "max_shard_size": "80KB"}
HALF = {"dtype": torch.float16}


def yarn(theta, factor):
    return rope(theta, rope_type="yarn", factor=factor, beta_fast=32.0, beta_slow=1.0, truncate=False,
                original_max_position_embeddings=160 // int(factor))


def specs():
    return {
        # --- mixtral: softmax, then the best experts, whose weights add up to 1
        "mixtral-base": Spec(MixtralConfig(**common(
            hidden_size=48, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=3,
            intermediate_size=40, num_local_experts=5, num_experts_per_tok=2, rms_norm_eps=1e-3,
            rope_parameters=rope(10000.0), sliding_window=None)), old_spelling=True),
        "mixtral-window": Spec(MixtralConfig(**common(
            hidden_size=40, num_attention_heads=4, num_key_value_heads=1, head_dim=12, num_hidden_layers=4,
            intermediate_size=28, num_local_experts=4, num_experts_per_tok=1,
            rope_parameters=rope(1000000.0), sliding_window=16)), **SHARDS),
        "mixtral-all-but-one": Spec(MixtralConfig(**common(
            hidden_size=42, num_attention_heads=3, num_key_value_heads=3, num_hidden_layers=3,
            intermediate_size=30, num_local_experts=4, num_experts_per_tok=3,
            rope_parameters=rope(1000000.0), tie_word_embeddings=True)), **HALF),
        # --- qwen2_moe: a shared expert with a gate; some layers have no experts
        "qwen2-moe-base": Spec(Qwen2MoeConfig(**common(
            hidden_size=56, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=3,
            intermediate_size=72, moe_intermediate_size=24, shared_expert_intermediate_size=40,
            num_experts=6, num_experts_per_tok=2, rms_norm_eps=2e-3, rope_parameters=rope(1000000.0)))),
        "qwen2-moe-some-layers": Spec(Qwen2MoeConfig(**common(
            hidden_size=40, num_attention_heads=4, num_key_value_heads=1, num_hidden_layers=6,
            intermediate_size=52, moe_intermediate_size=20, shared_expert_intermediate_size=28,
            num_experts=4, num_experts_per_tok=3, norm_topk_prob=True, decoder_sparse_step=2,
            mlp_only_layers=[3], qkv_bias=False, rope_parameters=rope(10000.0),
            tie_word_embeddings=True)), **SHARDS),
        "qwen2-moe-window": Spec(Qwen2MoeConfig(**common(
            hidden_size=48, num_attention_heads=4, num_key_value_heads=4, num_hidden_layers=4,
            intermediate_size=56, moe_intermediate_size=20, shared_expert_intermediate_size=20,
            num_experts=5, num_experts_per_tok=2, use_sliding_window=True, sliding_window=12,
            max_window_layers=3, rope_parameters=rope(10000.0))), old_spelling=True, **HALF),
        # --- qwen3_moe: qwen3's attention
        "qwen3-moe-base": Spec(Qwen3MoeConfig(**common(
            hidden_size=48, num_attention_heads=4, num_key_value_heads=2, head_dim=20, num_hidden_layers=3,
            intermediate_size=72, moe_intermediate_size=28, num_experts=6, num_experts_per_tok=3,
            norm_topk_prob=True, rms_norm_eps=2e-3, rope_parameters=rope(1000000.0)))),
        "qwen3-moe-some-layers": Spec(Qwen3MoeConfig(**common(
            hidden_size=40, num_attention_heads=4, num_key_value_heads=1, head_dim=16, num_hidden_layers=5,
            intermediate_size=52, moe_intermediate_size=20, num_experts=4, num_experts_per_tok=2,
            attention_bias=True, mlp_only_layers=[0, 3], rope_parameters=rope(10000.0))), **SHARDS),
        "qwen3-moe-window": Spec(Qwen3MoeConfig(**common(
            hidden_size=54, num_attention_heads=3, num_key_value_heads=3, head_dim=16, num_hidden_layers=3,
            intermediate_size=40, moe_intermediate_size=22, num_experts=7, num_experts_per_tok=1,
            use_sliding_window=True, sliding_window=12, tie_word_embeddings=True,
            rope_parameters=rope(10000.0))), old_spelling=True, **HALF),
        # --- olmoe: q and k of all heads are normed together
        "olmoe-base": Spec(OlmoeConfig(**common(
            hidden_size=48, num_attention_heads=4, num_key_value_heads=4, num_hidden_layers=3,
            intermediate_size=32, num_experts=6, num_experts_per_tok=3, rms_norm_eps=1e-3,
            rope_parameters=rope(10000.0))), old_spelling=True),
        "olmoe-normed": Spec(OlmoeConfig(**common(
            hidden_size=40, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=4,
            intermediate_size=20, num_experts=5, num_experts_per_tok=2, norm_topk_prob=True,
            rope_parameters=rope(500000.0))), **SHARDS),
        "olmoe-bias": Spec(OlmoeConfig(**common(
            hidden_size=54, num_attention_heads=3, num_key_value_heads=1, num_hidden_layers=3,
            intermediate_size=26, num_experts=4, num_experts_per_tok=2, attention_bias=True,
            tie_word_embeddings=True, rope_parameters=rope(10000.0))), **HALF),
        # --- granitemoe: a layer's experts are one tensor, gate before up; granite's factors
        "granitemoe-base": Spec(GraniteMoeConfig(**common(
            hidden_size=48, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=3,
            intermediate_size=36, num_local_experts=5, num_experts_per_tok=2, rms_norm_eps=1e-3,
            rope_parameters=rope(10000.0), embedding_multiplier=3.5, logits_scaling=2.5,
            residual_multiplier=0.7, attention_multiplier=0.35)), old_spelling=True),
        "granitemoe-bias": Spec(GraniteMoeConfig(**common(
            hidden_size=40, num_attention_heads=5, num_key_value_heads=1, num_hidden_layers=4,
            intermediate_size=20, num_local_experts=4, num_experts_per_tok=3, attention_bias=True,
            rope_parameters=rope(5000.0), embedding_multiplier=0.8, logits_scaling=0.5,
            residual_multiplier=1.3, attention_multiplier=0.4)), **SHARDS),
        "granitemoe-tied": Spec(GraniteMoeConfig(**common(
            hidden_size=54, num_attention_heads=3, num_key_value_heads=3, num_hidden_layers=3,
            intermediate_size=22, num_local_experts=7, num_experts_per_tok=1, tie_word_embeddings=True,
            rope_parameters=rope(10000.0), embedding_multiplier=0.2, logits_scaling=8.0,
            residual_multiplier=1.22, attention_multiplier=0.25)), **HALF),
        "granitemoe-shared": Spec(GraniteMoeSharedConfig(**common(
            hidden_size=48, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=3,
            intermediate_size=28, num_local_experts=6, num_experts_per_tok=3, shared_intermediate_size=20,
            rope_parameters=rope(10000.0), embedding_multiplier=2.0, logits_scaling=3.0,
            residual_multiplier=0.5, attention_multiplier=0.3))),
        # --- gpt_oss: sinks, a clamped activation, biases of router and experts, windows by turns
        "gpt-oss-base": Spec(GptOssConfig(**common(
            hidden_size=48, num_attention_heads=4, num_key_value_heads=2, head_dim=16, num_hidden_layers=4,
            intermediate_size=36, num_local_experts=5, num_experts_per_tok=2, sliding_window=16,
            rms_norm_eps=1e-3, swiglu_limit=1.5, swiglu_alpha=1.3, rope_parameters=yarn(150000.0, 4.0)))),
        "gpt-oss-types": Spec(GptOssConfig(**common(
            hidden_size=40, num_attention_heads=4, num_key_value_heads=1, head_dim=12, num_hidden_layers=3,
            intermediate_size=28, num_local_experts=4, num_experts_per_tok=3, sliding_window=12,
            attention_bias=False, layer_types=["full_attention", "sliding_attention", "full_attention"],
            rope_parameters=rope(10000.0))), **SHARDS),
        # The experts are MXFP4, as those of the published models.
        "gpt-oss-mxfp4": Spec(GptOssConfig(**common(
            hidden_size=64, num_attention_heads=4, num_key_value_heads=4, head_dim=10, num_hidden_layers=3,
            intermediate_size=32, num_local_experts=6, num_experts_per_tok=2, sliding_window=20,
            rope_parameters=yarn(150000.0, 2.0))), dtype=torch.bfloat16,
            old_spelling=True),
        # --- glm4_moe: sigmoid, a bias that only chooses, groups of experts, a shared expert
        "glm4-moe-base": Spec(Glm4MoeConfig(**common(
            hidden_size=48, num_attention_heads=4, num_key_value_heads=2, head_dim=16, num_hidden_layers=3,
            intermediate_size=56, moe_intermediate_size=24, n_routed_experts=6, n_shared_experts=1,
            num_experts_per_tok=3, first_k_dense_replace=1, routed_scaling_factor=2.5, use_qk_norm=True,
            attention_bias=True, rms_norm_eps=1e-3,
            rope_parameters=rope(1000000.0, partial_rotary_factor=0.5))), old_spelling=True),
        "glm4-moe-groups": Spec(Glm4MoeConfig(**common(
            hidden_size=40, num_attention_heads=4, num_key_value_heads=1, head_dim=12, num_hidden_layers=3,
            intermediate_size=52, moe_intermediate_size=20, n_routed_experts=8, n_shared_experts=2, n_group=4,
            topk_group=2, num_experts_per_tok=3, first_k_dense_replace=0,
            rope_parameters=rope(10000.0, partial_rotary_factor=0.5))), **SHARDS),
        "glm4-moe-unnormed": Spec(Glm4MoeConfig(**common(
            hidden_size=54, num_attention_heads=3, num_key_value_heads=3, head_dim=20, num_hidden_layers=4,
            intermediate_size=40, moe_intermediate_size=18, n_routed_experts=5, n_shared_experts=1,
            num_experts_per_tok=2, first_k_dense_replace=2, norm_topk_prob=False, tie_word_embeddings=True,
            rope_parameters=rope(10000.0, partial_rotary_factor=0.3))), **HALF),
        # --- ernie4_5_moe: softmax, a bias that only chooses, pairs of neighbours
        "ernie45-moe-base": Spec(Ernie4_5_MoeConfig(**common(
            hidden_size=48, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=3,
            intermediate_size=56, moe_intermediate_size=24, moe_num_experts=6, moe_k=2,
            moe_num_shared_experts=2, rms_norm_eps=1e-3, tie_word_embeddings=True,
            rope_parameters=rope(500000.0)))),
        "ernie45-moe-some-layers": Spec(Ernie4_5_MoeConfig(**common(
            hidden_size=40, num_attention_heads=4, num_key_value_heads=1, num_hidden_layers=6,
            intermediate_size=52, moe_intermediate_size=20, moe_num_experts=4, moe_k=3,
            moe_num_shared_experts=1, moe_layer_start_index=1, moe_layer_end_index=4, moe_layer_interval=2,
            tie_word_embeddings=False, rope_parameters=rope(10000.0))), **SHARDS),
        "ernie45-moe-unshared": Spec(Ernie4_5_MoeConfig(**common(
            hidden_size=54, num_attention_heads=3, num_key_value_heads=3, num_hidden_layers=3,
            intermediate_size=40, moe_intermediate_size=18, moe_num_experts=5, moe_k=2,
            moe_num_shared_experts=0, moe_norm_min=0.5, tie_word_embeddings=True,
            rope_parameters=rope(10000.0))), old_spelling=True, **HALF),
        # --- minimax_m2: sigmoid, a bias that only chooses, norms of all heads, a part of each rotated
        "minimax-m2-base": Spec(MiniMaxM2Config(**common(
            hidden_size=48, num_attention_heads=4, num_key_value_heads=2, head_dim=16, num_hidden_layers=3,
            intermediate_size=28, num_local_experts=6, num_experts_per_tok=3, rms_norm_eps=1e-3,
            rope_parameters=rope(5000000.0, partial_rotary_factor=0.5)))),
        "minimax-m2-shards": Spec(MiniMaxM2Config(**common(
            hidden_size=40, num_attention_heads=4, num_key_value_heads=1, head_dim=12, num_hidden_layers=4,
            intermediate_size=20, num_local_experts=5, num_experts_per_tok=2,
            rope_parameters=rope(10000.0, partial_rotary_factor=0.34))), **SHARDS),
        "minimax-m2-tied": Spec(MiniMaxM2Config(**common(
            hidden_size=54, num_attention_heads=3, num_key_value_heads=3, head_dim=20, num_hidden_layers=3,
            intermediate_size=22, num_local_experts=4, num_experts_per_tok=1, tie_word_embeddings=True,
            rope_parameters=rope(10000.0, partial_rotary_factor=1.0))), old_spelling=True, **HALF),
    }


# The numbers of E2M1, by code.
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def mxfp4(weight):
    """(blocks, scales) of [experts, outputs, inputs], as gpt_oss has them."""
    groups = weight.float().unflatten(-1, (-1, 32))
    exponent = torch.floor(torch.log2(groups.abs().amax(-1))) - 2
    scaled = groups / torch.exp2(exponent).unsqueeze(-1)
    codes = (scaled.abs().unsqueeze(-1) - E2M1).abs().argmin(-1) + 8 * (scaled < 0)
    blocks = (codes[..., ::2] | codes[..., 1::2] << 4).to(torch.uint8)
    return blocks, (exponent + 127).to(torch.uint8)


def quantize_experts(name):
    """Stores a gpt_oss model's experts as MXFP4, [outputs, inputs]."""
    folder = HERE / "models" / name
    path = folder / "model.safetensors"
    tensors = load_file(path)
    for key in [k for k in tensors if k.endswith(("gate_up_proj", "down_proj"))]:
        blocks, scales = mxfp4(tensors.pop(key).transpose(1, 2))
        tensors[f"{key}_blocks"], tensors[f"{key}_scales"] = blocks, scales
    save_file(tensors, path, metadata={"format": "pt"})
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config["quantization_config"] = {
        "quant_method": "mxfp4",
        "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router",
                                   "model.embed_tokens", "lm_head"]}
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def load(folder):
    """A model whose experts are MXFP4, in float32: what transformers makes of the codes."""
    config = AutoConfig.from_pretrained(folder)
    del config.quantization_config
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager")
    model.set_experts_implementation("eager")
    tensors = load_file(folder / "model.safetensors")
    for key in [k.removesuffix("_blocks") for k in tensors if k.endswith("_blocks")]:
        tensors[key] = convert_moe_packed_tensors(tensors.pop(f"{key}_blocks"), tensors.pop(f"{key}_scales"))
    model.load_state_dict(tensors)
    return model.eval()


def make_all(names=None):
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    for name, spec in specs().items():
        if names and name not in names:
            continue
        make_model(name, spec)
        if name == "gpt-oss-mxfp4":
            quantize_experts(name)


if __name__ == "__main__":
    make_all(sys.argv[1:])
