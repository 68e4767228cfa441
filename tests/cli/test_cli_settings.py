"""Where each setting comes from, and what is said when one is wrong."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from cutaway.cli.settings.setting_keys import BY_NAME, KEYS, SAMPLING_NAMES
from cutaway.cli.settings.settings import resolve, user_file
from cutaway.core.errors import ConfigError, RequestError
from cutaway.core.limits import LIMITS
from cutaway.core.request import SamplingParams
from cutaway.engine.config import EngineConfig
from cutaway.fleet.fleet_config import FleetConfig
from cutaway.service.bounds import ProcessConfig, TrafficConfig

# Fields that belong to one request and to one command, or to other ways in.
NOT_SETTINGS = {
    "grammar",
    *("n", "logit_bias", "logprobs", "prompt_logprobs"),
    *("include_stop", "skip_special_tokens", "stop_token_ids"),
}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return tmp_path / "own.toml"


def write_user_file(text: str) -> None:
    user_file().parent.mkdir(parents=True)
    user_file().write_text(text, encoding="utf-8")


def test_every_setting_of_engine_and_sampling_has_its_key() -> None:
    engine = {each.name for each in fields(EngineConfig)}
    sampling = {each.name for each in fields(SamplingParams)} - NOT_SETTINGS
    owners = (TrafficConfig, ProcessConfig, FleetConfig)
    bounds = {each.name for owner in owners for each in fields(owner)}
    bounds -= {"members"}  # an option of cutaway serve alone
    assert set(BY_NAME) == engine | sampling | bounds | {"model", "system", "accept_license"}


def test_defaults_are_those_of_their_owners() -> None:
    settings = resolve({})
    assert settings.sampling() == SamplingParams()
    assert EngineConfig.of(settings.engine) == EngineConfig()
    assert (settings.traffic, settings.process) == (TrafficConfig(), ProcessConfig())
    limits = {key.name: key.limit for key in KEYS if key.name in LIMITS}
    assert limits == {name: LIMITS[name] for name in SAMPLING_NAMES if name in LIMITS}


def test_each_source_wins_over_the_next(monkeypatch: pytest.MonkeyPatch, config: Path) -> None:
    expected = ["flag", "environment", "file", "user file", "model", "default"]
    values = [0.1, 0.2, 0.3, 0.4, 0.5, 1.0]
    monkeypatch.setenv("CUTAWAY_TEMPERATURE", "0.2")
    config.write_text("temperature = 0.3", encoding="utf-8")
    write_user_file("temperature = 0.4")
    given, recommended = {"temperature": 0.1}, {"temperature": 0.5}
    seen: list[tuple[str, object]] = []
    for step in range(6):
        if step == 1:
            given = {}
        elif step == 2:
            monkeypatch.delenv("CUTAWAY_TEMPERATURE")
        elif step == 4:
            user_file().unlink()
        elif step == 5:
            recommended = {}
        settings = resolve(given, config=config if step < 3 else None, recommended=recommended)
        seen.append((settings.origins["temperature"], settings.values["temperature"]))
    assert seen == list(zip(expected, values, strict=True))


def test_sources_are_merged_key_by_key(monkeypatch: pytest.MonkeyPatch, config: Path) -> None:
    monkeypatch.setenv("CUTAWAY_SEED", "7")
    config.write_text('dtype = "float32"\nstop = ["a", "b"]\n', encoding="utf-8")
    settings = resolve({"top_p": 0.5}, config=config)
    assert settings.sampling() == SamplingParams(top_p=0.5, seed=7, stop=("a", "b"))
    assert settings.engine["dtype"] == "float32"
    assert settings.origins["top_k"] == "default"


def test_integers_take_a_factor_in_every_source(
    monkeypatch: pytest.MonkeyPatch, config: Path
) -> None:
    monkeypatch.setenv("CUTAWAY_CACHE_TOKENS", "32K")
    config.write_text('max_tokens = "1K"\nprefill_chunk = 128\n', encoding="utf-8")
    values = resolve({}, config=config).values
    assert (values["cache_tokens"], values["max_tokens"]) == (32768, 1024)
    assert values["prefill_chunk"] == 128


def test_the_record_is_turned_off_by_0_and_takes_nothing_below() -> None:
    assert resolve({"ledger_bytes": 0}).engine["ledger_bytes"] == 0
    with pytest.raises(ConfigError, match=r"ledger_bytes is -1; it must be an integer from 0"):
        resolve({"ledger_bytes": -1})


@pytest.mark.parametrize(
    ("text", "stop"), [("end", ("end",)), ('["a", "b"]', ("a", "b")), ("", ())]
)
def test_stop_in_the_environment_is_one_string_or_a_list(
    monkeypatch: pytest.MonkeyPatch, text: str, stop: tuple[str, ...]
) -> None:
    monkeypatch.setenv("CUTAWAY_STOP", text)
    assert resolve({}).sampling().stop == stop


def test_an_unknown_key_of_a_file_names_file_and_nearest_key(config: Path) -> None:
    config.write_text("temprature = 1", encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        resolve({}, config=config)
    assert str(caught.value) == (
        f'{config} has the key "temprature", which is no setting; the nearest is temperature. '
        "`cutaway config show` lists all."
    )


def test_an_unknown_key_of_the_user_file_names_that_file() -> None:
    write_user_file("[sampling]\ntop_p = 1")
    with pytest.raises(ConfigError, match=r'config\.toml has the key "sampling"'):
        resolve({})


def test_a_misspelt_variable_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUTAWAY_TEMPRATURE", "0")
    with pytest.raises(ConfigError, match=r"nearest is CUTAWAY_TEMPERATURE\. Rename or unset it"):
        resolve({})


@pytest.mark.parametrize("name", ["SERVICE_HOST", "PORT_8000_TCP", "CACHE", "DEBUG", "ORACLES"])
def test_variables_that_resemble_no_setting_are_somebody_elses(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(f"CUTAWAY_{name}", "x")
    resolve({})


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('temperature = "hot"', 'temperature is "hot", from the file; it must be a number from'),
        ("temperature = true", "temperature is true, from the file; it must be a number from"),
        ("temperature = 9", r"must be a number from 0 to 5\. It comes from the file\."),
        ("temperature = nan", r"temperature is nan; it must be a number from 0 to 5\."),
        ('seed = "1.5"', 'seed is "1.5", from the file; it must be an integer from'),
        ("stop = 3", "stop is 3, from the file; it must be a string or a list of strings"),
        ('graphs = "perhaps"', 'graphs is "perhaps", from the file; it must be true or false'),
        ('dtype = "int3"', 'dtype is "int3"; it must be one of float32'),
        ("model = 3", "model is 3, from the file; it must be text"),
        ("temperature =", "is no TOML file: Invalid value"),
    ],
)
def test_a_wrong_value_names_key_value_source_and_range(
    config: Path, line: str, message: str
) -> None:
    config.write_text(line, encoding="utf-8")
    with pytest.raises(ConfigError, match=message):
        resolve({}, config=config)


def test_a_wrong_flag_is_a_fault_of_the_request() -> None:
    with pytest.raises(RequestError, match=r"top_p is 2\.0; it must be a number from 0 to 1"):
        resolve({"top_p": 2})


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not a file; --config names a TOML file"):
        resolve({}, config=tmp_path / "none.toml")
