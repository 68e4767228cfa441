"""The page's files by HTTP, and the one-time link that lets a browser in."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from server_app import ORIGIN, chat

from cutaway.server import page
from cutaway.server.entry.auth import Keys
from cutaway.server.route_context import Context

KEY = "k" * 32
SCRIPT = b"export const words = 'abc';\n" * 100


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A built page of three files, and one beside them that is none of it."""
    folder = tmp_path / "_web"
    (folder / "assets").mkdir(parents=True)
    (folder / "index.html").write_text("<!doctype html><title>Cutaway</title>", encoding="utf-8")
    (folder / "assets" / "index-a1.js").write_bytes(SCRIPT)
    (folder / "assets" / "icon.svg").write_text("<svg/>", encoding="utf-8")
    (tmp_path / "secret.js").write_text("classified", encoding="utf-8")
    monkeypatch.setattr(page, "BUILT", folder)
    return folder


def get(asked: Callable[..., Any], path: str, **options: Any) -> httpx2.Response:
    """One GET of a server whose keys nobody sends."""

    async def ask(http: httpx2.AsyncClient, _: Context) -> httpx2.Response:
        return await http.get(path, **options)

    return asked(ask, keys=Keys([("alice", KEY)]))


@pytest.mark.usefixtures("built")
def test_the_page_needs_no_key_and_has_a_strict_policy(asked: Callable[..., Any]) -> None:
    answer = get(asked, "/")
    assert answer.status_code == 200 and "<title>Cutaway" in answer.text
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["x-content-type-options"] == "nosniff"
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none';") and "frame-ancestors 'none'" in policy
    assert not any(word in policy for word in ("unsafe", "http", "data:", "*"))


@pytest.mark.usefixtures("built")
def test_assets_are_typed_kept_for_long_and_packed(asked: Callable[..., Any]) -> None:
    answer = get(asked, "/assets/index-a1.js", headers={"accept-encoding": "gzip"})
    assert answer.headers["content-type"] == "text/javascript; charset=utf-8"
    assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert answer.headers["content-encoding"] == "gzip" and answer.content == SCRIPT
    assert int(answer.headers["content-length"]) == len(gzip.compress(SCRIPT, mtime=0))
    plain = get(asked, "/assets/index-a1.js", headers={"accept-encoding": "identity"})
    assert "content-encoding" not in plain.headers and plain.content == SCRIPT
    icon = get(asked, "/assets/icon.svg")
    assert icon.headers["content-type"] == "image/svg+xml"
    assert icon.headers["cache-control"] == "no-cache", "its name does not change with it"


@pytest.mark.usefixtures("built")
def test_what_a_browser_has_already_is_not_sent_again(asked: Callable[..., Any]) -> None:
    tag = get(asked, "/").headers["etag"]
    again = get(asked, "/", headers={"if-none-match": tag})
    assert again.status_code == 304 and again.content == b""
    assert "content-security-policy" in again.headers


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize(
    "path", ["/assets/none.js", "/assets/..%2f..%2fsecret.js", "/assets/%2e%2e/index.html"]
)
def test_nothing_else_is_served_as_a_file(asked: Callable[..., Any], path: str) -> None:
    answer = get(asked, path)
    assert answer.status_code in (401, 404) and "classified" not in answer.text


def test_without_its_files_it_says_how_to_build_them_and_the_api_works(
    asked: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "BUILT", tmp_path / "nothing")

    async def ask(http: httpx2.AsyncClient, _: Context) -> list[httpx2.Response]:
        return [await http.get("/"), await http.post("/v1/chat/completions", json=chat())]

    unbuilt, api = asked(ask)
    assert unbuilt.status_code == 503 and "make web" in unbuilt.text
    assert api.status_code == 200


@pytest.mark.usefixtures("built")
def test_a_link_lets_one_browser_in_once(asked: Callable[..., Any]) -> None:
    keys = Keys([("alice", KEY)])
    link = f"/{keys.browsers.new_link()}"

    async def ask(http: httpx2.AsyncClient, _: Context) -> list[Any]:
        before = await http.get("/v1/models")
        first = await http.get(link)
        cookie = first.headers["set-cookie"]
        assert "HttpOnly" in cookie and "SameSite=Strict" in cookie
        http.cookies.clear()
        second = await http.get(link)
        name_and_value = {"cookie": f"other=1; {cookie.partition(';')[0]}"}
        let_in = await http.post("/v1/chat/completions", json=chat(), headers=name_and_value)
        foreign = {**name_and_value, "origin": "http://127.0.0.1:9"}
        refused = await http.post("/v1/chat/completions", json=chat(), headers=foreign)
        wrong = await http.get("/v1/models", headers={"cookie": "cutaway_browser=guess"})
        return [before, first, second, let_in, refused, wrong]

    before, first, second, let_in, refused, wrong = asked(ask, keys=keys)
    assert before.status_code == 401 and wrong.status_code == 401
    assert first.status_code == 303 and first.headers["location"] == "/"
    assert first.headers["cache-control"] == "no-store"
    assert second.status_code == 303 and "set-cookie" not in second.headers
    assert let_in.status_code == 200
    assert refused.status_code == 403, "a cookie goes to every port of a host; Origin tells"


@pytest.mark.usefixtures("built")
def test_the_page_may_not_be_posted_to(asked: Callable[..., Any]) -> None:
    async def ask(http: httpx2.AsyncClient, _: Context) -> httpx2.Response:
        return await http.post("/", json={}, headers={"origin": ORIGIN})

    assert asked(ask, keys=Keys([("alice", KEY)])).status_code == 401
