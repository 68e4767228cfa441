"""The paper table at small size: every row's arithmetic, and the figures that no machine moves."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
import torch

from cutaway.bench import paper, paper_attention, paper_bytes
from cutaway.bench.paper_attention import count_moved, fit, naive
from cutaway.bench.paper_rows import SMALL, PaperReport, PaperRow
from cutaway.bench.paper_shapes import CONFIGS
from cutaway.core.errors import ConfigError

TINY = {
    "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 96,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "vocab_size": 320, "max_position_embeddings": 2048,
}  # fmt: skip


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> PaperReport:
    path = tmp_path_factory.mktemp("paper") / "config.json"
    path.write_text(json.dumps(TINY))
    return paper.run(replace(SMALL, model=f"random:{path}"))


def of(report: PaperReport, section: str, name: str) -> PaperRow:
    return next(row for row in report.rows if row.section == section and name in row.name)


def test_every_section_has_rows_and_every_row_says_where_it_is_from(report):
    found = {row.section for row in report.rows}
    assert found == set(paper.SECTIONS)
    names = [(row.section, row.name, row.model) for row in report.rows]
    assert len(set(names)) == len(names)
    for row in report.rows:
        assert row.source and row.model, row.name
        assert math.isfinite(row.value), row.name
        assert row.published is None or row.published > 0, row.name
    assert json.loads(json.dumps(report.machine))["threads"] >= 1
    assert report.seconds > 0


def test_every_value_follows_from_its_terms(report):
    for row in report.rows:
        scope = {"__builtins__": {}, "log": math.log}
        assert all(isinstance(term, int | float) for term in row.terms.values())
        again = eval(row.formula, scope, dict(row.terms))
        assert row.value == pytest.approx(again, rel=1e-12, abs=1e-12), row.name


def test_what_is_computed_or_allocated_meets_the_published_figure(report):
    """Loose ones are named: the claims that leave out scales, tables or half a sentence."""
    loose = {
        ("quantization", "whole model"): 0.45,
        ("quantization", "gptq-g128: bits"): 0.01,
        ("moe", "active"): 0.30,
        ("window", "pages"): 1e-9,
    }
    for row in report.rows:
        if row.how in ("computed", "allocated") and row.published is not None:
            close = [
                x
                for (section, part), x in loose.items()
                if section == row.section and part in row.name
            ]
            assert row.value == pytest.approx(row.published, rel=close[0] if close else 5e-3), row


def test_grouped_and_latent_figures_are_exact(report):
    assert of(report, "gqa", "over 8").value == 4
    assert of(report, "gqa", "over 1").value == 32
    assert of(report, "mla", "cache per token").terms["bytes"] == 70_272
    assert of(report, "mla", "128 heads").value == pytest.approx(100 * (1 - 576 / 32768))
    assert of(report, "mla", "8 groups of 128").value == 71.875
    deployed = of(report, "mla", "as deployed").value
    assert deployed == pytest.approx(100 * (1 - 60 * 576 * 6 / (95 * 2 * 8 * 128 * 16)))
    assert round(deployed, 1) == 93.3


def test_bits_of_a_weight_are_those_of_its_blocks(report):
    for name, bits in (("Q8_0", 8.5), ("Q4_K", 4.5), ("Q4_1", 5.0), ("int8", 8.5)):
        assert of(report, "quantization", f"{name}: bits").value == bits
    assert of(report, "quantization", "gptq-g128: bits").value == 67 * 8 / 128


def test_a_window_holds_what_it_sees():
    """8 times less at 32,768 tokens; a border within a page keeps one page more."""
    assert next(paper_bytes.window(SMALL)).value == 8
    odd = next(paper_bytes.window(replace(SMALL, window_context=5000)))
    assert odd.terms == {"all": math.ceil(5000 / 16), "window": math.ceil(5000 / 16) - 905 // 16}


def test_bytes_of_naive_attention_are_those_of_its_operations():
    """Per head: 2 products, a scale, a mask, a softmax, over N x N numbers of 4 bytes."""
    heads, tokens, size = 2, 8, paper_attention.HEAD_SIZE
    query, key, value = (torch.ones(heads, tokens, size) for _ in range(3))
    square, row = heads * tokens**2 * 4, heads * tokens * size * 4
    products = (2 * row + square) + (square + 2 * row)
    mask = 2 * tokens**2 + tokens**2  # made, cut to the upper half, read by masked_fill
    steps = 2 * square + 2 * square + 2 * square  # scale, masked_fill, softmax
    counted = count_moved(lambda: naive(query, key, value))
    assert counted == pytest.approx(products + steps + mask, abs=4 * tokens**2)


def test_levers_are_pulled_by_overrides(report):
    assert of(report, "levers", "cache per token").value == 4
    held = of(report, "levers", "pages held").terms
    # 96 tokens are stored; the next one sees those from 96 - 64 + 1 on
    assert held == {"before": 6, "after": 6 - (96 - 64 + 1) // 16}
    read = of(report, "levers", "bytes read").terms
    assert read["before"] - read["after"] == 4 * 6 * 3 * 512 * 64 * 4  # layers, experts, matrices


def test_views_move_nothing():
    x = torch.ones(4, 4)
    assert count_moved(lambda: x.transpose(0, 1)[1:]) == 0
    assert count_moved(lambda: x + x) == 3 * x.nbytes


@pytest.mark.parametrize(("a", "b"), [(3.0, 0.0), (0.0, 2.0), (5.0, 0.25)])
def test_the_fit_finds_what_made_the_times(a, b):
    lengths = (10, 20, 40, 80)
    found = fit(lengths, [a * n + b * n**2 for n in lengths])
    assert found == pytest.approx((a, b), abs=1e-9)


def test_a_warm_prompt_computes_its_own_tokens_alone(report):
    row = of(report, "prefix", "computed")
    assert row.terms == {"tokens": 72, "cached": 64}
    assert row.value == 9


def test_only_names_sections_and_refuses_others():
    made = paper.run(SMALL, only="gqa, moe")
    assert {row.section for row in made.rows} == {"gqa", "moe"}
    with pytest.raises(ConfigError, match='only holds "gpa"; sections are gqa, mla'):
        paper.run(SMALL, only="gpa")


@pytest.mark.parametrize(
    "name", ["Mistral-7B", "Mixtral-8x7B", "DeepSeek-V3", "gpt-oss-120b", "Qwen3-Next-80B-A3B"]
)
def test_shapes_are_those_that_transformers_has(name):
    from cutaway.models.parts.reading import shape_of
    from published_shapes import released

    (word,) = CONFIGS[name]["architectures"]
    assert shape_of(CONFIGS[name]) == shape_of(released(word)[1])
