"""What sampled answers are worth: verifiers that look at the answer, and a reward model.

A reward takes rollouts with their tasks and gives a number each; a stage adds several up by
weight. An answer that did not end is worth -1 whatever else it says, so that ending pays.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch

from cutaway.core.errors import ConfigError, RequestError
from cutaway.core.limits import quote
from cutaway.text.chat_messages import Message, from_dicts
from cutaway.text.template import ChatTemplate
from cutaway.tokens.tokenizer import Tokenizer
from cutaway.train.data.examples import encode_prompt, read_each
from cutaway.train.model.value_head import Scorer, scores
from cutaway.train.rollouts.rollouts import Rollout

UNENDED = -1.0


@dataclass(frozen=True)
class Task:
    """A prompt with what a verifier has to know. answer: the right one; "" where there is none."""

    prompt: tuple[Message, ...]
    answer: str
    token_ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class Answered:
    """A rollout, its task, and the text that a reader would see."""

    rollout: Rollout
    task: Task
    text: str


Reward = Callable[[Sequence[Answered]], list[float]]


def exact(answers: Sequence[Answered]) -> list[float]:
    """1 where the answer is the right one, blanks around it left out."""
    return [float(each.text.strip() == each.task.answer.strip()) for each in answers]


def contains(answers: Sequence[Answered]) -> list[float]:
    """1 where the right answer is somewhere in the answer."""
    return [float(each.task.answer in each.text) for each in answers]


def final(answers: Sequence[Answered]) -> list[float]:
    """1 where the last word is the right answer, a full stop behind it left out."""
    return [float(_last_word(each.text) == each.task.answer.strip()) for each in answers]


def reward_ending(answers: Sequence[Answered]) -> list[float]:
    """1 where the answer came to its end."""
    return [float(each.rollout.is_ended) for each in answers]


def length(answers: Sequence[Answered]) -> list[float]:
    """A hundredth for each token: it says nothing of the answer, and is easily hacked."""
    return [len(each.rollout.answer) / 100 for each in answers]


def brevity(answers: Sequence[Answered]) -> list[float]:
    """Less a hundredth for each token."""
    return [-len(each.rollout.answer) / 100 for each in answers]


VERIFIERS: Mapping[str, Reward] = {
    "exact": exact,
    "contains": contains,
    "final": final,
    "ended": reward_ending,
    "length": length,
    "brevity": brevity,
}


_READ_ANSWERS = frozenset({"exact", "contains", "final"})


def by_model(scorer: Scorer) -> Reward:
    """A reward model's score at each answer's last token, as token ids: nothing is written anew."""

    @torch.no_grad()
    def score(answers: Sequence[Answered]) -> list[float]:
        sequences = [each.rollout.prompt + each.rollout.answer for each in answers]
        return cast("list[float]", scores(scorer, sequences).double().tolist())

    return score


def total(
    answers: Sequence[Answered],
    rewards: Sequence[tuple[Reward, float]],
    *,
    unended: float = UNENDED,
) -> list[float]:
    """All rewards by weight; unended for answers that were cut."""
    sums = [0.0] * len(answers)
    for reward, weight in rewards:
        sums = [sum_ + weight * own for sum_, own in zip(sums, reward(answers), strict=True)]
    pairs = zip(answers, sums, strict=True)
    return [sum_ if each.rollout.is_ended else unended for each, sum_ in pairs]


def choose_rewards(
    names: Sequence[str],
    weights: Sequence[float],
    scorer: Scorer | None,
    *,
    field: str = "rewards",
) -> list[tuple[Reward, float]]:
    """Verifiers by name, and a reward model where there is one, each with its weight.

    field: what messages call the names.
    Raises: ConfigError for an unknown name, or when there is no reward at all.
    """
    for name in names:
        if name not in VERIFIERS:
            raise ConfigError(
                f"{field} has {quote(name)}; known are {', '.join(VERIFIERS)}. A reward model is "
                "given by reward_model."
            )
    if weights and len(weights) != len(names):
        raise ConfigError(f"weights has {len(weights)} numbers; it must have {len(names)}.")
    found = [
        (VERIFIERS[name], weight)
        for name, weight in zip(names, weights or [1.0] * len(names), strict=True)
    ]
    if scorer is not None:
        found.append((by_model(scorer), 1.0))
    if not found:
        raise ConfigError("nothing is rewarded: set rewards, or reward_model.")
    return found


@dataclass(frozen=True)
class Tasks:
    """Tasks of some files. data: a checksum."""

    tasks: tuple[Task, ...]
    data: str


def read_tasks(
    paths: Sequence[Path],
    template: ChatTemplate,
    tokenizer: Tokenizer,
    *,
    room: int | None = None,
    verifiers: Sequence[str] = (),
) -> Tasks:
    """Every task of some .jsonl files: `prompt`, as messages or a string, and `answer`.

    room: tokens that a prompt may have.   verifiers: that are asked; some read the answer, which
    must be there then.

    Raises: ConfigError naming a file and a line.
    """
    tasks: list[Task] = []
    digest = hashlib.sha256(tokenizer.fingerprint.encode())
    needs_answer = sorted(_READ_ANSWERS.intersection(verifiers))

    def make(fields: Mapping[str, object]) -> Task:
        task = _task(fields, template, tokenizer, needs_answer)
        if room is not None and len(task.token_ids) > room:
            raise RequestError(
                f"the prompt has {len(task.token_ids)} tokens, and max_tokens leaves "
                f"{max(0, room)} of the model's longest sequence; leave the line out, or take a "
                "smaller max_tokens."
            )
        return task

    for path in paths:
        for task in read_each(path, make):
            digest.update(repr((task.token_ids, task.answer)).encode())
            tasks.append(task)
    return Tasks(tuple(tasks), digest.hexdigest())


def _last_word(text: str) -> str:
    words = text.split()
    return words[-1].rstrip(".") if words else ""


def _task(
    values: Mapping[str, object],
    template: ChatTemplate,
    tokenizer: Tokenizer,
    needs_answer: Sequence[str],
) -> Task:
    if "prompt" not in values:
        raise RequestError("prompt is missing; a line is a JSON object with prompt and answer.")
    if needs_answer and not values.get("answer"):
        raise RequestError(
            f"answer is {quote(values.get('answer'))}; {needs_answer[0]} compares with it, so it "
            "must be a string that is not empty."
        )
    prompt, answer = values["prompt"], values.get("answer", "")
    if isinstance(prompt, str):
        prompt = [{"role": "user", "content": prompt}]
    if not isinstance(answer, str):
        raise RequestError(f"answer is {quote(answer)}; it must be a string.")
    messages = from_dicts(prompt)
    return Task(messages, answer, encode_prompt(messages, template, tokenizer))
