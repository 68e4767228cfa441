"""The tokenizer of a found model, without its weights. Free of torch, as far as weights.find is."""

from __future__ import annotations

from pathlib import Path

from cutaway.host import gguf_file
from cutaway.tokens.byte_tokenizer import byte_tokenizer
from cutaway.tokens.files.json_node import JsonNode
from cutaway.tokens.files.tokenizer_files import load_folder, tokenizer_from_gguf
from cutaway.tokens.tokenizer import Tokenizer
from cutaway.weights.find.find import Found


def tokenizer_of(found: Found) -> Tokenizer:
    """The tokenizer that lies in or beside a model.

    A folder's tokenizer.json counts before its tokenizer.model. Random weights take those of their
    folder, else bytes.

    Raises: ModelNotFoundError, ModelFormatError naming file and field, UnsupportedModelError.
    """
    if found.kind == "gguf":
        return tokenizer_from_gguf(gguf_file.read(found.path).metadata, file=str(found.path))
    if found.kind == "folder":
        return load_folder(found.path)
    folder = found.path.parent
    has_own = any((folder / f"tokenizer.{kind}").is_file() for kind in ("json", "model"))
    return load_folder(folder) if has_own else _bytes_of(found.path)


def _bytes_of(config: Path) -> Tokenizer:
    """The byte tokenizer, ending where the configuration says, unless that is a byte itself."""
    named = JsonNode.read(config)["eos_token_id"].value
    if isinstance(named, int) and not isinstance(named, bool) and named > 255:
        return byte_tokenizer(eos_token_id=named)
    return byte_tokenizer(eos_token_id=None)
