"""A conversation without terminal and model: commands, files, answers, tools."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from cutaway.cli.repl import local_tools
from cutaway.cli.repl.chat_state import FORMAT, ChatState, Turn, load, save
from cutaway.cli.repl.remembered_facts import Fact, Memory
from cutaway.cli.repl.reply import IsStopped, reply
from cutaway.cli.repl.slash_commands import VERBS, Around, CommandOutcome, apply, parse
from cutaway.core.errors import NumericsError, RequestError
from cutaway.core.output import Delta
from cutaway.core.request import SamplingParams

TALK = ChatState(
    system="Be brief.",
    turns=(Turn("user", "hi"), Turn("assistant", "hello")),
    changes={"temperature": 0.5, "stop": ["\n"]},
)


@pytest.fixture
def around(tmp_path: Path) -> Around:
    return Around(
        defaults=SamplingParams(temperature=0.2),
        memory=Memory(tmp_path / "memory.sqlite3"),
        about_model=lambda: ["a model"],
        about_answer=lambda: ["why slow?"],
    )


def said(line: str, conversation: ChatState, around: Around) -> CommandOutcome:
    command = parse(line)
    assert command is not None
    return apply(*command, conversation, around)


# Commands.


@pytest.mark.parametrize(
    ("message", "command"),
    [
        ("/help", ("help", "")),
        ("  /SET top_p 0.5 ", ("set", "top_p 0.5")),
        ("/?", ("?", "")),
        ("/system Two\nlines", ("system", "Two\nlines")),
        ("/etc/hosts is what?", None),
        ("1/2", None),
        ("/ 2", None),
        ("hello /help", None),
    ],
)
def test_a_command_is_a_slash_and_a_word(message: str, command: object) -> None:
    assert parse(message) == command


def test_help_lists_every_command(around: Around) -> None:
    text = "\n".join(said("/help", TALK, around).lines)
    assert all(verb.usage in text and verb.help in text for verb in VERBS)
    assert "Ctrl-C" in text and '"""' in text


def test_an_unknown_command_names_the_nearest(around: Around) -> None:
    with pytest.raises(RequestError, match=r"there is no command /clera; did you mean /clear\?"):
        said("/clera", TALK, around)
    with pytest.raises(RequestError, match=r"/help lists the commands"):
        said("/qqqq", TALK, around)


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("/set temperature 0", "temperature", 0.0),
        ("/set max-tokens 1K", "max_tokens", 1024),
        ("/set ignore_eos on", "ignore_eos", True),
        ("/set seed -3", "seed", -3),
        ("/set stop END", "stop", ("END",)),
        (r'/set stop "\n\n"', "stop", ("\n\n",)),
    ],
)
def test_set_changes_the_next_answer(around: Around, line: str, name: str, value: object) -> None:
    outcome = said(line, ChatState(), around)
    assert getattr(outcome.conversation.sampling(around.defaults), name) == value
    assert outcome.lines == (f"{name} = {value}",)


def test_set_without_a_value_goes_back_to_the_default(around: Around) -> None:
    outcome = said("/set temperature", TALK, around)
    assert outcome.lines == ("temperature = 0.2",)
    assert outcome.conversation.changes == {"stop": ["\n"]}


def test_set_alone_lists_what_is_in_force(around: Around) -> None:
    lines = said("/set", TALK, around).lines
    assert "temperature = 0.5" in lines and "top_p = 1.0" in lines


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("/set temprature 1", "no sampling setting temprature; the nearest is temperature"),
        ("/set temperature 9", "temperature is 9.0; it must be a number from 0 to 5"),
        ("/set temperature hot", 'temperature is "hot"; it must be a number from 0 to 5'),
        ("/set top_k 1.5", 'top_k is "1.5"; it must be an integer from -1'),
        ("/set ignore_eos perhaps", 'ignore_eos is "perhaps"; it must be true or false'),
        ('/set stop "x', '"x is no JSON string; close the quotes'),
        ("/set min_tokens 9", "min_tokens is 9, above max_tokens 4"),
        ("/save", "the name of a file is missing"),
        ("/load nowhere.json", "nowhere.json cannot be read: No such file"),
        ("/save /nowhere/chat.json", "/nowhere/chat.json cannot be written: No such file"),
        ("/tools maybe", '"maybe" is no state; it must be on or off'),
        ("/memory what", "/memory what is unknown; there are on, off, list, add TEXT"),
        ("/memory forget", 'forget is given ""; it needs a number'),
        ("/memory add", "a fact has 0 characters; it must have 1 to 500"),
    ],
)
def test_a_wrong_argument_is_refused_with_what_is_allowed(
    around: Around, line: str, message: str
) -> None:
    with pytest.raises(RequestError) as caught:
        said(line, ChatState(changes={"max_tokens": 4}), around)
    assert message in str(caught.value)


def test_show_tells_model_counts_and_states(around: Around) -> None:
    text = "\n".join(said("/show", TALK, around).lines)
    for part in ("a model", "messages: 2", "Be brief.", "temperature = 0.5", "tools: off"):
        assert part in text


def test_system_sets_shows_and_removes_the_message(around: Around) -> None:
    outcome = said("/system You rhyme.", TALK, around)
    assert outcome.conversation.system == "You rhyme."
    assert said("/system", outcome.conversation, around).lines == ("system: You rhyme.",)
    assert said("/system none", TALK, around).conversation.system is None


def test_clear_forgets_messages_and_keeps_settings(around: Around) -> None:
    outcome = said("/clear", TALK, around)
    assert outcome.lines == ("forgot 2 messages",)
    assert outcome.conversation == ChatState(system=TALK.system, changes=TALK.changes)


@pytest.mark.parametrize("word", ["exit", "bye", "quit"])
def test_exit_ends(around: Around, word: str) -> None:
    assert said(f"/{word}", TALK, around).is_end


def test_memory_is_told_only_when_it_is_on(around: Around) -> None:
    outcome = said("/memory add my cat is Ada", ChatState(), around)
    assert outcome.lines[0] == "[outside the model] stored fact 1: my cat is Ada"
    assert "memory is off" in outcome.lines[1]
    facts = [fact.text for fact in around.memory.facts()]
    assert ChatState().messages(facts) == []
    on = said("/memory on", ChatState(), around)
    assert on.lines[1:] == ("1  my cat is Ada",)
    (system,) = on.conversation.messages(facts)
    assert system == {
        "role": "system",
        "content": "Facts that the user asked to be remembered:\n- my cat is Ada",
    }
    assert not said("/memory off", on.conversation, around).conversation.has_memory


def test_memory_forgets_one_or_all(around: Around) -> None:
    for text in ("a", "b", "c"):
        around.memory.add(text)
    assert said("/memory forget 2", TALK, around).lines == ("[outside the model] forgot 1 facts",)
    assert around.memory.facts() == [Fact(1, "a"), Fact(3, "c")]
    said("/memory forget all", TALK, around)
    assert said("/memory list", TALK, around).lines == (
        "[outside the model] memory is off: 0 facts, told in the system message when on",
    )


def test_tools_are_off_until_they_are_asked_for(around: Around) -> None:
    assert local_tools.INSTRUCTIONS not in str(TALK.messages())
    outcome = said("/tools on", TALK, around)
    assert outcome.lines[0].startswith("[outside the model] tools are on: calc")
    messages = outcome.conversation.messages()
    assert messages[0]["content"] == f"Be brief.\n\n{local_tools.INSTRUCTIONS}"
    assert messages[-2:] == TALK.messages()[1:]
    roles = [message["role"] for message in messages[1:]]
    assert roles == ["user", "assistant"] * (len(roles) // 2)
    assert not said("/tools off", outcome.conversation, around).conversation.has_tools


# Files.


def test_a_saved_conversation_comes_back(around: Around, tmp_path: Path) -> None:
    path = tmp_path / "chat.json"
    said(f"/save {path}", TALK, around)
    outcome = said(f"/load {path}", ChatState(has_tools=True), around)
    assert outcome.lines == (f"loaded 2 messages from {path}",)
    assert outcome.conversation.turns == TALK.turns
    assert outcome.conversation.system == TALK.system
    assert outcome.conversation.has_tools
    assert outcome.conversation.sampling(around.defaults) == TALK.sampling(around.defaults)


def test_saving_replaces_a_saved_chat_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "chat.json"
    save(TALK, path)
    save(ChatState(), path)
    assert load(path) == ChatState()
    letter = tmp_path / "letter.txt"
    letter.write_text("dear all", encoding="utf-8")
    with pytest.raises(RequestError, match="is no saved chat"):
        save(TALK, letter)
    assert letter.read_text(encoding="utf-8") == "dear all"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "other"}, 'format is "other", not "cutaway chat 1"'),
        ({"system": 3}, "system is no text"),
        ({"messages": {}}, "messages must be a list and set an object"),
        ({"set": []}, "messages must be a list and set an object"),
        ({"set": {"model": "x"}}, 'set has "model", which is no sampling setting'),
        ({"set": {"top_p": 7}}, "top_p is 7; it must be a number from 0 to 1"),
        ({"messages": ["hi"]}, '"hi" is no message of user or assistant'),
        ({"messages": [{"role": "root", "content": "x"}]}, "is no message of user or assistant"),
        ({"messages": [{"role": "user", "content": None}]}, "is no message of user or assistant"),
    ],
)
def test_a_file_that_is_no_saved_chat_is_refused(
    tmp_path: Path, change: dict[str, object], message: str
) -> None:
    path = tmp_path / "chat.json"
    content = {"format": FORMAT, "system": None, "messages": [], "set": {}, **change}
    path.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(RequestError) as caught:
        load(path)
    assert message in str(caught.value)


# Answers.


@dataclass
class Script:
    """A model that says what it is told to say, a character at a time; and a screen that notes."""

    answers: Sequence[str]
    asked: list[ChatState] = field(default_factory=list)
    shown: str = ""
    ended: list[str | None] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)

    def __call__(self, conversation: ChatState, is_stopped: IsStopped) -> Iterator[Delta]:
        self.asked.append(conversation)
        for character in self.answers[len(self.asked) - 1]:
            if is_stopped():
                yield Delta("x", 0, finish_reason="abort")
                return
            yield Delta("x", 0, text=character)
        yield Delta("x", 0, finish_reason="stop")

    def text(self, text: str) -> None:
        self.shown += text

    def end(self, deltas: list[Delta]) -> None:
        self.ended.append(deltas[-1].finish_reason)

    def outside(self, line: str) -> None:
        self.lines.append(line)


def answered(
    script: Script, conversation: ChatState, is_interrupted: IsStopped = lambda: False
) -> ChatState:
    return reply(conversation, script, script, is_interrupted=is_interrupted)


ASKED = ChatState().add("user", "How much is 12*34?")


def test_an_answer_is_shown_and_kept() -> None:
    script = Script(["408"])
    assert answered(script, ASKED).turns[-1] == Turn("assistant", "408")
    assert (script.shown, script.ended) == ("408", ["stop"])


def test_a_call_is_run_and_its_result_is_told() -> None:
    script = Script(["TOOL calc: 12*34\nIt is about 500.", "It is 408."])
    talk = answered(script, ChatState(turns=ASKED.turns, has_tools=True))
    assert talk.turns[1:] == (
        Turn("assistant", "TOOL calc: 12*34"),
        Turn("user", "RESULT calc: 408"),
        Turn("assistant", "It is 408."),
    )
    assert script.lines == ["[outside the model] tool calc: 12*34 -> 408"]
    assert script.ended == ["abort", "stop"], "what follows a call is not waited for"


def test_a_call_is_only_text_while_tools_are_off() -> None:
    script = Script(["TOOL calc: 1+1\nok"])
    assert answered(script, ASKED).turns[-1].content == "TOOL calc: 1+1\nok"
    assert script.lines == []


def test_three_calls_are_the_most() -> None:
    script = Script(["TOOL calc: 1+1"] * 9)
    talk = answered(script, ChatState(turns=ASKED.turns, has_tools=True))
    assert len(script.asked) == local_tools.MAX_ROUNDS + 1
    assert talk.turns[-1].role == "assistant"
    assert script.lines[-1] == "[outside the model] no more than 3 tool calls per message"


def test_an_interrupted_answer_stays_as_far_as_it_came() -> None:
    script = Script(["a long answer"])
    talk = answered(script, ASKED, lambda: len(script.shown) >= 6)
    assert talk.turns[-1] == Turn("assistant", "a long")
    assert script.ended == ["abort"]


def test_an_answer_interrupted_before_its_text_takes_its_question_along() -> None:
    assert answered(Script(["never"]), ASKED, lambda: True) == ChatState()


def test_an_interrupt_after_a_call_runs_no_further_round() -> None:
    script = Script(["TOOL calc: 1+1\n", "more"])
    asked = ChatState(turns=ASKED.turns, has_tools=True)
    answered(script, asked, lambda: len(script.shown) >= 15)
    assert len(script.asked) == 1
    assert script.lines == []


def test_an_error_ends_the_answer() -> None:
    class Failing(Script):
        def __call__(self, conversation: ChatState, is_stopped: IsStopped) -> Iterator[Delta]:
            yield Delta("x", 0, text="so")
            yield Delta("x", 0, finish_reason="error", error=NumericsError("NaN"))

    script = Failing([])
    with pytest.raises(NumericsError, match="NaN"):
        answered(script, ASKED)
    assert script.shown == "so"


def test_why_tells_of_the_last_answer(around: Around) -> None:
    outcome = said("/why", ChatState(), around)
    assert outcome.lines == ("why slow?",) and not outcome.is_end
