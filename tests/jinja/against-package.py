#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""
Chat templates against the package jinja2, set up as transformers does (utils/chat_template_utils.py).

  against-package.py golden                   golden.jsonl beside this file: templates and expressions, and what they write
  against-package.py compare RENDER [FILE...]  the same through the program tests/jinja/render, with the templates of these
                                              files, too; what it refuses is shown, another text is a failure
"""
import datetime
import json
import os
import subprocess
import sys

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

HERE = os.path.dirname(os.path.abspath(__file__))
NOW = datetime.datetime(2026, 2, 3, 12)

# ---- templates, as those of public models are written ---------------------------------------------

SMOLLM2 = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\\nYou are a helpful AI "
    "assistant named SmolLM, trained by Hugging Face<|im_end|>\\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\\n' + "
    "message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")

QWEN25 = r"""{%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- for tool in tools %}
        {{- "\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\n{\"name\": <function-name>}\n<|im_end|>\n" }}
{%- else %}
    {%- if messages[0]['role'] == 'system' %}
        {{- '<|im_start|>system\n' + messages[0]['content'] + '<|im_end|>\n' }}
    {%- else %}
        {{- '<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n' }}
    {%- endif %}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}
                {%- set tool_call = tool_call.function %}
            {%- endif %}
            {{- '\n<tool_call>\n{"name": "' }}{{- tool_call.name }}{{- '", "arguments": ' }}{{- tool_call.arguments | tojson }}{{- '}\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
"""

QWEN3 = r"""{%- if messages[0].role == 'system' %}
    {{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>' + '\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- else %}
            {%- if '</think>' in content %}
                {%- set reasoning_content = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
                {%- set content = content.split('</think>')[-1].lstrip('\n') %}
            {%- endif %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index %}
            {%- if loop.last or (not loop.last and reasoning_content) %}
                {{- '<|im_start|>' + message.role + '\n<think>\n' + reasoning_content.strip('\n') + '\n</think>\n\n' + content.lstrip('\n') }}
            {%- else %}
                {{- '<|im_start|>' + message.role + '\n' + content }}
            {%- endif %}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\n' + content }}
        {%- endif %}
        {{- '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- endif %}
{%- endif %}"""

LLAMA3 = (
    "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header_id|>' + message['role'] + "
    "'<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}"
    "{% endif %}{{ content }}{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}")

LLAMA32 = r"""{{- bos_token }}
{%- if custom_tools is defined %}
    {%- set tools = custom_tools %}
{%- endif %}
{%- if not tools_in_user_message is defined %}
    {%- set tools_in_user_message = true %}
{%- endif %}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}

{#- This block extracts the system message, so we can slot it into the right place. #}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}

{#- System message #}
{{- "<|start_header_id|>system<|end_header_id|>\n\n" }}
{%- if tools is not none %}
    {{- "Environment: ipython\n" }}
{%- endif %}
{{- "Cutting Knowledge Date: December 2023\n" }}
{{- "Today Date: " + date_string + "\n\n" }}
{%- if tools is not none and not tools_in_user_message %}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\n\n" }}
    {%- endfor %}
{%- endif %}
{{- system_message }}
{{- "<|eot_id|>" }}

{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("This model only supports single tool-calls at once!") }}
        {%- endif %}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}
"""

MISTRAL = r"""{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}

{#- This block checks for alternating user/assistant messages, skipping tool calling messages #}
{%- set ns = namespace() %}
{%- set ns.index = 0 %}
{%- for message in loop_messages %}
    {%- if not (message.role == "tool" or message.role == "tool_results" or (message.tool_calls is defined and message.tool_calls is not none)) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("After the optional system message, conversation roles must alternate user/assistant/user/assistant/...") }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}

{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\n\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + eos_token}}
    {%- else %}
        {{- raise_exception("Only user and assistant roles are supported, with the exception of an initial optional system message!") }}
    {%- endif %}
{%- endfor %}
"""

GEMMA3 = r"""{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- if messages[0]['content'] is string -%}
        {%- set first_user_prefix = messages[0]['content'] + '

' -%}
    {%- else -%}
        {%- set first_user_prefix = messages[0]['content'][0]['text'] + '

' -%}
    {%- endif -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("Conversation roles must alternate user/assistant/user/assistant/...") }}
    {%- endif -%}
    {%- if (message['role'] == 'assistant') -%}
        {%- set role = "model" -%}
    {%- else -%}
        {%- set role = message['role'] -%}
    {%- endif -%}
    {{ '<start_of_turn>' + role + '
' + (first_user_prefix if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'image' -%}
                {{ '<start_of_image>' }}
            {%- elif item['type'] == 'text' -%}
                {{ item['text'] | trim }}
            {%- endif -%}
        {%- endfor -%}
    {%- else -%}
        {{ raise_exception("Invalid content type") }}
    {%- endif -%}
    {{ '<end_of_turn>
' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{'<start_of_turn>model
'}}
{%- endif -%}
"""

PHI4 = (
    "{% for message in messages %}{% if (message['role'] == 'system') %}{{'<|im_start|>system<|im_sep|>' + message['content'] + '<|im_end|>'}}"
    "{% elif (message['role'] == 'user') %}{{'<|im_start|>user<|im_sep|>' + message['content'] + '<|im_end|>'}}"
    "{% elif (message['role'] == 'assistant') %}{{'<|im_start|>assistant<|im_sep|>' + message['content'] + '<|im_end|>'}}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant<|im_sep|>' }}{% endif %}")

DEEPSEEK = (
    "{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}{% set ns = namespace(is_first=false, "
    "is_tool=false, is_output_first=true, system_prompt='') %}{%- for message in messages %}{%- if message['role'] == 'system' %}{% set "
    "ns.system_prompt = message['content'] %}{%- endif %}{%- endfor %}{{bos_token}}{{ns.system_prompt}}{%- for message in messages %}"
    "{%- if message['role'] == 'user' %}{%- set ns.is_tool = false -%}{{'<User>' + message['content']}}{%- endif %}{%- if message['role'] == "
    "'assistant' and message['content'] is not none %}{% set content = message['content'] %}{% if '</think>' in content %}{% set content = "
    "content.split('</think>')[-1] %}{% endif %}{{'<Assistant>' + content + eos_token}}{%- endif %}{%- endfor -%}{% if add_generation_prompt "
    "and not ns.is_tool %}{{'<Assistant><think>\\n'}}{% endif %}")

SMOLLM3 = r"""{# ───── defaults ───── #}
{%- if enable_thinking is not defined -%}
{%- set enable_thinking = true -%}
{%- endif -%}

{# ───── reasoning mode ───── #}
{%- if enable_thinking -%}
  {%- set reasoning_mode = "/think" -%}
{%- else -%}
  {%- set reasoning_mode = "/no_think" -%}
{%- endif -%}

{# ───── header (system message) ───── #}
{{- "<|im_start|>system\n" -}}

{%- if messages[0].role == "system" -%}
  {%- set system_message = messages[0].content -%}
  {%- if "/no_think" in system_message -%}
    {%- set reasoning_mode = "/no_think" -%}
  {%- elif "/think" in system_message -%}
    {%- set reasoning_mode = "/think" -%}
  {%- endif -%}
  {%- set custom_instructions = system_message.replace("/no_think", "").replace("/think", "").rstrip() -%}
{%- endif -%}

{%- if "/system_override" in system_message -%}
  {{- custom_instructions.replace("/system_override", "").rstrip() -}}
  {{- "<|im_end|>\n" -}}
{%- else -%}
  {{- "## Metadata\n\n" -}}
  {{- "Knowledge Cutoff Date: June 2025\n" -}}
  {%- set today = strftime_now("%d %B %Y") -%}
  {{- "Today Date: " ~ today ~ "\n" -}}
  {{- "Reasoning Mode: " + reasoning_mode + "\n\n" -}}

  {{- "## Custom Instructions\n\n" -}}
  {%- if custom_instructions -%}
    {{- custom_instructions + "\n\n" -}}
  {%- elif reasoning_mode == "/think" -%}
    {{- "You are a helpful AI assistant named SmolLM, trained by Hugging Face.\n\n" -}}
  {%- endif -%}

  {%- if xml_tools or python_tools or tools -%}
    {{- "### Tools\n\n" -}}
    {%- if xml_tools or tools -%}
      {%- for tool in tools -%}
        {{- tool | string -}}
      {%- endfor -%}
    {%- endif -%}
  {%- endif -%}
  {{- "<|im_end|>\n" -}}
{%- endif -%}
{# ───── main loop ───── #}
{%- for message in messages -%}
    {%- set content = message.content if message.content is string else "" -%}
    {%- if message.role == "user" -%}
        {{ "<|im_start|>" + message.role + "\n"  + content + "<|im_end|>\n" }}
    {%- elif message.role == "assistant" -%}
        {% generation %}
        {%- if reasoning_mode == "/think" -%}
            {{ "<|im_start|>assistant\n" + content.lstrip("\n") + "<|im_end|>\n" }}
        {%- else -%}
            {{ "<|im_start|>assistant\n" + "<think>\n\n</think>\n" + content.lstrip("\n") + "<|im_end|>\n" }}
        {%- endif -%}
        {% endgeneration %}
    {%- endif -%}
{%- endfor -%}
{# ───── generation prompt ───── #}
{%- if add_generation_prompt -%}
    {%- if reasoning_mode == "/think" -%}
        {{ "<|im_start|>assistant\n" }}
    {%- else -%}
        {{ "<|im_start|>assistant\n" + "<think>\n\n</think>\n"  }}
    {%- endif -%}
{%- endif -%}
"""

MACROS = r"""{%- macro render(content, mark='-', last=false) -%}
    {%- if content is string -%}{{ mark ~ content }}{%- else -%}
        {%- for item in content %}{{ item.text }}{{ ', ' if not loop.last }}{% else %}nothing{% endfor -%}
    {%- endif -%}
    {%- if last %}!{% endif -%}
{%- endmacro -%}
{%- for m in messages %}
  {%- set text %}
    [{{ render(m.content, last=loop.last) }}|{{ render(m.content, '*')|trim }}]
  {% endset %}
  {{- loop.index }}/{{ loop.length }} {{ loop.revindex0 }} {{ loop.previtem.role if loop.previtem is defined }} {{ text.strip() }}
{% endfor %}
{{ render([]) }} end
"""

TEMPLATES = {"smollm2": SMOLLM2, "qwen2.5": QWEN25, "qwen3": QWEN3, "llama3": LLAMA3, "llama3.2": LLAMA32, "mistral": MISTRAL,
             "gemma3": GEMMA3, "phi4": PHI4, "deepseek": DEEPSEEK, "smollm3": SMOLLM3, "macros": MACROS}

# ---- expressions, and the white space around tags ---------------------------------------------------

EXPRESSIONS = r"""
1 + 2 * 3 - 4 | 7 // 2 ~ -7 // 2 ~ -7 % 3 ~ 7 % -3 | (1 if n > 2 else 2) | 'a' if false | 1 < 2 < 3 | 3 > 2 > 2
not n or s and l | n and s | none or 'x' | s is defined and u is not defined | n is odd and not n is even | n is number
true ~ false ~ none | true == 1 | 1 == 1 != 2 | 'b' in s | 'x' not in l | 'a' in m | none in l | s[0:0] if false else 'k'
l[0] ~ l[-1] ~ l[1:] | join(',') | l[::-1] | join | l[-2:99] | join | l[5:] | length | l[2:0:-1] | join(n) | l | first ~ l | last
s | upper | lower | replace('b', 'Bee') | s.split('b')[1] | s.split('b', 0) | length | (s ~ n).endswith('3') | ' é ' | trim | length
'\u3000x\x20' | m.a.b | m['a']['b'] | m.get('a').get('c', 'no') | m.items() | length | m | tojson | [1, 'é', {'k': none}] | tojson
u | default('d') | '' | default('d') | '' | default('d', true) | u ~ 'x' | u | length | u == v | l | selectattr('x') | list | length
rows | selectattr('k', 'equalto', 1) | list | length | rows | rejectattr('k', 'defined') | list | length | (l + [4])[-1] | 'a' 'b' "c"
s is string and l is iterable and m is mapping and none is none and l is sequence | false is false | n is in [1, 3] | n is eq 3
'{{ x }}' | "a\"b\\n" | 10 - 2 - 3 | 2 * -3 | -n | -n | string | (1,) | length | (n) + 1 | {'a': {'b': 'deep'}}['a']['b'] | ['x' if n else 'y'][0]
'ab' < 'b' and 'é' > 'z' | 1 <= 1 and 2 >= 3 | 'x' is string if n else 1 | not n == 3 | [n, n + 1] | join('-') | s.strip('ac') | s.lstrip('a') ~ s.rstrip('c')
strftime_now('%Y-%m-%d') | (l | length - 1) ~ l | length | m.keys() | join | 'Z' * 2 | 1.5 | 7 / 2 | l | s | map('upper') | l.append(1) | u.x | u + 1 | n[0] | s + 1
"""

SPACES = [
    "a\n  {% if true %}\n  b\n  {% endif %}\nc\n", "a\n  {%- if true -%}\n  b\n  {%- endif -%}\nc\n", "a  {{ 'x' }}  \n b\n\n",
    "{# c #}\n  {# d #}\nx {#- e -#} y\n", "  {%+ if true %}\n x {%- endif +%}\n y", "{% for i in [1, 2] %}\n{{ i }}\n{% endfor %}\n",
    "x {%- for i in [] %}{% else %} none {% endfor %}", "\r\na\r\n{% if true %}\r\nb{% endif %}\r", "{{- ' a ' -}}\n \n b {{- 'c' }} \n",
    "{{ '}}' }}{{ {'a': {'b': 1}}['a']['b'] }}", "\t {% set x = 1 %} {{ x }}{% set x %} q {% endset %}{{ x }}", "a\u00a0{%- if true %}b{% endif -%}\u3000c",
    "{% for k, v in {'a': 1, 'b': 2}.items() %}{{ k }}{{ v }}{% endfor %}", "{% set x = 1 %}{% for i in [1] %}{% set x = 2 %}{% endfor %}{{ x }}",
    "{% for i in [1, 2, 3, 4] if i % 2 == 0 %}{{ i }}{{ loop.index }}{{ loop.last }}{% endfor %}", "{% if false %}a{% elif n %}b{% else %}c{% endif %}",
    "{% set ns = namespace(a=1, b=[1]) %}{% for i in [1, 2] %}{% set ns.a = ns.a + i %}{% set ns.b = ns.b + [i] %}{% endfor %}{{ ns.a }}{{ ns.b | join }}",
    "{% for i in [1, 2] %}{% for j in [1, 2] %}{{ loop.index }}{% endfor %}{{ loop.index }}{% endfor %}", "{{ 1 }}\n", "{{ 1 }}\n\n", "\n", "",
]

# What must be refused, or be what jinja2 writes.
BROKEN = ["{% if x %}", "{{ 'a", "{{ a", "{% endif %}", "{# a", "{% raw %}{{ x }}{% endraw %}", "{% include 'x' %}", "{{ x | nosuch }}", "{{ f() }}",
          "{% set a, b = 1, 2 %}{{ a }}", "{{ [1, 2] }}", "{{ {'a': 1} }}", "{{ 1 if }}", "{{ not }}", "{{ 'a' is nosuch }}", "{% else %}", "{% break %}",
          "{{ raise_exception('no') }}", "{% for x in 5 %}{% endfor %}", "{% set s.x = 1 %}", "{{ '\\d' }}", "{{ ((((1)))) }}", "{{ x y }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}",
          "{% macro m(a) %}{{ m(a) }}{% endmacro %}{{ m(1) }}", "{" * 3, "{{" + "(" * 500, "{{" + "-" * 500 + "1 }}", "{{" + "not " * 5000 + "1 }}", "{% if 1 %}" * 300]

# ---- probes -----------------------------------------------------------------------------------------


def said(role, content):
    return {"role": role, "content": content}


DIALOGUES = [
    [said("user", "Hi")],
    [said("system", "Be brief."), said("user", "  the quick \n fox ")],
    [said("user", "one"), said("assistant", "two"), said("user", "three")],
    [said("system", " Say /no_think. "), said("user", "1"), said("assistant", "<think>\nhm\n</think>\n\n2 "), said("user", "3"),
     said("assistant", " 4"), said("user", "ä ö \u3000")],
    [said("user", ""), said("assistant", "\n"), said("user", "<tool_response>x</tool_response>")],
    [said("user", "a"), said("user", "b")],
]
NAMES = {"n": 3, "s": "abc", "l": [1, 2, 3], "m": {"a": {"b": "deep"}}, "rows": [{"k": 1}, {"k": 2}, {}]}


def cases():
    """Pairs of a template, by name or source, and variables."""
    for name in TEMPLATES:
        for messages in DIALOGUES:
            for generation in (False, True):
                for more in ({}, {"enable_thinking": False}):
                    yield name, {"messages": messages, "tools": None, "documents": None, "bos_token": "<s>", "eos_token": "</s>",
                                 "add_generation_prompt": generation, **more}
    parts = [p.strip() for line in EXPRESSIONS.strip().splitlines() for p in line.split(" | ")]
    # What stands between two bars may be an expression or a filter: all runs of up to four parts are tried.
    for n in range(1, 5):
        for i in range(len(parts) - n + 1):
            yield "{{ " + " | ".join(parts[i:i + n]) + " }}", NAMES
    for source in SPACES + BROKEN:
        yield source, NAMES


def expected(source, variables):
    """What jinja2 writes, or None."""
    class Generation(jinja2.ext.Extension):
        tags = {"generation"}

        def parse(self, parser):
            next(parser.stream)
            return parser.parse_statements(["name:endgeneration"], drop_needle=True)

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = NOW.strftime
    try:
        return env.from_string(source).render(**variables)
    except Exception:  # of the template's own, or of Python for an expression that has no value
        return None


def golden():
    with open(os.path.join(HERE, "golden.jsonl"), "w") as f:
        for name, source in TEMPLATES.items():
            print(json.dumps({"name": name, "template": source}, ensure_ascii=False), file=f)
        for name, variables in cases():
            text = expected(TEMPLATES.get(name, name), variables)
            key = {"of": name} if name in TEMPLATES else {"template": name}
            if name in TEMPLATES or len(name) < 200:
                shown = {} if variables is NAMES else {"variables": variables}
                print(json.dumps({**key, **shown, "text": text}, ensure_ascii=False), file=f)
        print(json.dumps({"variables": NAMES}), file=f)


def compare(program, files):
    for path in files:
        with open(path) as f:
            TEMPLATES[path] = f.read()
    rows = [(name, {"template": TEMPLATES.get(name, name), "variables": variables}) for name, variables in cases()]
    out = subprocess.run([program], input="".join(json.dumps(row) + "\n" for _, row in rows), capture_output=True, text=True, check=True,
                         env={**os.environ, "TZ": "UTC"}).stdout.splitlines()
    assert len(out) == len(rows), (len(out), len(rows))
    refused, wrong = {}, 0
    for (name, row), line in zip(rows, out):
        text = expected(row["template"], row["variables"])
        if line.startswith("error "):
            if text is not None:
                refused.setdefault((name[:100], line[6:]), text[:60])
        elif json.loads(line) != text:
            wrong += 1
            print("OTHER", name[:200], row["variables"] if name in TEMPLATES else "", "\n  jinja2", repr(text), "\n  here  ", line)
    for (name, why), text in refused.items():
        print(f"refused: {name!r} {why} (jinja2: {text!r})")
    print(f"{len(rows)} cases, {len(refused)} refused, {wrong} other texts")
    return wrong > 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["compare"] and len(sys.argv) > 2:
        sys.exit(compare(sys.argv[2], sys.argv[3:]))
    if sys.argv[1:] != ["golden"]:
        sys.exit(__doc__)
    golden()
