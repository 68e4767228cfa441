"""What a trained speculator is worth in the decode loop: tokens a step, and time against plain.

    python bench/speculator.py --speculator FOLDER --held-out DIR/held_out.jsonl

Requests of held-out chats are answered greedily, one at a time, plainly and with a fixed number of
guesses a step. Told are tokens a step behind the first, which training calls accepted length; the
share of guesses that stood by their place; what a guess takes; and how many times as fast as plain
decoding that is, by the time of one thread, so that other work on the machine counts little. Both
sides must give the same tokens. With --passes it is told instead what training's passes say of the
answers in the file: tokens a step, walked as the loop would.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from time import thread_time

import torch

from cutaway import LLM, SamplingParams
from cutaway.engine.drafters import Draft, GuessSource, Wish
from cutaway.engine.drafters.trained_drafter import TrainedDrafter
from cutaway.engine.drafting import Drafting
from cutaway.engine.loading.speculator_folder import TargetShape, load_speculator
from cutaway.engine.loading.template_of import compiled_template
from cutaway.kernels import capture
from cutaway.train.data.packing import MicroBatch
from cutaway.train.model.model_folder import open_model, text_side
from cutaway.train.model.speculator_model import with_speculator
from cutaway.train.sft import CHAT_TEMPLATE, read_talks
from cutaway.train.speculator import ACCEPTED, from_third, loss_of


class FixedLength:
    """A drafter's proposals, so many guesses each, and the time that they take."""

    def __init__(self, drafter: TrainedDrafter, most: int) -> None:
        self._propose, self.most = drafter.propose, most
        self.seconds, self.steps, self.guesses = 0.0, 0, 0

    def __call__(self, wishes: Sequence[Wish]) -> list[Draft]:
        """Propose as the drafter does, and count."""
        began = thread_time()
        made = self._propose([replace(each, most=min(each.most, self.most)) for each in wishes])
        self.seconds += thread_time() - began
        self.steps += len(wishes)
        self.guesses += sum(len(each.token_ids) for each in made)
        return made


def foretell(name: str, folder: Path, held_out: Path, passes: int) -> None:
    """Print tokens a step by the passes, in float32, on the answers as the file has them."""
    model = open_model(name, is_base=True)
    tokenizer, source = text_side(name)
    template = compiled_template(source or CHAT_TEMPLATE, name=name, tokenizer=tokenizer)
    talks = read_talks([held_out], template, tokenizer, context=model.architecture.facts.max_length)
    transformer = model.transformer
    target = TargetShape(
        name,
        transformer.embedding.width,
        model.architecture.facts.num_layers,
        model.architecture.facts.vocab_size,
    )
    loaded = load_speculator(folder, target, transformer.embedding, transformer.unembedding.table)
    made = with_speculator(model, loaded.drafted, name=name, inner=1, seed=0)
    made = replace(made, speculator=loaded.module)
    assert made.shape.layers == loaded.layers, "training reads these streams"
    tokens = steps = 0.0
    with torch.no_grad():
        for sequence in talks.sequences:
            batch = MicroBatch((from_third(sequence),))
            loss = loss_of(made, batch, num_passes=passes, walks=True)
            walked = loss.figures[ACCEPTED]
            tokens, steps = tokens + float(walked.total), steps + walked.count
    print(f"{passes} passes on {len(talks.sequences)} chats: {tokens / steps:.3f} tokens a step")


def main() -> None:
    """Print the table."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--model", default="smollm2")
    options.add_argument("--speculator", type=Path, required=True)
    options.add_argument("--held-out", type=Path, required=True)
    options.add_argument("--dtype", default="auto")
    options.add_argument("--guesses", type=int, nargs="+", default=[5, 2, 3])
    options.add_argument("--requests", type=int, default=0, help="the first so many; 0 is all")
    options.add_argument("--max-tokens", type=int, default=224)
    options.add_argument("--passes", type=int, default=0, help="what so many passes foretell")
    args = options.parse_args()
    if args.passes:
        foretell(args.model, args.speculator, args.held_out, args.passes)
        return
    lines = args.held_out.read_text(encoding="utf-8").splitlines()
    asked = [json.loads(line)["messages"][:1] for line in lines][: args.requests or None]
    llm = LLM(
        args.model,
        dtype=args.dtype,
        draft_speculator=str(args.speculator),
        cache_tokens=8192,
        prefix_cache=False,  # of tokens in found pages a speculator has no streams
        device="cpu",
    )
    capture.set_num_threads(1)
    torch.set_num_threads(1)
    drafting = llm.engine.drafting
    assert drafting is not None, "a speculator was named"
    drafter = drafting.drafter("trained")
    assert isinstance(drafter, TrainedDrafter), "it is the one"
    sources = {"trained": GuessSource(drafter, None)}
    llm.engine.drafting = drafting = Drafting(sources, default="trained", streams=drafting.streams)
    prompts = [llm.encode_chat(each) for each in asked]
    print("| guesses | tokens a step | ms a guess | times plain, median | same tokens |")
    print("|---|---|---|---|---|")
    proposes = FixedLength(drafter, 1)
    drafter.propose = proposes  # pyright: ignore[reportAttributeAccessIssue]
    for most in args.guesses:
        proposes.most, proposes.seconds, proposes.steps, proposes.guesses = most, 0.0, 0, 0
        drafting.tried.clear(), drafting.right.clear()
        ratios: list[float] = []
        same = tokens = 0
        for prompt in prompts:
            sides: list[tuple[float, Sequence[int]]] = []
            for draft in ("off", "trained"):
                params = SamplingParams(temperature=0.0, max_tokens=args.max_tokens, draft=draft)
                began = thread_time()
                (answer,) = llm.generate([prompt], params)
                sides.append((thread_time() - began, answer.choices[0].token_ids))
            ratios.append(sides[0][0] / sides[1][0])
            same += sides[0][1] == sides[1][1]
            tokens += len(sides[1][1]) - 1
        stood = {
            place + 1: f"{drafting.right[key, place] / tried:.3f}"
            for (key, place), tried in sorted(drafting.tried.items())
        }
        print(
            f"| {most} | {tokens / proposes.steps:.3f} | "
            f"{1e3 * proposes.seconds / max(1, proposes.guesses):.3f} | {median(ratios):.3f} | "
            f"{same} of {len(prompts)} |",
            flush=True,
        )
        print(f"stood of those that were looked at, by place: {stood}", flush=True)


if __name__ == "__main__":
    main()
