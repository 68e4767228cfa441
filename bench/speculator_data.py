"""What a speculator learns from: what the model itself answers to general requests.

    python bench/hub_folder.py --model smollm2 --out HUB
    python bench/speculator_data.py --model HUB --device cuda --dtype bfloat16 --out DIR

Every topic but those kept apart is asked for in every way, and every longer English-looking word of
the model's vocabulary in some, once greedily and then at temperature 0.7, as far as --seconds go.
Requests by which it is measured are in `held_out.jsonl`, answered greedily: no topic of theirs is
in `talks.jsonl`, and nor is their wording. --share 2/6 answers the third sixth of the requests: a
GPU has room for several such processes, whose files training takes together.
"""

from __future__ import annotations

import argparse
import json
import random
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

from tuned_data import OTHERS, REQUESTS, TOPICS, general

from cutaway import LLM, SamplingParams
from cutaway.tokens.tokenizer import Tokenizer
from cutaway.train.model.model_folder import text_side

AT_ONCE = 1024  # requests between two looks at the clock
MORE_TOPICS = (
    "rockets, elephants, the piano, soccer, butterflies, snow, the Great Wall of China, vaccines, "
    "dreams, bees, cameras, hurricanes, wolves, origami, the human brain, olive oil, diamonds, "
    "basketball, sharks, tomatoes, the stock market, ballet, owls, airplanes, black holes, "
    "camping, pyramids, yoga, ice cream, electricity, turtles, pirates, knights, magnets, the "
    "Sahara, dolphins, guitars, comets, fairy tales, the Amazon river, batteries, algebra, "
    "monkeys, spring, roses, taxes, laughter, lakes, tigers, toys, salt, lightning, fishing, "
    "elections, sugar, spiders, the alphabet, cities, farms, fire, photography, astronauts, "
    "sailing, eagles, pizza, the weather, teamwork, honesty, memory, exercise, patience, courage, "
    "curiosity, homework, breakfast, board games, video games, cars, traffic, hospitals, schools, "
    "teachers, doctors, firefighters, soap, glass, steel, plastic, cotton, silk, wood, gold, "
    "silver, oil, solar panels, computers, smartphones, radio, television, newspapers, novels, "
    "movies, theater, statues, temples, islands, beaches, waterfalls, caves, earthquakes, tides, "
    "clouds, wind, rain, stars, planets, the sun, atoms, cells, bacteria, viruses, bones, "
    "muscles, teeth, skin, eyes, ears, blood, vitamins, protein, water, milk, eggs, potatoes, "
    "carrots, oranges, bananas, grapes, garlic, pepper, soup, salad, cake, sandwiches, dogs, "
    "rabbits, mice, frogs, snakes, lizards, crocodiles, bears, foxes, deer, cows, sheep, goats, "
    "pigs, chickens, ducks, swans, parrots, ancient Greece, ancient Egypt, the Renaissance, the "
    "industrial revolution, the Vikings, the Silk Road, world trade, inflation, banks, insurance, "
    "marketing, small businesses, job interviews, budgets, meetings, leadership, negotiation, "
    "creativity, motivation, habits, meditation, loneliness, happiness, anger, forgiveness, "
    "gratitude, marriage, parenting, grandparents, birthdays, weddings, holidays, New Year, "
    "summer, autumn, hiking, skiing, cycling, running, tennis, golf, baseball, cricket, boxing, "
    "wrestling, gymnastics, dancing, drawing, sculpture, knitting, sewing, carpentry, pottery, "
    "baking, gardens, houses, windows, doors, chairs, beds, lamps, shoes, hats, umbrellas, bags, "
    "pencils, scissors, keys, mirrors"
).split(", ")
MORE_REQUESTS = (
    "What is special about {}?",
    "Tell me about {}.",
    "How would you describe {} to someone who has never heard of it?",
    "Why are {} important?",
    "What are the advantages and disadvantages of {}?",
    "Write a short essay about {}.",
    "Give me some tips about {}.",
    "What questions do people ask about {}?",
    "Write a paragraph about the history of {}.",
    "Write a children's story with {} in it.",
    "How do people learn more about {}?",
    "Compare {} with something similar.",
    "Write a title and an introduction for an article about {}.",
    "What would the world be like without {}?",
    "Write a letter to a teacher about {}.",
    "Make a quiz with three questions about {}.",
    "Summarize what you know about {} in one sentence.",
    "I am interested in {}. What should I do next?",
)
# Of words: other languages, code, figures and everyday matters beside.
WORD_REQUESTS = (
    "What does the word {} mean?",
    "Use the word {} in three sentences.",
    "What is the French word for {}?",
    "Say in French: My sister does not like {}.",
    "Put this into Spanish: We talked about {} yesterday.",
    "How would a German say: Do you know anything about {}?",
    "Write two sentences in French about {}.",
    "Write a Python function named {} and explain what it does.",
    "Write a Python class for {} with two methods.",
    "How do I make a list of {} in JavaScript?",
    "Write a SQL table for {} and a query that counts its rows.",
    "Write a conversation in a shop about {}.",
    "Write an interview with an expert on {}.",
    "Write a scene of a play about {}.",
    "A box holds 12 pieces of {} and 5 are taken out. How many are left?",
    "If 3 pieces of {} cost 9 dollars, what do 7 pieces cost?",
    "Write an application for a job that has to do with {}.",
    "Help me plan a weekend around {}.",
    "Give me step by step instructions about {}.",
    "Write a slogan for {}.",
    "Correct this sentence: they was talking on {} since two hour.",
    "Shorten this: Because of {} the event was put off until next week, and all were told.",
    "Write a polite message that asks for {}.",
    "What surprises most people when they first hear of {}?",
    "Which facts about {} are hard to believe?",
)
KEPT_APART = ("gravity",)  # `cutaway bench speculate` asks for it


def requests(words: Sequence[str] = (), *, forms_a_word: int = 2) -> tuple[list[str], list[str]]:
    """What is learned from, and what is measured by. words: to ask for, beside the topics."""
    _, measured = general()
    apart = {*TOPICS[5::6], *KEPT_APART}
    topics = [each for each in (*TOPICS, *MORE_TOPICS) if each not in apart]
    forms = (*REQUESTS[:9], *MORE_REQUESTS)
    crossed = [form.format(topic) for form in forms for topic in topics]
    crossed += [form.format(topic) for form in WORD_REQUESTS for topic in topics]
    drawn = random.Random(0)
    stems = tuple(each.split()[-1].removesuffix("s")[:6] for each in apart)
    for word in words:
        if not word.startswith(stems):
            chosen = drawn.sample((*forms, *WORD_REQUESTS), forms_a_word)
            crossed += [form.format(word) for form in chosen]
    drawn.shuffle(crossed)
    return [*OTHERS[::2], *crossed], measured


def words_of(tokenizer: Tokenizer) -> list[str]:
    """Pieces of a vocabulary that are a blank and a longer word in small letters."""
    texts = (tokenizer.token_text(each) for each in range(tokenizer.vocab_size))
    return [each[1:] for each in texts if re.fullmatch(" [a-z]{5,14}", each)]


def answered(llm: LLM, texts: Sequence[str], params: SamplingParams) -> Iterator[str]:
    """A line for each answer."""
    prompts = [llm.encode_chat([{"role": "user", "content": each}]) for each in texts]
    for text, made in zip(texts, llm.generate(prompts, params), strict=True):
        for choice in made.choices:
            turns = [
                {"role": "user", "content": text},
                {"role": "assistant", "content": choice.text},
            ]
            yield json.dumps({"messages": turns}) + "\n"


def main() -> None:
    """Write both files."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--model", default="smollm2")
    options.add_argument("--out", type=Path, required=True)
    options.add_argument("--rounds", type=int, default=2, help="over all requests; first greedy")
    options.add_argument("--requests", type=int, default=0, help="the first so many; 0 is all")
    options.add_argument("--seconds", type=float, default=1e9, help="no more are asked after them")
    options.add_argument("--share", default="0/1", help="which of how many shares of the requests")
    options.add_argument("--max-tokens", type=int, default=224)
    options.add_argument("--dtype", default="auto")
    options.add_argument("--device", default="auto")
    args = options.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    tokenizer, _ = text_side(args.model)
    share, shares = map(int, args.share.split("/"))
    asked, measured = requests(words_of(tokenizer))
    asked = asked[share : args.requests or None : shares]
    greedy = SamplingParams(temperature=0.0, max_tokens=args.max_tokens)
    settings: dict[str, Any] = {"dtype": args.dtype, "device": args.device, "lora": ("off",)}
    with LLM(args.model, cache_tokens=131_072, **settings) as llm:
        if not share:
            with (args.out / "held_out.jsonl").open("w", encoding="utf-8") as out:
                out.writelines(answered(llm, measured, greedy))
        began, count = perf_counter(), 0
        with (args.out / f"talks{share or ''}.jsonl").open("w", encoding="utf-8") as out:
            for round_ in range(args.rounds):
                params = greedy
                if round_:
                    params = SamplingParams(
                        temperature=0.7, top_p=1.0, max_tokens=args.max_tokens, seed=round_
                    )
                for first in range(0, len(asked), AT_ONCE):
                    if perf_counter() - began > args.seconds:
                        break
                    for line in answered(llm, asked[first : first + AT_ONCE], params):
                        out.write(line)
                        count += 1
        print(f"{count} answers in {perf_counter() - began:.1f} s")


if __name__ == "__main__":
    main()
