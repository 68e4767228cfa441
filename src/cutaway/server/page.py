"""The page's files, as they were built: read once, served from memory with types and policy.

It knows nothing of what the page shows. Without built files it says how to build them.
"""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from fastapi import APIRouter
from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest
from starlette.responses import PlainTextResponse, RedirectResponse, Response

from cutaway.server.entry.browsers import Browsers

BUILT = Path(__file__).resolve().parent.parent / "_web"

# Our own files alone, no inline code, nothing from elsewhere. HTML passes by two named policies:
# the framework's templates, which its compiler wrote, and Markdown that DOMPurify made safe.
POLICY = "; ".join(
    (
        *("default-src 'none'", "script-src 'self'", "style-src 'self'", "img-src 'self'"),
        *("font-src 'self'", "connect-src 'self'", "base-uri 'none'", "form-action 'none'"),
        "frame-ancestors 'none'",
        *("require-trusted-types-for 'script'", "trusted-types svelte-trusted-html dompurify"),
    )
)
HEADERS = {
    "content-security-policy": POLICY,
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
}
_MIN_PACKED = 1024  # what fits a packet or two gains nothing by compression

UNBUILT = """\
Cutaway's page is not built. In a checkout, with Node 20.19 or newer:

    make web

and start the server again. The API under /v1 works without it.
"""


@dataclass(frozen=True)
class File:
    """A file as it is sent. packed: the same by gzip, where that is smaller."""

    data: bytes
    packed: bytes | None
    kind: str
    tag: str


def is_page(path: str) -> bool:
    """Whether a path is one of the page's files, which hold no data and need no key."""
    return path == "/" or path.startswith("/assets/")


def router(browsers: Browsers) -> APIRouter:
    """The routes of the page."""
    routes = APIRouter(include_in_schema=False)

    @routes.get("/")
    async def index(http: HttpRequest, once: str | None = None) -> Response:
        if once is not None:
            return _let_in(browsers, once)
        file = files_in(BUILT).get("index.html")
        if file is None:
            return PlainTextResponse(UNBUILT, status_code=503, headers=HEADERS)
        return _sent(http, file, caching="no-cache")

    @routes.get("/assets/{name}")
    async def asset(http: HttpRequest, name: str) -> Response:
        file = files_in(BUILT).get(f"assets/{name}")
        if file is None:
            raise HTTPException(404)
        # Names hold a checksum of what is in them, but the icon's.
        is_lasting = not name.endswith(".svg")
        lasting = "public, max-age=31536000, immutable"
        return _sent(http, file, caching=lasting if is_lasting else "no-cache")

    return routes


@cache
def files_in(folder: Path) -> dict[str, File]:
    """All files of a built page by their path within it; nothing else is ever served."""
    found = sorted(path for path in folder.rglob("*") if path.suffix in _TYPES)
    return {path.relative_to(folder).as_posix(): _read(path) for path in found}


def _read(path: Path) -> File:
    data = path.read_bytes()
    packed = gzip.compress(data, mtime=0) if len(data) >= _MIN_PACKED else data
    return File(
        data=data,
        packed=packed if len(packed) < len(data) else None,
        kind=_TYPES[path.suffix],
        tag=f'"{hashlib.sha256(data).hexdigest()[:32]}"',
    )


def _sent(http: HttpRequest, file: File, *, caching: str) -> Response:
    headers = {**HEADERS, "cache-control": caching, "etag": file.tag, "vary": "accept-encoding"}
    if http.headers.get("if-none-match") == file.tag:
        return Response(status_code=304, headers=headers)
    takes_packed = "gzip" in http.headers.get("accept-encoding", "")
    if file.packed is not None and takes_packed:
        headers["content-encoding"] = "gzip"
        return Response(file.packed, headers=headers, media_type=file.kind)
    return Response(file.data, headers=headers, media_type=file.kind)


def _let_in(browsers: Browsers, once: str) -> Response:
    """To the page without the link's secret in the address bar; a used link leads there too."""
    cookie = browsers.let_in(once)
    headers = {**HEADERS, **({} if cookie is None else {"set-cookie": cookie})}
    return RedirectResponse("/", status_code=303, headers=headers)
