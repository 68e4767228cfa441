"""Split patterns of published tokenizers as their files have them, by family."""

# ruff: noqa: E501, RUF001 - patterns stand as they were published

from __future__ import annotations

from cutaway.tokens.patterns import CL100K, DEEPSEEK_V3, GPT2, LLAMA3, O200K, QWEN2

_CASED = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r"|\s*[\r\n]+|\s+(?!\S)|\s+"

# pattern by the name of a family whose tokenizer.json has it.
PUBLISHED: dict[str, str] = {
    "GPT-2": GPT2,
    "GPT-4": CL100K,
    "GPT-4, converted": _CONTRACTION
    + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    + _REST,
    "GPT-4, possessive": _CONTRACTION
    + r"|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
    "GPT-4o": O200K,
    "Llama 3": LLAMA3,
    "Qwen2": QWEN2,
    "Qwen3.5": _CONTRACTION
    + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    + _REST,
    "Kimi K2": r"[\p{Han}]+"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_CASED[0]}*{_CASED[1]}+{_CONTRACTION}?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_CASED[0]}+{_CASED[1]}*{_CONTRACTION}?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*" + _REST,
    "DeepSeek V3, numbers": DEEPSEEK_V3[0],
    "DeepSeek V3, ideographs": "[一-龥぀-ゟ゠-ヿ]+",
    "DeepSeek V3, words": DEEPSEEK_V3[2],
    "DeepSeek LLM, ends": r"[\r\n]",
    "DeepSeek LLM, words": r"\s?[A-Za-z\u00b5À-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-Ֆ"
    r"Ⴀ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝ\u1f5f-\u1f7dᾀ-ᾴᾶ-ᾼ\u1fbeῂ-ῄῆ-ῌῐ-\u1fd3ῖ-\u1fdbῠ-Ῥ"
    r"ῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\u2126ℨ\u212a-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⲲⲳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗ"
    r"Ａ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+",
    "DeepSeek LLM, signs": r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
    "DeepSeek LLM, at the end": r"\s+$",
    "DeepSeek LLM, Han": r"[一-龥ࠀ-一가-퟿]+",
    "DeepSeek Coder, Han": "[一-龥]+",
    "Falcon, three digits": r"[0-9][0-9][0-9]",
    "Falcon, signs": r"[\p{P}\$\+<=>\^~\|]+",
    "Bloom": r" ?[^(\s|[.,!?…。，、।۔،])]+",
    "Bloom, older": r"\s?[^\s]+",
    "Viking": r" ?[^(\s|.,!?…。，、।۔،)]+",
    "Poro": r" ?[^(\s|[.,!?…。，、।۔،])]+|\s+",
    "Nemotron": r"[^\r\n\p{L}\p{N}]?\p{Lu}*[\p{Ll}\p{Lo}\p{Lm}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*" + _REST,
    "Mistral Nemo": r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*" + _REST,
    "Hunyuan": _CONTRACTION
    + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+(?!\S)|\s+",
    "Hunyuan, dense": r"[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    "Seed-Coder": _CONTRACTION
    + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{L}{1}|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+"
    + _REST,
    "SuperBPE": r"\p{N}+|(?=(\d{3})+(?!\d))",
    "Ling": _CONTRACTION
    + r"|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
    "CLIP": r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+",
    "StarCoder": r"\p{N}",
    "Chameleon": r"(?<image>IMGIMG)([A-I]{1,4})Z",
    "Chameleon, signs": r"([\t\n]|    |  )",
    "GLM-4": _CONTRACTION
    + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+$|\s+(?!\S)|\s+",
    "Command R": r"\p{N}{1}",
    "T5, blanks": r" {2,}",
    "DeBERTa, blanks": r"\s{2,}|[\n\r\t]",
    "NLLB, ends": r"\A +| +\z",
}

# Written for the tests, of signs that both dialects have.
OTHERS: dict[str, str] = {
    "contractions apart": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "ends of sentences": r" ?[^\s\p{L}\p{N}\u00e9\u2019]+(?=\s|$)|[^\r\n]+?(?=[.!?]|$)",
    "in one group": r"(?:'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)",
    "threes of digits, to a border": r"\d{1,3}(?=(?:\d{3})*\b)",
    "threes of digits from the right": r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))",
    "ASCII words": r"\s+|[A-Za-z]+|[^\sA-Za-z]+",
    "runs of blanks by length": _CONTRACTION
    + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    + _REST.replace(r"\s+(?!\S)", r"\s{512}(?!\S)|\s{64}(?!\S)|\s{2}(?!\S)|\s{1}"),
    "scripts": r"(?:\r?\n)+|[^\S\r\n]+|\p{Hangul}+|\p{Latin}+|[^\s\p{Hangul}\p{Latin}]+",
    "ideographs alone": r"[^\p{Han}]+|\p{Han}",
    "hyphens": r"[\-_\.]+|\x20{2,}|\t+",
    "whole lines": r"^.*$|\R",
}
