"""What a trained speculator is worth in the decode loop: tokens a step, and time against plain.

    python bench/speculator.py --speculator FOLDER --held-out DIR/held_out.jsonl

Requests of held-out chats are answered greedily, one at a time and in turn: plainly, by an engine
that knows no speculator, and with so many guesses a step at most, by one that has it. 3/0.2/0.5 is
three, kept while the product of their chances is at least 0.2 and followed while it is at least
0.5; 0 is that engine with none asked; "auto" leaves them to the controller.

Told are tokens a step behind the first, which training calls accepted length; the share of guesses
that stood by their place; where a step's time goes; and how many times as fast as plain decoding
that is. Time is that of one thread, so that other work on the machine counts little; with
--threads 2 it is the clock's, for a quiet machine. Both sides must give the same tokens. With
--passes it is told instead what training's passes say of the answers in the file: tokens a step,
walked as the loop would. With --foretold each row of so many guesses is followed by what as many
passes say, in float32, of the very answers that the loop gave.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter, thread_time
from typing import Any

import torch

from cutaway import LLM, SamplingParams
from cutaway.engine.drafters import Controller, Draft, GuessSource, Wish
from cutaway.engine.drafters.trained_drafter import TrainedDrafter
from cutaway.engine.drafting import Drafting
from cutaway.engine.loading.speculator_folder import TargetShape, load_speculator
from cutaway.engine.loading.template_of import compiled_template
from cutaway.kernels import capture
from cutaway.train.data.packing import MicroBatch, ScoredSequence
from cutaway.train.model.model_folder import open_model, text_side
from cutaway.train.model.speculator_model import with_speculator
from cutaway.train.sft import CHAT_TEMPLATE, read_talks
from cutaway.train.speculator import ACCEPTED, from_third, loss_of


class Watched:
    """A function, and the time that it takes."""

    def __init__(self, function: Callable[..., Any], clock: Callable[[], float]) -> None:
        self._function, self._clock = function, clock
        self.seconds, self.calls = 0.0, 0

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Call it."""
        began = self._clock()
        try:
            return self._function(*args, **named)
        finally:
            self.seconds += self._clock() - began
            self.calls += 1


class Limited:
    """A drafter's proposals, so many guesses each at most, of such chances at least."""

    def __init__(self, propose: Callable[[Sequence[Wish]], list[Draft]]) -> None:
        self._propose, self.most, self.guesses = propose, 1, 0
        self.bounds: dict[str, float] = {}

    def limit(self, word: str) -> None:
        """What a word of --guesses says."""
        self.guesses = 0
        most, *bounds = word.split("/")
        self.most = 99 if word == "auto" else int(most)
        names = ("least_kept", "least_followed")
        self.bounds = dict(zip(names, map(float, bounds), strict=False))

    def __call__(self, wishes: Sequence[Wish]) -> list[Draft]:
        """Propose as the drafter does, and count."""
        if self.most < 99 or self.bounds:
            most = self.most
            wishes = [replace(w, most=min(w.most, most), **self.bounds) for w in wishes]
        made = self._propose(wishes)
        self.guesses += sum(len(each.token_ids) for each in made)
        return made


class Foretold:
    """What training's passes say of answers, in float32: tokens a step, walked as the loop would.

    name: the model's. folder: the speculator's.
    """

    def __init__(self, name: str, folder: Path) -> None:
        model = open_model(name, is_base=True)
        transformer = model.transformer
        target = TargetShape(
            name,
            transformer.embedding.width,
            model.architecture.facts.num_layers,
            model.architecture.facts.vocab_size,
        )
        table = transformer.unembedding.table
        loaded = load_speculator(folder, target, transformer.embedding, table)
        made = with_speculator(model, loaded.drafted, name=name, inner=1, seed=0)
        assert made.shape.layers == loaded.layers, "training reads these streams"
        self._model = replace(made, speculator=loaded.module)

    def of_file(self, name: str, held_out: Path) -> list[ScoredSequence]:
        """The answers as a file has them."""
        tokenizer, source = text_side(name)
        template = compiled_template(source or CHAT_TEMPLATE, name=name, tokenizer=tokenizer)
        context = self._model.architecture.facts.max_length
        return list(read_talks([held_out], template, tokenizer, context=context).sequences)

    @torch.no_grad()
    def __call__(self, sequences: Sequence[ScoredSequence], passes: int) -> float:
        """Tokens a step over all of some answers together."""
        tokens = steps = 0.0
        for sequence in sequences:
            batch = MicroBatch((from_third(sequence),))
            loss = loss_of(self._model, batch, num_passes=passes, walks=True)
            walked = loss.figures[ACCEPTED]
            tokens, steps = tokens + float(walked.total), steps + walked.count
        return tokens / steps


def main() -> None:
    """Print the table."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--model", default="smollm2")
    options.add_argument("--speculator", type=Path, required=True)
    options.add_argument("--held-out", type=Path, required=True)
    options.add_argument("--dtype", default="auto")
    options.add_argument("--guesses", nargs="+", default=["3", "0", "2", "5", "auto"])
    options.add_argument("--requests", type=int, default=0, help="the first so many; 0 is all")
    options.add_argument("--every", type=int, default=1, help="of those, each so-manieth")
    options.add_argument("--max-tokens", type=int, default=224)
    options.add_argument("--passes", type=int, default=0, help="what so many passes foretell")
    options.add_argument("--foretold", action="store_true", help="tell the passes' figure beside")
    options.add_argument("--threads", type=int, default=1)
    args = options.parse_args()
    if args.passes:
        foretold = Foretold(args.model, args.speculator)
        sequences = foretold.of_file(args.model, args.held_out)
        figure = foretold(sequences, args.passes)
        print(f"{args.passes} passes on {len(sequences)} chats: {figure:.3f} tokens a step")
        return
    lines = args.held_out.read_text(encoding="utf-8").splitlines()
    asked = [json.loads(line)["messages"][:1] for line in lines][: args.requests or None]
    given: dict[str, Any] = {"dtype": args.dtype, "device": "cpu", "cache_tokens": 8192}
    given["prefix_cache"] = False  # of tokens in found pages a speculator has no streams
    plain = LLM(args.model, **given)
    llm = LLM(args.model, **given, draft_speculator=str(args.speculator))
    capture.set_num_threads(args.threads)
    torch.set_num_threads(args.threads)
    clock = thread_time if args.threads == 1 else perf_counter
    drafting = llm.engine.drafting
    assert drafting is not None, "a speculator was named"
    drafter = drafting.drafter("trained")
    assert isinstance(drafter, TrainedDrafter), "it is the one"
    limited = Limited(drafter.propose)
    forward = Watched(llm.engine.runner.forward, clock)
    propose, observe = Watched(limited, clock), Watched(drafter.observe_step, clock)
    llm.engine.runner.forward = forward  # pyright: ignore[reportAttributeAccessIssue]
    drafter.propose, drafter.observe_step = propose, observe  # pyright: ignore
    prompts = [plain.encode_chat(each) for each in asked][:: args.every]
    foretold = Foretold(args.model, args.speculator) if args.foretold else None

    def answer(side: LLM, prompt: Sequence[int], draft: str) -> tuple[float, Sequence[int]]:
        params = SamplingParams(temperature=0.0, max_tokens=args.max_tokens, draft=draft)
        began = clock()
        (made,) = side.generate([prompt], params)
        return clock() - began, made.choices[0].token_ids

    print("| guesses | tokens a step | times plain, median | quartiles | of all | same tokens |")
    print("|---|---|---|---|---|---|")
    for most in args.guesses:
        is_auto = most == "auto"
        limited.limit(most)
        sources = {"trained": GuessSource(drafter, Controller() if is_auto else None)}
        llm.engine.drafting = told = Drafting(sources, default="trained", streams=drafting.streams)
        for each in (forward, propose, observe):
            each.seconds, each.calls = 0.0, 0
        sides: list[tuple[float, float]] = []
        same = tokens = 0
        answers: list[ScoredSequence] = []
        first = llm.engine.num_steps
        for number, prompt in enumerate(prompts):
            draft = "off" if most == "0" else "trained"
            both = [(plain, "off"), (llm, draft)]
            made = {
                side: answer(side, prompt, word) for side, word in both[:: 1 - 2 * (number % 2)]
            }
            sides.append((made[plain][0], made[llm][0]))
            same += made[plain][1] == made[llm][1]
            tokens += len(made[llm][1]) - 1
            marks = (False,) * len(prompt) + (True,) * len(made[llm][1])
            answers.append(ScoredSequence((*prompt, *made[llm][1]), marks))
        steps = llm.engine.num_steps - first - len(prompts)  # prompts are short: a step each
        ratios = [a / b for a, b in sides]
        low, _, high = quantiles(ratios, n=4) if len(ratios) > 1 else [ratios[0]] * 3
        whole = sum(a for a, _ in sides), sum(b for _, b in sides)
        print(
            f"| {most} | {tokens / steps:.3f} | {median(ratios):.3f} | {low:.3f} to {high:.3f} | "
            f"{whole[0] / whole[1]:.3f} | {same} of {len(prompts)} |",
            flush=True,
        )
        stood = {
            place + 1: f"{told.right[key, place] / tried:.3f}"
            for (key, place), tried in sorted(told.tried.items())
        }
        print(f"stood of those that were looked at, by place: {stood}", flush=True)
        parts = {"forward": forward.seconds, "propose": propose.seconds, "observe": observe.seconds}
        parts["rest"] = whole[1] - sum(parts.values())
        each = ", ".join(f"{name} {1e6 * s / steps:.0f}" for name, s in parts.items())
        print(
            f"us a step: {each}; plain {1e6 * whole[0] / (tokens + len(prompts)):.0f} a token; "
            f"{limited.guesses / steps:.2f} guesses a step, "
            f"{1e6 * propose.seconds / max(1, limited.guesses):.0f} us a guess",
            flush=True,
        )
        if foretold is not None and limited.most in range(1, 13) and not limited.bounds:
            figure = foretold(answers, limited.most)
            gives = f"the loop gives {tokens / steps / figure:.3f} of that"
            print(f"{limited.most} passes on these answers: {figure:.3f}; {gives}", flush=True)


if __name__ == "__main__":
    main()
