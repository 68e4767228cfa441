"""What an adapter for the default model is worth: the bars of `smollm2-tuned`, one table.

    python bench/tuned_data.py --tables TABLES --out DIR
    python bench/tuned.py --data DIR --adapter FOLDER [--parts answers,kl,perplexity,decode]

Questions are answered greedily by the model alone and with the adapter, in `auto` and in float32.
An answer is right where it has one of the wanted words; it has a fault of form where it does not
end within 128 tokens, goes in circles, or is in another language. A fact is known where at least
5 of 8 answers of the model alone are right, sampled in float32 at temperature 0.7. KL is to the
model alone, on its own answers to general requests, in float32. Perplexity is of the first chunks
of Austen's novels (`make oracles` fetches them), in `auto`. Decode is one thread's own time.
What the model alone answered is kept in DIR, and what it answered with the adapter beside that; it
is not asked for again. Parts `known,exact` need no native kernels: all that float32 has to answer.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from statistics import median
from time import thread_time
from typing import Any

import torch
from tuned_data import Question
from tuned_tables import folded

from cutaway import LLM, SamplingParams
from cutaway.core.request import Request
from cutaway.engine.loading.template_of import compiled_template
from cutaway.kernels import capture
from cutaway.train.data.examples import read_conversations
from cutaway.train.data.masks import score
from cutaway.train.data.packing import MicroBatch
from cutaway.train.losses.anchored import PartBatch, loss_of
from cutaway.train.model.model_folder import open_model, text_side
from cutaway.weights.adapter import read_adapter, switch_off

TOKENS = 128  # of an answer
CACHE = 65_536  # tokens
SAMPLES, KNOWN = 8, 5
NAME = "tuned"
# Commonest words: an answer with more of other languages than of English is in another language.
OTHER_WORDS = frozenset(
    "le la les des du de et est une un dans au aux en sur qui el los las es una y del que por "
    "der die das und ist ein eine von il di che o da em não".split()
)
ENGLISH_WORDS = frozenset("the of is a an and to in that it are was for on called which".split())


def is_right(question: Question, answer: str) -> bool:
    """Whether an answer has one of the wanted words, as a word of its own."""
    if question.kind == "symbol":  # Fe is not fe
        return any(re.search(rf"\b{re.escape(each)}\b", answer) for each in question.wanted)
    words = f" {folded(answer)} "
    return any(f" {folded(each)} " in words for each in question.wanted)


def fault(answer: str, *, is_ended: bool) -> str:
    """What is wrong with an answer's form; empty where nothing is."""
    if not is_ended:
        return "no end"
    words = answer.split()
    runs = Counter(zip(*(words[start:] for start in range(4)), strict=False))
    if runs and max(runs.values()) >= 3:
        return "loop"
    plain = [re.sub(r"\W", "", word).lower() for word in words]
    others, english = (sum(w in each for w in plain) for each in (OTHER_WORDS, ENGLISH_WORDS))
    letters = [letter for letter in answer if letter.isalpha()]
    foreign = sum(not letter.isascii() for letter in letters)
    if others > english or (len(letters) >= 8 and foreign > 0.2 * len(letters)):
        return "language"
    return ""


def asked(
    llm: LLM, questions: Sequence[Question], lora: str, *, samples: int = 1
) -> list[list[tuple[str, bool]]]:
    """For each question its answers, and whether they ended."""
    params = SamplingParams(
        temperature=0.7 if samples > 1 else 0.0, top_p=1.0, max_tokens=TOKENS, n=samples, seed=0
    )
    prompts = [llm.encode_chat([{"role": "user", "content": each.text}]) for each in questions]
    made = llm.generate(prompts, params, lora=lora)
    return [[(c.text, c.finish_reason == "stop") for c in each.choices] for each in made]


class Kept:
    """Answers of the model alone, by what was asked for; in a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._found: dict[str, Any] = json.loads(path.read_bytes()) if path.exists() else {}

    def get(self, name: str, make: Callable[[], Any]) -> Any:
        """What is kept under a name, made if it is not there."""
        if name not in self._found:
            self._found[name] = make()
            self._path.write_text(json.dumps(self._found), encoding="utf-8")
        return self._found[name]


def row(*cells: object) -> None:
    """A row of the table."""
    print("| " + " | ".join(str(each) for each in cells) + " |", flush=True)


def of_answers(args: argparse.Namespace, questions: Sequence[Question], kept: Kept) -> None:
    """Form, right and wrong, and agreement of the two arithmetics."""
    found: dict[tuple[str, str], list[tuple[str, bool]]] = {}
    for dtype in ("auto", "float32"):
        base, own = both_of(args, questions, kept, dtype)
        found["base", dtype] = [each[0] for each in base]
        found[NAME, dtype] = [each[0] for each in own]
    row("questions", len(questions), "")
    for dtype in ("auto", "float32"):
        by_side = {side: found[side, dtype] for side in ("base", NAME)}
        faults = {s: [fault(t, is_ended=e) for t, e in each] for s, each in by_side.items()}
        told = {s: Counter(f for f in each if f) for s, each in faults.items()}
        row(f"faults of form, {dtype}", *(f"{told[s].total()} {dict(told[s])}" for s in by_side))
        wrong = {s: wrong_of(questions, each) for s, each in by_side.items()}
        row(f"wrong, {dtype}", *(len(wrong[s]) for s in by_side))
        row("its share of the base's", "", f"{len(wrong[NAME]) / max(1, len(wrong['base'])):.3f}")
        if dtype == "auto":
            by_kind(questions, wrong)
            of_known(questions, wrong, kept)
        faulty = [q.text for q, f in zip(questions, faults[NAME], strict=True) if f]
        print(f"faulty: {faulty[:8]}", file=sys.stderr)
    same = {
        side: sum(
            a[0] == b[0] for a, b in zip(found[side, "auto"], found[side, "float32"], strict=True)
        )
        for side in ("base", NAME)
    }
    shares = [f"{same[side] / len(questions):.3f}" for side in ("base", NAME)]
    row("same answer in auto and float32", *shares)
    for number in range(0, len(questions), max(1, len(questions) // 12)):
        sides = [found[side, "auto"][number][0][:90] for side in ("base", NAME)]
        print(questions[number].text, sides, file=sys.stderr)


def both_of(
    args: argparse.Namespace, questions: Sequence[Question], kept: Kept, dtype: str
) -> tuple[Any, Any]:
    """Greedy answers of the model alone and with the adapter."""
    beside = Kept(args.adapter.parent / f"answers-{len(questions)}.json")
    with ExitStack() as stack:

        @cache
        def llm() -> LLM:
            return stack.enter_context(opened(args, dtype))

        base = kept.get(dtype, lambda: asked(llm(), questions, "off"))
        return base, beside.get(dtype, lambda: asked(llm(), questions, NAME))


def wrong_of(questions: Sequence[Question], answers: Sequence[tuple[str, bool]]) -> list[int]:
    """Indices of questions that were answered wrong, or not at all."""
    return [
        index
        for index, (question, (text, _)) in enumerate(zip(questions, answers, strict=True))
        if not is_right(question, text)
    ]


def by_kind(questions: Sequence[Question], wrong: Mapping[str, Sequence[int]]) -> None:
    """Wrong answers of each kind."""
    counts = Counter(each.kind for each in questions)
    kinds = {side: Counter(questions[i].kind for i in each) for side, each in wrong.items()}
    for kind, count in counts.items():
        row(f"wrong of {count} of kind {kind}", kinds["base"][kind], kinds[NAME][kind])


def of_known(questions: Sequence[Question], wrong: Mapping[str, Sequence[int]], kept: Kept) -> None:
    """Wrong answers among facts that the model alone knows, by how often it must be right."""
    counts = kept.get("known", lambda: None)
    if counts is None:
        return
    for least in range(1, SAMPLES + 1):
        known = {index for index, count in enumerate(counts) if count >= least}
        missed = {side: len(known & set(each)) for side, each in wrong.items()}
        share = f"{missed[NAME]} ({missed[NAME] / max(1, missed['base']):.3f})"
        often = f"in {least} of {SAMPLES} samples{', the bar' if least == KNOWN else ''}"
        row(f"wrong of {len(known)} facts that the base knows {often}", missed["base"], share)


def sample_known(args: argparse.Namespace, questions: Sequence[Question]) -> list[int]:
    """Of each question, how many of some sampled answers of the model alone are right."""
    with opened(args, "float32") as llm:
        made = asked(llm, questions, "off", samples=SAMPLES)
    return [
        sum(is_right(question, text) for text, _ in answers)
        for question, answers in zip(questions, made, strict=True)
    ]


def ask_base(args: argparse.Namespace, questions: Sequence[Question], dtype: str) -> Any:
    """Greedy answers of the model alone."""
    with opened(args, dtype) as llm:
        return asked(llm, questions, "off")


@torch.no_grad()
def of_distance(args: argparse.Namespace) -> None:
    """KL to the model alone on its own answers."""
    model = open_model(args.model, device=args.exact_device, is_base=True)
    tokenizer, source = text_side(args.model)
    template = compiled_template(source, name=args.model, tokenizer=tokenizer)
    read_adapter(args.adapter, model.transformer, model.architecture.targets("hf"))
    total = count = 0.0
    for talk in read_conversations(args.data / "general.jsonl"):
        batch = PartBatch(MicroBatch((score(talk, template, tokenizer),)).sequences, True)
        loss = loss_of(
            model.transformer, batch, model.transformer, lambda: switch_off(model.transformer)
        )
        total, count = total + float(loss.total), count + loss.count
    row(f"KL on {count:.0f} tokens of general answers, nats", 0, f"{total / count:.4f}")


def of_perplexity(args: argparse.Namespace) -> None:
    """Perplexity on the first chunks of Austen's novels."""
    sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
    from oracles import prose

    with opened(args, "auto") as llm:
        ids = llm.encode(prose("austen")[:40_000])
        chunks = [ids[at : at + 512] for at in range(0, 512 * args.chunks, 512)]
        params = SamplingParams(temperature=0.0, max_tokens=0, prompt_logprobs=0)
        found: dict[str, float] = {}
        for lora in ("off", NAME):
            made = llm.generate(chunks, params, lora=lora)
            rows = [r.logprob for each in made for r in each.prompt_logprobs or () if r]
            found[lora] = math.exp(-sum(rows) / len(rows))
    ratio = found[NAME] / found["off"]
    row("perplexity on Austen, auto", f"{found['off']:.3f}", f"{found[NAME]:.3f} ({ratio:.4f})")


def of_decode(args: argparse.Namespace) -> None:
    """Time of a decode step, of one thread that computes alone."""
    with opened(args, "auto") as llm:
        capture.set_num_threads(1)
        engine = llm.engine
        for count in (1, 8):
            ratios: list[float] = []
            for turn in range(args.rounds + 1):
                sides: list[float] = []
                for lora in ("", NAME):
                    params = SamplingParams(temperature=0.0, max_tokens=32, ignore_eos=True)
                    for number in range(count):
                        prompt = tuple(range(40 + number, 60 + number))
                        name = f"{turn}-{lora}-{number}"
                        engine.add(
                            Request(
                                request_id=name, prompt_token_ids=prompt, params=params, lora=lora
                            )
                        )
                    started: set[str] = set()
                    while len(started) < count:
                        started.update(d.request_id for d in engine.step() if d.token_ids)
                    began = thread_time()
                    while engine.has_work:
                        engine.step()
                    sides.append(thread_time() - began)
                if turn:
                    ratios.append(sides[1] / sides[0])
            row(f"decode, {count} at once, with / without", 1, f"{median(ratios):.3f}")


def opened(args: argparse.Namespace, dtype: str) -> LLM:
    """The model with the adapter beside it."""
    device = args.exact_device if dtype == "float32" else "cpu"
    lora = "off" if args.adapter is None else f"{NAME}={args.adapter}"
    return LLM(args.model, dtype=dtype, device=device, lora=(lora,), cache_tokens=CACHE)


def main() -> None:
    """Print the table."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--data", type=Path, required=True)
    options.add_argument("--adapter", type=Path, help="base and known need none")
    options.add_argument("--model", default="smollm2")
    options.add_argument("--parts", default="base,known,answers,kl,perplexity,decode")
    options.add_argument("--exact-device", default="cpu", help="of float32")
    options.add_argument("--questions", type=int, default=0, help="the first so many; 0 is all")
    options.add_argument("--chunks", type=int, default=16)
    options.add_argument("--rounds", type=int, default=8)
    args = options.parse_args()
    lines = (args.data / "questions.jsonl").read_text(encoding="utf-8").splitlines()
    found = [json.loads(line) for line in lines]
    questions = [Question(q["kind"], q["text"], tuple(q["wanted"])) for q in found]
    questions = questions[: args.questions or None]
    parts = args.parts.split(",")
    kept = Kept(args.data / f"base-{len(questions)}.json")
    row("", "base", NAME)
    row("---", "---", "---")
    if "known" in parts:
        kept.get("known", lambda: sample_known(args, questions))
    if "base" in parts:
        for dtype in ("auto", "float32"):
            kept.get(dtype, lambda dtype=dtype: ask_base(args, questions, dtype))
    if "exact" in parts:
        if args.adapter is None:
            kept.get("float32", lambda: ask_base(args, questions, "float32"))
        else:
            both_of(args, questions, kept, "float32")
    if "answers" in parts:
        of_answers(args, questions, kept)
    if "kl" in parts:
        of_distance(args)
    if "perplexity" in parts:
        of_perplexity(args)
    if "decode" in parts:
        of_decode(args)


if __name__ == "__main__":
    main()
