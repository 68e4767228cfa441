"""What the page costs while an answer streams: long tasks, frames, scripting, memory of its script.

    python bench/page_stream.py [--rate 60] [--tokens 1500] [--recording FILE] [--profile FILE]

Plays a recorded answer with Markdown, code and formulas to the built page in Debian's chromium, at
a steady rate and with no engine at work: once as the first answer, once as message 200 of a
conversation. The recording is made by a run of the default model unless a file is given; a new
file is written there. Needs `make web`, playwright and chromium.

Times by the clock hold what other programs took from this one; times of computing are the page's.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import statistics
import threading
import urllib.request
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI
from playwright.sync_api import Browser, sync_playwright
from starlette.responses import JSONResponse, Response, StreamingResponse

from cutaway.bench.server import start_server
from cutaway.server.entry.browsers import Browsers
from cutaway.server.page import BUILT, router

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
ASKED = "/v1/models", "/ready", "/openapi.json"
LONG_MS = 50
PATIENCE_MS = 600_000
TRACED = ["toplevel", "disabled-by-default-devtools.timeline"]

PART = r"""
## {number}. How far it falls

A body that starts *at rest* falls $s = \frac{{1}}{{2}} g t^2$ in the time \(t\); with
**g = 9.81 m/s²** that is `{number} * 9.81 / 2` metres at first. See
[the tables](https://example.org/{number}) for other places:

$$v(t) = \int_0^t g \, \mathrm{{d}}\tau = g t, \qquad E = \frac{{m v^2}}{{2}} + m g h$$

| place | g in m/s² | after {number} s |
|-------|----------:|---------:|
| Earth | 9.81 | $4.9 t^2$ |
| Moon | 1.62 | $0.81 t^2$ |
| Mars | 3.72 | $1.86 t^2$ |

> Air is left out here. With it a body reaches a speed at which it no longer gains any.

```python
def fallen(seconds: float, g: float = 9.81) -> float:
    # Metres that a body falls in that time.
    return g * seconds**2 / 2

for place, g in {{"Earth": 9.81, "Moon": 1.62, "Mars": 3.72}}.items():
    print(f"{{place:8}} {{fallen({number}, g):8.2f}} m")
```
"""
ITEM = "- after **{0} s** it has fallen $4.905 \\cdot {0}^2$ metres, at `{0} * 9.81` m/s now\n"

WATCH = """() => {
  window.longTasks = [];
  new PerformanceObserver((list) => {
    for (const entry of list.getEntries()) window.longTasks.push(entry.duration);
  }).observe({ type: "longtask" });
  window.frameTimes = [];
  const frame = (at) => { window.frameTimes.push(at); requestAnimationFrame(frame); };
  requestAnimationFrame(frame);
}"""

# Two stores of the page's own: conversations, and the tokens of each answer.
KEEP = """async (told) => {
  const { chat, tokens } = JSON.parse(told);
  const put = (name, entries) => new Promise((resolve, reject) => {
    const asked = indexedDB.open(name);
    asked.onerror = () => reject(asked.error);
    asked.onupgradeneeded = () => asked.result.createObjectStore("all");
    asked.onsuccess = () => {
      const change = asked.result.transaction("all", "readwrite");
      for (const [key, value] of entries) change.objectStore("all").put(value, key);
      change.oncomplete = () => { asked.result.close(); resolve(); };
      change.onerror = () => reject(change.error);
    };
  });
  await put("cutaway-chats", [[chat.id, chat]]);
  await put("cutaway-tokens", Object.entries(tokens));
}"""


@dataclass(frozen=True)
class Recording:
    """What a server answered: JSON by path, and the data of each event of one streamed chat."""

    told: dict[str, Any]
    events: list[str]

    @property
    def scored(self) -> list[dict[str, Any]]:
        """The tokens with their log-probabilities, as the page keeps them."""
        choices = [choice for each in self.events for choice in json.loads(each)["choices"]]
        return [token for each in choices for token in (each["logprobs"] or {}).get("content", ())]


def answer_of(num_tokens: int) -> str:
    """A Markdown text of at least so many tokens: parts, a long list, a long block of code."""
    code = Path(__file__).read_text(encoding="utf-8").partition("PART =")[0].replace("```", "")
    listed = "".join(ITEM.format(number) for number in range(1, 21))
    tail = f"\n{listed}\n```python\n{code}```\n"
    # A token has about three characters here; the recording is counted.
    num_parts = max(2, (4 * num_tokens - len(tail)) // len(PART) + 1)
    return "".join(PART.format(number=1 + number) for number in range(num_parts)) + tail


def recorded(model: str, num_tokens: int) -> Recording:
    """A real answer: the model is held to the text, and each token has its own probabilities."""
    form = {"choice": [answer_of(num_tokens)]}
    asked = {
        **{"model": model, "messages": [{"role": "user", "content": "How far does it fall?"}]},
        **{"stream": True, "logprobs": True, "top_logprobs": 8, "max_tokens": 4 * num_tokens},
        **{"structured_outputs": form, "cutaway": {"token_ids": True}},
    }
    with start_server(["--model", model, "--served-name", model]) as server:
        told = {path: json.load(urllib.request.urlopen(server.url + path)) for path in ASKED}
        request = urllib.request.Request(
            f"{server.url}/v1/chat/completions",
            json.dumps(asked).encode(),
            {"content-type": "application/json"},
        )
        with urllib.request.urlopen(request) as stream:
            lines = [line.decode().rstrip() for line in stream]
    events = [line[6:] for line in lines if line.startswith("data: {")]
    return Recording(told, events)


def player(recording: Recording, rate: float) -> FastAPI:
    """The page, and a server that gives the recorded answer to every chat: rate tokens a second."""
    app = FastAPI(openapi_url=None)
    app.include_router(router(Browsers()))
    for path, value in recording.told.items():
        app.add_api_route(path, lambda value=value: JSONResponse(value))

    async def chat() -> Response:
        return StreamingResponse(_played(recording.events, rate), media_type="text/event-stream")

    app.add_api_route("/v1/chat/completions", chat, methods=["POST"])
    return app


async def _played(events: Sequence[str], rate: float) -> AsyncGenerator[str]:
    clock = asyncio.get_running_loop().time
    due = clock()
    for event in events:
        choices = json.loads(event)["choices"]
        due += sum(len((each["logprobs"] or {}).get("content", ())) for each in choices) / rate
        await asyncio.sleep(max(0.0, due - clock()))
        yield f"data: {event}\n\n"
    yield "data: [DONE]\n\n"


@contextmanager
def served(app: FastAPI) -> Iterator[str]:
    """The address of an application that runs in a thread of this process."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            thread.join(0.05)
            if not thread.is_alive():
                raise SystemExit("the player of the recording did not start")
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}/"
    finally:
        server.should_exit = True
        thread.join()


def conversation(recording: Recording, num_turns: int) -> dict[str, Any]:
    """A kept conversation whose answers are cut from the recording, with their tokens."""
    scored, turns, tokens = recording.scored, list[dict[str, Any]](), dict[str, Any]()
    for index in range(num_turns):
        turn = {"id": f"turn{index}", "parent": f"turn{index - 1}" if index else None}
        if index % 2:
            start = 37 * index % max(1, len(scored) - 120)
            tokens[f"turn{index}"] = part = scored[start : start + 120]
            text = b"".join(bytes(each["bytes"]) for each in part).decode(errors="replace")
            turns.append({**turn, "role": "assistant", "text": text, "finish": "stop"})
        else:
            turns.append({**turn, "role": "user", "text": f"Question {index // 2 + 1}?"})
    settings = {
        "system": "",
        "numbers": {},
        "stop": [],
        "form": "none",
        "formText": "",
        "tools": "",
    }
    chat = {"id": "long", "title": "long", "changed": 1, "leaf": f"turn{num_turns - 1}"}
    return {"chat": {**chat, "settings": settings, "turns": turns}, "tokens": tokens}


def measured(
    browser: Browser, url: str, before: dict[str, Any] | None, profile: Path | None
) -> Any:
    """Ask once and watch the page until the answer's end."""
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    page.goto(url)
    page.get_by_role("button", name="Settings").wait_for()
    if before is not None:
        page.evaluate(KEEP, json.dumps(before))
        page.goto(f"{url}#/c/long")
        page.reload()
        page.wait_for_function("() => document.querySelectorAll('[data-token]').length > 5000")
    devtools = context.new_cdp_session(page)
    devtools.send("Performance.enable", {"timeDomain": "threadTicks"})
    devtools.send("Profiler.enable")
    page.get_by_label("Your message").fill("How far does it fall?")
    page.get_by_role("button", name="Send").wait_for()
    first = _metrics(devtools)
    # Found now: looking for them among 200 messages would be a long task of this script's own.
    page.get_by_label("Your message").focus()
    num_ribbons = page.locator(".ribbon").count()
    page.evaluate(WATCH)
    if profile is not None:
        devtools.send("Profiler.start")
    else:
        browser.start_tracing(page=page, categories=TRACED)
    page.keyboard.press("Enter")
    # Asked twice a second: what waits for an element by itself looks at every frame.
    done = f"() => document.querySelectorAll('.ribbon').length > {num_ribbons}"
    page.wait_for_function(done, polling=500)
    frames, longs = page.evaluate("() => [window.frameTimes, window.longTasks]")
    if profile is not None:
        told = devtools.send("Profiler.stop")["profile"]
        profile.write_text(json.dumps(told))
        print("\n".join(_hottest(told)))
    tasks = [] if profile is not None else _tasks(json.loads(browser.stop_tracing()))
    last = _metrics(devtools)
    context.close()
    spent = {name: last[name] - first[name] for name in last}
    return frames, longs, tasks, spent, last


def _metrics(devtools: Any) -> dict[str, float]:
    """Counters of the page after its garbage was collected."""
    devtools.send("HeapProfiler.collectGarbage")
    told = devtools.send("Performance.getMetrics")["metrics"]
    return {each["name"]: each["value"] for each in told}


def _tasks(trace: dict[str, Any]) -> list[tuple[float, float]]:
    """Tasks of the page's main thread: milliseconds by the clock and of computing."""
    events = trace["traceEvents"]
    tasks: dict[tuple[int, int], list[tuple[float, float]]] = {}
    mains = {
        (each["pid"], each["tid"])
        for each in events
        if each["name"] == "thread_name" and each["args"]["name"] == "CrRendererMain"
    }
    for each in events:
        place = each["pid"], each["tid"]
        if each["name"] == "RunTask" and place in mains and "dur" in each:
            pair = each["dur"] / 1000, each.get("tdur", each["dur"]) / 1000
            tasks.setdefault(place, []).append(pair)
    return max(tasks.values(), key=lambda each: sum(pair[1] for pair in each))


def _hottest(profile: dict[str, Any]) -> list[str]:
    """The functions in which most time was spent, by themselves."""
    spent: dict[int, float] = {}
    for node, micros in zip(profile["samples"], profile["timeDeltas"], strict=True):
        spent[node] = spent.get(node, 0) + micros / 1000
    rows: dict[str, float] = {}
    for node in profile["nodes"]:
        frame = node["callFrame"]
        place = f"{frame['functionName'] or '(anonymous)'} {frame['url'].rpartition('/')[2]}"
        key = f"{place}:{frame['lineNumber'] + 1}:{frame['columnNumber']}"
        rows[key] = rows.get(key, 0) + spent.get(node["id"], 0)
    most = sorted(rows.items(), key=lambda row: -row[1])[:25]
    return [f"{ms:9.1f} ms  {name}" for name, ms in most]


def row(name: str, num_tokens: int, told: Any) -> str:
    """A line of the table."""
    frames, longs, tasks, spent, last = told
    seconds = (frames[-1] - frames[0]) / 1000
    counts = [0] * (int(seconds) + 1)
    for at in frames:
        counts[int((at - frames[0]) / 1000)] += 1
    whole = counts[:-1] or counts
    computing = [pair[1] for pair in tasks]
    cells = (
        *(name, f"{num_tokens}", f"{num_tokens / seconds:.1f}"),
        f"{sum(ms > LONG_MS for ms in computing)}, {max(computing):.0f} ms",
        f"{len(longs)}, {max(longs, default=0):.0f} ms",
        f"{statistics.median(whole)}, {min(whole)}",
        f"{100 * spent['ScriptDuration'] / seconds:.1f} %",
        f"{100 * (spent['LayoutDuration'] + spent['RecalcStyleDuration']) / seconds:.1f} %",
        f"{100 * spent['TaskDuration'] / seconds:.1f} %",
        f"{spent['JSHeapUsedSize'] / 1e6:+.1f} of {last['JSHeapUsedSize'] / 1e6:.1f} MB",
    )
    return f"| {' | '.join(cells)} |"


HEAD = (
    *("answer", "tokens", "a second", "long tasks (computing), longest"),
    *("long tasks (clock), longest", "frames a second, fewest", "script", "style and layout"),
    *("all of the main thread", "script's memory after collection"),
)


def main() -> None:
    options = argparse.ArgumentParser(description="Profile the page while an answer streams.")
    options.add_argument("--rate", type=float, default=60, help="tokens a second")
    options.add_argument("--tokens", type=int, default=1500, help="of the answer, at least")
    options.add_argument("--model", default="smollm2")
    options.add_argument("--recording", type=Path)
    options.add_argument("--turns", type=int, default=198, help="of the conversation before")
    options.add_argument("--profile", type=Path, help="write a CPU profile of the first answer")
    args = options.parse_args()
    if args.recording is not None and args.recording.exists():
        recording = Recording(**json.loads(args.recording.read_text()))
    else:
        recording = recorded(args.model, args.tokens)
    if args.recording is not None:
        args.recording.write_text(json.dumps(vars(recording)))
    num_tokens = len(recording.scored)
    if num_tokens < args.tokens:
        raise SystemExit(f"the recording has {num_tokens} tokens; --tokens asks for {args.tokens}")
    if not (BUILT / "index.html").is_file() or shutil.which("chromium") is None:
        raise SystemExit("this needs the built page (make web) and chromium (Debian: chromium)")
    print(f"| {' | '.join(HEAD)} |\n|{'---|' * len(HEAD)}", flush=True)
    with served(player(recording, args.rate)) as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        if args.profile is not None:
            measured(browser, url, None, args.profile)
        else:
            print(row("the first", num_tokens, measured(browser, url, None, None)), flush=True)
            long = conversation(recording, args.turns)
            print(row(f"message {args.turns + 2}", num_tokens, measured(browser, url, long, None)))
        browser.close()


if __name__ == "__main__":
    main()
