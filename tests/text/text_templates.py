"""Chat templates written for these tests, in the styles that published models use.

Each names the control strings of its style; the conversations are what they are rendered with.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Style:
    """One template, its control tokens, and what else it can take."""

    source: str
    controls: tuple[str, ...]
    bos_token: str | None = None
    eos_token: str | None = None
    extras: tuple[dict[str, Any], ...] = ({},)
    has_tools: bool = False
    # Whether the text of a message may decide which control tokens are written.
    reads_content: bool = False
    all_controls: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        special = [token for token in (self.bos_token, self.eos_token) if token]
        object.__setattr__(self, "all_controls", frozenset((*self.controls, *special)))


CHATML = ("<|im_start|>", "<|im_end|>")

STYLES: dict[str, Style] = {}

STYLES["chatml"] = Style(
    """{% for message in messages %}
{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}
{% endfor %}
{% if add_generation_prompt %}
{{ '<|im_start|>assistant\\n' }}
{% endif %}
""",
    CHATML,
)

STYLES["chatml with a system line of its own"] = Style(
    """{%- if messages[0].role != 'system' -%}
    {{- '<|im_start|>system\\nYou answer briefly.<|im_end|>\\n' -}}
{%- endif -%}
{%- for m in messages %}
    {%- set is_last = loop.last and not add_generation_prompt %}
    {{- '<|im_start|>' ~ m.role ~ '\\n' ~ (m.content or '') ~ '<|im_end|>' }}
    {%- if not is_last %}{{ '\\n' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}""",
    CHATML,
    eos_token="<|im_end|>",
)

STYLES["llama 3"] = Style(
    """{{- bos_token }}
{%- if custom_tools is defined %}{% set tools = custom_tools %}{% endif %}
{%- if not date_string is defined %}
    {%- set date_string = "26 Jul 2024" %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set preamble = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set preamble = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if tools is not none %}{{ "Environment: ipython\\n" }}{% endif %}
{{- "Today Date: " + date_string + "\\n\\n" }}
{%- if tools is not none %}
    {{- "Functions you may call:\\n\\n" }}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{{- preamble }}<|eot_id|>
{%- for message in messages %}
    {%- if not (message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
        {{- message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("One call at a time, or none at all.") }}
        {%- endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}
        {{- '{"name": "' + call.name + '", ' }}
        {{- '"parameters": ' }}
        {{- call.arguments | tojson }}
        {{- "}" }}
        {{- "<|eot_id|>" }}
    {%- else %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
""",
    ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    bos_token="<|begin_of_text|>",
    eos_token="<|eot_id|>",
    extras=({}, {"date_string": "1 May 2025"}, {"date_string": "<|eot_id|>"}),
    has_tools=True,
)

STYLES["llama 2"] = Style(
    """{% if messages[0]['role'] == 'system' %}
{% set turns = messages[1:] %}{% set system = messages[0]['content'] %}
{% else %}{% set turns = messages %}{% set system = false %}{% endif %}
{% for message in turns %}
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('Roles must alternate: user, assistant, user, assistant ...') }}
{% endif %}
{% if loop.index0 == 0 and system != false %}
{% set content = '<<SYS>>\\n' + system + '\\n<</SYS>>\\n\\n' + message['content'] %}
{% else %}{% set content = message['content'] %}{% endif %}
{% if message['role'] == 'user' %}
{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}
{% elif message['role'] == 'assistant' %}
{{ ' ' + content.strip() + ' ' + eos_token }}
{% endif %}{% endfor %}""",
    (),
    bos_token="<s>",
    eos_token="</s>",
)

STYLES["mistral"] = Style(
    """{%- set loop_messages = messages %}
{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == user_messages[-1]) %}
            {{- "[AVAILABLE_TOOLS] [" }}
            {%- for tool in tools %}
                {%- set tool = tool.function %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, val in tool.items() if key != "return" %}
                    {%- if val is string %}
                        {{- '"' + key + '": "' + val + '"' }}
                    {%- else %}
                        {{- '"' + key + '": ' + val|tojson }}
                    {%- endif %}
                    {%- if not loop.last %}{{- ", " }}{%- endif %}
                {%- endfor %}
                {{- "}}" }}
                {%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" }}{%- endif %}
            {%- endfor %}
            {{- "[/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message.tool_calls is defined and message.tool_calls is not none %}
        {{- "[TOOL_CALLS] [" }}
        {%- for tool_call in message.tool_calls %}
            {%- set out = tool_call.function|tojson %}
            {{- out[:-1] }}
            {{- ', "id": "' + (tool_call.id | default("none", true))[:9] + '"}' }}
            {%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" + eos_token }}{%- endif %}
        {%- endfor %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + eos_token }}
    {%- elif message["role"] in ["tool", "tool_results"] %}
        {{- '[TOOL_RESULTS] {"content": ' + message["content"]|string + ", " }}
        {{- '"call_id": "' + message.get("tool_call_id", "?") + '"}[/TOOL_RESULTS]' }}
    {%- else %}
        {{- raise_exception("Only user, assistant, and tool roles are known here.") }}
    {%- endif %}
{%- endfor %}
""",
    (
        "[INST]",
        "[/INST]",
        "[AVAILABLE_TOOLS]",
        "[/AVAILABLE_TOOLS]",
        "[TOOL_CALLS]",
        "[TOOL_RESULTS]",
        "[/TOOL_RESULTS]",
    ),
    bos_token="<s>",
    eos_token="</s>",
    has_tools=True,
)

STYLES["gemma"] = Style(
    """{{ bos_token }}{% if messages[0]['role'] == 'system' %}
{{ raise_exception('System role not supported') }}{% endif %}
{% for message in messages %}
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
{% endif %}
{% if (message['role'] == 'assistant') %}{% set role = 'model' %}
{% else %}{% set role = message['role'] %}{% endif %}
{{ '<start_of_turn>' + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}
{% endfor %}{% if add_generation_prompt %}{{'<start_of_turn>model\\n'}}{% endif %}""",
    ("<start_of_turn>", "<end_of_turn>"),
    bos_token="<bos>",
    eos_token="<eos>",
)

STYLES["phi"] = Style(
    """{% for message in messages %}{{'<|' + message['role'] + '|>' + '\\n' }}
{{- message['content'] + '<|end|>\\n'}}{% endfor %}
{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% else %}{{ eos_token }}{% endif %}""",
    ("<|system|>", "<|user|>", "<|assistant|>", "<|end|>", "<|tool|>"),
    eos_token="<|endoftext|>",
)

STYLES["zephyr"] = Style(
    """{% for message in messages %}
    {% if message['role'] == 'user' %}
        {{ '<|user|>\\n' + message['content'] + eos_token }}
    {% elif message['role'] == 'system' %}
        {{ '<|system|>\\n' + message['content'] + eos_token }}
    {% elif message['role'] == 'assistant' %}
        {{ '<|assistant|>\\n'  + message['content'] + eos_token }}
    {% endif %}
    {% if loop.last and add_generation_prompt %}
        {{ '<|assistant|>' }}
    {% endif %}
{% endfor %}""",
    ("<|user|>", "<|system|>", "<|assistant|>"),
    eos_token="</s>",
)

STYLES["deepseek"] = Style(
    """{% if not add_generation_prompt is defined %}
{%- set add_generation_prompt = false %}{% endif %}
{%- set ns = namespace(is_first=false, is_tool=false, system='', seen_system=false) -%}
{%- for message in messages %}{%- if message['role'] == 'system' %}
  {%- if not ns.seen_system %}{% set ns.system = ns.system + message['content'] %}
  {%- set ns.seen_system = true %}
  {%- else %}{% set ns.system = ns.system + '\\n\\n' + message['content'] %}{%- endif %}
{%- endif %}{%- endfor %}{{ bos_token }}{{ ns.system }}
{%- for message in messages %}
  {%- if message['role'] == 'user' %}{%- set ns.is_tool = false -%}
    {{ '<|User|>' + message['content'] }}
  {%- endif %}
  {%- if message['role'] == 'assistant' and message['content'] is defined %}
    {%- set content = message['content'] %}
    {%- if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}
    {{- '<|Assistant|>' + content + eos_token }}
  {%- endif %}
  {%- if message['role'] == 'tool' %}
    {%- if ns.is_tool %}{{ '\\n<|tool_output|>' + message['content'] }}
    {%- else %}{{ '<|tool_outputs|>' + message['content'] }}{% set ns.is_tool = true %}{% endif %}
  {%- endif %}
{%- endfor -%}
{% if ns.is_tool %}{{ '<|tool_outputs_end|>' }}{% endif %}
{%- if add_generation_prompt %}{{ '<|Assistant|><think>\\n' }}{% endif %}""",
    (
        "<|User|>",
        "<|Assistant|>",
        "<|tool_outputs|>",
        "<|tool_output|>",
        "<|tool_outputs_end|>",
        "<think>",
        "</think>",
    ),
    bos_token="<|begin|>",
    eos_token="<|end|>",
    reads_content=True,
)

STYLES["command"] = Style(
    """{{ bos_token }}{% if messages[0]['role'] == 'system' %}
{%- set loop_messages = messages[1:] %}{% set system_message = messages[0]['content'] %}
{%- else %}{% set loop_messages = messages %}{% set system_message = none %}{% endif %}
{%- if system_message != none -%}
  {{ '<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>' + system_message + '<|END_OF_TURN_TOKEN|>' }}
{%- endif %}
{%- for message in loop_messages %}
  {%- set content = message['content'] | default('') %}
  {%- if message['role'] == 'user' %}
    {{- '<|START_OF_TURN_TOKEN|><|USER_TOKEN|>' + content.strip() + '<|END_OF_TURN_TOKEN|>' }}
  {%- elif message['role'] == 'assistant' %}
    {{- '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>' + content.strip() + '<|END_OF_TURN_TOKEN|>' }}
  {%- elif message['role'] == 'tool' %}
    {{- '<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|><results>\\n' }}
    {{- 'Document: ' ~ loop.index0 ~ '\\n' ~ content ~ '\\n</results><|END_OF_TURN_TOKEN|>' }}
  {%- endif %}
{%- endfor %}
{%- if documents %}{{ '\\n'.join(documents | map(attribute='text')) }}{% endif %}
{%- if add_generation_prompt %}{{ '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>' }}{% endif %}""",
    (
        "<|START_OF_TURN_TOKEN|>",
        "<|END_OF_TURN_TOKEN|>",
        "<|SYSTEM_TOKEN|>",
        "<|USER_TOKEN|>",
        "<|CHATBOT_TOKEN|>",
    ),
    bos_token="<BOS_TOKEN>",
    extras=({}, {"documents": [{"title": "a", "text": "one"}, {"title": "b", "text": "two"}]}),
)

STYLES["qwen 2 with tools"] = Style(
    """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0]['role'] == 'system' %}
        {{- messages[0]['content'] }}
    {%- else %}
        {{- 'You are of use.' }}
    {%- endif %}
    {{- "\\n\\n# Tools\\n\\nSignatures stand within <tools></tools>:\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools>\\n\\nReturn a JSON object within <tool_call></tool_call>.<|im_end|>\\n" }}
{%- else %}
    {%- if messages[0]['role'] == 'system' %}
        {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
    {%- endif %}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first)
        or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- if message.content %}
            {{- '\\n' + message.content }}
        {%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}
                {%- set tool_call = tool_call.function %}
            {%- endif %}
            {{- '\\n<tool_call>\\n{"name": "' }}
            {{- tool_call.name }}
            {{- '", "arguments": ' }}
            {{- tool_call.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' }}
        {{- message.content }}
        {{- '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
""",
    (*CHATML, "<tool_call>", "</tool_call>"),
    eos_token="<|im_end|>",
    has_tools=True,
)

STYLES["qwen 3 with reasoning"] = Style(
    """{%- set ns = namespace(searching=true, last_query=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.searching and message.role == "user" and message.content is string
        and not(message.content.startswith('<tool_response>')
        and message.content.endswith('</tool_response>')) %}
        {%- set ns.searching = false %}
        {%- set ns.last_query = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if message.role == "assistant" %}
        {%- set thought = '' %}
        {%- if message.reasoning_content is string %}
            {%- set thought = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set thought = content.split('</think>')[0].rstrip('\\n') %}
            {%- set thought = thought.split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query and (loop.last or thought) %}
            {{- '<|im_start|>' + message.role + '\\n<think>\\n' + thought.strip('\\n') }}
            {{- '\\n</think>\\n\\n' + content.lstrip('\\n') }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}""",
    (*CHATML, "<think>", "</think>"),
    eos_token="<|im_end|>",
    extras=({}, {"enable_thinking": False}, {"enable_thinking": True}),
    reads_content=True,
)

STYLES["falcon"] = Style(
    """{% for message in messages %}{% if not loop.first %}{{ '\\n' }}{% endif %}
{% if message['role'] == 'system' %}{{ 'System: ' + message['content'] }}
{%- elif message['role'] == 'user' %}{{ 'User: ' + message['content'] }}
{%- else %}{{ 'Falcon: ' + message['content'] + eos_token }}{% endif %}{% endfor %}
{%- if add_generation_prompt %}{{ '\\nFalcon:' }}{% endif %}""",
    (),
    eos_token="<|endoftext|>",
)

STYLES["vicuna"] = Style(
    """{%- if messages[0].role == 'system' %}{{ messages[0].content | trim ~ ' ' }}{% endif %}
{%- for m in messages if m.role != 'system' %}
{{- m.role | upper ~ ': ' ~ m.content | replace('\\r\\n', '\\n') | trim }}
{{- eos_token if m.role == 'assistant' else ' ' }}{% endfor %}
{%- if add_generation_prompt %}ASSISTANT:{% endif %}""",
    (),
    bos_token="<s>",
    eos_token="</s>",
)

STYLES["granite"] = Style(
    """{%- set tool_names = (tools or []) | map(attribute='function.name') | unique | sort | list %}
{%- if messages[0]['role'] != 'system' %}
{{- '<|start_of_role|>system<|end_of_role|>Date: ' + strftime_now('%Y') + '.<|end_of_text|>\\n' }}
{%- endif %}
{%- if tool_names %}{{ '<|start_of_role|>tools<|end_of_role|>' + tool_names | join(', ') }}
{{- '\\n' + tools | tojson(indent=2) | indent(2) + '<|end_of_text|>\\n' }}{% endif %}
{%- for message in messages %}
    {{- '<|start_of_role|>' + message['role'] + '<|end_of_role|>' }}
    {%- generation %}{{ message['content'] | default('') }}{% endgeneration %}
    {{- '<|end_of_text|>\\n' }}
    {%- if loop.last and add_generation_prompt %}
        {{- '<|start_of_role|>assistant' }}
        {%- if controls %}{{ ' ' + controls | tojson }}{% endif %}
        {{- '<|end_of_role|>' }}
    {%- endif %}
{%- endfor %}""",
    ("<|start_of_role|>", "<|end_of_role|>", "<|end_of_text|>"),
    extras=({}, {"controls": {"length": "short", "originality": "<|end_of_role|>"}}),
    has_tools=True,
)

STYLES["glm"] = Style(
    """[gMASK]<sop>
{%- macro visible(content) -%}
{%- if content is string -%}{{ content }}
{%- elif content is iterable and content is not mapping -%}
{%- for item in content -%}
{%- if item is mapping and item.type == 'text' -%}{{ item.text }}
{%- elif item is string -%}{{ item }}{%- endif -%}
{%- endfor -%}
{%- else -%}{{ content }}{%- endif -%}
{%- endmacro -%}
{% for m in messages %}
{%- if m.role == 'tool' -%}<|observation|>
<tool_response>
{{ visible(m.content) }}
</tool_response>
{%- else -%}<|{{ m.role }}|>
{{ visible(m.content) }}{{ '/nothink' if m.role == 'user' and enable_thinking is false }}
{%- for tc in m.tool_calls or [] %}
<tool_call>{{ tc.function.name }}
{%- for k, v in tc.function.arguments.items() %}
<arg_key>{{ k }}</arg_key>
<arg_value>{{ v if v is string else v | tojson(ensure_ascii=False) }}</arg_value>
{%- endfor %}
</tool_call>
{%- endfor %}{%- endif %}{%- endfor %}
{% if add_generation_prompt %}<|assistant|>{{ '\\n<think></think>' if enable_thinking is false }}
{%- endif %}""",
    ("[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>", "<|tool|>"),
    extras=({}, {"enable_thinking": False}),
    has_tools=True,
)

STYLES["harmony"] = Style(
    """{%- macro type_of(spec) -%}
    {%- if spec.type == "array" -%}{{ type_of(spec['items'] or {}) }}[]
    {%- elif spec.enum is defined -%}"{{ spec.enum | join('" | "') }}"
    {%- elif spec.type == "object" -%}
        { {%- for name, inner in (spec.properties or {}).items() %} {{ name }}: {{ type_of(inner) }}
        {%- if not loop.last %},{% endif %}{% endfor %} }
    {%- elif spec.type in ("integer", "number") -%}number
    {%- else -%}{{ spec.type or 'any' }}{%- endif -%}
{%- endmacro -%}
{%- set effort = reasoning_effort | default('medium') -%}
<|start|>system<|message|>Reasoning: {{ effort }}
{%- if tools %}
# Tools
namespace functions {
{%- for tool in tools %}
// {{ tool.function.description | default('') | replace('\\n', '\\n// ') }}
type {{ tool.function.name }} = (_: {{ type_of(tool.function.parameters) }}) => any;
{%- endfor %}
}
{%- endif %}<|end|>
{%- set calls = namespace(last=none) -%}
{%- for message in messages -%}
    {%- if message.role == 'assistant' -%}
        {%- if message.thinking -%}
            {{- '<|start|>assistant<|channel|>analysis<|message|>' + message.thinking + '<|end|>' }}
        {%- endif -%}
        {%- if message.tool_calls -%}
            {%- set f = message.tool_calls[0].function -%}
            {%- set calls.last = f.name -%}
            {{- '<|start|>assistant to=functions.' ~ f.name }}<|channel|>commentary json<|message|>
            {{- f.arguments | tojson }}<|call|>
        {%- else -%}
            <|start|>assistant<|channel|>final<|message|>{{ message.content }}<|end|>
        {%- endif -%}
    {%- elif message.role == 'tool' -%}
        {%- if calls.last is none %}{{ raise_exception('A tool answered but none was called.') }}
        {%- endif -%}
        {{- '<|start|>functions.' + calls.last }} to=assistant<|message|>
        {{- message.content | tojson }}<|end|>
    {%- else -%}
        {{- '<|start|>%s<|message|>%s<|end|>' | format(message.role, message.content) -}}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}<|start|>assistant{%- endif -%}""",
    ("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|call|>"),
    extras=({}, {"reasoning_effort": "high"}),
    has_tools=True,
)

STYLES["hermes"] = Style(
    """{%- macro python_type(spec) %}
{%- set names = {"string": "str", "number": "float", "integer": "int", "boolean": "bool"} %}
{%- if names[spec.type] is defined %}{{- names[spec.type] }}
{%- elif spec.type == "array" %}{{- "list[" + python_type(spec['items']) + "]" }}
{%- elif spec.type == "object" %}{{- "dict" }}
{%- else %}{{- "Any" }}{%- endif %}
{%- endmacro %}
{{- bos_token }}
{%- if tools %}{{- "<|im_start|>system\\n<tools> " }}
{%- for tool in tools %}{%- set f = tool.function %}
{{- '{"name": "' + f.name + '", "doc": "' + f.name + '(' }}
{%- for name, spec in f.parameters.properties | items %}
{{- name + ": " + python_type(spec) }}{% if not loop.last %}{{- ", " }}{% endif %}
{%- endfor %}{{- ')", "parameters": ' }}
{%- if f.parameters.properties | length == 0 %}{{- "{}" }}
{%- else %}{{- f.parameters | tojson(separators=(',', ':'), sort_keys=true) }}{%- endif %}{{- "}" }}
{%- if not loop.last %}{{- "\\n" }}{%- endif %}
{%- endfor %}{{- " </tools><|im_end|>\\n" }}{% endif %}
{%- for message in messages %}
{{- "<|im_start|>{}\\n{}<|im_end|>\\n".format(message.role, message.content or '') }}
{%- endfor %}
{%- if add_generation_prompt %}{{- "<|im_start|>assistant\\n" }}{%- endif %}""",
    CHATML,
    bos_token="<|begin_of_text|>",
    has_tools=True,
)

STYLES["olmo"] = Style(
    """{{ bos_token }}{% for message in messages %}{% if message['role'] == 'system' %}
{{ '<|system|>\\n' + message['content'] + '\\n' }}{% elif message['role'] == 'user' %}
{{ '<|user|>\\n' + message['content'] + '\\n' }}{% elif message['role'] == 'assistant' %}
{% if not loop.last %}{{ '<|assistant|>\\n'  + message['content'] + eos_token + '\\n' }}
{% else %}{{ '<|assistant|>\\n'  + message['content'] + eos_token }}{% endif %}{% endif %}
{% if loop.last and add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}{% endfor %}""",
    ("<|system|>", "<|user|>", "<|assistant|>"),
    bos_token="<|endoftext|>",
    eos_token="<|endoftext|>",
)

STYLES["exaone"] = Style(
    """{% for message in messages %}
    {%- if loop.first and message.role != 'system' %}{{ '[|system|][|endofturn|]\\n' }}{% endif %}
    {{- '[|' + message.role + '|]' + message.content }}
    {%- if message.role == 'user' %}{{ '\\n' }}{% else %}{{ '[|endofturn|]\\n' }}{% endif %}
{% endfor %}
{% if add_generation_prompt %}{{ '[|assistant|]' }}{% endif %}""",
    ("[|system|]", "[|user|]", "[|assistant|]", "[|endofturn|]"),
)

STYLES["loops that end early"] = Style(
    """{%- set first_user = namespace(index=none) %}
{%- for m in messages %}
  {%- if m.role == 'system' %}{% continue %}{% endif %}
  {%- set first_user.index = loop.index0 %}
  {%- break %}
{%- endfor %}
{%- for m in messages -%}
  {%- if m.content is not defined %}{% continue %}{% endif -%}
  <turn {{ loop.index }}/{{ loop.length }}{{ ' start' if loop.index0 == first_user.index }}>
{#- a comment -#}
  {%- filter trim %}

    {{ m.content }}

  {% endfilter -%}
  </turn>
{% endfor %}
{%- macro shout() %}{{ caller('assistant') }}{% endmacro %}
{%- set closing %}{% call(x) shout() %}{{ x | capitalize }}{% endcall %}{% endset %}
{%- if add_generation_prompt %}<turn {{ closing ~ ' ' ~ 'assistant'.title() }}>{% endif %}""",
    ("</turn>", "<turn"),
)

STYLES["blocks on lines of their own"] = Style(
    """
    {% for m in messages %}
        {% if m.role == "user" %}
    U: {{ m.content }}
        {% else %}
    A: {{ m.content }}
        {% endif %}
    {% endfor %}
    {% if add_generation_prompt %}
    A:
    {% endif %}
""",
    (),
)

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Says how <warm> it is.\nNo forecast; caf\u00e9s \u2615 included.",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "a city's name"},
                    "days": {"type": "array", "items": {"type": "integer"}},
                    "unit": {"type": "string", "enum": ["C", "F"]},
                },
                "required": ["city"],
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "time",
            "description": "",
            "parameters": {"type": "object", "properties": {}},
        },
    },
]

CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {
            "id": "call_1",
            "type": "function",
            "function": {"name": "weather", "arguments": {"city": "K\u00f6ln", "days": [1, 2]}},
        }
    ],
}

TALKS: dict[str, list[dict[str, Any]]] = {
    "one question": [{"role": "user", "content": "What is gravity?"}],
    "a system line": [
        {"role": "system", "content": "  Be brief.  "},
        {"role": "user", "content": "How do I bake chocolate chip cookies?"},
    ],
    "three turns": [
        {"role": "user", "content": "Hello\n\n"},
        {"role": "assistant", "content": " Hi, \u00e9 \U0001f999 there. "},
        {"role": "user", "content": "{{ 1 + 1 }} {% raw %} <b>&amp;</b>\t\r\n'\"\\"},
    ],
    "an empty message": [{"role": "user", "content": ""}],
    "reasoning kept": [
        {"role": "user", "content": "2+2?"},
        {"role": "assistant", "content": "<think>\nfour\n</think>\n\n4"},
        {"role": "user", "content": "sure?"},
        {"role": "assistant", "content": "yes", "reasoning_content": "again four"},
    ],
    "a marker in the middle": [
        {"role": "user", "content": "say it"},
        {"role": "assistant", "content": "hello </think> world"},
        {"role": "user", "content": "more"},
    ],
    "a tool was called": [
        {"role": "user", "content": "How warm is it?"},
        CALL,
        {"role": "tool", "tool_call_id": "call_1", "name": "weather", "content": '{"C": 21.5}'},
        {"role": "assistant", "content": "21.5 degrees."},
        {"role": "user", "content": "Thanks"},
    ],
    "user twice": [
        {"role": "user", "content": "a"},
        {"role": "user", "content": "b"},
    ],
    "an assistant first": [{"role": "assistant", "content": "a"}],
    "an unknown role": [
        {"role": "user", "content": "a"},
        {"role": "narrator", "content": "b"},
    ],
}
