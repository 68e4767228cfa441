"""The rows of the plan: their numbers, classes, figures, and the tests or scripts that do them."""

from __future__ import annotations

from dataclasses import dataclass, replace

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


def optimized(what: str, figure: int, *nodes: str) -> Run:
    """Tests that keep their own assertions while the package has none: python -O."""
    return replace(cases(what, figure, *nodes), is_optimized=True)


def script(what: str, figure: int, *words: str, each: int = 0) -> Run:
    """Trials that a script under bench/ does; it reads PLAN_TRIALS, PLAN_SEED and PLAN_LOG."""
    return Run(what, figure, (f"bench/{words[0]}", *words[1:]), each, is_script=True)


GGUF, SAFETENSORS = "host/test_host_gguf.py", "weights/test_weights_safetensors.py"
LYING = "engine/test_engine_lying_models.py"
MUTANTS = "mutants_load_or_raise_the_documented_errors[1]"
TEMPLATES, DRAWN = "text/test_text_fuzz.py", "sampling/test_sampling_drawn.py"
HOSTILE, FUZZ = "text/test_text_hostile.py", "server/test_server_fuzz.py"
LIMITS, DOOR = "server/test_server_limits.py", "server/test_server_door.py"
LOAD, RESTART = "server/test_server_load.py", "service/test_engine_restart.py"
GUIDED, SLOW, MUTANT = "plan/fuzz_headers.py", "plan/slow_clients.py", "plan/mutants.py"
FLOODS, BESIDE = "plan/floods.py", "plan/beside.py"
# What bench/faults.py prints of its faults, and of pages and tensors that it failed.
PLANTED, MEMORY = r"^faults\s+(\d+)$", r"^(?!.*ended)[a-z].*\s(\d+)$"
WHOLE = "host/test_host_whole_file.py"
# What reads strangers' files, templates and requests, and holds without assertions of the package.
STRANGERS = (
    *(GGUF, SAFETENSORS, HOSTILE, LIMITS, "server/test_server_errors.py"),
    *("engine/test_engine_hostile.py", "server/test_server_neighbours.py"),
)


def row(number: int, name: str, *runs: Run) -> Row:
    """A row that applies."""
    return Row(number, name, runs)


def of(file: str, *names: str) -> tuple[str, ...]:
    """Nodes of tests of one file."""
    return tuple(f"{file}::test_{name}" for name in names)


PROGRAM, LIFE = "server/test_server_program.py", "engine/test_engine_recycled.py"
NAN = "a_number_that_is_not_finite_ends_its_own_request_alone"
PAGES = "web/test_web_ill_will.py"

ROWS = (
    row(
        1,
        "files of models",
        tests("mutants of a GGUF header", 10_000, *of(GGUF, f"g01_{MUTANTS}"), each=2000),
        tests(
            "mutants of a safetensors header",
            10_000,
            *of(SAFETENSORS, f"g03_{MUTANTS}"),
            each=2000,
        ),
        tests(
            "configurations that lie, through the whole load",
            10_000,
            *of(LYING, "changed_configurations_load_or_say_what_is_wrong"),
            each=1000,
        ),
        tests(
            "GGUF headers that lie, through the whole load",
            10_000,
            *of(LYING, "changed_gguf_headers_load_or_say_what_is_wrong"),
            each=1000,
        ),
        script("guided runs, GGUF header", 5_000_000, GUIDED, "gguf", each=500_000),
        script("guided runs, safetensors header", 5_000_000, GUIDED, "safetensors", each=500_000),
    ),
    row(
        2,
        "truth of what is loaded",
        tests("GGUF files, against gguf", 500, *of(GGUF, "random_files_equal_the_gguf_package")),
        tests(
            "folders, against safetensors",
            500,
            *of(SAFETENSORS, "random_files_equal_the_safetensors_library"),
        ),
    ),
    row(
        3,
        "chat templates",
        cases(
            "hostile templates",
            300,
            *of(
                HOSTILE,
                "i01_a_template_that_reaches_or_makes_too_much_is_refused",
                "i01_work_is_bounded_by_the_steps_paid_for",
            ),
        ),
        tests(
            "drawn templates, against transformers",
            10_000,
            *of(TEMPLATES, "i03_many_generated_templates_render_as_in_transformers"),
            each=2500,
        ),
        script(
            "renderings without end beside a neighbour's stream",
            500,
            *(BESIDE, "templates"),
            each=100,
        ),
    ),
    row(
        4,
        "requests of ill will",
        tests(
            "bodies of our own grammar",
            100_000,
            *of(FUZZ, "hostile_bodies_are_refused_or_answered"),
            each=5000,
        ),
        tests(
            "views and comparisons in their own language",
            10_000,
            *of(FUZZ, "looks_of_ill_will_are_refused_or_shown"),
            each=2500,
        ),
        tests(
            "requests of schemathesis",
            20_000,
            *of(FUZZ, "schemathesis_finds_no_fault"),
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
            *of("engine/test_engine_hostile.py", "batches_of_the_plan_leave_the_others_alone"),
            each=500,
        ),
        tests(
            "batches beside three looks of ill will each",
            10_000,
            *of(
                "server/test_server_neighbours.py",
                "looks_of_ill_will_leave_the_others_answers_bit_equal",
            ),
            each=500,
        ),
    ),
    row(
        7,
        "places and pages used again",
        tests(
            "lives of requests, pages full of NaN",
            100_000,
            *of(LIFE, "recycled_places_and_pages_show_nothing_of_who_had_them"),
            each=5000,
        ),
    ),
    row(
        8,
        "scheduler and cache, simulated",
        script(
            "scenarios of 1,000 steps and more",
            100_000,
            *("simulate_scheduler.py", "--steps", "1000", "--workers", "1"),
            each=250,  # a second and more each
        ),
        script(
            "scenarios that end by themselves",
            100_000,
            *("simulate_scheduler.py", "--workers", "1"),
            each=5000,
        ),
    ),
    row(
        9,
        "the k-th failure",
        replace(
            script(
                "faults planted at the k-th call of the engine's places",
                2000,
                *("faults.py", "--faults", "{count}", "--seed", "{seed}"),
                each=250,
            ),
            counts=PLANTED,
        ),
        replace(
            script("every page and every tensor of a workload", 1000, "faults.py", "--memory"),
            counts=MEMORY,
            once=True,
        ),
        tests(
            "faults planted at the k-th call of the server's own places",
            200,
            *of(
                "server/test_server_planted.py",
                "a_fault_in_the_servers_own_work_ends_one_answer_alone",
            ),
            each=100,
        ),
    ),
    row(
        10,
        "disconnects",
        tests(
            "connections cut",
            1000,
            *of(LOAD, "h03_disconnects_at_random_points_leave_nothing"),
            each=250,
        ),
    ),
    row(
        11,
        "overload",
        tests(
            "seconds at twice the capacity, seven of eight clients wait as they are told",
            3600,
            *of(LOAD, "h11_overload_is_refused_and_leaves_nothing"),
            each=1200,  # the shortest that tells how memory grows in an hour
        ),
    ),
    row(
        12,
        "fairness",
        script("questions of one key beside floods of another", 90, FLOODS, "flood"),
        cases(
            "floods in the scheduler, counted in steps",
            1,
            *of(
                "engine/test_scheduler.py",
                "fairness_a_flood_delays_others_by_a_round_and_a_slot",
            ),
        ),
    ),
    row(13, "slow clients", script("requests beside 1,000 of them", 1000, SLOW)),
    row(
        14,
        "sizes",
        tests(
            "requests just over a limit",
            1000,
            *of(
                "server/test_server_sizes.py",
                "what_is_too_large_is_refused_and_leaves_no_memory_behind",
            ),
        ),
    ),
    row(
        15,
        "grammars",
        tests(
            "grammars of ill will",
            2000,
            *of(DRAWN, "grammars_of_ill_will_are_refused_or_taken_in_bounded_time"),
            each=250,
        ),
        tests(
            "sound schemas, no two alike",
            10_000,
            *of(DRAWN, "sound_schemas_without_end_are_compiled_and_take_no_more_memory"),
        ),
        script(
            "grammars of ill will beside a neighbour's stream",
            500,
            *(BESIDE, "grammars"),
            each=100,
        ),
    ),
    row(
        16,
        "truth of structured answers",
        tests(
            "whole answers judged by jsonschema",
            10_000,
            *of(DRAWN, "what_is_drawn_by_a_drawn_schema_is_valid_by_it"),
            each=2000,
        ),
    ),
    row(
        17,
        "what times give away",
        # In one slice: of 100 of each, chance alone takes one in four from 0.5 by 0.05.
        script("hits and misses of another's prefix", 2000, FLOODS, "timing"),
    ),
    row(
        18,
        "keys",
        cases("routes, keys and odd paths, in tests of many cells each", 100, DOOR),
        tests(
            "timings of wrong keys, Welch's t below 4.5",
            20_000,
            *of(DOOR, "time_does_not_tell_where_a_key_is_wrong"),
        ),
    ),
    row(
        19,
        "browsers as attackers",
        cases(
            "hosts and origins, each against every route",
            20,
            *of(
                DOOR,
                "a_foreign_host_is_refused_by_every_route",
                "a_host_that_is_missing_or_stands_twice_is_refused",
                "a_foreign_origin_is_refused_by_every_route",
                "h13_no_page_may_ask_unless_it_is_named",
            ),
        ),
    ),
    row(20, "scripts in texts", tests("texts in every place of the page", 250, PAGES, each=50)),
    row(
        21,
        "URLs and paths",
        tests(
            "URLs and names, each in 14 requests",
            400,
            *of(
                "server/test_server_roots.py",
                "no_url_is_asked_and_no_file_is_opened_for_a_request",
            ),
            each=200,
        ),
    ),
    row(
        22,
        "logs",
        tests(
            "requests with words that must not be seen",
            1000,
            *of(
                "server/test_server_canaries.py",
                "words_of_clients_are_seen_nowhere_but_in_their_own_answers",
            ),
            each=500,
        ),
    ),
    row(
        23,
        "numbers that are not finite",
        tests("in logits", 400, *of(LIFE, f"{NAN}[logits]"), each=100),
        tests("in keys and values", 400, *of(LIFE, f"{NAN}[kv]"), each=100),
        tests("in weights", 200, *of(LIFE, f"{NAN}[weights]"), each=100),
    ),
    row(
        24,
        "death of the engine",
        tests(
            "kills beside 8 streams",
            200,
            *of(LOAD, "kills_of_the_engine_under_load_are_told_and_healed"),
            each=20,
        ),
    ),
    row(
        25,
        "a stopped engine",
        tests(
            "stops, idle and at work, settings as everybody has them",
            10,
            *of(PROGRAM, "an_engine_that_is_stopped_is_told_in_time_and_comes_back"),
            each=2,
        ),
    ),
    row(
        26,
        "drain",
        tests(
            "ends of the program amid an answer",
            100,
            *of(PROGRAM, "sigterm_lets_answers_finish_and_takes_nothing_new_in"),
            each=10,
        ),
        tests(
            "second signals",
            10,
            *of(PROGRAM, "a_second_signal_ends_at_once_and_streams_say_so"),
            each=5,
        ),
    ),
    row(
        27,
        "kill -9 in training",
        cases(
            "tests of runs that were killed: after each update, in saves, by the system",
            8,
            *of(
                "train/test_train_stage.py",
                "t11_t12_t14_killed_after_any_update",
                "t15_killed_at_any_point_of_a_save",
                "a_real_kill_is_survived",
            ),
        ),
    ),
    row(28, "full or failing disk", cases("tests: every k-th operation", 10, WHOLE)),
    row(
        29,
        "bits that flip",
        tests(
            "flips in a model's file",
            2000,
            *of("weights/test_weights_package.py", "a_bit_that_flipped_anywhere_is_found"),
        ),
        tests(
            "flips in a trace file",
            2000,
            *of(
                "trace/test_trace_file.py",
                "a_bit_that_flipped_anywhere_is_told_or_carries_no_data",
            ),
        ),
    ),
    Row(30, "several hosts", none="one process pair over a socketpair"),
    row(
        31,
        "clocks",
        tests(
            "requests beside a wall clock that jumps by days",
            1000,
            *of(
                "server/test_server_clocks.py",
                "a_wall_clock_that_jumps_ends_nothing_and_gives_no_negative_time",
            ),
        ),
    ),
    row(32, "faults at the start", cases("cases", 200, "cli/test_cli_faults.py")),
    row(
        33,
        "static checks",
        script("findings of bandit with a reason, advisories, parts", 1, "plan/static.py"),
        optimized("tests of strangers' input under python -O", 500, *STRANGERS),
    ),
    row(
        34,
        "strength of the tests",
        script("mutants of scheduler and cache, 9 of 10 killed", 200, MUTANT, "scheduler", each=50),
        script("mutants of validators, 9 of 10 killed", 100, MUTANT, "validators", each=10),
        script("branches of both", 1, "plan/branches.py"),
    ),
)
