"""Quantized versions of two of the random models, in the forms that model repositories have.

Writes models/<name>/ of each form in FORMS. Codes are simply rounded: what matters is that they
are read right. dequantized() is the judge's side of it: the formulas of transformers (fp8),
GPTQModel, AutoAWQ and compressed-tensors in torch, whose types round as theirs do. Called by
make_golden.py after make_models.py; on its own it takes the names of models.
"""

import json
import pathlib
import shutil
import sys

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

HERE = pathlib.Path(__file__).resolve().parent
AWQ_PLACES = [0, 4, 1, 5, 2, 6, 3, 7]  # in a word, of eight neighbouring outputs


def compressed(form, weights, **more):
    return {"quant_method": "compressed-tensors", "format": form, "ignore": ["lm_head"],
            "quantization_status": "compressed",
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights, **more}}}


FORMS = {
    # Blocks that the weights' edges cut.
    "llama-fp8-blocks": ("llama-base", {
        "quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
        "weight_block_size": [32, 32], "modules_to_not_convert": ["lm_head"]}),
    # Columns in any order of groups, and tensors that hold several weights.
    "phi3-gptq-order": ("phi3-base", {
        "quant_method": "gptq", "bits": 4, "group_size": 8, "desc_act": True, "sym": False,
        "checkpoint_format": "gptq"}),
    "llama-gptq8": ("llama-base", {
        "quant_method": "gptq", "bits": 8, "group_size": -1, "desc_act": False, "sym": True,
        "checkpoint_format": "gptq_v2"}),
    "llama-awq": ("llama-base", {
        "quant_method": "awq", "bits": 4, "group_size": 24, "zero_point": True,
        "version": "gemm", "modules_to_not_convert": None}),
    "llama-packed4": ("llama-base", compressed("pack-quantized", {
        "num_bits": 4, "type": "int", "strategy": "group", "group_size": 24,
        "symmetric": False})),
    "llama-int8": ("llama-base", compressed("int-quantized", {
        "num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True},
        input_activations={"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True})),
    "llama-float8": ("llama-base", compressed("float-quantized", {
        "num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True})),
}


def packed(codes, bits, dim, places=None):
    """Codes [.., n, ..] as int32 of 32 / bits of them along a dimension."""
    per_word = 32 // bits
    codes = codes.movedim(dim, -1).to(torch.int64)
    missing = -codes.shape[-1] % per_word
    codes = torch.nn.functional.pad(codes, (0, missing)).unflatten(-1, (-1, per_word))
    shifts = torch.tensor(places or list(range(per_word))) * bits
    words = (codes << shifts).sum(-1)
    words = torch.where(words >= 1 << 31, words - (1 << 32), words)
    return words.to(torch.int32).movedim(-1, dim).contiguous()


def unpacked(words, bits, dim, places=None):
    per_word = 32 // bits
    shifts = torch.tensor(places or list(range(per_word))) * bits
    words = words.movedim(dim, -1).to(torch.int64) & 0xFFFFFFFF
    codes = (words.unsqueeze(-1) >> shifts) & ((1 << bits) - 1)
    return codes.flatten(-2).movedim(-1, dim)


def rounded(weight, bits, size, dtype):
    """(codes, scales, zeros): [out, in] as unsigned codes, [out, groups] of the rest."""
    top = (1 << bits) - 1
    groups = weight.unflatten(1, (-1, size))
    low = groups.amin(-1).clamp(max=0)
    high = groups.amax(-1).clamp(min=0)
    scales = ((high - low) / top).to(dtype)
    zeros = (-low / scales.float()).round().clamp(1, top)  # 0 is no zero point of GPTQ's
    codes = (groups / scales.float().unsqueeze(-1) + zeros.unsqueeze(-1)).round().clamp(0, top)
    return codes.flatten(1).to(torch.int64), scales, zeros.to(torch.int64)


def blocks(scale, weight, size):
    """A scale for each of the weight's elements."""
    rows = scale.repeat_interleave(size[0], 0)[:weight.shape[0]]
    return rows.repeat_interleave(size[1], 1)[:, :weight.shape[1]]


def float8_scale(weight, size):
    rows, columns = (-(-n // s) for n, s in zip(weight.shape, size))
    scale = torch.empty(rows, columns)
    for i in range(rows):
        for j in range(columns):
            part = weight[i * size[0]:(i + 1) * size[0], j * size[1]:(j + 1) * size[1]]
            scale[i, j] = part.abs().max() / 448
    return scale


def quantize(name, weight, config):
    """The tensors of a weight [out, in] of the module `name`."""
    method = config["quant_method"]
    if method == "fp8":
        scale = float8_scale(weight, config["weight_block_size"])
        codes = weight / blocks(scale, weight, config["weight_block_size"])
        return {f"{name}.weight": codes.to(torch.float8_e4m3fn),
                f"{name}.weight_scale_inv": scale}
    if method == "gptq":
        bits, inputs = config["bits"], weight.shape[1]
        size = config["group_size"] if config["group_size"] > 0 else inputs
        order = torch.arange(inputs)
        if config["desc_act"]:
            order = weight.square().sum(0).argsort(descending=True)
        codes, scales, zeros = rounded(weight[:, order], bits, size, torch.float16)
        if config["sym"]:
            zeros = torch.full_like(zeros, 1 << (bits - 1))
            codes = (weight[:, order] / scales.float().repeat_interleave(size, 1)
                     + (1 << (bits - 1))).round().clamp(0, (1 << bits) - 1)
        back = order.argsort()
        less = 1 if config["checkpoint_format"] == "gptq" else 0
        return {f"{name}.qweight": packed(codes[:, back].T, bits, 0),
                f"{name}.qzeros": packed(zeros.T - less, bits, 1),
                f"{name}.scales": scales.T.contiguous(),
                f"{name}.g_idx": (back // size).to(torch.int32)}
    if method == "awq":
        codes, scales, zeros = rounded(weight, 4, config["group_size"], torch.float16)
        return {f"{name}.qweight": packed(codes.T, 4, 1, AWQ_PLACES),
                f"{name}.qzeros": packed(zeros.T, 4, 1, AWQ_PLACES),
                f"{name}.scales": scales.T.contiguous()}
    if config["format"] == "float-quantized":
        scale = float8_scale(weight, (1, weight.shape[1])).to(torch.bfloat16)
        return {f"{name}.weight": (weight / scale.float()).to(torch.float8_e4m3fn),
                f"{name}.weight_scale": scale}
    if config["format"] == "int-quantized":
        scale = (weight.abs().amax(1, keepdim=True) / 127).to(torch.bfloat16)
        codes = (weight / scale.float()).round().clamp(-128, 127)
        return {f"{name}.weight": codes.to(torch.int8), f"{name}.weight_scale": scale}
    size = config["config_groups"]["group_0"]["weights"]["group_size"]
    codes, scales, zeros = rounded(weight, 4, size, torch.bfloat16)
    return {f"{name}.weight_packed": packed(codes, 4, 1),
            f"{name}.weight_scale": scales,
            f"{name}.weight_zero_point": packed(zeros, 4, 0),
            f"{name}.weight_shape": torch.tensor(weight.shape)}


def dequantized(name, tensors, config):
    """The weight [out, in] of a module, in the type that the reference gives it."""
    method = config["quant_method"]
    if method == "fp8":
        codes = tensors[f"{name}.weight"].float()
        return codes * blocks(tensors[f"{name}.weight_scale_inv"], codes,
                              config["weight_block_size"])
    if method == "gptq":
        bits = config["bits"]
        words = tensors[f"{name}.qzeros"].clone()
        if config["checkpoint_format"] == "gptq":
            words += 0x11111111 if bits == 4 else 0x01010101
        group = tensors[f"{name}.g_idx"].long()
        codes = unpacked(tensors[f"{name}.qweight"], bits, 0)
        scales = tensors[f"{name}.scales"]
        return (scales[group] * (codes - unpacked(words, bits, 1)[group])).T
    if method == "awq":
        size = config["group_size"]
        codes = unpacked(tensors[f"{name}.qweight"], 4, 1, AWQ_PLACES)
        zeros = unpacked(tensors[f"{name}.qzeros"], 4, 1, AWQ_PLACES)
        scales = tensors[f"{name}.scales"].repeat_interleave(size, 0)
        return ((codes - zeros.repeat_interleave(size, 0)) * scales).T
    scale = tensors[f"{name}.weight_scale"]
    if config["format"] != "pack-quantized":
        return tensors[f"{name}.weight"].to(scale.dtype) * scale
    rows, columns = tensors[f"{name}.weight_shape"].tolist()
    size = columns // scale.shape[1]
    codes = unpacked(tensors[f"{name}.weight_packed"], 4, 1)[:, :columns].to(scale.dtype)
    zeros = unpacked(tensors[f"{name}.weight_zero_point"], 4, 0)[:rows].to(scale.dtype)
    return ((codes - zeros.repeat_interleave(size, 1))
            * scale.repeat_interleave(size, 1))


def quantized_config(folder):
    return json.loads((folder / "config.json").read_text()).get("quantization_config")


def load(folder):
    """The model of a quantized checkpoint in float32."""
    config = quantized_config(folder)
    tensors = load_file(folder / "model.safetensors")
    modules = {n.rsplit(".", 1)[0] for n in tensors
               if n.endswith((".qweight", ".weight_packed", ".weight_scale", ".weight_scale_inv"))}
    parts = ("weight", "qweight", "qzeros", "scales", "g_idx", "weight_packed", "weight_scale",
             "weight_scale_inv", "weight_zero_point", "weight_shape")
    plain = {n: t.float() for n, t in tensors.items()
             if n.rsplit(".", 1)[0] not in modules or n.rsplit(".", 1)[1] not in parts}
    for module in modules:
        plain[f"{module}.weight"] = dequantized(module, tensors, config).float()
    settings = AutoConfig.from_pretrained(folder)
    del settings.quantization_config
    model = AutoModelForCausalLM.from_config(settings, dtype=torch.float32,
                                             attn_implementation="eager")
    model.load_state_dict(plain)
    return model.eval()


def make_model(name):
    base, config = FORMS[name]
    out = HERE / "models" / name
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    tensors = {}
    for tensor, value in load_file(HERE / "models" / base / "model.safetensors").items():
        if value.ndim == 2 and ".layers." in tensor:
            tensors.update(quantize(tensor.removesuffix(".weight"), value.float(), config))
        else:
            tensors[tensor] = value.to(torch.bfloat16)
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    settings = json.loads((HERE / "models" / base / "config.json").read_text())
    settings.pop("torch_dtype", None)
    settings |= {"dtype": "bfloat16", "quantization_config": config}
    (out / "config.json").write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n")
    print(f"quantized {name}: {sum(t.nbytes for t in tensors.values())} bytes", flush=True)


def make_all(names=()):
    for name in FORMS:
        if not names or name in names:
            make_model(name)


if __name__ == "__main__":
    make_all(sys.argv[1:])
