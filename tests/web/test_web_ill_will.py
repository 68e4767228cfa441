"""Fifty texts of ill will in every place that shows text: none runs, none asks elsewhere."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
from ill_will import KNOWN, PAYLOADS, drawn
from test_web_chat import ask

from trials import ran

if TYPE_CHECKING:
    from playwright.sync_api import Route

    from conftest import Opened

pytestmark = pytest.mark.slow

# What the page itself never makes, wherever it stands; its own signs are drawn with svg and path.
FOREIGN = "script:not([src]), img, iframe, object, embed, base, meta[http-equiv], math[href], style"
HANDLERS = """() => [...document.querySelectorAll('*')].flatMap((each) => [...each.attributes]
  .filter((own) => own.name.startsWith('on') || /^\\s*(javascript|vbscript|data):/i.test(own.value))
  .map((own) => `${each.tagName} ${own.name}=${own.value}`))"""


def harmless(opened: Opened) -> None:
    """Nothing ran, nothing stands there that could, and no other host was asked."""
    page = opened.page
    assert page.evaluate("() => window.ran") is None
    assert page.locator(FOREIGN).count() == 0
    assert page.evaluate(HANDLERS) == []
    assert {urlsplit(url).netloc for url in opened.asked if not url.startswith("blob:")} == {
        urlsplit(opened.url).netloc
    }
    assert [line for line in opened.said if "status of 400" not in line] == []


def answering(route: Route, payloads: tuple[str, ...]) -> None:
    """An answer whose tokens, alternatives, reasoning and call of a tool are the payloads."""
    tokens: list[dict[str, Any]] = []
    for payload in payloads:
        token = {"token": payload + "\n\n", "bytes": list(f"{payload}\n\n".encode()), "token_id": 1}
        top = [{**token, "logprob": -0.5}, {**token, "token": payload, "logprob": -2}]
        tokens.append({**token, "logprob": -0.5, "top_logprobs": top})
    text = "".join(token["token"] for token in tokens)
    call = {"index": 0, "id": "x", "function": {"name": payloads[0], "arguments": payloads[1]}}
    delta = {"content": text, "reasoning_content": text, "tool_calls": [call]}
    choice = {"delta": delta, "logprobs": {"content": tokens}, "finish_reason": "stop"}
    body = f"data: {json.dumps({'id': payloads[0], 'choices': [choice]})}\n\ndata: [DONE]\n\n"
    route.fulfill(content_type="text/event-stream", body=body)


def test_there_are_fifty() -> None:
    assert len(set(PAYLOADS)) == len(PAYLOADS) == 50
    assert len({*KNOWN, *(each for part in range(2, 6) for each in drawn(part))}) == 250


def test_what_a_model_writes_runs_nothing(opened: Opened) -> None:
    page = opened.page
    # The last is a formula that can be read, so that it is seen when all have been tried.
    written = (*PAYLOADS, "$x^2$")
    page.route("**/v1/chat/completions", lambda route: answering(route, written))
    answer = ask(opened, PAYLOADS[0])
    assert answer.locator("[data-token]").count() >= len(written)
    answer.locator("math").last.wait_for()  # some of the drawn ones are formulas too
    harmless(opened)
    page.get_by_role("button", name="Tokens").click()
    assert answer.locator("[data-token]").count() == len(written)
    for index in (0, 20, 49):
        answer.locator("[data-token]").nth(index).click()
        page.get_by_role("complementary", name="Token").get_by_text("Close").click()
    harmless(opened)
    page.get_by_role("button", name="Tokens").click()


def test_what_a_server_says_runs_nothing(opened: Opened) -> None:
    fault = {"error": {"message": "\n".join(PAYLOADS)}}
    opened.page.route("**/v1/chat/completions", lambda route: route.fulfill(status=400, json=fault))
    answer = ask(opened, "\n".join(PAYLOADS))
    assert answer.get_by_role("alert").inner_text().count("window.ran") > 40
    harmless(opened)


def test_what_a_file_or_a_name_says_runs_nothing(opened: Opened) -> None:
    page = opened.page
    turns = [
        {"id": str(index), "parent": str(index - 1) if index else None, "text": text}
        | {"role": "assistant" if index % 2 else "user", "trace": text, "finish": text}
        for index, text in enumerate(PAYLOADS)
    ]
    title = f"{PAYLOADS[0]} in a file"
    chat = {"id": PAYLOADS[1], "title": title, "changed": 1e13, "leaf": "49", "turns": turns}
    settings = {"system": PAYLOADS[2], "stop": [PAYLOADS[3]], "tools": PAYLOADS[4]}
    file = {"kind": "cutaway-chats", "version": 1, "chats": [chat | {"settings": settings}]}
    page.locator("input[type=file]").set_input_files(
        {"name": PAYLOADS[1], "mimeType": "application/json", "buffer": json.dumps(file).encode()}
    )
    page.get_by_role("navigation").get_by_role("button", name=title, exact=True).click()
    page.get_by_role("article", name="Model").nth(24).wait_for()
    page.get_by_role("button", name="Settings").click()
    harmless(opened)
    page.get_by_role("button", name=f"Delete {title}").click()
    page.get_by_role("button", name="Delete", exact=True).click()
    assert page.get_by_role("article").count() == 0
    ran(len(PAYLOADS))
