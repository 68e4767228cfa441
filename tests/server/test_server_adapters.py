"""Adapters over HTTP: named by model or by lora, listed, loaded and unloaded while it runs."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest
import torch

import tiny
from cutaway.core.errors import ConfigError
from cutaway.core.request import Request, SamplingParams
from cutaway.models.parts.reading import read_config
from cutaway.server.entry.auth import Keys
from cutaway.server.route_context import Context
from cutaway.weights.adapter import MAX_CONFIG_BYTES, put_on, write_adapter
from services import make_model, running, token_ids, until

KEY = "0123456789abcdefghij"


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    architecture = read_config(tiny.BASE).architecture
    model, targets = architecture.build(), architecture.targets("hf")
    for number, pair in enumerate(put_on(model, targets, rank=4)):
        generator = torch.Generator().manual_seed(number)
        pair.adapter_up.data = torch.randn(pair.adapter_up.shape, generator=generator) * 0.5
    folder = tmp_path_factory.mktemp("adapter")
    write_adapter(folder, model, targets)
    return folder


def completion(model: str, **more: Any) -> dict[str, Any]:
    return {"model": model, "prompt": "abcdefgh", "max_tokens": 8, "temperature": 0, **more}


def test_loaded_named_listed_and_unloaded(asked: Callable[..., Any], adapter: Path) -> None:
    async def ask(http: httpx2.AsyncClient, context: Context) -> None:
        async def said(body: dict[str, Any], route: str = "completions") -> dict[str, Any]:
            answer = await http.post(f"/v1/{route}", json=body)
            return answer.json()

        base = (await said(completion("tiny")))["choices"][0]["text"]
        body = {"lora_name": "law", "lora_path": str(adapter)}
        loaded = await http.post("/v1/load_lora_adapter", json=body)
        assert loaded.status_code == 200 and loaded.json()["data"][0]["root"] == str(adapter)
        again = await http.post("/v1/load_lora_adapter", json=body)
        assert again.status_code == 400 and again.json()["error"]["param"] == "lora_name"
        assert '"law" is loaded already' in again.json()["error"]["message"]
        listed = (await http.get("/v1/models")).json()["data"]
        assert [each["id"] for each in listed] == ["tiny", "law"]
        assert listed[1]["parent"] == "tiny" and listed[1]["lora"]["rank"] == 4
        assert (await http.get("/v1/models/law")).json() == listed[1]
        by_model, by_field = (
            await said(completion("law")),
            await said(completion("tiny", lora="law")),
        )
        assert by_model["model"] == by_field["model"] == "law"
        assert by_model["choices"][0]["text"] == by_field["choices"][0]["text"] != base
        off = await said(completion("tiny", lora="off"))
        assert off["choices"][0]["text"] == base and off["model"] == "tiny"
        messages = [{"role": "user", "content": "a"}]
        chat = {"model": "law", "messages": messages, "max_tokens": 2}
        assert (await said(chat, "chat/completions"))["model"] == "law"
        assert (await said({**chat}, "messages"))["model"] == "law"
        responses = {"model": "law", "input": "a", "max_output_tokens": 2}
        assert (await said(responses, "responses"))["model"] == "law"
        for wrong, param in (
            (completion("tiny", lora="other"), "lora"),
            (completion("law", lora="other"), "lora"),
            (completion("other"), "model"),
        ):
            assert (await said(wrong))["error"]["param"] == param
        gone = await http.post("/v1/unload_lora_adapter", json={"lora_name": "law"})
        assert gone.status_code == 200 and gone.json()["data"] == []
        assert (await said(completion("law")))["error"]["code"] == "model_not_found"
        absent = await http.post("/v1/unload_lora_adapter", json={"lora_name": "law"})
        assert '"law" is not loaded' in absent.json()["error"]["message"]

    asked(ask)


def test_a_folder_that_does_not_fit_changes_nothing(
    asked: Callable[..., Any], adapter: Path, tmp_path: Path
) -> None:
    config = json.loads((adapter / "adapter_config.json").read_text())
    (tmp_path / "adapter_config.json").write_text(json.dumps({**config, "use_dora": True}))

    async def ask(http: httpx2.AsyncClient, context: Context) -> None:
        for path in (tmp_path, tmp_path / "absent"):
            body = {"lora_name": "law", "lora_path": str(path)}
            refused = await http.post("/v1/load_lora_adapter", json=body)
            assert refused.status_code == 400, refused.text
            assert refused.json()["error"]["param"] == "lora_path"
        own = {"lora_name": context.name, "lora_path": str(adapter)}
        assert (await http.post("/v1/load_lora_adapter", json=own)).status_code == 400
        assert not context.adapters

    asked(ask)


def test_a_public_server_without_keys_loads_nothing(
    asked: Callable[..., Any], adapter: Path
) -> None:
    body = {"lora_name": "law", "lora_path": str(adapter)}

    async def ask(http: httpx2.AsyncClient, context: Context) -> int:
        public = context.config.is_public
        assert public
        return (await http.post("/v1/load_lora_adapter", json=body)).status_code

    keys = Keys([("me", KEY)])
    assert asked(ask, host="0.0.0.0") == 403
    assert asked(ask, host="0.0.0.0", keys=keys) == 401
    assert asked(ask, host="0.0.0.0", keys=keys, key=KEY) == 200


def test_a_process_that_is_started_again_has_the_same_adapters(
    adapter: Path, tmp_path: Path
) -> None:
    asked = Request(
        request_id="one",
        prompt_token_ids=tuple(range(20, 40)),
        params=SamplingParams(temperature=0.0, max_tokens=6),
        lora="law",
    )

    async def body() -> None:
        async with running(make_model(tmp_path / "model")) as service:
            await service.adapt("law", str(adapter))
            first = await token_ids(service, asked)
            assert service.pid is not None
            os.kill(service.pid, signal.SIGKILL)
            await until(lambda: service._restarts == 1 and service.state == "ready")
            assert [each.name for each in service.model.adapters] == ["law"]
            assert await token_ids(service, replace(asked, request_id="two")) == first

    asyncio.run(body())


def test_a_model_comes_back_without_an_adapter_that_is_gone(adapter: Path, tmp_path: Path) -> None:
    """A folder that was deleted after a load once kept every later start from its end."""
    own, like = tmp_path / "own", tmp_path / "own2"  # a path that begins as the other's
    for each in (own, like):
        shutil.copytree(adapter, each)

    async def body() -> None:
        async with running(make_model(tmp_path / "model")) as service:
            await service.adapt("kept", str(own))
            await service.adapt("gone", str(like))
            shutil.rmtree(like)
            assert service.pid is not None
            os.kill(service.pid, signal.SIGKILL)
            await until(lambda: service.state == "ready" and service._restarts > 0)
            assert [each.name for each in service.model.adapters] == ["kept"]
            with pytest.raises(ConfigError, match="none of them ="):
                await service.adapt("a=b", str(adapter))

    asyncio.run(body())


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_what_is_no_file_is_refused_and_ends_no_answer(
    asked: Callable[..., Any], adapter: Path, tmp_path: Path
) -> None:
    """A pipe in the folder once held the engine's thread for ever: one request ended everybody."""
    folders = {name: tmp_path / name for name in ("pipe", "device", "nothing", "large", "cut")}
    for name, folder in folders.items():
        folder.mkdir()
        config = folder / "adapter_config.json"
        if name == "pipe":
            os.mkfifo(config)
        elif name == "device":
            config.symlink_to("/dev/zero")
        elif name == "large":
            config.write_bytes(b" " * (MAX_CONFIG_BYTES + 1))
        elif name == "cut":
            config.write_bytes((adapter / "adapter_config.json").read_bytes())
            os.mkfifo(folder / "adapter_model.safetensors")
    words = {"pipe": "no regular file", "device": "no regular file", "large": "more than 1048576"}

    async def ask(http: httpx2.AsyncClient, context: Context) -> None:
        before = (await http.post("/v1/completions", json=completion("tiny"))).json()["choices"]
        for name, folder in folders.items():
            body = {"lora_name": "x", "lora_path": str(folder)}
            refused = await http.post("/v1/load_lora_adapter", json=body)
            assert refused.status_code == 400, refused.text
            fault = refused.json()["error"]
            assert fault["param"] == "lora_path" and words.get(name, "") in fault["message"], fault
        after = (await http.post("/v1/completions", json=completion("tiny"))).json()["choices"]
        assert after == before and (await context.service.stats()).restarts == 0

    asked(ask)
