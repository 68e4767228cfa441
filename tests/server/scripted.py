"""A service whose model says what a test wrote, cut into pieces of random length."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx2
from server_app import client, make_folder, serving

from cutaway.core.output import Delta, Timings, Usage
from cutaway.core.request import Request
from cutaway.service.service import EngineStats, ModelCard, State

TIMES = Timings(0, 0.001, 0.001, 0, 0.001)
# A template that writes whatever it is given, tools, calls and results among it.
TOOL_TEMPLATE = (
    "{% if tools %}[tools: {% for t in tools %}{{ t | tojson }}{% endfor %}]\n{% endif %}"
    "{% for m in messages %}{{ m.role }}: {{ m.content }}"
    "{% if m.tool_calls %}{% for c in m.tool_calls %}<tool_call>{{ c.function | tojson }}"
    "</tool_call>{% endfor %}{% endif %}{% if m.tool_call_id %} ({{ m.tool_call_id }}){% endif %}\n"
    "{% endfor %}assistant:"
)
THINKING_TEMPLATE = f"{TOOL_TEMPLATE}{{# <think> #}}"


class ScriptedService:
    """A Service without an engine: one token is one byte of the script."""

    def __init__(self, script: str, *, seed: int = 0) -> None:
        self._script = script.encode()
        self._chance = random.Random(seed)
        self.requests: list[Request] = []
        self.ended: list[tuple[str, int]] = []
        self.num_said = 0  # bytes, over all answers
        self.state: State = "ready"
        self.silent_seconds = 0.0
        self.model = ModelCard(
            name="tiny",
            licence="none",
            architecture="scripted",
            dtype="float32",
            device="cpu",
            vocab_size=320,
            max_length=4096,
            num_parameters=1,
        )

    def refusal(self, owner: str, num_coming: int = 0) -> None:
        """Nobody is refused."""

    async def follow(self, request: Request) -> AsyncGenerator[Delta]:
        """The script, up to max_tokens; then the end."""
        self.requests.append(request)
        text = self._script.decode()
        most = request.params.max_tokens
        is_cut = most is not None and most < len(text)
        said = text[:most] if is_cut else text
        usage = Usage(len(request.prompt_token_ids), len(said) + (not is_cut), 2)
        for choice in range(request.params.n):
            rest = said
            while rest and (request.request_id, choice) not in self.ended:
                size = self._chance.randint(1, 9)
                piece, rest = rest[:size], rest[size:]
                self.num_said += len(piece)
                yield Delta(request.request_id, choice, tuple(piece.encode()), piece)
                await asyncio.sleep(0)
            is_ended = (request.request_id, choice) in self.ended
            yield Delta(
                request.request_id,
                choice,
                finish_reason="abort" if is_ended else "length" if is_cut else "stop",
                usage=usage,
                timings=TIMES,
            )

    async def end(self, request_id: str, choice: int) -> None:
        """The next news of this choice is its last."""
        self.ended.append((request_id, choice))

    async def wait_until_gone(self) -> str:
        """It never goes."""
        return await asyncio.get_running_loop().create_future()

    async def stats(self) -> EngineStats:
        """Nothing is ever waiting."""
        return EngineStats()

    async def start(self) -> None:
        """There is nothing to load."""

    async def drain(self, seconds: float) -> None:
        """There is nothing to wait for."""

    async def close(self) -> None:
        """There is nothing to end."""


Ask = Callable[[httpx2.AsyncClient, ScriptedService], Awaitable[Any]]


def scripted(
    folder: Path,
    script: str,
    ask: Ask,
    *,
    template: str = TOOL_TEMPLATE,
    seed: int = 0,
    kind: type[ScriptedService] = ScriptedService,
) -> Any:
    """What a coroutine function gives that asks a server whose model says the script."""

    async def body() -> Any:
        service = kind(script, seed=seed)
        made = make_folder(folder / "scripted", template=template)
        async with serving(made, service=service) as (app, _), client(app) as http:
            return await ask(http, service)

    return asyncio.run(body())
