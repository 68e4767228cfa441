"""Safetensors folders: what a sound one gives, and that a lying one is refused by name."""

from __future__ import annotations

import json
import random
import struct
import tracemalloc
from pathlib import Path

import pytest
import safetensors.torch
import torch

from cutaway.core.errors import ModelFormatError, ModelNotFoundError, UnsupportedModelError
from cutaway.weights.files.safetensors import SafetensorsWeights
from cutaway.weights.files.safetensors_header import (
    MAX_HEADER_BYTES,
    read_header,
    shown_name,
)
from cutaway.weights.files.safetensors_index import INDEX, SINGLE
from cutaway.weights.files.staged_reads import StagedReads
from trials import ran, trials
from trials import seed as trial_seed

Entry = dict[str, object]


def raw_file(header: object, data: bytes = b"", *, length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(shape: list[int], begin: int, end: int, dtype: str = "F32") -> Entry:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def opened(folder: Path, raw: bytes) -> SafetensorsWeights:
    (folder / SINGLE).unlink(missing_ok=True)
    (folder / SINGLE).write_bytes(raw)
    return SafetensorsWeights(folder)


# Seeds of 2,000 mutants each.
SEEDS = [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3, 4, 5))]

K, V = entry([4], 0, 16), entry([2, 2], 16, 32)
SMALL = raw_file({"__metadata__": {"format": "pt"}, "k": K, "v": V}, bytes(range(32)))


def test_tensors_have_the_stored_shape_dtype_and_bytes(tmp_path: Path) -> None:
    weights = opened(tmp_path, SMALL)
    assert sorted(weights.names()) == ["k", "v"]
    assert weights.shape("v") == (2, 2)
    assert weights.tensor("v").dtype == torch.float32
    assert bytes(weights.tensor("v").view(torch.uint8).numpy()) == bytes(range(16, 32))


BITS = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 64),
    **dict.fromkeys(("F32", "I32", "U32"), 32),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 16),
    **dict.fromkeys(("I8", "U8", "BOOL", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 8),
    **dict.fromkeys(("F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **{"F6_E2M3": 6, "F6_E3M2": 6, "F4": 4},
}


@pytest.mark.parametrize("dtype", BITS)
def test_every_type_takes_its_bits_and_no_byte_more_or_less(dtype: str, tmp_path: Path) -> None:
    path = tmp_path / SINGLE
    for size in (0, BITS[dtype] - 1, BITS[dtype], BITS[dtype] + 1):
        path.write_bytes(raw_file({"k": entry([8], 0, size, dtype)}, bytes(size)))
        if size == BITS[dtype]:  # bytes of eight values
            assert read_header(path)["k"].num_bytes == size
            continue
        with pytest.raises(ModelFormatError, match=f"takes {BITS[dtype]} bytes, but its"):
            read_header(path)


def test_caps_are_the_promised_ones_and_what_reaches_them_is_read(tmp_path: Path) -> None:
    assert MAX_HEADER_BYTES == 100_000_000
    path, name = tmp_path / SINGLE, "n" * 256
    path.write_bytes(
        raw_file({name: entry([1] * 8, 0, 4), "z": entry([0, 2**63 - 1], 4, 4)}, bytes(4))
    )
    assert [each.shape for each in read_header(path).values()] == [(1,) * 8, (0, 2**63 - 1)]
    for header in ({"n" * 257: entry([1], 0, 4)}, {"k": entry([0, 2**63], 0, 0)}):
        path.write_bytes(raw_file(header, bytes(4)))
        with pytest.raises(
            ModelFormatError, match=r"of 1 to 256 characters|must have dtype, shape"
        ):
            read_header(path)
    path.write_bytes(raw_file({}))
    assert read_header(path) == {}
    assert shown_name(name) == name and shown_name(f"{name}n").endswith("n...")


def test_random_files_equal_the_safetensors_library(tmp_path: Path) -> None:
    number = trial_seed(3)
    draw, generator = random.Random(number), torch.Generator().manual_seed(number)
    dtypes = [torch.float32, torch.float16, torch.bfloat16, torch.float64]
    for _ in range(trials(100)):
        stored = {
            f"blk.{i}.{draw.choice('äbc')}": torch.randn(
                [draw.randrange(0, 4) for _ in range(draw.randrange(0, 4))], generator=generator
            ).to(draw.choice(dtypes))
            for i in range(draw.randrange(1, 7))
        }
        metadata = draw.choice([None, {"format": "pt"}])
        weights = opened(tmp_path, safetensors.torch.save(stored, metadata))
        theirs = safetensors.torch.load_file(tmp_path / SINGLE)
        assert sorted(weights.names()) == sorted(theirs)
        for name, value in theirs.items():
            assert weights.shape(name) == tuple(value.shape)
            ours = weights.tensor(name)
            assert ours.dtype == value.dtype
            assert torch.equal(ours, value)
    ran(trials(100))


# What the file claims -> its bytes, the field that the error must name, and a part of its words.
LIES: dict[str, tuple[bytes, str, str]] = {
    "empty": (b"", "header length", "the file, which has 0 bytes"),
    "length 2^64-1": (raw_file({}, length=2**64 - 1), "header length", "is 18446744073709551615"),
    "length above the file": (raw_file({}, length=100), "header length", "is 100"),
    "length a byte above the file": (raw_file({}, length=3), "header length", "is 3"),
    "a length and no more": (bytes(8), "header", "is no JSON object"),
    "length above the cap": (
        raw_file({}, length=MAX_HEADER_BYTES + 1),
        "header length",
        "at most 100000000",
    ),
    "not JSON": (raw_file(b"{'k': 1}"), "header", "is not JSON"),
    "not UTF-8": (raw_file(b'{"\xff": 1}'), "header", "is not JSON"),
    "deep JSON": (raw_file(b'{"a":' * 100_000), "header", "is not JSON"),
    "number of 10,000 digits": (raw_file(b'{"a":' + b"9" * 10_000 + b"}"), "header", "is not JSON"),
    "a list": (raw_file(b"[]"), "header", "is no JSON object"),
    "starts with a space": (raw_file(b" {}"), "header", "is no JSON object"),
    "metadata of numbers": (raw_file({"__metadata__": {"a": 1}}), "__metadata__", "text to text"),
    "metadata of null": (raw_file({"__metadata__": None}), "__metadata__", "text to text"),
    "entry is no object": (raw_file({"k": [7]}), "k", "is [7]; it must have dtype, shape"),
    "entry without dtype": (raw_file({"k": {"shape": [], "data_offsets": [0, 0]}}), "k", "dtype"),
    "negative offset": (raw_file({"k": entry([4], -16, 0)}, bytes(16)), "k", "two data_offsets"),
    "offset is a bool": (
        raw_file({"k": entry([1], False, 4)}, bytes(4)),
        "k",
        "two data_offsets",
    ),
    "three offsets": (
        raw_file({"k": {**K, "data_offsets": [0, 16, 16]}}, bytes(16)),
        "k",
        "two data_offsets",
    ),
    "size is a fraction": (raw_file({"k": {**K, "shape": [4.0]}}, bytes(16)), "k", "must have"),
    "9 dimensions": (raw_file({"k": entry([1] * 9, 0, 4)}, bytes(4)), "k", "must have dtype"),
    "begin above end": (raw_file({"k": entry([4], 16, 0)}, bytes(16)), "k", "offsets are [16, 0]"),
    "end past the data": (raw_file({"k": K, "v": V}, bytes(31)), "v", "should have"),
    "span is not shape x dtype": (
        raw_file({"k": entry([5], 0, 16)}, bytes(16)),
        "k",
        "takes 20 bytes, but its data_offsets are [0, 16]",
    ),
    "shape whose product wraps": (
        raw_file({"k": entry([2**62, 4], 0, 0)}),
        "k",
        "which takes 73786976294838206464 bytes",
    ),
    "two tensors on the same bytes": (
        raw_file({"k_proj": K, "v_proj": entry([2, 2], 0, 16)}, bytes(16)),
        "v_proj",
        "shares bytes with k_proj",
    ),
    "overlap": (raw_file({"k": K, "v": entry([3], 12, 24)}, bytes(24)), "v", "shares bytes with k"),
    "hole at the start": (raw_file({"k": entry([4], 4, 20)}, bytes(20)), "k", "leaves a hole"),
    "hole between": (raw_file({"k": K, "v": entry([1], 20, 24)}, bytes(24)), "v", "hole after k"),
    "bytes past the end": (raw_file({"k": K}, bytes(17)), "k", "should have"),
    "name twice": (
        raw_file(b'{"k":{"dtype":"F32","shape":[],"data_offsets":[0,4]},"k":{}}', bytes(4)),
        "k",
        "is there twice",
    ),
    "dtype twice": (raw_file(b'{"k":{"dtype":"F32","dtype":"F32"}}'), "dtype", "is there twice"),
    "name that clears a terminal": (
        raw_file({"\x1b[2J": K}, bytes(16)),
        '"\\u001b[2J"',
        "printable text",
    ),
    "name of 5,000 digits": (
        raw_file({"9" * 5000: K}, bytes(16)),
        f'"{"9" * 76}...',
        "of 1 to 256 characters",
    ),
    "name without letters": (raw_file({"": K}, bytes(16)), "", "printable text"),
}

# The library lets these pass; we are stricter, since names and sizes reach messages and pages.
STRICTER = {
    "starts with a space",
    "metadata of null",
    "9 dimensions",
    "name that clears a terminal",
    "name of 5,000 digits",
    "name without letters",
}


@pytest.mark.parametrize("lie", LIES)
def test_g03_lying_header_is_refused_by_field(lie: str, tmp_path: Path) -> None:
    raw, field, words = LIES[lie]
    tracemalloc.start()
    try:
        with pytest.raises(ModelFormatError) as caught:
            opened(tmp_path, raw)
        assert tracemalloc.get_traced_memory()[1] < 64_000_000
    finally:
        tracemalloc.stop()
    assert caught.value.field == field
    assert words in str(caught.value)
    if lie not in STRICTER:
        with pytest.raises(safetensors.SafetensorError):
            safetensors.torch.load(raw)


def test_g03_unknown_dtype_is_unsupported_by_name(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match='tensor k has the unknown dtype "F12"; known'):
        opened(tmp_path, raw_file({"k": entry([4], 0, 6, "F12")}, bytes(6)))


@pytest.mark.parametrize("dtype", ["I8", "F8_E4M3", "BOOL"])
def test_g03_dtype_that_is_no_weight_is_unsupported_by_name(dtype: str, tmp_path: Path) -> None:
    weights = opened(tmp_path, raw_file({"k": entry([4], 0, 4, dtype)}, bytes(4)))
    message = f"tensor k is stored as {dtype}; supported types are F64, F32, F16, BF16"
    for read in (weights.check, weights.tensor):
        with pytest.raises(UnsupportedModelError, match=message):
            read("k")


@pytest.mark.parametrize("cut", [1, 16, 24])
def test_g02_cut_file_names_expected_and_real_size(cut: int, tmp_path: Path) -> None:
    message = f"should have {len(SMALL)} bytes and has {len(SMALL) - cut}"
    with pytest.raises(ModelFormatError, match=rf"{SINGLE}: v: .*{message}"):
        opened(tmp_path, SMALL[:-cut])


def test_g02_file_cut_at_every_byte_is_refused(tmp_path: Path) -> None:
    for length in range(len(SMALL)):
        with pytest.raises(ModelFormatError):
            opened(tmp_path, SMALL[:length])


def test_g02_file_cut_after_its_header_was_read_is_refused(tmp_path: Path) -> None:
    weights = opened(tmp_path, SMALL)
    (tmp_path / SINGLE).write_bytes(SMALL[:-1])
    with pytest.raises(ModelFormatError, match="v: gave 15 of 16 bytes: the file changed"):
        weights.tensor("v")
    (tmp_path / SINGLE).unlink()
    with pytest.raises(ModelNotFoundError, match="cannot be read: No such file"):
        weights.tensor("v")


@pytest.mark.parametrize("seed", SEEDS)
def test_g03_mutants_load_or_raise_the_documented_errors(seed: int, tmp_path: Path) -> None:
    draw = random.Random(trial_seed(seed))
    outcomes = {"loads": 0, "format": 0, "unsupported": 0}
    header = SMALL[8:-32].decode()
    words = ["0", "-1", "16", "99", "1e3", "[", "]", '"k"', '"F64"', '"I8"', '"F9"', "null", "4"]
    for _ in range(trials(2_000)):
        text = header
        for _ in range(draw.randint(1, 2)):
            at = draw.randrange(len(text))
            end = min(len(text), at + draw.choice([0, 1, 2, 5]))
            text = text[:at] + draw.choice([*words, draw.choice(text), ""]) + text[end:]
        raw = bytearray(raw_file(text.encode(), bytes(range(32))))
        if draw.random() < 0.2:
            raw[draw.randrange(len(raw))] ^= 1 << draw.randrange(8)
        try:
            weights = opened(tmp_path, bytes(raw))
            for name in weights.names():
                assert weights.tensor(name).nbytes <= 32
        except ModelFormatError as error:
            assert error.file
            outcomes["format"] += 1
        except UnsupportedModelError:
            outcomes["unsupported"] += 1
        else:
            theirs = safetensors.torch.load(bytes(raw))  # what we accept, the library accepts
            assert sorted(theirs) == sorted(weights.names())
            outcomes["loads"] += 1
    assert min(outcomes.values()) >= 10, "each outcome must be reached for the test to mean much"
    ran(sum(outcomes.values()))


def sharded(folder: Path, weight_map: object) -> SafetensorsWeights:
    (folder / "a.safetensors").write_bytes(raw_file({"k": K}, bytes(16)))
    (folder / "b.safetensors").write_bytes(raw_file({"v": entry([1], 0, 4)}, b"\0\0\x80\x3f"))
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return SafetensorsWeights(folder)


def test_g04_shards_are_read_through_their_index_only(tmp_path: Path) -> None:
    (tmp_path / "stray.safetensors").write_bytes(raw_file({"w": K}, bytes(16)))
    weights = sharded(tmp_path, {"k": "a.safetensors", "v": "b.safetensors"})
    assert sorted(weights.names()) == ["k", "v"]
    assert weights.tensor("v").tolist() == [1.0]
    (tmp_path / "c.safetensors").write_bytes(b"not even a header")
    assert "v" not in sharded(tmp_path, {"k": "a.safetensors"}).names()


@pytest.mark.parametrize(
    ("shard", "words"),
    [
        ("c.safetensors", "names files that are absent: c.safetensors"),
        ("../b.safetensors", "must be the plain name"),
        ("/etc/b.safetensors", "must be the plain name"),
        ("..\\b.safetensors", "must be the plain name"),
        ("C:b.safetensors", "must be the plain name"),
        ("sub/b.safetensors", "must be the plain name"),
        ("b.bin", "must be the plain name"),
        ("b\0.safetensors", "must be the plain name"),
        ("..", "must be the plain name"),
        (7, "must be the plain name"),
        ("a.safetensors", r"names tensors that their shards lack: v \(a.safetensors\)"),
    ],
)
def test_g04_bad_shard_is_refused_by_name(shard: object, words: str, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    with pytest.raises(ModelFormatError, match=words) as caught:
        sharded(tmp_path, {"k": "a.safetensors", "v": shard})
    assert caught.value.field == "weight_map"
    assert caught.value.file.endswith(INDEX)


@pytest.mark.parametrize("weight_map", [None, [], {}, "a.safetensors"])
def test_g04_index_without_a_map_is_refused(weight_map: object, tmp_path: Path) -> None:
    with pytest.raises(ModelFormatError, match="weight_map: is missing or empty"):
        sharded(tmp_path, weight_map)


def test_g04_shard_may_be_a_link_as_in_the_hub_cache(tmp_path: Path) -> None:
    blobs, folder = tmp_path / "blobs", tmp_path / "snapshot"
    blobs.mkdir()
    folder.mkdir()
    (blobs / "1").write_bytes(SMALL)
    (folder / SINGLE).symlink_to(blobs / "1")
    assert sorted(SafetensorsWeights(folder).names()) == ["k", "v"]


def test_folder_without_weights_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=f"has neither {SINGLE} nor {INDEX}"):
        SafetensorsWeights(tmp_path)


@pytest.mark.parametrize("piece", [1, 7, 1 << 10])
def test_what_is_read_piece_by_piece_for_a_device_is_the_same(piece: int, tmp_path: Path) -> None:
    """As for a GPU, where pieces are pinned; a file that ends before its time is told."""
    tensors = {f"t{n}": torch.randn(3 + n, 5).to(torch.bfloat16) for n in range(4)}
    safetensors.torch.save_file(tensors, tmp_path / "model.safetensors")
    weights = SafetensorsWeights(tmp_path)
    weights.send_to(torch.device("cpu"))
    assert weights._reads is None, "a CPU's are read where they stay"
    weights._reads = StagedReads(torch.device("cpu"), piece=piece)
    for name, tensor in tensors.items():
        assert torch.equal(weights.tensor(name), tensor)
    whole = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(whole[:-3])
    with pytest.raises(ModelFormatError, match="the file changed while it was read"):
        weights.tensor("t3")
