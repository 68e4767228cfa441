"""Stages that prefer: pairs as tokens, reward model, DPO, PPO, GRPO, distillation, whole."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from preference_stages import pairs, talks, tasks, tuned, write_lines

from cutaway.core.errors import ConfigError
from cutaway.core.step import Step
from cutaway.engine.loading.template_of import compiled_template
from cutaway.host.run_record import read_record
from cutaway.tokens.files.tokenizer_files import load_folder
from cutaway.train import distill, dpo, grpo, ppo, reward, sft
from cutaway.train.data.packing import ScoredSequence
from cutaway.train.data.pairs import last_answer, read_scored_pairs
from cutaway.train.loop import descend
from cutaway.train.losses.likelihood import likelihood
from cutaway.train.model.model_folder import open_model
from cutaway.train.model.value_head import copy_model, open_scoring, scores, with_scores
from cutaway.train.optimizers import Optimizers, OptimizerSettings
from cutaway.train.rollouts.rewards import Answered, Task, choose_rewards, final, total
from cutaway.train.rollouts.rollouts import Rollout
from cutaway.train.rollouts.rounds import RoundPart
from cutaway.train.sft import CHAT_TEMPLATE
from cutaway.train.stage import TrainingStage
from cutaway.weights.adapter import adapters, read_adapter


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("preferences")
    tuned(path)
    write_lines(path / "pairs.jsonl", pairs(24))
    write_lines(path / "more.jsonl", pairs(6, start=24))
    write_lines(path / "tasks.jsonl", tasks(12))
    return path


def told(folder: Path, out: str, **changes: Any) -> dict[str, Any]:
    return {
        "out": folder / out,
        "model": str(folder / "tuned"),
        "data": (folder / "pairs.jsonl",),
        "updates": 4,
        "rate": 1e-3,
        "device": "cpu",
        "save_every": 2,
        "measure_every": 4,
        **changes,
    }


def rounds(folder: Path, out: str, **changes: Any) -> dict[str, Any]:
    tasks_ = {"data": (folder / "tasks.jsonl",), "held_out": (folder / "tasks.jsonl",)}
    sampled = {"rewards": "length", "prompts": 6, "max_tokens": 6, "epochs": 2}
    return told(folder, out, **{**tasks_, **sampled, **changes})


def run(stage: TrainingStage[Any]) -> Path:
    return stage.run(say=lambda sentence: None)


def test_pairs_are_told_as_the_template_tells_them(folder: Path) -> None:
    tokenizer = load_folder(folder / "tuned")
    template = compiled_template(CHAT_TEMPLATE, name="tuned", tokenizer=tokenizer)
    found = read_scored_pairs([folder / "pairs.jsonl"], template, tokenizer, context=96)
    assert len(found.pairs) == 24 and not found.dropped
    first = found.pairs[0]
    for side, word in ((first.chosen, "red"), (first.rejected, "green")):
        text = tokenizer.decode(side.token_ids, skip_control=False)
        assert text == (
            f"<|im_start|>user\nred green<|im_end|>\n<|im_start|>assistant\n{word}<|im_end|>"
        )
        marked = [t for t, m in zip(side.token_ids, side.is_scored, strict=True) if m]
        assert tokenizer.decode(marked, skip_control=False) == f"{word}<|im_end|>"
    short = read_scored_pairs([folder / "pairs.jsonl"], template, tokenizer, context=97)
    assert short.data == found.data
    with pytest.raises(ConfigError, match="no pair that can be learned"):
        read_scored_pairs([folder / "pairs.jsonl"], template, tokenizer, context=5)


def test_only_the_last_answer_is_scored_and_nothing_lies_behind_it() -> None:
    sequence = ScoredSequence(
        tuple(range(9)), (False, True, True, False, False, True, True, False, False)
    )
    assert last_answer(sequence, before=1) == ScoredSequence(
        tuple(range(7)), (False, False, False, False, False, True, True)
    )
    assert last_answer(sequence).is_scored == sequence.is_scored[:7]
    assert last_answer(sequence, before=2).count == 0


# T30: a score depends on the batch, or is read at the wrong place.
def test_t30_scores_are_equal_alone_and_in_a_batch(folder: Path) -> None:
    model = with_scores(open_model(str(folder / "tuned")), seed=1)
    sequences = [list(range(3, 3 + length)) for length in range(2, 18)]
    together = scores(model.scorer, sequences).detach()
    for sequence, score in zip(sequences, together, strict=True):
        alone = scores(model.scorer, [sequence]).detach()
        torch.testing.assert_close(alone[0], score, atol=1e-5, rtol=1e-5)
    longer = scores(model.scorer, [[*sequences[0], 9]]).detach()
    assert float((longer - together[0]).abs()) > 1e-4


def test_a_reward_model_is_written_and_opened_again(folder: Path, tmp_path: Path) -> None:
    model = with_scores(open_model(str(folder / "tuned")), seed=1)
    model.write(tmp_path)
    again = open_scoring(str(tmp_path))
    sequences = [[1, 2, 3], [4, 5]]
    assert torch.equal(scores(again.scorer, sequences), scores(model.scorer, sequences))
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["architectures"] == ["LlamaForSequenceClassification"]
    with pytest.raises(ConfigError, match="which has no scores"):
        open_scoring(str(folder / "tuned"))


def test_a_reward_model_is_that_of_transformers(folder: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    model = with_scores(open_model(str(folder / "tuned")), seed=1)
    model.write(tmp_path)
    theirs = transformers.LlamaForSequenceClassification.from_pretrained(
        tmp_path, num_labels=1, pad_token_id=0
    ).eval()
    ids = [5, 6, 7, 8, 9]
    with torch.no_grad():
        found = theirs(torch.tensor([ids])).logits[0, 0]
        torch.testing.assert_close(scores(model.scorer, [ids])[0], found, atol=1e-4, rtol=1e-4)


def test_the_reward_stage_learns_its_pairs(folder: Path) -> None:
    settings = reward.RewardSettings(
        **told(
            folder,
            "reward",
            held_out=(folder / "pairs.jsonl",),
            updates=30,
            rate=3e-3,
            pairs=24,
            save_every=30,
            measure_every=30,
        )
    )
    path = run(reward.prepare(settings))
    last = read_record(settings.out / "record.jsonl")[-1]
    assert last["measured"]["accuracy"] >= 0.95
    assert last["measured"].keys() == {
        *("held_out_loss", "accuracy", "margin", "length_correlation")
    }
    assert last["figures"].keys() >= {"accuracy", "margin"}
    assert open_scoring(str(path)).scorer.weight.shape == (1, 32)


# T28: the reference is the trained model.
def test_t28_dpo_begins_at_the_logarithm_of_two_and_keeps_its_reference(folder: Path) -> None:
    settings = dpo.DpoSettings(
        **told(folder, "dpo28", updates=20, save_every=20, measure_every=20, pairs=24)
    )
    stage = dpo.prepare(settings)
    (batch,) = stage.feed(0)
    before = stage.objective(batch)
    assert float(before.total.detach()) / before.count == pytest.approx(math.log(2), abs=1e-6)
    assert before.figures["chosen_shift"].mean == pytest.approx(0, abs=1e-5)
    optimizers = Optimizers(stage.model.transformer, OptimizerSettings(rate=1e-3))
    for update in range(20):
        descend(stage.feed(update), stage.objective, optimizers, update=update, factor=1.0)
    after = stage.objective(batch)
    assert float(after.total.detach()) / after.count < 0.6
    moved = after.figures["chosen"].mean - after.figures["chosen_shift"].mean
    begun = before.figures["chosen"].mean - before.figures["chosen_shift"].mean
    assert moved == pytest.approx(begun, abs=1e-4)  # log pi - shift is the reference's


# T29: both log-probabilities fall while the margin grows.
def test_t29_a_loss_of_likelihood_is_told_once(folder: Path) -> None:
    said: list[str] = []
    settings = dpo.DpoSettings(**told(folder, "dpo29", context=96))
    stage = dpo.prepare(settings, said.append)
    with torch.no_grad():
        for parameter in stage.model.transformer.parameters():
            parameter *= 3
    for _ in range(2):
        stage.objective(stage.feed(0)[0])
    assert len(said) == 1
    assert "both sides fall" in said[0]


def test_dpo_runs_and_goes_on_to_the_bit(folder: Path) -> None:
    whole = dpo.DpoSettings(**told(folder, "dpo", held_out=(folder / "more.jsonl",)))
    run(dpo.prepare(whole))
    parted = replace(whole, out=folder / "dpo_parted")
    stop_after(dpo.prepare(parted), 2)
    run(dpo.prepare(parted))
    assert same_weights(whole.out, parted.out)
    last = read_record(whole.out / "record.jsonl")[-1]
    assert last["measured"].keys() >= {"chosen_shift", "rejected_shift", "margin", "accuracy"}


class _StopError(Exception):
    pass


def stop_after(stage: TrainingStage[Any], updates: int) -> None:
    """Run some updates, and break off behind the checkpoint that follows them."""

    def report(progress: Any) -> None:
        if progress.updated.update + 1 == updates:
            raise _StopError

    with pytest.raises(_StopError):
        stage.run(report, lambda sentence: None)


def same_weights(left: Path, right: Path) -> bool:
    a, b = (path / "model" / "model.safetensors" for path in (left, right))
    return a.read_bytes() == b.read_bytes()


# T32: the ratio is not 1 in the first minibatch.
def test_t32_ppo_begins_with_ratio_one_and_samples_as_it_trains(folder: Path) -> None:
    stage = ppo.prepare(ppo.PpoSettings(**rounds(folder, "ppo32", parts=2, save_every=4)))
    loss = stage.objective(stage.feed(0)[0])
    figures = {name: figure.mean for name, figure in loss.figures.items()}
    assert figures["ratio"] == 1.0
    assert figures["moved_k3"] == 0.0
    assert figures["clipped"] == 0.0
    assert figures["k3_of_answer"] == pytest.approx(0, abs=1e-9)
    assert figures["sampler_largest"] < 1e-5
    assert {"reward", "ended", "length", "explained_variance", "k1_of_answer"} <= figures.keys()


# T13: a generator seeded anew after a restore repeats its noise; draws are keyed by the round.
@pytest.mark.parametrize("kind", ["ppo", "grpo"])
def test_t13_rounds_run_and_go_on_to_the_bit(kind: str, folder: Path) -> None:
    def stage(out: str) -> TrainingStage[Any]:
        if kind == "ppo":
            return ppo.prepare(ppo.PpoSettings(**rounds(folder, out)))
        return grpo.prepare(grpo.GrpoSettings(**rounds(folder, out, answers=4, beta=0.1)))

    run(stage(f"{kind}_whole"))
    stop_after(stage(f"{kind}_parted"), 2)
    run(stage(f"{kind}_parted"))
    assert same_weights(folder / f"{kind}_whole", folder / f"{kind}_parted")
    rows = read_record(folder / f"{kind}_whole" / "record.jsonl")
    assert rows[-1]["measured"].keys() == {"failed", "k3_of_answer", "ended", "length"}
    # A round's figures stand with each of its updates; after two updates answers are others.
    assert rows[0]["figures"]["reward"] == rows[1]["figures"]["reward"]
    assert rows[2]["figures"]["k3_of_answer"] > 0


# T37: the KL counts in reward and in loss.
def test_t37_the_kl_counts_once(folder: Path) -> None:
    """PPO pays it in rewards and its loss knows no reference; GRPO the other way round."""

    def moved(part: RoundPart) -> RoundPart:
        return replace(part, reference=part.reference - 1)

    stage = ppo.prepare(ppo.PpoSettings(**rounds(folder, "ppo37", beta=0.1)))
    batch: Any = stage.feed(0)[0]
    loss = stage.objective(batch).total
    assert torch.equal(stage.objective(replace(batch, part=moved(batch.part))).total, loss)
    settings = grpo.GrpoSettings(**rounds(folder, "grpo37", beta=0.1, answers=4))
    grouped = grpo.prepare(settings)
    group = grouped.feed(0)[0]
    other = replace(group, part=moved(group.part))
    difference = grouped.objective(other).total - grouped.objective(group).total
    # k3 of a reference that finds each token e times less likely, of one that is the model: 0.
    expected = 0.1 * group.count * (math.exp(-1) - 1 + 1)
    assert float(difference.detach()) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("kind", ["sft", "dpo", "grpo"])
def test_an_adapter_is_trained_alone_and_goes_on_to_the_bit(kind: str, folder: Path) -> None:
    def stage(out: str) -> TrainingStage[Any]:
        own: dict[str, Any] = {"lora_rank": 2, "rate": 1e-2}
        if kind == "sft":
            data = (write_lines(folder / "talks.jsonl", talks(12)),)
            return sft.prepare(
                sft.SftSettings(**told(folder, out, data=data, context=64, tokens=512, **own))
            )
        if kind == "dpo":
            return dpo.prepare(dpo.DpoSettings(**told(folder, out, **own)))
        return grpo.prepare(grpo.GrpoSettings(**rounds(folder, out, answers=4, beta=0.1, **own)))

    whole, parted = f"{kind}_lora", f"{kind}_lora_parted"
    path = run(stage(whole))
    stop_after(stage(parted), 2)
    run(stage(parted))
    assert same_weights(folder / whole, folder / parted)
    before = open_model(str(folder / "tuned"))
    merged = open_model(str(path))
    assert not torch.equal(
        *(m.transformer.blocks[0].mlp.down.segments[0].weight for m in (before, merged))
    )
    for name in ("embedding.table.weight", "unembedding.norm.weight"):
        assert torch.equal(
            *(dict(m.transformer.named_parameters())[name] for m in (before, merged))
        )
    read_adapter(path / "adapter", before.transformer, before.architecture.targets("hf"))
    step = Step.without_cache([[1, 2, 3, 4]])
    with torch.no_grad():
        torch.testing.assert_close(
            before.transformer(step), merged.transformer(step), atol=1e-5, rtol=1e-5
        )
    files = {each.name for each in (folder / whole / "updates" / "000004").iterdir()}
    assert "model.safetensors" not in files and "adapter_model.safetensors" in files


def test_the_reference_of_an_adapter_is_the_model_without(folder: Path) -> None:
    settings = rounds(folder, "lora_reference", lora_rank=2, answers=2)
    stage = grpo.prepare(grpo.GrpoSettings(**settings))
    for _, pair in adapters(stage.model.transformer):
        torch.nn.init.normal_(pair.adapter_up, std=0.1)
    part = stage.feed(0)[0].part
    plain = likelihood(open_model(str(folder / "tuned")).transformer, part.batch, temperature=0.7)
    torch.testing.assert_close(part.reference, plain.log_probs.detach(), atol=1e-5, rtol=0)
    assert float((part.old - part.reference).abs().max()) > 1e-3


def test_checkpoints_lie_between_rounds(folder: Path) -> None:
    with pytest.raises(ConfigError, match="save_every is 3; it must be a multiple of epochs"):
        ppo.prepare(ppo.PpoSettings(**{**rounds(folder, "x"), "save_every": 3}))


def test_ppo_takes_a_reward_model_as_reward_and_critic(folder: Path, tmp_path: Path) -> None:
    with_scores(open_model(str(folder / "tuned")), seed=3).write(tmp_path)
    changes = {"rewards": "", "reward_model": str(tmp_path), "updates": 2}
    settings = ppo.PpoSettings(**{**rounds(folder, "ppo_model"), **changes})
    stage = ppo.prepare(settings)
    run(stage)
    critic = open_scoring(str(folder / "ppo_model" / "updates" / "000002" / "critic"))
    assert not torch.equal(critic.scorer.weight, open_scoring(str(tmp_path)).scorer.weight)


def test_a_copy_has_weights_of_its_own(folder: Path) -> None:
    model = open_model(str(folder / "tuned"))
    other = copy_model(model)
    with torch.no_grad():
        next(other.transformer.parameters()).zero_()
    assert float(next(model.transformer.parameters()).detach().abs().sum()) > 0


def answered(text: str, answer: str, *, is_ended: bool = True) -> Answered:
    rollout = Rollout((1,), tuple(range(len(text))), (0.0,) * len(text), is_ended)
    return Answered(rollout, Task((), answer), text)


def test_verifiers() -> None:
    answers = [answered("The last word is blue.", "blue"), answered("blue or red", "blue")]
    assert final(answers) == [1.0, 0.0]
    (contains, _), (exact, _), (short, _) = choose_rewards(
        ["contains", "exact", "brevity"], [], None
    )
    assert contains(answers) == [1.0, 1.0]
    assert exact([*answers, answered(" blue\n", "blue")]) == [0.0, 0.0, 1.0]
    assert short(answers) == [-0.22, -0.11]
    assert final([answered("", "blue")]) == [0.0]


# T43: an answer that was cut is worth something.
def test_t43_an_answer_without_an_end_is_worth_minus_one() -> None:
    answers = [answered("blue", "blue"), answered("blue", "blue", is_ended=False)]
    assert total(answers, choose_rewards(["final"], [2.0], None)) == [2.0, -1.0]


def test_rewards_that_nobody_knows_are_refused() -> None:
    with pytest.raises(ConfigError, match='rewards has "kind"; known are'):
        choose_rewards(["kind"], [], None)
    with pytest.raises(ConfigError, match="nothing is rewarded"):
        choose_rewards([], [], None)


def test_distillation_comes_nearer_to_its_teacher(folder: Path, tmp_path: Path) -> None:
    teacher = open_model(str(folder / "tuned"))
    student = copy_model(teacher)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in student.transformer.parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=generator)
    (tmp_path / "student").mkdir()
    student.write(tmp_path / "student")
    write_lines(tmp_path / "talks.jsonl", talks(12))
    settings = distill.DistillSettings(
        out=tmp_path / "out",
        model=str(tmp_path / "student"),
        teacher=str(folder / "tuned"),
        data=(tmp_path / "talks.jsonl",),
        held_out=(tmp_path / "talks.jsonl",),
        context=96,
        tokens=512,
        updates=12,
        rate=1e-3,
        device="cpu",
        save_every=12,
        measure_every=12,
    )
    stage = distill.prepare(settings)
    assert stage.measure is not None
    before = stage.measure()
    run(stage)
    after = read_record(settings.out / "record.jsonl")[-1]["measured"]
    assert after["held_out_divergence"] < 0.5 * before["held_out_divergence"]
    assert after["acceptance"] > before["acceptance"]
