"""The logit lens against norms and products in NumPy, from weights and ids alone."""

from __future__ import annotations

import numpy as np
import pytest

from cutaway import LLM
from cutaway.replay.look import Look
from cutaway.views import view_of
from cutaway.views.lens import Lens
from cutaway.views.parts.query import Query
from subjects import Numbers, answered, engine_of, recomputed, rms_norm, softmax, weights


def lens_of(look: Look, query: Query) -> Lens:
    payload = view_of("lens").show(look.subject, query).payload
    assert isinstance(payload, Lens)
    return payload


def test_every_cell_is_the_final_norm_and_map_of_that_layers_stream() -> None:
    engine = engine_of(num_hidden_layers=6)
    answer = answered(engine, range(20))
    payload = lens_of(Look(engine, answer), Query(top=3))
    assert payload.layers == (3, 5) and payload.positions == (21, 22, 23, 24)
    assert payload.choices == answer.token_ids[22:26] and all(payload.is_drawn)
    stored = weights(engine)
    inner = recomputed(engine, answer.token_ids[:-1])
    streams = np.stack([inner.streams[layer + 1][21:25] for layer in payload.layers])
    normed = rms_norm(streams, stored["unembedding.norm.weight"])
    shares: Numbers = softmax(normed @ stored["unembedding.table.weight"].T)
    order = np.argsort(-shares, axis=-1)[..., :3]
    np.testing.assert_array_equal(payload.top_token_ids, order)
    best = np.take_along_axis(shares, order, -1)
    np.testing.assert_allclose(payload.top_probabilities, best, rtol=1e-4)
    chosen = np.array(payload.choices)[None, :, None]
    own = np.take_along_axis(shares, np.broadcast_to(chosen, (2, 4, 1)), -1)
    np.testing.assert_allclose(payload.choice_probabilities, own[..., 0], rtol=1e-4)
    np.testing.assert_array_equal(payload.ranks, 1 + (shares > own).sum(-1))
    assert payload.ranks[-1].tolist() == [1] * 4  # greedy: the last layer says what came
    start = inner.streams[0][21:25]
    cosine = (streams * start).sum(-1) / np.linalg.norm(streams, axis=-1)
    cosine /= np.linalg.norm(start, axis=-1)
    np.testing.assert_allclose(payload.similarity, cosine, rtol=1e-4, atol=1e-6)
    assert payload.flops == 2 * 48 * 320 * 2 * 4


def test_inside_a_prompt_what_came_is_what_the_last_layer_says() -> None:
    engine = engine_of()
    answer = answered(engine, range(20))
    payload = lens_of(Look(engine, answer), Query(position=7))
    inner = recomputed(engine, answer.token_ids[:-1])
    assert payload.is_drawn == (False,) and payload.choices == (int(inner.logits[7].argmax()),)
    assert payload.layers == (1,) and payload.ranks.tolist() == [[1]]
    assert payload.flops == 2 * 48 * 320 * 2, "once more for what came"


def test_one_layer_is_read_at_more_positions() -> None:
    engine = engine_of()
    look = Look(engine, answered(engine, range(20)))
    payload = lens_of(look, Query(layer=0))
    assert payload.layers == (0,) and payload.positions == tuple(range(1, 25))
    assert payload.choices[-6:] == look.subject.answer.token_ids[-6:]


@pytest.mark.parametrize("query", [Query(), Query(layer=0), Query(position=20)])
def test_the_picture_fits_and_says_what_it_leaves_out(query: Query) -> None:
    engine = engine_of(num_hidden_layers=6)
    lines = lens_of(Look(engine, answered(engine, range(20))), query).draw().text().splitlines()
    assert max(map(len, lines)) <= 100
    assert "6 layers at " in lines[-1] and "GFLOP through the unembedding" in lines[-1]


@pytest.mark.slow
@pytest.mark.oracle
def test_smollm2_comes_to_its_answer_in_the_last_layers() -> None:
    llm = LLM("smollm2", cache_tokens=512, dtype="float32")
    for question in ("What is gravity?", "How do I bake chocolate chip cookies?"):
        prompt = llm.encode_chat([{"role": "user", "content": question}])
        look = Look(llm.engine, answered(llm.engine, prompt, max_tokens=8))
        payload = lens_of(look, Query())
        assert payload.layers[-1] == 29 and payload.ranks[-1].tolist() == [1] * 4
        assert (payload.ranks[0] > 1).all()  # four layers in, nothing is decided
