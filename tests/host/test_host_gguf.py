"""The GGUF reader: what a sound file gives, and that a lying one is refused by name."""

from __future__ import annotations

import os
import random
import struct
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import gguf_bytes as b
from cutaway.core.errors import ModelFormatError, ModelNotFoundError, UnsupportedModelError
from cutaway.core.gguf_types import BLOCK_TYPES
from cutaway.host import gguf_file, gguf_header
from oracles import smollm2_gguf
from trials import ran, trials
from trials import seed as trial_seed


def read(folder: Path, raw: bytes) -> gguf_file.GgufFile:
    path = folder / "m.gguf"
    path.unlink(missing_ok=True)  # a file that is overwritten is flushed to disk: 20 times slower
    path.write_bytes(raw)
    return gguf_file.read(path)


@pytest.fixture
def small_memory() -> Iterator[None]:
    """The test body may take at most 64 MB."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < 64_000_000
    finally:
        tracemalloc.stop()


def test_read_gives_metadata_tensors_and_bytes(tmp_path: Path) -> None:
    file = read(tmp_path, b.small_valid())
    assert file.version == 3
    assert file.text("general.architecture") == "llama"
    assert file.integer("a.count") == 7
    assert file.number("a.eps") == 0.5
    assert file.flag("a.flag") is True
    assert file.strings("a.names") == ("x", "", "äé")
    assert file.integers("a.types") == (1, 2, 3)
    assert file.numbers("a.types") == (1.0, 2.0, 3.0)
    assert file.metadata["a.flags"] == (False, True)
    assert file.tensors["w.q"].shape == (2, 32)
    assert file.tensors["w.q"].type == "Q8_0"
    assert bytes(file.data("w.q")) == bytes(range(68))
    assert struct.unpack("<4f", file.data("w.n")) == (1, 2, 3, 4)
    assert file.data("w.n").readonly


def test_a_released_tensor_is_there_when_it_is_read_again(tmp_path: Path) -> None:
    file = read(tmp_path, b.small_valid())
    before = {name: bytes(file.data(name)) for name in file.tensors}
    for name in file.tensors:
        file.release(name)
    assert {name: bytes(file.data(name)) for name in file.tensors} == before


def test_version_2_is_read(tmp_path: Path) -> None:
    raw = b.gguf([b.key("k", b.UINT8, b"\5")], version=2)
    assert read(tmp_path, raw).integer("k") == 5


def test_getter_names_key_and_type_when_absent_or_wrong(tmp_path: Path) -> None:
    file = read(tmp_path, b.small_valid())
    assert file.integer("absent", 3) == 3
    for getter in (file.text, file.integer, file.number, file.flag, file.strings, file.integers):
        with pytest.raises(ModelFormatError, match=r"m\.gguf: absent: is absent from the metadata"):
            getter("absent")
    wrong = {
        "a string": (file.text, "a.count"),
        "an integer": (file.integer, "a.flag"),
        "a finite number": (file.number, "a.flag"),
        "a bool": (file.flag, "a.count"),
        "an array of strings": (file.strings, "a.flags"),
        "an array of integers": (file.integers, "a.names"),
        "an array of numbers": (file.numbers, "a.count"),
    }
    for wanted, (getter, name) in wrong.items():
        with pytest.raises(ModelFormatError, match=f"{name}: is .*; it must be {wanted}"):
            getter(name)


def test_number_refuses_nan(tmp_path: Path) -> None:
    file = read(tmp_path, b.gguf([b.key("eps", b.FLOAT32, struct.pack("<f", float("nan")))]))
    with pytest.raises(ModelFormatError, match="eps: is nan; it must be a finite number"):
        file.number("eps")


def test_read_names_what_is_no_file(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent.gguf"):
        with pytest.raises(ModelNotFoundError, match="is not a file; give the path of a"):
            gguf_file.read(path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_read_does_not_wait_for_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    with pytest.raises(ModelNotFoundError, match="is not a file"):
        gguf_file.read(tmp_path / "pipe.gguf")


def test_read_names_a_file_that_may_not_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b.small_valid())

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(ModelNotFoundError, match=r"m\.gguf cannot be read: Permission denied"):
        gguf_file.read(path)


HUGE = 2**64 - 1
ONE = b.tensor("t", [4])
DATA = bytes(16)

# What the file claims -> its bytes, the field that the error must name, and a part of its words.
LIES: dict[str, tuple[bytes, str, str]] = {
    "empty file": (b"", "header", "has 0 bytes"),
    "other magic": (b"GGML" + b.gguf()[4:], "magic", "b'GGML'"),
    "5 dims": (b.gguf([], [b.tensor("t", [1] * 5)], DATA), "t", "has 5 dimensions"),
    "0 dims": (b.gguf([], [b.tensor("t", [4], num_dims=0)], DATA), "t", "has 0 dimensions"),
    "2^32-1 dims": (
        b.gguf([], [b.tensor("t", [4], num_dims=2**32 - 1)], DATA),
        "t",
        "has 4294967295 dimensions",
    ),
    "dims that wrap": (b.gguf([], [b.tensor("t", [HUGE, 2])], DATA), "t", "the file should have"),
    "dims product 2^42+1": (
        b.gguf([], [b.tensor("t", [2**42 + 1, 4, 1])], DATA),
        "t",
        "the file should have",
    ),
    "dim 0": (b.gguf([], [b.tensor("t", [0, HUGE])], DATA), "t", "sizes must be above 0"),
    "row not of whole blocks": (
        b.gguf([], [b.tensor("t", [33], type=b.Q8_0)], bytes(68)),
        "t",
        "a multiple of 32",
    ),
    "key count 2^63": (b.gguf(num_keys=2**63), "key count", "at most 65536"),
    "key count above the bytes": (
        b.gguf(num_keys=60_000),
        "key count",
        "takes at least 780000 bytes, and 8 are left",
    ),
    "a few keys above the bytes": (b.gguf(num_keys=20), "key count", "takes at least 260 bytes"),
    "tensor count 2^64-1": (b.gguf(num_tensors=HUGE), "tensor count", "at most 65536"),
    "tensor count above the bytes": (
        b.gguf(num_tensors=60_000),
        "tensor count",
        "takes at least 1920000 bytes, and 16 are left",
    ),
    "string of 2^30 bytes": (
        b.gguf([b.key("k", b.STRING, b.string("x", length=2**30))]),
        "k",
        "string of 1073741824 bytes; at most 16777216",
    ),
    "string of 2^63 bytes": (
        b.gguf([b.key("k", b.STRING, b.string("x", length=2**63))]),
        "k",
        "at most 16777216",
    ),
    "string past the end": (
        b.gguf([b.key("k", b.STRING, b.string("x", length=2**20))]),
        "k",
        "needs 1048576 bytes from byte",
    ),
    "key of 257 bytes": (b.gguf([b.key("k" * 257, b.BOOL, b"\1")]), "key 0", "257 bytes; at most"),
    "name of 257 bytes": (b.gguf([], [b.tensor("t" * 257, [4])], DATA), "tensor 0", "at most 256"),
    "key without letters": (b.gguf([b.key("", b.BOOL, b"\1")]), "key 0", "printable text"),
    "name that clears a terminal": (
        b.gguf([], [b.tensor("t\x1b[2J", [4])], DATA),
        "tensor 0",
        'has the name "t\\u001b[2J"',
    ),
    "array of 2^40 items": (
        b.gguf([b.key("k", b.ARRAY, b.array(b.UINT8, 2**40, b""))]),
        "k",
        "array of 1099511627776 items",
    ),
    "array of 2^23 absent numbers": (
        b.gguf([b.key("k", b.ARRAY, b.array(b.UINT64, 2**23, b""))]),
        "k",
        "needs 67108864 bytes",
    ),
    "array of 2^23 absent strings": (
        b.gguf([b.key("k", b.ARRAY, b.array(b.STRING, 2**23, b""))]),
        "k",
        "array of 8388608 strings, which takes at least 67108864 bytes, and 15 are left",
    ),
    "array of a few absent strings": (
        b.gguf([b.key("k", b.ARRAY, b.array(b.STRING, 20, b""))]),
        "k",
        "array of 20 strings, which takes at least 160 bytes, and 15 are left",
    ),
    "array with a string of 2^60 bytes": (
        b.gguf([b.key("k", b.ARRAY, b.array(b.STRING, 2, b.string("a") + b.u64(2**60) + DATA))]),
        "k[1]",
        "string of 1152921504606846976 bytes",
    ),
    "arrays of 16 M items in all": (
        b.gguf(
            [
                b.key("a", b.ARRAY, b.array(b.UINT8, 1, b"\0")),
                b.key("b", b.ARRAY, b.array(b.UINT8, 2**24, b"")),
            ]
        ),
        "b",
        "all arrays together",
    ),
    "array of arrays": (
        b.gguf([b.key("k", b.ARRAY, b.array(b.ARRAY, 1, b.array(b.UINT8, 1, b"\0")))]),
        "k",
        "array of arrays",
    ),
    "array of type 13": (b.gguf([b.key("k", b.ARRAY, b.array(13, 1, DATA))]), "k", "value type 13"),
    "value of type 2^31": (b.gguf([b.key("k", 2**31, DATA)]), "k", "value type 2147483648"),
    "bool 2": (b.gguf([b.key("k", b.BOOL, b"\2")]), "k", "the bool 2"),
    "bool 255 in an array": (
        b.gguf([b.key("k", b.ARRAY, b.array(b.BOOL, 2, b"\1\xff"))]),
        "k",
        "the bool 255",
    ),
    "string that is not UTF-8": (
        b.gguf([b.key("k", b.STRING, b.string(b"\xff"))]),
        "k",
        "not UTF-8",
    ),
    "string in an array that is not UTF-8": (
        b.gguf([b.key("k", b.ARRAY, b.array(b.STRING, 2, b.string("a") + b.string(b"\xc3")))]),
        "k[1]",
        "not UTF-8",
    ),
    "key twice": (b.gguf([b.key("k", b.BOOL, b"\1")] * 2), "k", "there twice"),
    "tensor twice": (b.gguf([], [ONE, ONE], DATA), "t", "there twice"),
    "offset past the end": (
        b.gguf([], [b.tensor("t", [4], offset=2**20)], DATA),
        "t",
        "the file should have 1048656 bytes and has 80",
    ),
    "offset that wraps": (
        b.gguf([], [b.tensor("t", [4], offset=HUGE - 31)], DATA),
        "t",
        "the file should have",
    ),
    "offset not aligned": (
        b.gguf([], [b.tensor("t", [4], offset=16)], bytes(32)),
        "t",
        "has offset 16; it must be a multiple of 32",
    ),
    "two tensors on the same bytes": (
        b.gguf([], [b.tensor("k", [16]), b.tensor("v", [16], offset=32)], bytes(96)),
        "v",
        "shares bytes with k",
    ),
    "no data at all": (b.gguf([], [ONE]), "t", "the file should have"),
    "alignment of type string": (
        b.gguf([b.key("general.alignment", b.STRING, b.string("32"))]),
        "general.alignment",
        'is "32"; it must be a power of two',
    ),
    **{
        f"alignment {value}": (
            b.gguf([b.key("general.alignment", b.UINT32, b.u32(value))], [ONE], DATA),
            "general.alignment",
            f"is {value}; it must be a power of two from 1 to 65536",
        )
        for value in (0, 3, 131_072, 2**31)
    },
}


@pytest.mark.usefixtures("small_memory")
@pytest.mark.parametrize("lie", LIES)
def test_g01_lying_file_is_refused_by_field(lie: str, tmp_path: Path) -> None:
    raw, field, words = LIES[lie]
    with pytest.raises(ModelFormatError) as caught:
        read(tmp_path, raw)
    assert caught.value.field == field
    assert caught.value.file == str(tmp_path / "m.gguf")
    assert words in str(caught.value)


@pytest.mark.parametrize("number", [4, 31, 99, 2**32 - 1])
def test_g01_unknown_tensor_type_is_unsupported_by_name(number: int, tmp_path: Path) -> None:
    raw = b.gguf([], [b.tensor("blk.0.w", [4], type=number)], DATA)
    with pytest.raises(UnsupportedModelError, match=rf"blk\.0\.w has type number {number}; known"):
        read(tmp_path, raw)


@pytest.mark.parametrize("version", [0, 1, 4, 2**31 + 1])
def test_g01_other_version_is_unsupported(version: int, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match=f"version is {version}; it must be 2 or 3"):
        read(tmp_path, b.gguf(version=version))


def test_g01_big_endian_is_unsupported(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="is big-endian; only little-endian"):
        read(tmp_path, b.gguf(version=0x03000000))


@pytest.mark.parametrize("alignment", [1, 8, 64, 65_536])
def test_alignment_moves_the_data(alignment: int, tmp_path: Path) -> None:
    key = b.key("general.alignment", b.UINT32, b.u32(alignment))
    raw = b.gguf([key], [ONE], bytes(range(16)), alignment=alignment)
    assert bytes(read(tmp_path, raw).data("t")) == bytes(range(16))


@pytest.mark.usefixtures("small_memory")
def test_g01_file_cut_at_every_byte_is_refused(tmp_path: Path) -> None:
    whole = b.small_valid()
    for length in range(len(whole)):
        with pytest.raises(ModelFormatError):
            read(tmp_path, whole[:length])


@pytest.mark.parametrize("cut", [1, 8, 50])
def test_g02_cut_file_names_expected_and_real_size(cut: int, tmp_path: Path) -> None:
    whole = b.small_valid()
    with pytest.raises(ModelFormatError) as caught:
        read(tmp_path, whole[:-cut])
    assert f"should have {len(whole)} bytes and has {len(whole) - cut}" in str(caught.value)
    assert "m.gguf" in str(caught.value)


def test_g02_the_tensor_that_does_not_fit_is_named_and_not_the_one_that_just_does(
    tmp_path: Path,
) -> None:
    directory = [b.tensor("fits", (4,), offset=0), b.tensor("does not", (4,), offset=32)]
    with pytest.raises(ModelFormatError) as caught:
        read(tmp_path, b.gguf(tensors=directory, data=bytes(16)))
    assert caught.value.field == "does not"
    read(tmp_path, b.gguf(tensors=directory, data=bytes(48)))


# Type of a value -> how it is packed, and one that no other type of its size gives back.
PACKED = {
    **{0: ("B", 200), 1: ("b", -100), 2: ("H", 60_000), 3: ("h", -30_000), 4: ("I", 4 * 10**9)},
    **{5: ("i", -(2 * 10**9)), 6: ("f", 0.5), 10: ("Q", 2**64 - 1), 11: ("q", -(2**63))},
    12: ("d", 0.1),
}


@pytest.mark.parametrize("kind", PACKED)
def test_numbers_of_every_type_are_read_alone_and_in_arrays(kind: int, tmp_path: Path) -> None:
    layout, value = PACKED[kind]
    one, three = struct.pack(f"<{layout}", value), struct.pack(f"<3{layout}", value, 0, 1)
    keys = [b.key("one", kind, one), b.key("three", b.ARRAY, b.array(kind, 3, three))]
    found = read(tmp_path, b.gguf(keys)).metadata
    assert found["one"] == value and list(found["three"]) == [value, 0, 1]  # type: ignore[arg-type]


def test_caps_are_the_promised_ones_and_what_reaches_them_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = gguf_header
    assert (own.MAX_TENSORS, own.MAX_KEYS, own.MAX_ALIGNMENT) == (65_536, 65_536, 65_536)
    assert (own.MAX_STRING_BYTES, own.MAX_ARRAY_ITEMS) == (16_777_216, 16_777_216)
    name = "n" * 256
    file = read(
        tmp_path, b.gguf([b.key(name, b.UINT8, b"\1")], [b.tensor(name, [1, 1, 1, 4])], DATA)
    )
    assert file.tensors[name].shape == (4, 1, 1, 1) and file.integer(name) == 1
    for long in (
        b.gguf([b.key("n" * 257, b.UINT8, b"\1")]),
        b.gguf([], [b.tensor("n" * 257, [4])]),
    ):
        with pytest.raises(ModelFormatError, match="a string of 257 bytes; at most 256 are"):
            read(tmp_path, long)
    monkeypatch.setattr(own, "MAX_ARRAY_ITEMS", 6)
    four, two = (b.array(b.BOOL, count, bytes(count)) for count in (4, 2))
    keys = [b.key("a", b.ARRAY, four), b.key("b", b.ARRAY, two)]
    assert read(tmp_path, b.gguf(keys)).metadata["b"] == (False, False)
    with pytest.raises(ModelFormatError, match="all arrays together may have 6"):
        read(tmp_path, b.gguf([*keys, b.key("c", b.ARRAY, b.array(b.BOOL, 1, b"\0"))]))
    for cap, count, words in (
        ("MAX_KEYS", 2, "key count: is 2; at most 1 are allowed"),
        ("MAX_TENSORS", 2, "tensor count: is 2; at most 1 are allowed"),
    ):
        monkeypatch.setattr(own, cap, count)
        tensors = [b.tensor("s", [4]), b.tensor("t", [4], offset=32)]
        whole = b.gguf(keys, tensors, bytes(48))
        read(tmp_path, whole)
        monkeypatch.setattr(own, cap, count - 1)
        with pytest.raises(ModelFormatError, match=words):
            read(tmp_path, whole)
        monkeypatch.setattr(own, cap, count)


def test_a_file_without_tensors_may_end_with_its_last_value(tmp_path: Path) -> None:
    raw = b.gguf([b.key("k", b.STRING, b.string("end"))], alignment=1)
    assert raw.endswith(b"end") and read(tmp_path, raw).text("k") == "end"


def test_an_array_of_empty_strings_fits_where_it_just_fits(tmp_path: Path) -> None:
    many = b.array(b.STRING, 400, b.string("") * 400)
    raw = b.gguf([b.key("k", b.ARRAY, many)], alignment=1)  # which ends with the last of them
    assert read(tmp_path, raw).strings("k") == ("",) * 400


def test_strings_of_an_array_are_read_however_far_in_the_file_they_lie(tmp_path: Path) -> None:
    long = "x" * gguf_header.MAX_STRING_BYTES  # what lies behind it ends past the most of a string
    two = b.array(b.STRING, 2, b.string(long) + b.string("äé"))
    assert read(tmp_path, b.gguf([b.key("k", b.ARRAY, two)])).strings("k") == (long, "äé")
    longer = b.array(b.STRING, 1, b.string(long + "x"))
    with pytest.raises(ModelFormatError, match="string of 16777217 bytes; at most 16777216"):
        read(tmp_path, b.gguf([b.key("k", b.ARRAY, longer)]))


def test_data_begin_at_a_multiple_of_32_where_nothing_else_is_said(tmp_path: Path) -> None:
    file = read(tmp_path, b.gguf([], [ONE], bytes(range(16))))
    assert file.tensors["t"].offset % 32 == 0 and bytes(file.data("t")) == bytes(range(16))


def mutants(whole: bytes, count: int, seed: int) -> Iterator[bytes]:
    """Files with one to three lies: numbers at any place, flipped, dropped or doubled bytes."""
    draw = random.Random(seed)
    numbers = [0, 1, 2, 3, 7, 8, 9, 13, 31, 255, 2**16, 2**31, 2**32 - 1, 2**40, 2**63, HUGE]
    for _ in range(count):
        raw = bytearray(whole)
        for _ in range(draw.randint(1, 3)):
            at = draw.randrange(len(raw) - 8)
            match draw.randrange(4):
                case 0:
                    raw[at : at + 8] = b.u64(draw.choice(numbers))
                case 1:
                    raw[at : at + 4] = b.u32(draw.choice(numbers) & 0xFFFFFFFF)
                case 2:
                    raw[at] ^= 1 << draw.randrange(8)
                case _:
                    size = draw.randint(1, 8)
                    raw[at : at + size] = draw.choice([b"", bytes(raw[at : at + size]) * 2])
        yield bytes(raw)


@pytest.mark.usefixtures("small_memory")
@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3, 4, 5))]
)
def test_g01_mutants_load_or_raise_the_documented_errors(seed: int, tmp_path: Path) -> None:
    outcomes = {"loads": 0, "format": 0, "unsupported": 0}
    for raw in mutants(b.small_valid(), trials(2_000), trial_seed(seed)):
        try:
            file = read(tmp_path, raw)
        except ModelFormatError as error:
            assert error.field and error.file
            outcomes["format"] += 1
        except UnsupportedModelError:
            outcomes["unsupported"] += 1
        else:
            for name, tensor in file.tensors.items():
                assert len(file.data(name)) == tensor.num_bytes
            outcomes["loads"] += 1
    assert min(outcomes.values()) >= 20, "each outcome must be reached for the test to mean much"
    ran(sum(outcomes.values()))


def test_sizes_of_types_equal_the_gguf_package() -> None:
    oracle = pytest.importorskip("gguf")
    theirs = {
        int(kind): (kind.name, *size)
        for kind, size in oracle.constants.GGML_QUANT_SIZES.items()
        if int(kind) in BLOCK_TYPES
    }
    ours = {n: (t.name, t.block_values, t.block_bytes) for n, t in BLOCK_TYPES.items()}
    assert {n: ours[n] for n in theirs} == theirs
    assert len(theirs) >= 30


def random_file(path: Path, draw: random.Random) -> dict[str, np.ndarray]:
    """A sound file by the gguf package's writer, and the tensors in it."""
    oracle = pytest.importorskip("gguf")
    writer = oracle.GGUFWriter(path, draw.choice(["llama", "qwen2"]))
    if draw.random() < 0.5:
        writer.add_custom_alignment(draw.choice([8, 64, 256]))
    writer.add_uint32("x.uint32", draw.randrange(2**32))
    writer.add_int64("x.int64", -draw.randrange(2**63))
    writer.add_float64("x.float64", draw.random())
    writer.add_bool("x.bool", draw.random() < 0.5)
    writer.add_string("x.string", "".join(chr(draw.randrange(0x250)) for _ in range(9)))
    writer.add_array("x.strings", [chr(draw.randrange(32, 900)) for _ in range(4)])
    writer.add_array("x.floats", [draw.random() for _ in range(3)])
    writer.add_array("x.ints", [draw.randrange(-9, 9) for _ in range(5)])
    numbers = np.random.default_rng(draw.randrange(2**32))
    tensors: dict[str, np.ndarray] = {}
    for index in range(draw.randrange(1, 6)):
        shape = [draw.randrange(1, 5) for _ in range(draw.randrange(0, 4))] + [64]
        dtype = draw.choice([np.float32, np.float16, np.float64, np.int8, np.int32])
        tensors[f"t.{index}"] = numbers.integers(-99, 99, shape).astype(dtype)
        writer.add_tensor(f"t.{index}", tensors[f"t.{index}"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tensors


@pytest.mark.skipif(sys.byteorder != "little", reason="compares with arrays of this machine")
def test_random_files_equal_the_gguf_package(tmp_path: Path) -> None:
    oracle = pytest.importorskip("gguf")
    draw = random.Random(trial_seed(2))
    path = tmp_path / "m.gguf"
    for _ in range(trials(100)):
        tensors = random_file(path, draw)
        file = gguf_file.read(path)
        theirs = oracle.GGUFReader(path)
        for name, field in theirs.fields.items():
            if not name.startswith("GGUF."):
                value = file.metadata[name]
                ours = list(value) if isinstance(field.contents(), list) else value
                assert ours == field.contents(), name
        assert list(file.tensors) == [t.name for t in theirs.tensors]
        for name, values in tensors.items():
            assert file.tensors[name].shape == values.shape
            assert bytes(file.data(name)) == values.tobytes()
    ran(trials(100))


@pytest.mark.oracle
def test_smollm2_header_holds_the_published_numbers() -> None:
    file = gguf_file.read(smollm2_gguf())
    assert len(file.metadata) == 33
    assert len(file.tensors) == 272
    assert len(file.strings("tokenizer.ggml.tokens")) == 49_152
    assert len(file.strings("tokenizer.ggml.merges")) == 48_900
    assert file.integer("llama.block_count") == 30
    by_type: dict[str, int] = {}
    for tensor in file.tensors.values():
        by_type[tensor.type] = by_type.get(tensor.type, 0) + tensor.num_bytes
    assert by_type == {"Q8_0": 30_081_024, "Q4_1": 66_355_200, "F32": 140_544}
