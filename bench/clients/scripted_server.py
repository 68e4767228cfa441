"""A whole server whose model follows a plan, for agents: each step depends on the results so far.

python bench/clients/scripted_server.py PLAN.json [--port N] [--log FILE]

PLAN.json is a list of steps: {"call": NAME, "arguments": {...}} or {"say": TEXT}. The step is the
number of results of tools in the prompt; the last one is said wherever there are as many or more.
A prompt that does not offer all tools of the plan gets the words "A title". All but the engine is
the product's own: door, APIs, templates, and the reading of calls. Prompts go to --log.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from cutaway.core.output import Delta, Timings, Usage
from cutaway.core.request import Request
from cutaway.server.entry.auth import Keys
from cutaway.server.route_context import Context
from cutaway.server.run import listening, serve, url_of
from cutaway.server.server_config import ServerConfig
from cutaway.service.service import EngineStats, ModelCard, State
from cutaway.weights.find.find import find

# In the form of Qwen's: it adds to contents, knows four roles, and calls in <tool_call>.
TEMPLATE = """{%- if tools %}<tools>{% for tool in tools %}
{{ tool | tojson }}{% endfor %}
</tools>
{% endif %}
{%- for message in messages %}
{%- if message.role in ['system', 'user', 'assistant'] %}
{{- '<|im_start|>' + message.role + '\\n' + message.content }}
{%- for call in message.tool_calls or [] %}
{{- '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
{{- call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}<|im_end|>
{% elif message.role == 'tool' %}
{{- '<|im_start|>user\\n<tool_response>\\n' + message.content }}
</tool_response><|im_end|>
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "vocab_size": 256,
    "max_position_embeddings": 2**20,
    "rms_norm_eps": 1e-5,
}
RESULT = "\n<tool_response>\n"


class PlannedService:
    """A Service without an engine: one token is one byte of what the plan says."""

    def __init__(self, plan: list[dict[str, Any]], log: Path | None) -> None:
        self._plan = plan
        self._log = log
        self.state: State = "ready"
        self.silent_seconds = 0.0
        self.model = ModelCard(
            name="planned",
            licence="none",
            architecture="planned",
            dtype="float32",
            device="cpu",
            vocab_size=256,
            max_length=2**20,
            num_parameters=1,
        )

    def _said(self, prompt: str) -> str:
        names = [step["call"] for step in self._plan if "call" in step]
        if names and not all(
            f'"name": "{name}"' in prompt.partition("</tools>")[0] for name in names
        ):
            return "A title"
        step = self._plan[min(prompt.count(RESULT), len(self._plan) - 1)]
        if "say" in step:
            return step["say"]
        call = {"name": step["call"], "arguments": step["arguments"]}
        return f"<tool_call>\n{json.dumps(call)}\n</tool_call>"

    def refusal(self, owner: str, num_coming: int = 0) -> None:
        """Nobody is refused."""

    async def follow(self, request: Request) -> AsyncGenerator[Delta]:
        """What the plan says, in a few pieces."""
        prompt = bytes(request.prompt_token_ids).decode(errors="replace")
        said = self._said(prompt)
        if self._log is not None:
            with self._log.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"prompt": prompt, "said": said}, ensure_ascii=False) + "\n")
        for start in range(0, len(said), 16):
            piece = said[start : start + 16]
            yield Delta(request.request_id, 0, tuple(piece.encode()), piece)
            await asyncio.sleep(0)
        usage = Usage(len(request.prompt_token_ids), len(said) + 1, 0)
        times = Timings(0, 0.001, 0.001, 0, 0.001)
        end = Delta(request.request_id, 0, finish_reason="stop", usage=usage, timings=times)
        yield end

    async def end(self, request_id: str, choice: int) -> None:
        """Nothing is left to end."""

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


def main() -> None:
    """Serve until a signal."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("plan", type=Path)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--log", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
        (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
        config = ServerConfig(port=asked.port, max_body_bytes=16 * 2**20)
        service = PlannedService(json.loads(asked.plan.read_text(encoding="utf-8")), asked.log)
        found = find(f"random:{folder / 'config.json'}")
        context = Context.of(found, service, config, name="planned")
        with listening(config) as listener:
            print(url_of(listener), flush=True)
            asyncio.run(serve(context, listener, keys=Keys()))


if __name__ == "__main__":
    main()
