"""A server over a SentencePiece vocabulary: tokens there and back, prompts, forms of answers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from server_app import chat, client, events, make_folder, serving

from spm_trained import trained

TEXT = "  The model, \u6f22\u5b57 \U0001f999:\n\tx"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = make_folder(
        tmp_path_factory.mktemp("spm") / "tiny", vocab_size=900, bos_token_id=1, eos_token_id=2
    )
    (made / "tokenizer.model").write_bytes(trained("bpe", "llama"))
    return made


def test_tokens_go_there_and_back(folder: Path) -> None:
    async def ask() -> tuple[Any, Any, Any]:
        async with serving(folder) as (app, _), client(app) as http:
            cut = (await http.post("/tokenize", json={"prompt": TEXT})).json()
            joined = await http.post("/detokenize", json={"tokens": cut["tokens"][1:]})
            return cut, joined.json(), (await http.get("/tokenizer_info")).json()

    cut, joined, info = asyncio.run(ask())
    assert cut["tokens"][0] == 1
    assert joined["prompt"] == TEXT
    assert (info["bos_token"], info["eos_token"], info["vocab_size"]) == ("<s>", "</s>", 900)


def test_a_streamed_answer_is_the_answer_that_comes_whole(folder: Path) -> None:
    body = {**chat("hello"), "max_tokens": 40, "ignore_eos": True}

    async def ask() -> tuple[Any, Any]:
        async with serving(folder) as (app, _), client(app) as http:
            whole = (await http.post("/v1/chat/completions", json=body)).json()
            streamed = await http.post("/v1/chat/completions", json={**body, "stream": True})
            return whole, streamed.text

    whole, streamed = asyncio.run(ask())
    said = [
        each["choices"][0]["delta"].get("content") or ""
        for each in events(streamed)[:-1]
        if each["choices"]
    ]
    assert len(said) > 1
    assert "".join(said) == whole["choices"][0]["message"]["content"]


def test_an_echoed_prompt_is_followed_by_the_answer_as_it_was_written(folder: Path) -> None:
    body = {"model": "tiny", "prompt": "The model", "max_tokens": 8, "temperature": 0}

    async def ask() -> tuple[str, str]:
        async with serving(folder) as (app, _), client(app) as http:
            alone = (await http.post("/v1/completions", json=body)).json()
            echoed = (await http.post("/v1/completions", json={**body, "echo": True})).json()
            return alone["choices"][0]["text"], echoed["choices"][0]["text"]

    alone, echoed = asyncio.run(ask())
    assert echoed == "The model" + alone


def test_an_answer_held_to_a_choice_is_one_of_them_without_a_blank_in_front(folder: Path) -> None:
    choices = ["yes, the model", "no"]
    body = {**chat("well?"), "max_tokens": 40, "structured_outputs": {"choice": choices}}

    async def ask() -> Any:
        async with serving(folder) as (app, _), client(app) as http:
            return (await http.post("/v1/chat/completions", json=body)).json()

    assert asyncio.run(ask())["choices"][0]["message"]["content"] in choices
