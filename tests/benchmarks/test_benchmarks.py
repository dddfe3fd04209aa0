"""Every script of `benchmarks/` runs with today's code, at its smallest sizes, and leaves the records as they are."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BENCHMARKS = ROOT / "benchmarks"
SCRIPTS = sorted(
    file.stem for file in BENCHMARKS.glob("*.py") if file.stem not in ("record", "faults", "room_tests")
)
NOT_HERE = 3
N = r"[+-]?\d[\d,]*\.?\d*(?:e[+-]?\d+)?"
"""A number, as `format` writes it."""


@dataclass(frozen=True)
class Run:
    """How a script is started, and what it prints.

    Attributes
    ----------
    figures : patterns of all kinds of lines that it prints.
    arguments : beside `--smallest`.
    script : that is started, where it is another one.
    needs : what may not be here, as the script says.
    slow : why its run is no part of the default suite; "" if it is.
    is_long : whether it is no part of the slow suite, either.
    """

    figures: tuple[str, ...]
    arguments: tuple[str, ...] = ()
    script: str = ""
    needs: str = ""
    slow: str = ""
    is_long: bool = False


_KERNELS = rf"paged_ms {N}, dense_sdpa_ms {N}, gather_and_sdpa_ms {N}"
RUNS = {
    "command_line": Run(
        tuple(rf"^{name}: {N}$" for name in ("help_s", "help_of_train_s", "describe_cluster_s", "import_s"))
    ),
    "engine": Run(
        (
            rf"^pipeline_1f1b: {N} tasks/s of 2,000, {N} times the plain simulator$",
            rf"^random_dag: {N} tasks/s of 2,000, {N} times the plain simulator$",
            rf"^transfers: {N} tasks/s of 200$",
        )
    ),
    "fleet": Run(
        (
            rf"^fifo next to a plain simulator, .*: plain_jobs_per_s {N}, jobs_per_s {N}$",
            rf"^events, .*, tiresias, busy cluster: num_jobs 60, jobs_per_s {N}, .*mean_completion_s {N}$",
            rf"^rounds, gavel_hierarchical: num_jobs 4, jobs_per_s {N}, decisions_per_s {N}",
            rf"^large decisions, gavel_hierarchical: num_jobs 8, .*first_s {N}, mean_s {N}, slowest_s {N}$",
        )
    ),
    "fleet_python": Run(
        tuple(
            rf"^{name}, 60 jobs: cpu_s {N}, num_decisions {N}, mean_waiting_s {N}, mean_completion_s {N}$"
            for name in ("sorts columns", "looks at jobs", r"fair\.py", "srtf in Python")
        )
    ),
    "fleet_real": Run(
        (
            rf"^  job0: predicted {N} s, measured {N} s, {N}%$",
            rf"^  job1: predicted {N} s, measured {N} s, {N}%$",
            rf"^  predicted_mean_jct_s {N}, .*pairs_in_order [01], worst_loss_error {N}$",
        ),
        slow="a training is measured for 20 s, and seven of them start",
    ),
    "mutants": Run(
        (
            rf"^1 of 2: (noticed|survived|argued): src/trainyard/reading/\S+\.py:{N}: \w+: ",
            rf"^reading +{N} of 2 noticed: {N}%$",
        ),
        slow="the tests of a room run, with a note of each line",
    ),
    "predict": Run(
        (
            rf"^1 gpt +data_parallel .*step +{N} ms of +{N} .*work +{N} ms of +{N} .*MiB of .*; bytes equal",
            rf"^2 gpt +zero\(stage=3\) .*step +{N} ms of +{N} .*work +{N} ms of +{N} .*MiB of .*; bytes equal",
            rf"^median error: {N} % of a step's time, {N} % of its computing, {N} % of memory$",
        ),
        slow="two models are captured, measured and run, one of them on two processes",
        is_long=True,
    ),
    "runtime": Run(
        tuple(
            rf"^{case} +{N} +{N} +{N}x$"
            for case in (
                "one process / eager",
                "DataLoader of two workers / eager",
                "data parallel / DistributedDataParallel",
                "ZeRO-3 / FSDP2 fully_shard",
                r"1F1B / torch\.distributed\.pipelining",
            )
        ),
        slow="fourteen processes start, each of them Python and PyTorch",
        is_long=True,
    ),
    "serve": Run(
        (
            rf"^1 requests, tokens per CPU-second: generate {N}, engine {N}, engine, drawn {N}",
            rf"^2 requests, tokens per CPU-second: generate {N}, engine {N}, engine, drawn {N}",
            rf"^  engine_to_generate {N}, .*drawn to greedy {N}$",
            rf"^  all {N} ms, model {N} ms, choosing tokens {N} ms, policy, cache, checks and inputs {N} ms, ",
            rf"^  policy, cache, checks and inputs of all: engine {N}%, engine, drawn {N}%$",
        ),
        arguments=("--vllm-python", "none"),
    ),
    "serve_kernels": Run(
        (
            rf"^decode 2 x 18, 8 kv heads, float32: {_KERNELS}$",
            rf"^prompt of 16, 2 kv heads, bfloat16: {_KERNELS}$",
            rf"^4 after 20, 2 kv heads, bfloat16: {_KERNELS}$",
            rf"^sample 2 x 500, spread 4: greedy_ms {N}, .*penalties_ms {N}, .*torch_topk_ms {N}$",
        )
    ),
    "serve_predict": Run(
        (
            rf"^  mean_ttft +{N} simulated, +{N} measured, ms: {N}%$",
            rf"^  p95_tpot +{N} simulated, +{N} measured, ms: {N}%$",
            r"^order of policies: \[.*\] simulated, \[.*\] measured$",
        ),
        slow="steps of three policies are measured, and compiled before",
    ),
    "serve_simulate": Run(
        (
            rf"^azure, vllm, repeated: num_requests 30, .*steps_per_s {N}, items_per_s {N}, mean_e2e_s {N}$",
            rf"^busy, shortest_prompt, every step by itself: num_requests 20, .*steps_per_s {N}",
        )
    ),
    "serve_truth": Run(
        (
            rf"^RTX4090/Llama-3\.1-8B: TPOT ms, ours, layers +1 mean +{N}% +median +{N}%",
            rf"^jan20-codellama-prefill-1: TTFT ms, ours, device +1 mean +{N}%",
            rf"^H100x4/Llama-3\.1-70B: tokens/s, ours, device +1 mean +{N}%",
            rf"^all of trtllm: TPOT ms, ours, device +1 mean +{N}%",
            rf"^dense models of trtllm: TTFT ms, ours, device +1 mean +{N}%",
            rf"^left out of sglang: more than the 8 devices of a node: {N} rows$",
        ),
        arguments=("../shared/data/serving/predict",),
        needs="is no folder; give the one of the measured runs",
        slow="four large models are captured",
    ),
    "truth": Run(
        (
            rf"^time   SimuMax, B200 +{N} rows  mean +{N}%  median +{N}%  worst +{N}%  signed median +{N}%  short {N}$",
            rf"^time   vTrain, one node +{N} rows  mean +{N}%",
            rf"^memory all of Llama +{N} rows  mean +{N}%",
            r"^left out of SimuMax, B200: sequences that are cut over devices: 4 rows$",
        ),
        arguments=("../shared",),
        needs="is no folder; give the one of the published tables",
    ),
    # serve.py starts it, with vLLM's Python.
    "serve_vllm": Run(
        (rf"^1 requests, tokens per CPU-second: .*vllm {N}$", rf"engine_to_vllm {N}"),
        script="serve",
        slow="vLLM starts",
    )
    if (ROOT / ".venv-vllm" / "bin" / "python").exists()
    else Run((), needs="vLLM is not installed in this Python; `make vllm`"),
}


def records() -> dict[str, bytes]:
    """The records by name."""
    return {file.name: file.read_bytes() for file in (BENCHMARKS / "records").iterdir()}


def started(script: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """A run of a script that ended."""
    command = [sys.executable, str(BENCHMARKS / f"{script}.py"), "--smallest", *arguments]
    env = os.environ | {"PYTHONPATH": str(ROOT / "src"), **variables}
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=env)


def missing(done: subprocess.CompletedProcess[str], what: str) -> str:
    """The one line by which a script says what is missing."""
    assert (done.returncode, done.stdout) == (NOT_HERE, "")
    assert re.fullmatch(rf"cannot be measured here: .*{re.escape(what)}.*\n", done.stderr), done.stderr
    return done.stderr.strip()


def _marks(name: str) -> tuple[pytest.MarkDecorator, ...]:
    """A script that is not among the runs is told by a test, not when tests are collected."""
    run = RUNS.get(name)
    if run is None or not run.slow:
        return ()
    return (pytest.mark.long if run.is_long else pytest.mark.slow,)


def test_all_scripts_are_started_here() -> None:
    assert sorted(RUNS) == SCRIPTS


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=_marks(name)) for name in SCRIPTS],
)
def test_a_script_prints_its_figures_and_leaves_the_records(name: str) -> None:
    run, before = RUNS[name], records()
    done = started(run.script or name, *run.arguments)
    assert records() == before
    if run.needs and done.returncode == NOT_HERE:
        pytest.skip(missing(done, run.needs))
    assert done.returncode == 0, done.stderr
    for figures in run.figures:
        assert re.search(figures, done.stdout, re.MULTILINE), (figures, done.stdout)
    assert done.stdout.endswith("the smallest sizes: no record is written\n")


def test_a_script_says_that_there_is_no_slurm(tmp_path: Path) -> None:
    missing(started("fleet_real", "slurm", PATH=str(tmp_path)), "there is no Slurm; install slurm-wlm")
