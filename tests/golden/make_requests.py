"""Requests in OpenAI's form, and the prompts that Hugging Face makes of them.

Writes chat/requests.json. What OpenAI's form and the one of apply_chat_template have apart
(arguments of tool calls as a string, choices about tools) is told twice here, so that the
judge is asked without any code in between. Called by make_golden.py.
"""

import json
import pathlib

from make_chat import render, write_json

HERE = pathlib.Path(__file__).resolve().parent
CHAT = HERE / "chat"
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


def part(text):
    return {"type": "text", "text": text}


def body_of(*contents):
    """A system message, then question and answer in turns."""
    roles = ["system"] + ["user", "assistant"] * len(contents)
    return [{"role": role, "content": content} for role, content in zip(roles, contents)]


# These templates put parts together, each in its way.
TURNS = "{% for m in messages %}<{{ m.role }}>"
END = "</>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
TAKE_PARTS = {
    "loop": TURNS + "{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}" + END,
    "loop by type": TURNS + "{% if m['content'] is not string %}{% for p in m['content'] %}"
    "{% if p['type'] == 'text' %}{{ p['text'] | trim }}|{% else %}"
    "{{ raise_exception('no text') }}{% endif %}{% endfor %}{% else %}{{ m['content'] }}"
    "{% endif %}" + END,
    "macro": "{% macro text(c) %}{% if c is string %}{{ c }}{% elif c is iterable and c is not "
    "mapping %}{% for p in c %}{% if 'text' in p %}{{ p.text }}{% endif %}{% endfor %}"
    "{% endif %}{% endmacro %}{% for m in messages %}<{{ m.role }}>{{ text(m.content) }}" + END,
    "join": TURNS + "{{ m.content if m.content is string else "
    "m.content | map(attribute='text') | join('+') }}" + END,
}
# These templates do not put parts together: Hugging Face prints the list as code, drops it, takes
# its first part alone, or fails.
TAKE_TEXT = {
    "print": TURNS + "{{ m.content }}" + END,
    "json": TURNS + "{{ m | tojson }}" + END,
    "drop": TURNS + "{% if m.content is string %}{{ m.content }}{% endif %}" + END,
    "first": TURNS + "{{ m.content if m.content is string else m.content[0].text }}" + END,
    "add": TURNS + "{{ '' + m.content }}" + END,
    "trim": TURNS + "{{ m.content.strip() }}" + END,
    "refuse": "{% for m in messages %}{% if m.content is not string %}"
    "{{ raise_exception('text only') }}{% endif %}<{{ m.role }}>{{ m.content }}" + END,
}
# This template takes parts of the user's messages alone.
MIXED = (TURNS + "{% if m.role == 'user' and m.content is not string %}{% for p in m.content %}"
         "{{ p.text }}{% endfor %}{% else %}{{ m.content }}{% endif %}" + END)

CALLS = (
    "{% if tools %}{{ tools | tojson }}{% endif %}"
    "{% if documents %}{{ documents | tojson }}{% endif %}"
    "{% if reasoning_effort is defined %}[{{ reasoning_effort }}]{% endif %}"
    "{% for m in messages %}<{{ m.role }}>{{ '' if m.content is none else m.content }}"
    "{% if m.reasoning_content is defined %}({{ m.reasoning_content }}){% endif %}"
    "{% if 'tool_calls' in m %}{% for c in m.tool_calls %}{{ c.id }} {{ c.function.name }}"
    "{% for k, v in c.function.arguments.items() %} {{ k }}={{ v | tojson }}{% endfor %}"
    "{% endfor %}{% endif %}{{ m.tool_call_id }}" + END)
# This template is like CALLS, but for arguments that stay a string.
TEXT_CALLS = (
    TURNS + "{{ m.content }}{% for c in m.tool_calls or [] %}"
    "{{ c.function.name + '(' + c.function.arguments + ')' }}{% endfor %}" + END)
SHOW = "{{ messages | tojson }}{{ given | tojson }}"

TOOLS = [{"type": "function", "function": {
    "name": "weather", "description": "Ask for the weather",
    "parameters": {"type": "object", "required": ["where"], "properties": {
        "where": {"type": "string"}, "again": {"type": "boolean"}}}}}]
ARGUMENTS = {"where": "Köln", "again": False, "a": {"z": 1, "b": [None, 1.5]}}


def calls(arguments):
    return [{"id": "call00001", "type": "function",
             "function": {"name": "weather", "arguments": arguments}}]


def conversation(arguments, content=None, **message):
    return [{"role": "user", "content": "Rain?"},
            {"role": "assistant", "content": content, "tool_calls": calls(arguments), **message},
            {"role": "tool", "tool_call_id": "call00001", "content": "yes"}]


def requests():
    """(name, template, body, messages for the judge, its other variables)"""
    parts = [part("One "), part(" Two")]
    for content in (parts, parts[:1], [part("")] + parts):
        messages = body_of(content, content, content, "plain", content)
        for name, template in TAKE_PARTS.items():
            yield name, template, {"messages": messages}, messages, {}
        joined = "\n".join(p["text"] for p in content)
        as_text = body_of(joined, joined, joined, "plain", joined)
        for name, template in TAKE_TEXT.items():
            yield name, template, {"messages": messages}, as_text, {}
        yield ("mixed", MIXED, {"messages": messages},
               body_of(joined, content, joined, "plain", joined), {})

    said = body_of("S", "Q")
    for body, given in [
        ({"tools": TOOLS}, {"tools": TOOLS}),
        ({"tools": TOOLS, "tool_choice": "auto", "parallel_tool_calls": True}, {"tools": TOOLS}),
        ({"tools": TOOLS, "tool_choice": "none", "parallel_tool_calls": False}, {}),
        ({"tools": [], "tool_choice": "none", "documents": [], "functions": []}, {}),
        ({"tools": None, "tool_choice": None, "reasoning_effort": None}, {}),
        ({"documents": [{"title": "t", "text": "x"}]}, {"documents": [{"title": "t", "text": "x"}]}),
        ({"reasoning_effort": "high"}, {"reasoning_effort": "high"}),
        ({"chat_template_kwargs": {"tools": TOOLS}}, {"tools": TOOLS}),
    ]:
        yield "given", CALLS, {"messages": said, **body}, said, given
    for arguments in (ARGUMENTS, {}):
        for content in (None, "Let me see."):
            judged = conversation(arguments, content, reasoning_content="hm")
            for form in (arguments, json.dumps(arguments)):
                sent = conversation(form, content, reasoning_content="hm")
                yield "calls", CALLS, {"messages": sent}, judged, {}
    yield "no arguments", CALLS, {"messages": conversation("")}, conversation({}), {}
    text = conversation(json.dumps(ARGUMENTS), "")
    yield "text calls", TEXT_CALLS, {"messages": text}, text, {}
    nothing = [{"role": "user", "content": "Q"},
               {"role": "assistant", "content": "A", "tool_calls": [], "refusal": None,
                "annotations": [], "name": None}, {"role": "user", "content": "R"}]
    yield ("nothing", CALLS, {"messages": nothing},
           [{k: v for k, v in m.items() if v} for m in nothing], {})
    for file in ("qwen2.5", "llama3.2", "mistral-v0.3"):
        template = (CHAT / "templates" / f"{file}.jinja").read_text(encoding="utf-8")
        kwargs = {"date_string": "1 Jan 1611"}
        judged = conversation(ARGUMENTS, "")
        sent = conversation(json.dumps(ARGUMENTS), "")
        yield (file, template, {"messages": sent, "tools": TOOLS, "chat_template_kwargs": kwargs},
               judged, {"tools": TOOLS, **kwargs})

    # The order of names is that of the request.
    ordered = [{"content": "x", "name": "n", "role": "user"}, {"role": "user", "content": "y"}]
    given = {"b": 1, "a": {"d": 1, "c": [{"z": 0, "y": 1}]}}
    yield ("order", SHOW, {"messages": ordered, "chat_template_kwargs": {"given": given}},
           ordered, {"given": given})


def make_all():
    rows = []
    for name, template, body, messages, context in requests():
        expected = render(template, messages, add_generation_prompt=True, **TOKENS, **context)
        rows.append({"name": name, "template": template, "body": body, "expected": expected})
    write_json(CHAT / "requests.json", rows)
    print(f"requests: {len(rows)}")


if __name__ == "__main__":
    make_all()
