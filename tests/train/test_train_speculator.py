"""`train speculator`: passes over its own states, the loss, and a run whose guesses then stand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from preference_stages import talks, tuned, write_lines

from cutaway import LLM, SamplingParams
from cutaway.core.step import Step
from cutaway.engine.drafters import Draft, Wish
from cutaway.engine.drafters.trained_drafter import TrainedDrafter
from cutaway.engine.drafting import Drafting, GuessSource
from cutaway.train import speculator
from cutaway.train.data.packing import MicroBatch, ScoredSequence
from cutaway.train.loop import descend
from cutaway.train.losses.losses import Loss
from cutaway.train.losses.speculator_passes import passes_over
from cutaway.train.model.model_folder import TrainedModel, open_model
from cutaway.train.model.speculator_model import SpeculatorModel, with_speculator
from cutaway.train.optimizers import Optimizers, OptimizerSettings
from cutaway.weights.files.safetensors import SafetensorsWeights


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("speculator")
    tuned(path)
    write_lines(path / "talks.jsonl", talks(24))
    return path


def told(folder: Path, out: str, **changes: Any) -> speculator.SpeculatorSettings:
    data = (folder / "talks.jsonl",)
    return speculator.SpeculatorSettings(
        **{
            **{"out": folder / out, "model": str(folder / "tuned"), "data": data},
            **{"held_out": data, "updates": 60, "rate": 5e-3, "device": "cpu", "inner": 32},
            **{"passes": 3, "context": 96, "tokens": 400, "save_every": 30, "measure_every": 60},
            **changes,
        }
    )


def small(folder: Path) -> SpeculatorModel:
    model = open_model(str(folder / "tuned"))
    return with_speculator(model, torch.arange(0, 260, 2), name="tuned", inner=32, seed=1)


def test_the_first_pass_is_the_layer_as_it_serves(folder: Path) -> None:
    model = small(folder)
    streams, tokens = torch.randn(9, 96), torch.randn(9, 32)
    step = Step.without_cache([list(range(9))])
    module = model.speculator
    (given,) = passes_over(module, streams, tokens, num_passes=1)
    torch.testing.assert_close(given, module(module.states_of(streams), tokens, step))


def test_each_pass_sees_what_decoding_would(folder: Path) -> None:
    """Pass i at a token: the streams up to i - 1 before it, and its own states since."""
    module = small(folder).speculator
    streams, tokens = torch.randn(8, 96), torch.randn(8, 32)
    given = passes_over(module, streams, tokens, num_passes=3)
    for place in range(3, 8):
        for number in range(3):
            # Later streams and tokens play no part.
            other = streams.clone()
            other[place - number + 1 :] = 9.0
            tail = tokens.clone()
            tail[place + 1 :] = -3.0
            again = passes_over(module, other, tail, num_passes=3)[number][place]
            torch.testing.assert_close(again, given[number][place])
            other[place - number] += 1.0
            changed = passes_over(module, other, tail, num_passes=3)[number][place]
            assert not torch.allclose(changed, given[number][place]), "the last one is seen"


def test_t49_the_model_stays_and_its_own_rows_are_the_goal(folder: Path) -> None:
    model = small(folder)
    sequence = ScoredSequence((5, 6, 7, 8, 9, 10), (False, False, True, True, False, True))
    loss = speculator.loss_of(model, MicroBatch((sequence, sequence)), num_passes=2)
    assert loss.count == 6
    loss.total.backward()
    assert all(p.grad is None for p in model.transformer.parameters())
    assert all(p.grad is not None for p in model.speculator.parameters())
    alone = speculator.loss_of(model, MicroBatch((sequence,)), num_passes=2)
    torch.testing.assert_close(2 * alone.total, loss.total)
    # Of three scored tokens the first two follow one another.
    assert alone.figures["stood_1"].count == 3 and alone.figures["stood_2"].count == 1


def test_later_passes_learn_where_those_before_were_near(folder: Path) -> None:
    """The sum over just those rows, by hand; what is told of guesses that stand is the same."""
    model = small(folder)
    sequence = ScoredSequence(tuple(range(4, 40)), (False, False, *[True] * 20, *[False] * 14))
    batch, reach = MicroBatch((sequence,)), 40
    everywhere = speculator.loss_of(model, batch, num_passes=2, walks=True)
    near = speculator.loss_of(model, batch, num_passes=2, walks=True, reach=reach)
    assert everywhere.figures == near.figures and everywhere.count == near.count
    streams, rows = speculator.streams_of(model, batch)
    teacher = model.transformer.unembedding.read(rows)
    tokens = model.transformer.embedding.table.rows(torch.arange(5, 40))
    read = [
        model.speculator.read(each[:20])  # the row of token n is two before it
        for each in passes_over(model.speculator, streams[:35], tokens, num_passes=2)
    ]
    ids, wanted = teacher.argmax(-1).tolist(), teacher[:, model.drafted].softmax(-1)
    likeliest = model.drafted[read[0].topk(reach).indices].tolist()
    kept = [row for row in range(1, 20) if ids[row - 1] in likeliest[row - 1]]
    assert 0 < len(kept) < 19
    losses = [-(wanted * each.log_softmax(-1)).sum(-1) for each in read]
    torch.testing.assert_close(near.total, losses[0].sum() + 0.8 * losses[1][kept].sum())
    torch.testing.assert_close(everywhere.total, losses[0].sum() + 0.8 * losses[1].sum())


def test_sequences_of_any_lengths_share_a_forward(folder: Path) -> None:
    """Padded into groups or alone: the same sum, figures and gradients."""
    model = small(folder)
    sequences = [
        ScoredSequence(tuple(range(3, 3 + length)), (False, False, *[True] * (length - 2)))
        for length in (3, 19, 4, 11, 18, 3)
    ]
    together = speculator.loss_of(model, MicroBatch(tuple(sequences)), num_passes=3)
    together.total.backward()
    found = [parameter.grad for parameter in model.speculator.parameters()]
    model.speculator.zero_grad()
    alone = [speculator.loss_of(model, MicroBatch((each,)), num_passes=3) for each in sequences]
    torch.stack([each.total for each in alone]).sum().backward()
    torch.testing.assert_close(together.total, torch.stack([each.total for each in alone]).sum())
    assert together.count == sum(each.count for each in alone)
    for name, figure in together.figures.items():
        assert figure.count == sum(each.figures[name].count for each in alone)
        assert float(figure.total) == sum(float(each.figures[name].total) for each in alone)
    wanted = [parameter.grad for parameter in model.speculator.parameters()]
    for one, other in zip(found, wanted, strict=True):
        assert one is not None and other is not None
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_without_a_head_of_its_own_the_models_rows_serve(folder: Path) -> None:
    stage = speculator.prepare(
        told(folder, "headless", updates=2, learns_head=False, kept="int8"), say=lambda s: None
    )
    out = stage.run(say=lambda sentence: None)
    stored = SafetensorsWeights(out)
    assert "lm_head.weight" not in stored.names()
    assert stored.part("fc.weight").dtype == torch.int8
    settings = {"dtype": "float32", "cache_tokens": 2048, "device": "cpu"}
    llm = LLM(str(folder / "tuned"), **settings, draft_speculator=str(out))
    assert llm.engine.drafting is not None
    drafter = llm.engine.drafting.drafter("trained")
    assert isinstance(drafter, TrainedDrafter)
    served = drafter._speculator
    rows = llm.engine.model.transformer.unembedding.table.rows(served.drafted)
    assert torch.equal(served.module.head.rows(torch.arange(len(rows))), rows)
    fused = served.module.fuse.dense()
    trained = stage.model.speculator.fuse.dense()  # pyright: ignore[reportAttributeAccessIssue]
    steps = trained.view(len(trained), -1, 32).abs().amax(-1) / 127
    assert ((fused - trained).view(*steps.shape, 32).abs().amax(-1) <= 0.51 * steps).all()


def test_a_run_from_files_to_files_guesses_for_the_model_that_is_served(folder: Path) -> None:
    stage = speculator.prepare(told(folder, "run"), say=lambda sentence: None)
    losses: list[float] = []
    measured: dict[str, float] = {}

    def report(progress: Any) -> None:
        losses.append(progress.updated.loss)
        measured.update(progress.measured)

    out = stage.run(report, say=lambda sentence: None)
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])
    config = json.loads((out / "config.json").read_text())
    assert config["speculators_model_type"] == "eagle3" and config["draft_vocab_size"] > 3
    # The model's own answers are what it then meets.
    settings = {"dtype": "float32", "cache_tokens": 2048, "device": "cpu"}
    llm = LLM(str(folder / "tuned"), **settings, draft_speculator=str(out))
    assert llm.engine.config.draft == "trained"
    drafting = llm.engine.drafting
    assert drafting is not None
    drafter = drafting.drafter("trained")
    assert drafter is not None
    # Without the controller, which weighs what time guesses take on this machine.
    sources = {"trained": GuessSource(drafter, None)}
    llm.engine.drafting = Drafting(sources, default="trained", streams=drafting.streams)
    tokens = [each["messages"] for each in talks(24)]
    asked = [llm.encode_chat(each[:1]) for each in tokens]
    plain = LLM(str(folder / "tuned"), **settings)
    given = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
    said = [a.token_ids for a in llm.generate(asked, given)]
    assert said == [a.token_ids for a in plain.generate(asked, given)]
    assert llm.engine.num_drafted > 0
    assert measured["accepted_length"] > 1.0


def test_t50_what_training_measures_is_what_serving_finds(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Learned from a model's own answers; the loop keeps as many guesses as the passes foretell."""
    model = small(folder)
    end = model.config["eos_token_id"]
    with torch.no_grad():  # behind an end nothing is guessed, so it is to come late
        model.transformer.embedding.table.weight[end] *= 0.1
    target, made = folder / "talking", folder / "its_speculator"
    for path in (target, made):
        path.mkdir()
    TrainedModel.write(model, target)
    settings = {
        **{"dtype": "float32", "cache_tokens": 2048, "device": "cpu"},
        "prefix_cache": False,  # of found pages a speculator has no streams
    }
    plain = LLM(str(target), **settings)
    asked = [plain.encode_chat(each["messages"][:1]) for each in talks(24)]
    given = SamplingParams(temperature=0.0, max_tokens=40)
    said = [a.token_ids for a in plain.generate(asked, given)]
    batch = MicroBatch(
        tuple(
            ScoredSequence((*prompt, *answer), (False,) * len(prompt) + (True,) * len(answer))
            for prompt, answer in zip(asked, said, strict=True)
        )
    )

    def objective(batch: MicroBatch) -> Loss:
        return speculator.loss_of(model, batch, num_passes=3)

    optimizers = Optimizers(model.speculator, OptimizerSettings(rate=5e-3))
    for update in range(40):
        descend([batch], objective, optimizers, update=update, factor=1.0)
    with torch.no_grad():
        loss = speculator.loss_of(model, batch, num_passes=3, walks=True)
    foretold = loss.figures["accepted_length"].mean
    model.finish(made)
    llm = LLM(str(target), **settings, draft_speculator=str(made))
    drafting = llm.engine.drafting
    drafter = None if drafting is None else drafting.drafter("trained")
    assert drafting is not None and drafter is not None
    # Without the controller, which weighs what time guesses take on this machine.
    sources = {"trained": GuessSource(drafter, None)}
    llm.engine.drafting = drafting = Drafting(sources, default="trained", streams=drafting.streams)
    propose = drafter.propose

    def propose_three(wishes: Sequence[Wish]) -> list[Draft]:
        return propose([replace(each, most=min(each.most, 3)) for each in wishes])

    monkeypatch.setattr(drafter, "propose", propose_three)
    assert said == [a.token_ids for a in llm.generate(asked, given)]
    tokens = sum(len(answer) - 1 for answer in said)  # the first comes of the prompt
    served = tokens / (tokens - sum(drafting.right.values()))
    assert served == pytest.approx(foretold, rel=0.02)
    assert 1.2 < served < 3.9
    stood = sum(each.mean for name, each in loss.figures.items() if name.startswith("stood"))
    assert served < 0.9 * (1 + stood), "training asks at every token, which says too much"


def test_a_run_goes_on_from_its_checkpoint(folder: Path) -> None:
    whole = speculator.prepare(told(folder, "whole", updates=4, save_every=2), say=lambda s: None)
    path = whole.run(say=lambda sentence: None)
    part = told(folder, "part", updates=4, save_every=2)

    class StoppedError(Exception):
        pass

    def stop(progress: Any) -> None:
        if progress.updated.update == 2:
            raise StoppedError

    with pytest.raises(StoppedError):
        speculator.prepare(part, say=lambda s: None).run(stop, say=lambda sentence: None)
    again = speculator.prepare(part, say=lambda s: None).run(say=lambda sentence: None)
    names = ("model.safetensors", "config.json")
    assert [(again / n).read_bytes() for n in names] == [(path / n).read_bytes() for n in names]
