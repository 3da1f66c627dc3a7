"""Rotary frequencies as transformers computes them, for decoder_spec_test.cc.

Writes rope_cases.json: config.json texts with the inv_freq and attention factor of the
model's rotary embedding. Needs transformers (the version of ../../models/requirements.txt).
"""

import json
import pathlib

from transformers import LlamaConfig, Qwen2Config
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.models.qwen2.modeling_qwen2 import Qwen2RotaryEmbedding

SHAPE = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2,
         "num_key_value_heads": 4,
         "intermediate_size": 32, "vocab_size": 16}

CASES = {
    "defaults": {},
    "top_level_theta": {"rope_theta": 500000.0},
    "integer_theta": {"rope_theta": 1000000, "head_dim": 128},
    "new_spelling": {"rope_parameters": {"rope_type": "default", "rope_theta": 250000.0}},
    "old_spelling_wins": {"rope_theta": 77.0, "rope_scaling": {"type": "linear", "factor": 2.0},
                          "rope_parameters": {"rope_type": "default", "rope_theta": 99.0}},
    "partial_factor_is_ignored": {"partial_rotary_factor": 0.5},
    "linear": {"rope_scaling": {"type": "linear", "factor": 2.5}},
    "linear_rope_type_wins": {
        "rope_scaling": {"type": "yarn", "rope_type": "linear", "factor": 3.0}},
    "dynamic": {"rope_scaling": {"type": "dynamic", "factor": 3.7}, "head_dim": 24},
    "llama3": {
        "rope_theta": 500000.0, "head_dim": 128, "max_position_embeddings": 131072,
        "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                         "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}},
    "llama3_factor_32": {
        "rope_theta": 500000.0, "max_position_embeddings": 131072,
        "rope_parameters": {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0,
                            "high_freq_factor": 4.0,
                            "original_max_position_embeddings": 8192}},
    "llama3_original_from_top_level": {
        "original_max_position_embeddings": 64,
        "rope_scaling": {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.5,
                         "high_freq_factor": 3.5, "original_max_position_embeddings": 512}},
    "llama3_original_by_default": {
        "max_position_embeddings": 256,
        "rope_scaling": {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1,
                         "high_freq_factor": 4}},
    "yarn": {
        "max_position_embeddings": 131072, "head_dim": 128,
        "rope_scaling": {"type": "yarn", "factor": 4.0,
                         "original_max_position_embeddings": 32768}},
    "yarn_mscale": {
        "rope_scaling": {"rope_type": "yarn", "factor": 40.0, "mscale": 1.0,
                         "mscale_all_dim": 0.8, "beta_fast": 32, "beta_slow": 1,
                         "original_max_position_embeddings": 4096}},
    "yarn_attention_factor": {
        "rope_scaling": {"rope_type": "yarn", "factor": 2.0, "attention_factor": 0.75,
                         "original_max_position_embeddings": 100}},
    "yarn_not_truncated": {
        "head_dim": 64,
        "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "truncate": False,
                         "beta_fast": 24.5, "beta_slow": 1.25,
                         "original_max_position_embeddings": 4096}},
    "yarn_factor_from_lengths": {
        "max_position_embeddings": 4096,
        "rope_scaling": {"rope_type": "yarn", "factor": None,
                         "original_max_position_embeddings": 1024}},
    "yarn_factor_below_one": {
        "rope_scaling": {"rope_type": "yarn", "factor": 0.5,
                         "original_max_position_embeddings": 1024}},
    "yarn_singular_ramp": {
        "head_dim": 4,
        "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "beta_fast": 1e-3,
                         "beta_slow": 1e-3, "original_max_position_embeddings": 8}},
    "longrope_never_long": {
        "max_position_embeddings": 64, "original_max_position_embeddings": 64,
        "rope_scaling": {"rope_type": "longrope", "factor": 4.0,
                         "short_factor": [1.0 + i / 10 for i in range(8)],
                         "long_factor": [2.0] * 8}},
}


def main():
    rows = []
    for name, extra in CASES.items():
        for model_type, config_class, module in [
                ("llama", LlamaConfig, LlamaRotaryEmbedding),
                ("qwen2", Qwen2Config, Qwen2RotaryEmbedding)]:
            config = {"model_type": model_type, **SHAPE, **extra}
            text = json.dumps(config)
            rotary = module(config_class(**json.loads(text)))
            rows.append({
                "name": f"{model_type}/{name}", "config": config,
                "inv_freq": [float(f) for f in rotary.inv_freq.double()],
                "attention_factor": float(rotary.attention_scaling)})
    body = ",\n".join(json.dumps(row) for row in rows)
    path = pathlib.Path(__file__).resolve().parent / "rope_cases.json"
    path.write_text(f"[\n{body}\n]\n", encoding="ascii")


if __name__ == "__main__":
    main()
