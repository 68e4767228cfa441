"""A thousand clients that send or read slowly, in four ways, beside one that does not.

    apt-get install slowhttptest
    python bench/plan/slow_clients.py [--seconds 60]

Heads that do not end, bodies that trickle, answers that are not read, and ranges: for each, a
normal client asks all the while. It must be served every time; how long it waits is printed beside
how long it waited before. Afterwards nothing may be left open.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
CONNECTIONS = 1000
MODES = {
    "heads": ["-H", "-i", "1"],
    "bodies": ["-B", "-i", "1", "-s", "8192"],
    "readers": ["-X", "-r", "200", "-w", "512", "-y", "1024", "-n", "5", "-z", "32"],
    "ranges": ["-R", "-a", "10", "-b", "3000"],
}


def start(folder: Path) -> tuple[subprocess.Popen[str], str]:
    """A server over a tiny model, and its address."""
    import tiny
    from program import command, environment

    (folder / "config.json").write_text(json.dumps(tiny.config()), encoding="utf-8")
    words = ["serve", f"random:{folder / 'config.json'}", "--port", "0", "--dtype", "float32"]
    process = subprocess.Popen(
        command(*words, "--cache-tokens", "4096", "--served-name", "tiny"),
        env=environment(), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    assert process.stderr is not None
    url = ""
    for line in process.stderr:
        url = url or "".join(re.findall(r"http://[\d.]+:\d+", line)[:1])
        if line.startswith("curl "):
            break
    return process, url


def ask(url: str) -> float:
    """Seconds of one short answer; raises where it is refused."""
    body = {"model": "tiny", "prompt": "hello", "max_tokens": 4, "temperature": 0}
    request = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    began = time.monotonic()
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert answer.status == 200 and b"choices" in answer.read()
    return time.monotonic() - began


def p99(times: list[float]) -> float:
    return sorted(times)[int(0.99 * len(times))]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=int, default=60, help="of each mode")
    args = parser.parse_args()
    if shutil.which("slowhttptest") is None:
        print("slowhttptest is missing: on Debian, apt-get install slowhttptest")
        return 1
    figures: dict[str, float] = {}
    served = 0
    with tempfile.TemporaryDirectory(prefix="cutaway-plan-") as name:
        process, url = start(Path(name))
        try:
            before = [ask(url) for _ in range(200)]
            figures["p99_alone_ms"] = round(1000 * p99(before))
            descriptors = len(os.listdir(f"/proc/{process.pid}/fd"))
            for mode, words in MODES.items():
                path = f"{url}/v1/models" if mode in ("readers", "ranges") else f"{url}/tokenize"
                attack = subprocess.Popen(
                    ["slowhttptest", "-c", str(CONNECTIONS), "-r", "200", *words, "-p", "10",
                     "-l", str(args.seconds), "-u", path],
                    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=name,
                )  # fmt: skip
                times: list[float] = []
                while attack.poll() is None:
                    times.append(ask(url))
                    time.sleep(0.05)
                served += len(times)
                figures[f"p99_beside_{mode}_ms"] = round(1000 * p99(times))
                print(
                    f"{mode}: {len(times)} served, slowest {1000 * max(times):.0f} ms", flush=True
                )
            until = time.monotonic() + 70  # what may stay open is bounded by the deadlines
            while (left := len(os.listdir(f"/proc/{process.pid}/fd"))) > descriptors + 2:
                assert time.monotonic() < until, f"{left - descriptors} descriptors are left"
                time.sleep(0.5)
        finally:
            process.terminate()
            process.communicate(timeout=60)
    print(f"{served} requests beside {CONNECTIONS} slow clients: all served", figures)
    if log := os.environ.get("PLAN_LOG"):
        said = {"count": served, "figures": figures}
        Path(log).write_text(json.dumps(said) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
