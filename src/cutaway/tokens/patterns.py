"""How each family of vocabularies cuts text before merging, and its control tokens, by name.

A name that is not in these tables raises: another family's rule gives worse ids without an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from cutaway.core.errors import UnsupportedModelError
from cutaway.core.limits import quote, similar
from cutaway.tokens.unicode import NormalForm

GPT2 = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
DIGIT = r"\p{N}"
CL100K = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"
    r"|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
)
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")

_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_CASED_TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
O200K = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTION}"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTION}"
    r"|\p{N}{1,3}" + _CASED_TAIL
)
TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    r"|\p{N}" + _CASED_TAIL
)
DEEPSEEK_V3 = (
    r"\p{N}{1,3}",
    r"[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)
# What llama.cpp does for GGUF files whose writer knew no better than "default".
DEFAULT = (r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")


@dataclass(frozen=True)
class Family:
    """How text is cut: each pattern cuts every piece that the patterns before it left.

    normal_form:   applied to the text first.
    ignore_merges: whether a piece that is itself a token is taken whole, unmerged.
    adds_bos:      whether a prompt begins with the token for begin of text.
    """

    patterns: tuple[str, ...]
    normal_form: NormalForm | None = None
    ignore_merges: bool = False
    adds_bos: bool = False


_GPT2 = Family((GPT2,))
_DIGITS = Family((DIGIT, GPT2))
_LLAMA3 = Family((LLAMA3,), ignore_merges=True, adds_bos=True)

# Values of tokenizer.ggml.pre, as the writers of GGUF files use them.
GGUF_FAMILIES: Mapping[str, Family] = {
    "gpt-2": _GPT2,
    "phi-2": _GPT2,
    "mpt": _GPT2,
    "olmo": _GPT2,
    "smollm": _DIGITS,
    "starcoder": _DIGITS,
    "refact": _DIGITS,
    "command-r": _DIGITS,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "dbrx": Family((LLAMA3,)),
    "smaug-bpe": Family((LLAMA3,)),
    "glm4": Family((LLAMA3,)),
    "chatglm-bpe": Family((LLAMA3,)),
    "qwen2": Family((QWEN2,), normal_form="NFC"),
    "deepseek-r1-qwen": Family((QWEN2,)),
    "stablelm2": Family((QWEN2,)),
    "gpt-4o": Family((O200K,)),
    "llama4": Family((O200K,)),
    "tekken": Family((TEKKEN,), ignore_merges=True, adds_bos=True),
    "deepseek-v3": Family(DEEPSEEK_V3),
    "default": Family(DEFAULT),
}


@dataclass(frozen=True)
class Encoding:
    """A public vocabulary that comes as a rank file: its pattern and control tokens."""

    pattern: str
    control_tokens: Mapping[str, int]
    eos: tuple[str, ...] = ("<|endoftext|>",)


_FIM = ("<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>")
_END = "<|endoftext|>"
_HARMONY_NAMES = {
    199998: "<|startoftext|>",
    199999: _END,
    200002: "<|return|>",
    200003: "<|constrain|>",
    200005: "<|channel|>",
    200006: "<|start|>",
    200007: "<|end|>",
    200008: "<|message|>",
    200012: "<|call|>",
    200018: "<|endofprompt|>",
}

# Source: tiktoken_ext/openai_public.py.
ENCODINGS: Mapping[str, Encoding] = {
    "gpt2": Encoding(GPT2, {_END: 50256}),
    "r50k_base": Encoding(GPT2, {_END: 50256}),
    "p50k_base": Encoding(GPT2, {_END: 50256}),
    "p50k_edit": Encoding(GPT2, {_END: 50256} | {name: 50281 + n for n, name in enumerate(_FIM)}),
    "cl100k_base": Encoding(
        CL100K,
        {_END: 100257, "<|endofprompt|>": 100276}
        | {name: 100258 + n for n, name in enumerate(_FIM)},
    ),
    "o200k_base": Encoding(O200K, {_END: 199999, "<|endofprompt|>": 200018}),
    "o200k_harmony": Encoding(
        O200K,
        {_HARMONY_NAMES.get(i, f"<|reserved_{i}|>"): i for i in range(199998, 201088)}
        | {"<|reserved_200018|>": 200018},
        eos=("<|return|>", "<|call|>", "<|endoftext|>"),
    ),
}


def gguf_family(name: str) -> Family:
    """The family that tokenizer.ggml.pre names.

    Raises: UnsupportedModelError for any other name.
    """
    if name not in GGUF_FAMILIES:
        raise UnsupportedModelError(_unknown("tokenizer.ggml.pre", name, GGUF_FAMILIES))
    return GGUF_FAMILIES[name]


def encoding(name: str) -> Encoding:
    """The public encoding of that name.

    Raises: UnsupportedModelError for any other name.
    """
    if name not in ENCODINGS:
        raise UnsupportedModelError(_unknown("encoding", name, ENCODINGS))
    return ENCODINGS[name]


def _unknown(what: str, name: str, known: Iterable[str]) -> str:
    near = similar(name, known)
    hint = f" Did you mean {near[0]}?" if near else ""
    return (
        f"{what} is {quote(name)}; Cutaway knows {', '.join(sorted(known))}.{hint} "
        "Cutting text by another rule would give wrong token ids without an error."
    )
