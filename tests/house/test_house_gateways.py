"""Files for gateways and clusters: they parse, and name routes and options that the server has."""

from __future__ import annotations

import re
from typing import Any

import yaml
from test_house_deploy import options_of

from house_tree import ROOT

DEPLOY = ROOT / "deploy"
PORTS = ["8001", "8002"]  # of the two servers behind each gateway


def loaded(name: str) -> Any:
    return yaml.safe_load((DEPLOY / name).read_text(encoding="utf-8"))


def nginx(text: str) -> list[Any]:
    """Directives as lists of words, a block's last word being its own directives."""
    kept = re.sub(r"#.*", "", text)
    words = re.findall(r'"[^"]*"|[{};]|[^\s{};"]+', kept)

    def block(at: int) -> tuple[list[Any], int]:
        found: list[Any] = []
        line: list[Any] = []
        while at < len(words) and words[at] != "}":
            word = words[at]
            at += 1
            if word == "{":
                inner, at = block(at)
                assert words[at] == "}", "a block ends"
                found.append([*line, inner])
                at, line = at + 1, []
            elif word == ";":
                assert line, "a directive has a name"
                found.append(line)
                line = []
            else:
                line.append(word)
        assert not line, f"{line} has no end"
        return found, at

    found, end = block(0)
    assert end == len(words)
    return found


def named(directives: list[Any], name: str) -> list[list[Any]]:
    return [line[1:] for line in directives if line[0] == name]


def test_nginx_keeps_conversations_together_and_holds_no_stream_back() -> None:
    (http,) = named(nginx((DEPLOY / "gateways/nginx.conf").read_text(encoding="utf-8")), "http")
    (upstream,) = named(http[-1], "upstream")
    assert named(upstream[-1], "hash")[0][1] == "consistent"
    assert [line[0].partition(":")[2] for line in named(upstream[-1], "server")] == PORTS
    (server,) = named(http[-1], "server")
    assert server[-1][0][1].startswith("127.0.0.1:"), "what others reach needs TLS"
    place = next(line[-1] for line in named(server[-1], "location") if line[0] == "/")
    assert named(place, "proxy_pass") == [[f"http://{upstream[0]}"]]
    assert named(place, "proxy_buffering") == [["off"]]


def test_envoy_asks_what_the_server_answers_and_sets_streams_no_end() -> None:
    resources = loaded("gateways/envoy.yaml")["static_resources"]
    (cluster,) = resources["clusters"]
    assert cluster["lb_policy"] == "RING_HASH"
    assert cluster["health_checks"][0]["http_health_check"]["path"] == "/ready"
    (group,) = cluster["load_assignment"]["endpoints"]
    places = [e["endpoint"]["address"]["socket_address"] for e in group["lb_endpoints"]]
    assert [str(place["port_value"]) for place in places] == PORTS
    (chain,) = resources["listeners"][0]["filter_chains"]
    manager = chain["filters"][0]["typed_config"]
    (route,) = manager["route_config"]["virtual_hosts"][0]["routes"]
    assert route["route"]["cluster"] == cluster["name"] and route["route"]["timeout"] == "0s"
    assert route["route"]["hash_policy"][0]["header"]["header_name"] == "x-session-id"
    # Without these 9 of 20 requests got 503 until a dead server was found out.
    retry = route["route"]["retry_policy"]
    names = [each["name"] for each in retry["retry_host_predicate"]]
    assert names == ["envoy.retry_host_predicates.previous_hosts"]
    assert retry["host_selection_retry_max_attempts"] > 1
    (limits,) = cluster["circuit_breakers"]["thresholds"]
    assert limits["max_retries"] >= 1024, "the usual 3 leave the others with 503"


def test_litellm_speaks_to_both_servers_and_drops_nothing_in_silence() -> None:
    settings = loaded("gateways/litellm.yaml")
    bases = [each["litellm_params"]["api_base"] for each in settings["model_list"]]
    assert [re.findall(r":(\d+)/v1$", base)[0] for base in bases] == PORTS
    assert len({each["model_name"] for each in settings["model_list"]}) == 1
    assert settings["litellm_settings"]["drop_params"] is False
    # It does not start without a key of its own; the file names a variable and holds none.
    assert settings["general_settings"]["master_key"] == "os.environ/LITELLM_MASTER_KEY"
    assert "=sk-" not in (DEPLOY / "gateways/litellm.yaml").read_text(encoding="utf-8")


def test_kubernetes_starts_what_there_is_and_asks_what_the_server_answers() -> None:
    text = (DEPLOY / "kubernetes.yaml").read_text(encoding="utf-8")
    deployment, service = yaml.safe_load_all(text)
    spec = deployment["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    options_of([word.partition("=")[0] for word in container["args"]])
    paths = {n: container[f"{n}Probe"]["httpGet"]["path"] for n in ("startup", "readiness")}
    assert set(paths.values()) == {"/ready"}
    assert container["livenessProbe"]["httpGet"]["path"] == "/health"
    assert spec["terminationGracePeriodSeconds"] > 30, "longer than --drain-seconds"
    assert spec["securityContext"]["runAsNonRoot"] and not spec["automountServiceAccountToken"]
    assert container["securityContext"]["capabilities"]["drop"] == ["ALL"]
    volumes = {volume["name"] for volume in spec["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"] == deployment["spec"]["selector"]["matchLabels"] == labels
    (port,) = container["ports"]
    assert service["spec"]["ports"][0]["targetPort"] == port["name"]
