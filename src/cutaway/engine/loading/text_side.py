"""A model's text side, read in a thread of its own while others import torch. Free of torch."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

from cutaway.engine.loading.tokenizer_of import tokenizer_of
from cutaway.host import gguf_file
from cutaway.host.gguf_file import GgufFile
from cutaway.tokens.files.tokenizer_files import tokenizer_from_gguf
from cutaway.tokens.tokenizer import Tokenizer
from cutaway.weights.find.find import Found


class Opening:
    """A found model of which the header and the tokenizer are being read.

    What is wrong with them is raised where they are taken, not before.
    """

    def __init__(self, found: Found) -> None:
        self.found = found
        beside = ThreadPoolExecutor(1)
        self._file: Future[GgufFile] | None = None
        if found.kind == "gguf":
            self._file = beside.submit(gguf_file.read, found.path)
        self._tokenizer = beside.submit(self._read_tokenizer)
        beside.shutdown(wait=False)

    def file(self) -> GgufFile:
        """The file of a GGUF model. Raises: as gguf.read does."""
        assert self._file is not None, "a folder has no GGUF file"
        return self._file.result()

    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer. Raises: as tokenizer_of does."""
        return self._tokenizer.result()

    def _read_tokenizer(self) -> Tokenizer:
        if self._file is None:
            return tokenizer_of(self.found)
        file = self._file.result()
        return tokenizer_from_gguf(file.metadata, file=file.file)
