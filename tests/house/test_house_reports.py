"""Every report that was tried on Cutaway, and every fault that newcomers found, has its test.

N-ids are reports of other servers' faults that were tried here, T-ids those of other trainers;
numbers are those of the list of three newcomers, an engineer, a contributor and a user of Python.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from house_tree import ROOT

CLIENTS, EDGE = "server/test_server_clients.py", "server/test_server_edge.py"
SERVER, REACH = "server/test_server_reports.py", "text/test_text_reach.py"
HISTORIES, ONIGURUMA = "server/test_server_histories.py", "tokens/test_tokens_oniguruma.py"
OBJECTS = "server/test_server_objects.py"
SCHEMAS = "core/test_core_schemas.py"

REPORTS: dict[str, tuple[str, ...]] = {
    "N01 calls without words come back": (
        f"{HISTORIES}::test_n01_n02_a_call_without_words_comes_back_in_every_api",
        f"{REACH}::test_n01_collected_templates_take_their_own_calls_back",
        f"{REACH}::test_n01_calls_without_words_render_where_content_is_added",
        f"{REACH}::test_n01_calls_without_words_are_none_where_a_template_asks",
    ),
    "N02 calls without arguments": (
        f"{REACH}::test_n02_a_call_without_arguments_has_none",
        f"{REACH}::test_n02_arguments_are_text_where_templates_add_them_to_text",
    ),
    "N03 a developer's words vanish": (
        f"{HISTORIES}::test_n03_a_developers_words_reach_the_prompt",
        f"{REACH}::test_n03_what_was_sent_reaches_the_prompt_or_is_refused",
        f"{REACH}::test_n03_published_templates_lose_nothing",
        f"{REACH}::test_n03_all_collected_templates_lose_nothing",
    ),
    "N06 a schema is taken and not held": (
        f"{CLIENTS}::test_n06_a_schema_holds_wherever_it_stands",
        f"{SERVER}::test_n06_no_object_drops_a_field_that_nobody_knows",
        f"{OBJECTS}::test_n06_at_every_depth_a_field_is_refused_by_its_path_or_changes_nothing",
        f"{OBJECTS}::test_n06_openapi_says_of_every_object_what_is_taken",
    ),
    "N08 patterns in another dialect": (
        f"{ONIGURUMA}::test_n08_a_pattern_cuts_as_it_does_there",
        f"{ONIGURUMA}::test_n08_any_pattern_cuts_as_it_does_there_or_is_refused",
    ),
    "N10 a pattern that is a text": (
        "tokens/test_tokens_literal.py::test_n10_a_text_stands_for_itself",
    ),
    "N11 settings that contradict": (
        "models/test_models_contradictions.py::test_n11_rope_scaling_wins_beside_rope_parameters",
        "models/test_models_contradictions.py::"
        "test_n11_one_of_two_settings_is_obeyed_and_both_are_named",
    ),
    "N12 models in several parts": (
        "host/test_host_gguf_parts.py::test_n12_any_part_stands_for_all",
        "host/test_host_gguf_parts.py::test_n12_parts_that_contradict_each_other_are_refused",
    ),
    "N13 ids that mean none": (
        "tokens/test_tokens_gguf_fields.py::test_n13_all_bits_set_is_no_token",
    ),
    "N15 shards that are links": (
        "weights/test_weights_safetensors.py::test_g04_shard_may_be_a_link_as_in_the_hub_cache",
        "weights/test_weights_find.py::test_hub_copy_is_used_offline",
    ),
    "N16 headers of SDKs in pages": (
        f"{EDGE}::test_n16_a_page_that_is_allowed_may_send_all_that_it_asks_for",
        f"{SERVER}::test_n16_whatever_an_allowed_page_asks_to_send_it_may",
    ),
    "N17 origins of programs": (
        f"{EDGE}::test_n17_origins_of_programs_can_be_allowed",
        f"{EDGE}::test_n17_what_is_no_origin_is_refused_before_the_server_starts",
    ),
    "N20 HEAD": (f"{EDGE}::test_n20_head_answers_wherever_get_does",),
    "N21 bodies that are refused": (
        f"{EDGE}::test_n21_who_sends_too_much_reads_why",
        f"{SERVER}::test_n21_whatever_refuses_a_large_body_is_read",
        f"{SERVER}::test_n21_forty_of_forty_see_the_413",
    ),
    "N23 packed bodies": (f"{SERVER}::test_n23_a_packed_body_is_refused_in_words",),
    "N25 integers as 3.0": (
        f"{CLIENTS}::test_n25_what_is_no_integer_for_json_schema_is_refused",
        f"{SERVER}::test_n25_an_integer_is_one_however_json_writes_it",
        f"{SERVER}::test_n25_every_integer_field_takes_3_and_refuses_half",
        "server/test_server_limits.py::"
        "test_no_field_takes_a_value_out_of_its_range_or_of_another_type",
    ),
    "N26 Codex's fields": (
        f"{CLIENTS}::test_n26_a_response_can_be_asked_again_as_it_came",
        "server/test_server_agents.py::test_n26_n27_n32_a_client_does_a_whole_task",
        "server/test_server_quick_clients.py::test_n26_n32_a_quick_client_does_a_whole_task",
    ),
    "N27 Claude Code's fields": (
        f"{CLIENTS}::test_n25_n26_n27_what_changes_nothing_is_taken",
        f"{CLIENTS}::test_n27_what_claude_code_sends_back_reaches_the_prompt",
    ),
    "N29 input tokens in the first event": (
        f"{SERVER}::test_n29_the_first_event_counts_the_prompt",
    ),
    "N30 unknown formats": (
        f"{SCHEMAS}::test_n30_an_unknown_format_is_a_remark",
        f"{SCHEMAS}::test_n30_what_asks_for_nothing_is_taken",
        f"{SCHEMAS}::test_n30_what_cannot_be_held_to_is_refused_by_its_path",
        f"{CLIENTS}::test_n30_a_tool_with_an_unknown_format_can_be_forced",
    ),
    "N32 tools and a form together": (
        f"{CLIENTS}::test_n32_calls_until_done_and_then_the_form",
        f"{CLIENTS}::test_n32_an_answer_is_one_or_the_other",
    ),
    "N33 schemas hold": (
        "server/test_server_tools.py::test_h16_a_schema_holds_the_answer",
        "server/test_server_tools.py::test_h14_forced_calls_are_valid_by_their_schema",
    ),
    "N34 bytes of log-probabilities": (
        "server/test_server_chat.py::"
        "test_logprobs_hold_each_tokens_bytes_and_the_asked_alternatives",
    ),
    "N35 counts at the limit": (
        f"{SERVER}::test_n35_counts_hold_where_the_bound_ends_an_answer",
        f"{CLIENTS}::test_a_completion_takes_what_is_left_where_it_asks_for_nothing",
    ),
    "N36 locales": ("cli/test_cli_streams.py::test_text_is_utf8_whatever_the_locale_says",),
    "N37 pipes and signals": (
        "cli/test_cli_streams.py::test_a_reader_that_goes_away_ends_the_program_quietly",
        "cli/test_cli_streams.py::test_a_closed_stream_is_no_fault",
        "cli/test_cli_streams.py::test_an_interrupt_ends_with_130",
    ),
}

PYTHON, SHELL = "service/test_python_newcomers.py", "cli/test_cli_newcomers.py"
PAGE = "house/test_house_python_page.py"

NEWCOMERS: dict[int, tuple[str, ...]] = {
    1: (
        "engine/test_engine_sampler_stage.py::"
        "test_an_added_cut_acts_on_the_default_path_in_the_view_and_in_verify",
        "house/test_house_newcomer.py::"
        "test_a_cut_of_the_sampler_is_four_lines_and_acts_in_every_way_in",
    ),
    2: (
        f"{SHELL}::test_2_help_says_how_long_a_seen_answer_may_be",
        f"{SHELL}::test_2_an_answer_that_is_seen_is_that_long",
    ),
    3: (
        f"{PYTHON}::test_3_params_are_plain_values",
        f"{PYTHON}::test_3_answers_are_plain_values",
    ),
    4: (
        f"{PAGE}::test_4_an_example_of_the_page_runs",
        f"{PAGE}::test_4_a_type_checker_finds_nothing",
        f"{PYTHON}::test_4_settings_have_names_and_types",
    ),
    5: (
        f"{PYTHON}::test_5_the_models_sampling_acts_where_nothing_is_given",
        f"{PYTHON}::test_5_python_and_the_command_line_take_the_same",
        f"{SHELL}::test_5_help_says_where_the_model_has_a_word",
    ),
    6: (f"{SHELL}::test_6_the_first_structured_answer_is_not_empty",),
    7: (
        f"{PYTHON}::test_7_what_is_wrong_is_told_at_the_call",
        f"{PYTHON}::test_7_numbers_of_other_libraries_and_none_are_taken",
        f"{PYTHON}::test_7_the_async_front_refuses_the_same",
    ),
    8: (f"{PYTHON}::test_8_a_level_that_is_not_known_proves_nothing",),
    9: (
        f"{PYTHON}::test_9_answers_are_verified_and_seen",
        f"{PYTHON}::test_9_what_has_no_record_says_so",
    ),
    10: (
        f"{PYTHON}::test_10_both_fronts_take_the_same",
        f"{PYTHON}::test_10_the_async_front_answers_as_the_other",
        f"{PYTHON}::test_10_what_is_closed_says_so",
    ),
    11: (
        "text/test_text_messages.py::test_a_misspelt_role_is_refused_with_its_neighbour",
        "text/test_text_messages.py::test_a_role_of_a_models_own_is_taken",
    ),
    12: (f"{PYTHON}::test_12_packed_weights_are_told",),
    13: ("house/test_house_reports.py::test_13_without_a_gpu_its_tests_are_left_out",),
    14: (f"{SHELL}::test_14_a_trace_that_is_there_stays_unless_it_is_forced",),
    15: (f"{SHELL}::test_15_the_page_names_every_view_that_a_redacted_trace_keeps",),
    16: ("house/test_house_readme.py::test_16_the_lens_is_what_its_command_prints",),
    17: ("cli/test_cli_module.py::test_the_package_runs_as_the_command",),
    18: (f"{PYTHON}::test_18_one_stop_string_and_several_are_texts",),
    19: (
        f"{SHELL}::test_19_doctor_knows_every_dependency_and_extra",
        f"{SHELL}::test_19_an_extra_that_is_missed_is_told",
    ),
    20: (
        f"{SHELL}::test_20_help_has_examples_that_can_be_typed",
        f"{SHELL}::test_20_what_can_be_changed_stands_line_below_line",
        f"{SHELL}::test_20_names_of_other_programs_lead_here",
    ),
    21: (
        f"{SHELL}::test_21_the_hint_on_settings_follows_settings",
        f"{SHELL}::test_21_the_table_of_a_measurement_has_each_heading_once",
    ),
    22: (f"{SHELL}::test_22_an_estimate_is_of_this_machine_and_model",),
    23: (f"{SHELL}::test_23_one_extra_brings_all_and_nothing_of_a_linter_is_packed",),
    24: (
        f"{SHELL}::test_24_a_difference_speaks_of_left_and_right",
        f"{SHELL}::test_24_a_picture_ends_with_its_last_line",
        f"{PYTHON}::test_24_what_is_closed_is_freed_and_given_back",
    ),
}
SESSIONS, TURNS = "server/test_server_sessions.py", "text/test_text_turns.py"
# Reports of the same kinds that were looked for when these were mended; the tests name them.
FRESH: dict[str, tuple[str, ...]] = {
    "orders amid, and turns of one role": (
        f"{TURNS}::test_any_order_of_roles_is_told_whole_and_in_its_order",
        f"{SESSIONS}::test_orders_amid_a_conversation_do_not_end_it",
    ),
    "results out of order and without names": (
        f"{TURNS}::test_results_stand_in_the_order_of_their_calls_with_their_names",
        f"{SESSIONS}::test_three_apis_tell_results_out_of_order_alike",
    ),
    "turns and results without a word": (
        f"{SESSIONS}::test_whatever_an_api_answers_can_be_sent_back",
        f"{SESSIONS}::test_a_function_may_have_no_result",
    ),
    "tools in namespaces, and in the input": (
        f"{SESSIONS}::test_a_call_of_a_tool_in_a_namespace_comes_back_under_both_names",
        f"{SESSIONS}::test_tools_that_stand_in_the_input_are_offered",
    ),
    "what others left in a history": (
        f"{SESSIONS}::test_what_a_providers_tools_left_in_a_history_is_told",
        f"{SESSIONS}::test_what_one_agent_tells_another_reaches_the_prompt",
        f"{SESSIONS}::test_thoughts_come_back_under_every_name_that_others_have",
    ),
    "ways to ask for thoughts": (
        f"{SESSIONS}::test_every_way_to_ask_for_thoughts_reaches_the_template",
    ),
    "long names, many tools, schemas with their names elsewhere": (
        f"{SESSIONS}::test_names_may_be_long_and_tools_many",
        f"{SESSIONS}::test_a_forced_call_follows_a_schema_that_lists_its_names_elsewhere",
    ),
    "connections in pools": (
        "server/test_server_connection.py::test_an_idle_connection_outlives_the_pools_that_keep_it",
    ),
    "conversations in Python": (f"{PYTHON}::test_7_conversations_find_their_way",),
}
NAMED = {**FRESH, **REPORTS, **{str(number): tests for number, tests in NEWCOMERS.items()}}


def is_there(place: str) -> bool:
    path, _, name = place.partition("::")
    file = ROOT / "tests" / path
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    return re.search(rf"^(?:async )?def {name}\(", text, re.MULTILINE) is not None


@pytest.mark.parametrize("name", NAMED)
def test_what_was_reported_has_its_test(name: str) -> None:
    assert NAMED[name] and [place for place in NAMED[name] if not is_there(place)] == []


def test_every_number_is_there_once() -> None:
    ids = [name.split()[0] for name in REPORTS]
    assert ids == sorted({*ids}) and len(ids) == 26
    assert [*NEWCOMERS] == [*range(1, 25)]


def test_every_fault_of_trainers_has_its_test() -> None:
    """T01 to T50: faults of other trainers, each by its id in a test's name."""
    names = [
        name
        for file in sorted((ROOT / "tests").glob("*/test_*.py"))
        for name in re.findall(r"^def test_((?:t\d\d_)+)", file.read_text("utf-8"), re.MULTILINE)
    ]
    found = {number for name in names for number in re.findall(r"t(\d\d)_", name)}
    assert sorted(found) == [f"{number:02}" for number in range(1, 51)]


def test_a_name_that_is_not_there_is_caught() -> None:
    assert not is_there("house/test_house_reports.py::test_nothing")
    assert not is_there("house/none.py::test_nothing")


def test_13_without_a_gpu_its_tests_are_left_out(request: pytest.FixtureRequest) -> None:
    # By its path: which conftest an import gives hangs on what was collected before.
    plugins = request.config.pluginmanager.get_plugins()
    path = str(ROOT / "tests" / "conftest.py")
    found: Any = next(each for each in plugins if getattr(each, "__file__", None) == path)
    item = request.node
    found.pytest_runtest_setup(item)
    item.add_marker("gpu")
    if Path("/dev/nvidiactl").exists():
        found.pytest_runtest_setup(item)
    else:
        with pytest.raises(pytest.skip.Exception, match="needs an NVIDIA GPU"):
            found.pytest_runtest_setup(item)
