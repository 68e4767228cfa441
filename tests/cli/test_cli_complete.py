"""`cutaway complete`, on a tiny random model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import tiny
from cutaway import LLM, SamplingParams
from program import Cutaway, spawn

TIMINGS = {
    *("load", "tokenize", "queue", "prefill", "decode", "detokenize", "first_token"),
    *("tokens_per_second", "drafted", "accepted"),
}


def test_json_is_one_object_with_all_that_was_promised(cutaway: Cutaway, tiny_model: str) -> None:
    ended = cutaway(
        "complete", "hello", "--model", tiny_model, "--max-tokens", "5", "--ignore-eos", "--json"
    )
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.count("\n") == 1
    assert ended.json["prompt_token_ids"] == list(b"hello")
    assert len(ended.json["token_ids"]) == 5
    assert ended.json["finish_reason"] == "length"
    assert ended.json["model"] == "random:tiny"
    assert ended.json["usage"] == {"prompt_tokens": 5, "completion_tokens": 5, "cached_tokens": 0}
    assert set(ended.json["timings"]) == TIMINGS
    timings = ended.json["timings"]
    assert (timings.pop("drafted"), timings.pop("accepted")) == (0, 0)
    assert all(seconds > 0 for seconds in timings.values())
    assert "logprobs" not in ended.json


def test_the_answer_is_that_of_the_python_front(cutaway: Cutaway, tiny_model: str) -> None:
    flags = ["--temperature", "0.8", "--top-p", "0.9", "--seed", "3", "--max-tokens", "12"]
    ended = cutaway("complete", "hello", "-m", tiny_model, *flags, "--json")
    params = SamplingParams(temperature=0.8, top_p=0.9, seed=3, max_tokens=12)
    (expected,) = LLM(tiny_model).generate("hello", params)
    assert ended.json["token_ids"] == list(expected.token_ids)
    assert ended.json["text"] == expected.text


@pytest.mark.parametrize("flag", ["--stream", "--no-stream"])
def test_stdout_has_the_text_alone_and_stderr_the_figures(
    cutaway: Cutaway, tiny_model: str, flag: str
) -> None:
    common = ["complete", "hello", "-m", tiny_model, "--seed", "1", "--max-tokens", "9"]
    ended = cutaway(*common, flag)
    assert ended.out == cutaway(*common, "--json").json["text"] + "\n"
    assert ended.err.startswith("[9 tokens | ")
    assert ended.err.endswith("prompt 5 tokens, 0 cached | cut by --max-tokens or the context]\n")


def test_an_ending_token_is_in_the_ids_and_not_in_the_text(
    cutaway: Cutaway, tiny_model: str
) -> None:
    common = ["complete", "hello", "-m", tiny_model, "--max-tokens", "99", "--json"]
    answers = (cutaway(*common, "--seed", str(seed)).json for seed in range(40))
    answer = next(answer for answer in answers if answer["finish_reason"] == "stop")
    assert answer["token_ids"][-1] == 257, "which ends the answers of this model"
    assert "<eos>" not in answer["text"]


def test_a_prompt_comes_from_stdin_without_its_last_line_end(
    cutaway: Cutaway, tiny_model: str
) -> None:
    for arguments in (["-"], []):
        for stdin, prompt in (("hi\n", "hi"), ("hi\n\n", "hi\n"), ("h\r\n", "h"), ("h", "h")):
            ended = cutaway(
                *("complete", *arguments, "-m", tiny_model, "--max-tokens", "1", "--json"),
                stdin=stdin,
            )
            assert ended.json["prompt_token_ids"] == list(prompt.encode())


def test_an_answer_of_one_token_has_no_speed(cutaway: Cutaway, tiny_model: str) -> None:
    ended = cutaway("complete", "h", "-m", tiny_model, "--max-tokens", "1", "--json")
    assert ended.json["timings"]["tokens_per_second"] is None
    assert "tokens/s" not in cutaway("complete", "h", "-m", tiny_model, "--max-tokens", "1").err


def test_without_a_bound_the_answer_ends_at_256_or_where_the_context_does(
    cutaway: Cutaway, tiny_model: str
) -> None:
    ended = cutaway("complete", "x" * 56, "-m", tiny_model, "--ignore-eos", "--json")
    assert len(ended.json["token_ids"]) == 200, "the context has 256 tokens"
    assert ended.json["finish_reason"] == "length"


def test_logprobs_are_listed_per_token(cutaway: Cutaway, tiny_model: str) -> None:
    ended = cutaway(
        *("complete", "hi", "-m", tiny_model, "--temperature", "0", "--max-tokens", "3"),
        *("--logprobs", "2", "--prompt-logprobs", "1", "--json"),
    )
    tokens = ended.json["logprobs"]
    assert [token["id"] for token in tokens] == ended.json["token_ids"]
    for token in tokens:
        assert token["rank"] == 1
        assert token["top"][0]["id"] == token["id"]
        assert token["top"][0]["logprob"] == token["logprob"] <= 0
        assert len(token["top"]) == 2
    first, second = ended.json["prompt_logprobs"]
    assert first is None
    assert (second["id"], second["bytes"], second["text"]) == (ord("i"), "69", "i")


def test_no_token_is_needed_to_score_a_prompt(cutaway: Cutaway, tiny_model: str) -> None:
    ended = cutaway(
        *("complete", "hi", "-m", tiny_model, "--max-tokens", "0"),
        *("--prompt-logprobs", "0", "--json"),
    )
    assert ended.json["token_ids"] == []
    assert len(ended.json["prompt_logprobs"]) == 2


def test_chat_sends_the_prompt_through_the_template(cutaway: Cutaway, tiny_model: str) -> None:
    common = ["complete", "hi", "-m", tiny_model, "--chat", "--max-tokens", "1", "--json"]
    prompt = bytes(cutaway(*common).json["prompt_token_ids"]).decode()
    assert prompt == "user: hi\nassistant:"
    prompt = bytes(cutaway(*common, "--system", "Rhyme.").json["prompt_token_ids"]).decode()
    assert prompt == "system: Rhyme.\nuser: hi\nassistant:"


def test_control_tokens_need_their_flag(cutaway: Cutaway, tiny_model: str) -> None:
    common = ["complete", "a<eos>", "-m", tiny_model, "--max-tokens", "1", "--json"]
    assert cutaway(*common).json["prompt_token_ids"] == list(b"a<eos>")
    assert cutaway(*common, "--control").json["prompt_token_ids"] == [ord("a"), 257]


def test_settings_of_environment_and_file_are_honoured(
    cutaway: Cutaway, tiny_model: str, monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    monkeypatch.setenv("CUTAWAY_MODEL", tiny_model)
    monkeypatch.setenv("CUTAWAY_MAX_TOKENS", "2")
    assert len(cutaway("complete", "hi", "--ignore-eos", "--json").json["token_ids"]) == 2


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--chat", "--control"], "--control is for plain prompts; leave out --chat."),
        (["--system", "x"], "--system is for messages; add --chat."),
        (["--logprobs", "1"], "--logprobs and --prompt-logprobs need --json."),
        (["--json", "--logprobs", "21"], "logprobs is 21; it must be an integer from 0 to 20."),
        (["--max-tokens", "0"], "max_tokens is 0; it must be at least 1 unless"),
        (["--max-tokens", "256"], "the prompt has 5 tokens and max_tokens is 256"),
        (["--min-tokens", "3", "--max-tokens", "2"], "min_tokens is 3, above max_tokens 2"),
        (["--stop", ""], "stop holds a string of 0 bytes"),
    ],
)
def test_what_does_not_go_together_is_refused(
    cutaway: Cutaway, tiny_model: str, flags: list[str], message: str
) -> None:
    ended = cutaway("complete", "hello", "-m", tiny_model, *flags)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith(f"error: {message}")


@pytest.mark.parametrize("prompt", ["", "-"])
def test_an_empty_prompt_is_refused(cutaway: Cutaway, tiny_model: str, prompt: str) -> None:
    ended = cutaway("complete", prompt, "-m", tiny_model)
    assert ended.code == 2
    assert "prompt has no tokens" in ended.err


def test_a_prompt_that_is_not_utf8_is_refused(cutaway: Cutaway, tiny_model: str) -> None:
    ended = cutaway("complete", "-m", tiny_model, stdin=b"ab\xff")
    assert (ended.code, ended.out) == (2, "")
    assert "prompt from stdin is not UTF-8: byte 0xff at 2" in ended.err
    ended = cutaway("complete", "ab\udcff", "-m", tiny_model)
    assert (ended.code, ended.out) == (2, "")
    assert 'prompt holds "\\udcff" at 2' in ended.err


def test_the_installed_program_answers(tiny_model: str) -> None:
    ended = spawn("complete", "hello", "-m", tiny_model, "--max-tokens", "3", "--json")
    assert (ended.code, ended.err) == (0, "")
    assert len(ended.json["token_ids"]) <= 3


def test_a_model_that_sees_is_said_once_to_read_no_images(cutaway: Cutaway, tmp_path: Path) -> None:
    text = tiny.config(model_type="mistral", sliding_window=None)
    config = {"architectures": ["Mistral3ForConditionalGeneration"], "text_config": text}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    ended = cutaway("complete", "hello", "-m", f"random:{path}", "--max-tokens", "3", "--json")
    assert ended.code == 0 and ended.json["finish_reason"] in ("length", "stop")
    assert ended.err.count("its text part alone runs here, and images are not read.") == 1
