"""A vocabulary: byte-level BPE learned from text, as a folder that models take up."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from types import MappingProxyType

from cutaway.core.errors import ConfigError
from cutaway.host.whole_file import whole_folder
from cutaway.tokens.files.write_json import tokenizer_config, tokenizer_json
from cutaway.tokens.learn_vocabulary import BPELearner
from cutaway.tokens.patterns import CL100K, GPT2, LLAMA3, O200K, QWEN2
from cutaway.train.data.examples import read_documents
from cutaway.train.stage_config import option

PATTERNS: Mapping[str, str] = MappingProxyType(
    {"gpt2": GPT2, "cl100k": CL100K, "llama3": LLAMA3, "qwen2": QWEN2, "o200k": O200K}
)
# What a document lies between, and what the project's chat template writes.
END_OF_TEXT = "<|endoftext|>"
CONTROL_TOKENS = (END_OF_TEXT, "<|im_start|>", "<|im_end|>")


@dataclass(frozen=True, kw_only=True)
class VocabularySettings:
    """What learning a vocabulary is told."""

    out: Path = option(help="a new folder")
    data: tuple[Path, ...] = option(help="files of text, or .jsonl with a text a line")
    size: int = option(4096, help="tokens of the vocabulary", least=256 + len(CONTROL_TOKENS))
    pattern: str = option("gpt2", help="how text is cut into words", choices=tuple(PATTERNS))


def learn(
    settings: VocabularySettings, report: Callable[[int, int], None] = lambda done, total: None
) -> int:
    """Learn and write the folder; gives the number of tokens, fewer where the text has no more.

    report: told of merges done and of all.
    Raises: ConfigError when the folder is there, or naming a file; OSError.
    """
    if settings.out.exists():
        raise ConfigError(f"out is {settings.out}, which is there already; name a new folder.")
    texts = (each.text for path in settings.data for each in read_documents(path) if each.text)
    first = next(texts, None)
    if first is None:
        raise ConfigError(f"data has no text: {', '.join(map(str, settings.data))}.")
    learner = BPELearner(chain((first,), texts), patterns=(PATTERNS[settings.pattern],))
    total = settings.size - 256 - len(CONTROL_TOKENS)
    while len(learner.tokens) < 256 + total and learner.step() is not None:
        report(len(learner.tokens) - 256, total)
    with whole_folder(settings.out) as half:
        for name, value in (
            ("tokenizer.json", tokenizer_json(learner, CONTROL_TOKENS)),
            ("tokenizer_config.json", tokenizer_config(END_OF_TEXT, END_OF_TEXT)),
        ):
            text = json.dumps(value, ensure_ascii=False, indent=1) + "\n"
            (half / name).write_text(text, encoding="utf-8")
    return len(learner.tokens) + len(CONTROL_TOKENS)
