"""A server over a tiny model in this process, and clients that ask it without a socket."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

import tiny
from cutaway.server.app import build_app
from cutaway.server.entry.auth import Keys
from cutaway.server.entry.door import Door
from cutaway.server.lesson_process import LessonProcess
from cutaway.server.openai.kept import Kept
from cutaway.server.route_context import Context
from cutaway.server.server_config import ServerConfig
from cutaway.service.local import LocalService
from cutaway.service.service import Service
from cutaway.weights.find.find import find

TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if mood %}[{{ mood }}]{% endif %}assistant:"
)
ORIGIN = "http://127.0.0.1:8000"


def make_folder(folder: Path, *, template: str = TEMPLATE, **changes: Any) -> Path:
    """Configuration and chat template of a tiny model."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(tiny.config(**changes)), encoding="utf-8")
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    return folder


@asynccontextmanager
async def serving(
    folder: Path,
    *,
    keys: Keys | None = None,
    name: str = "tiny",
    dtype: str = "float32",
    service: Service | None = None,
    store: Kept | None = None,
    **settings: Any,
) -> AsyncIterator[tuple[Door, Context]]:
    """An application that is ready, and its context. Its lessons end before they make anything."""
    found = find(f"random:{folder / 'config.json'}")
    engine = {"dtype": dtype, "cache_tokens": 4096, "page_size": 8}
    service = service or LocalService(f"random:{folder / 'config.json'}", **engine)
    context = Context.of(found, service, ServerConfig(**settings), name=name)
    context.store = store
    context.lesson = LessonProcess(command=("true",))
    await service.start()
    try:
        yield build_app(context, keys=keys), context
    finally:
        await context.lesson.stop()
        await service.close()
        context.worker.close()


def client(app: Door, *, key: str | None = None) -> httpx2.AsyncClient:
    """A client of it, by the loopback's name."""
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    transport = httpx2.ASGITransport(app=app)
    return httpx2.AsyncClient(transport=transport, base_url=ORIGIN, headers=headers)


def events(body: str) -> list[Any]:
    """The data of all events; the last one is what stands after data."""
    lines = [part for part in body.split("\n\n") if part]
    assert all(line.startswith(("data: ", ": ")) for line in lines), body
    read = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    return [each if each == "[DONE]" else json.loads(each) for each in read]


def chat(text: str = "hello", **fields: Any) -> Mapping[str, Any]:
    """The body of a chat completion."""
    messages = [{"role": "user", "content": text}]
    return {"model": "tiny", "messages": messages, "max_tokens": 8, "temperature": 0, **fields}


def completion(prompt: Any = "hello", **fields: Any) -> Mapping[str, Any]:
    """The body of a completion."""
    return {"model": "tiny", "prompt": prompt, "max_tokens": 8, "temperature": 0, **fields}


async def answered(http: httpx2.AsyncClient, **fields: Any) -> str:
    """The id of a short answer, by which it is opened."""
    response = await http.post("/v1/chat/completions", json=chat(max_tokens=4, **fields))
    assert response.status_code == 200, response.text
    return response.json()["id"]


# Words and signs of Python that no message to who wrote JSON may hold.
_PYTHON = re.compile(r"\b(None|True|False|array\()|(?<![\w])'[^'\n]{0,200}'(?![\w])|\bb\"")


def check_speaks_json(told: str) -> None:
    """A message shows values as JSON writes them, and nothing as Python does."""
    assert not _PYTHON.search(told), told


def check_near(ours: list[Any], theirs: list[Any]) -> None:
    """The same tokens with the same alternatives, and log-probabilities equal to rounding.

    The second request finds its prompt in the cache, and steps of other shapes may round otherwise.
    """
    assert [each["token"] for each in ours] == [each["token"] for each in theirs]
    for our, their in zip(ours, theirs, strict=True):
        assert our["bytes"] == their["bytes"]
        assert our["logprob"] == pytest.approx(their["logprob"], abs=1e-5)
        if "top_logprobs" in our:
            check_near(our["top_logprobs"], their["top_logprobs"])
