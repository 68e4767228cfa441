"""Published tokenizers, ours beside the packages that their makers use, on random strings.

python bench/tokenizer_files.py FOLDER [--texts 10000] [--seed 17] [--slice 0/4] [--markdown FILE]

FOLDER is searched for tokenizer.json, SentencePiece models, and rank files whose name tells their
encoding. Files with the same content count once. Each is loaded by us and by `tokenizers`,
`sentencepiece` or `tiktoken`; every text is encoded twice, with names of control tokens as plain
text and as tokens, and every fourth is decoded. Tokens that only the files beside name as control
are added there, as transformers does. Where theirs makes a control token, or a byte, of plain text
that spells its name, ours must not, and the rest of the text is compared. Theirs decodes an added
token whose characters are all signs of bytes (as é is that of E9) as these bytes, and loses it;
ours must give back the token's name, and ids that come back. How many texts that were is told.
A line for each: equal, refused (and why), or DIFFERS (and the shortest text that does); the exit
code is 1 where anything differs.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from published.rows import Row, command_line, finish, rows_of

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests"), str(ROOT / "tests" / "tokens")]

Ids = list[list[int]]
MOST_WORDS = 9


ODD = " \n\r\t\v\f\x00\x04\x1c\x7f\x85\u00a0\u00ad\u200b\u200d\u2028\u2029\u3000\ufeff\ufffd\ufffe"
ODD += "'\u2019sStTrReEdDmMlLkK\u017f\u212a\ufb06\u0345\u2581\u0120\u010a<|>[]{}/\\_^`~"
ODD += "\u00b2\u0295\u01c5\u0130\u00e9e\u0301\u0327\u0303aZ09\u0661\uff11中の가\u1100\u1161.,!&-$"
ODD += "\U0001f600\u2764\ufe0f\U0001f3fd\u1ad0\U000323b0\U00010400\U0001d165\U0010ffff\ue000"
WORDS = (
    *("we'RE", " don't", "I'll", "  ", "    ", "\t\t", "\r\n", "\n\n", " \n ", "12345", "3.14e-10"),
    *("été", "Straße", "漢字かな", "カタカナ", "한국어", "привет", "שלום", "مرحبا", "हिन्दी", "ไทย"),
    *("ĐặngThị", "👩‍👩‍👧‍👦", "🇫🇷🇯🇵", "1️⃣", "--", "...", "!!!", "==>", "/*", "*/", "::", "</"),
    *("def f(x):", "\treturn x**2", "for (;;) {", "}\n\n", "SELECT *", "it''s", "0xDEADBEEF"),
    *("http://a.b/c?d=e&f", "user@host", "#include <x>", "camelCaseWord", "snake_case_word"),
    *("UPPER", "lower", "Title", " the", " and", "ing", "ness", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"),
    *("<0x0A>", "<0xFF>", "<unk>", "▁▁", "Ġthe", "[UNK]", "##ing", "\u0301\u0327\u0301", "ﬁ"),
)


@cache
def assigned() -> str:
    """Characters that some Unicode has, ideographs and syllables aside, of which a few stand."""
    import regex

    every = "".join(map(chr, [*range(0xD800), *range(0xE000, sys.maxunicode + 1)]))
    return "".join(regex.findall(r"[^\p{Cn}\p{Co}\p{Han}\p{Hangul}]", every)) + "中㐀가각힣豈"


def draw(rng: random.Random, names: Sequence[str], pieces: Sequence[str]) -> str:
    """A random text. names: of added tokens.   pieces: of the vocabulary, as text."""
    parts: list[str] = []
    for _ in range(rng.randrange(1, MOST_WORDS)):
        kind = rng.randrange(8)
        if kind == 0:
            parts.append("".join(rng.choices(ODD, k=rng.randrange(1, 6))))
        elif kind == 1:
            parts.append("".join(rng.choices(assigned(), k=rng.randrange(1, 5))))
        elif kind == 2:
            parts.append("".join(rng.choices("abcXYZ 019.,'\n", k=rng.randrange(1, 9))))
        elif kind == 3:
            parts.append(rng.choice(" \n\t-=a1.*") * rng.randrange(1, 40))
        elif kind == 4 and names:
            name = rng.choice(names)
            cut = rng.choice((name, name, name[:-1], name[1:], name.upper()))
            parts.append(rng.choice(("", "", " ", "\n", "x")) + cut + rng.choice(("", " ", "s")))
        elif kind == 5 and pieces:
            parts += rng.choices(pieces, k=rng.randrange(1, 4))
        else:
            parts.append(rng.choice(WORDS))
    return "".join(parts)


def draw_all(tokenizer: Any, *, texts: int, seed: int) -> list[str]:
    """The texts for one tokenizer, the same for the same seed."""
    rng = random.Random(seed)
    names = sorted(token.content for token in tokenizer.vocabulary.added)
    ids = sorted(tokenizer.vocabulary.token_bytes)
    some = [tokenizer.token_text(ids[rng.randrange(len(ids))]) for _ in range(2000)]
    return [draw(rng, names, some) for _ in range(texts)]


@dataclass(frozen=True)
class Reference:
    """What the makers' package says: ids with control names as text, as tokens, and text of ids."""

    package: str
    plain: Callable[[list[str]], Ids]
    control: Callable[[list[str]], Ids] | None
    decode: Callable[[Ids], list[str]]


def hf_reference(path: Path, ours: Any) -> Reference:
    """`tokenizers`, without what it puts in front and behind and without cutting or padding."""
    from tokenizers import AddedToken, Tokenizer

    theirs = Tokenizer.from_file(str(path))
    theirs.no_truncation()
    theirs.no_padding()
    known = {token.content for token in theirs.get_added_tokens_decoder().values()}
    theirs.add_special_tokens(
        [
            AddedToken(name, special=True, normalized=False)
            for name in ours.control_tokens
            if name not in known
        ]
    )

    def encode(texts: list[str], as_text: bool) -> Ids:
        theirs.encode_special_tokens = as_text
        return [each.ids for each in theirs.encode_batch_fast(texts, add_special_tokens=False)]

    return Reference(
        "tokenizers",
        lambda texts: encode(texts, True),
        lambda texts: encode(texts, False),
        lambda ids: theirs.decode_batch(ids, skip_special_tokens=False),
    )


def spm_reference(path: Path, ours: Any) -> Reference:
    """`sentencepiece`, which knows no name of a control token in a text."""
    import sentencepiece

    del ours

    theirs = sentencepiece.SentencePieceProcessor(str(path))
    return Reference("sentencepiece", theirs.encode, None, theirs.decode)


def rank_reference(path: Path, ours: Any) -> Reference:
    """`tiktoken` over a rank file whose name is that of its encoding."""
    import tiktoken
    from tiktoken.load import load_tiktoken_bpe
    from token_oracles import reference_pattern

    theirs = tiktoken.Encoding(
        name=path.stem,
        pat_str=reference_pattern(path.stem),
        mergeable_ranks=load_tiktoken_bpe(str(path)),
        special_tokens=dict(ours.control_tokens),
    )
    return Reference(
        "tiktoken",
        lambda texts: theirs.encode_ordinary_batch(texts, num_threads=1),
        lambda texts: theirs.encode_batch(texts, num_threads=1, allowed_special="all"),
        lambda ids: theirs.decode_batch(ids, num_threads=1),
    )


def kind_of(path: Path) -> str:
    """The parts of a tokenizer.json by their types, in one line: what counts as another kind."""
    if path.suffix != ".json":
        return path.suffix
    root = json.loads(path.read_bytes())

    def types(node: Any) -> str:
        if node is None:
            return "-"
        inner = next(
            (v for k, v in node.items() if isinstance(v, list) and k.endswith("ers")), None
        )
        if node.get("type") == "Sequence" and inner is not None:
            return "+".join(map(types, inner)) or "-"
        return str(node.get("type"))

    parts = [types(root.get(part)) for part in ("normalizer", "pre_tokenizer", "model", "decoder")]
    if parts[2] == "None":
        parts[2] = "BPE"
    return " | ".join(parts)


def found_in(folder: Path) -> Iterator[Path]:
    """Files of tokenizers, each content once, in the order of their paths."""
    seen: set[str] = set()
    for path in sorted(folder.rglob("*")):
        if not path.is_file() or not is_tokenizer(path):
            continue
        with path.open("rb") as opened:
            digest = hashlib.file_digest(opened, "sha256").hexdigest()
        if digest not in seen:
            seen.add(digest)
            yield path


def is_tokenizer(path: Path) -> bool:
    """By its name; a .json also by what is in it."""
    if path.suffix == ".tiktoken":
        return True
    if ".model" in path.name:
        return path.suffix != ".json"
    if path.suffix != ".json" or "config" in path.name or path.stat().st_size < 400:
        return False
    with path.open("rb") as opened:
        if not opened.read(64).lstrip().startswith(b"{"):
            return False
    try:
        root = json.loads(path.read_bytes())
    except ValueError:
        return False
    return (
        isinstance(root, dict) and isinstance(root.get("model"), dict) and "vocab" in root["model"]
    )


@dataclass(frozen=True)
class Seen:
    """What came of one file."""

    name: str
    kind: str
    package: str
    result: str
    why: str = ""


def compare(path: Path, name: str, *, texts: int, seed: int) -> Seen:
    """One file: ours beside theirs."""
    from cutaway.core.errors import CutawayError
    from cutaway.tokens.files.tokenizer_files import (
        load_model_file,
        load_rank_file,
        load_tokenizer_json,
    )

    kind = kind_of(path)
    readers: dict[str, tuple[Callable[[Path], Any], Callable[[Path, Any], Reference]]] = {
        ".json": (load_tokenizer_json, hf_reference),
        ".tiktoken": (lambda p: load_rank_file(p, p.stem), rank_reference),
    }
    ours_of, theirs_of = readers.get(path.suffix, (load_model_file, spm_reference))
    try:
        ours = ours_of(path)
    except CutawayError as error:
        return Seen(name, kind, "", "refused", str(error))
    try:
        theirs = theirs_of(path, ours)
    except Exception as error:  # a file that its maker's package does not read
        return Seen(name, kind, "", "no reference", f"{type(error).__name__}: {error}")
    wrong, forged, lost = first_difference(ours, theirs, draw_all(ours, texts=texts, seed=seed))
    if wrong:
        return Seen(name, kind, theirs.package, "DIFFERS", wrong)
    told = [f"{forged} spelled names that theirs takes for tokens"] if forged else []
    told += [f"{lost} texts of which theirs loses an added token in decoding"] if lost else []
    why = f"but for {' and '.join(told)}" if told else ""
    return Seen(name, kind, theirs.package, "equal", why)


def first_difference(ours: Any, theirs: Reference, texts: list[str]) -> tuple[str, int, int]:
    """The shortest text that becomes other ids or comes back otherwise, in words; else empty.

    And in how many texts theirs made a control token, or a byte, of its spelled name; ours must
    not, and both must agree on the text without that name. And in how many texts theirs decoded
    the name of an added token as bytes; ours must keep it.
    """
    wrong, forged, lost = list[str](), 0, 0
    ordered = sorted(ours.control_tokens, key=len, reverse=True)
    bytes_named = re.compile("<0x[0-9A-F]{2}>")
    spelled = re.compile("|".join([*map(re.escape, ordered), bytes_named.pattern]))
    unknown = ours.encode("\U0010ffff")  # may be what stands for every unknown character
    made = Counter(dict.fromkeys(ours.control_ids.difference(unknown), 1 << 30))
    for control, encode in ((False, theirs.plain), (True, theirs.control)):
        if encode is None:
            continue
        for text, expected in zip(texts, encode(texts), strict=True):
            found = ours.encode(text, control=control)
            names = bytes_named if control else spelled
            if found != expected and names.search(text):
                without = names.sub("", text)
                plain = ours.encode(without, control=control)
                if Counter(found) & made == Counter(plain) & made:
                    forged += 1
                    text, found, expected = without, plain, encode([without])[0]
            if found != expected:
                wrong.append(f"{text!a}, control={control}: {found[:12]}, theirs {expected[:12]}")
    if wrong:
        return f"{len(wrong)} of {2 * len(texts)}; {min(wrong, key=len)}", forged, lost
    # A file beside may name a token for what is unknown, which theirs writes in its own way.
    pairs = [(text, ours.encode(text)) for text in texts[::4]]
    pairs = [(text, ids) for text, ids in pairs if ours.control_ids.isdisjoint(ids)]
    in_danger = names_of_bytes(ours)
    some, all_ids = [text for text, _ in pairs], [ids for _, ids in pairs]
    for text, ids, expected in zip(some, all_ids, theirs.decode(all_ids), strict=True):
        found = ours.decode(ids, skip_control=False)
        if found != expected and not in_danger.keys().isdisjoint(ids):
            parts = [
                in_danger[each] if each in in_danger else ours.token_bytes(each) for each in ids
            ]
            is_that = b"".join(parts).decode(errors="replace") == expected
            if is_that and ours.encode(found) == ids:
                lost += 1
                continue
        if found != expected:
            wrong.append(f"{text!a} {ids[:12]} comes back as {found!a}, theirs {expected!a}")
    if wrong:
        return f"{len(wrong)} of {len(some)} decoded; {min(wrong, key=len)}", forged, lost
    return "", forged, lost


def names_of_bytes(ours: Any) -> dict[int, bytes]:
    """Added tokens whose name is also the writing of other bytes, as byte-level files have it."""
    from cutaway.tokens.byte_bpe import ByteBPE
    from cutaway.tokens.unicode import symbols_to_bytes

    if not isinstance(ours, ByteBPE):
        return {}
    all_bytes = {each.token_id: symbols_to_bytes(each.content) for each in ours.vocabulary.added}
    own = {each.token_id: each.content.encode() for each in ours.vocabulary.added}
    return {each: data for each, data in all_bytes.items() if data != own[each]}


def summarize(rows: Sequence[Row], *, texts: int, seed: int) -> str:
    """How many files came to what, in one sentence."""
    counted = Counter(row["result"] for row in rows)
    kinds = len({row["kind"] for row in rows})
    told = ", ".join(f"{count} {result}" for result, count in sorted(counted.items()))
    return f"{len(rows)} files of {kinds} kinds, {texts} texts each, seed {seed}: {told}"


def main() -> int:
    options = command_line(__doc__)
    options.add_argument("--texts", type=int, default=10_000)
    options.add_argument("--seed", type=int, default=17)
    asked = options.parse_args()

    def try_one(name: str, path: Path) -> Row:
        return vars(compare(path, name, texts=asked.texts, seed=asked.seed))

    found = ((str(path.relative_to(asked.folder)), path) for path in found_in(asked.folder))
    rows = rows_of(asked, found, try_one, tell=tell)
    finish(
        asked,
        "Published tokenizers",
        summarize(rows, texts=asked.texts, seed=asked.seed),
        script="bench/tokenizer_files.py",
        head=("file", "kind", "beside", "result", ""),
        cells=(
            (row["name"], row["kind"], row["package"], row["result"], row["why"][:240])
            for row in sorted(rows, key=lambda row: (row["result"], row["name"]))
        ),
    )
    return 1 if any(row["result"] == "DIFFERS" for row in rows) else 0


def tell(row: Row) -> str:
    """A row as a line."""
    return f"{row['result']:12} {row['name']} [{row['kind']}] {row['why']}"


if __name__ == "__main__":
    sys.exit(main())
