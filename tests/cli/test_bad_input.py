"""Input that cannot be used: exit code 2 and one line that says what was given, what is allowed, what to do."""

from __future__ import annotations

import pytest
from refused_commands import check_refused

from trainyard.cli import main as cli

TINY = ("gpt-tiny", "--cluster", "1x2xA100-80G")
USER_FILE = """
import torch
from torch import nn


def loss(module, batch):
    return module(batch["x"]).mean()


def model():
    return nn.Linear(4, %d), loss, {"x": torch.zeros(4, 4)}
"""

PLAN = """
fingerprint: "0"
cluster: 1x1xT4
num_rows: 4
stages: [{}]
schedule: {name: gpipe, num_ranks: 1, num_microbatches: 1}
"""

JOBS = b"name,arrival_s,num_devices,length_s"
WORKLOADS = {
    "jobs.csv": JOBS + b"\na,0,1,10\n",
    "weight.csv": JOBS + b",weight\na,0,1,10,0\n",
    "endless.csv": JOBS + b"\na,0,1,1e30\n",
    "late.csv": JOBS + b"\na,1e30,1,1\n",
    "slow.csv": JOBS + b"\na,0,1,1e5\n",
    "creeps.csv": b"name,arrival_s,num_devices,work,speeds\na,0,1,10,T4:1=1e-300\n",
    "speedless.csv": b"name,arrival_s,num_devices,work,speeds\na,0,1,10,\n",
    "deep.yaml": b"jobs:\n- " + b"[" * 60_000,
    "deep-job.yaml": b"[" * 60_000,
    "deep.json": b"[" * 60_000,
    "latin1.yaml": b"jobs:\n- {name: J\xf6rg, arrival_s: 0, num_devices: 1, length_s: 10}\n",
    "latin1-job.yaml": b"name: J\xf6rg\n",
    "latin1.json": b'[{"attempts": [], "submitted_time": "\xf6"}]',
    "slurm.txt": b"JobID|Submit|ElapsedRaw|AllocTRES\n7|2024-05-01T12:00:00|60|cpu=many,gres/gpu=2\n",
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with good and bad files, which is the current one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "garbage.yaml").write_text("model: [unclosed")
    (tmp_path / "list.yaml").write_text("- a\n- b\n")
    (tmp_path / "half.yaml").write_text("model: gpt-tiny\nstages: [{}]\n")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00\x01")
    (tmp_path / "cluster.yaml").write_text("nodes: 3\n")
    (tmp_path / "no_model.py").write_text("x = 1\n")
    (tmp_path / "good.py").write_text(USER_FILE % 4)
    for name, content in WORKLOADS.items():
        (tmp_path / name).write_bytes(content)
    return tmp_path


# What is typed, and what the line must say: what was given, what is allowed, what to do.
CASES = {
    "unknown model": (("plan", "gpt-tny", "--cluster", "1x2xT4"), ("gpt-tny", "gpt-tiny")),
    "unknown device": (("plan", "gpt-tiny", "--cluster", "1x2xA100-81G"), ("A100-81G", "A100-80G", "YAML")),
    "cluster that does not parse": (("plan", "gpt-tiny", "--cluster", "2 x 4"), ("2 x 4", "16x8xA100-80G")),
    "missing cluster file": (("hardware", "nowhere.yaml"), ("nowhere.yaml", "give")),
    "bad cluster file": (("hardware", "cluster.yaml"), ("cluster.yaml", "'devices' is missing")),
    "no cluster": (
        ("plan", "gpt-tiny"),
        ("trainyard plan needs --cluster ", "; see trainyard plan --help"),
    ),
    "two are missing": (("fleet", "simulate"), ("fleet simulate needs --", "; --")),
    "no value": (("plan", *TINY, "--rows"), ("--rows has no value; give one",)),
    "no device type": (("plan", "gpt-tiny", "--cluster", "2x4"), ("names no device type", "A100-80G")),
    "misspelt flag": (("plan", *TINY, "--strategy", "zero"), ("--strategy", "--strategies")),
    "not a number": (("plan", *TINY, "--rows", "many"), ("--rows", "many")),
    "no rows": (("plan", *TINY, "--rows", "0"), ("rows",)),
    "unknown dtype": (("plan", *TINY, "--dtype", "float8"), ("float8", "bfloat16")),
    "unknown strategy": (("plan", *TINY, "--strategies", "megatrn"), ("megatrn", "megatron")),
    "unknown option": (("plan", *TINY, "--strategies", "zero(level=3)"), ("level", "stage")),
    "strategies that do not parse": (("plan", *TINY, "--strategies", "zero+"), ("zero+", "joined by +")),
    "unknown strategy to compare": (("compare", *TINY, "--strategies", "zero,gpip"), ("gpip", "gpipe")),
    "nothing to compare": (("compare", *TINY, "--strategies", ","), ("--strategies",)),
    "batch not divisible": (
        ("plan", "gpt-tiny", "--cluster", "1x8xT4", "--rows", "6", "--strategies", "data_parallel"),
        ("6", "multiple"),
    ),
    "missing model file": (("plan", "nowhere.py", "--cluster", "1x2xT4"), ("nowhere.py", "def model()")),
    "file without model": (("plan", "no_model.py", "--cluster", "1x2xT4"), ("no_model.py", "def model()")),
    "rows for a file": (("plan", "good.py", "--cluster", "1x2xT4", "--rows", "8"), ("good.py", "8")),
    "missing plan": (("simulate", "nowhere.yaml"), ("nowhere.yaml", "trainyard plan")),
    "plan that is no YAML": (("simulate", "garbage.yaml"), ("garbage.yaml", "YAML")),
    "plan that is a list": (("simulate", "list.yaml"), ("list.yaml", "mapping")),
    "half a plan": (("run", "half.yaml"), ("half.yaml", "'cluster'", "missing")),
    "binary plan": (("simulate", "binary.yaml"), ("binary.yaml", "UTF-8")),
    "resuming nothing": (("train", "gpt-tiny", "--resume"), ("--resume", "--checkpoint FOLDER")),
    "resuming a missing folder": (
        ("train", "gpt-tiny", "--resume", "--checkpoint", "nowhere"),
        ("nowhere does not exist", "no checkpoint", "leave out --resume"),
    ),
    "resuming an empty folder": (
        ("train", "gpt-tiny", "--resume", "--checkpoint", "."),
        ("holds no checkpoint", "nothing to resume from"),
    ),
    "unknown paper": (("papers", "zer0"), ("zer0", "zero")),
    "nothing to reproduce": (("reproduce", "zer0"), ("zer0", "zero")),
    "negative time to start": (
        ("fleet", "simulate", "--trace", "jobs.csv", "--cluster", "2x4", "--start=-1s"),
        ("--start: '-1s' is not a time", "such as 500ms"),
    ),
    "time to restart that is no number": (
        ("fleet", "simulate", "--trace", "jobs.csv", "--cluster", "2x4", "--restart", "nan"),
        ("--restart: 'nan' is not a time", "such as 500ms"),
    ),
}


def fleet(file, *rest):
    return ("fleet", "simulate", "--trace", file, "--cluster", "1x2xT4", *rest)


def compared(*rest):
    return ("fleet", "compare", "--cluster", "2x2", "--policy", "fifo", *rest)


def under(policy):
    return fleet("jobs.csv", "--policy", policy)


CASES |= {
    "workload that is too deep": (fleet("deep.yaml"), ("deep.yaml, line 2", "too deep", "64")),
    "job that is too deep": (("fleet", "submit", "deep-job.yaml"), ("deep-job.yaml, line 1", "too deep")),
    "log that is too deep": (fleet("deep.json", "--format", "philly"), ("deep.json, line 1", "too deep")),
    "workload that is not UTF-8": (fleet("latin1.yaml"), ("latin1.yaml, line 2", "0xf6", "UTF-8")),
    "job that is not UTF-8": (("fleet", "submit", "latin1-job.yaml"), ("latin1-job.yaml, line 1", "UTF-8")),
    "log that is not UTF-8": (fleet("latin1.json"), ("latin1.json, line 1", "0xf6", "UTF-8")),
    "CPUs that are no number": (
        fleet("slurm.txt"),
        ("slurm.txt gives no job", "field 'AllocTRES' cannot be used (line 2: got 'cpu=many"),
    ),
    "weight of 0": (
        fleet("weight.csv", "--policy", "gavel_max_min", "--strict"),
        ("weight.csv, line 2, field 'weight'", "above 0"),
    ),
    "rounds that never end": (fleet("jobs.csv", "--round", "1us"), ("--round 1us", "1ms to 1000000000s")),
    "rounds of a daemon that never end": (
        ("fleet", "daemon", "--cluster", "1x1xlocal", "--folder", "x", "--round", "1us"),
        ("--round 1us", "1ms to 1000000000s"),
    ),
    "slices of a daemon that never end": (
        ("fleet", "daemon", "--cluster", "1x1xlocal", "--folder", "x", "--policy", "gandiva(quantum_s=1e-300)"),
        ("a round of gandiva(quantum_s=1e-300) lasts from 0.001 s to 1e+09 s", "got 1e-300 s"),
    ),
    "quanta that never end": (under("las(quantum_s=1e-9)"), ("a quantum of las lasts from 0.001 s", "1e-09")),
    "a search that never ends": (under("pollux(population=100000000)"), ("1 to 10,000", "100,000,000")),
    "failures without end": (fleet("jobs.csv", "--failure-every", "1us"), ("--failure-every 1us: ", "or never")),
    "repairs without end": (fleet("jobs.csv", "--node-repair", "999999999h"), ("999999999h: ", "1ms to 1000000000s")),
    "jobs without end": (compared("--jobs", "99999999999"), ("--jobs 99999999999", "1 to 1,000,000")),
    "a load that is no number": (compared("--load", "nan"), ("--load nan", "0.001 to 1000")),
    "one seed": (compared("--seeds", "1"), ("--seeds 1", "2 to 10,000")),
    "a job without end": (fleet("endless.csv"), ("field 'length_s'", "line 2: got '1e30'", "30 years")),
    "a job that creeps": (fleet("creeps.csv"), ("field 'speeds'", "line 2: got 'T4:1=1e-300'", "30 years")),
    "a job that comes too late": (fleet("late.csv"), ("field 'arrival_s'", "line 2: got '1e30'", "1e+12")),
    "no speeds": (fleet("speedless.csv"), ("line 2: no speeds given; write",)),
    "long name of a device": (("hardware", "1x2x" + "A" * 100_000), ("'1x2xAAA", "...", "known devices: K80")),
    "long cluster": (fleet("jobs.csv", "--cluster", "4x4@" + "1cpu," * 1000), ("1cpu,1cpu", "...", "something twice")),
    "nodes without processors": (fleet("jobs.csv", "--cluster", "4x4@0cpu"), ("'0cpu'", "24cpu", "numbers above 0")),
    "patience of no step": (
        ("train", "gpt-tiny", "--stall", "1ms"), ("--stall 1ms", "1s to 1000000000s, or never"),
    ),
    "port": (
        ("fleet", "daemon", "--cluster", "1x1xlocal", "--folder", "x", "--port", "99999999"),
        ("--port 99999999", "0 to 65,535"),
    ),
    "negative limit": (fleet("jobs.csv", "--limit", "-1"), ("limit -1", "at least 1", "leave it out")),
    "negative limit of a run": (
        ("fleet", "run", "--trace", "jobs.csv", "--cluster", "1x1xlocal", "--folder", "x", "--limit", "-1"),
        ("limit -1", "at least 1"),
    ),
    "quotas as a mapping": (under("antman(quotas={'a': 1})"), ("quotas of antman", "{'a': 1}", "a tuple")),
    "quotas that are no pairs": (under("antman(quotas=3)"), ("quotas of antman", "no pair", "(('NAME', VALUE),)")),
    "cells that are none": (under("hived(quotas=3)"), ("quotas of hived", "(('a', 8, 1),)", "got 3")),
    "weights that are no pairs": (under("gavel_hierarchical(weights=3)"), ("weights of gavel_hierarchical", "3")),
    "what a policy says of itself": (under("pollux(preempts=False)"), ("preempts", "its options: fairness")),
    "state with a password": (
        (
            "fleet", "daemon", "--cluster", "1x1xlocal", "--folder", "x",
            "--state", "postgresql://me:s3cret@127.0.0.1:9/x",
        ),
        ("postgresql://me:***@127.0.0.1:9/x", "--state"),
    ),
}  # fmt: skip


def plan_to(file):
    return ("plan", *TINY, "--save", file)


OUTPUTS = {
    "page in no folder": (fleet("jobs.csv", "--html", "nowhere/x"), ("--html nowhere/x", "there is no folder nowhere")),
    "page to a full device": (compared("--html", "/dev/full"), ("--html /dev/full", "it is a device")),
    "page that is a folder": (("compare", *TINY, "--strategies", "zero", "--html", "."), ("--html .", "a folder; give")),
    "page where no file can be": (("simulate", "x.yaml", "--html", "/proc/x"), ("/proc/x", "nothing can be written")),
    "timeline in no folder": (("simulate", "x.yaml", "--perfetto", "nowhere/x"), ("--perfetto nowhere/x", "no folder")),
    "plan in no folder": (plan_to("nowhere/x"), ("--save nowhere/x", "there is no folder nowhere; give another file")),
    "plan in a file": (plan_to("jobs.csv/x"), ("--save jobs.csv/x", "there is no folder jobs.csv")),
    "job in no folder": (
        ("fleet", "profile", "gpt-tiny", "--cluster", "1x1xT4", "--save", "nowhere/x"), ("--save nowhere/x", "no folder"),
    ),
    "checkpoints in a device": (
        ("train", "gpt-tiny", "--checkpoint", "/dev/null"), ("--checkpoint /dev/null", "it is no folder; give another"),
    ),
    "daemon in a device": (
        ("fleet", "daemon", "--cluster", "1x1xlocal", "--folder", "/dev/null/x"), ("--folder", "/dev/null is no folder"),
    ),
    "daemon where no folder can be": (
        ("fleet", "daemon", "--cluster", "1x1xlocal", "--folder", "/proc/x"), ("/proc/x", "nothing can be written"),
    ),
    "runs in a file": (
        ("fleet", "run", "--trace", "jobs.csv", "--cluster", "1x1xlocal", "--folder", "jobs.csv"), ("it is no folder",),
    ),
    "downloads to a file": (("fleet", "download", "--folder", "jobs.csv"), ("--folder jobs.csv", "it is no folder")),
}  # fmt: skip
CASES |= OUTPUTS


@pytest.mark.parametrize("case", CASES)
def test_bad_input(case, folder, capsys):
    arguments, said = CASES[case]
    check_refused(arguments, said, capsys)


def test_more_rounds_than_end_refuse_the_policy(folder, capsys):
    code = cli.main(fleet("slow.csv", "--round", "1ms"))
    out, err = capsys.readouterr()
    assert code == 1
    assert "fifo refused: job 'a' takes 100000 s" in out
    for word in ("error: no policy could run", "100,000,000 rounds of 0.001 s", "10,000,000"):
        assert word in err


@pytest.mark.slow
@pytest.mark.long
def test_model_that_cannot_fit(folder, capsys):
    arguments = ("plan", "gpt2", "--cluster", "1x1xT4", "--rows", "512", "--strategies", "data_parallel")
    code = cli.main(arguments)
    out, err = capsys.readouterr()
    # A plan that was asked for by name is shown, with what is short.
    assert code == 1
    assert "DOES NOT FIT" in out
    assert "are missing" in err


@pytest.mark.slow
@pytest.mark.long
def test_nothing_that_fits(folder, capsys):
    code = cli.main(("plan", "megatron-22b", "--cluster", "1x2xT4", "--rows", "2"))
    _, err = capsys.readouterr()
    assert code == 1
    for word in ("megatron-22b", "GiB", "devices with more memory"):
        assert word in err


def test_plan_of_another_model(folder, capsys):
    (folder / "other.py").write_text(USER_FILE % 8)
    assert (
        cli.main(("plan", "good.py", "--cluster", "1x1xT4", "--strategies", "data_parallel", "--save", "p"))
        == 0
    )
    capsys.readouterr()
    check_refused(("simulate", "p", "--model", "other.py"), ("fingerprint", "Plan again"), capsys)


@pytest.mark.parametrize("verb", ["simulate", "run"])
@pytest.mark.parametrize("named", ["./evil.py", "evil.py", "{folder}/evil.py"])
def test_plan_runs_no_file(verb, named, folder, capsys):
    (folder / "evil.py").write_text("open('ran', 'w').close()\n" + USER_FILE % 4)
    (folder / "p.yaml").write_text(f"model: {named.format(folder=folder)}\n{PLAN}")
    check_refused((verb, "p.yaml"), ("evil.py", "runs no code", "--model FILE.py"), capsys)
    assert not (folder / "ran").exists()


def test_plan_of_a_file_that_is_named(folder, capsys):
    command = ("plan", "good.py", "--cluster", "1x1xT4", "--strategies", "data_parallel", "--save", "p.yaml")
    assert cli.main(command) == 0
    assert cli.main(("simulate", "p.yaml", "--model", "good.py")) == 0
    assert "good.py on 1 rank of" in capsys.readouterr().out


def test_cluster_that_is_too_small(folder, capsys):
    assert cli.main(("plan", *TINY, "--strategies", "data_parallel", "--save", "p.yaml")) == 0
    capsys.readouterr()
    check_refused(("simulate", "p.yaml", "--cluster", "1x1xT4"), ("2 devices", "has 1"), capsys)


def test_a_page_may_go_where_all_is_thrown_away(folder, capsys):
    assert cli.main(fleet("jobs.csv", "--html", "/dev/null")) == 0


def test_what_cannot_be_written_after_all_is_a_failure(folder, capsys, monkeypatch):
    monkeypatch.setattr("trainyard.cli.outputs._takes_all", lambda path: True)
    assert cli.main(fleet("jobs.csv", "--html", "/dev/full")) == 1
    assert "the page cannot be written to /dev/full: No space left on device" in capsys.readouterr().err


def test_commands_to_a_terminal_are_written_out(folder, capsys):
    (folder / "red.csv").write_bytes(JOBS + b"\na\x1b[31m,0,1,10\nb\xc2\x9b31m,0,64,10\n")
    assert cli.main(fleet("red.csv", "--policy", "fifo")) in (0, 2)
    told = capsys.readouterr()
    assert "b\\x9b31m" in told.out + told.err
    assert not {"\x1b", "\x9b"} & {*told.out, *told.err}
