"""`cutaway complete`: one prompt, one answer; stdout has the text alone, or one JSON object."""

from __future__ import annotations

from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING, Annotated

import typer

from cutaway.cli.session.answer_forms import (
    Choices,
    GrammarFile,
    JsonObject,
    JsonSchema,
    Regex,
    form_of,
)
from cutaway.cli.session.answer_json import figures
from cutaway.cli.settings.options import AsJson, Given, SettingsFile, integer, with_settings
from cutaway.cli.settings.setting_keys import CHAT, COMPLETE_TOKENS, ENGINE, MODEL, SAMPLING
from cutaway.cli.terminal.terminal import note, print_data, print_json
from cutaway.cli.terminal.text_input import text_of, without_line_end
from cutaway.core.errors import RequestError
from cutaway.core.limits import LIMITS
from cutaway.core.output import Delta
from cutaway.core.request import SamplingParams

if TYPE_CHECKING:
    from cutaway.cli.session.session import Session
    from cutaway.service.llm import Generation


@with_settings(MODEL, ENGINE, SAMPLING, CHAT)
def complete(
    *,
    prompt: Annotated[
        str | None, typer.Argument(help="the prompt; - or nothing reads stdin", show_default=False)
    ] = None,
    given: Given,
    config: SettingsFile = None,
    chat: Annotated[
        bool, typer.Option("--chat", help="send the prompt as a message, through the template")
    ] = False,
    control: Annotated[
        bool, typer.Option("--control", help="names of control tokens become control tokens")
    ] = False,
    logprobs: Annotated[
        int | None,
        typer.Option(
            parser=integer,
            metavar="N",
            show_default=False,
            help=f"logprobs and N alternatives per token; {LIMITS['logprobs'].describe()}",
        ),
    ] = None,
    prompt_logprobs: Annotated[
        int | None,
        typer.Option(
            parser=integer, metavar="N", show_default=False, help="the same for the prompt's tokens"
        ),
    ] = None,
    stream: Annotated[
        bool, typer.Option("--stream/--no-stream", help="print text as it comes; not with --json")
    ] = True,
    json_schema: JsonSchema = None,
    json_object: JsonObject = False,
    regex: Regex = None,
    choice: Choices = None,
    grammar: GrammarFile = None,
    json: AsJson = False,
) -> None:
    """Continue a prompt, or answer it with --chat.

    The prompt is plain text: nothing is added but a BOS where the model wants one.
    """
    if chat and control:
        raise RequestError("--control is for plain prompts; leave out --chat.", param="control")
    if "system" in given and not chat:
        raise RequestError("--system is for messages; add --chat.", param="system")
    if not json and (logprobs is not None or prompt_logprobs is not None):
        raise RequestError("--logprobs and --prompt-logprobs need --json.", param="logprobs")
    form = form_of(
        json_schema=json_schema,
        json_object=json_object,
        regex=regex,
        choice=choice,
        grammar=grammar,
    )
    text = text_of(prompt, param="prompt")
    if prompt is None or prompt == "-":
        text = without_line_end(text)

    from cutaway.cli.session.session import open_session

    session = open_session(given, config=config)
    began = perf_counter()
    token_ids = (
        session.llm.encode_chat(session.messages(text))
        if chat
        else session.llm.encode(text, control=control)
    )
    tokenize_seconds = perf_counter() - began
    params = session.settings.sampling(logprobs=logprobs, prompt_logprobs=prompt_logprobs)
    params = replace(params, grammar=form)
    answer = _answer(session, token_ids, params, is_shown=stream and not json)
    if json:
        print_json(session.as_object(answer, tokenize_seconds=tokenize_seconds))
        return
    print_data("" if stream else answer.text, end="" if answer.text.endswith("\n") else "\n")
    note(figures(answer.usage, answer.timings, answer.finish_reason), dim=True)


def _answer(
    session: Session, token_ids: list[int], params: SamplingParams, *, is_shown: bool
) -> Generation:
    """The whole answer; its text is shown as it comes, if at all."""
    from cutaway.cli.session.session import bound_params
    from cutaway.service.llm import generation_of

    num_left = session.llm.engine.max_length - len(token_ids)
    params = bound_params(params, default=COMPLETE_TOKENS, num_left=num_left)
    request = session.llm.request(token_ids, params)
    deltas: list[Delta] = []
    for delta in session.stream(request):
        deltas.append(delta)
        if is_shown:
            print_data(delta.text, end="")
    return generation_of(request, deltas)
