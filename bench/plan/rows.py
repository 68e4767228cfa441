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


def cases(what: str, figure: int, *nodes: str) -> Run:
    """Tests that go through all cases there are, at least so many, once."""
    return Run(what, figure, tuple(f"tests/{node}" for node in nodes), once=True)


def script(what: str, figure: int, *words: str, each: int = 0) -> Run:
    """Trials that a script under bench/ does; it reads PLAN_TRIALS, PLAN_SEED and PLAN_LOG."""
    return Run(what, figure, (f"bench/{words[0]}", *words[1:]), each, is_script=True)


GGUF, SAFETENSORS = "core/test_core_gguf.py", "weights/test_weights_safetensors.py"
MUTANTS = "mutants_load_or_raise_the_documented_errors[1]"
TEMPLATES, DRAWN = "text/test_text_fuzz.py", "sampling/test_sampling_drawn.py"
HOSTILE, FUZZ = "text/test_text_hostile.py", "server/test_server_fuzz.py"
LIMITS, DOOR = "server/test_server_limits.py", "server/test_server_door.py"
LOAD, RESTART = "server/test_server_load.py", "engine/test_engine_restart.py"
GUIDED = "plan/fuzz_headers.py"


def row(number: int, name: str, *runs: Run) -> Row:
    """A row that applies."""
    return Row(number, name, runs)


ROWS = (
    row(
        1,
        "files of models",
        tests("mutants of a GGUF header", 10_000, f"{GGUF}::test_g01_{MUTANTS}", each=2000),
        tests(
            "mutants of a safetensors header",
            10_000,
            f"{SAFETENSORS}::test_g03_{MUTANTS}",
            each=2000,
        ),
        script("guided runs, GGUF header", 5_000_000, GUIDED, "gguf", each=500_000),
        script("guided runs, safetensors header", 5_000_000, GUIDED, "safetensors", each=500_000),
    ),
    row(
        2,
        "truth of what is loaded",
        tests("GGUF files, against gguf", 500, f"{GGUF}::test_random_files_equal_the_gguf_package"),
        tests(
            "folders, against safetensors",
            500,
            f"{SAFETENSORS}::test_random_files_equal_the_safetensors_library",
        ),
    ),
    row(
        3,
        "chat templates",
        cases(
            "hostile templates",
            300,
            f"{HOSTILE}::test_i01_a_template_that_reaches_or_makes_too_much_is_refused",
            f"{HOSTILE}::test_i01_work_is_bounded_by_the_steps_paid_for",
        ),
        tests(
            "drawn templates, against transformers",
            10_000,
            f"{TEMPLATES}::test_i03_many_generated_templates_render_as_in_transformers",
            each=2500,
        ),
    ),
    row(
        4,
        "requests of ill will",
        tests(
            "bodies of our own grammar",
            100_000,
            f"{FUZZ}::test_hostile_bodies_are_refused_or_answered",
            each=5000,
        ),
        tests(
            "requests of schemathesis",
            20_000,
            f"{FUZZ}::test_schemathesis_finds_no_fault",
            each=10_000,
        ),
    ),
    row(5, "every field of every route", cases("cells", 1000, LIMITS)),
    row(
        6,
        "a poisoned neighbour",
        tests(
            "batches",
            10_000,
            "engine/test_engine_hostile.py::test_batches_of_the_plan_leave_the_others_alone",
            each=500,
        ),
    ),
    row(
        8,
        "scheduler and cache, simulated",
        script(
            "scenarios of 1,000 steps and more",
            100_000,
            "simulate_scheduler.py",
            "--steps",
            "1000",
            "--workers",
            "1",
            each=500,
        ),
    ),
    row(
        10,
        "disconnects",
        tests(
            "connections cut",
            1000,
            f"{LOAD}::test_h03_disconnects_at_random_points_leave_nothing",
            each=250,
        ),
    ),
    row(
        11,
        "overload",
        tests(
            "seconds at twice the capacity",
            3600,
            f"{LOAD}::test_h11_overload_is_refused_and_leaves_nothing",
        ),
    ),
    row(
        15,
        "grammars",
        tests(
            "grammars of ill will",
            2000,
            f"{DRAWN}::test_grammars_of_ill_will_are_refused_or_taken_in_bounded_time",
            each=250,
        ),
        tests(
            "sound schemas, no two alike",
            10_000,
            f"{DRAWN}::test_sound_schemas_without_end_are_compiled_and_take_no_more_memory",
        ),
    ),
    row(
        16,
        "truth of structured answers",
        tests(
            "whole answers judged by jsonschema",
            10_000,
            f"{DRAWN}::test_what_is_drawn_by_a_drawn_schema_is_valid_by_it",
            each=2000,
        ),
    ),
    row(18, "keys", cases("routes, keys and odd paths, in tests of many cells each", 100, DOOR)),
    row(
        24,
        "death of the engine",
        tests(
            "kills beside 8 streams",
            200,
            f"{LOAD}::test_kills_of_the_engine_under_load_are_told_and_healed",
            each=20,
        ),
    ),
    Row(27, "kill -9 in training", none="Cutaway does not train"),
    Row(30, "several hosts", none="one process pair over a socketpair"),
    row(32, "faults at the start", cases("cases", 200, "cli/test_cli_faults.py")),
)
