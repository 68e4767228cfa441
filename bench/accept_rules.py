"""How many guesses each rule of acceptance lets stand, over SmolLM2's own distributions.

    PYTHONPATH=src python bench/accept_rules.py [--positions 400]

A drafter knows q, the model draws from p. Three ways to guess, with what of p and q overlaps:

  likeliest  guess the largest q; it stands if the model's own draw gives it: p(argmax q)
  same u     draw the guess from q with the very random number of the model's draw
  rejection  draw the guess from q with another number, accept by min(1, p/q): sum min(p, q)

The first two leave the draw to the model, so that a seed gives one answer; the last does not.
q: the model's early layers through its last norm, and its own logits with noise.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

import torch
from torch import Tensor

from cutaway.core.step import Step
from cutaway.service.llm import LLM

PROMPTS = ("What is gravity?", "Write a short story about a fox.", "How do I boil an egg?")
LAYERS = (20, 24, 28)
NOISE = (0.25, 0.5, 1.0, 2.0)


def main() -> None:
    """Print a row for each drafter and temperature."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--positions", type=int, default=400)
    count = parser.parse_args().positions // len(PROMPTS)
    llm = LLM("smollm2", dtype="float32", cache_tokens=4096)
    exact, early, _ = zip(*(rows_of(llm, prompt, count) for prompt in PROMPTS), strict=True)
    target = torch.cat(exact)
    drafters = {f"{n} of 30 layers": torch.cat([each[n] for each in early]) for n in LAYERS}
    generator = torch.Generator().manual_seed(1)
    for size in NOISE:
        noise = torch.randn(target.shape, generator=generator) * size
        drafters[f"noise of {size}"] = target + noise
    names = ("likeliest", "same u", "rejection")
    print(f"{len(target)} positions; share of guesses that stand")
    print(f"{'drafter':>16} {'T':>4}  " + " ".join(f"{name:>11}" for name in names))
    for name, rows in drafters.items():
        for temperature in (0.7, 1.0):
            shares = stand(target, rows, temperature)
            print(f"{name:>16} {temperature:>4}  " + " ".join(f"{s:>11.3f}" for s in shares))


@torch.inference_mode()
def rows_of(llm: LLM, prompt: str, count: int) -> tuple[Tensor, dict[int, Tensor], list[int]]:
    """Logits behind each token of an answer, by all layers and by fewer, and all token ids.

    Shapes: [count, V] each.
    """
    asked = llm.encode_chat([{"role": "user", "content": prompt}])
    params = replace(llm.sampling, max_tokens=count + 1, ignore_eos=True)
    answer = llm.generate([asked], params)[0].token_ids
    transformer = llm.engine.model.transformer
    streams: dict[int, Tensor] = {}

    def keep(name: str, value: Tensor, layer: int | None) -> None:
        if name == "blocks.hidden" and layer is not None and layer + 1 in LAYERS:
            streams[layer + 1] = value

    places = torch.arange(len(asked), len(asked) + count)
    step = Step.without_cache([[*asked, *answer]], sink=keep, logit_rows=places)
    rows = transformer(step)
    silent = Step.without_cache([[*asked, *answer]], logit_rows=places)
    early = {n: transformer.unembedding(stream, silent) for n, stream in streams.items()}
    return rows, early, [*asked, *answer]


def stand(target: Tensor, draft: Tensor, temperature: float) -> list[float]:
    """The share that stands by each rule. Shapes: logits [T, V] each."""
    p = (target.double() / temperature).softmax(-1)
    q = (draft.double() / temperature).softmax(-1)
    likeliest = p.gather(1, q.argmax(-1, keepdim=True))
    p_ends, q_ends = p.cumsum(-1), q.cumsum(-1)
    starts = torch.maximum(p_ends - p, q_ends - q)
    same = (torch.minimum(p_ends, q_ends) - starts).clamp(min=0).sum(-1)
    rejection = torch.minimum(p, q).sum(-1)
    return [float(each.mean()) for each in (likeliest, same, rejection)]


if __name__ == "__main__":
    main()
