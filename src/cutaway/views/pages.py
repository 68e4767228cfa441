"""Pages: where the keys and values of an answer lie, who wrote them, and what they spare."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from cutaway.blocks.weighed import model_work
from cutaway.core.errors import ReplayError
from cutaway.core.layout import CacheGroup, Window, group_layers
from cutaway.core.limits import quote
from cutaway.core.work import ModelWork
from cutaway.trace.ledger import part_of
from cutaway.trace.misses import Miss, miss_of
from cutaway.trace.records import AnswerRecord
from cutaway.views.parts.drawing import WIDTH, Drawing, Span, bar
from cutaway.views.parts.query import Query
from cutaway.views.parts.replay_values import ReplayValues
from cutaway.views.parts.subject import Subject
from cutaway.views.parts.view import View

Origin = Literal["found", "prompt", "answer"]

_LETTERS = {"found": "h", "prompt": "p", "answer": "a"}
_MOST_CELLS = 3 * (WIDTH - 8)  # of a page map
_MOST_RUNS = 12  # lines of a group's table


@dataclass(frozen=True)
class PageRun:
    """Pages first to first + count - 1, alike in all that follows.

    origin:  found in the index, or written for the prompt or for the answer.
    writer:  number of the answer that wrote a found page; None where it is not known any more.
    step:    of the engine, that wrote the last token of the last page; None for found pages.
    is_full: only full pages can be found by others.   is_kept: the index can find it now.
    """

    first: int
    count: int
    origin: Origin
    writer: int | None
    step: int | None
    is_full: bool
    is_kept: bool


@dataclass(frozen=True)
class PageGroup:
    """Layers that share page tables. page_bytes: of one page over all of them.

    window: tokens that they see; None for all.   is_state: a page holds a state instead of tokens.
    """

    layers: tuple[int, ...]
    fields: tuple[str, ...]
    window: int | None
    is_state: bool
    token_bytes: int
    page_bytes: int
    num_pages: int
    runs: tuple[PageRun, ...]


@dataclass(frozen=True)
class AnswerPages:
    """Units: bytes, tokens, operations.

    num_tokens: stored at the end, all of prompt and answer but the last.
    kept_bytes: of them in the cache.   flops: that the answer took.
    without_flops: that it would take without a cache, every token through the model at each step.
    """

    page_size: int
    num_tokens: int
    num_prompt: int
    num_preemptions: int
    groups: tuple[PageGroup, ...]
    miss: Miss
    miss_reason: str
    token_bytes: int
    kept_bytes: int
    flops: float
    without_flops: float

    def draw(self) -> Drawing:
        """The picture: what the prefix cache spared and why not more, then the pages by group."""
        drawing = Drawing()
        hit = self.miss.num_hit
        drawing.line(
            Span(f"{hit} of {self.num_prompt}", "strong"),
            f" prompt tokens were found in the cache, {self.miss.num_computed} computed: ",
        )
        drawing.line("  ", self.miss_reason)
        if self.num_preemptions:
            drawing.line(
                f"  preempted {self.num_preemptions} times: pages were given back and written again"
            )
        for group in self.groups:
            self._draw_group(drawing, group)
        self._draw_ruler(drawing)
        return drawing

    def _draw_group(self, drawing: Drawing, group: PageGroup) -> None:
        sees = "everything" if group.window is None else f"the last {group.window} tokens"
        what = "a state" if group.is_state else " and ".join(group.fields)
        drawing.line(
            Span(_layers(group.layers), "strong"),
            f" keep {what}, see {sees}: {group.num_pages} pages of {self.page_size} tokens, ",
            f"{group.page_bytes / 1024:.1f} KiB each",
        )
        drawing.wrap(self._cells(group), indent=2)
        rows = [
            (
                f"{run.first}" if run.count == 1 else f"{run.first} to {run.first + run.count - 1}",
                _whence(run),
                "yes" if run.is_kept else "no" if run.is_full else "not full",
            )
            for run in group.runs[:_MOST_RUNS]
        ]
        drawing.table(("page", "keys and values", "can be found now"), rows, sides="rll")
        if len(group.runs) > _MOST_RUNS:
            left = sum(run.count for run in group.runs[_MOST_RUNS:])
            drawing.line(Span(f"  and {left} pages more", "dim"))

    def _cells(self, group: PageGroup) -> Iterator[Span]:
        """A letter per page, or per so many that they fit; capitals can be found now."""
        per_cell = -(-group.num_pages // _MOST_CELLS)
        flat = [run for run in group.runs for _ in range(run.count)]
        for start in range(0, len(flat), per_cell):
            run = flat[start]
            letter = _LETTERS[run.origin]
            style = {"found": "good", "prompt": "token-0", "answer": "token-1"}[run.origin]
            yield Span(letter.upper() if run.is_kept else letter, style)
        each = f"{per_cell} pages a letter" if per_cell > 1 else "a letter a page"
        yield Span(
            f"  {each}: h found, p prompt, a answer; capitals can be found by others now", "dim"
        )

    def _draw_ruler(self, drawing: Drawing) -> None:
        drawing.line(
            f"the cache holds {self.token_bytes / 1024:.1f} KiB a token, ",
            Span(f"{self.kept_bytes / 2**20:.2f} MiB", "strong"),
            f" for {self.num_tokens:,} tokens; without one, nothing",
        )
        width, most = WIDTH - 42, self.without_flops
        for name, flops in (("with the cache", self.flops), ("without", self.without_flops)):
            drawing.line(f"{name:<16}{flops / 1e9:>14,.2f} GFLOP  ", bar(flops / most, width))
        ratio = self.without_flops / self.flops
        drawing.line(f"without a cache {ratio:.1f} times the operations, all of them repetition")


def _layers(layers: Sequence[int]) -> str:
    if len(layers) == 1:
        return f"layer {layers[0]}"
    if layers[-1] - layers[0] + 1 == len(layers):
        return f"layers {layers[0]} to {layers[-1]}"
    return f"{len(layers)} layers from {layers[0]} to {layers[-1]}"


def _whence(run: PageRun) -> str:
    if run.origin == "found":
        by = "an answer that is not recorded any more" if run.writer is None else "answer"
        return f"found, written by {by}" + ("" if run.writer is None else f" {run.writer}")
    last = "" if run.count == 1 else ", the last"
    return f"written for the {run.origin}{last} in step {run.step}"


def probe(subject: Subject, query: Query, taken: ReplayValues) -> AnswerPages:
    """The answer's pages by cache group, from its record.

    Raises: ReplayError for an answer that has not begun.
    """
    del query, taken
    answer, size = subject.answer, subject.build.page_size
    if not answer.admissions or not answer.tokens:
        raise ReplayError(
            f"request {quote(answer.request.request_id)} has no pages that are known: it waits, or "
            "was ended before its first token."
        )
    model = model_work(subject.transformer, subject.facts, subject.build.cache_dtype)
    groups = group_layers(subject.facts.cache_specs)
    kept = subject.kept()
    miss = miss_of(
        subject.ledger, answer, page_size=size, has_prefix_cache=subject.build.has_prefix_cache
    )
    token_bytes = sum(r.bytes_per_token * r.num_layers for r in model.cache_reads)
    spent, without = _operations(subject, model)
    made = tuple(_group(subject, group, kept[group.index]) for group in groups)
    return AnswerPages(
        page_size=size,
        num_tokens=subject.num_positions,
        num_prompt=answer.num_prompt_tokens,
        num_preemptions=len(answer.admissions) - 1,
        groups=made,
        miss=miss,
        miss_reason=miss.words,
        token_bytes=token_bytes,
        kept_bytes=token_bytes * subject.num_positions,
        flops=spent,
        without_flops=without,
    )


def _group(subject: Subject, group: CacheGroup, kept: Sequence[bool]) -> PageGroup:
    spec, size = group.spec, subject.build.page_size
    dtype = subject.build.cache_dtype
    token_bytes = spec.bytes_per_token(dtype) * len(group.layers)
    state = sum(field.num_bytes for field in spec.list_fields(dtype)) * len(group.layers)
    pages = list(_pages(subject, kept))
    return PageGroup(
        layers=group.layers,
        fields=tuple(field.name for field in spec.fields),
        window=spec.extent.width if isinstance(spec.extent, Window) and not spec.is_state else None,
        is_state=spec.is_state,
        token_bytes=token_bytes,
        page_bytes=state if spec.is_state else token_bytes * size,
        num_pages=len(pages),
        runs=tuple(_runs(pages)),
    )


def _pages(subject: Subject, kept: Sequence[bool]) -> Iterator[PageRun]:
    """Each page of the last admission alone."""
    answer, size = subject.answer, subject.build.page_size
    admission = answer.admissions[-1]
    writers = _writing_steps(subject, answer)
    for index in range(-(-subject.num_positions // size)):
        end = min((index + 1) * size, subject.num_positions)
        is_full = (index + 1) * size <= subject.num_positions
        is_kept = is_full and kept[index]
        if end <= admission.num_hit:
            wrote = admission.origins[index] if index < len(admission.origins) else None
            writer = None if wrote is None else wrote.answer
            yield PageRun(index, 1, "found", writer, None, is_full, is_kept)
        else:
            origin: Origin = "prompt" if end <= answer.num_prompt_tokens else "answer"
            step = next((number for past, number in writers if past >= end), None)
            yield PageRun(index, 1, origin, answer.number, step, is_full, is_kept)


def _writing_steps(subject: Subject, answer: AnswerRecord) -> list[tuple[int, int]]:
    """How far the tokens were stored after each step of the last admission."""
    found: list[tuple[int, int]] = []
    for number in answer.admissions[-1].steps:
        step = subject.ledger.step(number)
        if step is not None:
            found.append((part_of(step, answer.number).end, number))
    return found


def _runs(pages: Sequence[PageRun]) -> Iterator[PageRun]:
    """Neighbours that are alike as one; of written ones the last step is told."""
    for _, alike in groupby(pages, key=lambda p: (p.origin, p.writer, p.is_full, p.is_kept)):
        run = list(alike)
        last = run[-1]
        yield PageRun(
            run[0].first,
            len(run),
            last.origin,
            last.writer,
            last.step,
            last.is_full,
            last.is_kept,
        )


def _operations(subject: Subject, model: ModelWork) -> tuple[float, float]:
    """What the answer took, and what it would take with nothing kept between its steps."""
    answer = subject.answer
    spent = 0.0
    for number in answer.steps:
        step = subject.ledger.step(number)
        if step is not None:
            part = part_of(step, answer.number)
            spent += model.alone(part.start, part.end, part.num_rows).flops
    prompt = answer.num_prompt_tokens
    lengths = range(prompt, prompt + len(answer.tokens))
    return spent, sum(model.alone(0, length).flops for length in lengths)


VIEW = View(
    "pages",
    "cache",
    "What is kept of each token, and who wrote it?",
    probe,
    is_content=False,
)
