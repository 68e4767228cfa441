"""`cutaway models quantize`: a model in fewer bits, what it takes, and how near it stays."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from cutaway.cli.settings.integer_text import show_bytes
from cutaway.cli.settings.options import AsJson
from cutaway.cli.terminal.progress import download_bar
from cutaway.cli.terminal.terminal import note, print_data, print_json
from cutaway.core.errors import ConfigError
from cutaway.quantize.schemes import scheme_of
from cutaway.weights.find.find import find


def quantize(
    model: Annotated[str, typer.Argument(help="as for --model, without quantization")],
    *,
    scheme: Annotated[
        str,
        typer.Option(help="int8, int4 or fp8, also as in int4-g64 or int4-sym-g128"),
    ],
    out: Annotated[Path, typer.Option(help="a new folder, or a .gguf file where the model is one")],
    calibrate: Annotated[
        Path | None,
        typer.Option(help="text by which columns make up for each other's errors (GPTQ)"),
    ] = None,
    text: Annotated[
        Path | None, typer.Option(help="another text, to measure perplexity and divergence on")
    ] = None,
    calibrate_tokens: Annotated[
        int, typer.Option(min=1, help="tokens of the text for --calibrate")
    ] = 4096,
    text_tokens: Annotated[int, typer.Option(min=2, help="tokens of --text")] = 4096,
    json: AsJson = False,
) -> None:
    """Round the maps inside layers; tables, norms and biases stay.

    Perplexity and KL are those of the written model in float32; the baseline is the model that it
    was made of, in float32.
    """
    wanted = scheme_of(scheme, param="scheme")
    texts = {path: _read(path) for path in (calibrate, text) if path is not None}
    with download_bar(model) as progress:
        found = find(model, progress=progress)

    from cutaway.engine.loading.requantize import requantize
    from cutaway.engine.loading.tokenizer_of import tokenizer_of
    from cutaway.weights.find.store import describe

    token_ids: list[int] = []
    if calibrate is not None:
        cut = texts[calibrate][: 8 * calibrate_tokens]
        token_ids = tokenizer_of(found).encode(cut)[:calibrate_tokens]
    num_matrices = requantize(found, wanted, out, calibration=[token_ids] if token_ids else [])
    figures: dict[str, Any] = {
        "model": model,
        "scheme": scheme,
        "out": str(out),
        "calibrated_tokens": len(token_ids),
        "matrices": num_matrices,
        "bytes": describe(find(str(out))).num_bytes,
        "baseline_bytes": describe(found).num_bytes,
    }
    if text is not None:
        figures |= _measured(model, str(out), texts[text], text_tokens)
    if json:
        print_json(figures)
        return
    size, before = show_bytes(figures["bytes"]), show_bytes(figures["baseline_bytes"])
    print_data(f"{out}: {size} of tensors, {num_matrices} matrices in {scheme}; before {before}")
    if text is None:
        note("--text FILE measures how near it stays to the model that it was made of.", dim=True)
        return
    print_data(
        f"perplexity {figures['perplexity']:.3f}, of the baseline "
        f"{figures['baseline_perplexity']:.3f}; KL {figures['kl']:.5f}; likeliest token agrees "
        f"{figures['agreement']:.2%}; {figures['tokens']} tokens"
    )
    note(f"The baseline is {model} in float32.", dim=True)


def _measured(model: str, out: str, text: str, num_tokens: int) -> dict[str, Any]:
    from cutaway.bench.quality import Judged, PromptLogits

    truth, made = PromptLogits(model, dtype="float32"), PromptLogits(out, dtype="float32")
    itself, judged = Judged(), Judged()
    for chunk in truth.chunks(text, num_tokens):
        exact = truth.of(chunk)
        itself.add(exact, exact, chunk)
        judged.add(made.of(chunk), exact, chunk)
    if not judged.count:
        raise ConfigError("text has fewer than two tokens; there is nothing to measure on.")
    return {
        "tokens": judged.count,
        "perplexity": judged.perplexity,
        "baseline_perplexity": itself.perplexity,
        "kl": judged.kl,
        "agreement": judged.agreement,
        "baseline": f"{model} in float32",
    }


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read as UTF-8 text: {error}.") from None
