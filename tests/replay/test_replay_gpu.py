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


def test_invariant_rows_have_the_same_bits_in_any_company_and_cut() -> None:
    """Served twice in other batches, other chunks, captured and eager; then each alone."""
    model = loaded(device="cuda", dtype=torch.bfloat16, **SIZES)
    requests, chance = workload(6, 150), random.Random(6)
    seen: list[dict[tuple[str, int], list[int]]] = []
    for most, settings in (
        (
            200,
            {"num_pages": 20, "prefill_chunk": 16, "max_tokens_per_step": 96, "max_sequences": 12},
        ),
        (20, {"num_pages": 400, "prefill_chunk": 5, "max_sequences": 40, "graphs": False}),
    ):
        target = engine(model, invariant=True, **settings)
        assert target.runner.is_invariant
        run(target, requests, [chance.randrange(60) for _ in requests])
        assert target.ledger is not None
        answers = [answer for answer in target.ledger.answers if answer.tokens]
        seen.append(
            {
                (answer.request.request_id, answer.choice): [t.checksum for t in answer.tokens]
                for answer in answers
            }
        )
        alone = [verify_answer(target, answer, level="invariant") for answer in answers[:most]]
        missed = [str(verdict) for verdict in alone if not verdict.is_exact]
        print(f"{settings}: {len(alone) - len(missed)} of {len(alone)} exact alone and in chunks")
        print(*missed[:5], sep="\n")
        assert not missed
    apart = [key for key in seen[0] if seen[0][key] != seen[1][key]]
    print(f"{len(seen[0]) - len(apart)} of {len(seen[0])} answers have the same bits in both")
    assert seen[0].keys() == seen[1].keys() and not apart
