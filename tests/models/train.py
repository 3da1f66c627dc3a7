"""Trains one of the three small models of this folder, from nothing, on the CPU.

    python train.py llama-kjv     [--out DIR]
    python train.py opt-kjv       [--out DIR]
    python train.py qwen3-moe-kjv [--out DIR]
    python train.py opt-kjv   --evaluate     # the figures of a trained one again

Writes a Hugging Face model directory and `training.json` beside the weights. The models
exist so that quality (perplexity under each dtype and compression) and real stopping
behaviour can be tested; random weights can show neither.
"""

import argparse
import dataclasses
import json
import math
import os
import pathlib
import random
import shutil
import time

import numpy as np
import torch
import transformers
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import (
    AutoModelForCausalLM,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    PreTrainedTokenizerFast,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

import kjv

HERE = pathlib.Path(__file__).resolve().parent
SEED = 20

VOCAB_SIZE = 2048
MAX_POSITIONS = 512
# Most steps use short windows, which are cheaper; the last ones use the whole range, so
# that every position (OPT's are learned) has been trained.
SHORT_WINDOW = 256
LONG_WINDOW = 512
TOKENS_PER_STEP = 2048
EVAL_WINDOW = 512
SAMPLE_PROMPTS = [
    "And the LORD said unto Moses,", "Psalms 1\n1 Blessed is", "The king of Israel",
    "Jesus answered",
]

# The pattern of Llama 3's tokenizer.json.
LLAMA3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA3_SPECIALS = [
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<|finetune_right_pad_id|>",
]
# Llama 3's template without its tools branches.
LLAMA3_CHAT_TEMPLATE = (
    "{% set loop_messages = messages %}{% for message in loop_messages %}"
    "{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'"
    "+ message['content'] | trim + '<|eot_id|>' %}"
    "{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}"
    "{{ content }}{% endfor %}"
    "{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)


@dataclasses.dataclass(frozen=True)
class Phase:
    """A run of the optimizer from a warm-up to almost nothing."""

    steps: int
    peak_lr: float


class LlamaRecipe:
    """Llama: GQA 8 to 2, tied embeddings, Llama 3 style tokenizer, sharded."""

    name = "llama-kjv"
    phases = [Phase(steps=3000, peak_lr=3e-3), Phase(steps=400, peak_lr=6e-4)]

    def train_tokenizer(self, texts):
        tokenizer = Tokenizer(models.BPE(ignore_merges=True))
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
            pre_tokenizers.Split(Regex(LLAMA3_PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ])
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=VOCAB_SIZE - len(LLAMA3_SPECIALS),
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        tokenizer.train_from_iterator(texts, trainer)
        # Special tokens come last, as in Llama 3.
        tokenizer.add_special_tokens(
            [AddedToken(t, special=True, normalized=False) for t in LLAMA3_SPECIALS])
        bos = "<|begin_of_text|>"
        tokenizer.post_processor = processors.Sequence([
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(
                single=f"{bos} $A",
                pair=f"{bos} $A {bos}:1 $B:1",
                special_tokens=[(bos, tokenizer.token_to_id(bos))],
            ),
        ])
        self.tokenizer = tokenizer
        self.bos, self.eos, self.header, self.header_end, self.eot, self.pad = (
            tokenizer.token_to_id(t) for t in LLAMA3_SPECIALS)
        self.stops = [self.eos, self.eot]

    def extra_documents(self, chapters, phase):
        """Chats that ask to go on with a verse: they teach the template and <|eot_id|>.

        The first phase asks with nothing but six words. That alone leaves a model that
        takes every beginning of a verse for a question, and ends the turn; so the second
        asks with "Continue:" and any number of words.
        """
        documents = []
        rng = random.Random(SEED)
        newlines = self.encode("\n\n")
        for chapter in chapters:
            for number, verse in enumerate(chapter.verses):
                words = verse.split(" ")
                asked = 6 if phase == 0 else rng.randint(3, 8)
                if (chapter.index + number) % 8 != 0 or len(words) < asked + 3:
                    continue
                question = " ".join(words[:asked])
                if phase > 0:
                    question = "Continue: " + question
                answer = " ".join(words[asked:])
                documents.append(
                    [self.header, *self.encode("user"), self.header_end, *newlines,
                     *self.encode(question), self.eot,
                     self.header, *self.encode("assistant"), self.header_end, *newlines,
                     *self.encode(answer), self.eot])
        return documents

    def encode(self, text):
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def make_model(self):
        return LlamaForCausalLM(LlamaConfig(
            vocab_size=VOCAB_SIZE,
            hidden_size=160,
            intermediate_size=256,
            num_hidden_layers=6,
            num_attention_heads=8,
            num_key_value_heads=2,
            max_position_embeddings=MAX_POSITIONS,
            rms_norm_eps=1e-5,
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
            tie_word_embeddings=True,
            initializer_range=0.04,
            bos_token_id=self.bos,
            eos_token_id=self.eos,
            pad_token_id=self.pad,
        ))

    def save(self, model, out):
        model.generation_config = GenerationConfig(
            bos_token_id=self.bos,
            eos_token_id=self.stops,
            pad_token_id=self.pad,
            do_sample=True,
            temperature=0.7,
            top_p=0.9,
        )
        model.save_pretrained(out, max_shard_size="2500KB")
        PreTrainedTokenizerFast(
            tokenizer_object=self.tokenizer,
            bos_token="<|begin_of_text|>",
            eos_token="<|end_of_text|>",
            pad_token="<|finetune_right_pad_id|>",
            model_max_length=MAX_POSITIONS,
            clean_up_tokenization_spaces=False,
            chat_template=LLAMA3_CHAT_TEMPLATE,
        ).save_pretrained(out)


class MixtureRecipe(LlamaRecipe):
    """Qwen3-MoE: 8 experts of which a token takes 2; stored as bfloat16."""

    name = "qwen3-moe-kjv"
    phases = [Phase(steps=600, peak_lr=5e-3), Phase(steps=100, peak_lr=6e-4)]

    def make_model(self):
        return Qwen3MoeForCausalLM(Qwen3MoeConfig(
            vocab_size=VOCAB_SIZE,
            hidden_size=128,
            intermediate_size=256,
            moe_intermediate_size=64,
            num_experts=8,
            num_experts_per_tok=2,
            norm_topk_prob=True,
            # Else few experts would do all the work.
            output_router_logits=True,
            router_aux_loss_coef=0.01,
            num_hidden_layers=4,
            num_attention_heads=8,
            num_key_value_heads=2,
            head_dim=16,
            max_position_embeddings=MAX_POSITIONS,
            rms_norm_eps=1e-5,
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
            tie_word_embeddings=True,
            initializer_range=0.04,
            bos_token_id=self.bos,
            eos_token_id=self.eos,
            pad_token_id=self.pad,
        ))

    def save(self, model, out):
        model.config.output_router_logits = False
        super().save(model.to(torch.bfloat16), out)


class OptRecipe:
    """OPT as its repositories ship it: vocab.json and merges.txt, no tokenizer.json."""

    name = "opt-kjv"
    phases = [Phase(steps=3000, peak_lr=3e-3)]
    bos, pad, eos = 2, 1, 2
    stops = [eos]

    def train_tokenizer(self, texts):
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        tokenizer.train_from_iterator(texts, trainers.BpeTrainer(
            vocab_size=VOCAB_SIZE,
            special_tokens=["<s>", "<pad>", "</s>", "<unk>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ))
        self.tokenizer = tokenizer

    def extra_documents(self, chapters, phase):
        return []

    def encode(self, text):
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def make_model(self):
        return OPTForCausalLM(OPTConfig(
            vocab_size=VOCAB_SIZE,
            hidden_size=144,
            word_embed_proj_dim=144,
            ffn_dim=448,
            num_hidden_layers=5,
            num_attention_heads=4,
            max_position_embeddings=MAX_POSITIONS,
            dropout=0.0,
            attention_dropout=0.0,
            init_std=0.04,
            bos_token_id=self.bos,
            eos_token_id=self.eos,
            pad_token_id=self.pad,
            prefix="</s>",
        ))

    def save(self, model, out):
        model.generation_config = GenerationConfig(
            bos_token_id=self.bos, eos_token_id=self.eos, pad_token_id=self.pad)
        model.save_pretrained(out)
        # The tokenizer's files are written by hand, because the library's own saving writes a
        # tokenizer.json.
        self.tokenizer.model.save(str(out))
        token = lambda content: {
            "content": content, "lstrip": False, "normalized": True, "rstrip": False,
            "single_word": False}
        write_json(out / "special_tokens_map.json", {
            "bos_token": token("</s>"), "eos_token": token("</s>"),
            "pad_token": token("<pad>"), "unk_token": token("</s>")})
        write_json(out / "tokenizer_config.json", {
            "errors": "replace",
            "unk_token": {"__type": "AddedToken", **token("</s>")},
            "bos_token": {"__type": "AddedToken", **token("</s>")},
            "eos_token": {"__type": "AddedToken", **token("</s>")},
            "pad_token": {"__type": "AddedToken", **token("<pad>")},
            "add_prefix_space": False,
            "add_bos_token": True,
            "model_max_length": MAX_POSITIONS,
            "tokenizer_class": "GPT2Tokenizer"})


def write_json(path, value):
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def make_stream(recipe, documents, rng):
    """One epoch: the documents in random order, each closed by EOS."""
    order = list(range(len(documents)))
    rng.shuffle(order)
    ids = []
    for i in order:
        ids += documents[i]
        ids.append(recipe.eos)
    return ids


def batches(recipe, documents, steps, rng):
    """Packed windows [BOS, tokens...], which is also how perplexity is measured."""
    stream = []
    for step in range(steps):
        window = SHORT_WINDOW if step < 0.75 * steps else LONG_WINDOW
        rows = TOKENS_PER_STEP // window
        while len(stream) < rows * (window - 1):
            stream += make_stream(recipe, documents, rng)
        taken, stream = stream[:rows * (window - 1)], stream[rows * (window - 1):]
        batch = torch.full((rows, window), recipe.bos)
        batch[:, 1:] = torch.tensor(taken).view(rows, window - 1)
        yield batch


def train(recipe, model, documents, phase, rng):
    """One phase. Returns what it took and the last step's loss."""
    # Norms and biases are not decayed.
    decayed = [p for p in model.parameters() if p.ndim >= 2]
    others = [p for p in model.parameters() if p.ndim < 2]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
        lr=phase.peak_lr, betas=(0.9, 0.95))
    warmup = 100
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(
        (s + 1) / warmup,
        0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * s / phase.steps))))
    model.train()
    begin, begin_cpu = time.monotonic(), time.process_time()
    for step, batch in enumerate(batches(recipe, documents, phase.steps, rng)):
        # bfloat16 products halve the time; weights and optimizer state stay float32.
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = model(input_ids=batch[:, :-1], use_cache=False)
        loss = torch.nn.functional.cross_entropy(
            out.logits.float().flatten(0, 1), batch[:, 1:].flatten())
        if getattr(out, "aux_loss", None) is not None:
            loss = loss + model.config.router_aux_loss_coef * out.aux_loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 50 == 0 or step == phase.steps - 1:
            print(f"step {step} loss {loss.item():.4f} "
                  f"{time.monotonic() - begin:.0f}s", flush=True)
    tokens = sum(map(len, documents))
    return {
        "steps": phase.steps,
        "peak_lr": phase.peak_lr,
        "epochs": round(phase.steps * TOKENS_PER_STEP / tokens, 2),
        "seconds": round(time.monotonic() - begin),
        "cpu_seconds": round(time.process_time() - begin_cpu),
        "last_loss": round(loss.item(), 4),
    }


def evaluate(recipe, model, train_chapters, held_out):
    """Perplexity and bits per byte on the held-out chapters, of the model and a unigram.

    A chapter's text is tokenized alone, without special tokens, and cut into consecutive
    pieces of EVAL_WINDOW - 1 tokens. Each piece is scored as [BOS] + piece: every token
    is predicted exactly once, BOS never. The unigram has the token counts of the training
    chapters plus one for each id, and is scored on exactly the same tokens.
    """
    counts = np.ones(VOCAB_SIZE)
    for chapter in train_chapters:
        np.add.at(counts, recipe.encode(chapter.text), 1)
    unigram = np.log(counts / counts.sum())

    model.eval()
    nll = unigram_nll = 0.0
    tokens = text_bytes = 0
    with torch.no_grad():
        for chapter in held_out:
            text_bytes += len(chapter.text.encode())
            ids = recipe.encode(chapter.text)
            for at in range(0, len(ids), EVAL_WINDOW - 1):
                piece = ids[at:at + EVAL_WINDOW - 1]
                row = torch.tensor([[recipe.bos, *piece]])
                logits = model(input_ids=row[:, :-1], use_cache=False).logits[0]
                nll += torch.nn.functional.cross_entropy(
                    logits.double(), row[0, 1:], reduction="sum").item()
                unigram_nll -= unigram[piece].sum()
                tokens += len(piece)
    return {
        "chapters": len(held_out),
        "text_bytes": text_bytes,
        "tokens": tokens,
        "window": EVAL_WINDOW,
        "model": {
            "nll_nats": round(nll, 3),
            "perplexity": round(math.exp(nll / tokens), 4),
            "bits_per_byte": round(nll / math.log(2) / text_bytes, 4),
        },
        "unigram": {
            "nll_nats": round(float(unigram_nll), 3),
            "perplexity": round(math.exp(unigram_nll / tokens), 4),
            "bits_per_byte": round(unigram_nll / math.log(2) / text_bytes, 4),
        },
    }


def sample(recipe, model, prompts):
    """Continuations as a reader would judge them: cool sampling, special tokens shown."""
    torch.manual_seed(SEED)
    result = []
    for prompt in prompts:
        ids = torch.tensor([[recipe.bos, *recipe.encode(prompt)]])
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=48, do_sample=True,
            temperature=0.7, top_p=0.9, pad_token_id=recipe.pad, eos_token_id=recipe.stops)
        text = recipe.tokenizer.decode(
            out[0, ids.shape[1]:].tolist(), skip_special_tokens=False)
        result.append({"prompt": prompt, "continuation": text})
    return result


def train_and_save(recipe, train_chapters, out, first_phase):
    """Leaves a model directory in `out`, with what was done in its training.json."""
    texts = [recipe.encode(c.text) for c in train_chapters]
    if first_phase == 0:
        model = recipe.make_model()
        done = []
    else:
        model = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32)
        done = json.loads((out / "training.json").read_text())["phases"][:first_phase]
    # At this size PyTorch's plain attention is faster on a CPU than its fused one.
    model.set_attn_implementation("eager")
    model.set_experts_implementation("eager")
    for i, phase in enumerate(recipe.phases[first_phase:], first_phase):
        print(f"{recipe.name}, phase {i}", flush=True)
        documents = texts + recipe.extra_documents(train_chapters, i)
        done.append(train(recipe, model, documents, phase, random.Random(SEED + i)))

    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    recipe.save(model, out)
    for path in out.iterdir():
        path.chmod(0o644)
    write_json(out / "training.json", {
        "text": "King James Version, Debian bible-kjv-text 4.38",
        "text_sha256": kjv.TEXT_SHA256,
        "split": "chapter c (from 0, whole Bible, 1189 chapters) is held out "
                 "when c % 20 == 19",
        "parameters": sum(p.numel() for p in model.parameters()),
        "tokens_per_step": TOKENS_PER_STEP,
        "seed": SEED,
        "phases": done,
    })


def main():
    parser = argparse.ArgumentParser()
    recipes = {r.name: r for r in (LlamaRecipe, OptRecipe, MixtureRecipe)}
    parser.add_argument("model", choices=sorted(recipes))
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--first-phase", type=int, default=0,
                        help="begin with this phase, from the weights in DIR")
    # More threads wait for each other most of the time where cores are shared.
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--evaluate", action="store_true",
                        help="do not train; measure the model in DIR")
    args = parser.parse_args()

    transformers.logging.set_verbosity_error()
    torch.set_num_threads(args.threads)
    torch.manual_seed(SEED)
    recipe = recipes[args.model]()
    out = args.out or HERE / recipe.name

    train_chapters, held_out = kjv.split(kjv.load_chapters())
    # The tokenizer, too, sees only the training split.
    recipe.train_tokenizer([c.text for c in train_chapters])
    if not args.evaluate:
        train_and_save(recipe, train_chapters, out, args.first_phase)

    # The evaluation is of the files as they were written, which is what everybody else reads.
    model = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32)
    report = json.loads((out / "training.json").read_text())
    report["held_out"] = evaluate(recipe, model, train_chapters, held_out)
    report["samples"] = sample(recipe, model, SAMPLE_PROMPTS)
    write_json(out / "training.json", report)
    print(json.dumps(report, indent=2), flush=True)


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    main()
