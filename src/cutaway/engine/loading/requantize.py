"""A model written anew in fewer bits: rounded to the nearest, or with calibration text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from torch import Tensor, nn

from cutaway.core.errors import ConfigError
from cutaway.core.request import Request, SamplingParams
from cutaway.core.weight_targets import Target
from cutaway.engine.build import load_model, num_pages
from cutaway.engine.config import EngineConfig
from cutaway.engine.engine import Engine
from cutaway.engine.loading.unloaded_model import folder_of, open_gguf, open_hf
from cutaway.host import gguf_file
from cutaway.quantize.compensated import compensate, inverse_root
from cutaway.quantize.floats8 import Float8Matrix
from cutaway.quantize.gguf.gguf_rounding import block_type, blocks_of
from cutaway.quantize.integers import IntegerMatrix
from cutaway.quantize.rounding import round_matrix
from cutaway.quantize.schemes import Scheme
from cutaway.weights.files.write_folder import write_folder
from cutaway.weights.files.write_gguf import write_gguf
from cutaway.weights.find.find import Found
from cutaway.weights.mxfp4_checkpoint import Mxfp4Weights
from cutaway.weights.quantized import QuantizedWeights
from cutaway.weights.rounded import RoundedWeights, matrices_of

CHUNK = 512  # tokens of calibration text, each read from an empty cache
_MOST_BYTES = 2**30  # of products of inputs that are held at once; the text is read again for more

Progress = Callable[[int, int], None]  # matrices done, of how many


def requantize(
    found: Found,
    scheme: Scheme,
    out: Path,
    *,
    calibration: Sequence[Sequence[int]] = (),
    progress: Progress | None = None,
) -> int:
    """Write a GGUF file where out ends so, which takes one, else a folder; counts its new matrices.

    calibration: token ids of some text, in chunks; without it numbers are rounded to the nearest.
    Raises: ConfigError for what does not go together, ModelError and its kinds for the model.
    """
    is_gguf = out.suffix == ".gguf"
    if is_gguf != (found.kind == "gguf"):
        raise ConfigError(
            f"out is {out}, and {found.name} is {'no' if is_gguf else 'a'} GGUF file; "
            "a GGUF file is written from one, and a folder from a folder."
        )
    if out.exists():
        raise ConfigError(f"out is {out}, which is there already; choose another path.")
    if calibration and scheme.kind != "integers":
        raise ConfigError("calibrate is set, but fp8 has no use for it; choose int8 or int4.")
    type_name = block_type(scheme) if is_gguf else ""
    file = gguf_file.read(found.path) if is_gguf else None
    opened = open_hf(found) if file is None else open_gguf(file)
    if opened.is_part:
        raise ConfigError(
            f"{found.name} also sees, and its text part alone is read; a folder of it would lack "
            "the rest. Take a model of text alone."
        )
    if isinstance(opened.source, QuantizedWeights | Mxfp4Weights):
        raise ConfigError(f"{found.name} is quantized already; take it without quantization.")
    source, targets = opened.source, opened.architecture.targets(opened.layout)
    RoundedWeights(source, targets, scheme)  # refuses columns that do not divide
    # A latent layer's matrix is two stacks in a GGUF file, which stay what they are.
    names = source.names() if file is None else file.tensors
    chosen = {name: targets[name] for name in matrices_of(source, targets) if name in names}
    made = dict[str, IntegerMatrix | Float8Matrix]()
    for name, root in _with_roots(found, chosen, calibration):
        matrix = source.tensor(name)
        made[name] = (
            round_matrix(matrix, scheme) if root is None else compensate(matrix, root, scheme)
        )
        if progress is not None:
            progress(len(made), len(chosen))
    if file is not None:
        write_gguf(file, out, type_name=type_name, make=_blocks(made))
    else:
        write_folder(source, folder_of(found), out, scheme=scheme, make=made.get)
    return len(made)


def cut_into_chunks(token_ids: Sequence[int], longest: int) -> list[Sequence[int]]:
    """A text's ids in chunks of CHUNK, or of fewer where a model's longest sequence has no room.

    longest: of its tokens, one that would follow included.
    """
    size = min(CHUNK, longest - 1)
    return [token_ids[first : first + size] for first in range(0, len(token_ids), size)]


def _blocks(
    made: Mapping[str, IntegerMatrix | Float8Matrix],
) -> Callable[[str], bytes | None]:
    def make(name: str) -> bytes | None:
        matrix = made.get(name)
        return blocks_of(matrix) if isinstance(matrix, IntegerMatrix) else None

    return make


def _with_roots(
    found: Found, chosen: Mapping[str, Target], calibration: Sequence[Sequence[int]]
) -> Iterator[tuple[str, Tensor | None]]:
    """Every matrix with what its inputs look like; None where no calibration reaches it."""
    by_map: dict[str, list[str]] = {}  # a linear map of the model: matrices that share its input
    for name, target in chosen.items():
        path, has_segments, _ = target.parameter.partition(".segments.")
        by_map.setdefault(path if has_segments and calibration else "", []).append(name)
    yield from ((name, None) for name in by_map.pop("", []))
    if not by_map:
        return
    inputs = _Inputs(found)
    sizes = {path: chosen[names[0]].shape[1] ** 2 * 4 for path, names in by_map.items()}
    for paths in _within(sizes, _MOST_BYTES):
        for path, products in inputs.products(paths, calibration).items():
            root = inverse_root(products)
            yield from ((name, root) for name in by_map[path])


def _within(sizes: Mapping[str, int], most: int) -> Iterator[list[str]]:
    """Names in turn, as many at once as stay within most bytes, and at least one."""
    taken: list[str] = []
    total = 0
    for name, size in sizes.items():
        if taken and total + size > most:
            yield taken
            taken, total = [], 0
        taken.append(name)
        total += size
    yield taken


class _Inputs:
    """The unrounded model in float32, and what its linear maps are given."""

    def __init__(self, found: Found) -> None:
        config = EngineConfig(dtype="float32", cache_tokens=2 * CHUNK, prefix_cache=False)
        model = load_model(found, config)
        self._engine = Engine(model, config, num_pages=num_pages(model, config))
        self._transformer = model.transformer

    def products(self, paths: Sequence[str], chunks: Sequence[Sequence[int]]) -> dict[str, Tensor]:
        """Over all tokens, the sum of x times x transposed. Shapes: [K, K] each."""
        sums: dict[str, Tensor] = {}

        def counting(path: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
            def count(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
                x = inputs[0].reshape(-1, inputs[0].shape[-1]).float()
                sums[path] = sums[path] + x.T @ x if path in sums else x.T @ x

            return count

        modules = [(path, self._transformer.get_submodule(path)) for path in paths]
        hooks = [module.register_forward_pre_hook(counting(path)) for path, module in modules]
        params = SamplingParams(temperature=0.0, max_tokens=1)
        longest = self._engine.max_length
        for chunk in (part for each in chunks for part in cut_into_chunks(each, longest)):
            request = Request(request_id="text", prompt_token_ids=tuple(chunk), params=params)
            self._engine.add(request)
            while self._engine.has_work:
                self._engine.step()
        for hook in hooks:
            hook.remove()
        return {path: products.clone().cpu() for path, products in sums.items()}
