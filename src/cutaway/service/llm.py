"""The front for Python programs: load a model once, then generate, chat, stream, look inside."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import closing
from functools import partial
from itertools import count
from types import TracebackType
from typing import TypedDict, Unpack, cast

from cutaway.core.errors import EngineClosedError, RequestError
from cutaway.core.limits import plain_number, quote
from cutaway.core.output import Delta
from cutaway.core.request import Request, SamplingParams
from cutaway.engine.build import build_engine
from cutaway.engine.config import EngineConfig
from cutaway.engine.engine import Engine
from cutaway.engine.engine_settings import EngineSettings
from cutaway.engine.loading.text_side import Opening
from cutaway.kernels.large_blocks import give_back_freed
from cutaway.replay.plan import Level
from cutaway.replay.recorded_answers import verify_answer
from cutaway.replay.verify import Verdict
from cutaway.service.generations import Choice, Generation, generation_of
from cutaway.service.looking import Looks, ViewPlaces, record_of
from cutaway.service.notebook import block, facts_table
from cutaway.service.spelling import spell
from cutaway.text.chat_messages import from_dicts
from cutaway.text.kinds import is_row
from cutaway.text.prompt import encode
from cutaway.text.reach import render_whole
from cutaway.views.parts.view import Shown

__all__ = ["LLM", "Choice", "Generation", "Messages", "Prompt", "TemplateOptions"]

Prompt = str | Sequence[int]
Messages = Sequence[Mapping[str, object]]
Params = SamplingParams | Sequence[SamplingParams] | None


class TemplateOptions(TypedDict, total=False):
    """What a chat template reads beside messages.

    template_options: further variables of the template, for instance enable_thinking.
    """

    tools: Messages | None
    template_options: Mapping[str, object] | None


class LLM:
    """A model in this process.

    model:    a name (smollm2), a .gguf file, a Hugging Face folder or hub id, or
              random:PATH/config.json; or one that is being opened.
    settings: fields of EngineConfig, for instance dtype="float32".

    Calls from several threads, and streams that are open at the same time, share steps. Use it in a
    with statement, or call close(), where memory is to be free before the program ends.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | Opening = "smollm2",
        **settings: Unpack[EngineSettings],
    ) -> None:
        config = EngineConfig.of(settings)
        self._engine: Engine | None = build_engine(_named(model), config)
        self._looks: Looks | None = None  # made for the first view
        self._numbers = count()
        loaded = self._engine.model.adapters.loaded
        self.lora = loaded[0].name if loaded else ""  # what answers where nothing is said

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        if self._engine is None:
            return "LLM(closed)"
        model = self._engine.model
        return (
            f"LLM({model.name!r}, {model.facts.num_parameters:,} parameters, {model.numbers} on "
            f"{model.device})"
        )

    def _repr_html_(self) -> str:
        """What the model is, for notebooks."""
        model = self.engine.model
        facts = {
            "architecture": model.facts.architecture,
            "parameters": f"{model.facts.num_parameters:,}",
            "layers": model.facts.num_layers,
            "context": f"{self.engine.max_length:,} tokens",
            "numbers": f"{model.numbers} on {model.device}, cache in {model.cache_dtype}",
            "licence": model.licence,
        }
        return block(f"Cutaway: {model.name}", facts_table(facts))

    @property
    def engine(self) -> Engine:
        """What runs the requests. Raises: EngineClosedError after close()."""
        if self._engine is None:
            raise EngineClosedError("the engine is closed; make a new LLM.")
        return self._engine

    @property
    def sampling(self) -> SamplingParams:
        """The model's own recommended sampling, which acts where nothing is given."""
        return SamplingParams().on(self.engine.model.sampling)

    def close(self) -> None:
        """End what runs and free the model's memory. What is closed may be closed again."""
        if self._engine is not None:
            self._engine.close()
        self._engine = self._looks = None
        give_back_freed()

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: Params = None,
        *,
        control: bool = False,
        lora: str | None = None,
    ) -> list[Generation]:
        """Continue each prompt. All run together; results come in the order of the prompts.

        control: whether control-token strings in a prompt become control tokens.
        lora:    the adapter that answers, or "off"; None takes the first of those in `lora` of
                 the settings.

        Raises: RequestError for a bad prompt or parameter, before anything runs; the error of
        the first answer that failed.
        """
        return self._run(self.requests(prompts, params, control=control, lora=lora))

    def chat(
        self,
        messages: Messages,
        params: SamplingParams | None = None,
        *,
        lora: str | None = None,
        **template: Unpack[TemplateOptions],
    ) -> Generation:
        """Answer a conversation: dicts with role and content, as in the OpenAI API."""
        token_ids = self.encode_chat(messages, **template)
        return self._run([self.request(token_ids, params, lora=lora)], messages)[0]

    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        control: bool = False,
        lora: str | None = None,
    ) -> Generator[Delta]:
        """Continue a prompt and yield news as it comes. Closing the iterator ends the request."""
        return self._follow([self.request(prompt, params, control=control, lora=lora)])

    def stream_chat(
        self,
        messages: Messages,
        params: SamplingParams | None = None,
        *,
        lora: str | None = None,
        **template: Unpack[TemplateOptions],
    ) -> Generator[Delta]:
        """Answer a conversation and yield news as it comes."""
        return self.stream(self.encode_chat(messages, **template), params, lora=lora)

    def verify(
        self,
        answer: Generation,
        *,
        choice: int = 0,
        level: Level = "shape-faithful",
        prefill_chunk: int | None = None,
    ) -> Verdict:
        """Run a recorded answer again and say whether it is the one that was served.

        level: shape-faithful repeats the steps of serving; invariant runs the answer alone, in
        chunks of prefill_chunk tokens or the engine's own.
        Raises: ReplayError where there is no whole record of it; RequestError for another level.
        """
        with self.engine.follower.alone():
            record = record_of(self.engine, answer, choice=choice)
            return verify_answer(self.engine, record, level=level, prefill_chunk=prefill_chunk)

    def view(
        self, answer: Generation, name: str, *, choice: int = 0, **places: Unpack[ViewPlaces]
    ) -> Shown:
        """What a view shows of an answer, as in llm.view(answer, "lens", layer=3).

        It runs the recorded answer again as far as it needs; printing it draws it.
        Raises: ReplayError where there is no whole record of it; RequestError for an unknown view
        or place.
        """
        engine = self.engine
        with engine.follower.alone():
            self._looks = self._looks or Looks(engine)
            return self._looks.show(answer, name, places, choice=choice)

    def encode(self, prompt: Prompt, *, control: bool = False) -> list[int]:
        """Token ids of a raw prompt: plain text, with a BOS where the model wants one."""
        if isinstance(prompt, str):
            tokenizer = self.engine.model.tokenizer
            return tokenizer.encode(prompt, control=control, bos=True)
        return _ids(prompt)

    def encode_chat(
        self,
        messages: Messages,
        *,
        tools: Messages | None = None,
        template_options: Mapping[str, object] | None = None,
    ) -> list[int]:
        """Token ids of a conversation through the model's chat template.

        template_options: further variables that the template reads, for instance enable_thinking.
        """
        model = self.engine.model
        if is_row(messages) and messages and is_row(messages[0]):
            raise RequestError(
                "messages is a list of conversations; one is answered at a time. Several run "
                "together as prompts: generate([encode_chat(each) for each in conversations]).",
                param="messages",
            )
        prompt = render_whole(
            model.template, from_dicts(messages), tools=tools, extras=template_options
        )
        plain = model.tokenizer.encode
        return encode(
            prompt,
            plain,
            model.tokenizer.control_tokens,
            encode_inner=partial(plain, is_start=False),
        )

    def decode(self, token_ids: Iterable[int], *, skip_control: bool = False) -> str:
        """The text of token ids; skip_control leaves out control tokens, as answers do."""
        return self.engine.model.tokenizer.decode(token_ids, skip_control=skip_control)

    def request(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        control: bool = False,
        lora: str | None = None,
    ) -> Request:
        """A request for the engine, with the model's recommended sampling where none is given."""
        chosen = SamplingParams() if params is None else params
        if not isinstance(chosen, SamplingParams):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise RequestError(
                f"params is {quote(chosen)}; it must be SamplingParams, as in "
                "SamplingParams(temperature=0).",
                param="params",
            )
        return Request(
            request_id=f"llm-{next(self._numbers)}",
            prompt_token_ids=tuple(self.encode(prompt, control=control)),
            params=chosen.on(self.engine.model.sampling),
            lora=self.lora if lora is None else lora,
        )

    def requests(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: Params,
        *,
        control: bool,
        lora: str | None,
    ) -> list[Request]:
        """One for each prompt. Raises: RequestError as generate does."""
        each = _as_prompts(prompts)
        return [
            self.request(prompt, chosen, control=control, lora=lora)
            for prompt, chosen in zip(each, _per_prompt(params, len(each)), strict=True)
        ]

    def generation(
        self, request: Request, deltas: Sequence[Delta], messages: Messages | None = None
    ) -> Generation:
        """All that was said about a request of this model, put together."""
        return generation_of(
            request,
            deltas,
            messages=None if messages is None else from_dicts(messages),
            tokenizer=self.engine.model.tokenizer,
        )

    def _run(
        self, requests: Sequence[Request], messages: Messages | None = None
    ) -> list[Generation]:
        gathered: dict[str, list[Delta]] = {request.request_id: [] for request in requests}
        for delta in self._follow(requests):
            gathered[delta.request_id].append(delta)
        return [self.generation(each, gathered[each.request_id], messages) for each in requests]

    def _follow(self, requests: Sequence[Request]) -> Generator[Delta]:
        """News of some requests until all are done. Leaving early ends them."""
        tokenizer = self.engine.model.tokenizer
        with closing(self.engine.follower.follow(requests)) as steps:
            for news in steps:
                for delta in news:
                    yield spell(delta, tokenizer)
                if self._engine is None:
                    raise EngineClosedError("the engine was closed while this answer ran.")


def _named(model: object) -> str | Opening:
    if isinstance(model, str | Opening):
        return model
    if isinstance(model, os.PathLike):
        return os.fspath(cast("os.PathLike[str]", model))
    raise RequestError(
        f"model is {quote(model)}; it must be a name, a path or a hub id.", param="model"
    )


def _per_prompt(params: Params, num_prompts: int) -> Sequence[SamplingParams | None]:
    if not isinstance(params, list | tuple):
        return [cast("SamplingParams | None", params)] * num_prompts
    if len(params) != num_prompts:
        raise RequestError(
            f"params has {len(params)} entries for {num_prompts} prompts; give one for all or one "
            "for each.",
            param="params",
        )
    return cast("Sequence[SamplingParams]", params)


def _as_prompts(prompts: object) -> list[Prompt]:
    """One prompt, or several: a text, token ids, or a list of those."""
    if isinstance(prompts, str):
        return [prompts]
    items = _items(prompts, "prompts", "a text, token ids, or a list of these")
    if items and all(isinstance(item, int) for item in items):
        return [cast("list[int]", items)]
    return [e if isinstance(e, str) else _ids(e, f"prompts[{i}]") for i, e in enumerate(items)]


def _ids(prompt: object, param: str = "prompt") -> list[int]:
    """Token ids, of whatever library. Raises: RequestError for what is none."""
    ids = _items(prompt, param, "a text or token ids")
    for index, each in enumerate(ids):
        if not isinstance(each, int) or isinstance(each, bool):
            raise _no_prompt(f"{param}[{index}]", each, "a token id")
    return cast("list[int]", ids)


def _items(value: object, param: str, wanted: str) -> list[object]:
    """What a list has; numbers of other libraries are Python's."""
    refused = partial(_no_prompt, param, value, wanted)
    if isinstance(value, Mapping):
        raise _no_prompt(param, cast("object", value), f"{wanted}; a conversation goes to chat")
    if isinstance(value, bytes) or not isinstance(value, Iterable):
        raise refused()
    return [plain_number(each) for each in cast("Iterable[object]", value)]


def _no_prompt(param: str, value: object, wanted: str) -> RequestError:
    return RequestError(f"{param} is {quote(value)}; it must be {wanted}.", param=param)
