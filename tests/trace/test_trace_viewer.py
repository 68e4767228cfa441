"""A trace within the page's viewer: what is inlined is base64, under a policy of hashes."""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path

import pytest

from cutaway.core.errors import TraceFileError
from cutaway.trace import viewer
from cutaway.trace.viewer import with_viewer

HOSTILE = b"</script><script>window.ran = 1</script><!--"


@pytest.fixture
def built() -> str:
    if not viewer.VIEWER.is_file():
        pytest.skip("the page is not built: make web")
    return viewer.VIEWER.read_text(encoding="utf-8")


def test_the_file_comes_back_and_nothing_else_is_changed(built: str) -> None:
    page = with_viewer(HOSTILE, file="a.cutaway")
    found = re.search(r'id="trace">([A-Za-z0-9+/=]+)</script>', page)
    assert found is not None and base64.b64decode(found[1]) == HOSTILE
    assert page.replace(found[1], "") == built


def test_the_policy_names_script_and_style_by_hash_and_nothing_else(built: str) -> None:
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', built)
    assert policy is not None and policy[1].startswith("default-src 'none'; ")
    assert not re.search(r"unsafe|https?:|data:|blob:|\*|'self'", policy[1])
    for tag in ("script", "style"):
        (text,) = re.findall(rf"<{tag}>(.*?)</{tag}>", built, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy[1]
    assert not re.search(r"<(link|img|iframe|object|embed|base)\b", built)
    assert not re.search(r'\b(src|href)="', built.partition("<script>")[0])


def test_without_a_built_page_it_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(viewer, "VIEWER", tmp_path / "viewer.html")
    with pytest.raises(TraceFileError, match=r"^a\.cutaway: .*make web.*--to html"):
        with_viewer(b"", file="a.cutaway")
