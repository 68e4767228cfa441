"""`cutaway chat`: a conversation on a terminal, or an answer to each line of a pipe."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING, Annotated

import typer

from cutaway.cli.repl import slash_commands
from cutaway.cli.repl.chat_state import ChatState
from cutaway.cli.repl.interrupt import Interrupts
from cutaway.cli.repl.line_source import line_reader
from cutaway.cli.repl.lines import read_messages
from cutaway.cli.repl.remembered_facts import Memory, memory_file
from cutaway.cli.repl.reply import IsStopped, reply
from cutaway.cli.session.answer_forms import (
    Choices,
    GrammarFile,
    JsonObject,
    JsonSchema,
    Regex,
    form_of,
)
from cutaway.cli.session.answer_json import figures
from cutaway.cli.settings.options import AsJson, Given, SettingsFile, with_settings
from cutaway.cli.settings.setting_keys import CHAT, CHAT_TOKENS, ENGINE, MODEL, SAMPLING
from cutaway.cli.terminal.terminal import is_seen, note, print_data, print_json
from cutaway.core.errors import ContextLengthError, CutawayError, RequestError
from cutaway.core.grammar import Grammar
from cutaway.core.output import Delta
from cutaway.core.request import CHAT_DETECTION, Request, SamplingParams

if TYPE_CHECKING:
    from cutaway.cli.session.session import Session


@with_settings(MODEL, ENGINE, SAMPLING, CHAT)
def chat(
    *,
    name: Annotated[
        str | None,
        typer.Argument(metavar="[MODEL]", help="the same as --model", show_default=False),
    ] = None,
    given: Given,
    config: SettingsFile = None,
    tools: Annotated[
        bool, typer.Option("--tools", help="begin with /tools on", rich_help_panel=CHAT)
    ] = False,
    memory: Annotated[
        bool, typer.Option("--memory", help="begin with /memory on", rich_help_panel=CHAT)
    ] = False,
    json_schema: JsonSchema = None,
    json_object: JsonObject = False,
    regex: Regex = None,
    choice: Choices = None,
    grammar: GrammarFile = None,
    json: AsJson = False,
) -> None:
    """Talk with a model; /help lists what can be typed.

    On a pipe each line is a message, stdout has the answers alone, and the end of input ends.
    """
    if name is not None and "model" in given:
        raise RequestError("the model is named twice; leave out one of the two.", param="model")
    form = form_of(
        json_schema=json_schema,
        json_object=json_object,
        regex=regex,
        choice=choice,
        grammar=grammar,
    )
    if form is not None and tools:
        raise RequestError("--tools and a form of the answer are given; leave out one of the two.")

    from cutaway.cli.session.session import open_session

    if is_seen(sys.stdin):
        note("loading ...", dim=True)
    session = open_session(given if name is None else {**given, "model": name}, config=config)
    _ = session.llm.engine.model.template  # a model that cannot chat says so now
    talk = Talk(session, Memory(memory_file()), form=form, as_json=json)
    system = session.settings.values["system"]
    assert isinstance(system, str | None), "settings have checked the type"
    start = ChatState(system=system, has_tools=tools, has_memory=memory)
    if is_seen(sys.stdin):
        note(f"{talk.title()} /help lists the commands.", dim=True)
        talk.on_terminal(start)
    else:
        talk.on_pipe(start)


class Talk:
    """A conversation with a loaded model: the model and the screen of repl/reply.py."""

    def __init__(
        self, session: Session, memory: Memory, *, form: Grammar | None, as_json: bool
    ) -> None:
        self._session = session
        self._memory = memory
        self._as_json = as_json
        self._around = slash_commands.Around(
            defaults=replace(_sampling(session, has_form=form is not None), grammar=form),
            memory=memory,
            about_model=self.about,
            about_answer=self.diagnosis,
        )
        self._request: Request | None = None
        self._tokenize_seconds = 0.0
        self._is_mid_line = False

    def on_terminal(self, conversation: ChatState) -> None:
        """Answer until the user ends; an error ends its answer alone, and Ctrl-C stops it."""
        with Interrupts() as interrupts:
            for message in read_messages(interrupts.clearing(line_reader())):
                try:
                    with interrupts.answering():
                        outcome = self._turn(message, conversation, interrupts.is_pressed)
                except CutawayError as error:
                    self._end_line()
                    note(f"error: {error}")
                    continue
                if outcome.is_end:
                    return
                conversation = outcome.conversation

    def on_pipe(self, conversation: ChatState) -> None:
        """Answer every line. Raises: the first error, so that a script learns of it."""
        for message in read_messages(line_reader()):
            outcome = self._turn(message, conversation, lambda: False)
            if outcome.is_end:
                return
            conversation = outcome.conversation

    def _turn(
        self, message: str, conversation: ChatState, is_interrupted: IsStopped
    ) -> slash_commands.CommandOutcome:
        command = slash_commands.parse(message)
        if command is not None:
            outcome = slash_commands.apply(*command, conversation, self._around)
            for line in outcome.lines:
                note(line)
            return outcome
        asked = conversation.add("user", message)
        return slash_commands.CommandOutcome(
            reply(asked, self, self, is_interrupted=is_interrupted)
        )

    # The model of a reply.

    def __call__(self, conversation: ChatState, is_stopped: IsStopped) -> Iterator[Delta]:
        from cutaway.cli.session.session import bound_params

        facts = [fact.text for fact in self._memory.facts()] if conversation.has_memory else []
        began = perf_counter()
        token_ids = self._session.llm.encode_chat(conversation.messages(facts))
        self._tokenize_seconds = perf_counter() - began
        llm, params = self._session.llm, conversation.sampling(self._around.defaults)
        num_left = llm.engine.max_length - len(token_ids)
        params = bound_params(params, default=CHAT_TOKENS, num_left=num_left)
        self._request = llm.request(token_ids, params)
        try:
            yield from self._session.stream(self._request, is_stopped=is_stopped)
        except ContextLengthError as error:
            raise ContextLengthError(f"{error} /clear forgets the messages.") from None

    # The screen of a reply.

    def text(self, text: str) -> None:
        """Print more text of the model; with --json it waits for the end."""
        if not self._as_json and text:
            print_data(text, end="")
            self._is_mid_line = not text.endswith("\n")

    def end(self, deltas: list[Delta]) -> None:
        """Print what follows an answer: its figures, or with --json the one object."""
        from cutaway.service.llm import generation_of

        assert self._request is not None, "an answer ends after it was asked for"
        answer = generation_of(self._request, deltas)
        if self._as_json:
            print_json(self._session.as_object(answer, tokenize_seconds=self._tokenize_seconds))
            return
        self._end_line()
        note(figures(answer.usage, answer.timings, answer.finish_reason), dim=True)
        used = answer.usage.prompt_tokens + answer.usage.completion_tokens
        most = self._session.llm.engine.max_length
        if answer.finish_reason == "repetition":
            note("it repeated itself, so it was ended; --repetition-detection off lets it go on.")
        if answer.finish_reason == "length" and used >= most:
            note(f"the context is full: {used} of {most} tokens. /clear forgets the messages.")

    def outside(self, line: str) -> None:
        """Note on stderr what a tool did."""
        note(line)

    def _end_line(self) -> None:
        if self._is_mid_line:
            print_data("")
        self._is_mid_line = False

    def title(self) -> str:
        """One line on the model."""
        model = self._session.llm.engine.model
        lora = self._session.llm.lora
        adapted = f" with adapter {lora}" if lora else ""
        return f"{model.name}{adapted} ({model.licence}), {model.numbers} on {model.device}."

    def about(self) -> Sequence[str]:
        """What /show says of model and cache."""
        engine = self._session.llm.engine
        facts, stats = engine.model.facts, engine.cache_stats
        return (
            self.title(),
            f"{facts.architecture}, {facts.num_parameters:,} parameters, {facts.num_layers} layers",
            f"longest conversation: {engine.max_length} tokens",
            f"cache: {stats.used} pages used, {stats.cached} kept, {stats.free} free; "
            f"{stats.hit_tokens} of {stats.query_tokens} prompt tokens were found in it",
        )

    def diagnosis(self) -> Sequence[str]:
        """What /why says of the last answer. Some of it is run again, which takes its time."""
        from cutaway.cli.session.opened_answer import open_answer
        from cutaway.compare.why import why

        if self._request is None:
            raise RequestError("there is no answer yet; ask something first.", param="why")
        request_id, encode = self._request.request_id, self._tokenize_seconds
        look = open_answer(self._session, request_id, messages=None, encode_seconds=encode)
        return why(self._session.llm.engine, look).draw().text().splitlines()


def _sampling(session: Session, *, has_form: bool) -> SamplingParams:
    """What was set; where nobody says when a loop ends, one ends soon: a small model may loop.

    Not in an answer of a given form: lists of numbers may well be alike.
    """
    params = session.settings.sampling()
    if session.settings.values["repetition_detection"] is None and not has_form:
        return replace(params, repetition_detection=CHAT_DETECTION)
    return params
