"""What newcomers to the command line stumbled over, each by its number in the report of the three.

tests/house/test_house_reports.py lists the numbers.
"""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from pathlib import Path

import pytest
from test_cli_help import COMMANDS

import tiny
from cutaway.bench.cpu import CpuReport, CpuRow
from cutaway.cli import bench, environment
from cutaway.cli.commands import program
from cutaway.cli.help_examples import EXAMPLES, OTHER_NAMES
from cutaway.cli.settings.setting_keys import BY_NAME, VIEW_TOKENS
from cutaway.compare.levers import LEVERS
from cutaway.core.request import RECOMMENDED
from cutaway.views import VIEWS
from house_tree import ROOT
from program import Cutaway

GROUPS = {path[:-1] for path in COMMANDS if path}
LEAVES = [path for path in COMMANDS if path not in GROUPS]
SHORT = ("--max-tokens", "3", "--temperature", "0", "--ignore-eos", "--cache-tokens", "512")


def page(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


# 2 and 5: what help says is what acts.


@pytest.mark.parametrize("name", ["view", "why", "compare", "trace save"])
def test_2_help_says_how_long_a_seen_answer_may_be(cutaway: Cutaway, name: str) -> None:
    words = " ".join(re.sub(r"[│\s]+", " ", cutaway(*name.split(), "--help-all").out).split())
    assert f"{VIEW_TOKENS} in view, why, compare and trace save" in words


def test_2_an_answer_that_is_seen_is_that_long(cutaway: Cutaway, tiny_model: str) -> None:
    asked = ("view", "abc", "-m", tiny_model, "--view", "tokens", "--ignore-eos", "--json")
    told = cutaway(*asked, "--cache-tokens", "512").json
    assert len(told["token_ids"]) - told["num_prompt"] == VIEW_TOKENS
    why = cutaway("why", "abc", "-m", tiny_model, "--ignore-eos", "--cache-tokens", "512").out
    assert "asked" not in why and "max_tokens" in why


def test_5_help_says_where_the_model_has_a_word() -> None:
    assert RECOMMENDED == ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
    for name, key in BY_NAME.items():
        assert ("unless the model recommends another" in key.help) == (name in RECOMMENDED)


def test_6_the_first_structured_answer_is_not_empty() -> None:
    (schema,) = re.findall(r"--json-schema '(\{.*?\})'\n", page("docs/structured.md"))
    assert json.loads(schema)["required"] == ["city"]


# 14: nothing is overwritten in silence.


def test_14_a_trace_that_is_there_stays_unless_it_is_forced(
    cutaway: Cutaway, tiny_model: str, tmp_path: Path
) -> None:
    file = tmp_path / "a.cutaway"
    asked = ("trace", "save", "abc", str(file), "-m", tiny_model, "--views", "tokens", *SHORT)
    assert cutaway(*asked).code == 0
    before = file.read_bytes()
    ended = cutaway("trace", "save", "abc", str(file), "-m", "no-such-model")
    assert ended.code == 2 and "is there already. Name another file, or add --force." in ended.err
    assert file.read_bytes() == before
    assert cutaway(*asked, "--force").code == 0

    for option in ("--output", "--html"):
        made = tmp_path / f"a{option}"
        made.write_text("mine")
        ended = cutaway("trace", "export", str(file), "--to", "csv", option, str(made))
        assert ended.code == 2 and "is there already" in ended.err
        assert made.read_text() == "mine"


def test_15_the_page_names_every_view_that_a_redacted_trace_keeps() -> None:
    kept = [view.name for view in VIEWS if not view.is_content]
    sentence = re.search(r"every view but ([\w,\s]+)\.", page("docs/trace.md"))
    assert sentence and set(re.findall(r"\w+", sentence[1])) - {"and"} == {*kept}


# 19: what is not there is seen.


def test_19_doctor_knows_every_dependency_and_extra() -> None:
    project = tomllib.loads(page("pyproject.toml"))["project"]
    needed = {re.split(r"[<>=\[; ]", each)[0] for each in project["dependencies"]}
    assert needed == {*environment.PACKAGES}
    extras = project["optional-dependencies"]
    assert {*extras} - {"dev", "all"} == {*environment.EXTRAS}
    for name, (package, _) in environment.EXTRAS.items():
        assert any(each.startswith(package) for each in extras[name])


@pytest.mark.parametrize("name", ["chat", "grammar"])
def test_19_an_extra_that_is_missed_is_told(
    cutaway: Cutaway, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    package, _ = environment.EXTRAS[name]
    find = environment._version
    monkeypatch.setattr(environment, "_version", lambda n: None if n == package else find(n))
    ended = cutaway("doctor")
    assert f"warning: {package} is not installed." in ended.err
    assert f"pip install 'cutaway[{name}]'" in ended.err


# 20: help.


@pytest.mark.parametrize("path", LEAVES, ids=" ".join)
def test_20_help_has_examples_that_can_be_typed(cutaway: Cutaway, path: tuple[str, ...]) -> None:
    ended = cutaway(*path, "--help")
    examples = EXAMPLES[" ".join(path)]
    assert "Example" in ended.out and "<bool>" not in ended.out
    for each in examples:
        assert each in ended.out
        _, _, call = each.rpartition("| ")
        words = shlex.split(call.partition(" < ")[0])
        assert words[: len(path) + 1] == ["cutaway", *path]
        command = program()
        for word in path:
            command = command.commands[word]
        known = {flag for each in command.params for flag in (*each.opts, *each.secondary_opts)}
        assert {word for word in words if word.startswith("-") and word != "-"} <= known


def test_20_every_example_is_of_a_command() -> None:
    assert {*EXAMPLES} == {" ".join(path) for path in LEAVES}


def test_20_what_can_be_changed_stands_line_below_line(cutaway: Cutaway) -> None:
    told = cutaway("compare", "--help").out
    listed = told.partition("What can be changed:")[2].partition("\u256d")[0].strip()
    assert "\n \n" not in listed and len(re.findall(r"^ *- \w+: ", listed, re.MULTILINE)) == len(
        LEVERS
    )


@pytest.mark.parametrize("typed", OTHER_NAMES)
def test_20_names_of_other_programs_lead_here(cutaway: Cutaway, typed: str) -> None:
    meant = OTHER_NAMES[typed]
    known = {" ".join(path) for path in COMMANDS}
    assert meant in {*known, "--version", "--help"} and typed not in {" ".join(p) for p in LEAVES}
    ended = cutaway(*typed.split())
    assert ended.code == 2 and "Did you mean" in ended.err
    assert f"`cutaway {meant}`" in ended.err or f"'{meant.split()[-1]}'" in ended.err


def test_20_the_version_has_its_short_flag(cutaway: Cutaway) -> None:
    assert cutaway("-V") == cutaway("--version")


# 21: hints are about what they follow, and tables have each heading once.


@pytest.mark.parametrize(
    ("arguments", "is_setting"),
    [
        (("bench", "cpu", "--only", "zzz"), False),
        (("bench", "cpu", "--models", "zzz"), False),
        (("models", "quantize", "x", "--scheme", "int5", "--out", "y"), False),
        (("models", "estimate", "x", "--kv-dtype", "zzz"), False),
        (("complete", "x", "--dtype", "zzz"), True),
        (("complete", "x", "--page-size", "48"), True),
    ],
)
def test_21_the_hint_on_settings_follows_settings(
    cutaway: Cutaway, arguments: tuple[str, ...], is_setting: bool
) -> None:
    ended = cutaway(*arguments)
    assert ended.code == 2
    assert ("config show --origin" in ended.err) == is_setting
    if "--scheme" in arguments:
        assert 'scheme is "int5"' in ended.err


def test_21_the_table_of_a_measurement_has_each_heading_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    row = {each: None for each in CpuRow.__dataclass_fields__}
    row |= {"name": "first token", "ours": 0.5, "unit": "s"}
    bench._print(CpuReport(rows=[CpuRow(**row)]))
    printed = capsys.readouterr().out
    heads = printed.splitlines()[0].split()
    assert len(heads) == len({*heads})
    assert "bandwidth" not in printed, "none was measured"


# 22: without a device an estimate speaks of this machine, and of the model's whole context.


def test_22_an_estimate_is_of_this_machine_and_model(cutaway: Cutaway, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(tiny.config(max_position_embeddings=777)))
    told = cutaway("models", "estimate", str(tmp_path), "--json").json
    assert told["context"] == 777
    if not Path("/dev/nvidiactl").exists():
        assert told["roofline"]["device"] == "cpu" and told["measured"]["threads"] >= 1
    named = cutaway("models", "estimate", str(tmp_path), "--device", "H100", "--json").json
    assert named["roofline"]["device"] == "H100"


# 23: packaging.


def test_23_one_extra_brings_all_and_nothing_of_a_linter_is_packed() -> None:
    extras = tomllib.loads(page("pyproject.toml"))["project"]["optional-dependencies"]
    (everything,) = extras["all"]
    named = set(re.findall(r"\w+", everything.partition("[")[2]))
    # A GPU's is brought by torch, Ray is large; of two the packages ask for accounts elsewhere.
    assert named == {*extras} - {"all", "dev", "gpu", "ray", "trackio", "wandb"}
    assert ".import_linter_cache/" in page(".gitignore").splitlines()
    told = page("docs/python.md")
    assert "pip install ." in told and "[chat,grammar]" in told


def test_24_a_difference_speaks_of_left_and_right(
    cutaway: Cutaway, tiny_model: str, tmp_path: Path
) -> None:
    for name, text in (("a", "abc"), ("b", "xyz")):
        asked = ("trace", "save", text, str(tmp_path / name), "-m", tiny_model, "--views", "tokens")
        assert cutaway(*asked, *SHORT).code == 0
    told = cutaway("trace", "diff", str(tmp_path / "a"), str(tmp_path / "b")).out
    assert " left, " in told and " right\n" in told and " there" not in told
    assert not told.endswith("\n\n")


def test_24_a_picture_ends_with_its_last_line(cutaway: Cutaway, tiny_model: str) -> None:
    asked = (
        "compare",
        "abc",
        "-m",
        tiny_model,
        "--change",
        "temperature=0.5",
        "--change",
        "seed=7",
    )
    told = cutaway(*asked, "--runs", "1", *SHORT).out
    assert told.endswith("\n") and not told.endswith("\n\n")
    assert told.count("\n\nseed=7, and nothing else\n") == 1, "an empty line stands between two"
    seen = cutaway("view", "abc", "-m", tiny_model, *SHORT).out
    assert not seen.endswith("\n\n") and "\n\ntokens: " in seen


# And of issue 17: a model that cannot run says so where it is described.


def test_info_says_whether_a_model_runs(cutaway: Cutaway, tiny_model: str, tmp_path: Path) -> None:
    assert re.search(r"^runs +yes$", cutaway("models", "info", tiny_model).out, re.MULTILINE)
    assert cutaway("models", "info", tiny_model, "--json").json["runs"] is True
    other = {"architectures": ["RwkvForCausalLM"], "model_type": "rwkv"}
    (tmp_path / "config.json").write_text(json.dumps(other))
    name = f"random:{tmp_path}/config.json"
    told = cutaway("models", "info", name)
    assert told.code == 0 and re.search(r"^runs +no: .*RwkvForCausalLM", told.out, re.MULTILINE)
    made = cutaway("models", "info", name, "--json").json
    assert made["runs"] is False and "RwkvForCausalLM" in made["obstacle"]
