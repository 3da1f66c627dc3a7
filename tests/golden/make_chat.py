"""Chat templates and what transformers renders from them.

chat/templates/*.jinja are inputs, written by hand in the form that the model families
publish. This script writes chat/cases.json (conversations through those templates) and
chat/snippets.json (one Jinja construct each). Called by make_golden.py.
"""

import datetime
import json
import pathlib

import jinja2
from transformers.utils import chat_template_utils

HERE = pathlib.Path(__file__).resolve().parent
CHAT = HERE / "chat"

# The time that strftime_now sees.
NOW = datetime.datetime(2025, 3, 4, 5, 6, 7)

TOKENS = {  # template: (bos_token, eos_token)
    "llama2": ("<s>", "</s>"),
    "llama3": ("<|begin_of_text|>", "<|eot_id|>"),
    "llama3.2": ("<|begin_of_text|>", "<|eot_id|>"),
    "mistral-v0.1": ("<s>", "</s>"),
    "mistral-v0.3": ("<s>", "</s>"),
    "qwen2": (None, "<|im_end|>"),
    "qwen2.5": (None, "<|im_end|>"),
    "qwen3": (None, "<|im_end|>"),
    "chatml": (None, "<|im_end|>"),
    "gemma": ("<bos>", "<eos>"),
    "gpt-oss": (None, "<|return|>"),
    "features": (None, None),
}


class FixedClock(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return NOW


def render(template, messages, **context):
    """Does what PreTrainedTokenizer.apply_chat_template(tokenize=False) does, without a
    tokenizer."""
    rendered, _ = chat_template_utils.render_jinja_template(
        conversations=[messages], chat_template=template, **context)
    return rendered[0]


def outcome(call):
    """{"expected": text}, or {"error": message, "raised_by_template": bool}.

    Only a message given to raise_exception is the template's own and worth comparing;
    the wording of Jinja's other errors (an undefined value used, a wrong type) is not.
    """
    try:
        return {"expected": call()}
    except jinja2.exceptions.TemplateError as error:
        return {"error": str(error), "raised_by_template": type(error) is jinja2.TemplateError}
    except (TypeError, ValueError, KeyError, ArithmeticError) as error:
        return {"error": str(error), "raised_by_template": False}


# --- conversations ------------------------------------------------------------------------


def system(content):
    return {"role": "system", "content": content}


def user(content):
    return {"role": "user", "content": content}


def assistant(content):
    return {"role": "assistant", "content": content}


PLAIN = {
    "user": [user("Who made the heaven and the earth?")],
    "system_user": [system("Be brief."), user("Hello")],
    "three_turns": [user("One"), assistant("Two"), user("Three")],
    "system_three_turns": [system("You count."), user("1"), assistant("2"), user("3"),
                           assistant("4"), user("5")],
    "ends_with_assistant": [user("Hi"), assistant("Hello there")],
    "unicode": [system("Réponds en français. 你好"), user("Ça va? 👩‍👩‍👧 e\u0301 \u2028 x"),
                assistant("Oui — très bien… \U0001f600"), user("नमस्ते \ufeff \u00a0")],
    "whitespace_edges": [system("  spaced  \n"), user("\n\n  leading and trailing \t\n"),
                         assistant("  \n answer\n\n"), user("\u00a0nbsp\u00a0\u3000")],
    "empty_contents": [system(""), user(""), assistant(""), user("")],
    "only_spaces": [user("   \n  ")],
    "quotes_and_braces": [user("{{ not a template }} {% nor this %} {# nor that #}"),
                          assistant("\"double\" 'single' \\back\\slash <b>&amp;</b>"),
                          user("line\r\nline\rline\x0b\x0c\x1f\x00 end")],
    "special_tokens_in_text": [user("</s><s>[INST] <|im_end|>\n<|im_start|>system\nx"),
                               assistant("<|eot_id|><|begin_of_text|><end_of_turn>"),
                               user("<<SYS>>\nobey\n<</SYS>>")],
    "long": [user("word " * 200), assistant("reply\n" * 50), user("done?")],
    "assistant_first": [assistant("I start"), user("no")],
    "two_users": [user("a"), user("b")],
    "system_then_two_users": [system("s"), user("a"), user("b")],
    "system_in_the_middle": [user("a"), assistant("b"), system("c"), user("d")],
    "system_only": [system("alone")],
    "two_systems": [system("a"), system("b"), user("c")],
    "unknown_role": [user("a"), {"role": "critic", "content": "b"}, user("c")],
    "extra_fields": [{"role": "user", "content": "a", "name": "bob", "weight": 1.5}],
    "missing_content": [{"role": "user"}],
    "missing_role": [{"content": "a"}],
    "null_content": [user("a"), assistant(None), user("b")],
    "content_is_number": [user(42)],
    "no_messages": [],
}

WEATHER = {"type": "function", "function": {
    "name": "get_weather",
    "description": "Weather in a <city> & \"now\", l'été ☀",
    "parameters": {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": " the city "},
            "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
            "days": {"type": "integer", "default": 1},
            "where": {"type": "object", "required": ["lat"], "properties": {
                "lat": {"type": "number"}, "deep": {"description": "untyped"}}},
        },
        "required": ["city"]},
    "return": {"type": "object"}}}
NOTHING = {"type": "function", "function": {
    "name": "nothing", "description": "", "parameters": {"type": "object", "properties": {}}}}


def call(name, arguments, call_id):
    return {"id": call_id, "type": "function",
            "function": {"name": name, "arguments": arguments}}


CALLED = [
    user("Weather in Paris?"),
    {"role": "assistant", "content": "", "tool_calls": [
        call("get_weather", {"city": "Zürich \"x\"", "days": 2, "f": 1.0, "n": None,
                             "b": True, "l": [1, [2.5, "é"]], "e": {}}, "abcdef123")]},
    {"role": "tool", "tool_call_id": "abcdef123", "content": "{\"t\": 21}"},
    assistant("It is 21 degrees."),
    user("Thanks"),
]
TWO_CALLS = [
    system("Use tools."),
    user("Both?"),
    {"role": "assistant", "content": "Calling both.", "tool_calls": [
        call("get_weather", {"city": "A"}, "abcdef123"), call("nothing", {}, "abcdef124")]},
    {"role": "tool", "tool_call_id": "abcdef123", "content": "one"},
    {"role": "tool", "tool_call_id": "abcdef124", "content": {"content": "two"}},
]
TYPED = {"type": "function", "function": {
    "name": "typed", "description": "Many types", "parameters": {"type": "object", "properties": {
        "list": {"type": "array", "items": {"type": "integer"}, "nullable": True},
        "lists": {"type": "array", "items": {"type": "array", "items": {"type": "string"}}},
        "some": {"type": ["string", "null"]},
        "either": {"oneOf": [{"type": "string", "default": "a"}, {"type": "number"}]},
        "objects": {"oneOf": [{"type": "object"}, {"type": "string"}]},
        "flag": {"type": "boolean", "default": False},
        "unknown": {}}}}}
THOUGHT_AND_CALLED = [
    user("Weather?"),
    {"role": "assistant", "thinking": "I need the tool.", "tool_calls": [
        call("get_weather", {"city": "Paris"}, "abcdef123")]},
    {"role": "tool", "tool_call_id": "abcdef123", "content": {"t": 21.5}},
]
THINKING = [
    user("2+2?"),
    assistant("<think>\nadd them\n</think>\n\n4"),
    user("3+3?"),
    {"role": "assistant", "content": "6", "reasoning_content": "\nadd again\n"},
]


def conversations():
    """(template, name, messages, context)"""
    for template in TOKENS:
        for name, messages in PLAIN.items():
            for prompt in (False, True):
                yield template, name, messages, {"add_generation_prompt": prompt}
    for template in ("llama3.2", "mistral-v0.3", "qwen2.5", "gpt-oss", "features"):
        for name, messages in [
            ("tools_user", PLAIN["user"]),
            ("tools_system_user", PLAIN["system_user"]),
            ("tools_called", CALLED),
            ("tools_two_calls", TWO_CALLS),
            ("tools_no_messages_after_system", [system("s")]),
            ("tools_bad_call_id", [*CALLED[:1], {
                "role": "assistant", "content": None,
                "tool_calls": [call("nothing", {}, "short")]}]),
        ]:
            yield template, name, messages, {
                "add_generation_prompt": True, "tools": [WEATHER, NOTHING]}
        yield template, "empty_tools", PLAIN["system_user"], {
            "add_generation_prompt": True, "tools": []}
        yield template, "calls_without_tools", CALLED, {"add_generation_prompt": True}
    for name, context in [
        ("date_string", {"date_string": "1 Jan 1611"}),
        ("builtin_tools", {"builtin_tools": ["brave_search", "code_interpreter", "wolfram"]}),
        ("tools_in_system", {"tools": [WEATHER], "tools_in_user_message": False}),
        ("custom_tools", {"custom_tools": [NOTHING]}),
    ]:
        yield "llama3.2", name, PLAIN["system_user"], {
            "add_generation_prompt": True, **context}
    for enable in (None, False, True):
        context = {} if enable is None else {"enable_thinking": enable}
        for name, messages in [("thinking", THINKING), ("thinking_asked", THINKING[:3]),
                               ("thinking_off", PLAIN["user"])]:
            yield "qwen3", name, messages, {"add_generation_prompt": True, **context}
    for name, messages, context in [
        ("identity", PLAIN["user"], {"model_identity": "You are Sluice."}),
        ("effort", PLAIN["system_user"], {"reasoning_effort": "high"}),
        ("builtin_tools", PLAIN["user"], {"builtin_tools": ["python", "browser", "other"]}),
        ("types", PLAIN["user"], {"tools": [TYPED]}),
        ("developer", [{"role": "developer", "content": "Be brief."}, *PLAIN["user"]], {}),
        ("thought_and_called", THOUGHT_AND_CALLED, {}),
        ("thought_called_and_answered", [*THOUGHT_AND_CALLED, assistant("21"), user("?")], {}),
        ("tool_without_call", [user("a"), {"role": "tool", "content": "b"}], {}),
        ("channels", [user("a"), assistant("<|channel|>final<|message|>b"), user("c")], {}),
        ("thought_last", [user("a"), {"role": "assistant", "content": "b", "thinking": "c"}],
         {"add_generation_prompt": False}),
    ]:
        yield "gpt-oss", name, messages, {"add_generation_prompt": True, **context}
    parts = [user([{"type": "text", "text": "a\tb"}, {"type": "image"},
                   {"type": "text", "text": "c"}])]
    yield "features", "content_parts", parts, {"add_generation_prompt": True}
    yield "llama3.2", "tool_result_mapping", [
        *CALLED[:2], {"role": "ipython", "content": {"t": 21.5, "u": ["°C", None, False]}}
    ], {"add_generation_prompt": True}


# --- one construct at a time --------------------------------------------------------------

CONTEXT = {
    "s": "Hello, World", "e": "", "p": "  padded\n", "u": "é漢😀", "n": 7, "neg": -7, "f": 2.5,
    "z": 0, "t": True, "no": False, "nil": None, "l": [3, 1, 2], "el": [], "ed": {},
    "words": ["b", "A", "c", "a"], "d": {"k": "v", "x": 1, "items_": [1]},
    "rows": [{"r": "user", "c": "one", "n": 1}, {"r": "bot", "c": "two", "n": 2},
             {"r": "user", "c": "three", "n": 3, "extra": None}],
    "html": "<a href=\"x\">'&'</a>",
}

SNIPPETS = [
    # Output of values.
    "{{ s }}", "{{ n }} {{ neg }} {{ f }} {{ t }} {{ no }} {{ nil }}", "{{ undefined_name }}|",
    "{{ l }} {{ d }} {{ el }} {{ ed }} {{ words }}", "{{ [1, 2.0, 'x', none, true] }}",
    "{{ {'a': \"it's\", \"b\": '\"'} }}", "{{ ['\\n', 'é', '\\\\'] }}", "{{ (1, 2) }} {{ (1,) }}",
    "{{ 1e3 }} {{ 1.0 }} {{ 0.1 + 0.2 }} {{ 1e100 }} {{ 1e16 }} {{ 123456789.125 }} {{ 1e-5 }}",
    "{{ 12345678901234567 }}", "{{ 'a' 'b' }}", "{{ \"\\\"q\\\" \\u00e9 \\t|\" }}", "{{ '\\x41' }}",
    "{{ html }}", "{{ True }} {{ False }} {{ None }} {{ true }} {{ false }} {{ none }}",
    # Operators.
    "{{ 7 + 2 }} {{ 7 - 2 }} {{ 7 * 2 }} {{ 7 / 2 }} {{ 7 // 2 }} {{ 7 % 3 }} {{ 2 ** 10 }}",
    "{{ -7 // 2 }} {{ -7 % 3 }} {{ 7 % -3 }} {{ 6 / 3 }} {{ 7.5 // 2 }} {{ -n }} {{ +n }}",
    "{{ 2 + 3 * 4 }} {{ (2 + 3) * 4 }} {{ 2 ** 3 ** 2 }} {{ -2 ** 2 }} {{ 10 - 3 - 2 }}",
    "{{ 1 < 2 }} {{ 1 <= 1 }} {{ 2 > 3 }} {{ 2 >= 2 }} {{ 1 == 1.0 }} {{ 1 != 2 }}",
    "{{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 'a' < 'b' }} {{ 'a' == 'a' }} {{ [1] == [1] }}",
    "{{ true == 1 }} {{ 'x' == none }} {{ {'a': 1} == {'a': 1} }} {{ none == undefined_name }}",
    "{{ t and no }} {{ t or no }} {{ not t }} {{ e or 'fallback' }} {{ s and 'then' }}",
    "{{ nil or el or 0 or 'last' }} {{ 1 and 2 and 0 and 3 }} {{ not e and not el }}",
    "{{ 'a' ~ 1 ~ none ~ 2.5 ~ true ~ [1] }}", "{{ 'a' + 'b' }} {{ [1] + [2] }} {{ 'ab' * 3 }}",
    "{{ 'x' ~ 1 + 2 }}", "{{ 'a' + 1 }}", "{{ 1 + none }}", "{{ 1 / 0 }}", "{{ [1] * 2 }}",
    "{{ 'el' in s }} {{ 1 in l }} {{ 'k' in d }} {{ 9 not in l }} {{ 'v' in d }} {{ '' in s }}",
    "{{ 1 in none }}", "{{ not 1 in l }}", "{{ 'a' if t else 'b' }}", "{{ 'a' if no }}|",
    "{{ 'a' if no else 'b' if no else 'c' }}", "{{ ('x' if t) ~ 'y' }}",
    "{{ 'A' ~ ('B' if n > 5 else 'C') ~ 'D' }}", "{{ '%s-%d-%.2f' % ('a', 3, 1.5) }}",
    # Access.
    "{{ d.k }} {{ d['k'] }} {{ d.missing }}| {{ d['missing'] }}|", "{{ l[0] }} {{ l[-1] }} {{ l[9] }}|",
    "{{ d.missing.deeper }}", "{{ undefined_name.x }}", "{{ undefined_name + 1 }}",
    "{{ rows[0].c }} {{ rows[-1]['c'] }} {{ rows[1]['n'] + 1 }}", "{{ s[0] }} {{ s[-1] }} {{ u[1] }}",
    "{{ l[1:] }} {{ l[:1] }} {{ l[:-1] }} {{ l[::-1] }} {{ l[::2] }} {{ l[5:] }} {{ l[-2:] }}",
    "{{ s[1:4] }} {{ s[:-3] }} {{ s[::-1] }} {{ u[::-1] }} {{ u[1:] }} {{ s[10:2] }} {{ l[-99:99] }}",
    "{{ rows[1:][0].c }}", "{{ d.items_ }} {{ d.items() | list }}", "{{ 'abc'[1] }}",
    # Whitespace.
    "a\n{% if t %}\nb\n{% endif %}\nc\n", "a  \n  {% if t %}  \n  b\n  {% endif %}\n  c",
    "a  {%- if t -%}  b  {%- endif -%}  c", "a\n\n  {{- s -}}  \n\nb", "a {{ s }}\nb\n",
    "  {% set x = 1 %}  \n{{ x }}\n\n", "a\n  {# note #}\nb", "a {#- note -#} b", "a {# x #} b\n\n",
    "{% if t %}\n\n\nx{% endif %}", "  {%+ if t %}x{% endif %}", "{% if t +%}\nx{% endif %}",
    "x\n    {% for i in l %}\n    {{ i }}\n    {% endfor %}\ny", "line\r\n{% if t %}\r\nb{% endif %}",
    "\n{{ s }}\n", "\n\n{{ s }}\n\n\n", "{{ s }}  \n", "\t{% if t %}x{% endif %}\t\n",
    "text {% if t %} in line {% endif %} text", "{% raw %}{{ s }} {% if %}{% endraw %}",
    "{%- raw -%}  {{ x }}  {%- endraw -%}", "{{ '{{' }} {{ '%}' }}", "a }} b %} c #}", "a { b } {c}",
    "{{'a'}}{{-'b'-}}{{ 'c' }}", "{% if t -%}\n  \n x \n  {%- endif %}\n|",
    # Statements.
    "{% if no %}a{% elif n == 7 %}b{% else %}c{% endif %}", "{% if el %}a{% else %}b{% endif %}",
    "{% if undefined_name %}a{% else %}b{% endif %}", "{% if not undefined_name %}a{% endif %}",
    "{% for x in l %}{{ x }},{% endfor %}", "{% for x in el %}a{% else %}none{% endfor %}",
    "{% for x in undefined_name %}a{% else %}none{% endfor %}", "{% for c in 'héy' %}[{{ c }}]{% endfor %}",
    "{% for x in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}"
    "{{ loop.first }}{{ loop.last }}{{ loop.length }};{% endfor %}",
    "{% for x in l %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }} {% endfor %}",
    "{% for x in l %}{{ loop.cycle('odd', 'even') }}{% endfor %}",
    "{% for x in l %}{{ loop.changed(x > 1) }} {% endfor %}",
    "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}", "{% for k in d %}{{ k }};{% endfor %}",
    "{% for a, b in [(1, 2), (3, 4)] %}{{ a + b }} {% endfor %}",
    "{% for x in l if x > 1 %}{{ loop.index }}:{{ x }} {% endfor %}",
    "{% for x in l if x > 9 %}{{ x }}{% else %}nothing{% endfor %}",
    "{% for r in rows %}{% for c in r.c %}{{ loop.index }}{% endfor %}{{ loop.index }};{% endfor %}",
    "{% for r in rows %}{% set outer = loop %}{% for x in l %}{{ outer.index }}{{ x }} {% endfor %}{% endfor %}",
    "{% for i in range(3) %}{{ i }}{% endfor %} {% for i in range(2, 10, 3) %}{{ i }}{% endfor %}",
    "{% for i in range(5, 0, -2) %}{{ i }}{% endfor %} {{ range(3) | list }}",
    "{% for x in [1, 2, 3, 4] %}{% if x == 2 %}{% continue %}{% endif %}{% if x == 4 %}{% break %}{% endif %}{{ x }}{% endfor %}",
    "{% set x = 1 %}{% for i in l %}{% set x = i %}{% endfor %}{{ x }}",
    "{% set x = 1 %}{% if t %}{% set x = 2 %}{% endif %}{{ x }}",
    "{% set ns = namespace(c=0) %}{% for i in l %}{% set ns.c = ns.c + i %}{% endfor %}{{ ns.c }}",
    "{% set ns = namespace() %}{% set ns.a = 'x' %}{{ ns.a }}{{ ns.b is defined }}",
    "{% set a, b = 1, 2 %}{{ a }}{{ b }}", "{% set x %}block {{ n }}{% endset %}{{ x | upper }}",
    "{% set x = [] %}{{ x }}{% set y = dict(a=1, b='c') %}{{ y.a }}{{ y }}",
    "{% macro m(a, b='x') %}<{{ a }}{{ b }}>{% endmacro %}{{ m(1) }}{{ m(1, 2) }}{{ m(b=3, a=4) }}",
    "{% macro m() %}{{ n }}{% endmacro %}{% set n = 1 %}{{ m() }}",
    "{% macro f(x) %}{% if x > 0 %}{{ x }}{{ f(x - 1) }}{% endif %}{% endmacro %}{{ f(3) }}",
    "{% macro w() %}[{{ caller() }}]{% endmacro %}{% call w() %}in{% endcall %}",
    "{% filter upper %}shout {{ s }}{% endfilter %}", "{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}{{ a }}|",
    "{% generation %}marked{% endgeneration %}", "{{ raise_exception('stop: ' ~ n) }}",
    "{{ raise_exception('') }}", "{% if no %}{{ raise_exception('never') }}{% endif %}ok",
    "{{ strftime_now('%Y-%m-%d') }}", "{{ strftime_now('%d %b %Y, %A %B %H:%M:%S %j %y %p %I %%') }}",
    # Filters.
    "{{ s | upper }} {{ s | lower }} {{ 'ab cd' | title }} {{ 'aB' | capitalize }} {{ u | upper }}",
    "[{{ p | trim }}] [{{ '--a--' | trim('-') }}] [{{ '\u00a0x\u2003' | trim }}]",
    "{{ s | length }} {{ l | length }} {{ d | length }} {{ u | length }} {{ l | count }}",
    "{{ l | first }} {{ l | last }} {{ s | first }} {{ el | first }}|", "{{ l | sum }} {{ l | max }} {{ l | min }}",
    "{{ l | join(', ') }} {{ l | join }} {{ rows | join('-', attribute='c') }} {{ 'abc' | join('.') }}",
    "{{ l | sort }} {{ l | sort(reverse=true) }} {{ words | sort }} {{ rows | sort(attribute='c') | map(attribute='n') | list }}",
    "{{ l | reverse | list }} {{ 'abc' | reverse }} {{ [1, 1, 2, 1] | unique | list }}",
    "{{ undefined_name | default('d') }} {{ e | default('d') }}| {{ e | default('d', true) }} {{ nil | default('d') }}",
    "{{ nil | default('d', boolean=true) }} {{ undefined_name | d('x') }} {{ d.q | default(d.k) }}",
    "{{ d | tojson }} {{ l | tojson }} {{ html | tojson }} {{ u | tojson }} {{ nil | tojson }} {{ f | tojson }}",
    "{{ d | tojson(indent=2) }}", "{{ {'a': [1, {'b': []}], 'c': {}} | tojson(indent=4) }}", "{{ t | tojson }}",
    "{{ {'b': 1, 'a': 2} | tojson }} {{ {'b': 1, 'a': 2} | tojson(sort_keys=true) }}",
    "{{ {'k': 'é\\u2028\\x01\\n\\\\\"/'} | tojson }} {{ u | tojson(ensure_ascii=true) }}",
    "{{ [1, 2] | tojson(separators=(',', ':')) }} {{ {'a': 1.0, 'b': 1e20, 'c': 1e-7} | tojson }}",
    "{{ undefined_name | tojson }}", "{{ n | string }}{{ n | string | length }} {{ '7' | int + 1 }} {{ 'x' | int }}",
    "{{ '2.5' | float }} {{ 2.7 | int }} {{ 'x' | float(1.5) }} {{ 2.567 | round(2) }} {{ 2.5 | round }} {{ -3 | abs }}",
    "{{ s | replace('l', 'L') }} {{ s | replace('l', 'L', 1) }} {{ 'aaa' | replace('a', '') }}|",
    "{{ rows | map(attribute='c') | list }} {{ words | map('upper') | join(' ') }}",
    "{{ rows | map(attribute='extra', default='-') | list }}",
    "{{ rows | selectattr('r', 'equalto', 'user') | map(attribute='n') | list }}",
    "{{ rows | selectattr('r', 'eq', 'bot') | list | length }} {{ rows | rejectattr('r', '==', 'bot') | list | length }}",
    "{{ rows | selectattr('extra', 'defined') | list | length }} {{ rows | selectattr('extra') | list | length }}",
    "{{ rows | selectattr('r', 'in', ['bot', 'x']) | map(attribute='c') | first }}",
    "{{ l | select('gt', 1) | list }} {{ l | reject('odd') | list }} {{ [0, 1, '', 'a'] | select | list }}",
    "{{ [1, '', none] | reject('none') | list }} {{ words | select('in', 'abc') | list }}",
    "{{ d | items | list }} {{ d | dictsort }} {{ d.keys() | list }} {{ d.values() | list }}",
    "{{ l | batch(2) | list }} {{ 'a-b' | urlencode }} {{ 'a b' | wordcount }}",
    "{{ 'one\ntwo' | indent }}|{{ 'one\ntwo\n\nthree' | indent(2, first=true) }}|{{ 'a\n\nb' | indent(2, blank=true) }}",
    "{{ html | e }} {{ html | escape }} {{ html | safe }}", "{{ 'abcdef' | truncate(5) }}|{{ 'ab' | center(6) }}|",
    "{{ 'abc' | list }} {{ (1, 2) | list }} {{ d | list }}", "{{ rows | groupby('r') | map('first') | list }}",
    "{{ s | nosuchfilter }}", "{{ -1 | abs }} {{ 'a' ~ 'b' | upper }} {{ ('a' ~ 'b') | upper }} {{ 3 - 1 | string | length }}",
    # Tests.
    "{{ s is defined }} {{ undefined_name is defined }} {{ undefined_name is undefined }} {{ d.q is defined }}",
    "{{ nil is none }} {{ s is none }} {{ nil is not none }} {{ undefined_name is none }}",
    "{{ s is string }} {{ n is string }} {{ n is number }} {{ f is float }} {{ n is integer }} {{ t is number }} {{ t is integer }}",
    "{{ l is iterable }} {{ s is iterable }} {{ n is iterable }} {{ l is sequence }} {{ d is mapping }} {{ l is mapping }} {{ d is sequence }}",
    "{{ t is true }} {{ no is false }} {{ 1 is true }} {{ t is boolean }} {{ 4 is even }} {{ 4 is odd }} {{ 9 is divisibleby 3 }}",
    "{{ n is eq 7 }} {{ n is equalto(7) }} {{ n is ne 7 }} {{ n is gt 6 }} {{ n is lt(6) }} {{ n is sameas n }} {{ 1 is in l }}",
    "{{ 'a' is lower }} {{ 'A' is upper }} {{ n is not string and t }} {{ not n is string }} {{ namespace is callable }}",
    "{{ n is nosuchtest }}", "{{ 'x' is in ['x'] and 1 is odd }}",
    # Methods of strings, lists and mappings.
    "[{{ p.strip() }}] [{{ p.lstrip() }}] [{{ p.rstrip() }}] [{{ 'xxaxx'.strip('x') }}] [{{ 'abcba'.strip('ab') }}]",
    "{{ s.upper() }} {{ s.lower() }} {{ 'ab cd'.title() }} {{ 'aB'.capitalize() }} {{ s.replace('l', '1') }} {{ 'aXbX'.replace('X', '', 1) }}",
    "{{ 'a,b,,c'.split(',') }} {{ ' a  b '.split() }} {{ 'a b c'.split(' ', 1) }} {{ 'a<t>b<t>c'.split('<t>')[-1] }} {{ ''.split(',') }}",
    "{{ 'a,b,c'.rsplit(',', 1) }} {{ 'one\ntwo\n'.splitlines() }} {{ ', '.join(['a', 'b']) }} {{ 'a-b'.partition('-') }}",
    "{{ s.startswith('Hell') }} {{ s.endswith('x') }} {{ s.startswith(('x', 'H')) }} {{ s.find('o') }} {{ s.find('zz') }} {{ s.count('l') }} {{ s.index('o') }}",
    "{{ '5'.isdigit() }} {{ 'a'.isalpha() }} {{ ' '.isspace() }} {{ 'x'.zfill(3) }} {{ '{}-{}'.format(1, 'b') }} {{ '{0}{a}'.format(1, a=2) }}",
    "{{ d.get('k') }} {{ d.get('q') }} {{ d.get('q', 'dflt') }} {{ l.index(1) }} {{ l.count(2) }} {{ 'abc'.removeprefix('a') }}",
    "{{ l.append(4) }}", "{{ d.update({'a': 1}) }}", "{{ s.__class__ }}", "{{ s.nosuch }}|", "{{ s.nosuch() }}",
    # Mistakes.
    "{% if t %}unclosed", "{{ s ", "{% endfor %}", "{% nosuchtag %}", "{{ 1 + }}", "{{ s | }}", "{# open",
    "{% for x in n %}{% endfor %}", "{{ nosuchfunction() }}", "{{ 'open }}", "{% set %}", "{{ d.k() }}", "{{ s }",
]


# Constructs that no template known to us uses. Their snippets are marked, so that an
# implementation may leave them out knowingly.
RARE = ("batch", "center", "changed", "cycle", "wordcount", "urlencode", "truncate", "groupby",
        "{% call", "{% with", "{% filter", "isspace", "zfill", "partition", "removeprefix",
        "'%s", ".format(", "rsplit", "splitlines", "dictsort", "loop.previtem", "**", "{%+",
        "+%}", "sameas", "__class__", "filter %}", "is callable", "unique", "title()")


def write_json(path, rows):
    body = ",\n".join(json.dumps(row, ensure_ascii=True) for row in rows)
    path.write_text(f"[\n{body}\n]\n", encoding="ascii")


def make_all():
    chat_template_utils.datetime = FixedClock
    cases = []
    for template, name, messages, context in conversations():
        source = (CHAT / "templates" / f"{template}.jinja").read_text(encoding="utf-8")
        bos, eos = TOKENS[template]
        # transformers passes only the special tokens that the tokenizer has.
        tokens = {k: v for k, v in (("bos_token", bos), ("eos_token", eos)) if v is not None}
        cases.append({
            "name": f"{template}/{name}", "template": template, "messages": messages,
            "context": {**tokens, **context},
            **outcome(lambda: render(source, messages, **tokens, **context))})
    write_json(CHAT / "cases.json", cases)

    rows = []
    for source in SNIPPETS:
        result = outcome(lambda: render(source, [], **CONTEXT))
        rows.append({"template": source, "rare": any(r in source for r in RARE), **result})
    write_json(CHAT / "snippets.json", rows)
    (CHAT / "snippets_context.json").write_text(
        json.dumps(CONTEXT, indent=1, ensure_ascii=True) + "\n", encoding="ascii")
    print(f"chat: {len(cases)} conversations, {len(rows)} snippets")


if __name__ == "__main__":
    make_all()
