"""SentencePiece's normalization rules in their compiled form: characters and what they become.

A rule file is a double-array trie over the UTF-8 of what is replaced, then the replacements, each
ended by a zero byte.
Source: sentencepiece normalizer.cc and third_party/darts_clone; HF's spm_precompiled for graphemes.
"""

from __future__ import annotations

import hashlib
import struct

import regex

from cutaway.core.errors import ModelFormatError

_GRAPHEMES = regex.compile(r"\X")
_LONGEST_GRAPHEME = 6  # bytes; HF looks longer ones up character by character
_ROOT = 0


class Charsmap:
    """Replaces at each place by the rule that matches most characters from there on.

    Raises: ModelFormatError naming file and field for a map that is cut.
    """

    def __init__(self, data: bytes, *, file: str, field: str) -> None:
        size = struct.unpack_from("<I", data)[0] if len(data) >= 4 else 0
        if size == 0 or size % 4 or 4 + size > len(data):
            raise ModelFormatError(
                f"has {len(data)} bytes and says that its trie takes {size}; it is cut or no map "
                "of characters. Fetch the file again.",
                file=file,
                field=field,
            )
        self.sha256 = hashlib.sha256(data).hexdigest()
        self._units = struct.unpack_from(f"<{size // 4}I", data, 4)
        self._replacements = data[4 + size :]
        # Two characters -> what the first becomes, or None where a rule may take both.
        self._known: dict[str, str | None] = {}

    def __repr__(self) -> str:
        return f"Charsmap({self.sha256})"

    def apply(self, text: str) -> str:
        """The text, from left to right, the longest rule first."""
        done: list[str] = []
        at, end, known = 0, len(text), self._known
        while at < end:
            pair = text[at : at + 2]
            single = known.get(pair, "")
            if single == "" and pair not in known:
                single = self._learn(pair)
            if single is not None:
                done.append(single)
                at += 1
                continue
            length, replacement = self._longest(text, at)
            done.append(replacement)
            at += length
        return "".join(done)

    def apply_to_graphemes(self, text: str) -> str:
        """The text as HF tokenizers maps it: a grapheme is replaced by the first rule in it.

        A rule for its first character alone replaces the whole grapheme.
        """
        done: list[str] = []
        for grapheme in _GRAPHEMES.findall(text):
            whole = None
            if len(grapheme.encode("utf-8", "surrogatepass")) < _LONGEST_GRAPHEME:
                whole = self._shortest(grapheme)
            if whole is not None:
                done.append(whole)
                continue
            for character in grapheme:
                found = self._shortest(character)
                done.append(character if found is None else found)
        return "".join(done)

    def _learn(self, pair: str) -> str | None:
        if len(self._known) >= 1 << 16:
            self._known.clear()
        node = self._step(_ROOT, pair[0])
        goes_on = node is not None and len(pair) > 1 and self._step(node, pair[1]) is not None
        single = None if goes_on else self._longest(pair[0], 0)[1]
        self._known[pair] = single
        return single

    def _longest(self, text: str, at: int) -> tuple[int, str]:
        """How many characters the longest rule takes, and what they become."""
        node, length, replacement = _ROOT, 1, text[at]
        for end in range(at, len(text)):
            step = self._step(node, text[end])
            if step is None:
                break
            node = step
            found = self._value(node)
            if found is not None:
                length, replacement = end + 1 - at, found
        return length, replacement

    def _shortest(self, text: str) -> str | None:
        node = _ROOT
        for character in text:
            step = self._step(node, character)
            if step is None:
                return None
            node = step
            found = self._value(node)
            if found is not None:
                return found
        return None

    def _step(self, node: int, character: str) -> int | None:
        """The node after one more character; None where no rule goes on.

        A node is the number of the unit that leads to it; the root's is 0.
        """
        units = self._units
        for byte in character.encode("utf-8", "surrogatepass"):
            unit = units[node]
            # Darts: an offset of 22 bits, shifted by 8 more if bit 9 is set.
            node ^= (unit >> 10) << ((unit & (1 << 9)) >> 6)
            node ^= byte
            if node >= len(units) or units[node] & 0x800000FF != byte:
                return None
        return node

    def _value(self, node: int) -> str | None:
        """What the characters up to this node become, if they are a rule."""
        unit = self._units[node]
        if not unit >> 8 & 1:
            return None
        leaf = node ^ (unit >> 10) << ((unit & (1 << 9)) >> 6)
        if leaf >= len(self._units):
            return None
        start = self._units[leaf] & 0x7FFFFFFF
        end = self._replacements.find(b"\0", start)
        return self._replacements[start : None if end < 0 else end].decode("utf-8", "replace")
