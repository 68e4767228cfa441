"""`cutaway cluster`: engines and fronts on one host or many, placed and watched by Ray."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cutaway.cli.settings.options import AsJson, integer
from cutaway.cli.terminal.terminal import note, print_data, print_json, table
from cutaway.core.errors import ConfigError

if TYPE_CHECKING:
    from cutaway.server.clusters.cluster_head import ClusterFolder

app = typer.Typer(
    name="cluster", help="Serve a model by engines that Ray places, watches and rolls."
)

File = Annotated[
    Path,
    typer.Argument(metavar="FILE", help="a TOML file; docs/deploy.md has one with all keys"),
]
Folder = Annotated[
    Path | None,
    typer.Option(
        "--folder",
        metavar="FOLDER",
        help="where the cluster's token, key and state lie; default: the user's folder of states",
    ),
]


def _folder(chosen: Path | None) -> ClusterFolder:
    from platformdirs import user_state_path

    from cutaway.server.clusters.cluster_head import ClusterFolder

    return ClusterFolder(chosen or user_state_path("cutaway", appauthor=False) / "cluster")


@app.command()
def up(file: File, *, folder: Folder = None) -> None:
    """Start a cluster, or change the one that is up to what the file says."""
    from cutaway.cli.session.engine_memory import with_memory
    from cutaway.server.clusters.cluster_config import read_cluster
    from cutaway.server.clusters.ray_cluster import join

    config = with_memory(read_cluster(file))
    with join(_folder(folder), config) as cluster:
        cluster.deploy(config, generation=cluster.generation, tell=note)
        note(f"Cutaway serves {config.model} at {cluster.url}/v1 until `cutaway cluster down`.")


@app.command()
def status(*, folder: Folder = None, json: AsJson = False) -> None:
    """Tell which engines and fronts there are, where, and how each is."""
    from cutaway.server.clusters.ray_cluster import join

    with join(_folder(folder)) as cluster:
        told = cluster.tell()
    if json:
        print_json(told)
        return
    rows = [
        (
            kind,
            where,
            str(facts["host"]),
            str(facts["pid"]),
            str(facts.get("state", "ready")),
        )
        for kind in ("front", "engine")
        for where, facts in sorted(told[kind].items())
    ]
    print_data(table(("KIND", "WHERE", "HOST", "PID", "STATE"), rows))
    for name, word in told["deployments"].items():
        note(f"{name}: {word}")


@app.command()
def scale(
    engines: Annotated[int, typer.Argument(parser=integer, metavar="N", help="engines there are")],
    *,
    folder: Folder = None,
) -> None:
    """Have so many engines. No stream is cut."""
    from dataclasses import replace

    from cutaway.server.clusters.ray_cluster import join

    with join(_folder(folder)) as cluster:
        cluster.deploy(
            replace(cluster.config, engines=engines), generation=cluster.generation, tell=note
        )
        note(f"engines: {engines}.")


@app.command()
def roll(
    model: Annotated[
        str | None,
        typer.Argument(metavar="MODEL", help="another model; default: the same, read anew"),
    ] = None,
    *,
    folder: Folder = None,
) -> None:
    """Start fronts and engines anew, a part at a time."""
    from dataclasses import replace

    from cutaway.server.clusters.ray_cluster import join

    with join(_folder(folder)) as cluster:
        config = cluster.config if model is None else replace(cluster.config, model=model)
        cluster.deploy(config, generation=cluster.generation + 1, tell=note)
        note("all were started anew.")


@app.command()
def down(*, folder: Folder = None) -> None:
    """End the cluster that `up` started; one that was there before goes on without Cutaway."""
    from cutaway.server.clusters.cluster_head import end_head
    from cutaway.server.clusters.ray_cluster import join

    where = _folder(folder)
    state = where.state
    if not state:
        note(f"No cluster is up; {where.path} knows of none.")
        return
    try:
        with join(where) as cluster:
            cluster.end()
    except (ConfigError, ConnectionError) as error:
        if "head" not in state:
            raise
        note(f"Its processes are ended without a word from Ray: {error}")
    if isinstance(head := state.get("head"), int) and not end_head(head):
        raise ConfigError(f"processes of the session {head} do not end; look with ps -s {head}.")
    where.forget()
    note("The cluster is down.")


@app.command()
def manifest(
    file: File,
    *,
    image: Annotated[str, typer.Option(help="has cutaway[ray] and the model")] = "cutaway:ray",
    name: Annotated[str, typer.Option(help="of the RayService")] = "cutaway",
) -> None:
    """Print a RayService for KubeRay that serves the same on Kubernetes."""
    from cutaway.cli.session.engine_memory import with_memory
    from cutaway.server.clusters.cluster_config import read_cluster
    from cutaway.server.clusters.kuberay import as_yaml, make_service

    typer.echo(
        as_yaml(make_service(with_memory(read_cluster(file)), name=name, image=image)),
        nl=False,
    )
