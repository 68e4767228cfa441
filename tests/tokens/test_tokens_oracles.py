"""Ids equal those of the public tokenizers, on published cases, prose, code and odd strings."""

from __future__ import annotations

import random
import unicodedata
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from token_oracles import NAMES, RANK_NAMES, Beside, beside

from cutaway.tokens.byte_bpe import ByteBPE
from cutaway.tokens.files.tokenizer_files import load_rank_file
from oracles import PROSE, prose, public_plans, rank_file
from trials import patience

pytestmark = pytest.mark.oracle

SOURCES = Path(__file__).resolve().parents[2] / "src"

# A few words on the pipeline in as many scripts, written for this test.
# ruff: noqa: RUF001 - characters that look alike are what is tested
LANGUAGES = """\
每个字都会变成数字，模型只看见数字。2024年3月14日，共有１２３４个词元。
すべての文字は数になり、モデルは数だけを見る。カタカナとひらがなと漢字。
모든 글자는 숫자가 되고 모델은 숫자만 본다.
كل حرف يصبح رقمًا، والنموذج لا يرى إلا الأرقام ١٢٣٤.
כל אות הופכת למספר, והמודל רואה רק מספרים.
हर अक्षर संख्या बन जाता है, और मॉडल केवल संख्याएँ १२३ देखता है।
ตัวอักษรทุกตัวกลายเป็นตัวเลข และแบบจำลองเห็นเพียงตัวเลข
Каждая буква становится числом, и модель видит только числа.
Κάθε γράμμα γίνεται αριθμός, και το μοντέλο βλέπει μόνο αριθμούς.
Mỗi chữ cái trở thành một con số, và mô hình chỉ thấy những con số.
Jeder Buchstabe wird zur Zahl: Straße, Größe, Äpfel, naïve façade.
👍🏽 👩‍👩‍👧‍👦 🏳️‍🌈 🇫🇷🇯🇵 ☕️ 1️⃣ 🦙🦙🦙 ❤️‍🔥
e\u0301 versus é, A\u030a versus Å versus \u212b, \ufb01 \u01c5 \u2126 \u1e9b\u0323
zero\u200bwidth\u200djoiner \u00a0 \u2009 \u3000 \u2028 \ufeff end
"""

CODE = """\
def f(x):\n\tif x > 0:\n\t\treturn {"a": [1, 2, 3], 'b': x**2}  # comment\n\n\n
for (int i = 0; i < 1024; ++i) { a[i] += b[i] << 3; }\r\n\r\n    SELECT * FROM t WHERE x='it''s';\n
<div class="a">&nbsp;</div>\t\t\n$ git commit -m "we'RE done"  \\\n
 && echo 3.14159e-10 0xDEADBEEF\n
"""

ODD = [
    " ",
    "  ",
    "\n",
    "\r\n",
    "\t",
    "'s",
    "'RE",
    "'ſ",
    "1",
    "12345",
    "a",
    "Zz",
    "_",
    ".",
    "...",
    "/",
]
CONTROL = [
    "<|endoftext|>",
    "<|im_end|>",
    "<|im_start|>",
    "<|begin_of_text|>",
    "<think>",
    "<|",
    "|>",
]


@pytest.fixture(params=NAMES)
def pair(request) -> Beside:
    return beside(request.param)


@cache
def published(name: str) -> ByteBPE:
    return load_rank_file(rank_file("p50k_base" if name == "p50k_edit" else name), name)


def ids_equal(pair: Beside, texts: list[str]) -> list[list[int]]:
    """The ids of each text."""
    made = []
    for text, expected in zip(texts, pair.plain_batch(texts), strict=True):
        found = pair.ours.encode(text)
        if found != expected:  # a bare assert would print megabytes
            at = next(
                i for i, ids in enumerate(zip(found, expected, strict=False)) if ids[0] != ids[1]
            )
            around = slice(max(0, at - 3), at + 5)
            pytest.fail(f"token {at}: {found[around]}, reference {expected[around]}")
        made.append(found)
    return made


def test_313_published_cases():
    plans = public_plans().read_text(encoding="utf-8").split("\n\n")
    checked = 0
    for plan in filter(str.strip, plans):
        name, sample, encoded = (line.split(":", 1)[1] for line in plan.strip("\n").split("\n"))
        ids = [int(i) for i in encoded.strip(" []").split(",") if i]
        tokenizer = published(name.strip())
        assert tokenizer.encode(sample[1:]) == ids
        assert tokenizer.decode(ids) == sample[1:]
        checked += 1
    assert checked == 313


@pytest.mark.parametrize("text", [LANGUAGES, CODE, LANGUAGES[::-1], *ODD, *CONTROL, ""])
def test_scripts_code_and_emoji(pair, text):
    assert pair.ours.encode(text) == pair.plain(text)
    assert pair.ours.encode(text, control=True) == pair.control(text)


@pytest.mark.parametrize("name", NAMES)
def test_our_own_sources(name):
    """All of them in one vocabulary or another."""
    pair, paths = beside(name), sorted(SOURCES.rglob("*.py"))[NAMES.index(name) :: len(NAMES)]
    texts = [path.read_text(encoding="utf-8") for path in paths]
    assert texts
    ids = ids_equal(pair, texts)
    assert [pair.ours.decode(each) for each in ids] == texts


# Worked examples of texts on how language models read.
EXAMPLES = {
    "r50k_base": {
        "What is gravity?": [2061, 318, 13522, 30],
        "hello": [31373],
        " dog": [3290],
        "Unbelievable": 4,
        "uncharacteristically": ["unch", "ar", "acter", "istically"],
    },
    "cl100k_base": {
        "What is gravity?": 4,
        "hello": [15339],
        " dog": [5679],
        "Unbelievable": 3,
        "uncharacteristically": ["un", "character", "istically"],
        "supercalifragilistic": [13066, 3035, 278, 333, 4193, 321, 4633],
        "\ud83d\udc4d": [9468, 239, 235],
    },
    "o200k_base": {
        "What is gravity?": 4,
        "hello": [24912],
        " dog": [6446],
        "Unbelievable": 3,
        "uncharacteristically": ["un", "character", "istically"],
    },
    "llama3": {"\u6b6a": [15722, 103]},
    "qwen3": {"<|im_end|>": [27, 91, 318, 6213, 91, 29]},
    "smollm2": {"ctrl \x04\x06 x": [39673, 216, 1792]},
}


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [(name, text, expected) for name, rows in EXAMPLES.items() for text, expected in rows.items()],
)
def test_worked_examples(name, text, expected):
    tokenizer = beside(name).ours
    ids = tokenizer.encode(text)
    if isinstance(expected, int):
        assert len(ids) == expected
    elif isinstance(expected[0], str):
        assert [tokenizer.token_text(i) for i in ids] == expected
    else:
        assert ids == expected


@pytest.mark.parametrize("name", ["r50k_base", "cl100k_base", "o200k_base"])
def test_common_words_are_one_token_and_a_recipe_question_is_eight(name):
    tokenizer = beside(name).ours
    assert all(len(tokenizer.encode(word)) == 1 for word in ("the", " the", "cat", " cat"))
    question = tokenizer.encode("How do I bake chocolate chip cookies?")
    pieces = [tokenizer.token_text(i) for i in question]
    assert pieces == ["How", " do", " I", " bake", " chocolate", " chip", " cookies", "?"]
    answer = "To bake chocolate chip cookies, you will need the following ingredients..."
    assert len(tokenizer.encode(answer)) == 13


@pytest.mark.parametrize(
    ("name", "learned", "rows"),
    [
        ("r50k_base", 50_256, 50_257),
        ("cl100k_base", 100_256, 100_277),
        ("o200k_base", 199_998, 200_019),
        ("llama3", 128_000, 128_256),
    ],
)
def test_b4_vocabularies_have_learned_tokens_and_control_tokens_on_top(name, learned, rows):
    tokenizer = beside(name).ours
    added = tokenizer.control_ids
    assert len({*tokenizer.vocabulary.token_bytes} - {*added}) == learned
    assert tokenizer.vocab_size == rows == max(*added, learned - 1) + 1


def test_b11_ids_that_are_told_of_a_question_about_gravity_are_other_words():
    tokenizer = beside("r50k_base").ours
    pieces = [tokenizer.token_text(i) for i in (2601, 318, 26110, 879, 30)]
    assert pieces == ["Cl", " is", "thro", "ility", "?"]
    assert tokenizer.decode([2601, 318, 26110, 879, 30]) != "What is gravity?"


@pytest.mark.parametrize(
    ("name", "tabs", "blanks"),
    [("r50k_base", 10, 17), ("cl100k_base", 8, 9), ("o200k_base", 8, 9)],
)
def test_b15_two_levels_of_indent_in_tabs_and_in_blanks(name, tabs, blanks):
    encode = beside(name).ours.encode
    assert len(encode("\tif x:\n\t\ty = 1")) == tabs
    assert len(encode("    if x:\n        y = 1")) == blanks


@pytest.mark.parametrize("name", ["r50k_base", "cl100k_base", "o200k_base"])
def test_d3_zero_is_an_id_and_a_misspelling_is_only_longer(name):
    tokenizer = beside(name).ours
    assert tokenizer.encode("!") == [0]
    right, wrong = tokenizer.encode(" gravity"), tokenizer.encode(" grvaity")
    assert len(right) == 1 < len(wrong) and tokenizer.decode(wrong) == " grvaity"


@pytest.mark.parametrize("name", ["r50k_base", "cl100k_base", "o200k_base"])
def test_b14_code_and_chemistry_break_into_smaller_pieces_than_prose(name):
    def bytes_a_token(text: str) -> float:
        return len(text.encode()) / len(beside(name).ours.encode(text))

    prose = "The cat sat on the mat and looked at the people who walked along the river."
    code = "for(int i=0;i<n;++i){a[i]^=b[(i+1)%n]<<3;}"
    chemistry = "(2S,3R)-3-hydroxy-2-methylpyrrolidine-1-carboxamide"
    assert bytes_a_token(prose) > 4 > max(bytes_a_token(code), bytes_a_token(chemistry))


def test_a11_part_of_a_character_in_a_real_vocabulary():
    tokenizer = beside("llama3").ours
    assert tokenizer.encode_bytes(b"\xe6\xad") == [15722]
    assert tokenizer.decode_bytes([15722]) == b"\xe6\xad"


def test_smollm2_lacks_the_bytes_that_the_documentation_names():
    byte_ids = beside("smollm2").ours.vocabulary.byte_ids
    lacking = [byte for byte, token_id in enumerate(byte_ids) if token_id is None]
    controls = [0x04, 0x06, 0x13, 0x14, 0x16, 0x1D]
    assert lacking == [*controls, 0xC0, 0xC1, 0xF1, 0xF2, *range(0xF5, 0x100)]


@pytest.mark.parametrize("name", ["llama3", "qwen3", "smollm2"])
def test_in_no_fetched_vocabulary_does_a_merge_make_a_control_token(name):
    vocabulary = beside(name).ours.vocabulary
    assert len(vocabulary.merges._ranks) == len(vocabulary.merges.merged_ids)


def test_every_token_of_a_rank_file_encodes_to_itself():
    tokenizer = beside("cl100k_base").ours
    tokens = tokenizer.vocabulary.token_bytes
    whole = [
        i
        for i, token in tokens.items()
        if tokenizer._encode_piece(token.decode("utf-8", "surrogateescape")) != (i,)
    ]
    assert whole == []


@pytest.mark.parametrize("name", ["llama3", "qwen3", "smollm2"])
def test_the_first_part_of_a_novel(name):
    ids_equal(beside(name), [prose("moby-dick")[:100_000]])


@pytest.mark.slow
@pytest.mark.parametrize("text", PROSE)
@pytest.mark.parametrize("name", NAMES)
def test_all_small_prose(name, text):
    """Every fourth part in each vocabulary, all of them in two or one; a quarter of that in CI."""
    lines = prose(text).splitlines(keepends=True)  # kjv.txt has no empty ones
    size = max(1, len(lines) // 500)
    parts = ["".join(lines[at : at + size]) for at in range(0, len(lines), size)]
    ids_equal(beside(name), parts[NAMES.index(name) % 4 :: patience(1, in_ci=4) * 4])


# Characters of private use stand for whole words while a text is drawn: a third of the time that a
# list of strings takes.
WORDS = dict(enumerate([*ODD, *CONTROL], start=0xE000))
ALPHABET = st.one_of(
    st.characters(exclude_categories=["Cs", "Cn", "Co"]),
    st.characters(max_codepoint=127),
    st.sampled_from("\u0301\u0327\u3000\u00a0\u2019 '\n\t1a"),
    st.sampled_from([*map(chr, WORDS)]),
)


def ids_equal_everywhere(text: str) -> None:
    for name in NAMES:
        pair = beside(name)
        assert pair.ours.encode(text) == pair.plain(text), name
        with_control = pair.ours.encode(text, control=True)
        assert with_control == pair.control(text), name
        kept = unicodedata.normalize("NFC", text) if name == "qwen3" else text
        assert name == "smollm2" or pair.ours.decode(with_control, skip_control=False) == kept


@settings(max_examples=200)
@given(st.text(ALPHABET))
def test_200_odd_strings(text):
    ids_equal_everywhere(text.translate(WORDS))


@pytest.mark.slow
@settings(max_examples=patience(4_000, in_ci=1_000), suppress_health_check=[HealthCheck.too_slow])
@given(st.text(ALPHABET))
def test_4_000_odd_strings(text):
    ids_equal_everywhere(text.translate(WORDS))


@pytest.mark.parametrize("name", NAMES)
def test_a14_text_is_stable_however_often_it_is_encoded(name):
    tokenizer = beside(name).ours
    text = LANGUAGES + CODE
    for _ in range(10):
        ids = tokenizer.encode(text)
        text = tokenizer.decode(ids)
    assert tokenizer.encode(text) == ids


def test_a01_equal_on_long_words():
    rng = random.Random(5)
    letters = "".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=2_000))
    for name in ("llama3", "smollm2", *RANK_NAMES):
        for text in ("a" * 3_000, letters, letters.upper()):
            assert beside(name).ours.encode(text) == beside(name).plain(text)
