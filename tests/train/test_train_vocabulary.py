"""Vocabularies that are learned and written: the tokenizers package reads the same ids."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tokenizers
import transformers

from cutaway.core.errors import ConfigError
from cutaway.tokens.files.tokenizer_files import load_folder
from cutaway.train.data.packing import ScoredSequence
from cutaway.train.losses.bits import bits_per_byte, num_bytes, without_controls
from cutaway.train.vocabulary import CONTROL_TOKENS, PATTERNS, VocabularySettings, learn

TEXT = "The cat's café cost 1234€, and the 🦙 said: don't!\n\n  It  isn't\ttrue. " * 20
HOSTILE = [
    "",
    " ",
    "caf\u00e9\u0301 ☃",
    "🦙🦙",
    "12345",
    "<|im_end|>",
    "a\r\nb\x00c",
    "\u200b don't",
]


@pytest.fixture(scope="module", params=PATTERNS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("vocabulary")
    (path / "text.txt").write_text(TEXT, encoding="utf-8")
    settings = VocabularySettings(
        out=path / "made", data=(path / "text.txt",), size=300, pattern=request.param
    )
    told: list[tuple[int, int]] = []
    assert learn(settings, lambda done, total: told.append((done, total))) == 300
    assert told[-1] == (41, 41)
    return path / "made"


def test_the_tokenizers_package_gives_the_same_ids(folder: Path) -> None:
    ours = load_folder(folder)
    theirs = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    for text in (TEXT, *HOSTILE):
        assert ours.encode(text, control=True) == theirs.encode(text).ids
        assert ours.decode(ours.encode(text)) == text


def test_transformers_opens_the_folder(folder: Path) -> None:
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    assert theirs.bos_token == theirs.eos_token == CONTROL_TOKENS[0]
    assert theirs.encode("cat", add_special_tokens=False) == load_folder(folder).encode("cat")


def test_control_tokens_come_last_and_a_text_begins_with_its_end(folder: Path) -> None:
    ours = load_folder(folder)
    assert [ours.control_tokens[name] for name in CONTROL_TOKENS] == [297, 298, 299]
    assert ours.bos_token_id == 297 and ours.eos_token_ids == {297}
    assert ours.encode("cat", bos=True)[0] == 297


def test_merges_are_those_of_the_tokenizers_package(tmp_path: Path) -> None:
    """Learned beside HF's trainer over the same bytes and text."""
    (tmp_path / "text.txt").write_text(TEXT, encoding="utf-8")
    settings = VocabularySettings(out=tmp_path / "made", data=(tmp_path / "text.txt",), size=290)
    learn(settings)
    model = json.loads((tmp_path / "made" / "tokenizer.json").read_bytes())["model"]
    theirs = tokenizers.Tokenizer(tokenizers.models.BPE())
    theirs.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=287,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    theirs.train_from_iterator([TEXT], trainer)
    expected = json.loads(theirs.to_str())["model"]
    assert model["vocab"] == expected["vocab"] and model["merges"] == expected["merges"]


def test_a_folder_that_is_there_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="which is there already"):
        learn(VocabularySettings(out=folder, data=()))


def test_t08_bytes_are_those_of_the_tokens_themselves(folder: Path) -> None:
    """Half a character counts its own bytes, and a text its UTF-8 length exactly."""
    ours = load_folder(folder)
    for text in (TEXT, *HOSTILE):
        ids = ours.encode(text)
        framed = ScoredSequence.whole([297, *ids, 297])
        counted = without_controls(framed, ours)
        assert counted.count == len(ids)
        assert num_bytes(counted, ours) == len(text.encode())
        assert num_bytes(framed, ours) == len(text.encode()) + len(CONTROL_TOKENS[0])


def test_three_nats_a_token_of_four_and_a_half_bytes() -> None:
    assert bits_per_byte(3.0 * 100, 450) == pytest.approx(0.9618, abs=1e-4)
