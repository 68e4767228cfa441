"""Published chat templates with twelve histories as clients send them, with and without tools.

python bench/templates.py FOLDER [--only TEXT] [--slice 0/2] [--json FILE]

FOLDER is searched for *.jinja, and for *.json with a chat_template (or a table of templates by
name); the same text counts once. Each message and part has a word that stands nowhere else: all
words reach the prompt (whole), or the history is refused by the name of its message (refused) or in
the words of the template (by itself). A row per template; the exit code is 1 where a word is LOST.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from published.rows import Row, command_line, finish, rows_of

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests" / "text")]

LEAST_CHARACTERS = 20


def find_templates(folder: Path) -> Iterator[tuple[str, str]]:
    """Name and text of each template, each text once, in the order of their paths."""
    seen: set[str] = set()
    for path in sorted(folder.rglob("*")):
        if not path.is_file() or path.suffix not in (".jinja", ".json"):
            continue
        for name, text in templates_of(path):
            digest = hashlib.sha256(text.encode()).hexdigest()
            if len(text) >= LEAST_CHARACTERS and digest not in seen:
                seen.add(digest)
                yield f"{path.relative_to(folder)}{name}", text


def templates_of(path: Path) -> Iterator[tuple[str, str]]:
    """The template that a file is, or those that its JSON holds."""
    text = path.read_text(encoding="utf-8", errors="replace")
    if path.suffix == ".jinja":
        yield "", text
        return
    try:
        root: Any = json.loads(text)
    except ValueError:
        return
    if not isinstance(root, dict):
        return
    given = root.get("chat_template", root)
    if isinstance(given, str):
        given = {"": given}
    elif isinstance(given, list):
        given = {each.get("name"): each.get("template") for each in given}
    for name, each in given.items():
        if isinstance(each, str) and "{%" in each:
            yield f":{name}" if name else "", each


def try_template(source: str) -> tuple[Counter[str], list[str]]:
    """What came of each history, and what was lost or went wrong."""
    from histories import HISTORIES, TOOL, TOOL_WORD

    from cutaway.core.errors import RequestError, TemplateError
    from cutaway.text.chat_messages import from_dicts
    from cutaway.text.reach import render_whole
    from cutaway.text.template import ChatTemplate

    seen: Counter[str] = Counter()
    wrong: list[str] = []
    try:
        template = ChatTemplate(source, bos_token="<s>", eos_token="</s>")
    except TemplateError as error:
        return Counter({"not a template": 1}), [str(error)[:160]]
    for name, (messages, words) in HISTORIES.items():
        for tools in (None, [TOOL]):
            try:
                text = render_whole(template, from_dicts(messages), tools=tools).text
            except RequestError as error:
                if error.param == "tools" or str(error).startswith("messages["):
                    seen["refused"] += 1
                else:
                    seen["LOST"] += 1
                    wrong.append(f"{name}: refused without its place: {error}")
                continue
            except TemplateError:
                seen["by itself"] += 1
                continue
            wanted = [*words, TOOL_WORD] if tools else words
            missing = [word for word in wanted if word not in text.lower()]
            seen["LOST" if missing else "whole"] += 1
            wrong += [f"{name}: {missing}"] if missing else []
    return seen, wrong


RESULTS = ("whole", "refused", "by itself", "LOST", "not a template")


def summarize(rows: list[Row]) -> str:
    """How many histories came to what, in one sentence."""
    total = Counter({what: sum(row.get(what, 0) for row in rows) for what in RESULTS})
    some = sum(1 for row in rows if row.get("whole"))
    told = ", ".join(f"{total[what]:,} {what}" for what in RESULTS)
    return f"{len(rows)} templates, {some} with whole histories; histories: {told}"


def tell(row: Row) -> str:
    """A row as a line."""
    counts = ", ".join(f"{row[what]} {what}" for what in RESULTS if row.get(what))
    return f"{row['template']}: {counts} {'; '.join(row['wrong'])}"


def main() -> int:
    asked = command_line(__doc__).parse_args()

    def try_one(name: str, source: str) -> Row:
        seen, wrong = try_template(source)
        return {"template": name, **seen, "wrong": wrong}

    rows = rows_of(asked, find_templates(asked.folder), try_one, tell=tell)
    finish(
        asked,
        "Published chat templates",
        summarize(rows),
        script="bench/templates.py",
        head=("template", *RESULTS, ""),
        cells=(
            (
                row["template"],
                *(row.get(what, "") for what in RESULTS),
                "; ".join(row["wrong"])[:160],
            )
            for row in sorted(rows, key=lambda row: row["template"])
        ),
    )
    return 1 if any(row.get("LOST") for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
