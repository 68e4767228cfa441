"""A model that gives a number: a transformer and one row behind its last norm.

A reward model reads it at an answer's last token, whose place is known by construction; a critic
at the tokens from which each token of an answer was drawn.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from cutaway.blocks.transformer import Transformer
from cutaway.core.errors import ConfigError
from cutaway.core.limits import quote
from cutaway.core.step import Step
from cutaway.models.parts.reading import read_config
from cutaway.train.data.packing import MicroBatch
from cutaway.train.model.model_folder import (
    TrainedModel,
    in_float32,
    small_files,
    stored_tensors,
    take_up,
)
from cutaway.weights.adapter import take_off
from cutaway.weights.files.safetensors import SafetensorsWeights
from cutaway.weights.files.safetensors_index import SINGLE
from cutaway.weights.files.safetensors_writer import write_safetensors
from cutaway.weights.find.folder import CONFIG
from cutaway.weights.load import load_weights

SCORE = "score.weight"
_GENERATES, _SCORES = "ForCausalLM", "ForSequenceClassification"


class Scorer(nn.Module):
    """A transformer with a row of D numbers, without bias.

    Shapes: rows of the stream [R, D] -> [R].
    """

    def __init__(self, transformer: Transformer, *, seed: int) -> None:
        super().__init__()
        self.transformer = transformer
        parameter = next(transformer.parameters())
        width = transformer.unembedding.table.dense().shape[1]
        generator = torch.Generator().manual_seed(seed)
        drawn = torch.randn(1, width, generator=generator) / (width + 1) ** 0.5
        self.weight = nn.Parameter(drawn.to(parameter))

    def forward(self, step: Step) -> Tensor:
        """The number of each row that the step wants. Shapes: [R] float32."""
        rows = self.transformer.hidden(step)[step.logit_rows]
        normed = self.transformer.unembedding.norm(rows)
        return (normed.float() @ self.weight.float().T)[:, 0]


def scores(scorer: Scorer, sequences: Sequence[Sequence[int]]) -> Tensor:
    """What a reward model gives for each sequence, read at its last token. Shapes: [B]."""
    device = scorer.weight.device
    ends = torch.tensor([len(each) for each in sequences], device=device).cumsum(0) - 1
    return scorer(Step.without_cache(sequences, device=device, logit_rows=ends, trains=True))


def values(scorer: Scorer, batch: MicroBatch) -> Tensor:
    """What a critic expects where each scored token was drawn. Shapes: [R]."""
    return scorer(batch.step(scorer.weight.device))


@dataclass(frozen=True, kw_only=True)
class ScoringModel(TrainedModel):
    """A model with a row of scores, and what its folder needs beside both."""

    scorer: Scorer

    def write(self, folder: Path) -> None:
        """As Hugging Face's ...ForSequenceClassification with one label. Raises: OSError."""
        super().write(folder)
        (word,) = cast("list[str]", self.config["architectures"])
        told = {
            **in_float32(self.config),
            "architectures": [word.replace(_GENERATES, _SCORES)],
            "id2label": {"0": "LABEL_0"},
            "label2id": {"LABEL_0": 0},
        }
        text = json.dumps(told, indent=2, ensure_ascii=False) + "\n"
        (folder / CONFIG).write_text(text, encoding="utf-8")
        tensors = stored_tensors(self.transformer, self.architecture)
        write_safetensors(folder / SINGLE, {**tensors, SCORE: self.scorer.weight.detach().cpu()})

    def load(self, folder: Path) -> None:
        """Take up what write() wrote. The parameters stay the same tensors."""
        source = SafetensorsWeights(folder)
        take_up(self.transformer, self.architecture, source)
        with torch.no_grad():
            self.scorer.weight.copy_(source.tensor(SCORE))


def with_scores(model: TrainedModel, *, seed: int) -> ScoringModel:
    """A model and a fresh row of scores; the transformer is the very one.

    Its map to the vocabulary is trained no more, unless the embedding is the same matrix.
    """
    transformer = model.transformer
    if transformer.unembedding.table is not transformer.embedding.table:
        transformer.unembedding.table.requires_grad_(False)
    return ScoringModel(**vars(model), scorer=Scorer(model.transformer, seed=seed))


def copy_model(model: TrainedModel) -> TrainedModel:
    """A whole model with weights of its own that are the same numbers, without adapters."""
    transformer = copy.deepcopy(model.transformer)
    take_off(transformer)
    return TrainedModel(
        transformer=transformer.requires_grad_(True),
        architecture=model.architecture,
        config=model.config,
        small_files=model.small_files,
    )


def is_scoring(path: str) -> bool:
    """Whether a folder holds a model with a row of scores."""
    config = Path(path) / CONFIG
    return config.is_file() and _SCORES in config.read_text(encoding="utf-8")


def open_scoring(path: str, *, device: torch.device | str = "cpu") -> ScoringModel:
    """The reward model of a folder, its weights in float32.

    Raises: ModelError and its kinds; ConfigError for a folder without scores.
    """
    if not is_scoring(path):
        raise ConfigError(
            f"reward_model is {quote(path)}, which has no scores; `train reward` makes one."
        )
    folder = Path(path)
    config = cast("dict[str, Any]", json.loads((folder / CONFIG).read_bytes()))
    config["architectures"] = [config["architectures"][0].replace(_SCORES, _GENERATES)]
    for name in ("id2label", "label2id"):
        config.pop(name, None)
    architecture = read_config(config, file=str(folder / CONFIG)).architecture
    with torch.device("meta"):
        transformer = architecture.build()
    source = SafetensorsWeights(folder)
    load_weights(
        transformer,
        source,
        architecture.targets("hf"),
        dtype=torch.float32,
        device=device,
        optional=architecture.optional("hf") | {SCORE},
    )
    made = TrainedModel(
        transformer=transformer,
        architecture=architecture,
        config=config,
        small_files=small_files(folder),
    )
    scoring = with_scores(made, seed=0)
    with torch.no_grad():
        scoring.scorer.weight.copy_(source.tensor(SCORE))
    return scoring
