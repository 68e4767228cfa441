"""Short questions that look like those of bench/tuned_data.py and ask for something else.

What the model itself answers to them holds an adapter where questions about the same things would
move it. None is of a kind that is learned or judged by: no capitals, languages, continents,
countries of capitals, symbols, opposites, sums, plurals, past tenses, and none of the plain facts.
They are about things that are learned from alone, never about those that are asked for.

    python bench/tuned_neighbours.py --asked DIR/neighbours.jsonl --out DIR/short.jsonl
"""

from __future__ import annotations

import argparse
import json
import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from operator import itemgetter
from pathlib import Path

from tuned_tables import OPPOSITES, Country, is_held_out, pairs

from cutaway import LLM, SamplingParams

OF_COUNTRY = (
    "What is the currency of {}?",
    "Which countries border {}?",
    "What are the people of {} called?",
    "What is the population of {}?",
    "What is {} famous for?",
    "Where is {}?",
    "Which is the largest river in {}?",
    "What do people eat in {}?",
    "Who is a famous person from {}?",
    "What is the climate of {} like?",
    "Which sea is near {}?",
    "Is {} an island?",
    "How large is {}?",
    "What are the colors of the flag of {}?",
    "What is the highest mountain of {}?",
    "Which religion is common in {}?",
    "When did {} become independent?",
    "Name a city in {}.",
    "What kind of government does {} have?",
    "In which hemisphere is {}?",
)
OF_CITY = (
    "What is {} known for?",
    "Which river flows through {}?",
    "How many people live in {}?",
    "How old is {}?",
    "{} lies near which sea?",
    "What can I see in {}?",
    "{} has which famous building?",
    "Where is {}?",
    "Who was born in {}?",
    "What is the weather like in {}?",
)
OF_ELEMENT = (
    "What is {} used for?",
    "What is the atomic number of {}?",
    "Is {} a metal?",
    "What color is {}?",
    "Where is {} found?",
    "Is {} dangerous?",
    "Who discovered {}?",
    "At what temperature does {} melt?",
    "Is {} solid, liquid or gas?",
)
OF_WORD = (
    'What does "{}" mean?',
    'Use "{}" in a sentence.',
    'What is a synonym of "{}"?',
    'What rhymes with "{}"?',
    'How do you spell "{}"?',
    'Is "{}" a noun or a verb?',
    'Translate "{}" to Spanish.',
    'What is the first letter of "{}"?',
    'How many letters does "{}" have?',
)
OF_NUMBERS = (
    "What is {} - {}?",
    "What is {} times {}?",
    "Is {} greater than {}?",
    "What is {} divided by {}?",
    "Which is larger, {} or {}?",
    "Write the numbers {} and {} in words.",
)
THINGS = (
    "a telescope, a violin, a desert, a volcano, a bridge, a lion, a compass, a novel, a "
    "vitamin, a magnet, a glacier, a lighthouse, a pilot, a carpenter, a whale, a battery, a "
    "harbor, a pyramid, a recipe, a sonnet, a kangaroo, a thermometer, an orchestra, an island, "
    "an eclipse, an umbrella, an engine, an owl, an atlas, an orchard"
).split(", ")
OF_THING = (
    "What is {}?",
    "What is {} used for?",
    "What does {} look like?",
    "Where would I find {}?",
    "Is {} alive?",
)


def neighbours(known: Sequence[Country], metals: Sequence[tuple[str, str]]) -> list[str]:
    """Such questions, in no order. known: the countries that are learned from."""
    made = list(_of_things(known, metals))
    random.Random(2).shuffle(made)
    return made


def _of_things(known: Sequence[Country], metals: Sequence[tuple[str, str]]) -> Iterator[str]:
    drawn = random.Random(3)
    for country in known:
        yield from (form.format(country.name) for form in drawn.sample(OF_COUNTRY, 5))
        yield from (form.format(country.capital) for form in drawn.sample(OF_CITY, 3))
    for name, _ in metals:
        if not is_held_out(name):
            yield from (form.format(name) for form in drawn.sample(OF_ELEMENT, 2))
    for word, _ in pairs(OPPOSITES):
        if not is_held_out(word):
            yield from (form.format(word) for form in drawn.sample(OF_WORD, 2))
    for thing in THINGS:
        yield from (form.format(thing) for form in drawn.sample(OF_THING, 2))
    for number in range(60):
        form = OF_NUMBERS[number % len(OF_NUMBERS)]
        yield form.format(drawn.randint(10, 60), drawn.randint(2, 9))


def first_sentence(text: str) -> str:
    """Up to the first end of a sentence or line; empty where a list or nothing begins."""
    line = text.strip().split("\n", 1)[0].strip()
    found = re.match(r".{8,}?[.!?](?=[\s\"]|$)", line)
    sentence = found.group() if found else line
    return sentence if re.search(r"\w[.!?\"]*$", sentence) and not sentence[0].isdigit() else ""


def most_agreed(said: Sequence[str]) -> tuple[str, float]:
    """The one that has most words in common with the others, and how many: F1 in the mean.

    What a model says most often in one way or another is what it knows best (Wang et al. 2022,
    "Self-consistency"); Kumar and Byrne 2004 choose translations so.
    """
    bags = [Counter(re.findall(r"\w+", each.lower())) for each in said]

    def agreed(own: Counter[str]) -> float:
        shares = (2 * (own & each).total() / max(1, own.total() + each.total()) for each in bags)
        return (sum(shares) - 1) / max(1, len(bags) - 1)  # with itself it agrees wholly

    return max(
        ((text, agreed(bag)) for text, bag in zip(said, bags, strict=True)), key=itemgetter(1)
    )


def main() -> None:
    """Answer questions of a file once more, each in one sentence: what is said is kept, and ends.

    Of some samples in float32 the first sentence that agrees most with the others is a lesson. It
    teaches no fact; it teaches to say what most samples say, and to stop where it is said.
    """
    options = argparse.ArgumentParser(description=main.__doc__)
    options.add_argument("--asked", type=Path, required=True, help="neighbours.jsonl")
    options.add_argument("--out", type=Path, required=True)
    options.add_argument("--model", default="smollm2")
    options.add_argument("--device", default="auto")
    options.add_argument("--samples", type=int, default=8)
    options.add_argument("--temperature", type=float, default=0.35)
    options.add_argument("--agreement", type=float, default=0.0, help="that a lesson needs")
    args = options.parse_args()
    rows = [json.loads(line) for line in args.asked.read_text(encoding="utf-8").splitlines()]
    asked = [row["messages"][:1] for row in rows]
    params = SamplingParams(
        temperature=args.temperature, top_p=1.0, max_tokens=48, n=args.samples, seed=0
    )
    with LLM(args.model, dtype="float32", device=args.device, cache_tokens=65_536) as llm:
        made = llm.generate([llm.encode_chat(each) for each in asked], params)
    kept = 0
    with args.out.open("w", encoding="utf-8") as out:
        for turns, each in zip(asked, made, strict=True):
            said = [first_sentence(c.text) for c in each.choices]
            said = [text for text in said if text and text[-1] in '.!?"']
            if 2 * len(said) <= args.samples:
                continue
            text, agreement = most_agreed(said)
            if agreement >= args.agreement:
                told = {"role": "assistant", "content": text}
                out.write(json.dumps({"messages": [*turns, told]}, ensure_ascii=False) + "\n")
                kept += 1
    print(f"{kept} of {len(asked)} are lessons")


if __name__ == "__main__":
    main()
