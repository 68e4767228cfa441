"""What a cluster is told, where its engines find room, and its manifest; all without Ray."""

from __future__ import annotations

import copy
import importlib.metadata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

import services
from cutaway.cli.session.engine_memory import with_memory
from cutaway.core.errors import ConfigError
from cutaway.server.clusters import ray_cluster
from cutaway.server.clusters.cluster_config import ClusterConfig, read_cluster
from cutaway.server.clusters.cluster_placement import ClusterHost, tell_missing
from cutaway.server.clusters.kuberay import as_yaml, check_service, make_service

CONFIG = ClusterConfig(
    model="smollm2", engines=3, gpus=1, memory=2**33, settings={"cache_tokens": 8192, "lora": ["a"]}
)


def written(folder: Path, text: str) -> Path:
    file = folder / "cluster.toml"
    file.write_text(text, encoding="utf-8")
    return file


def test_a_file_says_all_and_flags_are_those_of_the_command_line(tmp_path: Path) -> None:
    text = """
    model = "smollm2"
    engines = 3
    address = "10.0.0.1:6379"
    link_key_file = "keys/link.key"
    [settings]
    cache_tokens = "32K"
    prefix_cache = false
    graphs = true
    override = ["a=1", "b=2"]
    """
    config = read_cluster(written(tmp_path, text))
    assert config.link_key_file == str(tmp_path / "keys/link.key")
    assert config.flags == [
        *("--cache-tokens", "32K", "--no-prefix-cache", "--graphs"),
        *("--override", "a=1", "--override", "b=2"),
    ]
    assert ClusterConfig.parse(config.as_table(), where="x") == config


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("engines = 2", "has no model"),
        ('model = "m"\nengine = 2', "has the key 'engine'; allowed are address"),
        ('model = "m"\nengines = "2"', "engines is '2'; it must be int"),
        ('model = "m"\nengines = true', "engines is true; it must be int"),
        ('model = "m"\nengines = 0', "engines is 0; it must be from 1 to 10000"),
        ('model = "m"\ncpus = -1', "cpus is -1; it must be from 0"),
        ('model = "m"\nport = 70000', "port is 70000"),
        ('model = "m"\naddress = "x"', "it must be local, or HOST:PORT"),
        ('model = "m"\naddress = "x:1"', "link_key_file is missing; hosts of a fleet share a key"),
        ('model = ""', "model is empty"),
        ('model = "m"\nsettings = 1', "settings must be a table"),
        ("model", "is no TOML file"),
    ],
)
def test_what_a_file_says_wrongly_is_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_cluster(written(tmp_path, text))
    assert message in str(caught.value).replace('"', "'")


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read_cluster(tmp_path / "none.toml")


def test_scale_s37_what_is_missing_is_told_host_by_host() -> None:
    hosts = [
        ClusterHost("a", {"CPU": 8.0, "memory": 2**34}, {"CPU": 2.0, "memory": 2**34}),
        ClusterHost("b", {"CPU": 64.0, "GPU": 4.0, "memory": 2**36}, {"GPU": 4.0, "memory": 2**30}),
    ]
    wanted = {"CPU": 4.0, "GPU": 1.0, "memory": 2.0**33}
    assert tell_missing(wanted, hosts).splitlines() == [
        "a: 4 CPU wanted, 2 CPU of 8 CPU free; 1 GPU wanted, 0 GPU of 0 GPU free",
        "b: 4 CPU wanted, 0 CPU of 64 CPU free; 8.0 GiB wanted, 1.0 GiB of 64.0 GiB free",
    ]
    assert tell_missing({"CPU": 2.0}, hosts) == "", "the first has room"
    assert tell_missing(wanted, []) == "Ray has no host."


def test_scale_s38_engines_say_what_memory_they_take(tmp_path: Path) -> None:
    model = services.make_model(tmp_path)
    said = with_memory(ClusterConfig(model=model, settings={"cache_tokens": "64K"}))
    more = with_memory(ClusterConfig(model=model, settings={"cache_tokens": 128 * 1024}))
    assert said.settings["cache_tokens"] == 65536, "what is declared is what is taken"
    assert said.memory is not None and more.memory is not None
    assert 2**30 < said.memory < more.memory < 2**31
    assert with_memory(ClusterConfig(model=model)).settings["cache_tokens"] == 32768
    assert with_memory(CONFIG) is CONFIG, "what is said stays"


@pytest.mark.parametrize("found", ["2.55.9", "3.0.0", "1.13.0"])
def test_scale_s36_another_ray_is_named(found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_cluster, "version", lambda name: found)
    with pytest.raises(ConfigError, match=f"Ray {found} is installed; it must be from 2.56"):
        ray_cluster.check_ray()


def test_scale_y2_without_ray_a_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(ray_cluster, "version", missing)
    with pytest.raises(
        ConfigError, match=r"not installed here. Install it: pip install 'cutaway\["
    ):
        ray_cluster.check_ray()


def test_a_manifest_is_valid_and_yaml_says_the_same() -> None:
    made = make_service(CONFIG, name="cutaway", image="cutaway:ray")
    check_service(made)
    assert yaml.safe_load(as_yaml(made)) == made
    worker = made["spec"]["rayClusterConfig"]["workerGroupSpecs"][0]
    assert worker["replicas"] == 3
    (container,) = worker["template"]["spec"]["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert int(container["resources"]["limits"]["memory"]) > CONFIG.memory  # type: ignore[operator]


def drop(*path: str | int) -> Callable[[Any], None]:
    def apply(manifest: Any) -> None:
        for name in path[:-1]:
            manifest = manifest[name]
        del manifest[path[-1]]

    return apply


def put(value: Any, *path: str | int) -> Callable[[Any], None]:
    def apply(manifest: Any) -> None:
        for name in path[:-1]:
            manifest = manifest[name]
        manifest[path[-1]] = value

    return apply


CLUSTER = ("spec", "rayClusterConfig")
WORKER = (*CLUSTER, "workerGroupSpecs", 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (drop("metadata", "name"), "metadata.name is missing"),
        (put("v1", "apiVersion"), "must be ray.io/v1 and RayService"),
        (drop(*CLUSTER, "headGroupSpec"), "headGroupSpec.rayStartParams is missing"),
        (drop(*WORKER, "groupName"), "workerGroupSpecs[0]: groupName is missing"),
        (put(9, *WORKER, "replicas"), "replicas must be from minReplicas to maxReplicas"),
        (put(0, *CLUSTER, "headGroupSpec", "rayStartParams", "num-cpus"), "must be text; quote it"),
        (drop(*WORKER, "template", "spec", "volumes"), "the volume keys is mounted and not there"),
        (put([], *WORKER, "template", "spec", "containers"), "at least one container"),
        (put('{"applications": [{}]}', "spec", "serveConfigV2"), "name is missing"),
    ],
)
def test_a_manifest_that_lacks_something_is_refused(
    change: Callable[[Any], None], message: str
) -> None:
    made = copy.deepcopy(make_service(CONFIG, name="cutaway", image="cutaway:ray"))
    change(made)
    with pytest.raises(ConfigError) as caught:
        check_service(made)
    assert message in str(caught.value)


def test_a_name_that_kubernetes_does_not_take_is_named() -> None:
    with pytest.raises(ConfigError, match="it must be small letters, digits and -"):
        make_service(CONFIG, name="Cut Away", image="x")
