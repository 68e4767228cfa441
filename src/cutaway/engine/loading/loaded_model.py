"""A model ready to run: weights on a device, tokenizer, template, defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from cutaway.blocks.transformer import Transformer
from cutaway.core.facts import ModelFacts
from cutaway.core.request import SamplingParams
from cutaway.engine.adapters import Adapters
from cutaway.engine.loading.template_of import compiled_template
from cutaway.engine.ranks.leader import Ranks
from cutaway.stream.text import TextStream, stop_token_ids
from cutaway.text.template import ChatTemplate
from cutaway.tokens.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """Everything that answers need and that does not change while they run."""

    name: str
    licence: str
    facts: ModelFacts
    transformer: Transformer
    tokenizer: Tokenizer
    template_source: str | None
    end_token_ids: frozenset[int]  # from tokenizer, configuration and generation settings
    sampling: Mapping[str, Any]  # the model's own recommendations
    dtype: torch.dtype  # of activations
    cache_dtype: torch.dtype
    device: torch.device
    # What is loaded beside it, from load to unload; an answer keeps what it began with.
    adapters: Adapters = field(default_factory=Adapters.none)
    ranks: Ranks | None = None  # those that have the rest of it, where this process leads them

    @property
    def numbers(self) -> str:
        """In what it computes, in words. Packed weights round what they are multiplied with."""
        dtype = str(self.dtype).removeprefix("torch.")
        is_packed = self.transformer.is_packed
        return f"{dtype}, products of packed weights in 8 bits," if is_packed else dtype

    @cached_property
    def template(self) -> ChatTemplate:
        """The chat template, compiled at first use: a plain prompt needs none.

        Raises: TemplateError when there is none, or it is at fault.
        """
        return compiled_template(self.template_source, name=self.name, tokenizer=self.tokenizer)

    def end_ids(self, params: SamplingParams) -> frozenset[int]:
        """Ids that end an answer with these settings."""
        return frozenset(self._ending(params))

    def text_stream(self, params: SamplingParams) -> TextStream:
        """What makes text of an answer's tokens, before the first of them."""
        return TextStream(
            params,
            self.tokenizer.token_bytes,
            skipped=self.tokenizer.control_ids if params.skip_special_tokens else frozenset(),
            ending=self._ending(params),
        )

    def _ending(self, params: SamplingParams) -> dict[int, str | int]:
        """Ids that end an answer with these settings, and what is said of each."""
        return stop_token_ids(params, self.end_token_ids, self.tokenizer.control_tokens)
