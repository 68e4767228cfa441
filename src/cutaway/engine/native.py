"""Steps on a CPU by native kernels: the model recorded once, replayed for every step."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor

from cutaway.blocks.transformer import Transformer
from cutaway.core.step import LayerCache, Numbers, Step
from cutaway.engine.breaks import BrokenOffError
from cutaway.engine.loading.loaded_model import LoadedModel
from cutaway.kernels.capture import Tape

# Steps of no more rows, guesses and all, keep their views of logits.
_MOST_KEPT_ROWS = 32


def is_recorded(model: LoadedModel) -> bool:
    """Whether the model's steps are recorded: all that it multiplies with is packed.

    Whatever else has no native form, such as pages of another dtype, runs in torch as a part of it.
    """
    return model.transformer.is_packed


class NativeSteps:
    """One recording of the model over its pages.

    num_tokens: the most tokens of a step; as many rows may want logits.
    keeps:      whether inner values are there for a sink to read; same bits, more memory.
    streams:    layers behind which a step's reader of streams is told.
    """

    def __init__(
        self,
        model: Transformer,
        caches: tuple[LayerCache, ...],
        *,
        num_tokens: int,
        max_length: int,
        keeps: bool = False,
        streams: frozenset[int] = frozenset(),
    ) -> None:
        self.keeps = keeps
        self._tape = Tape(
            model,
            caches,
            num_tokens=num_tokens,
            num_rows=num_tokens,
            max_length=max_length,
            keeps=keeps,
            streams=streams,
        )
        self._logits = self._tape.result
        self._wanted = {1: self._logits[:1]}  # of steps of few rows, by their number
        self.takes_numbers = self._tape.takes_numbers
        # What torch sums may hang on the step's shape.
        self.kernel = "native" if self._tape.is_native else "native and torch"

    @property
    def streams(self) -> Mapping[int, Tensor]:
        """What the latest run of numbers left behind the layers. Shapes: [room, D] each."""
        return self._tape.streams

    @property
    def num_bytes(self) -> int:
        """Memory of the values of a step."""
        return self._tape.num_bytes

    @property
    def torch_calls(self) -> tuple[str, ...]:
        """The names of operations that have no native form here, in order."""
        return self._tape.torch_calls

    def run(self, step: Step, is_over: Callable[[], bool] | None = None) -> Tensor:
        """Logits of the rows that the step wants. Shapes: [R, V], valid until the next run.

        Raises: BrokenOffError where is_over, which is asked now and then, says so.
        """
        if not self._tape.run(step, is_over):
            raise BrokenOffError
        return self._rows(step.logit_rows.shape[0])

    def run_numbers(self, numbers: Numbers, is_over: Callable[[], bool] | None = None) -> Tensor:
        """The same of a step without a sink, for which no tensor is made."""
        if not self._tape.run_numbers(numbers, is_over):
            raise BrokenOffError
        return self._rows(len(numbers.logit_rows))

    def _rows(self, num_rows: int) -> Tensor:
        wanted = self._wanted.get(num_rows)
        if wanted is None:  # a view takes time, and decoding wants one or the other for long
            wanted = self._logits[:num_rows]
            if num_rows <= _MOST_KEPT_ROWS:
                self._wanted[num_rows] = wanted
        return wanted

    def time(self, step: Step) -> dict[str, float]:
        """Run a step and give the seconds of each kind of operation."""
        return self._tape.time(step)
