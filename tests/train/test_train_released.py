"""The stages that are released: what each of them became, by the engine that serves."""

from __future__ import annotations

from random import Random

from cutaway import LLM, SamplingParams
from house_tree import ROOT

WORDS = "red green blue black gold oak elm pine river lake hill sand cloud snow sun moon fish dog"
GREEDY = SamplingParams(temperature=0.0, max_tokens=24)


def questions(count: int) -> list[list[str]]:
    chance = Random(11)
    return [chance.sample(WORDS.split(), 3) for _ in range(count)]


def asked(words: list[str]) -> str:
    return f"Which word is last: {' '.join(words)}?"


def answers(stage: str, tasks: list[list[str]]) -> list[tuple[str, str | None]]:
    """Text and reason of the end of each answer."""
    path = ROOT / "released" / f"speeches-{stage}"
    with LLM(str(path), dtype="float32", device="cpu", cache_tokens=4096) as llm:
        chats = [[{"role": "user", "content": asked(words)}] for words in tasks]
        given = llm.generate([llm.encode_chat(each) for each in chats], GREEDY)
    return [(each.text.strip(), each.finish_reason) for each in given]


def in_form(words: list[str], text: str) -> bool:
    return text in {form for word in words for form in (word, f"The last word is {word}.")}


def test_tuned_models_answer_and_what_came_after_is_right_more_often() -> None:
    """Half of the answers that were shown are wrong; then right ones were paid, or preferred."""
    tasks = questions(100)
    right: dict[str, int] = {}
    for stage in ("sft", "ppo", "dpo"):
        told = list(zip(tasks, answers(stage, tasks), strict=True))
        assert all(reason == "stop" for _, (_, reason) in told)
        assert sum(in_form(words, text) for words, (text, _) in told) >= 95
        right[stage] = sum(text.rstrip(".").split()[-1] == words[2] for words, (text, _) in told)
    assert min(right["ppo"], right["dpo"]) >= right["sft"] + 20, right


def test_q9_a_base_model_goes_on_with_a_text_and_is_no_assistant() -> None:
    with LLM(str(ROOT / "released" / "speeches-base"), dtype="float32", device="cpu") as base:
        assert base.engine.model.template_source is None
        (begun,) = base.generate("The President of the United", GREEDY)
        (asked,) = base.generate("Which word is last: red moon fish?", GREEDY)
    assert begun.text.startswith(" States")
    assert asked.finish_reason == "length", "it goes on with a question instead of answering it"
