"""Twenty updates beside TRL's trainers: the same ids and weights give the same losses.

TRL is not installed for CI; docs/train.md says how to run this.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from preference_stages import tuned

from cutaway.train.data.packing import MicroBatch, ScoredSequence
from cutaway.train.data.pairs import Pairs, ScoredPair
from cutaway.train.dpo import compare, reference_sums
from cutaway.train.loop import descend
from cutaway.train.losses.likelihood import likelihood
from cutaway.train.losses.losses import Loss, cross_entropy
from cutaway.train.losses.pair_losses import PAIR_LOSSES, PairSettings, bradley_terry
from cutaway.train.model.model_folder import open_model
from cutaway.train.model.value_head import with_scores
from cutaway.train.optimizers import Optimizers, OptimizerSettings
from cutaway.train.reward import score_pairs

trl = pytest.importorskip("trl")
datasets: Any = pytest.importorskip("datasets")
pyarrow: Any = pytest.importorskip("pyarrow")
transformers: Any = pytest.importorskip("transformers")

UPDATES, AT_ONCE, RATE = 20, 4, 1e-3
SETTINGS = OptimizerSettings(rate=RATE, betas=(0.9, 0.95), epsilon=1e-8, decay=0.0)

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tuned(tmp_path_factory.mktemp("trl"))


def ids(seed: int, least: int, most: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    length = int(torch.randint(least, most, (), generator=generator))
    return torch.randint(4, 250, (length,), generator=generator).tolist()


def scored(prompt: Sequence[int], answer: Sequence[int]) -> ScoredSequence:
    marks = (False,) * len(prompt) + (True,) * len(answer)
    return ScoredSequence((*prompt, *answer), marks)


ROWS = [(ids(3 * n, 3, 9), ids(3 * n + 1, 1, 8), ids(3 * n + 2, 1, 8)) for n in range(80)]
PAIRS = Pairs(
    tuple(
        ScoredPair(scored(prompt, chosen), scored(prompt, rejected), place)
        for place, (prompt, chosen, rejected) in enumerate(ROWS)
    ),
    {},
    "",
)


def given(rows: list[Any]) -> Any:
    """Ids as TRL wants them; with a name of its own, so that nothing is pickled to find one."""
    table = datasets.table.InMemoryTable(pyarrow.Table.from_pylist(rows))
    return datasets.Dataset(table, fingerprint="rows")


def our_losses(
    module: torch.nn.Module, batches: Callable[[range], list[Any]], objective: Callable[..., Loss]
) -> list[float]:
    optimizers = Optimizers(module, SETTINGS)
    losses: list[float] = []
    for update in range(UPDATES):
        own = batches(range(update * AT_ONCE, (update + 1) * AT_ONCE))
        done = descend(own, objective, optimizers, update=update, factor=1.0)
        losses.append(done.loss)
    return losses


def their_losses(
    trainer: type, config: type, model: Any, folder: str, work: Path, **more: Any
) -> Any:
    """What a trainer of TRL writes down; it is given ids, and takes them in their order."""

    class Given(trainer):  # type: ignore[misc, valid-type]
        def _prepare_dataset(self, dataset: Any, *args: Any, **named: Any) -> Any:
            return dataset

        def _get_train_sampler(self, *args: Any) -> Any:
            return torch.utils.data.SequentialSampler(self.train_dataset)  # type: ignore[arg-type]

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer.pad_token = tokenizer.eos_token
    model.config.pad_token_id = tokenizer.pad_token_id
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=RATE, betas=SETTINGS.betas, eps=SETTINGS.epsilon, weight_decay=0.0
    )
    rows = more.pop("rows")
    made = Given(
        model=model,
        args=config(
            output_dir=str(work),
            max_steps=UPDATES,
            per_device_train_batch_size=AT_ONCE,
            max_grad_norm=SETTINGS.max_norm,
            gradient_checkpointing=False,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            bf16=False,
            disable_tqdm=True,
            max_length=None,
            **more,
        ),
        train_dataset=given(rows),
        processing_class=tokenizer,
        optimizers=(optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)),
    )
    made.train()
    return [row["loss"] for row in made.state.log_history if "loss" in row]


def causal(folder: str) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def test_fine_tuning(folder: str, tmp_path: Path) -> None:
    model = open_model(folder)
    sequences = [pair.chosen for pair in PAIRS.pairs]
    ours = our_losses(
        model.transformer,
        lambda members: [MicroBatch(tuple(sequences[at] for at in members))],
        lambda batch: cross_entropy(likelihood(model.transformer, batch)),
    )
    rows: list[Any] = []
    for each in sequences:
        pairs = zip(each.token_ids, each.is_scored, strict=True)
        labels = [token if is_scored else -100 for token, is_scored in pairs]
        rows.append({"input_ids": list(each.token_ids), "labels": labels})
    theirs = their_losses(
        *(trl.SFTTrainer, trl.SFTConfig, causal(folder), folder, tmp_path),
        rows=rows,
    )
    assert ours == pytest.approx(theirs, abs=1e-4)
    assert ours[-1] != pytest.approx(ours[0], abs=0.1)


@pytest.mark.parametrize("name", ["sigmoid", "ipo", "hinge"])
def test_direct_preferences(folder: str, tmp_path: Path, name: str) -> None:
    model = open_model(folder)
    reference = reference_sums(model.transformer, PAIRS, 4096)
    ours = our_losses(
        model.transformer,
        lambda members: PAIRS.batches(members, 4096),
        lambda batch: PAIR_LOSSES[name](
            compare(model.transformer, batch, reference), PairSettings(0.1)
        ),
    )
    rows = [
        {"prompt_ids": prompt, "chosen_ids": chosen, "rejected_ids": rejected}
        for prompt, chosen, rejected in ROWS
    ]
    theirs = their_losses(
        *(trl.DPOTrainer, trl.DPOConfig, causal(folder), folder, tmp_path),
        rows=rows,
        beta=0.1,
        loss_type=[name],
    )
    assert ours == pytest.approx(theirs, abs=1e-4)
    assert ours[-1] != pytest.approx(ours[0], abs=1e-3)


def test_reward_model(folder: str, tmp_path: Path) -> None:
    model = with_scores(open_model(folder), seed=1)
    begun = tmp_path / "begun"
    begun.mkdir()
    model.write(begun)
    theirs_model = transformers.AutoModelForSequenceClassification.from_pretrained(
        begun, dtype=torch.float32
    )

    def objective(batch: Any) -> Loss:
        return bradley_terry(*score_pairs(model.scorer, batch), centring=0.01)

    ours = our_losses(model.scorer, lambda members: PAIRS.batches(members, 4096), objective)
    rows = [
        {"chosen_ids": prompt + chosen, "rejected_ids": prompt + rejected}
        for prompt, chosen, rejected in ROWS
    ]
    theirs = their_losses(
        *(trl.RewardTrainer, trl.RewardConfig, theirs_model, folder, tmp_path),
        rows=rows,
        center_rewards_coefficient=0.01,
    )
    assert ours == pytest.approx(theirs, abs=1e-4)
    assert ours[-1] != pytest.approx(ours[0], abs=1e-3)
