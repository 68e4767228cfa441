"""The rows of the plan: their numbers, classes, figures, and the tests or scripts that do them."""

from __future__ import annotations

from dataclasses import dataclass

from plan.run import Run


@dataclass(frozen=True)
class Row:
    """A class of faults, and what is tried of it. none: why it does not apply."""

    number: int
    name: str
    runs: tuple[Run, ...] = ()
    none: str = ""


def tests(what: str, figure: int, *nodes: str, each: int = 0) -> Run:
    """Trials that tests of the suite do when asked for more of them."""
    return Run(what, figure, tuple(f"tests/{node}" for node in nodes), each)


def script(what: str, figure: int, *words: str, each: int = 0) -> Run:
    """Trials that a script under bench/ does; it reads PLAN_TRIALS, PLAN_SEED and PLAN_LOG."""
    return Run(what, figure, (f"bench/{words[0]}", *words[1:]), each, is_script=True)


GGUF, SAFETENSORS = "core/test_core_gguf.py", "weights/test_weights_safetensors.py"
MUTANTS = "mutants_load_or_raise_the_documented_errors[1]"

ROWS = (
    Row(
        1,
        "files of models",
        (
            tests("mutants of a GGUF header", 10_000, f"{GGUF}::test_g01_{MUTANTS}", each=2000),
            tests(
                "mutants of a safetensors header",
                10_000,
                f"{SAFETENSORS}::test_g03_{MUTANTS}",
                each=2000,
            ),
            script(
                "guided runs of the GGUF header's reader",
                5_000_000,
                *("plan/fuzz_headers.py", "gguf"),
                each=500_000,
            ),
            script(
                "guided runs of the safetensors header's reader",
                5_000_000,
                *("plan/fuzz_headers.py", "safetensors"),
                each=500_000,
            ),
        ),
    ),
    Row(
        8,
        "scheduler and cache, simulated",
        (
            script(
                "scenarios of 1,000 steps and more",
                100_000,
                *("simulate_scheduler.py", "--steps", "1000", "--workers", "1"),
                each=500,
            ),
        ),
    ),
)
