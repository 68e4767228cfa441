"""Files for operation: they parse, agree with the program, and promise what they say."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from cutaway.core.output import Timings, Usage
from cutaway.core.request import SamplingParams
from cutaway.server.watching.metrics import Metrics
from cutaway.service.service import EngineStats
from house_tree import ROOT
from program import spawn

DEPLOY = ROOT / "deploy"
DOCKERFILES = ("Dockerfile", "Dockerfile.cuda")
INSTRUCTIONS = {
    *("FROM", "RUN", "COPY", "WORKDIR", "ENV", "ARG", "USER", "VOLUME", "EXPOSE", "HEALTHCHECK"),
    *("STOPSIGNAL", "ENTRYPOINT", "CMD"),
}


def instructions(name: str) -> list[tuple[str, str]]:
    """Instruction and the rest of its line, continued lines joined and comments left out."""
    text = (DEPLOY / name).read_text(encoding="utf-8")
    kept = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    lines = [line for line in kept.replace("\\\n", " ").splitlines() if line.strip()]
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in lines)]


def options_of(arguments: list[str]) -> None:
    """Every option of a command line is one that the command has."""
    assert arguments[0] == "serve"
    known = set(re.findall(r"--[a-z][a-z-]+", spawn("serve", "--help", COLUMNS="200").out))
    given = {word for word in arguments if word.startswith("--")}
    assert given and given <= known


@pytest.mark.parametrize("name", DOCKERFILES)
def test_dockerfiles_are_sane(name: str) -> None:
    found = instructions(name)
    assert {word for word, _ in found} <= INSTRUCTIONS
    last = {word: rest for word, rest in found}
    assert last["USER"].isdigit() and int(last["USER"]) > 0, "never as root"
    assert f"--uid {last['USER']} " in " ".join(rest for word, rest in found if word == "RUN")
    users = [index for index, (word, _) in enumerate(found) if word == "USER"]
    assert not [word for word, _ in found[users[-1] :] if word == "RUN"]
    assert json.loads(last["ENTRYPOINT"]) == ["cutaway"]
    options_of(json.loads(last["CMD"]))
    assert "/ready" in last["HEALTHCHECK"]
    images = [rest.split()[0] for word, rest in found if word == "FROM"]
    assert not [image for image in images if ":" not in image or image.endswith(":latest")]


def lint(*command: str) -> None:
    """Run a linter of the development tools; it must find nothing."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", DOCKERFILES)
def test_hadolint_finds_nothing(name: str) -> None:
    lint(str(Path(sys.executable).parent / "hadolint"), str(DEPLOY / name))


def test_compose_is_valid_by_its_published_schema() -> None:
    check = (sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec")
    lint(*check, str(DEPLOY / "compose.yaml"))


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not here")
def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    unit = (DEPLOY / "cutaway.service").read_text(encoding="utf-8")
    program = "/usr/local/lib/cutaway/bin/cutaway"
    assert f"ExecStart={program} " in unit
    (tmp_path / "cutaway.service").write_text(unit.replace(program, "/bin/true"), encoding="utf-8")
    lint("systemd-analyze", "verify", "--man=no", str(tmp_path / "cutaway.service"))


@pytest.mark.parametrize("name", DOCKERFILES)
def test_what_dockerfiles_copy_is_there(name: str) -> None:
    copied = [rest.split() for word, rest in instructions(name) if word == "COPY"]
    sources = [path for words in copied if not words[0].startswith("--") for path in words[:-1]]
    assert sources and all((ROOT / path).exists() for path in sources)


def test_compose_names_files_that_are_there_and_opens_the_loopback_alone() -> None:
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
    services = compose["services"]
    assert set(services) == {"cutaway", "prometheus", "grafana"}
    for service in services.values():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
        assert set(service.get("secrets", [])) <= set(compose["secrets"])
        for volume in service.get("volumes", []):
            source = volume.partition(":")[0]
            is_file = source.startswith("./")
            assert (DEPLOY / source).is_file() if is_file else source in compose["volumes"]
    assert (DEPLOY / services["cutaway"]["build"]["dockerfile"].removeprefix("deploy/")).is_file()


@pytest.mark.parametrize(
    "name", ["prometheus.yml", "grafana/datasource.yml", "grafana/dashboards.yml"]
)
def test_settings_of_the_watchers_parse(name: str) -> None:
    assert isinstance(yaml.safe_load((DEPLOY / name).read_text(encoding="utf-8")), dict)


def test_the_dashboard_asks_for_metrics_and_labels_that_the_server_has() -> None:
    metrics = Metrics("m")
    metrics.count_started(SamplingParams(max_tokens=1))
    metrics.count_finished("stop", Usage(1, 1, 0), Timings(0, 0, 0, 0, 0), is_first=True)
    metrics.count_aborted("client")
    metrics.count_rejected("overloaded")
    metrics.count_answered("/", status=200, seconds=0.0)
    metrics.gap(0.1)
    text = metrics.text(EngineStats()).decode()
    known = set(re.findall(r"^(cutaway:\w+)", text, re.MULTILINE))
    labels = set(re.findall(r"[{,](\w+)=", text))
    dashboard = json.loads((DEPLOY / "grafana/cutaway.json").read_text(encoding="utf-8"))
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    used = {name for query in asked for name in re.findall(r"cutaway:\w+", query)}
    assert len(used) > 15 and used - known == set()
    by = {
        name for query in asked for group in re.findall(r"by \((\w+)\)", query) for name in [group]
    }
    assert by <= labels
    assert all(query.count("(") == query.count(")") for query in asked)
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


def test_the_unit_is_hardened_and_starts_what_there_is() -> None:
    unit = configparser.RawConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string((DEPLOY / "cutaway.service").read_text(encoding="utf-8"))
    service = unit["Service"]
    words = shlex.split(service["ExecStart"])
    assert words[0].endswith("/cutaway")
    options_of(words[1:])
    for name in ("NoNewPrivileges", "PrivateTmp", "ProtectHome", "DynamicUser", "LockPersonality"):
        assert service[name] == "yes"
    assert service["ProtectSystem"] == "strict" and service["CapabilityBoundingSet"] == ""
    assert int(service["TimeoutStopSec"]) > 30, "longer than --drain-seconds"
