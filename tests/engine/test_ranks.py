"""One model over several ranks: the same tokens as over one, whatever the architecture."""

from __future__ import annotations

import random
from pathlib import Path
from typing import cast

import pytest
import torch

import architectures
import services
from cutaway.blocks.attention.grouped import GroupedAttention
from cutaway.blocks.block import Block
from cutaway.blocks.transformer import Transformer
from cutaway.core.arithmetic import cache_bytes_per_token
from cutaway.core.errors import ConfigError
from cutaway.core.rank_shares import rank_share, values_of_rank
from cutaway.core.request import Request, SamplingParams
from cutaway.engine.build import load_model
from cutaway.engine.config import EngineConfig
from cutaway.engine.engine import Engine
from cutaway.engine.loading.unloaded_model import open_hf
from cutaway.engine.runner import runner_of
from cutaway.kernels import capture
from cutaway.parallel.rank_group import ThreadGroup
from cutaway.quantize.dense import DenseWeight
from cutaway.weights.find.find import find
from engines import Answer, engine, run
from thread_ranks import engine_of_ranks

pytest.importorskip("transformers")

# Some of their joined maps are cut by rows, which an estimate cuts one by one.
CUT_AS_ONE = ("gpt2", "qwen3_5")
PROMPTS = [[(7 * i + 3 * n) % 256 for i in range(n)] for n in (5, 41)]


# Each kind of part that is divided; what others join in another way is tried among the slow.
QUICK = (
    *("llama-flags", "gemma4-all", "gpt2-flags", "deepseek-v3", "gpt-oss", "qwen3.5-flags"),
    *("olmo2", "olmoe-flags", "phi3", "cohere-flags", "lfm2"),
)
CASES = [
    case if case in QUICK else pytest.param(case, marks=pytest.mark.slow)
    for case in architectures.CASES
]


@pytest.fixture(scope="module", params=CASES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    architectures.save(architectures.reference(request.param), path)
    return path


def requests(max_tokens: int) -> list[Request]:
    """Greedy and drawn ones; the second prompts begin alike, so that they hit the cache."""
    chance = random.Random(4)
    found: list[Request] = []
    for number, prompt in enumerate([*PROMPTS, [*PROMPTS[1], 9, 8, 7]]):
        for temperature in (0.0, 1.0):
            params = SamplingParams(
                temperature=temperature,
                max_tokens=max_tokens,
                ignore_eos=True,
                seed=chance.randrange(2**31),
                logprobs=2,
            )
            request_id = f"r{number}-{temperature}"
            found.append(
                Request(request_id=request_id, prompt_token_ids=tuple(prompt), params=params)
            )
    return found


def told(answers: dict[tuple[str, int], Answer]) -> dict[tuple[str, int], list[int]]:
    return {key: answer.token_ids for key, answer in answers.items()}


@pytest.mark.parametrize(
    ("size", "dtype"), [(4, "float64"), pytest.param(2, "float32", marks=pytest.mark.slow)]
)
def test_scale_t1_s04_s09_ranks_give_the_tokens_of_one(folder: Path, size: int, dtype: str) -> None:
    """Batched, chunked, after a hit; greedy and drawn."""
    wanted = requests(max_tokens=6)
    whole = load_model(find(str(folder)), EngineConfig(device="cpu", dtype=dtype))
    expected = told(run(engine(whole, prefill_chunk=16), wanted))
    with engine_of_ranks(str(folder), size, dtype=dtype, prefill_chunk=16) as target:
        assert told(run(target, wanted, list(range(len(wanted))))) == expected


# Rows as wide as native groups of 32 want them.
WIDE = {"hidden_size": 64, "intermediate_size": 160}


@pytest.mark.slow
@pytest.mark.skipif(
    not capture.is_available(), reason="the native kernels are not built: run `make native`"
)
@pytest.mark.parametrize("case", ["olmo2", "olmoe-flags", "phi3", "cohere-flags", "glm4", "lfm2"])
def test_ranks_of_native_kernels_give_the_bits_of_one(case: str, tmp_path: Path) -> None:
    """Of every row that a token was drawn from, where norms or matrices span several ranks."""
    architectures.save(architectures.reference(case, **WIDE), tmp_path)

    def rows(target: Engine) -> dict[str, list[tuple[int, int]]]:
        run(target, requests(4))
        assert target.ledger is not None
        return {
            answer.request.request_id: [(token.token_id, token.checksum) for token in answer.tokens]
            for answer in target.ledger.answers
        }

    expected = rows(
        engine(load_model(find(str(tmp_path)), EngineConfig(device="cpu", dtype="auto")))
    )
    assert len(expected) == 6 and all(len(tokens) == 4 for tokens in expected.values())
    with engine_of_ranks(str(tmp_path), 3, dtype="auto") as target:
        assert target.runner._native is not None
        assert rows(target) == expected


def test_an_estimate_of_a_rank_is_what_it_has(folder: Path) -> None:
    """Matrices and pages to the number; vectors and weights of norms by head count whole."""
    architecture = open_hf(find(str(folder))).architecture

    def built(ranks: int) -> Transformer:
        with torch.device("meta"):
            made = architecture.build()
            if ranks > 1:
                made.divide(ThreadGroup.of(ranks)[0])
        return made

    shape, whole = architecture.shape, dict(built(1).named_parameters())
    for ranks in (2, 3, 4):
        model = built(ranks)
        matrices = {
            f"{name}.weight"
            for name, module in model.named_modules()
            if isinstance(module, DenseWeight)
        }
        values = sum(
            (each if name in matrices else whole[name]).numel()
            for name, each in model.named_parameters()
        )
        close = 0.05 if shape.architecture in CUT_AS_ONE else 0.0
        assert values_of_rank(shape, ranks) == pytest.approx(values, rel=close, abs=0)
        share = rank_share(shape, ranks, weight_bytes=1, kv_dtype="float32")
        assert share.kv_bytes_per_token == cache_bytes_per_token(model, "float32")


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return services.make_model(tmp_path_factory.mktemp("tiny"))


def test_who_needs_a_whole_matrix_is_told_and_nobody_waits(tiny_model: str) -> None:
    """A look that a rank computed alone would wait for the others, or be wrong."""
    with engine_of_ranks(tiny_model, 2, dtype="float64") as target:
        model = target.model.transformer
        block = cast(Block, model.blocks[0])
        attention = cast(GroupedAttention, block.attention)
        hidden = torch.zeros(1, 48, dtype=torch.float64)
        for ask in (
            model.check_whole,
            attention.qkv.dense,
            lambda: attention.qkv(hidden),
            lambda: model.embedding.cosines(hidden),
            lambda: model.unembedding.read(hidden),
            lambda: runner_of(
                target.model,
                target.runner.pool,
                config=target.config,
                max_length=64,
                is_plain=True,
            ),
        ):
            with pytest.raises(
                ConfigError, match=r"divided among 2 ranks here\. Start with tensor 1"
            ):
                ask()
        assert told(run(target, requests(4))), "the engine goes on"


def test_taps_see_whole_values_and_a_sink_that_raises_parts_no_ranks(tiny_model: str) -> None:
    def seen(target: Engine) -> dict[tuple[str, int | None], torch.Tensor]:
        found: dict[tuple[str, int | None], torch.Tensor] = {}

        def sink(name: str, value: torch.Tensor, layer: int | None) -> None:
            found.setdefault((name, layer), value.clone())

        target.sink = sink
        run(target, requests(2)[:1])
        return found

    whole = load_model(find(tiny_model), EngineConfig(device="cpu", dtype="float64"))
    expected = seen(engine(whole))
    with engine_of_ranks(tiny_model, 3, dtype="float64") as target:
        found = seen(target)
        assert found.keys() == expected.keys()
        for key, value in found.items():
            torch.testing.assert_close(value, expected[key], msg=str(key))

        def broken(name: str, value: torch.Tensor, layer: int | None) -> None:
            raise ZeroDivisionError

        target.sink = broken
        (answer,) = run(target, requests(2)[:1]).values()
        assert answer.last is not None and answer.last.finish_reason == "error"
        target.sink = None
        assert told(run(target, requests(2))), "the ranks are still together"
