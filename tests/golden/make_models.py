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
    BloomConfig,
    Cohere2Config,
    CohereConfig,
    FalconConfig,
    Gemma2Config,
    Gemma3Config,
    Gemma3TextConfig,
    GemmaConfig,
    Glm4Config,
    GlmConfig,
    GPT2Config,
    GPTJConfig,
    GPTNeoXConfig,
    GraniteConfig,
    LlamaConfig,
    MistralConfig,
    Olmo2Config,
    Olmo3Config,
    OPTConfig,
    Phi3Config,
    Qwen2Config,
    Qwen3Config,
    SmolLM3Config,
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


def by_type(full, sliding):
    return {"full_attention": full, "sliding_attention": sliding}


def gpt(config, **overrides):
    return config(vocab_size=VOCAB_SIZE, n_positions=160, bos_token_id=1, eos_token_id=2,
                  resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, **overrides)


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
        # Heads of q and k are normed, each by a weight that is a tensor of its own.
        "stablelm-qk-norm": Spec(StableLmConfig(**common(
            hidden_size=60, num_attention_heads=6, num_key_value_heads=3,
            num_hidden_layers=3, intermediate_size=72, layer_norm_eps=1e-3,
            qk_layernorm=True, rope_parameters=rope(10000.0, partial_rotary_factor=0.4),
            tie_word_embeddings=False)), dtype=torch.bfloat16),
        "stablelm-parallel": Spec(StableLmConfig(**common(
            hidden_size=80, num_attention_heads=4, num_key_value_heads=1,
            num_hidden_layers=4, intermediate_size=64, qk_layernorm=True,
            use_parallel_residual=True, use_qkv_bias=True,
            rope_parameters=rope(5000.0, partial_rotary_factor=0.3),
            tie_word_embeddings=False))),
        # --- gemma: norms have 1 + weight, and the embedding is scaled
        "gemma-base": Spec(GemmaConfig(**common(
            hidden_size=48, num_attention_heads=4, num_key_value_heads=1, head_dim=16,
            num_hidden_layers=3, intermediate_size=72, rope_parameters=rope(10000.0),
            rms_norm_eps=1e-3)), old_spelling=True),
        # --- gemma2: norms of outputs, too, and caps
        "gemma2-base": Spec(Gemma2Config(**common(
            hidden_size=48, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
            num_hidden_layers=4, intermediate_size=72, rope_parameters=rope(10000.0),
            sliding_window=16, query_pre_attn_scalar=20, attn_logit_softcapping=3.0,
            final_logit_softcapping=9.0, rms_norm_eps=1e-3))),
        "gemma2-bias": Spec(Gemma2Config(**common(
            hidden_size=40, num_attention_heads=5, num_key_value_heads=1, head_dim=10,
            num_hidden_layers=3, intermediate_size=56, rope_parameters=rope(5000.0),
            sliding_window=12, attention_bias=True, attn_logit_softcapping=None,
            final_logit_softcapping=None, query_pre_attn_scalar=12)),
            dtype=torch.bfloat16, max_shard_size="60KB"),
        "gemma2-untied": Spec(Gemma2Config(**common(
            hidden_size=56, num_attention_heads=4, num_key_value_heads=4, head_dim=12,
            num_hidden_layers=3, intermediate_size=64, rope_parameters=rope(10000.0),
            sliding_window=20, tie_word_embeddings=False, attn_logit_softcapping=2.0,
            final_logit_softcapping=30.0, query_pre_attn_scalar=12,
            layer_types=["full_attention", "sliding_attention", "full_attention"])),
            dtype=torch.float16),
        # --- gemma3: q and k are normed by head, and windows have a rotary base of their own
        "gemma3-base": Spec(Gemma3TextConfig(**common(
            hidden_size=48, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
            num_hidden_layers=4, intermediate_size=72, sliding_window=16,
            query_pre_attn_scalar=20, rms_norm_eps=1e-3, sliding_window_pattern=3,
            rope_parameters=by_type(rope(1000000.0), rope(100.0))))),
        "gemma3-linear": Spec(Gemma3TextConfig(**common(
            hidden_size=40, num_attention_heads=4, num_key_value_heads=1, head_dim=12,
            num_hidden_layers=7, intermediate_size=56, sliding_window=12,
            query_pre_attn_scalar=12, final_logit_softcapping=8.0,
            rope_parameters=by_type(rope(100000.0, rope_type="linear", factor=4.0),
                                    rope(1000.0)))),
            dtype=torch.bfloat16, max_shard_size="80KB", old_spelling=True),
        # The text of a model that also takes images.
        "gemma3-images": Spec(Gemma3Config(
            text_config=Gemma3TextConfig(**common(
                hidden_size=56, num_attention_heads=2, num_key_value_heads=2, head_dim=20,
                num_hidden_layers=3, intermediate_size=40, sliding_window=14,
                query_pre_attn_scalar=20, sliding_window_pattern=2,
                rope_parameters=by_type(rope(1000000.0), rope(10000.0)))).to_dict(),
            vision_config={"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1,
                           "num_attention_heads": 2, "image_size": 28, "patch_size": 14},
            mm_tokens_per_image=4, image_token_index=250, boi_token_index=251,
            eoi_token_index=252), dtype=torch.float16),
        # --- olmo2: norms of outputs alone, and of all heads' q and k together
        "olmo2-base": Spec(Olmo2Config(**common(
            hidden_size=48, num_attention_heads=4, num_key_value_heads=2,
            num_hidden_layers=3, intermediate_size=72, rope_parameters=rope(10000.0),
            tie_word_embeddings=False, rms_norm_eps=1e-3)), old_spelling=True),
        "olmo2-bias": Spec(Olmo2Config(**common(
            hidden_size=40, num_attention_heads=5, num_key_value_heads=5,
            num_hidden_layers=4, intermediate_size=56, rope_parameters=rope(500000.0),
            attention_bias=True, tie_word_embeddings=False)), dtype=torch.bfloat16,
            max_shard_size="60KB"),
        "olmo2-mqa": Spec(Olmo2Config(**common(
            hidden_size=54, num_attention_heads=3, num_key_value_heads=1,
            num_hidden_layers=3, intermediate_size=50, rope_parameters=rope(10000.0),
            tie_word_embeddings=True)), dtype=torch.float16),
        # --- olmo3: olmo2 with windows, whose layers have a rotary embedding without scaling
        "olmo3-base": Spec(Olmo3Config(**common(
            hidden_size=48, num_attention_heads=4, num_key_value_heads=2,
            num_hidden_layers=5, intermediate_size=72, sliding_window=16,
            rope_parameters=by_type(rope(500000.0), rope(500000.0)),
            tie_word_embeddings=False, rms_norm_eps=1e-3))),
        "olmo3-yarn": Spec(Olmo3Config(**common(
            hidden_size=40, num_attention_heads=4, num_key_value_heads=1,
            num_hidden_layers=4, intermediate_size=56, sliding_window=12,
            rope_parameters=by_type(
                rope(500000.0, rope_type="yarn", factor=4.0, attention_factor=1.2,
                     original_max_position_embeddings=64), rope(500000.0)),
            tie_word_embeddings=False)), dtype=torch.bfloat16, max_shard_size="60KB",
            old_spelling=True),
        "olmo3-bias": Spec(Olmo3Config(**common(
            hidden_size=54, num_attention_heads=3, num_key_value_heads=3,
            num_hidden_layers=3, intermediate_size=50, sliding_window=20,
            attention_bias=True, tie_word_embeddings=True,
            rope_parameters=by_type(rope(10000.0), rope(300.0)),
            layer_types=["full_attention", "sliding_attention", "sliding_attention"])),
            dtype=torch.float16),
        # --- smollm3: some layers do not rotate
        "smollm3-base": Spec(SmolLM3Config(**common(
            hidden_size=48, num_attention_heads=4, num_key_value_heads=2,
            num_hidden_layers=5, intermediate_size=72, rope_parameters=rope(2000000.0),
            tie_word_embeddings=True, rms_norm_eps=1e-3)), old_spelling=True),
        "smollm3-window": Spec(SmolLM3Config(**common(
            hidden_size=40, num_attention_heads=4, num_key_value_heads=1,
            num_hidden_layers=4, intermediate_size=56, rope_parameters=rope(10000.0),
            use_sliding_window=True, sliding_window=12, no_rope_layers=[1, 0, 0, 1],
            tie_word_embeddings=False)), dtype=torch.bfloat16, max_shard_size="60KB"),
        "smollm3-bias": Spec(SmolLM3Config(**common(
            hidden_size=42, num_attention_heads=3, num_key_value_heads=3,
            num_hidden_layers=3, intermediate_size=64, rope_parameters=rope(10000.0),
            attention_bias=True, mlp_bias=True, no_rope_layer_interval=2,
            tie_word_embeddings=False)), dtype=torch.float16),
        # --- glm4: a part of each head rotated in pairs of neighbours
        "glm4-base": Spec(Glm4Config(**common(
            hidden_size=48, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
            num_hidden_layers=3, intermediate_size=72, rms_norm_eps=1e-3,
            rope_parameters=rope(10000.0, partial_rotary_factor=0.5))), old_spelling=True),
        "glm4-no-bias": Spec(Glm4Config(**common(
            hidden_size=40, num_attention_heads=5, num_key_value_heads=1, head_dim=12,
            num_hidden_layers=4, intermediate_size=56, attention_bias=False,
            rope_parameters=rope(5000.0, partial_rotary_factor=1.0))),
            dtype=torch.bfloat16, max_shard_size="60KB"),
        "glm4-tied": Spec(Glm4Config(**common(
            hidden_size=54, num_attention_heads=3, num_key_value_heads=3, head_dim=20,
            num_hidden_layers=3, intermediate_size=50, tie_word_embeddings=True,
            rope_parameters=rope(10000.0, partial_rotary_factor=0.3))), dtype=torch.float16),
        "glm-base": Spec(GlmConfig(**common(
            hidden_size=48, num_attention_heads=4, num_key_value_heads=2, head_dim=12,
            num_hidden_layers=3, intermediate_size=64, attention_bias=True,
            rope_parameters=rope(10000.0, partial_rotary_factor=0.5))), dtype=torch.float16),
        # --- cohere: attention and MLP side by side
        "cohere-base": Spec(CohereConfig(**common(
            hidden_size=48, num_attention_heads=4, num_key_value_heads=2,
            num_hidden_layers=3, intermediate_size=72, rope_parameters=rope(10000.0),
            logit_scale=0.4)), dtype=torch.float16, old_spelling=True),
        "cohere-qk-norm": Spec(CohereConfig(**common(
            hidden_size=60, num_attention_heads=6, num_key_value_heads=3,
            num_hidden_layers=3, intermediate_size=80, rope_parameters=rope(75000.0),
            use_qk_norm=True, layer_norm_eps=1e-3, logit_scale=0.6)), dtype=torch.bfloat16),
        "cohere2-base": Spec(Cohere2Config(**common(
            hidden_size=48, num_attention_heads=4, num_key_value_heads=2,
            num_hidden_layers=5, intermediate_size=72, rope_parameters=rope(50000.0),
            sliding_window=16, layer_norm_eps=1e-3, logit_scale=0.3))),
        "cohere2-bias": Spec(Cohere2Config(**common(
            hidden_size=40, num_attention_heads=5, num_key_value_heads=1,
            num_hidden_layers=4, intermediate_size=56, rope_parameters=rope(10000.0),
            sliding_window=12, attention_bias=True, logit_scale=2.0,
            tie_word_embeddings=False)), dtype=torch.bfloat16, max_shard_size="60KB"),
        "cohere2-types": Spec(Cohere2Config(**common(
            hidden_size=54, num_attention_heads=3, num_key_value_heads=3,
            num_hidden_layers=3, intermediate_size=50, rope_parameters=rope(10000.0),
            sliding_window=20, tie_word_embeddings=True,
            layer_types=["full_attention", "sliding_attention", "full_attention"])),
            dtype=torch.float16),
        # --- gpt2: matrices are stored as [inputs, outputs]
        "gpt2-base": Spec(gpt(GPT2Config, n_embd=48, n_head=4, n_layer=3,
                              layer_norm_epsilon=1e-3)),
        "gpt2-inner": Spec(gpt(GPT2Config, n_embd=40, n_head=5, n_layer=4, n_inner=56,
                               activation_function="relu"),
                           dtype=torch.bfloat16, max_shard_size="60KB"),
        "gpt2-bare-names": Spec(gpt(GPT2Config, n_embd=42, n_head=3, n_layer=3,
                                    scale_attn_weights=False, tie_word_embeddings=True),
                                dtype=torch.float16, strip_prefix="transformer."),
        # The scores of layer i are divided by i + 1.
        "gpt2-layer-scale": Spec(gpt(GPT2Config, n_embd=45, n_head=3, n_layer=5,
                                     scale_attn_by_inverse_layer_idx=True,
                                     reorder_and_upcast_attn=True)),
        # --- gpt_neox: q, k and v of each head are one tensor
        "gpt-neox-base": Spec(GPTNeoXConfig(**common(
            hidden_size=64, num_attention_heads=4, num_hidden_layers=3, intermediate_size=72,
            rope_parameters=rope(10000.0, partial_rotary_factor=0.25),
            layer_norm_eps=1e-3))),
        "gpt-neox-in-turn": Spec(GPTNeoXConfig(**common(
            hidden_size=60, num_attention_heads=3, num_hidden_layers=4, intermediate_size=56,
            use_parallel_residual=False, hidden_act="gelu_new", attention_bias=False,
            rope_parameters=rope(5000.0, partial_rotary_factor=1.0))),
            dtype=torch.bfloat16, max_shard_size="60KB"),
        "gpt-neox-tied": Spec(GPTNeoXConfig(**common(
            hidden_size=48, num_attention_heads=2, num_hidden_layers=3, intermediate_size=64,
            tie_word_embeddings=True,
            rope_parameters=rope(10000.0, partial_rotary_factor=0.5))),
            dtype=torch.float16, old_spelling=True),
        # --- gptj: attention and MLP side by side, pairs of neighbours, a bias of the head
        "gptj-base": Spec(gpt(GPTJConfig, n_embd=48, n_head=4, n_layer=3, rotary_dim=8,
                              layer_norm_epsilon=1e-3)),
        "gptj-inner": Spec(gpt(GPTJConfig, n_embd=60, n_head=3, n_layer=4, n_inner=56,
                               rotary_dim=20), dtype=torch.bfloat16, max_shard_size="60KB"),
        "gptj-narrow": Spec(gpt(GPTJConfig, n_embd=40, n_head=5, n_layer=3, n_inner=72,
                                rotary_dim=2), dtype=torch.float16),
        # --- falcon: as the 7B (one KV head), the 40B (two norms), and in turn
        "falcon-mqa": Spec(FalconConfig(**common(
            hidden_size=56, num_attention_heads=7, num_hidden_layers=3,
            rope_parameters=rope(10000.0), layer_norm_epsilon=1e-3))),
        "falcon-grouped": Spec(FalconConfig(**common(
            hidden_size=48, num_attention_heads=6, num_kv_heads=2, num_hidden_layers=4,
            ffn_hidden_size=72, new_decoder_architecture=True, bias=True,
            rope_parameters=rope(10000.0), tie_word_embeddings=False)),
            dtype=torch.bfloat16, max_shard_size="60KB"),
        "falcon-in-turn": Spec(FalconConfig(**common(
            hidden_size=40, num_attention_heads=4, num_hidden_layers=3,
            multi_query=False, parallel_attn=False, bias=True,
            rope_parameters=rope(10000.0))), dtype=torch.float16, old_spelling=True),
        "falcon-one-norm": Spec(FalconConfig(**common(
            hidden_size=48, num_attention_heads=4, num_kv_heads=1, num_hidden_layers=3,
            new_decoder_architecture=True, num_ln_in_parallel_attn=1,
            rope_parameters=rope(10000.0))), dtype=torch.float16),
        # As the models of RefinedWeb alone: ALiBi, whose slopes and distances are bfloat16.
        "falcon-alibi": Spec(FalconConfig(**common(
            hidden_size=48, num_attention_heads=4, num_hidden_layers=3, alibi=True,
            multi_query=False, parallel_attn=False, bias=True, layer_norm_epsilon=1e-3))),
        "falcon-alibi-six-heads": Spec(FalconConfig(**common(
            hidden_size=60, num_attention_heads=6, num_hidden_layers=4, alibi=True,
            tie_word_embeddings=False)), dtype=torch.bfloat16),
        # --- bloom: ALiBi, and a norm of the embedding
        "bloom-base": Spec(BloomConfig(**common(
            hidden_size=48, n_head=4, n_layer=3, layer_norm_epsilon=1e-3, seq_length=160))),
        "bloom-six-heads": Spec(BloomConfig(**common(
            hidden_size=42, n_head=6, n_layer=4, tie_word_embeddings=False)),
            dtype=torch.bfloat16, max_shard_size="60KB"),
        "bloom-bare-names": Spec(BloomConfig(**common(
            hidden_size=40, n_head=5, n_layer=3)), dtype=torch.float16,
            strip_prefix="transformer."),
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
    scaled = "gemma" in model.config.model_type
    biases = [b for b in model.named_buffers() if b[0].endswith("e_score_correction_bias")]
    for name, p in [*model.named_parameters(), *biases]:
        if name.endswith(("e_score_correction_bias", "sinks")):
            # They choose other experts than the scores alone, and take a good part of a softmax.
            normal(p, 1.0 if name.endswith("sinks") else 0.2)
        elif p.ndim == 1 or name.endswith("_bias"):
            # Norm weights around one (of which Gemma stores what exceeds one); norm biases
            # and linear biases around zero.
            is_norm_weight = (any(x in name for x in ("norm", "ln_"))
                              and name.endswith("weight"))
            mean = 1.0 if is_norm_weight and not scaled else 0.0
            if scaled and name.endswith((".norm.weight", "feedforward_layernorm.weight")):
                # Else tied heads make the embedding so large that layers add little to it.
                mean = 2.0
            normal(p, 0.25, mean)
        elif "embed_positions" in name or "wpe" in name:
            normal(p, 0.6)
        elif any(x in name for x in ("embed_tokens", "wte", "embed_in", "word_embeddings")):
            normal(p, p.shape[1] ** -0.5 if scaled else 1.0)
        else:
            # Sharper attention than a fresh model's, so that positions and windows matter.
            sharp = any(x in name for x in ("q_proj", "k_proj", "c_attn", "query_key_value"))
            by_inputs = model.config.model_type == "gpt2" or (p.ndim == 3 and "gpt_oss" in
                                                              model.config.model_type)
            inputs = p.shape[-2 if by_inputs else -1]
            normal(p, (1.7 if sharp else 1.2) / math.sqrt(inputs))
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
    if config.get("use_sliding_window") is False and config["model_type"] == "qwen2":
        # Published Qwen2 files name a window that this switch turns off.
        config.update(sliding_window=8, max_window_layers=1)
    if config["model_type"] == "qwen3_moe":
        config["num_experts"] = config.pop("num_local_experts")
    parameters = config.pop("rope_parameters", None)
    if config["model_type"] == "gpt_neox":
        config["rotary_emb_base"] = parameters.pop("rope_theta")
        config["rotary_pct"] = parameters.pop("partial_rotary_factor")
        return config
    if parameters is not None and "full_attention" in parameters:
        sliding = parameters["sliding_attention"]
        if config["model_type"].startswith("gemma3"):
            config["rope_local_base_freq"] = sliding["rope_theta"]
        parameters = parameters["full_attention"]
    if parameters is not None:
        factor = parameters.pop("partial_rotary_factor", None)
        if factor is not None:
            config["partial_rotary_factor"] = factor
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
    model.set_experts_implementation("eager")  # others want rows of whole vectors
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
