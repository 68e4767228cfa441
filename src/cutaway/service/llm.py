"""The front for Python programs: load a model once, then generate, chat or stream."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import Any

from cutaway.core.errors import RequestError
from cutaway.core.output import Delta, FinishReason, Timings, TokenLogprob, Usage
from cutaway.core.request import Request, SamplingParams
from cutaway.engine.build import build_engine
from cutaway.engine.config import EngineConfig
from cutaway.engine.loading.text_side import Opening
from cutaway.service.notebook import block, chips, facts_table
from cutaway.text.chat_messages import from_dicts
from cutaway.text.prompt import encode
from cutaway.text.reach import render_whole
from cutaway.tokens.tokenizer import Tokenizer

Prompt = str | Sequence[int]
Messages = Sequence[Mapping[str, object]]


@dataclass(frozen=True)
class Choice:
    """One finished answer. token_ids holds the ending token, text does not."""

    token_ids: tuple[int, ...]
    text: str
    finish_reason: FinishReason
    stopped_by: str | int | None
    logprobs: tuple[TokenLogprob, ...] | None  # None unless asked for
    usage: Usage
    timings: Timings


@dataclass(frozen=True)
class Generation:
    """All answers to one prompt; the properties are those of the first."""

    prompt_token_ids: tuple[int, ...]
    choices: tuple[Choice, ...]
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None
    tokenizer: Tokenizer | None = field(default=None, repr=False, compare=False)

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Token ids of the first answer, its ending token included."""
        return self.choices[0].token_ids

    @property
    def text(self) -> str:
        """Text of the first answer."""
        return self.choices[0].text

    @property
    def finish_reason(self) -> FinishReason:
        """Why the first answer ended."""
        return self.choices[0].finish_reason

    @property
    def logprobs(self) -> tuple[TokenLogprob, ...] | None:
        """Log-probabilities of the first answer's tokens; None unless asked for."""
        return self.choices[0].logprobs

    @property
    def usage(self) -> Usage:
        """How many tokens the first answer took."""
        return self.choices[0].usage

    @property
    def timings(self) -> Timings:
        """Seconds that the first answer spent in each stage."""
        return self.choices[0].timings

    def _repr_html_(self) -> str:
        """Prompt and answers as tokens, for notebooks."""
        if self.tokenizer is None:
            return block("answer", html.escape(self.text))
        parts = [block("prompt", chips(self.prompt_token_ids, self.tokenizer))]
        for choice in self.choices:
            usage, told = choice.usage, chips(choice.token_ids, self.tokenizer, choice.logprobs)
            title = (
                f"answer, ended by {choice.finish_reason}: {usage.completion_tokens} tokens, the "
                f"first after {choice.timings.first_token * 1e3:.0f} ms"
            )
            parts.append(block(title, told))
        return "".join(parts)


class LLM:
    """A model in this process.

    model:    a name (smollm2), a .gguf file, a Hugging Face folder or hub id, or
              random:PATH/config.json; or one that is being opened.
    settings: fields of EngineConfig, for instance dtype="float32".

    Calls from several threads, and streams that are open at the same time, share steps.
    """

    def __init__(self, model: str | Opening = "smollm2", **settings: object) -> None:
        config = EngineConfig.of(settings)
        self.engine = build_engine(model, config)
        self._numbers = count()
        loaded = self.engine.model.adapters.loaded
        self.lora = loaded[0].name if loaded else ""  # what answers where nothing is said

    def _repr_html_(self) -> str:
        """What the model is, for notebooks."""
        model = self.engine.model
        facts = {
            "architecture": model.facts.architecture,
            "parameters": f"{model.facts.num_parameters:,}",
            "layers": model.facts.num_layers,
            "context": f"{self.engine.max_length:,} tokens",
            "numbers": f"{model.dtype} on {model.device}, cache in {model.cache_dtype}",
            "licence": model.licence,
        }
        return block(f"Cutaway: {model.name}", facts_table(facts))

    @property
    def sampling(self) -> SamplingParams:
        """The model's own recommended sampling."""
        return SamplingParams(**self.engine.model.sampling)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
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
        each = _as_prompts(prompts)
        requests = [
            self.request(prompt, chosen, control=control, lora=lora)
            for prompt, chosen in zip(each, self._per_prompt(params, len(each)), strict=True)
        ]
        return self._run(requests)

    def chat(
        self,
        messages: Messages,
        params: SamplingParams | None = None,
        *,
        lora: str | None = None,
        **template: Any,
    ) -> Generation:
        """Answer a conversation: dicts with role and content, as in the OpenAI API."""
        token_ids = self.encode_chat(messages, **template)
        return self._run([self.request(token_ids, params, lora=lora)])[0]

    def stream(
        self, prompt: Prompt, params: SamplingParams | None = None, *, control: bool = False
    ) -> Iterator[Delta]:
        """Continue a prompt and yield news as it comes. Closing the iterator ends the request."""
        return self._follow([self.request(prompt, params, control=control)])

    def stream_chat(
        self, messages: Messages, params: SamplingParams | None = None, **template: Any
    ) -> Iterator[Delta]:
        """Answer a conversation and yield news as it comes."""
        return self.stream(self.encode_chat(messages, **template), params)

    def encode(self, prompt: Prompt, *, control: bool = False) -> list[int]:
        """Token ids of a raw prompt: plain text, with a BOS where the model wants one."""
        if isinstance(prompt, str):
            tokenizer = self.engine.model.tokenizer
            return tokenizer.encode(prompt, control=control, bos=True)
        return list(prompt)

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

    def request(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        control: bool = False,
        lora: str | None = None,
    ) -> Request:
        """A request for the engine, with the model's recommended sampling where none is given."""
        return Request(
            request_id=f"llm-{next(self._numbers)}",
            prompt_token_ids=tuple(self.encode(prompt, control=control)),
            params=params or self.sampling,
            lora=self.lora if lora is None else lora,
        )

    def _per_prompt(
        self, params: SamplingParams | Sequence[SamplingParams] | None, num_prompts: int
    ) -> Sequence[SamplingParams]:
        if params is None:
            params = self.sampling
        if isinstance(params, SamplingParams):
            return [params] * num_prompts
        if len(params) != num_prompts:
            raise RequestError(
                f"params has {len(params)} entries for {num_prompts} prompts; give one for all "
                "or one for each.",
                param="params",
            )
        return params

    def _run(self, requests: Sequence[Request]) -> list[Generation]:
        gathered: dict[str, list[Delta]] = {request.request_id: [] for request in requests}
        for delta in self._follow(requests):
            gathered[delta.request_id].append(delta)
        tokenizer = self.engine.model.tokenizer
        made = [generation_of(request, gathered[request.request_id]) for request in requests]
        return [replace(each, tokenizer=tokenizer) for each in made]

    def _follow(self, requests: Sequence[Request]) -> Iterator[Delta]:
        """News of some requests until all are done. Leaving early ends them."""
        with closing(self.engine.follower.follow(requests)) as steps:
            for news in steps:
                yield from news


def generation_of(request: Request, deltas: Sequence[Delta]) -> Generation:
    """All that was said about a request, put together.

    Raises: the error of the first choice that failed.
    """
    asked = request.params.prompt_logprobs is not None
    return Generation(
        prompt_token_ids=request.prompt_token_ids,
        choices=tuple(
            _choice(request, [delta for delta in deltas if delta.choice == choice])
            for choice in range(request.params.n)
        ),
        prompt_logprobs=deltas[0].prompt_logprobs if asked else None,
    )


def _choice(request: Request, deltas: Sequence[Delta]) -> Choice:
    last = deltas[-1]
    if last.error is not None:
        raise last.error
    assert last.finish_reason and last.usage and last.timings, "the last delta says how it ended"
    logprobs = tuple(each for delta in deltas for each in delta.logprobs)
    return Choice(
        token_ids=tuple(token_id for delta in deltas for token_id in delta.token_ids),
        text="".join(delta.text for delta in deltas),
        finish_reason=last.finish_reason,
        stopped_by=last.stopped_by,
        logprobs=logprobs if request.params.logprobs is not None else None,
        usage=last.usage,
        timings=last.timings,
    )


def _as_prompts(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    if isinstance(prompts, str):
        return [prompts]
    items = list(prompts)
    if items and all(isinstance(item, int) for item in items):
        return [[item for item in items if isinstance(item, int)]]
    return [item for item in items if not isinstance(item, int)]
