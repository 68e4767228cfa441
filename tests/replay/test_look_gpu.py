"""Inner values of answers that a GPU served in bfloat16, captured steps included."""

from __future__ import annotations

import pytest
import torch

from cutaway.replay.look import Look
from cutaway.views import VIEWS
from cutaway.views.parts.query import Query
from cutaway.views.parts.replay_values import Wanted
from engines import engine, loaded
from subjects import answered

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]

SIZES = {
    **{"hidden_size": 512, "intermediate_size": 1376, "num_hidden_layers": 6},
    **{"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64},
}


@pytest.mark.parametrize("graphs", [False, True])
def test_values_are_those_of_the_rows_that_were_served(graphs: bool) -> None:
    model = loaded(device="cuda", dtype=torch.bfloat16, **SIZES)
    target = engine(model, graphs=graphs, prefill_chunk=16)
    answer = answered(target, range(40), max_tokens=12)
    layers = frozenset(range(6))
    taps = frozenset({"embedding.hidden", "blocks.attention.update", "blocks.mlp.update"})
    wanted = Wanted(taps | {"blocks.hidden"}, layers, 0, 51, layers, frozenset(range(12)))
    taken = Look(target, answer).take(wanted)
    assert str(taken.proof) == "exact (shape-faithful, 12 rows)"
    hidden = taken.value("embedding.hidden")
    for layer in range(6):
        hidden = hidden + taken.value("blocks.attention.update", layer)
        hidden = hidden + taken.value("blocks.mlp.update", layer)
    torch.testing.assert_close(hidden, taken.value("blocks.hidden", 5), rtol=0.05, atol=0.1)
    assert [int(row.argmax()) for row in taken.rows.values()] == [t.token_id for t in answer.tokens]


def test_every_view_is_drawn() -> None:
    target = engine(loaded(device="cuda", dtype=torch.bfloat16, **SIZES))
    look = Look(target, answered(target, b"What is gravity?"))
    look.prepare(VIEWS, Query())
    for view in VIEWS:
        shown = view.show(look.subject, Query())
        assert shown.payload.draw().text()
        assert shown.proof is None or shown.proof.is_exact
