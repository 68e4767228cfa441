"""A trace file and the page's own viewer in one document, which opens without any server.

The viewer is built with the page: one script and one style, which the document's policy names by
their hashes, so that nothing else in it can run. The file stands beside them as base64.
"""

from __future__ import annotations

import base64
from pathlib import Path

from cutaway.core.errors import TraceFileError

VIEWER = Path(__file__).resolve().parent.parent / "_web" / "viewer.html"

_PLACE = '<script type="text/plain" id="trace">'


def with_viewer(data: bytes, *, file: str) -> str:
    """The bytes of a sound trace file as a document.

    file: its name as the user gave it.
    Raises: TraceFileError where this installation has no built page.
    """
    if not VIEWER.is_file():
        raise TraceFileError(
            "cannot be made into a page, for this installation has none: build it by `make web` "
            "in a checkout with Node, or write `--to html`, which has pictures without script.",
            file=file,
        )
    before, place, behind = VIEWER.read_text(encoding="utf-8").partition(_PLACE)
    assert place, "the viewer was built with a place for a trace"
    return "".join((before, place, base64.b64encode(data).decode("ascii"), behind))
