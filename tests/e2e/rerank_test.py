"""Scores of texts and reranking as jobs: by the tokens of a reranker, and by embeddings."""

import json
import math
import os
import shutil
import sys

import harness

LLAMA = os.path.join(harness.MODELS, "llama-kjv")
FP32 = ("--dtype", "float32")
QUERY = "Who created the heaven?"
DOCUMENTS = ["In the beginning God created the heaven and the earth.", "And it came to pass", "Blessed are the",
             "The LORD is my shepherd"]
TEMPLATE = """{{ bos_token }}{% for m in messages %}{% if m.role == "system" %}I: {{ m.content }}
{% endif %}{% if m.role == "query" %}Q: {{ m.content }}
{% endif %}{% if m.role == "document" %}D: {{ m.content }}
{% endif %}{% endfor %}A:"""


def model_with(directory, modules=None, configs=(), template=None):
    path = os.path.join(directory, "model")
    shutil.copytree(LLAMA, path)
    if modules:
        with open(os.path.join(path, "modules.json"), "w") as f:
            json.dump([{"path": place, "type": f"sentence_transformers.models.{kind}"} for kind, place in modules], f)
    for place, config in dict(configs).items():
        os.mkdir(os.path.join(path, place))
        with open(os.path.join(path, place, "config.json"), "w") as f:
            json.dump(config, f)
    if template:
        with open(os.path.join(path, "chat_template.jinja"), "w") as f:
            f.write(template)
    return path


def line(name, url, **body):
    return json.dumps({"custom_id": name, "method": "POST", "url": url, "body": body})


def body(result):
    assert result["error"] is None, result
    return result["response"]["body"]


def scores(result):
    data = body(result)["data"]
    assert [entry["index"] for entry in data] == list(range(len(data))), data
    return [entry["score"] for entry in data]


def token_id(model, token):
    with open(os.path.join(model, "tokenizer.json")) as f:
        return json.load(f)["model"]["vocab"][token]


def pair_prompt(query, document, instruction=None):
    lead = f"I: {instruction}\n" if instruction else ""
    return f"{lead}Q: {query}\nD: {document}\nA:"


def test_a_score_is_the_probability_of_yes_against_no(directory):
    model = model_with(directory, template=TEMPLATE)
    # Among the likeliest tokens of completions of the same texts are the two, with their own log-probabilities.
    _, plain = harness.run(model, [
        line(f"{i}", "/v1/completions", prompt=pair_prompt(QUERY, document, instruction), max_tokens=1, temperature=0,
             logprobs=20) for i, (document, instruction) in enumerate(
                 [(d, None) for d in DOCUMENTS] + [(DOCUMENTS[0], "Judge")])], *FP32)
    tops = [body(result)["choices"][0]["logprobs"]["top_logprobs"][0] for result in plain]
    common = sorted(t for t in set.intersection(*(set(top) for top in tops)) if t.startswith(" ") and t[1:].isalpha())
    assert len(common) >= 2, tops
    no, yes = common[:2]
    expected = [1 / (1 + math.exp(top[no] - top[yes])) for top in tops]
    assert max(expected) - min(expected) > 0.01, expected
    flags = (*FP32, "--score-tokens", ",".join(t.replace(" ", "\u0120") for t in (no, yes)))
    lines = [line("all", "/v1/score", text_1=QUERY, text_2=DOCUMENTS),
             line("one", "/v1/score", text_1=QUERY, text_2=DOCUMENTS[2]),
             line("two", "/v1/score", queries=[QUERY] * 2, documents=DOCUMENTS[1:3]),
             line("instruction", "/v1/score", text_1=QUERY, text_2=DOCUMENTS[0], instruction="Judge"),
             line("rank", "/v1/rerank", query=QUERY, documents=DOCUMENTS),
             line("top", "/v1/rerank", query=QUERY, documents=DOCUMENTS, top_n=2, return_documents=False)]
    _, results = harness.run(model, lines, *flags)
    for got, want in zip(scores(results[0]), expected):
        assert abs(got - want) < 1e-4, (scores(results[0]), expected)
    assert scores(results[1]) == scores(results[0])[2:3]
    assert scores(results[2]) == scores(results[0])[1:3]
    assert abs(scores(results[3])[0] - expected[4]) < 1e-4
    usage = body(results[1])["usage"]
    assert usage == {"prompt_tokens": usage["total_tokens"], "total_tokens": usage["total_tokens"]}
    ranked = body(results[4])["results"]
    order = sorted(range(4), key=lambda i: -scores(results[0])[i])
    assert [entry["index"] for entry in ranked] == order
    assert [entry["document"]["text"] for entry in ranked] == [DOCUMENTS[i] for i in order]
    assert [entry["relevance_score"] for entry in ranked] == [scores(results[0])[i] for i in order]
    assert body(results[5])["results"] == [
        {k: entry[k] for k in ("index", "relevance_score")} for entry in ranked[:2]]
    # The model's files may name the tokens, too.
    module = {"1_LogitScore": {"true_token_id": token_id(model, yes.replace(" ", "\u0120")),
                               "false_token_id": token_id(model, no.replace(" ", "\u0120"))}}
    named = model_with(os.path.join(directory, "named"), [("Transformer", ""), ("LogitScore", "1_LogitScore")], module,
                       TEMPLATE)
    _, again = harness.run(named, lines, *FP32, "--workers", "2", "--max-step-tokens", "16", "--gbs", "3")
    assert [body(r).get("data", body(r).get("results")) for r in again] == [
        body(r).get("data", body(r).get("results")) for r in results]
    # Without a template for it, the prompt is Qwen3-Reranker's.
    _, qwen = harness.run(LLAMA, lines[:1], *flags)
    assert len(scores(qwen[0])) == 4 and scores(qwen[0]) != scores(results[0])
    assert body(qwen[0])["usage"]["prompt_tokens"] > body(results[0])["usage"]["prompt_tokens"] + 100


def test_a_score_of_embeddings_is_their_cosine(directory):
    model = model_with(directory, [("Transformer", ""), ("Pooling", "1_Pooling")],
                       {"1_Pooling": {"pooling_mode": "mean"}})
    _, results = harness.run(model, [
        line("vectors", "/v1/embeddings", input=[QUERY, *DOCUMENTS]),
        line("score", "/v1/score", text_1=QUERY, text_2=DOCUMENTS),
        line("pairs", "/v1/score", text_1=DOCUMENTS[:2], text_2=DOCUMENTS[1:3]),
        line("rank", "/v1/rerank", query=QUERY, documents=DOCUMENTS)], *FP32)
    vectors = [entry["embedding"] for entry in body(results[0])["data"]]

    def cosine(a, b):
        return sum(x * y for x, y in zip(a, b)) / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))
    for got, vector in zip(scores(results[1]), vectors[1:], strict=True):
        assert abs(got - cosine(vectors[0], vector)) < 1e-6
    for i, got in enumerate(scores(results[2])):
        assert abs(got - cosine(vectors[1 + i], vectors[2 + i])) < 1e-6
    ranked = body(results[3])["results"]
    assert [entry["relevance_score"] for entry in ranked] == sorted(scores(results[1]), reverse=True)
    assert ranked[0]["document"]["text"] == DOCUMENTS[ranked[0]["index"]]


def test_what_can_not_be_scored_says_why(directory):
    _, results = harness.run(LLAMA, [
        line("files", "/v1/score", text_1="a", text_2="b"), line("none", "/v1/score", text_1="a"),
        line("query", "/v1/rerank", documents=["a"]),
        line("lengths", "/v1/score", text_1=["a", "b"], text_2=["a", "b", "c"]),
        line("two", "/v1/rerank", query=["a", "b"], documents=["a", "b"]),
        line("names", "/v1/score", text_1="a", queries="b", text_2="c"),
        line("list", "/v1/rerank", query="a", documents=[1]),
        line("many", "/v1/rerank", query="a", documents=["a"] * 2048),
        line("top", "/v1/rerank", query="a", documents=["a"], top_n=-1)], *FP32, check=False)
    for result, part in zip(results, (
            "start with --score-tokens NO,YES", '"text_2" is missing', '"query" is missing',
            '"text_1" has 2 texts and "text_2" 3; give one, or as many', '"query" has 2 texts and "documents" 2; give one',
            '"queries" is there under another name, too', '"documents" must be a string, or a list of strings',
            '"documents" is a list of 2048; with the queries, a line takes at most 2048',
            '"top_n" must be an integer of at least 1, or 0 for all'), strict=True):
        assert part in result["error"]["message"], result
    for tokens, part in (("yes", "these are not two tokens"), ("a,a", "these are not two tokens"),
                         ("a,nothing-of-it", 'the tokenizer has no token "nothing-of-it"')):
        source = os.path.join(directory, "in.jsonl")
        harness.write_lines(source, [line("a", "/v1/score", text_1="a", text_2="b")])
        done = harness.sluice("run", "--model", LLAMA, "-i", source, "-o", source + ".out", "--score-tokens", tokens,
                              check=False)
        assert done.returncode != 0 and part in done.stderr, done.stderr
    lonely = model_with(directory, [("Transformer", ""), ("LogitScore", "1_LogitScore")],
                        {"1_LogitScore": {"true_token_id": 5}}, TEMPLATE)
    _, results = harness.run(lonely, [line("a", "/v1/score", text_1="a", text_2="b")], *FP32, check=False)
    assert "names no false_token_id" in results[0]["error"]["message"], results


harness.give_directories(globals())

if __name__ == "__main__":
    harness.run_tests(sys.modules[__name__])
