"""`cutaway bench serve`: put a stated load on a server and tell how it bears it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from cutaway.cli.settings.options import AsJson, Given, SettingsFile, integer, with_settings
from cutaway.cli.settings.setting_keys import BY_NAME, ENGINE, FLEET, MODEL
from cutaway.cli.terminal.terminal import print_data, print_json, table
from cutaway.core.errors import ConfigError
from cutaway.text.kinds import is_row

DEFAULT_URL = "http://127.0.0.1:8000"


@with_settings(MODEL, ENGINE, FLEET)
def serve(
    *,
    url: Annotated[
        str | None,
        typer.Argument(
            metavar="URL",
            help=f"as cutaway serve prints it; default {DEFAULT_URL}",
            show_default=False,
        ),
    ] = None,
    given: Given,
    config: SettingsFile = None,
    rate: Annotated[float, typer.Option(metavar="X", help="requests per second, on average")] = 1,
    requests: Annotated[
        int, typer.Option(parser=integer, metavar="N", help="how many are sent")
    ] = 60,
    prompt_tokens: Annotated[
        int, typer.Option(parser=integer, metavar="N", help="random tokens of each prompt")
    ] = 128,
    answer_tokens: Annotated[
        int, typer.Option(parser=integer, metavar="N", help="tokens of each answer")
    ] = 64,
    load_seed: Annotated[
        int, typer.Option(parser=integer, metavar="N", help="of prompts and arrivals")
    ] = 0,
    promise_first: Annotated[
        float, typer.Option(metavar="MS", help="time to the first token that counts as kept")
    ] = 1000,
    promise_token: Annotated[
        float, typer.Option(metavar="MS", help="time per further token that counts as kept")
    ] = 100,
    kill_after: Annotated[
        float | None,
        typer.Option(
            metavar="X",
            help="seconds after which one engine of the server that it started is killed",
        ),
    ] = None,
    json: AsJson = False,
) -> None:
    """Measure a server: Poisson arrivals, first tokens, gaps, goodput.

    With --model it starts one itself, with the settings that are given, and ends it afterwards.
    Requests are sent when they are due, whether or not earlier ones were answered. CUTAWAY_API_KEY
    is the key where the server asks for one. Goodput counts answers that kept both promises.
    With --replicas 2 and --kill-after it shows whether answers outlive their engine.
    """
    from cutaway.bench import serve as measured
    from cutaway.bench.server import killing, start_server

    load = measured.ServeLoad(
        rate=rate,
        requests=requests,
        prompt_tokens=prompt_tokens,
        answer_tokens=answer_tokens,
        seed=load_seed,
        promise_first=promise_first,
        promise_token=promise_token,
    )
    if kill_after is not None and ("model" not in given or url is not None):
        raise ConfigError(
            "kill_after is given without --model; only an engine of a server that this command "
            "starts itself is killed. Name the model, or leave it out."
        )
    if "model" in given and url is None:
        with start_server(_arguments(given, config)) as server:
            with killing(server, kill_after):
                report = measured.run(server.url, load, pids=server.pids)
    elif given or config is not None:
        raise ConfigError(
            "settings of a server are given without --model, or beside a URL; a server that runs "
            "already has its own. Leave out the URL and name the model, or leave out the settings."
        )
    else:
        key = os.environ.get("CUTAWAY_API_KEY", "")
        report = measured.run(url or DEFAULT_URL, load, key=key)
    if json:
        print_json(report.as_dict())
        return
    header = ("MILLISECONDS", "MEAN", "P50", "P90", "P99")
    print_data(table(header, measured.rows_of(report), right="MEAN P50 P90 P99"))
    print_data(
        f"{report.completed} of {report.requests} answered, {report.refused} refused, "
        f"{report.failed} failed, in {report.seconds:.1f} s"
    )
    print_data(
        f"{report.requests_per_second:.2f} answers/s, {report.tokens_per_second:.1f} tokens/s"
    )
    print_data(
        f"goodput {report.goodput:.2f} answers/s: {report.kept:.0%} had their first token within "
        f"{promise_first:g} ms and each further one within {promise_token:g} ms"
    )
    if report.shares:
        shares = ", ".join(f"{name} {share:.2f}" for name, share in report.shares.items())
        print_data(f"of one core took: {shares}")


def _arguments(given: Given, config: Path | None) -> list[str]:
    """The settings as flags of cutaway serve."""
    flags = [] if config is None else ["--config", str(config)]
    for name, value in given.items():
        flag = BY_NAME[name].flag
        if isinstance(value, bool):
            on, _, off = flag.partition("/")
            flags.append(on if value else off)
        elif is_row(value):
            flags += [word for each in value for word in (flag, str(each))]
        else:
            flags += [flag, str(value)]
    return flags
