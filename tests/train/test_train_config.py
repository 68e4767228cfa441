"""Settings from TOML and key=value: what is wrong is told by name, value and what is allowed."""

from __future__ import annotations

from pathlib import Path

import pytest

from cutaway.core.errors import ConfigError
from cutaway.train.pretrain import PretrainSettings
from cutaway.train.stage_config import read_settings, resolve_settings

GOOD = 'out = "run"\nupdates = 5\nrate = 1e-3\ndata = "a.txt"\n[model]\nhidden_size = 8\n'


def written(folder: Path, text: str = GOOD) -> Path:
    path = folder / "config.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_values_are_read_and_replaced(tmp_path: Path) -> None:
    settings = read_settings(
        PretrainSettings,
        written(tmp_path),
        ("rate=2", "data=['x.txt', 'y.txt']", "model=some/folder", "compile=true", "warmup=3"),
    )
    assert settings.rate == 2.0 and isinstance(settings.rate, float)
    assert settings.data == (Path("x.txt"), Path("y.txt"))
    assert settings.model == "some/folder" and settings.compile and settings.warmup == 3
    assert settings.schedule == "wsd" and settings.tokens == 4096


def test_what_may_change_is_no_part_of_the_run(tmp_path: Path) -> None:
    settings = read_settings(PretrainSettings, written(tmp_path))
    assert resolve_settings(settings)["out"] == "run" and resolve_settings(settings)["data"] == [
        "a.txt"
    ]
    own = resolve_settings(settings, of_the_run=True)
    assert "rate" in own and not {"out", "data", "save_every", "device"} & own.keys()


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("rates=1", r"rates is no setting of this stage; did you mean rate\? Known are out,"),
        ("zzz=1", r"zzz is no setting of this stage\. Known are out,"),
        ("rate", '"rate" is no setting; write key=value'),
        ("rate=fast", 'rate is "fast"; it must be a number of at least 0'),
        ("rate=-1", "rate is -1; it must be a number of at least 0"),
        ("rate=inf", "rate is inf"),
        ("rate=nan", "rate is nan"),
        ("updates=0", "updates is 0; it must be an integer of at least 1"),
        ("updates=true", "updates is true; it must be an integer"),
        ("updates=1.5", "updates is 1.5; it must be an integer"),
        ("schedule=linear", 'schedule is "linear"; it must be one of constant, cosine, wsd'),
        ("compile=1", "compile is 1; it must be true or false"),
        ("data=3", "data is 3; it must be a path or a list of paths"),
        ("model=3", "model is 3; it must be a table or a string"),
    ],
)
def test_a_wrong_value_is_told(tmp_path: Path, override: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        read_settings(PretrainSettings, written(tmp_path), (override,))


def test_files_that_cannot_be_read_are_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_settings(PretrainSettings, tmp_path / "absent.toml")
    with pytest.raises(ConfigError, match="is not TOML"):
        read_settings(PretrainSettings, written(tmp_path, "out = \n"))
    with pytest.raises(ConfigError, match="out is missing: the run's folder"):
        read_settings(PretrainSettings, written(tmp_path, ""))
