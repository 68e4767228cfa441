"""Short questions that look like those of bench/tuned_data.py and ask for something else.

What the model itself answers to them holds an adapter where questions about the same things would
move it. None is of a kind that is learned or judged by: no capitals, languages, continents,
countries of capitals, symbols, opposites, sums, plurals, past tenses, and none of the plain facts.
They are about things that are learned from alone, never about those that are asked for.

    python bench/tuned_neighbours.py --asked DIR/neighbours.jsonl --out DIR/own.jsonl
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator, Sequence
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


def main() -> None:
    """Answer questions of a file once more: greedily, in float32, and those that end are kept.

    To learn them moves no fact and makes what is said surer: in 4 bits its first words nearly tie.
    """
    options = argparse.ArgumentParser(description=main.__doc__)
    options.add_argument("--asked", type=Path, required=True, help="neighbours.jsonl")
    options.add_argument("--out", type=Path, required=True)
    options.add_argument("--model", default="smollm2")
    options.add_argument("--device", default="auto")
    args = options.parse_args()
    rows = [json.loads(line) for line in args.asked.read_text(encoding="utf-8").splitlines()]
    asked = [row["messages"][:1] for row in rows]
    params = SamplingParams(temperature=0.0, max_tokens=64)
    with LLM(args.model, dtype="float32", device=args.device, cache_tokens=65_536) as llm:
        made = llm.generate([llm.encode_chat(each) for each in asked], params)
    with args.out.open("w", encoding="utf-8") as out:
        for turns, each in zip(asked, made, strict=True):
            choice = each.choices[0]
            if choice.finish_reason == "stop":
                told = {"role": "assistant", "content": choice.text}
                out.write(json.dumps({"messages": [*turns, told]}, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
