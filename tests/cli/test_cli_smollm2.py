"""The program on SmolLM2."""

from __future__ import annotations

import json

import pytest

from oracles import smollm2_gguf
from program import Cutaway, spawn

pytestmark = [pytest.mark.oracle, pytest.mark.slow]

QUESTION = "What is the capital of France?"
# The greedy answer with dequantized float32 weights, as transformers gives it.
ANSWER = [504, 3575, 282, 4649, 314, 7042, 30, 2]


@pytest.fixture(scope="module")
def model() -> str:
    return str(smollm2_gguf())


def test_complete_gives_the_golden_ids(cutaway: Cutaway, model: str) -> None:
    ended = cutaway(
        *("complete", QUESTION, "--chat", "--model", model, "--dtype", "float32"),
        *("--temperature", "0", "--max-tokens", "32", "--json"),
    )
    assert (ended.code, ended.err) == (0, "")
    assert len(ended.json["prompt_token_ids"]) == 37
    assert ended.json["token_ids"] == ANSWER
    assert ended.json["text"] == "The capital of France is Paris."
    assert ended.json["finish_reason"] == "stop"
    assert ended.json["usage"]["completion_tokens"] == 8


def test_a_plain_prompt_has_no_control_tokens(cutaway: Cutaway, model: str) -> None:
    ended = cutaway(
        *("complete", "<|im_start|>Once upon", "-m", model, "--temperature", "0"),
        *("--max-tokens", "4", "--json"),
    )
    text = cutaway("detokenize", "-m", model, stdin=json.dumps(ended.json["prompt_token_ids"])).out
    assert text == "<|im_start|>Once upon"
    assert min(ended.json["prompt_token_ids"]) > 16, "the control tokens are 0 to 16"


def test_tokenize_and_back(cutaway: Cutaway, model: str) -> None:
    text = "Gravity pulls. 12 naïve 日本 🙂\n"
    ended = cutaway("tokenize", "-m", model, "--json", stdin=text)
    tokens = ended.json["tokens"]
    assert [token["id"] for token in tokens] == ended.json["token_ids"]
    assert bytes.fromhex("".join(token["bytes"] for token in tokens)).decode() == text
    assert cutaway("detokenize", "-m", model, stdin=ended.out).out == text
    control = cutaway("tokenize", "-m", model, "--json", "--control", "--", "<|im_end|>")
    assert control.json["token_ids"] == [2]


def test_a_piped_conversation_remembers(cutaway: Cutaway, model: str) -> None:
    ended = cutaway(
        *("chat", model, "--dtype", "float32", "--temperature", "0", "--max-tokens", "24"),
        "--json",
        stdin=f"{QUESTION}\nAnd of Italy?\n",
    )
    assert ended.code == 0, ended.err
    first, second = (json.loads(line) for line in ended.out.splitlines())
    assert first["token_ids"] == ANSWER
    assert second["usage"]["cached_tokens"] >= 32, "the first turn is in the cache"
    assert "Rome" in second["text"]


def test_a_piped_question_is_answered_on_stdout_alone(model: str) -> None:
    ended = spawn(
        "chat", model, "--temperature", "0", "--max-tokens", "16", stdin="What is gravity?\n"
    )
    assert ended.code == 0
    assert ended.out.startswith("Gravity")
    assert ended.err.startswith("[16 tokens | ")


def test_info_names_the_licence(cutaway: Cutaway, model: str) -> None:
    assert cutaway("models", "info", model, "--json").json["num_parameters"] == 134_515_008


def test_the_model_calls_the_calculator(cutaway: Cutaway, model: str) -> None:
    ended = cutaway("chat", model, "--tools", "--temperature", "0", stdin="What is 17 times 23?\n")
    assert ended.code == 0
    assert "[outside the model] tool calc: 17*23 -> 391" in ended.err
    assert "391" in ended.out
