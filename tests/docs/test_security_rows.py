"""Each row of the tables of SECURITY.md is held by tests, which are named here."""

import ast
import re
from functools import cache

import pytest
from pages import ROOT

_SERVER = "serve/run/server/"

# By the first cell of a row: file below tests, and its tests.
TESTS = {
    "`trainyard fleet daemon`": {
        "fleet/daemon/test_daemon_users.py": "test_without_tokens_only_this_machine_gets_in"
    },
    "`trainyard serve run`": {
        f"{_SERVER}test_serve_run_command.py": "test_what_cannot_be_is_refused_before_anything_starts",
        f"{_SERVER}test_api_refusals.py": "test_keys_name_clients",
    },
    "ranks on one machine (gloo, NCCL)": {
        "job/run/processes/test_rendezvous.py": "test_processes_of_a_group_listen_on_this_machine_only "
        "test_a_training_listens_on_this_machine_only"
    },
    "ranks on several machines (gloo)": {
        "job/run/processes/test_rendezvous.py": "test_the_interface_is_the_one_to_the_other_machine"
    },
    "NCCL between machines": {
        "job/run/processes/test_rendezvous.py": "test_who_has_chosen_an_interface_is_not_overruled"
    },
    "the store of rank 0, where ranks have no folder in common or start by themselves": {
        "job/run/processes/test_rendezvous.py": "test_rank_0_listens_at_its_address_and_nowhere_else"
    },
    "`torchrun`, Ray, Slurm, PostgreSQL": {},  # as they are set up
    "waiting requests": {f"{_SERVER}test_api_survival.py": "test_more_than_may_wait_are_told_to_come_again"},
    "connections; headers; a body; a client that reads nothing": {
        f"{_SERVER}test_http_protocol.py": "test_one_connection_more_is_told_to_come_again "
        "test_headers_that_come_byte_by_byte_end_the_connection",
        f"{_SERVER}test_api_survival.py": "test_a_body_that_does_not_come_is_not_waited_for "
        "test_who_reads_nothing_of_a_stream_for_long_is_let_go "
        "test_who_reads_nothing_of_an_answer_for_long_is_let_go",
    },
    "a body": {f"{_SERVER}test_api_refusals.py": "test_bodies_have_a_type_and_a_size"},
    "values of a body above 64 KiB, counted before it is parsed": {
        f"{_SERVER}test_bodies.py": "test_one_short_error_within_little_memory test_bounds_hold_to_the_value"
    },
    "nesting; whole numbers": {f"{_SERVER}test_bodies.py": "test_bounds_hold_to_the_value"},
    "bodies above 64 KiB": {
        f"{_SERVER}test_bodies.py": "test_large_bodies_are_parsed_two_at_a_time_while_others_are_answered "
        "test_bodies_that_come_together_are_bounded_together"
    },
    "names and ids; prompts times `n`; texts to embed; ids of tokens": {
        f"{_SERVER}test_api_refusals.py": "test_values_that_are_not_allowed"
    },
    "a prompt": {
        f"{_SERVER}test_tokenizer_limits.py": "test_prompt_that_is_far_too_long_is_not_tokenized_to_its_end"
    },
    "chat template and tokens of a prompt": {
        f"{_SERVER}test_tokenizer_limits.py": "test_template_that_does_what_none_should_is_one_error "
        "test_tokenizer_that_takes_for_ever_is_one_error"
    },
    "compiling a form of answers: a JSON schema, regular expression, list of texts or grammar, also of tools": {
        f"{_SERVER}test_tokenizer_limits.py": "test_kin_of_such_schemas "
        "test_verdict_on_a_schema_is_short_however_long_the_schema_is"
    },
    "log-probabilities of prompts": {
        f"{_SERVER}test_api_refusals.py": "test_values_that_are_not_allowed",
        "serve/run/test_prompt_logprobs.py": "test_scores_of_a_step_are_bounded",
    },
    "`stop`; `bad_words`; `allowed_token_ids`; texts of `choice`; a regular expression or grammar": {
        f"{_SERVER}test_api_refusals.py": "test_values_that_are_not_allowed",
        f"{_SERVER}test_forms_of_answers.py": "test_forms_that_cannot_be_are_refused_and_others_go_on",
    },
    "work that waits for these processes": {
        f"{_SERVER}test_tokenizer_limits.py": "test_no_more_work_waits_than_there_is_room_for"
    },
    "a step of the engine": {
        "serve/run/test_step_watch.py": "test_engine_that_does_no_step_fails_the_request_and_serves_the_next "
        "test_requests_of_a_stuck_engine_are_begun_anew",
        f"{_SERVER}test_serve_run_command.py": "test_engine_that_is_stopped_is_not_ready_counted_and_started_again",
    },
    "adapters": {
        f"{_SERVER}test_api_adapters.py": "test_adapters_are_not_more_than_allowed_and_have_names_of_their_own "
        "test_links_may_lead_to_what_lies_below_the_root"
    },
    "connections to the daemon; time to the end of the headers; a submitted job": {
        "fleet/daemon/test_daemon_api.py": "test_three_hundred_connections_keep_nobody_out "
        "test_a_body_without_an_end_is_refused_before_it_ends",
        "fleet/daemon/test_daemon_limits.py": "test_who_does_not_finish_a_request_is_let_go "
        "test_who_sends_a_job_slowly_is_told_so",
    },
    "submissions at once; wait of a submission while other jobs are measured": {
        "fleet/daemon/test_daemon_limits.py": "test_only_some_may_pass_at_once",
        "fleet/daemon/test_daemon_faults.py": "test_a_submission_is_tried_again_while_the_daemon_is_busy",
    },
    "devices over time; losses and speeds, for the daemon's page": {
        "fleet/daemon/test_daemon_spans.py": "test_an_answer_is_bounded_however_devices_are_scattered "
        "test_spans_of_a_window_come_newest_first test_no_more_curves_are_read_at_once_than_allowed "
        "test_curves_are_of_jobs_whose_log_one_may_read",
        "fleet/daemon/test_daemon_curves.py": "test_of_a_long_job_parts_are_read",
    },
    "capture and measurement of a new job, in a process of its own": {
        "fleet/workload/test_level1.py": "test_what_takes_long_keeps_nobody_waiting test_whose_fault_it_is"
    },
    "a measurement that uses no CPU": {
        "fleet/daemon/test_daemon_faults.py": "test_a_job_whose_look_was_given_up_is_looked_at_again_and_runs "
        "test_pauses_between_looks_grow"
    },
    "a rank that is stopped; a rank without heartbeat and CPU; a rank that runs and does no step": {
        "job/run/processes/test_heartbeat.py": "test_a_stopped_rank_is_named_and_ended "
        "test_a_rank_that_gives_no_sign_at_all_is_given_up_after_ten_minutes "
        "test_a_rank_that_lives_and_does_no_step_is_stuck"
    },
    "a log; `metrics.jsonl`; a log that `fleet logs` shows": {
        "job/run/processes/test_rank_processes.py": "test_a_log_of_over_64_mib_is_cut_by_a_look_and_at_the_end",
        "job/run/processes/test_logs.py": "test_a_file_of_metrics_has_64_mib",
        "fleet/daemon/test_daemon_log.py": "test_the_last_lines_of_each_process",
    },
    "a process that is to fork another one; a job that is to leave this machine": {
        "job/run/processes/test_fork_server.py": "test_a_server_that_uses_no_cpu_makes_room_for_another "
        "test_a_server_that_loads_for_ever_makes_room_for_another",
        "fleet/run/test_node_watch.py": "test_a_job_that_works_has_cpu_seconds_to_leave",
    },
    "checkpoints of a job": {
        "fleet/run/test_backends_by_name.py": "test_checkpoints_that_are_too_large_are_refused"
    },
}


def _rows() -> list[str]:
    cells = re.findall(r"^\| (.*?) \|", (ROOT / "SECURITY.md").read_text(), re.M)
    return [cell for cell in cells if cell != "what"]


@cache
def _tests_of(file: str) -> frozenset[str]:
    tree = ast.parse((ROOT / "tests" / file).read_text())
    return frozenset(
        node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )


def test_each_row_is_named_once() -> None:
    assert _rows() == list(TESTS)


@pytest.mark.parametrize("row", [row for row in TESTS if TESTS[row]])
def test_its_tests_are_there(row: str) -> None:
    for file, names in TESTS[row].items():
        assert names.split()
        assert set(names.split()) <= _tests_of(file)
