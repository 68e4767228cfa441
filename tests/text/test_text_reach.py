"""All that was said reaches the prompt, or is refused by the name of its message."""

from __future__ import annotations

import json
from functools import cache

import pytest
from histories import HISTORIES, TOOL, TOOL_WORD
from test_text_parity import published, references
from text_templates import STYLES, Style

from cutaway.core.errors import RequestError, TemplateError
from cutaway.text.chat_messages import from_dicts
from cutaway.text.meter import BudgetError
from cutaway.text.reach import MAX_KEPT, render_whole
from cutaway.text.template import ChatTemplate
from oracles import template_file

QWEN3_CALLS = """{%- for message in messages %}
{%- if message.content.startswith('<x>') %}{%- endif %}
{{- '<|im_start|>' + message.role + '\\n' + message.content }}
{%- for call in message.tool_calls or [] %}
{%- set call = call.function %}
{{- '<tool_call>{"name": "' + call.name + '", "arguments": ' }}
{%- if call.arguments is string %}{{ call.arguments }}{% else %}{{ call.arguments | tojson }}
{%- endif %}}</tool_call>
{%- endfor %}<|im_end|>
{% endfor %}"""
NO_DEVELOPER = """{% for m in messages %}{% if m.role in ['user', 'assistant', 'system', 'tool'] %}
[{{ m.role }}] {{ m.content }}{% endif %}{% endfor %}"""
ASKS_FOR_NONE = """{% for m in messages %}{% if m.content is none %}(calls
 {{ m.tool_calls | tojson }})
{%- else %}{{ m.content }}{% endif %}{% endfor %}"""


def rendered(source: str, history: str, **asked: object) -> str:
    template = ChatTemplate(source)
    return render_whole(template, from_dicts(HISTORIES[history][0]), **asked).text  # type: ignore[arg-type]


def sentinels(template: ChatTemplate) -> tuple[int, list[str]]:
    """How many of all histories a template writes whole, and which it loses in silence."""
    whole, lost = 0, list[str]()
    for name, (messages, words) in HISTORIES.items():
        for tools in (None, [TOOL]):
            try:
                prompt = render_whole(template, from_dicts(messages), tools=tools)
            except RequestError as error:
                assert error.param == "tools" or str(error).startswith("messages["), str(error)
                continue
            except TemplateError:
                continue
            wanted = [*words, TOOL_WORD] if tools else words
            missing = [word for word in wanted if word not in prompt.text.lower()]
            lost += [f"{name}: {missing}"] if missing else []
            whole += not missing
    return whole, lost


def of_style(style: Style) -> ChatTemplate:
    return ChatTemplate(
        style.source,
        bos_token=style.bos_token,
        eos_token=style.eos_token,
        control_strings=style.all_controls,
    )


@pytest.mark.parametrize("name", STYLES)
def test_n03_what_was_sent_reaches_the_prompt_or_is_refused(name: str) -> None:
    whole, lost = sentinels(of_style(STYLES[name]))
    assert not lost and whole >= 4


@pytest.mark.oracle
@pytest.mark.parametrize("name", ["smollm2", "llama3", "qwen3"])
def test_n03_published_templates_lose_nothing(name: str) -> None:
    whole, lost = sentinels(of_style(published(name)))
    assert not lost and whole >= 7


@cache
def collected() -> dict[str, str]:
    return json.loads(template_file().read_text(encoding="utf-8"))


@pytest.mark.oracle
def test_n03_all_collected_templates_lose_nothing() -> None:
    lost = dict[str, list[str]]()
    total = 0
    for name, source in collected().items():
        template = ChatTemplate(source, bos_token="<s>", eos_token="</s>")
        whole, missing = sentinels(template)
        total += whole
        lost |= {name: missing} if missing else {}
    assert not lost and total >= 15 * len(collected())


@pytest.mark.oracle
def test_n01_collected_templates_take_their_own_calls_back() -> None:
    """A call without words, as the APIs answer it, renders as transformers has it in one form."""
    (question, calls, result), _ = HISTORIES["a call and its result"]
    function = {**calls["tool_calls"][0]["function"], "arguments": {"q": "word3a", "n": 2}}
    call = {**calls["tool_calls"][0], "function": function}
    messages = [question, {**calls, "tool_calls": [call]}, result]
    for name, source in collected().items():
        style = Style(source, (), bos_token="<s>", eos_token="</s>")
        expected = references(style, messages, tools=[TOOL], extras={})
        if not any("look_word2" in (each or "") for each in expected):
            continue
        template = ChatTemplate(source, bos_token="<s>", eos_token="</s>")
        assert template.render(from_dicts(messages), tools=[TOOL]).text in expected, name


@pytest.mark.parametrize("content", [None, "", []])
def test_n01_calls_without_words_render_where_content_is_added(content: object) -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": content, "tool_calls": [call]},
    ]
    text = ChatTemplate(QWEN3_CALLS).render(from_dicts(messages)).text
    assert '<|im_start|>assistant\n<tool_call>{"name": "f", "arguments": {}}</tool_call>' in text


@pytest.mark.parametrize("content", [None, "", []])
def test_n01_calls_without_words_are_none_where_a_template_asks(content: object) -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": "{}"}}
    message = {"role": "assistant", "content": content, "tool_calls": [call]}
    text = ChatTemplate(ASKS_FOR_NONE).render(from_dicts([message])).text
    assert text.startswith("(calls\n [")
    equal = "{{ messages[0].content == none }} {{ none != messages[0].content }}"
    assert ChatTemplate(equal).render(from_dicts([message])).text == "True False"


@pytest.mark.parametrize("arguments", ["", " ", "null", None, {}])
def test_n02_a_call_without_arguments_has_none(arguments: object) -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": arguments}}
    (message,) = from_dicts([{"role": "assistant", "tool_calls": [call]}])
    assert '"arguments": {}}' in ChatTemplate(QWEN3_CALLS).render([message]).text


def test_n02_a_call_that_was_cut_off_renders_where_templates_list_its_arguments() -> None:
    listing = (
        "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}"
        "{{ c.function.name }}{% for k, v in c.function.arguments | items %}"
        "<{{ k }}>{{ v }}{% endfor %}{% endfor %}{% endfor %}"
    )
    text = rendered(listing, "a call that was cut off")
    assert 'look_word2<arguments>{"q": "word3a' in text


def test_n02_arguments_are_text_where_templates_add_them_to_text() -> None:
    adding = (
        "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}"
        "{{ c.function.name + ': ' + c.function.arguments }}{% endfor %}{% endfor %}"
    )
    assert 'look_word2: {"q": "word3a", "n": 2}' in rendered(adding, "a call and its result")


def test_n03_a_developers_words_take_the_older_role() -> None:
    assert "[system] Here is word2a." in rendered(NO_DEVELOPER, "a developer")
    both = "{% for m in messages %}[{{ m.role }}] {{ m.content }}{% endfor %}"
    assert "[developer] Here is word2a." in rendered(both, "a developer")


def test_n03_a_speakers_name_is_told_where_the_template_knows_none() -> None:
    assert "anna: Here is word1a." in rendered(NO_DEVELOPER, "speakers with names")


def test_n03_what_no_form_saves_is_refused_by_its_message() -> None:
    users = "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}"
    with pytest.raises(RequestError, match='of the role "assistant", does not reach') as caught:
        rendered(users, "three turns")
    assert caught.value.param == "messages[1]"
    with pytest.raises(RequestError, match="tools do not reach the prompt"):
        rendered(users, "a question", tools=[TOOL])


def test_n03_texts_become_parts_for_templates_of_models_that_see() -> None:
    parts = (
        "{% for m in messages %}{% for p in m.content %}{% if p.type == 'text' %}{{ p.text }}"
        "{% endif %}{% endfor %}{% endfor %}"
    )
    assert rendered(parts, "a question") == "Here is word1a."


def test_a_templates_refusal_stays_its_own() -> None:
    source = "{% if messages | length > 1 %}{{ raise_exception('One at a time.') }}{% endif %}"
    with pytest.raises(TemplateError, match=r"^One at a time\.$"):
        rendered(source, "three turns")


def renderings(template: ChatTemplate, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list that gets longer whenever the template is asked to render."""
    rendered: list[int] = []
    render = template.render
    monkeypatch.setattr(
        template,
        "render",
        lambda messages, **asked: rendered.append(1) or render(messages, **asked),
    )
    return rendered


def test_a_long_history_is_not_tried_in_every_form(monkeypatch: pytest.MonkeyPatch) -> None:
    template = ChatTemplate(
        "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}"
    )
    rendered = renderings(template, monkeypatch)
    turns = [{"role": "developer", "name": "a", "content": "x"}] * 12_000
    with pytest.raises(RequestError, match="does not reach"):
        render_whole(template, from_dicts(turns))
    assert len(rendered) == 2  # as it came, and with its marks


def test_a_history_that_costs_too_much_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    loops = 4
    template = ChatTemplate("{% for m in messages %}" * loops + "{% endfor %}" * loops)
    rendered = renderings(template, monkeypatch)
    turns = from_dicts([{"role": "developer", "name": "a", "content": "x"}] * 40)
    with pytest.raises(TemplateError, match="at fault") as caught:
        render_whole(template, turns)
    assert isinstance(caught.value.__cause__, BudgetError)
    assert len(rendered) == 1
    cheap = ChatTemplate("{{ raise_exception('no') }}")
    rendered = renderings(cheap, monkeypatch)
    with pytest.raises(TemplateError):
        render_whole(cheap, turns)
    assert len(rendered) > 1, "there are other forms of it"


def test_what_is_known_of_shapes_stays_bounded() -> None:
    template = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}")
    for count in range(1, MAX_KEPT + 9):
        render_whole(template, from_dicts([{"role": "user", "content": "x"}] * count))
    assert len(template.known_shapes) <= MAX_KEPT
