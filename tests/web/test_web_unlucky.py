"""The page in browsers that keep nothing, or hold what is damaged: it goes on all the same."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from test_web_chat import ask, changing
from test_web_stream import answers

if TYPE_CHECKING:
    from conftest import Opened

pytestmark = pytest.mark.slow

LEFT = "() => Object.keys(localStorage).filter((key) => key.startsWith('left/'))"
LEAVE = "left => left.forEach((text, at) => localStorage.setItem(`left/${at}`, text))"

# As Chromium does where cookies are blocked, and where a site's room is used up.
BLOCKED = """for (const name of ['localStorage', 'indexedDB']) Object.defineProperty(window, name, {
  get() { throw new DOMException('Access is denied for this document.', 'SecurityError'); } });"""
FULL = """
const full = () => { throw new DOMException('No room is left.', 'QuotaExceededError'); };
Storage.prototype.setItem = full; IDBObjectStore.prototype.put = full;"""


def faults(opened: Opened) -> list[str]:
    return [line for line in opened.said if line.startswith(("fault", "error"))]


@pytest.mark.parametrize("lacks", [BLOCKED, FULL], ids=["blocked", "full"])
def test_a_browser_that_keeps_nothing_shows_everything(opened: Opened, lacks: str) -> None:
    page = opened.page
    page.add_init_script(lacks)
    page.reload()
    changing(opened, max_tokens=4, ignore_eos=True)
    assert ask(opened).locator("[data-token]").count() > 0
    page.get_by_role("button", name="Confidence").click()
    page.get_by_role("button", name="Confidence", pressed=True).wait_for()
    answers(page).get_by_role("button", name="Look inside").click()
    page.get_by_role("region", name="Cutaway").wait_for()
    page.goto(opened.url + "#/room/tour")
    page.get_by_label("Your prompt").wait_for()
    if lacks == FULL:
        page.keyboard.press("Escape")
        page.get_by_text("This browser could not keep it").first.wait_for()
    assert faults(opened) == []


def test_what_is_damaged_in_the_browser_stands_in_nobodys_way(opened: Opened) -> None:
    page = opened.page
    changing(opened, max_tokens=4, ignore_eos=True)
    ask(opened, "before the damage")
    chat = page.url.partition("#/c/")[2].partition("/")[0]
    odd = {"chat": chat, "turn": {"id": "x"}, "from": "?", "scored": 1}
    page.evaluate(LEAVE, ['{"chat":', "null", "7", json.dumps({"chat": chat}), json.dumps(odd)])
    # As another version may have kept it: a turn that is none, settings that are none.
    page.evaluate(
        """id => new Promise((done, fail) => {
          const opening = indexedDB.open('cutaway-chats');
          opening.onsuccess = () => {
            const store = opening.result.transaction('all', 'readwrite').objectStore('all');
            store.get(id).onsuccess = ({ target }) => {
              const chat = target.result;
              store.put({ ...chat, turns: [null, ...chat.turns, 7], settings: null }, id);
              store.put({ id: 'odd', title: 5, turns: 'none' }, 'odd').onsuccess = () => done();
            };
          };
          opening.onerror = fail;
        })""",
        chat,
    )
    page.reload()
    page.get_by_role("article", name="You").get_by_text("before the damage").wait_for()
    assert page.evaluate(LEFT) == []
    ask(opened, "after the damage")
    page.reload()
    page.get_by_role("article", name="You").get_by_text("after the damage").wait_for()
    assert faults(opened) == [] and page.get_by_text("This browser").count() == 0


def test_a_server_that_is_gone_is_said_to_be_and_asked_for_until_one_is_there(
    opened: Opened,
) -> None:
    page = opened.page
    field, send = page.get_by_label("Your message"), page.get_by_role("button", name="Send")
    changing(opened, max_tokens=4, ignore_eos=True)
    ask(opened, "while it is there")
    page.route("**/v1/**", lambda route: route.abort("connectionrefused"))
    field.fill("while it is gone")
    field.press("Enter")
    told = answers(page).nth(1).get_by_role("alert")
    told.get_by_text("The server does not answer.").wait_for()
    page.get_by_role("form", name="Write").get_by_text("The server does not answer.").wait_for()
    field.fill("when it is back")
    assert send.is_disabled()
    # Before the other goes: a page that asked in between would find the server that was there.
    other = {"data": [{"id": "another-model", "max_model_len": 16384}]}
    page.route("**/v1/models", lambda route: route.fulfill(json=other))
    page.unroute("**/v1/**")
    page.get_by_role("button", name="Send", disabled=False).wait_for()
    assert page.get_by_placeholder("Message another-model").input_value() == "when it is back"
