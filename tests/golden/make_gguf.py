"""GGUF files of the random models, as llama.cpp's own converter writes them.

    python make_gguf.py LLAMA_CPP    # a checkout of github.com/ggml-org/llama.cpp

Writes gguf/<name>.gguf for models of each architecture that both know, with matrices in
float16 and vectors in float32. The random models have no tokenizer, so that the converter
writes a vocabulary of words without meaning. Needs torch, transformers and numpy beside the
checkout, which has gguf-py.
"""

import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
NAMES = ["bloom-base", "cohere-qk-norm", "cohere2-base", "falcon-one-norm", "gemma-base", "gemma2-base",
         "gemma3-base", "glm4-base", "glm4-moe-base", "gpt-neox-base", "gpt-oss-mxfp4", "gpt2-base",
         "granite-base", "granitemoe-base", "granitemoe-shared", "llama-base", "llama-llama3-rope-biases",
         "mixtral-base", "olmo2-base", "olmo3-base", "olmoe-bias", "phi3-longrope", "qwen2-base",
         "qwen2-moe-base", "qwen3-base", "qwen3-moe-base", "smollm3-base", "stablelm-base", "starcoder2-base"]


def main(checkout):
    sys.path[:0] = [checkout, checkout + "/gguf-py"]
    import conversion
    import gguf
    from conversion.base import ModelBase, ModelType

    def no_tokenizer(self):
        size = self.hparams["vocab_size"]
        self.gguf_writer.add_tokenizer_model("gpt2")
        self.gguf_writer.add_tokenizer_pre("gpt-2")
        self.gguf_writer.add_token_list([f"w{i}" for i in range(size)])
        self.gguf_writer.add_token_types([gguf.TokenType.NORMAL] * size)

    out = HERE / "gguf"
    out.mkdir(exist_ok=True)
    for name in NAMES:
        directory = HERE / "models" / name
        hparams = ModelBase.load_hparams(directory, False)
        hparams.setdefault("n_ctx", hparams.get("n_positions"))
        hparams.setdefault("rotary_pct", hparams.get("rope_parameters", {}).get("partial_rotary_factor", 1.0))
        architecture = hparams["architectures"][0]
        made = conversion.get_model_class(architecture)
        # Some read the vocabulary's size from the tokenizer, to cut the embedding.
        model_class = type(made.__name__, (made,), {"set_vocab": no_tokenizer, "model_arch": made.model_arch})
        if architecture.startswith("Gemma3"):
            model_class.modify_tensors = lambda self, data, tensor, bid: super(made, self).modify_tensors(
                data + self.norm_shift(tensor), tensor, bid)
        model = model_class(directory, gguf.LlamaFileType.MOSTLY_F16, out / f"{name}.gguf", hparams=hparams)
        model.write()


if __name__ == "__main__":
    main(sys.argv[1])
