"""The tour from attention on: what chapters tell is what Python makes of the same payloads."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from test_web_chat import SEED, ask, changing
from test_web_cutaway import repeated, share

import tiny

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

    from conftest import Opened

pytestmark = pytest.mark.slow

NUM_TOKENS = 12
LONG = 16  # tokens that the chapter on the whole has written
LLAMA_70B = 70_553_706_496  # parameters, as tests/core/test_core_worked.py counts them


@dataclass
class Tour:
    """The tour over one answer of this page."""

    page: Page
    url: str
    trace: str

    def see(self, view: str, **places: Any) -> Any:
        """A view's payload, straight from the server."""
        where = f"{self.url}cutaway/v1/traces/{self.trace}/views"
        asked = {"accept": "application/json"}
        answer = self.page.request.post(where, data={"view": view, **places}, headers=asked)
        assert answer.ok, answer.text()
        return answer.json()["values"]

    def post(self, path: str, body: Any) -> Any:
        """The answer of a route."""
        answer = self.page.request.post(f"{self.url}{path}", data=body)
        assert answer.ok, answer.text()
        return answer.json()

    def ids(self, text: str) -> list[int]:
        """The tokens of a text."""
        return self.post("tokenize", {"prompt": text, "add_special_tokens": False})["tokens"]

    def loss(self, ids: list[int], *, first: int) -> float:
        """The mean surprise at ids from the first of them on, in nats."""
        model = self.page.request.get(f"{self.url}v1/models").json()["data"][0]["id"]
        body = {"model": model, "prompt": ids, "prompt_logprobs": 0, "max_tokens": 1}
        scores = self.post("v1/completions", body)["choices"][0]["prompt_logprobs"]
        pairs = list(zip(ids, scores, strict=True))[first:]
        return -sum(score[str(each)]["logprob"] for each, score in pairs) / len(pairs)

    def open(self, letter: str) -> Locator:
        """Turn to a chapter and wait for all that it measures by itself."""
        self.page.evaluate("hash => void (location.hash = hash)", f"#/room/tour-{letter}")
        dialog = self.page.get_by_role("dialog")
        dialog.locator(f"h3[data-chapter={letter}]").wait_for()
        dialog.get_by_text("Measured here:").first.wait_for()
        dialog.locator("article[data-view][aria-busy=false]").wait_for()
        assert dialog.get_by_role("alert").count() == 0
        return dialog

    def pull(self, chapter: Locator, value: str) -> str:
        """Run the lever; what it says."""
        lever = chapter.locator("#tour-lever")
        if lever.evaluate("field => field.tagName") == "SELECT":
            lever.select_option(value)
        else:
            lever.fill(value)
        chapter.get_by_role("button", name="Run", exact=True).click()
        chapter.get_by_role("button", name="Run", exact=True).wait_for()  # not while it runs
        said = chapter.locator("form", has_text="Try it").get_by_role("status")
        said.wait_for()
        return said.inner_text()

    def guess(self, chapter: Locator, value: float | str) -> str:
        """Answer the question; the verdict and what was measured."""
        if isinstance(value, str):
            chapter.get_by_role("radio", name=value, exact=True).check()
        else:
            chapter.locator("#tour-guess").fill(str(value))
        chapter.get_by_role("button", name="Measure it").click()
        chapter.get_by_role("button", name="Measure it").wait_for()
        said = chapter.locator("form", has_text="What do you think?").get_by_role("status")
        said.first.wait_for()
        return " ".join(said.all_inner_texts())


def looked_at(attention: Locator) -> int:
    """The position of the prompt that chapters look at, as the one on attention names it."""
    found = re.search(r"at (\d+) met", attention.inner_text())
    assert found is not None
    return int(found[1])


@pytest.fixture
def tour(opened: Opened) -> Tour:
    changing(opened, max_tokens=NUM_TOKENS, ignore_eos=True, temperature=0.8, seed=SEED)
    ask(opened, "What is it?")
    opened.page.get_by_role("button", name="Look inside").click()
    opened.page.locator("article[data-view=probabilities][aria-busy=false]").wait_for()
    found = next(re.search(r"traces/([^/]+)/views", url) for url in opened.asked[::-1])
    assert found is not None
    return Tour(opened.page, opened.url, found[1])


def test_attention_and_what_it_keeps(tour: Tour) -> None:
    chapter, cost = tour.open("h"), tour.see("cost")
    grows = cost["token_flops"][2] - cost["token_flops"][1]
    tokens = tour.see("tokens")
    matrices = cost["token_flops"][1] - grows * (tokens["num_prompt"] + 1)
    assert f"from {round(matrices / grows):,} tokens on comparing" in chapter.inner_text()
    parts = {each["name"]: each["flops"] for each in cost["stages"]}
    assert (
        f"{share(parts['attention'] / sum(parts.values()))} of this answer" in chapter.inner_text()
    )
    row = tour.see("arithmetic", layer=1, head=1, position=looked_at(chapter))
    said = tour.pull(chapter, "1.1")
    assert f"takes {share(max(row['weights']))} from" in said
    chapter.locator("figure").nth(1).wait_for()
    grid = tour.see("attention", position=looked_at(chapter))
    first = [weight for layer in grid["first"] for weight in layer]
    right = sum(weight >= 0.5 for weight in first)
    assert tour.guess(chapter, right).startswith(f"\u2713 Right. {right} of {len(first)}")
    tour.pull(chapter, "0.99")
    chapter.get_by_role("alert").wait_for()

    chapter, config = tour.open("i"), tiny.config()
    for number in ("98.2 %", "71.9 %", "93.3 %"):
        assert number in chapter.inner_text()
    heads, groups = config["num_attention_heads"], config["num_key_value_heads"]
    assert f"{heads} query heads read {groups} groups here" in chapter.inner_text()
    assert "Both read the notes of group 0, the same keys." in tour.pull(chapter, "1")
    kept = 2 * config["num_hidden_layers"] * groups * config["head_dim"] * 4  # float32
    assert tour.guess(chapter, 2**30 // kept * 1.1).startswith("\u2713")
    assert tour.guess(chapter, 2**30 // kept * 2).startswith("Not this time. ")


def test_feed_forward_logits_and_sampling(tour: Tour) -> None:
    place = {"position": looked_at(tour.open("h"))}
    chapter, net = tour.open("j"), tour.see("feedforward", **place)
    assert f"Here {net['inner']} for a row of {net['width']}: 2 times" in chapter.inner_text()
    assert str(tour.see("feedforward", layer=1, **place)["units"][0]) in tour.pull(chapter, "1")
    num_prompt = tour.see("tokens")["num_prompt"]
    lens = tour.see("lens", position=num_prompt - 1)
    middle = next(at for at, layer in enumerate(lens["layers"]) if layer + 1 >= 1)
    rank = lens["ranks"][middle][-1]
    said = tour.guess(chapter, "yes" if rank == 1 else "no")
    assert said.startswith("\u2713") and f"it is number {rank}," in said

    chapter, row = tour.open("k"), tour.see("probabilities")
    assert f"It gave {row['vocab_size']:,} shares" in chapter.inner_text()
    found = tour.see("probabilities", text="Zamboni")["lookups"][0]
    chained = 1.0
    for piece in found["pieces"]:
        chained *= piece["probability"]
    assert chained == pytest.approx(found["probability"], rel=1e-5)
    assert tour.pull(chapter, "Zamboni").count("\u00d7") >= len(found["pieces"]) - 1
    rows = [tour.see("logits", token=token) for token in range(8)]
    right = sum(max(each["logits"]) > each["logits"][each["recorded"]] for each in rows)
    assert tour.guess(chapter, right).startswith(f"\u2713 Right. {right} of 8")

    chapter, row = tour.open("l"), tour.see("sampling")
    kept = next(each["num_kept"] for each in row["strategies"] if each["name"] == "top_p 0.9")
    assert f"here {kept} of {tiny.BASE['vocab_size']} tokens" in chapter.inner_text()
    assert tour.pull(chapter, "0").startswith("Word for word the same.")
    ids = tour.see("tokens")["token_ids"][num_prompt:]
    single = repeated(ids)[0]
    said = tour.guess(chapter, 100 * single["num_again"] / single["num_all"])
    assert f"\u2713 Right. {share(single['num_again'] / single['num_all'])}" in said


def test_loop_cache_text_and_the_whole(tour: Tour) -> None:
    tokens = tour.see("tokens")
    num_prompt = tokens["num_prompt"]
    chapter, num_hit = tour.open("m"), tour.see("pages")["miss"]["num_hit"]
    before = f", {num_hit} of them for an earlier answer" if num_hit else ""
    passed = f"The {num_prompt} tokens of the prompt passed once{before}; later passes computed 1"
    assert passed in chapter.inner_text()
    assert f"as id {tokens['token_ids'][num_prompt]}, place {num_prompt}" in chapter.inner_text()
    assert " goes on: " in tour.pull(chapter, "b")
    ended = "the number of tokens, or the reader"
    assert tour.guess(chapter, ended).startswith(f"\u2713 Right. After {NUM_TOKENS} tokens")

    chapter, cost = tour.open("n"), tour.see("cost")
    for bits in (16, 32, 4.5):
        assert f"{LLAMA_70B * bits / 8e9:.1f} GB" in chapter.inner_text()
    found = [int(each) for each in re.findall(r"\d+", tour.pull(chapter, "the same prompt"))[:3]]
    assert found[0] > 0 and found[0] + found[2] == found[1] == num_prompt
    said = tour.pull(chapter, "the same after other tokens")
    assert said.startswith(f"0 of {num_prompt + 4} tokens were found; {num_prompt + 4} were")
    each = {mode["name"]: mode["seconds"] / mode["num_tokens"] for mode in cost["modes"]}
    assert tour.guess(chapter, each["decode"] / each["prefill"]).startswith("\u2713")

    chapter, times = tour.open("p"), tour.see("timeline")
    assert "the very text that streamed" in chapter.inner_text()
    said = tour.pull(chapter, "\u6771")
    assert said == "3 tokens; 3 of them are no whole character alone: a reader would wait."
    passed = 100 * times["first_token"] / times["total"]
    assert tour.guess(chapter, passed).startswith("\u2713")

    chapter = tour.open("q")
    ids = tokens["token_ids"]
    loss = tour.loss(ids, first=num_prompt)
    assert f"its loss is {loss:.3g}: as unsure as between" in chapter.inner_text()
    said = tour.pull(chapter, "abc")
    assert said.startswith(f"A loss of {tour.loss(tour.ids('abc'), first=1):.3g} a token")
    sent = tour.loss(ids[:num_prompt], first=1)
    assert tour.guess(chapter, "the prompt" if sent > loss else "the answer").startswith("\u2713")
    runs = chapter.get_by_role("region", name="Recorded training")
    assert "Recorded, not this model" in runs.inner_text()

    chapter = tour.open("r")
    sent = tour.see("template")
    assert (
        f"{sent['num_tokens']} tokens. The next question sends them again" in chapter.inner_text()
    )
    assert "for the other 7" in tour.pull(chapter, "8")
    assert tour.guess(chapter, LONG).startswith(f"\u2713 Right. {LONG}.")


def test_drafts_on_the_gravity_question(tour: Tour) -> None:
    """Each drafted token with its verdict; as many as the control says; no token changes."""
    chapter = tour.open("o")
    told = re.search(r"At temperature 0 (\d+) of (\d+) stand", chapter.inner_text())
    assert told is not None and int(told[2]) == len("Gravity is a")  # bytes are its tokens
    assert "3.36 tokens a pass" in chapter.inner_text()
    for length in (2, 5):
        said = tour.pull(chapter, str(length))
        assert said.startswith("|".join("Gravity"[:length])) and f" of {length} stand." in said
        shown = chapter.locator("form", has_text="Try it").inner_text()
        assert shown.count("%") >= length, "each token has its share"
    assert tour.guess(chapter, "none").startswith("\u2713 Right. 0 tokens of ")
