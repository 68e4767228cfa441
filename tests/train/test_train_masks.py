"""Which tokens are the assistant's, by provenance: the same as TRL's marked templates say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from cutaway.core.errors import RequestError, TemplateError
from cutaway.text.chat_messages import from_dicts
from cutaway.text.prompt import encode
from cutaway.text.template import ChatTemplate
from cutaway.tokens.files.tokenizer_files import load_folder
from cutaway.tokens.learn_vocabulary import BPELearner
from cutaway.tokens.tokenizer import Tokenizer
from cutaway.train.data.examples import Conversation
from cutaway.train.data.masks import answer_spans, score
from oracles import chat_template, tokenizer_json

SYSTEM = {"role": "system", "content": "Be brief."}
TALK = [
    {"role": "user", "content": "What is the capital of France?"},
    {"role": "assistant", "content": "Paris."},
    {"role": "user", "content": "Paris. Really?"},
    {"role": "assistant", "content": "Yes, Paris."},
]
CALL = {
    "role": "assistant",
    "tool_calls": [
        {"type": "function", "function": {"name": "weather", "arguments": {"city": "Rome"}}}
    ],
}
CALLING = [
    {"role": "user", "content": "How warm is Rome?"},
    CALL,
    {"role": "tool", "content": "21", "name": "weather"},
    {"role": "assistant", "content": "21 degrees."},
]
TOOLS = [
    {
        "type": "function",
        "function": {"name": "weather", "description": "Asks.", "parameters": {"type": "object"}},
    }
]
# Every published template here writes only such control tokens.
CONTROL = re.compile(
    r"<[|\uff5c][^<>]*?[|\uff5c]>|<(?:start|end)_of_turn>|\[gMASK\]|<sop>|<[be]os>"
)
NO_SYSTEM = {"gemma"}
PUBLISHED = "cohere deepseekv3 gemma gemma3 glm4moe lfm2 llama3 phi3 qwen2_5 qwen3".split()
NOT_SAID = re.compile(r"^(?:<\uff5cAssistant\uff5c>)?(?:(?:<think>\s*)?</think>\s*)?")


def compiled(source: str) -> ChatTemplate:
    controls = frozenset(CONTROL.findall(source)) | {"<bos>", "<eos>"}
    return ChatTemplate(source, bos_token="<bos>", eos_token="<eos>", control_strings=controls)


def spans(source: str, talk: list[dict[str, Any]], **named: Any) -> list[str]:
    template = compiled(source)
    conversation = Conversation(from_dicts(talk), **named)
    spoken = template.render_spoken(conversation.messages, tools=conversation.tools)
    found = answer_spans(spoken, conversation, template)
    return [spoken.prompt.text[start:end] for start, end in found]


def marked_by_transformers(source: str, talk: list[dict[str, Any]]) -> list[str]:
    rendered, found = render_jinja_template(
        conversations=[talk],
        chat_template=source,
        return_assistant_tokens_mask=True,
        bos_token="<bos>",
        eos_token="<eos>",
    )
    return [rendered[0][start:end] for start, end in found[0]]


@pytest.mark.oracle
@pytest.mark.parametrize("name", PUBLISHED)
def test_t18_generation_blocks_give_what_transformers_finds(name: str) -> None:
    source = chat_template(f"{name}_training")
    talk = TALK if name in NO_SYSTEM else [SYSTEM, *TALK]
    expected = marked_by_transformers(source, talk)
    assert expected and "".join(spans(source, talk)) == "".join(expected)


@pytest.mark.oracle
@pytest.mark.parametrize("name", PUBLISHED)
def test_t18_provenance_gives_the_same_where_a_template_has_no_marks(name: str) -> None:
    """The published template, against the one to which TRL's authors added marks by hand.

    Theirs take along line ends around an answer, thoughts that nobody had, DeepSeek's header, and
    the opening of the turn after GLM's last answer, which the published template does not write.
    """
    talk = TALK if name in NO_SYSTEM else [SYSTEM, *TALK]
    by_hand = marked_by_transformers(chat_template(f"{name}_training"), talk)
    expected = [NOT_SAID.sub("", each.strip("\n")).strip() for each in by_hand]
    expected = [each for each in expected if each not in ("", "<eos>")]
    if name == "glm4moe":
        expected[-1] = expected[-1].removesuffix("<|user|>")
    assert [each.strip() for each in spans(chat_template(name), talk)] == expected


@pytest.mark.oracle
@pytest.mark.parametrize("name", ["qwen2_5", "qwen3"])
def test_t18_calls_of_tools_are_scored_from_their_opening(name: str) -> None:
    called, answered = spans(chat_template(name), CALLING, tools=tuple(TOOLS))
    opening = (
        '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call><|im_end|>'
    )
    assert called.endswith(opening) and called.removesuffix(opening) in (
        "",
        "<think>\n\n</think>\n\n",
    )
    assert answered == "21 degrees.<|im_end|>"


@pytest.mark.oracle
def test_t19_thoughts_are_scored_with_what_opens_them() -> None:
    talk = [TALK[0], {"role": "assistant", "content": "Paris.", "reasoning_content": "Easy."}]
    (span,) = spans(chat_template("qwen3"), talk)
    assert span == "<think>\nEasy.\n</think>\n\nParis.<|im_end|>"
    (plain,) = spans(chat_template("qwen3"), TALK[:2])
    assert plain == "Paris.<|im_end|>"  # the template wrote an empty thought before it


CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PLAIN = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
CONTROLS = ("<|im_start|>", "<|im_end|>")


def learned() -> Tokenizer:
    text = (
        "user\nassistant\nsystem\nParis. Yes, Paris. What is the capital of France? \u20ac\u20ac "
        * 9
    )
    learner = BPELearner([text])
    learner.run(80)
    return learner.tokenizer(control_tokens=CONTROLS, eos="<|im_end|>")


def template(source: str = CHATML) -> ChatTemplate:
    return ChatTemplate(source, control_strings=frozenset(CONTROLS))


def scored_text(tokenizer: Tokenizer, talk: list[dict[str, Any]], source: str = CHATML) -> str:
    found = score(Conversation(from_dicts(talk)), template(source), tokenizer)
    pairs = zip(found.token_ids, found.is_scored, strict=True)
    return "".join(tokenizer.token_text(each) for each, is_scored in pairs if is_scored)


def test_t20_the_closing_token_of_each_answer_is_scored_once() -> None:
    text = scored_text(learned(), [SYSTEM, *TALK])
    assert text == "Paris.<|im_end|>Yes, Paris.<|im_end|>"


def test_t18_without_any_closing_token_the_answer_alone_is_scored() -> None:
    tokenizer = learned()
    found = score(Conversation(from_dicts(TALK)), template(PLAIN), tokenizer)
    pairs = zip(found.token_ids, found.is_scored, strict=True)
    text = b"".join(tokenizer.token_bytes(each) for each, is_scored in pairs if is_scored)
    assert text.decode().split() == ["Paris.", "Yes,", "Paris."]


def test_a_turn_that_opens_without_the_last_being_closed_is_not_scored() -> None:
    source = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    assert "<|im_start|>" not in scored_text(learned(), TALK, source)


@pytest.mark.parametrize("answer", ["Paris.", "\u20ac Paris", "a\u20ac", "<|im_end|>", "\nParis\n"])
def test_t21_t22_ids_are_those_of_serving_and_seams_do_not_matter(answer: str) -> None:
    """The whole is tokenized at once; a message that spells a control token writes none."""
    tokenizer = learned()
    talk = [TALK[0], {"role": "assistant", "content": answer}]
    found = score(Conversation(from_dicts(talk)), template(), tokenizer)
    served = template().render(from_dicts(talk), add_generation_prompt=False)
    assert list(found.token_ids) == encode(served, tokenizer.encode, tokenizer.control_tokens)
    pairs = zip(found.token_ids, found.is_scored, strict=True)
    scored = [each for each, is_scored in pairs if is_scored]
    assert scored.count(tokenizer.control_tokens["<|im_end|>"]) == 1
    assert answer.encode() in tokenizer.decode_bytes(scored[:-1])


def test_a_conversation_without_answers_scores_nothing() -> None:
    found = score(Conversation(from_dicts([TALK[0]])), template(), learned())
    assert found.count == 0 and len(found.token_ids) > 5


def test_a_template_that_refuses_parts_of_a_conversation_still_scores_its_answers() -> None:
    refusal = "{% if messages|length < 4 %}{{ raise_exception('too few') }}{% endif %}"
    refusing = refusal + CHATML
    assert scored_text(learned(), TALK, refusing) == "Paris.<|im_end|>Yes, Paris.<|im_end|>"


def test_a_refusal_of_the_template_is_told() -> None:
    source = "{{ raise_exception('alternate, please') }}"
    with pytest.raises(TemplateError, match="alternate"):
        score(Conversation(from_dicts(TALK)), template(source), learned())


@pytest.mark.oracle
@pytest.mark.parametrize("name", ["llama3", "qwen3", "gemma3"])
def test_published_vocabularies_score_exactly_the_answers(name: Any) -> None:
    """Accents, emoji and blanks; SentencePiece's vocabulary among them."""
    folder = Path(tokenizer_json(name)).parent
    tokenizer = load_folder(folder)
    source = chat_template(name)
    controls = frozenset(tokenizer.control_tokens)
    names = {"bos_token": "<bos>"} if name == "gemma3" else {"bos_token": "<|begin_of_text|>"}
    made = ChatTemplate(source, control_strings=controls, **names)
    answer = "caf\u00e9  \U0001f999 yes"
    talk = [TALK[0], {"role": "assistant", "content": answer}]
    found = score(Conversation(from_dicts(talk)), made, tokenizer)
    pairs = zip(found.token_ids, found.is_scored, strict=True)
    scored = [each for each, is_scored in pairs if is_scored]
    assert scored[-1] in tokenizer.control_ids
    assert tokenizer.decode(scored[:-1]).strip() == answer


def test_a_tokenizer_that_changes_the_text_is_refused() -> None:
    tokenizer = learned()

    class Changing:
        def __getattr__(self, name: str) -> Any:
            return getattr(tokenizer, name)

        def encode(self, text: str, **named: Any) -> list[int]:
            return tokenizer.encode(text.upper(), **named)

    with pytest.raises(RequestError, match="changes the text"):
        score(Conversation(from_dicts(TALK)), template(), Changing())  # type: ignore[arg-type]
