"""How long the page takes to open a trace of a long answer, in Chromium, from drop to picture.

python bench/page_trace.py [--tokens 8000] [--layers 2] [--keep FILE] [--file FILE]

The answer is made by a tiny random model, so that making it takes seconds: what the page opens at
once grows with tokens and steps, not with the model. The file has all views, and chances, sampling
and text at 128 of its tokens.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from playwright.sync_api import sync_playwright

from cutaway import LLM
from cutaway.core.request import SamplingParams
from cutaway.replay.look import Look
from cutaway.replay.trace_file import save_trace
from cutaway.trace.file import read
from cutaway.trace.viewer import with_viewer
from cutaway.views import VIEWS

if TYPE_CHECKING:
    from playwright.sync_api import CDPSession, Page

FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run")
ROUNDS = 3

# From the document's start: fetched, run, unpacked, drawn; and each station once more.
OPENED = "article[data-view]"
WORKED = "() => performance.now()"
PAINTED = "() => new Promise((done) => requestAnimationFrame(() => setTimeout(done)))"


def saved(path: Path, *, tokens: int, layers: int) -> None:
    """A trace of an answer of so many tokens."""
    shape = {
        **{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 4096},
        **{"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": layers},
        **{"num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-5},
        **{"max_position_embeddings": 16384, "rope_theta": 10000.0, "tie_word_embeddings": True},
    }
    config = path.with_suffix(".json")
    config.write_text(json.dumps(shape), encoding="utf-8")
    llm = LLM(f"random:{config}")
    params = SamplingParams(max_tokens=tokens, ignore_eos=True, seed=0)
    began = perf_counter()
    llm.generate("Once upon a time", params)
    made = perf_counter()
    assert llm.engine.ledger is not None
    answer = list(llm.engine.ledger.answers)[-1]
    save_trace(Look(llm.engine, answer), path, VIEWS)
    print(f"{tokens} tokens made in {made - began:.1f} s, saved in {perf_counter() - made:.1f} s")


def opened(page: Page, document: Path) -> float:
    """Seconds from the start of the document to its first picture."""
    page.goto(document.as_uri(), wait_until="commit")
    page.locator(OPENED).wait_for()
    return page.evaluate(WORKED) / 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=8000)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--file", type=Path, help="a trace that there is already")
    parser.add_argument("--keep", type=Path, help="where to leave the trace")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = given.file or Path(folder) / "long.cutaway"
        if given.file is None:
            saved(path, tokens=given.tokens, layers=given.layers)
            if given.keep:
                shutil.copy(path, given.keep)
        trace = read(path)
        num_places = sum(1 + len(view.places) for view in trace.views)
        print(
            f"{path.stat().st_size / 1e6:.2f} MB, {len(trace.events)} events, {num_places} places"
        )
        document = Path(folder) / "long.html"
        document.write_text(with_viewer(path.read_bytes(), file=str(path)), encoding="utf-8")
        measure(document, [view.name for view in trace.views])


def measure(document: Path, views: list[str]) -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=list(FLAGS)
        )
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.set_default_timeout(120_000)
        session = page.context.new_cdp_session(page)
        session.send("Performance.enable", {"timeDomain": "threadTicks"})
        seconds = sorted(opened(page, document) for _ in range(ROUNDS))
        print(f"opened in {', '.join(f'{each:.2f}' for each in seconds)} s (bound: 2 s)")
        print(f"of the last the page's own thread computed {computed(session):.2f} s")
        for view in views:
            began, before = perf_counter(), computed(session)
            page.locator(f"nav [data-view={view}]").click()
            page.locator(f"article[data-view={view}]").wait_for()
            page.evaluate(PAINTED)
            work = computed(session) - before
            print(f"{view:16} {perf_counter() - began:6.2f} s, computed {work:.2f} s")
        browser.close()


def computed(session: CDPSession) -> float:
    """Seconds that the page's own thread has computed since the document's start."""
    told = session.send("Performance.getMetrics")["metrics"]
    return next(each["value"] for each in told if each["name"] == "TaskDuration")


if __name__ == "__main__":
    main()
