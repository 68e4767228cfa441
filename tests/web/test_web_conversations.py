"""Branches, conversations that are kept, settings and tools on the page, over a real server."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from test_web_chat import ask, changing

if TYPE_CHECKING:
    from playwright.sync_api import Route

    from conftest import Opened

pytestmark = pytest.mark.slow


def test_an_answer_is_branched_at_a_token_and_both_are_kept(opened: Opened) -> None:
    page = opened.page
    bodies = changing(opened, max_tokens=12, ignore_eos=True)
    page.get_by_role("button", name="Tokens").click()
    answer = ask(opened, "branch here")
    for piece in answer.locator("[data-token]").all():
        width = piece.bounding_box()
        digits = len(piece.get_attribute("data-id") or "")
        assert width and width["width"] >= 5 * digits, "its id has room below it"
    mark = answer.locator("[data-token]").nth(1)
    at = int(mark.get_attribute("data-token") or "")
    mark.dispatch_event("click")  # a token of an untrained model may take no room
    card = page.get_by_role("complementary", name="Token")
    card.locator("th button").first.click()
    page.get_by_text("2 / 2").wait_for()
    answer.get_by_role("button", name="Regenerate").wait_for()
    assert page.get_by_text(f"Branched at token {at + 1}").count() == 1
    begun = bodies[1]["cutaway"]["answer_token_ids"]
    assert len(begun) == at + 1 and bodies[0]["messages"] == bodies[1]["messages"]
    page.get_by_role("button", name="Earlier answer").click()
    page.get_by_text("1 / 2").wait_for()
    page.reload()
    page.get_by_text("1 / 2").wait_for()
    page.wait_for_function("() => document.querySelectorAll('[data-token]').length > 1")
    page.get_by_role("button", name="Later answer").click()
    page.get_by_text(f"Branched at token {at + 1}").wait_for()
    page.get_by_role("button", name="Tokens").click()


def test_a_question_said_otherwise_is_a_branch_and_conversations_are_found(opened: Opened) -> None:
    page = opened.page
    bodies = changing(opened, max_tokens=3, ignore_eos=True)
    ask(opened, "a quince on the table")
    page.keyboard.press("ArrowUp")
    page.get_by_label("said otherwise").fill("a medlar on the table")
    page.keyboard.press("Enter")
    page.get_by_text("2 / 2").wait_for()
    page.get_by_role("button", name="Regenerate").wait_for()
    assert [body["messages"][-1]["content"] for body in bodies][-1] == "a medlar on the table"
    page.keyboard.press("Control+k")
    page.keyboard.type("MEDLAR quince")
    listed = page.get_by_role("navigation").get_by_role("listitem")
    assert listed.count() == 1
    page.get_by_role("button", name="Rename a quince").click()
    page.get_by_label("Name of the conversation").fill("fruit")
    page.keyboard.press("Enter")
    page.keyboard.press("Control+Shift+o")
    assert page.get_by_role("article").count() == 0
    page.get_by_role("button", name="fruit", exact=True).click()
    page.get_by_text("2 / 2").wait_for()


def test_settings_are_sent_and_told_where_they_are_out_of_range(opened: Opened) -> None:
    page = opened.page
    bodies = changing(opened, max_tokens=3)
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("System prompt").fill("Be brief.")
    page.get_by_label("Temperature", exact=True).fill("9")
    page.keyboard.press("Tab")
    page.get_by_text("Temperature must be a number from 0 to 5.").wait_for()
    page.get_by_label("Temperature", exact=True).fill("0.5")
    page.get_by_label("Top k", exact=True).fill("7")
    page.get_by_label("Held to").select_option("choice")
    page.get_by_label("One of these lines", exact=True).fill("yes\nno")
    answer = ask(opened, "well?")
    sent = bodies[0]
    assert sent["messages"][0] == {"role": "system", "content": "Be brief."}
    assert (sent["temperature"], sent["top_k"]) == (0.5, 7)
    assert sent["structured_outputs"] == {"choice": ["yes", "no"]}
    assert answer.get_by_role("group", name="Answer").inner_text().strip() in ("yes", "no", "ye")


def test_calls_of_tools_wait_for_their_results_outside_the_model(opened: Opened) -> None:
    page = opened.page
    bodies: list[Any] = []

    def answering(route: Route) -> None:
        bodies.append(json.loads(route.request.post_data or ""))
        calls = [
            {"index": index, "id": f"call_{name}", "function": {"name": name, "arguments": "{}"}}
            for index, name in enumerate(("now", "here"))
        ]
        delta = {"content": "noon"} if len(bodies) > 1 else {"tool_calls": calls}
        choice = {"delta": delta, "logprobs": None, "finish_reason": "stop"}
        body = f"data: {json.dumps({'choices': [choice]})}\n\ndata: [DONE]\n\n"
        route.fulfill(content_type="text/event-stream", body=body)

    page.route("**/v1/chat/completions", answering)
    ask(opened, "what time is it?")
    page.get_by_label("Result of now").fill("12:00")
    page.keyboard.press("Enter")
    page.get_by_role("article", name="Tool").wait_for()
    assert len(bodies) == 1, "the model goes on when every call is answered"
    page.get_by_label("Result of here").fill("Kyoto")
    page.keyboard.press("Enter")
    page.get_by_text("noon").wait_for()
    told = bodies[1]["messages"]
    assert [message["role"] for message in told] == ["user", "assistant", "tool", "tool"]
    assert told[2] == {"role": "tool", "content": "12:00", "tool_call_id": "call_now"}
    assert told[3] == {"role": "tool", "content": "Kyoto", "tool_call_id": "call_here"}
    assert told[1]["tool_calls"][0]["function"] == {"name": "now", "arguments": "{}"}


def test_a_narrow_window_closes_the_list_no_longer_than_it_is_narrow(opened: Opened) -> None:
    page = opened.page
    listed = page.get_by_role("navigation", name="Conversations")
    listed.wait_for()
    page.set_viewport_size({"width": 360, "height": 740})
    listed.wait_for(state="detached")
    page.set_viewport_size({"width": 1280, "height": 800})
    listed.wait_for()
    page.set_viewport_size({"width": 360, "height": 740})
    page.reload()
    page.get_by_role("button", name="Conversations").click()
    listed.get_by_role("button", name="Close the list").click()
    page.set_viewport_size({"width": 1280, "height": 800})
    listed.wait_for()
    page.get_by_role("button", name="Conversations").click()
    page.reload()
    page.get_by_role("button", name="Send").wait_for()
    assert listed.count() == 0, "closed by hand where there is room for it: that is kept"
    page.get_by_role("button", name="Conversations").click()
    listed.wait_for()
