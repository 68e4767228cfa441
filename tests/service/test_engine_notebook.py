"""What notebooks show of models and answers: tokens as boxes, nothing that runs."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path

import tiny
from cutaway import LLM, SamplingParams


def test_answers_and_models_show_as_html_without_script(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(tiny.config()))
    llm = LLM(f"random:{tmp_path}/config.json", dtype="float32", cache_tokens=64)
    params = SamplingParams(max_tokens=3, temperature=0.0, ignore_eos=True, logprobs=0)
    (answer,) = llm.generate("<b>&", params)
    page = answer._repr_html_()
    tags: list[str] = []
    texts: list[str] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            tags.append(tag)
            assert {name for name, _ in attrs} <= {"style", "title"}

        def handle_data(self, data: str) -> None:
            texts.append(data)

    Reader().feed(page)
    assert set(tags) == {"div", "b", "span"}
    assert tags.count("span") == len(answer.prompt_token_ids) + 3
    assert [text for text in texts if text in "<b>&"] == ["<", "b", ">", "&"]
    assert page.count("probability ") == 3 and "ended by length: 3 tokens" in page
    about = llm._repr_html_()
    assert f"{llm.engine.model.facts.num_parameters:,}" in about and "<script" not in about
