"""What a speculator learns from: what the model itself answers to general requests.

    python bench/speculator_data.py --out DIR [--model smollm2] [--answers 6]

Every topic is asked for in every way of bench/tuned_data.py, some times each at temperature 0.7 and
once greedily; requests by which `smollm2-tuned` is measured are kept apart in `held_out.jsonl`,
answered greedily.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from tuned_data import OTHERS, REQUESTS, TOPICS, general

from cutaway import LLM, SamplingParams


def main() -> None:
    """Write both files."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--model", default="smollm2")
    options.add_argument("--out", type=Path, required=True)
    options.add_argument("--answers", type=int, default=6, help="sampled, to each request")
    options.add_argument("--max-tokens", type=int, default=224)
    options.add_argument("--dtype", default="auto")
    args = options.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    _, measured = general()
    crossed = [form.format(topic) for form in REQUESTS for topic in TOPICS]
    asked = [each for each in (*OTHERS, *crossed) if each not in measured]
    greedy = SamplingParams(temperature=0.0, max_tokens=args.max_tokens)
    drawn = SamplingParams(
        temperature=0.7, top_p=1.0, max_tokens=args.max_tokens, n=args.answers, seed=0
    )
    files = {"held_out": (measured, [greedy]), "talks": (asked, [greedy, drawn])}
    with LLM(args.model, dtype=args.dtype, lora=("off",), cache_tokens=65_536) as llm:
        for name, (texts, ways) in files.items():
            prompts = [llm.encode_chat([{"role": "user", "content": each}]) for each in texts]
            with (args.out / f"{name}.jsonl").open("w", encoding="utf-8") as out:
                for params in ways:
                    for text, made in zip(texts, llm.generate(prompts, params), strict=True):
                        for choice in made.choices:
                            turns = [
                                {"role": "user", "content": text},
                                {"role": "assistant", "content": choice.text},
                            ]
                            out.write(json.dumps({"messages": turns}) + "\n")


if __name__ == "__main__":
    main()
