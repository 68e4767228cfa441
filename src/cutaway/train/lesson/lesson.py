"""The lesson: a model of 0.15 million parameters from random numbers to what people prefer.

Vocabulary, pretraining, fine-tuning, a reward model, PPO and DPO, each a run like any other, so
that all of a training can be looked at while it is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cutaway.train import dpo, ppo, pretrain, reward, sft
from cutaway.train.lesson.puzzles import ASKED, BEGUN, write_data
from cutaway.train.stage import TrainingStage
from cutaway.train.stage_config import option
from cutaway.train.vocabulary import VocabularySettings, learn

# Its stages, and what each does.
STAGES: Mapping[str, str] = {
    "pretrain": "From random numbers to text: it guesses the next token of 6,000 lines.",
    "sft": "From text to answers: the same, on conversations, and only the answers count.",
    "reward": "A second model learns which of two answers people prefer; its score is a reward.",
    "ppo": "It answers, is paid for right answers, and a leash (KL) keeps it near its old self.",
    "dpo": "The same pairs without a reward model: what was preferred becomes likelier.",
}
SHAPE: Mapping[str, object] = {
    "hidden_size": 64,
    "intermediate_size": 176,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "max_position_embeddings": 64,
}


@dataclass(frozen=True, kw_only=True)
class LessonSettings:
    """What the lesson is told: what one would turn to see it go otherwise."""

    out: Path = option(
        Path("runs/lesson"), help="how the names of its folders begin", changes_run=False
    )
    until: str = option("dpo", help="its last stage", choices=tuple(STAGES), changes_run=False)
    rate: float = option(3e-3, help="the peak learning rate of pretraining", least=0.0)
    rewards: str = option(
        "final",
        help="what PPO is paid for: right answers, or long ones",
        choices=("final", "length"),
    )
    beta: float = option(0.05, help="PPO's leash: weight of the KL to its start", least=0.0)
    seed: int = option(0, help="of weights and order", least=0)
    device: str = option("auto", help="auto, cpu, cuda or cuda:N", changes_run=False)

    def folder(self, name: str) -> Path:
        """Where one of its parts lies, beside the others."""
        return self.out.with_name(f"{self.out.name}-{name}")


def prepare(
    settings: LessonSettings, say: Callable[[str], None] = print
) -> Iterator[TrainingStage[Any]]:
    """Its stages, each made ready once those before it are done.

    say: a sentence for a person.   Raises: ConfigError, ModelError and its kinds, OSError.
    """
    data, vocabulary = settings.folder("data"), settings.folder("vocabulary")
    if not data.is_dir():
        write_data(data)
    text, held_out_text = (data / "text.jsonl",), (data / "held_out_text.jsonl",)
    if not vocabulary.is_dir():
        learn(VocabularySettings(out=vocabulary, data=text, size=330))
    tuned = str(settings.folder("sft") / "model")
    common: dict[str, Any] = {
        "seed": settings.seed,
        "device": settings.device,
        "measure_every": 20,
        "save_every": 40,
        "keep": 1,
    }
    pairs: dict[str, Any] = {
        "model": tuned,
        "data": (data / "pairs.jsonl",),
        "held_out": (data / "held_out_pairs.jsonl",),
        "updates": 120,
        **common,
    }

    def make_base() -> TrainingStage[Any]:
        told = pretrain.PretrainSettings(
            out=settings.folder("pretrain"),
            data=text,
            held_out=held_out_text,
            vocabulary=vocabulary,
            model=SHAPE,
            context=64,
            tokens=4096,
            updates=400,
            rate=settings.rate,
            samples=(BEGUN, ASKED),
            **common,
        )
        return pretrain.prepare(told)

    def tune() -> TrainingStage[Any]:
        told = sft.SftSettings(
            out=settings.folder("sft"),
            model=str(settings.folder("pretrain") / "model"),
            data=(data / "sft.jsonl",),
            context=64,
            tokens=4096,
            updates=120,
            rate=2e-3,
            samples=(BEGUN, ASKED),
            **common,
        )
        return sft.prepare(told, say)

    def score() -> TrainingStage[Any]:
        told = reward.RewardSettings(out=settings.folder("reward"), rate=1e-3, **pairs)
        return reward.prepare(told)

    def pay() -> TrainingStage[Any]:
        told = ppo.PpoSettings(
            out=settings.folder("ppo"),
            model=tuned,
            data=(data / "tasks.jsonl",),
            held_out=(data / "held_out_tasks.jsonl",),
            rewards=settings.rewards,
            verifier="final",
            beta=settings.beta,
            prompts=64,
            max_tokens=16,
            updates=120,
            rate=3e-4,
            **common,
        )
        return ppo.prepare(told)

    def prefer() -> TrainingStage[Any]:
        told = dpo.DpoSettings(out=settings.folder("dpo"), rate=1e-4, loss="rpo", **pairs)
        return dpo.prepare(told, say)

    for name, make in zip(STAGES, (make_base, tune, score, pay, prefer), strict=True):
        yield make()
        if name == settings.until:
            return
