"""What the lesson learns: which of three words is the last one, told by people who are half right.

A program can tell whether an answer is right, so what each stage is worth can be counted. Answers
come in two forms, a short and a long one, so that a reward for length has something to buy.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

from cutaway.host.whole_file import whole_folder

WORDS: tuple[str, ...] = tuple(
    "red green blue black white brown grey pink gold silver oak elm ash pine birch river lake hill "
    "field road stone sand cloud rain snow wind sun moon star night bird fish horse dog cat "
    "cow".split()
)
ASKED = "Which word is last: red moon fish?"
BEGUN = "Which word is"


def write_data(folder: Path, *, right: float = 0.5) -> None:
    """Text, conversations, pairs and tasks; what is held out shares no question with the rest.

    right: share of the shown answers that are right. Raises: OSError.
    """
    chance = Random(7)
    shown = list(questions(1, 6000))
    known = {question for _, question in shown}
    fresh = [each for each in questions(2, 900) if each[1] not in known]
    unread = [each for each in questions(3, 120) if each[1] not in known]
    lines: dict[str, list[dict[str, Any]]] = {"text": [], "sft": [], "pairs": [], "tasks": []}
    for words, question in shown:
        is_right, is_long = chance.random() < right, chance.random() < 0.5
        word = words[2] if is_right else chance.choice(words[:2])
        answer = phrase(word, is_long=is_long)
        lines["text"].append({"text": f"{question} {answer}"})
        lines["sft"].append(
            {
                "messages": [
                    {"role": "user", "content": question},
                    {"role": "assistant", "content": answer},
                ]
            }
        )
        lines["pairs"].append(pair(words, question, chance))
        lines["tasks"].append({"prompt": question, "answer": words[2]})
    lines["held_out_pairs"] = [pair(words, question, chance) for words, question in fresh[:400]]
    lines["held_out_tasks"] = [{"prompt": q, "answer": words[2]} for words, q in fresh[400:800]]
    lines["held_out_text"] = [{"text": f"{q} {words[2]}"} for words, q in unread]
    with whole_folder(folder) as half:
        for name, rows in lines.items():
            text = "".join(json.dumps(row) + "\n" for row in rows)
            (half / f"{name}.jsonl").write_text(text, encoding="utf-8")


def questions(seed: int, count: int) -> Iterator[tuple[list[str], str]]:
    """Three words and a question about them."""
    chance = Random(seed)
    for _ in range(count):
        words: list[str] = chance.sample(WORDS, 3)
        yield words, f"Which word is last: {' '.join(words)}?"


def phrase(word: str, *, is_long: bool) -> str:
    """An answer in one of the two forms."""
    return f"The last word is {word}." if is_long else word


def pair(words: Sequence[str], question: str, chance: Random) -> dict[str, str]:
    """A right answer preferred to a wrong one, each in a form of its own."""
    return {
        "prompt": question,
        "chosen": phrase(words[2], is_long=chance.random() < 0.5),
        "rejected": phrase(chance.choice(words[:2]), is_long=chance.random() < 0.5),
    }
