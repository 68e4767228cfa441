"""What looks over the page: axe in a browser, svelte-check over its sources, and that they do."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from test_web_chat import ask, changing

from house_tree import ROOT

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from conftest import Opened

pytestmark = pytest.mark.slow

WEB = ROOT / "web"
MODULES = WEB / "node_modules"
RUN = "async () => (await axe.run(document)).violations"


@pytest.fixture
def axe() -> str:
    """The source of axe; where it is missing the test is skipped, in CI it fails."""
    return found("axe-core/axe.min.js").read_text(encoding="utf-8")


def found(name: str) -> Path:
    """A file that npm installed."""
    path = MODULES / name
    if not path.exists():
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"{name} is missing: make web")
    return path


def violations(page: Page, axe: str) -> list[str]:
    """What axe has against the page as it stands: rule, weight, and the elements.

    A figure that comes out of its haze is pale for a fifth of a second: what moves has come to
    rest before anything is judged.
    """
    page.wait_for_function(
        "() => document.querySelectorAll('article[aria-busy=true]').length === 0 &&"
        " !document.getAnimations().some((each) => each instanceof CSSTransition"
        " && each.playState === 'running')"
    )
    page.evaluate(axe)
    return [
        f"{rule['id']} ({rule['impact']}): {[node['target'] for node in rule['nodes']]}"
        for rule in page.evaluate(RUN)
    ]


@pytest.mark.parametrize("width", [1280, 360])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_has_nothing_against_it(opened: Opened, axe: str, scheme: Any, width: int) -> None:
    page = opened.page
    page.set_viewport_size({"width": width, "height": 740})
    page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    assert violations(page, axe) == [], "before anything was said"
    changing(opened, max_tokens=40, ignore_eos=True)
    page.get_by_role("button", name="Confidence").click()
    ask(opened, "What is gravity?").locator("[data-token]").nth(4).hover()
    page.get_by_role("complementary", name="Token").wait_for()
    assert violations(page, axe) == [], "with an answer and the card of a token"
    page.unroute("**/v1/chat/completions")
    changing(opened, max_tokens=-1)
    ask(opened)
    assert violations(page, axe) == [], "with a refusal"


def test_axe_is_looking(opened: Opened, axe: str) -> None:
    opened.page.evaluate(
        """() => {
          const pale = document.createElement('p');
          pale.textContent = 'pale';
          pale.style.color = '#eee';
          pale.style.background = '#fff';
          document.querySelector('main').append(pale, document.createElement('button'));
        }"""
    )
    rules = {each.partition(" ")[0] for each in violations(opened.page, axe)}
    assert {"button-name", "color-contrast"} <= rules


def checked(folder: Path) -> subprocess.CompletedProcess[str]:
    """svelte-check as `npm run check` calls it, over the sources in a folder."""
    script = json.loads((WEB / "package.json").read_text(encoding="utf-8"))["scripts"]["check"]
    command = str(found(".bin/svelte-check"))
    return subprocess.run(
        [command, *script.split()[1:]], cwd=folder, capture_output=True, text=True, check=False
    )


def test_svelte_check_is_looking(tmp_path: Path) -> None:
    """As it is called over the page: the same words and settings, over one faulty file."""
    folder = tmp_path / "web"
    (folder / "page" / "chat").mkdir(parents=True)
    for name in ("package.json", "tsconfig.json", "vite.config.ts"):
        shutil.copy(WEB / name, folder)
    (folder / "node_modules").symlink_to(MODULES)
    with (folder / "page" / "chat" / "Ribbon.svelte").open("w", encoding="utf-8") as file:
        file.write("<script module lang='ts'>export const three: number = 'three';</script>")
        file.write("<img src='x.svg' />")
    done = checked(folder)
    assert done.returncode != 0
    assert "Type 'string' is not assignable to type 'number'" in done.stdout
    assert "a11y_missing_attribute" in done.stdout
