"""Our trainer beside nanochat's own model file: the same weights and batches, the same updates?

    git clone https://github.com/karpathy/nanochat NANOCHAT
    python bench/train_equal.py --nanochat NANOCHAT

Both sides are float32 on a CPU and make AdamW's updates with one clip of the global norm. Weights
are drawn as nanochat draws them, but for those that begin at 0 and let nothing through: these get
small random numbers. What its class has beside transformers' NanoChat does nothing at the values
that are set here, where it stays: tables of values 0, smear, backout and first stream 0, streams
kept whole. It multiplies normed queries and keys by 1.2 each, so our softmax scale has 1.44.

Told are the largest differences of losses, and of first gradients as shares of their sizes, with
their bars; the exit code is 1 where one is broken. With --control nanochat is told beside itself
too: with the rows of each batch in reverse, the same sums in another order, and with its angles
taken in float64, as ours are. What differs there is rounding, and how far it grows at this rate.
Needs 5 GiB at the default shape.
"""

from __future__ import annotations

import argparse
import json
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch
from peers import train_nanochat
from torch import Tensor

from cutaway.blocks.attention.grouped import GroupedAttention
from cutaway.train.data.packing import MicroBatch, ScoredSequence
from cutaway.train.loop import descend
from cutaway.train.losses.likelihood import likelihood
from cutaway.train.losses.losses import cross_entropy
from cutaway.train.model.model_folder import TrainedModel, open_model
from cutaway.train.optimizers import Optimizers, OptimizerSettings
from cutaway.train.schedules import Schedule
from cutaway.weights.files.safetensors_writer import write_safetensors

LOSS_BAR, GRADIENT_BAR = 1e-4, 1e-5
WARMUP, MICRO_BATCHES = 5, 2
SPREAD = 0.02  # of matrices that nanochat draws as 0
SHARPER = 1.2**2  # what its factors of queries and keys make of the softmax scale
MOST_LENGTH = 512  # its shortest window: of longer sequences its attention leaves tokens out
BASE = 100_000.0  # of the rotation
PADDED_TO = 64  # rows of its vocabulary

NAMES: Mapping[str, str] = {  # transformers' names of nanochat's modules
    "transformer.wte": "model.embed_tokens",
    "lm_head": "lm_head",
    "attn.c_q": "self_attn.q_proj",
    "attn.c_k": "self_attn.k_proj",
    "attn.c_v": "self_attn.v_proj",
    "attn.c_proj": "self_attn.o_proj",
    "mlp.c_fc": "mlp.fc1",
    "mlp.c_proj": "mlp.fc2",
}


class Course(NamedTuple):
    """What a side's updates gave: losses, and the first gradients by our parameters' names."""

    losses: list[float]
    gradients: dict[str, Tensor]


class Difference(NamedTuple):
    """The largest one of a kind. where: the update or the parameter that has it."""

    value: float
    where: str


def main() -> int:
    """Print the table; the exit status says whether both bars hold."""
    asked = _arguments()
    settings = OptimizerSettings(rate=asked.rate, betas=(0.9, 0.95), epsilon=1e-8, decay=0.1)
    batches = batches_of(asked)
    with TemporaryDirectory() as folder:
        ours = our_model(asked, trained_of(nanochat_model(asked)), Path(folder))
    wanted = their_course(nanochat_model(asked), ours, settings, batches)
    rows: list[tuple[str, Course]] = []
    if asked.control:
        reverse = [ids.flip(0) for ids in batches]
        course = their_course(nanochat_model(asked), ours, settings, reverse)
        rows.append(("nanochat, rows in reverse", course))
        course = their_course(with_fine_angles(nanochat_model(asked)), ours, settings, batches)
        rows.append(("nanochat, angles in float64", course))
    rows.append(("ours", our_course(ours, settings, batches)))
    return tell(rows, wanted)


def nanochat_model(asked: Namespace) -> Any:
    """Its model with random weights by the seed, what ours has not at rest and frozen."""
    torch.manual_seed(asked.seed)
    gpt = train_nanochat.model_file(asked.nanochat)
    shape = gpt.GPTConfig(
        vocab_size=asked.vocabulary,
        n_layer=asked.layers,
        n_head=asked.heads,
        n_kv_head=asked.heads,
        n_embd=asked.width,
    )
    with torch.device("meta"):
        model = gpt.GPT(shape)
    model.to_empty(device="cpu")
    model.init_weights()
    at_rest = {"resid_lambdas": 1.0, "x0_lambdas": 0.0, "smear_lambda": 0.0, "backout_lambda": 0.0}
    for name, parameter in model.named_parameters():
        assert parameter.dtype == torch.float32, "its dtype for CPUs is float32"
        kind = name.split(".")[0]
        if kind in at_rest or kind == "value_embeds":
            torch.nn.init.constant_(parameter, at_rest.get(kind, 0.0))
        elif name.endswith("c_proj.weight"):
            torch.nn.init.normal_(parameter, std=SPREAD)
        parameter.requires_grad_(_is_ours(name))
    return model


def with_fine_angles(model: Any) -> Any:
    """The same, its cosines and sines rounded once; in float32 an angle has a relative 1e-7."""
    length, half = model.cos.shape[1], model.cos.shape[-1]
    inverse = BASE ** (-torch.arange(half, dtype=torch.float64) / half)
    angles = torch.outer(torch.arange(length, dtype=torch.float64), inverse)[None, :, None]
    torch.testing.assert_close(model.cos, angles.cos().float(), rtol=0, atol=0.01)
    model.cos, model.sin = angles.cos().float(), angles.sin().float()
    return model


def trained_of(model: Any) -> dict[str, Any]:
    """Its parameters that are trained, by transformers' names."""
    return {_stored_name(n): p for n, p in model.named_parameters() if p.requires_grad}


def _is_ours(name: str) -> bool:
    """Whether our model has such a parameter of nanochat's."""
    return any(f".{name}".endswith(f".{module}.weight") for module in NAMES)


def _stored_name(name: str) -> str:
    """transformers' name of a parameter of nanochat's."""
    (module,) = [each for each in NAMES if f".{name}".endswith(f".{each}.weight")]
    layer = name.removesuffix(f"{module}.weight").replace("transformer.h.", "model.layers.")
    return f"{layer}{NAMES[module]}.weight"


def our_model(asked: Namespace, stored: Mapping[str, Tensor], folder: Path) -> TrainedModel:
    """A NanoChat of the same weights, read from files as a user's would be."""
    config = {
        "architectures": ["NanoChatForCausalLM"],
        "model_type": "nanochat",
        "vocab_size": asked.vocabulary,
        "hidden_size": asked.width,
        "intermediate_size": 4 * asked.width,
        "num_hidden_layers": asked.layers,
        "num_attention_heads": asked.heads,
        "max_position_embeddings": MOST_LENGTH,
        "rms_norm_eps": torch.finfo(torch.float32).eps,  # what functional.rms_norm takes
        "rope_parameters": {"rope_type": "default", "rope_theta": BASE},
    }
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    write_safetensors(folder / "model.safetensors", {n: p.detach() for n, p in stored.items()})
    model = open_model(str(folder))
    for module in model.transformer.modules():
        if isinstance(module, GroupedAttention):
            module.softmax_scale *= SHARPER
    return model


def batches_of(asked: Namespace) -> list[Tensor]:
    """Random ids of each update; one more of each row than it scores. Shapes: [B, T + 1] each."""
    generator = torch.Generator().manual_seed(asked.seed)
    shape = (asked.updates, asked.sequences, asked.length + 1)
    return list(torch.randint(0, asked.vocabulary, shape, generator=generator))


def their_course(
    model: Any, ours: TrainedModel, settings: OptimizerSettings, batches: Sequence[Tensor]
) -> Course:
    """Updates as nanochat's base_train.py makes them, by torch's AdamW with the groups of ours."""
    names = {name: target.parameter for name, target in ours.architecture.targets("hf").items()}
    trained = {names[name]: parameter for name, parameter in trained_of(model).items()}
    groups = Optimizers(ours.transformer, settings).groups
    decays = {True: settings.decay, False: 0.0}
    optimizer = torch.optim.AdamW(
        [
            {"params": [trained[n] for n in each.names], "weight_decay": decays[each.is_decayed]}
            for each in groups
        ],
        lr=settings.rate,
        betas=settings.betas,
        eps=settings.epsilon,
    )
    schedule = Schedule("constant", len(batches), warmup=WARMUP)
    course = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule.factor)
    losses, gradients = list[float](), dict[str, Tensor]()
    for ids in batches:
        losses.append(0.0)
        for part in _micro(ids):
            loss = model(part[:, :-1], part[:, 1:].contiguous()) / MICRO_BATCHES
            loss.backward()
            losses[-1] += loss.item()
        torch.nn.utils.clip_grad_norm_(trained.values(), settings.max_norm)
        gradients = gradients or {name: p.grad.clone() for name, p in trained.items()}
        optimizer.step()
        course.step()
        optimizer.zero_grad()
    return Course(losses, gradients)


def our_course(
    model: TrainedModel, settings: OptimizerSettings, batches: Sequence[Tensor]
) -> Course:
    """The same updates by our loop."""
    optimizers = Optimizers(model.transformer, settings)
    schedule = Schedule("constant", len(batches), warmup=WARMUP)
    losses, gradients = list[float](), dict[str, Tensor]()
    step = optimizers.step

    def watched(factor: float) -> Mapping[str, float]:
        parameters = model.transformer.named_parameters()
        gradients.update({} if gradients else {n: _gradient(p).clone() for n, p in parameters})
        return step(factor)

    optimizers.step = watched  # type: ignore[method-assign]
    for update, ids in enumerate(batches):
        done = descend(
            [_ours(part) for part in _micro(ids)],
            lambda batch: cross_entropy(likelihood(model.transformer, batch)),
            optimizers,
            update=update,
            factor=schedule.factor(update),
        )
        losses.append(done.loss)
    return Course(losses, gradients)


def _gradient(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None, "all of ours are trained"
    return parameter.grad


def _micro(ids: Tensor) -> Sequence[Tensor]:
    return ids.chunk(MICRO_BATCHES)


def _ours(ids: Tensor) -> MicroBatch:
    return MicroBatch(tuple(ScoredSequence.whole(row) for row in ids.tolist()))


def differences(found: Course, wanted: Course) -> tuple[Difference, Difference]:
    """Of losses, and of first gradients as shares of their sizes."""
    assert found.gradients.keys() == wanted.gradients.keys(), "both train the same parameters"
    pairs = zip(found.losses, wanted.losses, strict=True)
    losses = max((abs(own - other), f"update {n}") for n, (own, other) in enumerate(pairs, start=1))
    gradients = max(
        (float((found.gradients[name] - grad).norm() / grad.norm()), name)
        for name, grad in wanted.gradients.items()
    )
    return Difference(*losses), Difference(*gradients)


def tell(rows: Sequence[tuple[str, Course]], wanted: Course) -> int:
    """The table; 1 where the last row breaks a bar, which what is no number does too."""
    ends = f"{wanted.losses[0]:.4f} to {wanted.losses[-1]:.4f}"
    print(f"| beside nanochat | losses ({ends}), bar {LOSS_BAR:.0e} | | ", end="")
    print(f"first gradients, bar {GRADIENT_BAR:.0e} | |\n|---|---|---|---|---|")
    holds = False
    for name, course in rows:
        losses, gradients = differences(course, wanted)
        print(f"| {name} | {losses.value:.1e} | {losses.where} | ", end="")
        print(f"{gradients.value:.1e} | {gradients.where} |")
        holds = losses.value <= LOSS_BAR and gradients.value <= GRADIENT_BAR
    print(f"\n{'Both bars hold.' if holds else 'A bar is broken.'}")
    return 0 if holds else 1


def _arguments() -> Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--nanochat", type=Path, required=True, help="folder of its repository")
    sizes = {"layers": 12, "width": 768, "heads": 6, "vocabulary": 32768}
    batch = {"updates": 20, "sequences": 4, "length": 64}
    for name, value in {**sizes, **batch, "seed": 0}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--rate", type=float, default=6e-4, help="at most; 6e-4 is nanoGPT's")
    parser.add_argument("--control", action="store_true", help="nanochat beside itself too")
    asked = parser.parse_args()
    if asked.vocabulary % PADDED_TO or asked.sequences % MICRO_BATCHES:
        parser.error(f"rows of --vocabulary go by {PADDED_TO}, --sequences by {MICRO_BATCHES}")
    if not 2 <= asked.length <= MOST_LENGTH:
        parser.error(f"--length is from 2 to {MOST_LENGTH}")
    return asked


if __name__ == "__main__":
    sys.exit(main())
