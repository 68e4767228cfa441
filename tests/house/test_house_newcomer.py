"""What the pages tell of adding a thing is done to a copy of the package, and it is there."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tiny
from house_tree import PACKAGE, ROOT

pytestmark = pytest.mark.slow

RUN = ("--max-tokens", "4", "--temperature", "0")

# Run in the copy: answers without and with the cut, and where its name is known.
DRAWN = """
import json, sys
from cutaway import LLM, SamplingParams
from cutaway.compare.levers import LEVERS
from cutaway.server.anthropic.messages import MessagesBody
from cutaway.server.openai.chat import ChatBody
from cutaway.server.openai.responses import ResponsesBody
answers = []
for dtype in ("auto", "float32"):
    llm = LLM(sys.argv[1], dtype=dtype)
    asked = [SamplingParams(temperature=0.2, seed=3, max_tokens=8, top_a=a) for a in (0.0, 1.0)]
    answers.append([llm.generate("Hello", each)[0].token_ids for each in asked])
bodies = ["top_a" in each.model_fields for each in (ChatBody, ResponsesBody, MessagesBody)]
print(json.dumps({"answers": answers, "bodies": bodies, "lever": "top_a" in LEVERS}))
"""


# Run in the copy: commands one after the other, a mark behind what each says.
COMMANDS = """
import json, sys
from cutaway.cli.main import run
for words in json.loads(sys.argv[1]):
    assert run(words) == 0, words
    print("\\x1e", flush=True)
"""


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The package, to be changed; what stays as it is need not be compiled again."""
    ignored = shutil.ignore_patterns("_web")
    return Path(shutil.copytree(PACKAGE, tmp_path / "src" / "cutaway", ignore=ignored))


def page_of(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def blocks(page: str, heading: str) -> list[str]:
    """The Python that a page shows below a heading."""
    section = page_of(page).split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return re.findall(r"```python\n(.*?)```", section, re.DOTALL)


def put_before(path: Path, line: str, added: str) -> None:
    """A line of a file, before another."""
    text = path.read_text(encoding="utf-8")
    assert text.count(line) == 1, line
    path.write_text(text.replace(line, added + line), encoding="utf-8")


def cutaway(copy: Path, *commands: tuple[str, ...]) -> list[str]:
    """What each command says."""
    return python(copy, "-c", COMMANDS, json.dumps(commands)).split("\x1e\n")[:-1]


def python(copy: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": str(copy.parent), "OMP_NUM_THREADS": "1"},
        cwd=copy.parent,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def model(folder: Path, **changes: object) -> str:
    (folder / "config.json").write_text(json.dumps(tiny.config(**changes)), encoding="utf-8")
    return f"random:{folder / 'config.json'}"


def test_a_view_is_added_as_its_page_tells(copy: Path, tmp_path: Path) -> None:
    (file,) = blocks("views.md", "Adding one")
    (copy / "views" / "surprise.py").write_text(file, encoding="utf-8")
    put_before(copy / "views" / "__init__.py", "    template,\n", "    surprise,\n")
    put_before(copy / "views" / "__init__.py", "    logits.VIEW,\n", "    surprise.VIEW,\n")
    asked = ("view", "Hello", "--view", "surprise", "-m", model(tmp_path), *RUN)
    all_views = ("view", "Hello", "-m", model(tmp_path), *RUN)
    drawn, shown, every = cutaway(copy, asked, (*asked, "--json"), all_views)
    assert "How much did each token say?" in drawn and "bits in all" in drawn
    numbers = json.dumps(json.loads(shown))
    assert "surprise" in numbers and "bits" in numbers
    assert "How much did each token say?" in every, "it is one of all views"


def test_an_architecture_is_one_file_and_one_line(copy: Path, tmp_path: Path) -> None:
    (file,) = blocks("architectures.md", "Adding one")
    (copy / "models" / "mine.py").write_text(f'"""Mine: made by the page."""\n\n{file}', "utf-8")
    table = copy / "models" / "__init__.py"
    put_before(table, '    "MistralForCausalLM"', '    "MineForCausalLM": "mine",\n')
    name = model(tmp_path, architectures=["MineForCausalLM"], model_type="mine")
    answer, estimate, drawn = cutaway(
        copy,
        ("complete", "Hello", "--json", "-m", name, *RUN),
        ("models", "estimate", name),
        ("view", "Hello", "--view", "attention", "-m", name, *RUN),
    )
    assert json.loads(answer)["usage"]["completion_tokens"] == 4
    assert "parameters" in estimate
    assert "exact" in drawn, "the record replays"


def test_a_cut_of_the_sampler_is_four_lines_and_acts_in_every_way_in(
    copy: Path, tmp_path: Path
) -> None:
    (file,) = blocks("sampling.md", "To add a stage")
    (copy / "sampling" / "top_a.py").write_text(file, encoding="utf-8")
    sampler = copy / "sampling" / "sampler.py"
    place = "from cutaway.sampling.uniform import uniform\n"
    put_before(sampler, place, "from cutaway.sampling.top_a import TopA\n")
    put_before(sampler, "    TopK(),\n", "    TopA(),\n")
    request, limits = copy / "core" / "request.py", copy / "core" / "limits.py"
    field, entry = re.findall(r"`(top_a: float.*?|\"top_a\": _draw.*?,)`", page_of("sampling.md"))
    put_before(request, "    min_p: float = FloatByModel(0.0)\n", f"    {field}\n")
    put_before(limits, '    "min_p": _draw(', f"    {entry}\n")
    name = model(tmp_path)
    told = json.loads(python(copy, "-c", DRAWN, name).splitlines()[-1])
    for free, cut in told["answers"]:
        assert free != cut, "it acts, whatever the dtype"
    assert told["bodies"] == [True, True, True], "every API has the field"
    assert told["lever"], "and the comparison"
    looked = ("view", "Hello", "--view", "sampling", "-m", name, "--max-tokens", "8", "--json")
    drawn = ("--temperature", "0.2", "--seed", "3", "--top-a", "1")
    seen = json.loads(cutaway(copy, (*looked, *drawn))[0])
    assert seen["settings"]["top_a"] == 1 and seen["is_same"]
    kept = {each["name"]: each["num_kept"] for each in seen["effects"]}
    assert 1 <= kept["top_a"] < kept["temperature"]
    others = {each["name"]: each["num_kept"] for each in seen["strategies"]}
    assert others["as it is"] > kept["top_a"], "other settings begin without it"
