"""Answers served in bfloat16 on a GPU, captured steps included, come again in their own shapes."""

from __future__ import annotations

import random

import pytest
import torch

from cutaway.replay.recorded_answers import verify_answer
from engines import engine, loaded, run, workload

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]

SIZES = {
    **{"hidden_size": 512, "intermediate_size": 1376, "num_hidden_layers": 6},
    **{"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64},
}


@pytest.mark.parametrize("graphs, least", [(False, 256), (True, 256), (True, 8)])
def test_200_answers_come_again(graphs: bool, least: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prefix hits, chunks, preemption, changing company; every miss is printed with its cause.

    least: queries of a chunk from which on its keys and values are gathered.
    """
    monkeypatch.setattr("cutaway.kernels.attention.gathered.LEAST_QUERIES", least)
    model = loaded(device="cuda", dtype=torch.bfloat16, **SIZES)
    settings = {"num_pages": 20, "prefill_chunk": 16, "max_tokens_per_step": 96}
    target = engine(model, graphs=graphs, max_sequences=12, **settings)
    requests, chance = workload(5, 150), random.Random(5)
    run(target, requests, [chance.randrange(60) for _ in requests])
    assert target.ledger is not None
    answers = [answer for answer in target.ledger.answers if answer.tokens][:200]
    assert len(answers) == 200, "some requests have three choices"
    hits = sum(answer.admissions[0].num_hit > 0 for answer in answers)
    again = sum(len(answer.admissions) > 1 for answer in answers)
    assert hits and again
    verdicts = [verify_answer(target, answer) for answer in answers]
    missed = [str(verdict) for verdict in verdicts if not verdict.is_exact]
    print(
        f"graphs {graphs}: {200 - len(missed)} of 200 exact; {hits} found a prefix, {again} were "
        f"preempted, {sum(len(a.tokens) for a in answers)} tokens in {target.num_steps} steps"
    )
    for line in missed[:20]:
        print("  ", line)
    alone = [verify_answer(target, answer, level="invariant") for answer in answers[:20]]
    print(
        "   alone and in chunks:",
        sum(v.is_exact for v in alone),
        "of 20 exact, largest",
        f"difference {max(v.difference for v in alone):.2g}",
    )
    assert not missed
