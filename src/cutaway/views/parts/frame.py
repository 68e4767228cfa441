"""What a view gave as one run of bytes: the layout of safetensors, plain values in its header.

Any safetensors reader opens it; a browser needs 40 lines. Arrays are little-endian, row by row.
Source: the safetensors format, https://github.com/huggingface/safetensors (8 bytes of length, a
JSON header, data).
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from cutaway.views.parts.payload import Array, as_json, split
from cutaway.views.parts.view import Shown

SCHEMA = 1  # of the plain values around a payload

_NAMES = {"float32": "F32", "int64": "I64", "uint8": "U8"}


def frame_view(shown: Shown) -> bytes:
    """A view's numbers and their proof."""
    values, arrays = split(shown.payload)
    told = json.dumps(_described(shown, values), allow_nan=False)
    return write_frame({"cutaway": told}, arrays)


def plain(shown: Shown) -> bytes:
    """The same as JSON alone, its arrays as lists."""
    return json.dumps(_described(shown, as_json(shown.payload)), allow_nan=False).encode()


def _described(shown: Shown, values: object) -> dict[str, object]:
    proof = shown.proof
    return {
        "schema": SCHEMA,
        "view": shown.view.name,
        "stage": shown.view.stage,
        "question": shown.view.question,
        "proof": None if proof is None else str(proof),
        "is_exact": None if proof is None else proof.is_exact,
        "values": values,
    }


def write_frame(metadata: Mapping[str, str], arrays: Mapping[str, Array]) -> bytes:
    """Named arrays and texts in the layout of safetensors."""
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    parts: list[bytes] = []
    end = 0
    for name, array in arrays.items():
        data = array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
        place = [end, end + len(data)]
        header[name] = {
            "dtype": _NAMES[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": place,
        }
        parts.append(data)
        end = place[1]
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)  # data then begins at a multiple of 8
    return b"".join([len(head).to_bytes(8, "little"), head, *parts])
