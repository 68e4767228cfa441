"""Published chat templates with twelve histories as clients send them, with and without tools.

python bench/templates.py FOLDER [--only TEXT] [--slice 0/2] [--json FILE]

FOLDER is searched for *.jinja, and for *.json with a chat_template (or a table of templates by
name); the same text counts once. Each message and part has a word that stands nowhere else: all
words reach the prompt (whole), or the history is refused by the name of its message (refused) or in
the words of the template (by itself). A row per template; the exit code is 1 where a word is LOST.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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


def summarize(rows: list[dict[str, Any]]) -> str:
    """How many histories came to what, in one sentence."""
    total = Counter({what: sum(row.get(what, 0) for row in rows) for what in RESULTS})
    some = sum(1 for row in rows if row.get("whole"))
    told = ", ".join(f"{total[what]:,} {what}" for what in RESULTS)
    return f"{len(rows)} templates, {some} with whole histories; histories: {told}"


def table(rows: list[dict[str, Any]]) -> str:
    """The results as a page: the sentence, and a row per template."""
    lines = ["# Published chat templates", "", f"{summarize(rows)}.", ""]
    lines += ["`python bench/templates.py FOLDER` says what each word means.", ""]
    lines += [f"| template | {' | '.join(RESULTS)} | |", "|---|---|---|---|---|---|---|"]
    for row in sorted(rows, key=lambda row: row["template"]):
        counts = " | ".join(str(row.get(what, "")) for what in RESULTS)
        why = "; ".join(row["wrong"])[:160].replace("|", "\\|")
        lines.append(f"| {row['template']} | {counts} | {why} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("folder", type=Path)
    options.add_argument("--only", default="", help="templates whose path has this in it")
    options.add_argument("--slice", default="0/1", help="K/N: every N-th from the K-th")
    options.add_argument("--rows", type=Path, help="take the rows of such a file, and try nothing")
    options.add_argument("--markdown", type=Path, help="write the table here")
    options.add_argument("--json", type=Path, help="add the rows to this file, one JSON a line")
    asked = options.parse_args()
    first, step = map(int, asked.slice.split("/"))
    each = [pair for pair in find_templates(asked.folder) if asked.only in pair[0]][first::step]
    rows: list[dict[str, Any]] = []
    if asked.rows is not None:
        rows, each = list(map(json.loads, asked.rows.read_text("utf-8").splitlines())), []
    for name, source in each:
        seen, wrong = try_template(source)
        rows.append({"template": name, **seen, "wrong": wrong})
        if asked.json is not None:
            with asked.json.open("a", encoding="utf-8") as opened:
                opened.write(json.dumps(rows[-1], ensure_ascii=False) + "\n")
        counts = ", ".join(f"{count} {what}" for what, count in seen.most_common())
        print(f"{name}: {counts} {'; '.join(wrong)[:300]}", flush=True)
    print(summarize(rows))
    if asked.markdown is not None:
        asked.markdown.write_text(table(rows), encoding="utf-8")
    return 1 if any(row.get("LOST") for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
