"""Hidden vectors of the wanted rows to one logit per vocabulary entry."""

from __future__ import annotations

from torch import Tensor, nn

from cutaway.blocks.embedding import Embedding
from cutaway.blocks.linear import Division
from cutaway.blocks.slots import Norm
from cutaway.core.shards import cuts, widths
from cutaway.core.step import Step
from cutaway.kernels.gather import Gatherer, gather_columns
from cutaway.kernels.likelihood.trainable import log_probs
from cutaway.kernels.linear import project
from cutaway.quantize.dense import DenseWeight
from cutaway.quantize.packed import Packed


class Unembedding(nn.Module):
    """Final norm and the map to the vocabulary, for step.logit_rows only.

    multiplier: of the logits, as in Command R.
    cap: logits are squeezed smoothly between -cap and cap, as in Gemma 2.

    Shapes: hidden [T, D] -> [R, V].
    """

    def __init__(
        self,
        norm: Norm,
        table: DenseWeight | Packed,
        *,
        multiplier: float | None = None,
        cap: float | None = None,
    ) -> None:
        super().__init__()
        self.norm = norm
        self.table = table  # the embedding's own where the two are tied
        self.multiplier, self.cap = multiplier, cap
        self.division: Division | None = None  # of the vocabulary, among ranks

    def divide(self, group: Gatherer, embedding: Embedding) -> None:
        """Keep a rank's part of the vocabulary; logits come together in rank 0.

        A table that is the embedding's own stays that.
        """
        rows = cuts(embedding.num_rows, group.size)
        self.division = Division(group, (widths(rows),))
        if self.table is not embedding.table:
            self.table = DenseWeight(
                len(rows[group.rank]), embedding.width, whole_rows=embedding.num_rows
            )

    def forward(self, hidden: Tensor, step: Step) -> Tensor:
        """Logits of the rows that the step wants. Shapes: hidden [T, D] -> [R, V]."""
        is_one = len(hidden) == len(step.logit_rows) == 1
        return self.of_rows(hidden if is_one else hidden[step.logit_rows], step)

    def of_rows(self, wanted: Tensor, step: Step) -> Tensor:
        """The same, of these rows alone. Shapes: [R, D] -> [R, V]."""
        normed = self.norm(wanted)
        return step.tap("logits", self._logits(step.tap("logits.normed", normed)))

    def log_probs(
        self, hidden: Tensor, targets: Tensor, *, temperature: float, rows_at_once: int
    ) -> tuple[Tensor, Tensor] | None:
        """Log-probability of each row's target and the log of the sum of its exponentials.

        Differentiable, with so many rows' logits at once. None for a table that is not kept as it
        is, and where logits have a cap.
        Shapes: hidden [R, D], targets [R] -> [R] each.
        """
        if not isinstance(self.table, DenseWeight) or self.cap is not None:
            return None
        return log_probs(
            *(self.norm(hidden), self.table.weight, targets),
            temperature=temperature / (self.multiplier or 1.0),
            rows_at_once=rows_at_once,
            dtype=self.table.product_dtype,
        )

    def read(self, hidden: Tensor) -> Tensor:
        """What any vector of the stream would say if the model ended there.

        Shapes: [N, D] -> [N, V].
        """
        return self._finish(self.products(self.norm(hidden)))

    def products(self, normed: Tensor) -> Tensor:
        """Products with the table alone, by the kernels that serve. Shapes: [N, D] -> [N, V]."""
        if isinstance(self.table, Packed):
            return self.table.multiply_packed(normed)
        return self._project(normed)

    def _logits(self, normed: Tensor) -> Tensor:
        return self._finish(self._project(normed))

    def _project(self, normed: Tensor) -> Tensor:
        if self.division is not None:
            self.division.group.check()
        logits = project(normed, (self.table,), None)
        if self.division is None:
            return logits
        return gather_columns(logits, *self.division, is_for_root=True)

    def _finish(self, logits: Tensor) -> Tensor:
        if self.multiplier is not None:
            logits = logits * self.multiplier
        return logits if self.cap is None else self.cap * (logits / self.cap).tanh()
