"""A RayService for KubeRay: the same cluster on Kubernetes, and what such a manifest must have.

Free of Ray and of Kubernetes: a manifest is plain data, and its check is written by hand from what
KubeRay 1.5 requires.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, cast

from cutaway.core.errors import ConfigError
from cutaway.core.limits import quote
from cutaway.server.clusters.cluster_config import ClusterConfig

KEY_FOLDER: Final = "/etc/cutaway"
RAY_VERSION: Final = "2.60.0"
_NAME: Final = re.compile(r"[a-z]([-a-z0-9]{0,50}[a-z0-9])?")  # KubeRay adds to it, up to 63
_FRONT_BYTES: Final = 2 * 2**30  # a front holds no weights
_MEMORY: Final = 8 * 2**30  # of an engine, where nobody says


def make_service(config: ClusterConfig, *, name: str, image: str) -> dict[str, Any]:
    """A RayService: fronts beside the head, each engine on a worker of its own.

    Raises: ConfigError for a name that Kubernetes does not take.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"name is {quote(name)}; it must be small letters, digits and -, at most 52."
        )
    table = {
        **config.as_table(),
        "address": "127.0.0.1:6379",
        "host": "0.0.0.0",
        "link_key_file": f"{KEY_FOLDER}/link.key",
        "api_key_file": f"{KEY_FOLDER}/api.keys",
    }
    served = {
        "applications": [
            {
                "name": f"cutaway-{part}",
                "import_path": f"cutaway.server.clusters.ray_app:build_{part}",
                "route_prefix": None,
                "args": table,
            }
            for part in ("engines", "fronts")
        ],
        "proxy_location": "Disabled",
    }
    memory = config.memory or _MEMORY
    worker = {"cpu": f"{max(1, round(config.cpus))}", "memory": f"{memory + 2**30}"}
    if config.gpus:
        worker["nvidia.com/gpu"] = f"{round(config.gpus)}"
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayService",
        "metadata": {"name": name},
        "spec": {
            "serveConfigV2": json.dumps(served, indent=1),
            "rayClusterConfig": {
                "rayVersion": RAY_VERSION,
                "authOptions": {"mode": "token"},
                "headGroupSpec": {
                    "rayStartParams": {"num-cpus": "0"},
                    "template": _pod(
                        name,
                        image,
                        {"cpu": "2", "memory": f"{_FRONT_BYTES}"},
                        config.port,
                    ),
                },
                "workerGroupSpecs": [
                    {
                        "groupName": "engines",
                        "replicas": config.engines,
                        "minReplicas": config.engines,
                        "maxReplicas": config.engines,
                        "rayStartParams": {},
                        "template": _pod(name, image, worker, None),
                    }
                ],
            },
        },
    }


def _pod(name: str, image: str, resources: Mapping[str, str], port: int | None) -> dict[str, Any]:
    ports = [{"name": "cutaway", "containerPort": port}] if port else []
    return {
        "spec": {
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 60,
            "securityContext": {"runAsNonRoot": True},
            "containers": [
                {
                    "name": "ray",
                    "image": image,
                    "resources": {
                        "requests": dict(resources),
                        "limits": dict(resources),
                    },
                    "ports": ports,
                    "securityContext": {
                        "allowPrivilegeEscalation": False,
                        "capabilities": {"drop": ["ALL"]},
                    },
                    "volumeMounts": [{"name": "keys", "mountPath": KEY_FOLDER, "readOnly": True}],
                }
            ],
            "volumes": [{"name": "keys", "secret": {"secretName": f"{name}-keys"}}],
        }
    }


def check_service(manifest: Mapping[str, Any]) -> None:
    """Raise ConfigError where a RayService lacks what KubeRay requires, by the field's path."""
    for path, kind in (
        *(
            ("apiVersion", str),
            ("kind", str),
            ("metadata.name", str),
            ("spec.serveConfigV2", str),
        ),
        *(("spec.rayClusterConfig.rayVersion", str),),
        ("spec.rayClusterConfig.headGroupSpec.rayStartParams", dict),
    ):
        _field(manifest, path, kind)
    if (manifest["apiVersion"], manifest["kind"]) != ("ray.io/v1", "RayService"):
        raise ConfigError("apiVersion and kind must be ray.io/v1 and RayService.")
    cluster = cast("dict[str, Any]", manifest["spec"]["rayClusterConfig"])
    groups: list[tuple[str, Any]] = [("headGroupSpec", cluster["headGroupSpec"])]
    for number, group in enumerate(cluster.get("workerGroupSpecs", [])):
        where = f"workerGroupSpecs[{number}]"
        groups.append((where, group))
        for name, kind in (
            ("groupName", str),
            ("rayStartParams", dict),
            ("replicas", int),
        ):
            _field(group, name, kind, where)
        if not group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]:
            raise ConfigError(f"{where}: replicas must be from minReplicas to maxReplicas.")
    for where, group in groups:
        for name, value in group["rayStartParams"].items():
            if not isinstance(value, str):
                raise ConfigError(f"{where}.rayStartParams.{name} must be text; quote it.")
        _check_pod(_field(group, "template.spec", dict, where), where)
    served = json.loads(manifest["spec"]["serveConfigV2"])
    for application in served["applications"]:
        for name in ("name", "import_path"):
            _field(application, name, str, "serveConfigV2.applications")
        ClusterConfig.parse(application.get("args", {}), where="serveConfigV2")


def _check_pod(pod: dict[str, Any], where: str) -> None:
    volumes = {_field(each, "name", str, f"{where}: volumes") for each in pod.get("volumes", [])}
    containers = _field(pod, "containers", list, where)
    if not containers:
        raise ConfigError(f"{where}: a pod has at least one container.")
    for container in containers:
        for name in ("name", "image"):
            _field(container, name, str, where)
        for mount in container.get("volumeMounts", []):
            if mount["name"] not in volumes:
                raise ConfigError(f"{where}: the volume {mount['name']} is mounted and not there.")


def _field(value: Mapping[str, Any], path: str, kind: type, where: str = "") -> Any:
    found: Any = value
    for name in path.split("."):
        if not isinstance(found, dict) or name not in found:
            raise ConfigError(f"{where}{': ' if where else ''}{path} is missing.")
        found = cast("dict[str, Any]", found)[name]
    if not isinstance(found, kind):
        raise ConfigError(f"{where}{': ' if where else ''}{path} must be a {kind.__name__}.")
    return found


def as_yaml(value: Mapping[str, Any]) -> str:
    """Plain data as YAML of block style; texts of several lines stay readable."""
    return "".join(f"{line}\n" for line in _lines(value, 0))


def _lines(value: Mapping[str, Any] | Sequence[Any], depth: int) -> Iterator[str]:
    pad = "  " * depth
    if isinstance(value, Mapping):
        for name, each in value.items():
            yield from _entry(f"{pad}{name}:", each, depth)
        return
    for each in value:
        if isinstance(each, dict | list) and each:
            first, *rest = _lines(cast("dict[str, Any]", each), depth + 1)
            yield f"{pad}- {first.lstrip()}"
            yield from rest
        else:
            yield f"{pad}- {json.dumps(each)}"


def _entry(head: str, value: Any, depth: int) -> Iterator[str]:
    if isinstance(value, str) and "\n" in value:
        yield f"{head} |-"
        yield from (f"{'  ' * (depth + 1)}{line}" for line in value.splitlines())
    elif isinstance(value, dict | list) and value:
        yield head
        yield from _lines(cast("dict[str, Any]", value), depth + 1)
    else:
        yield f"{head} {json.dumps(value)}"
