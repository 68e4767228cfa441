"""What the comparison over published tokenizers found, kind by kind; and a slice of it."""

from __future__ import annotations

import importlib.util
import json
import random
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest
import regex
import sentencepiece
from test_tokens_files import added, document, model
from test_tokens_spm_files import BASE, PLAIN, USER_DEFINED, piece
from tokenizers import AddedToken, Tokenizer, models, normalizers

from cutaway.core.errors import ModelFormatError, UnsupportedModelError
from cutaway.tokens.added import AddedToken as Ours
from cutaway.tokens.added import AddedTokenFinder
from cutaway.tokens.files.tokenizer_files import load_model_file, load_tokenizer_json
from cutaway.tokens.oniguruma.newer import UNASSIGNED
from cutaway.tokens.patterns import CL100K, GPT2, O200K
from cutaway.tokens.splitting import Splitter
from cutaway.tokens.unicode import normalize
from oracles import model_file, rank_file, tokenizer_json
from trials import patience


def load(folder: Path, **changes: object):
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(document(**changes)), encoding="utf-8")
    return load_tokenizer_json(path)


FORMS = {form: getattr(normalizers, form)() for form in ("NFC", "NFD", "NFKC", "NFKD")}


@cache
def comparison() -> ModuleType:
    path = Path(__file__).parents[2] / "bench" / "tokenizer_files.py"
    spec = importlib.util.spec_from_file_location("tokenizer_files", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.append(str(path.parent))  # what it shares with others stands beside it
    spec.loader.exec_module(module)
    return module


def test_an_added_token_that_theirs_decodes_as_bytes_is_kept_and_counted(tmp_path: Path):
    """A name of nothing but signs of bytes, as \u00e9 is that of E9: theirs gives that byte."""
    file = document(added_tokens=[added(258, "\u00e9\u00e8", special=False)])
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(file), encoding="utf-8")
    ours, texts = load_tokenizer_json(path), ["a \u00e9\u00e8 b", "\u00e9\u00e8", "ab"] * 4
    theirs = comparison().hf_reference(path, ours)
    assert theirs.decode([ours.encode(texts[0])]) == ["a \ufffd\ufffd b"]
    assert ours.decode(ours.encode(texts[0])) == texts[0]
    assert comparison().first_difference(ours, theirs, texts)[::2] == (
        "",
        3 - texts[::4].count("ab"),
    )


@cache
def every() -> str:
    return "".join(map(chr, [*range(0xD800), *range(0xE000, sys.maxunicode + 1)]))


@cache
def newer() -> list[str]:
    return regex.findall(f"[{UNASSIGNED}]", every())


@pytest.mark.parametrize("form", FORMS)
def test_normal_forms_are_those_of_the_unicode_that_hf_has(form) -> None:
    # All characters that any normal form changes or orders, in whatever Unicode.
    moved = regex.findall(r"[^\p{ccc=0}]|\P{dt=none}", every())
    moved += ["\U00011935", "\U00011930", "\U00016d67", "\U000105d2"]
    rng = random.Random(5)
    texts = ["".join(rng.choices([*moved, *"ae\u0301\u0327\u3099"], k=6)) for _ in range(4000)]
    texts += [f"{start}{each}\u0301\u0334" for each in moved for start in ("", "a\u0327")]
    wrong = [text for text in texts if normalize(text, form) != FORMS[form].normalize_str(text)]
    assert not wrong, [ascii(text) for text in wrong[:5]]


@pytest.mark.parametrize("pattern", [GPT2, CL100K, O200K])
def test_characters_newer_than_tiktokens_unicode_are_no_letters(pattern: str) -> None:
    assert "\U0003ddc5" in newer()
    for character in random.Random(1).sample(newer(), 200):
        unassigned = f"x{character}b 1{character}"
        assert Splitter([pattern]).split(unassigned) == [
            part.replace("\U000e0fff", character)
            for part in Splitter([pattern]).split("x\U000e0fffb 1\U000e0fff")
        ]


@pytest.mark.oracle
@pytest.mark.parametrize("name", ["r50k_base", "cl100k_base", "o200k_base"])
def test_rank_files_cut_newer_characters_as_tiktoken_does(name: str) -> None:
    row = comparison().compare(rank_file(name), name, texts=300, seed=23)
    assert row.result == "equal", row.why
    theirs = comparison().rank_reference(rank_file(name), _controls(name))
    ours = _controls(name)
    texts = [f"x{each}y 1{each}!{each}" for each in random.Random(2).sample(newer(), 300)]
    assert [ours.encode(text) for text in texts] == theirs.plain(texts)


@cache
def _controls(name: str):
    from cutaway.tokens.files.tokenizer_files import load_rank_file

    return load_rank_file(rank_file(name), name)


def test_a_single_word_is_touched_by_what_rust_takes_for_a_part_of_a_word() -> None:
    theirs = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    theirs.add_tokens([AddedToken("QQ", single_word=True, normalized=False)])
    ours = AddedTokenFinder([Ours(token_id=1, content="QQ", single_word=True)])
    odd = ["\u200d", "\u2160", "\u24b6", "\u00b2", "_", "\u203f", "\u0301", "\u0345", *newer()[::9]]
    for character in [*odd, *random.Random(4).sample(every(), 3000)]:
        for text in (f"{character}QQ", f"QQ{character}"):
            found = 1 in theirs.encode(text).ids
            assert found == (("QQ", 1) in ours.cut(text)), ascii(text)


def test_an_added_token_that_hf_would_give_another_id_is_refused(tmp_path) -> None:
    listed = [
        {
            "id": token_id,
            "content": content,
            "special": True,
            **dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False),
        }
        for token_id, content in ((258, "<s>"), (300, "</s>"))
    ]
    theirs = Tokenizer.from_str(json.dumps(document(added_tokens=listed)))
    assert theirs.token_to_id("</s>") == 259
    with pytest.raises(ModelFormatError, match=r"found 300; it must be 259, which HF's"):
        load(tmp_path, added_tokens=listed)
    listed[1]["id"] = 259
    assert load(tmp_path, added_tokens=listed).encode("</s>", control=True) == [259]


METASPACE = {
    "type": "Metaspace",
    "replacement": "\u2581",
    "prepend_scheme": "always",
    "split": True,
}


def unigram(**changes):
    pieces = [["<unk>", 0.0], ["\u2581", -2.0], ["\u2581\u2581\u2581", -2.5], ["a\u2581b", -3.0]]
    pieces += [[letter, -4.0] for letter in "ab"]
    return (
        document(
            added_tokens=[],
            pre_tokenizer=METASPACE | {"split": False},
            post_processor=None,
            decoder=METASPACE,
            model={"type": "Unigram", "unk_id": 0, "vocab": pieces},
        )
        | changes
    )


def test_a_raw_byte_is_no_token_of_plain_text_in_a_tokenizer_json(tmp_path) -> None:
    """HF looks for the symbol of a byte alone; a vocabulary of raw characters drops the others."""
    raw = {chr(byte): byte for byte in range(128)}
    ours = load(tmp_path, model=model(vocab=raw, merges=[]), added_tokens=[])
    row = comparison().compare(tmp_path / "tokenizer.json", "x", texts=300, seed=7)
    assert row.result == "equal", row.why
    assert ours.encode("a b") == [97, 98]


def test_byte_level_puts_a_blank_before_each_stretch_that_has_none(tmp_path) -> None:
    """As HF's ByteLevel does unless told otherwise; bytes of a grammar stay what they are."""
    blank = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    ours = load(tmp_path, pre_tokenizer=blank)
    row = comparison().compare(tmp_path / "tokenizer.json", "x", texts=500, seed=7)
    assert row.result == "equal", row.why
    assert ours.encode("ab") == ours.encode(" ab") == [257]
    assert ours.encode("ab", is_start=False) == [257], "every stretch is one"
    assert ours.encode_bytes(b"ab") == [256]
    assert ours.fingerprint != load(tmp_path).fingerprint


def test_metaspace_takes_all_blanks_of_the_first_token(tmp_path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(unigram()), encoding="utf-8")
    ours, theirs = load_tokenizer_json(path), Tokenizer.from_file(str(path))
    for ids in ([2, 1, 4], [3, 1, 5], [1, 2, 4], [4, 2], [2], [5, 1, 1]):
        assert ours.decode(ids) == theirs.decode(ids)
    assert ours.decode([2, 1, 4]) == " a"


def test_a_decoder_that_strips_every_token_is_refused(tmp_path) -> None:
    strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    steps = [
        {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
        strip,
        {"type": "Fuse"},
    ]
    path = tmp_path / "tokenizer.json"
    broken = unigram(decoder={"type": "Sequence", "decoders": steps})
    path.write_text(json.dumps(broken), encoding="utf-8")
    assert Tokenizer.from_file(str(path)).decode([4, 1, 5]) == "ab"
    with pytest.raises(UnsupportedModelError, match="Strip behind Fuse"):
        load_tokenizer_json(path)
    right = unigram(decoder={"type": "Sequence", "decoders": [steps[0], steps[2], strip]})
    path.write_text(json.dumps(right), encoding="utf-8")
    for ids in ([1, 4, 1, 5], [4, 1, 5]):
        assert load_tokenizer_json(path).decode(ids) == Tokenizer.from_file(str(path)).decode(ids)


def test_an_older_file_does_not_say_that_its_scored_pieces_are_unigram(tmp_path) -> None:
    without = unigram()
    del without["model"]["type"]
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(without), encoding="utf-8")
    ours, theirs = load_tokenizer_json(path), Tokenizer.from_file(str(path))
    for text in ("a b", "   ab", "ba a b"):
        assert ours.encode(text) == theirs.encode(text).ids


@pytest.mark.parametrize("best", [-2.5, 0.05, 0.3, 5.0])
def test_user_defined_pieces_are_worth_a_tenth_for_every_byte_but_one(tmp_path, best) -> None:
    # Of cuts of a run that are worth the same, rounding chooses; scores are those of XLNet.
    data = BASE + piece("\u2581", -2.1267833709716797) + piece("1", -7.683706760406494)
    data += piece("11", -9.596034049987793) + piece("a", -3.0)
    data += piece("b", best)
    for text in ("-", "aa", "aaa", "aaaa", "\u2013\u2013", "\u2013\u2013\u2013"):
        data += piece(text, 0.0, USER_DEFINED)
    path = tmp_path / "tokenizer.model"
    path.write_bytes(data + PLAIN)
    theirs = sentencepiece.SentencePieceProcessor(str(path))
    ours = load_model_file(path)
    for count in range(1, 60):
        for text in (
            f"-{'1' * count}",
            f"1-1--{'1' * count}-",
            "a" * count,
            f"1{'a' * count}1a",
            "\u2013" * count,
        ):
            assert ours.encode(text) == theirs.encode(text)


def test_the_comparison_finds_a_difference(tmp_path) -> None:
    assert model()["merges"]
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(document()), encoding="utf-8")
    compare = comparison()
    ours, theirs = load_tokenizer_json(path), compare.hf_reference(path, load_tokenizer_json(path))
    texts = compare.draw_all(ours, texts=50, seed=1)
    assert compare.first_difference(ours, theirs, texts) == ("", 0, 0)
    other = load(tmp_path, model=model(merges=[["a", "b"]], vocab=model()["vocab"]))
    why, *_ = compare.first_difference(other, theirs, [*texts, " ab"])
    assert why.startswith("2 of 102; ' ab', control=") and "theirs [257]" in why


@pytest.mark.oracle
@pytest.mark.parametrize("name", ["qwen3", "llama3", "v1", "v3"])
def test_a_slice_of_published_tokenizers_is_equal(name: str) -> None:
    path = model_file(name) if name.startswith("v") else tokenizer_json(name)
    row = comparison().compare(path, name, texts=300, seed=29)
    assert row.result == "equal", row.why


@pytest.mark.oracle
@pytest.mark.slow
def test_gemma3_on_two_thousand_strings() -> None:
    texts = patience(2_000, in_ci=500)
    row = comparison().compare(tokenizer_json("gemma3"), "gemma3", texts=texts, seed=31)
    assert row.result == "equal", row.why
