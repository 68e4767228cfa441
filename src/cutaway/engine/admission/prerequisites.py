"""What a request waits for before it may run: its grammar, and for later choices its prompt.

It opens sequences and knows nothing of what they answer.
"""

from __future__ import annotations

import os
from collections.abc import Sequence as Items
from concurrent.futures import Future

from cutaway.cache.prefix import root_key
from cutaway.core.output import ToldChoice
from cutaway.core.request import Request, SamplingParams
from cutaway.engine.admission.grammar_queue import Pending
from cutaway.engine.admission.request_checks import max_length_of
from cutaway.engine.loading.loaded_model import LoadedModel
from cutaway.engine.pages.pins import Pins
from cutaway.engine.scheduler import Scheduler
from cutaway.engine.sequence import Sequence
from cutaway.sampling.grammars.grammar_compiler import GrammarCompiler, result_of
from cutaway.sampling.grammars.grammar_state import CompiledGrammar, GrammarState
from cutaway.sampling.seed import resolve_seed


class AdmissionQueue:
    """Sequences on their way to the scheduler's queue.

    Choices past the first wait for its prompt, which they then find in the prefix index.
    """

    def __init__(
        self,
        model: LoadedModel,
        scheduler: Scheduler,
        *,
        max_length: int,
        page_secret: bytes | None = None,
    ) -> None:
        """page_secret: of which keys of pages are made; None draws one."""
        self._model = model
        self._scheduler = scheduler
        self._max_length = max_length
        self._root_secret = os.urandom(16) if page_secret is None else page_secret
        self.pins: Pins | None = None  # with which prompts may begin
        self._followers: dict[Sequence, list[Sequence]] = {}
        self._compiler: GrammarCompiler | None = None  # made for the first grammar
        self._compiling: Pending[Sequence, CompiledGrammar] = Pending()

    def renew(self) -> None:
        """Give what is opened from now on another root: no page of before fits any more."""
        self._root_secret = os.urandom(16)

    def __bool__(self) -> bool:
        """Whether a grammar is being compiled."""
        return bool(self._compiling)

    @property
    def page_keys(self) -> bytes:
        """Equal for engines whose keys of pages are; tells nothing of the secret."""
        return root_key("page keys", self._root_secret)

    def pinned_root(self, declared_length: int, load_id: bytes = b"") -> bytes:
        """Of the keys of pinned prefixes, which are nobody's own."""
        position_key = self._model.transformer.position_key(declared_length)
        return root_key("pinned", self._root_secret, position_key, load_id)

    def open(self, request: Request, told: Items[ToldChoice] = ()) -> list[Sequence]:
        """A sequence for each choice of a request; none of them waits yet.

        told: the choices that go on here, if others do not: each stands before its last token.
        """
        seed = resolve_seed(request.params)
        max_length = max_length_of(request, self._max_length)
        position_key = self._model.transformer.position_key(max_length)
        adapter = self._model.adapters.find(request.lora)
        load_id = b"" if adapter is None else adapter.load_id
        root = root_key(self._root_secret, request.cache_salt, position_key, load_id)
        pinned_root, pinned = self.pinned_root(max_length, load_id), tuple[bytes, ...]()
        if self.pins is not None and self.pins.is_pin(request):
            root = pinned_root
        elif self.pins is not None:
            pinned = self.pins.keys_of(request.prompt_token_ids, pinned_root)
            root = root_key(root, pinned[-1]) if pinned else root
        choices = told or [ToldChoice(choice) for choice in range(request.params.n)]
        return [
            Sequence(
                request=request,
                choice=each.choice,
                seed=seed,
                max_length=max_length,
                cache_root=root,
                pinned_keys=pinned,
                adapter=-1 if adapter is None else adapter.place,
                load_id=load_id,
                token_ids=[
                    *request.prompt_token_ids,
                    *request.continued_token_ids,
                    *each.token_ids[:-1],
                ],
            )
            for each in choices
        ]

    def add(self, choices: Items[Sequence]) -> None:
        """Let the choices of a request wait for what they need.

        Raises: GrammarError when the compiler of grammars is not installed; nothing waits then.
        """
        first, *others = choices
        grammar = first.request.params.grammar
        if grammar is None:
            self._scheduler.add(first)
        else:
            self._compiling.add(first, self._grammars().compile(grammar))
        if others:
            self._followers[first] = others

    def discard(self, sequence: Sequence) -> bool:
        """Forget a sequence. Returns whether others waited for its prompt: they are forgotten."""
        self._compiling.discard(sequence)
        return self._followers.pop(sequence, None) is not None

    def forget(self, sequence: Sequence) -> None:
        """Nothing is waited for by this sequence any more: no grammar, and no other's prompt."""
        self._compiling.discard(sequence)
        for followers in self._followers.values():
            if sequence in followers:
                followers.remove(sequence)

    def release(self, sequence: Sequence) -> None:
        """Its prompt is computed, or never will be: whoever waited for it may run."""
        if not self._followers:
            return
        followers = self._followers.get(sequence)
        while followers:
            self._scheduler.add(followers[0])
            del followers[0]
        self._followers.pop(sequence, None)

    def take_compiled(
        self, *, seconds: float
    ) -> list[tuple[list[Sequence], Future[CompiledGrammar]]]:
        """All choices of requests whose grammar is ready, or at fault, and that grammar.

        seconds: how long to wait for the first.
        """
        done = self._compiling.take_done(seconds=seconds)
        return [([first, *self._followers.get(first, ())], made) for first, made in done]

    def grammar_state(self, params: SamplingParams) -> GrammarState | None:
        """The grammar of an answer before its first token; compiled again where it is not kept."""
        if params.grammar is None:
            return None
        compiled = result_of(self._grammars().compile(params.grammar))
        return GrammarState(compiled, may_end=not params.ignore_eos)

    def _grammars(self) -> GrammarCompiler:
        if self._compiler is None:
            self._compiler = GrammarCompiler(
                self._model.tokenizer,
                num_rows=self._model.facts.vocab_size,
                end_ids=self._model.end_token_ids,
            )
        return self._compiler
