"""How long a neighbour's next token takes beside work of ill will: grammars, or chat templates.

python bench/plan/beside.py grammars      p99 at most 1.5 times that alone
python bench/plan/beside.py templates     p99 at most 1.2 times that alone

A client reads streams of tokens all the while. Times alone and beside alternate, so that what else
the machine does is in both; times of steps say little on a machine that has much else to do.
"""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from itertools import cycle, islice
from pathlib import Path

from slow_clients import p99, start

TESTS = Path(__file__).resolve().parents[2] / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "sampling")]
MOST = {"grammars": 1.5, "templates": 1.2}
SECONDS = 2.0  # of each turn alone, and beside
LEAST_TOKENS = 10_000  # beside; fewer tell nothing of a p99: one pause of the machine makes it
# Each spends its whole budget in another way, chosen by the request.
TEMPLATE = """
{%- if way == 0 %}{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}
{%- elif way == 1 %}{% for a in range(9999) %}{{ messages | tojson | length }}{% endfor %}
{%- elif way == 2 %}{% for a in range(9999) %}{{ ('a' * 999) | replace('a', 'bb') }}{% endfor %}
{%- else %}{% macro f(n) %}{{ f(n + 1) }}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}{% endif %}"""


Asked = tuple[str, bytes]  # path and body


def post(url: str, path: str, body: bytes) -> object:
    """An open answer. Raises: urllib.error.HTTPError where it is refused."""
    request = urllib.request.Request(f"{url}{path}", body, {"content-type": "application/json"})
    return urllib.request.urlopen(request, timeout=120)


def gaps(url: str, until: float) -> list[float]:
    """Seconds between tokens of streams that are read until then."""
    found: list[float] = []
    body = {"model": "tiny", "prompt": "hello", "max_tokens": 100, "temperature": 0}
    asked = json.dumps({**body, "ignore_eos": True, "stream": True}).encode()
    while time.monotonic() < until:
        with post(url, "/v1/completions", asked) as lines:
            last = None
            for line in lines:
                if line.startswith(b"data: {"):
                    now = time.perf_counter()
                    found += [] if last is None else [now - last]
                    last = now
    return found


def grammars(seed: int) -> Iterator[tuple[str, dict[str, object]]]:
    """Requests whose grammars want for ever, all memory, or a deep stack."""
    from drawn_grammars import hostile

    from cutaway.core.errors import RequestError

    chance = random.Random(seed)
    body = {"model": "tiny", "prompt": "x", "max_tokens": 1}
    names = {"json_schema": "json", "regex": "regex", "lark": "grammar", "choice": "choice"}
    while True:
        try:
            grammar = hostile(chance)
        except RequestError:
            continue  # too long or too deep to be one: the door refuses that at once
        if grammar.kind in names:
            is_json = grammar.kind in ("json_schema", "choice")
            value = json.loads(grammar.text) if is_json else grammar.text
            yield "/v1/completions", {**body, "structured_outputs": {names[grammar.kind]: value}}


def templates(seed: int) -> Iterator[tuple[str, dict[str, object]]]:
    """Requests whose messages are written by a template that never comes to an end."""
    chance = random.Random(seed)
    while True:
        talk = [{"role": "user", "content": "x" * chance.randint(1, 999)}]
        body = {"model": "tiny", "messages": talk, "max_tokens": 1}
        yield (
            "/v1/chat/completions",
            {
                **body,
                "chat_template_kwargs": {"way": chance.randrange(4)},
            },
        )


def attack(url: str, requests: Iterator[Asked], is_over: Callable[[], bool]) -> list[int]:
    """Send one after another; statuses."""
    statuses: list[int] = []
    while not is_over():
        try:
            with post(url, *next(requests)) as answer:
                answer.read()
            statuses.append(200)
        except urllib.error.HTTPError as error:
            statuses.append(error.code)
    return statuses


def main() -> int:
    what = sys.argv[1]
    kinds = {"grammars": grammars, "templates": templates}
    count, seed = int(os.environ.get("PLAN_TRIALS", 200)), int(os.environ.get("PLAN_SEED", 1))
    # Ahead of all times: drawn beside the stream they would hold up the one who reads it.
    drawn = [(path, json.dumps(body).encode()) for path, body in islice(kinds[what](seed), count)]
    requests = cycle(drawn)
    alone, beside, statuses = list[float](), list[float](), list[int]()
    with tempfile.TemporaryDirectory(prefix="cutaway-plan-") as name:
        if what == "templates":
            (Path(name) / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
        process, url = start(Path(name))
        try:
            gaps(url, time.monotonic() + 1)
            while len(statuses) < count or len(beside) < LEAST_TOKENS:
                alone += gaps(url, time.monotonic() + SECONDS)
                until = time.monotonic() + SECONDS
                sent: list[int] = []

                def attacker(until: float = until, sent: list[int] = sent) -> None:
                    sent += attack(url, requests, lambda: time.monotonic() > until)

                other = threading.Thread(target=attacker)
                other.start()
                beside += gaps(url, until)
                other.join()
                statuses += sent
        finally:
            process.terminate()
            process.communicate(timeout=60)
    ratio = p99(beside) / p99(alone)
    figures = {
        "p99_alone_ms": round(1000 * p99(alone), 2),
        "p99_beside_ms": round(1000 * p99(beside), 2),
        "p99_times_alone": round(ratio, 2),
        "total_refused": sum(status == 400 for status in statuses),
        "total_tokens_beside": len(beside),
    }
    print(f"{len(statuses)} {what}", figures)
    faults = [status for status in statuses if status not in (200, 400)]
    is_slow = ratio > MOST[what]
    print(*faults[:20], *(["too slow"] if is_slow else []), sep="\n")
    if log := os.environ.get("PLAN_LOG"):
        said = {"count": len(statuses), "figures": figures}
        Path(log).write_text(json.dumps(said) + "\n", encoding="utf-8")
    return 1 if faults or is_slow else 0


if __name__ == "__main__":
    sys.exit(main())
