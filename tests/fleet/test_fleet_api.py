"""The public functions of level 2: the same as the command line, and what they refuse."""

import json
import warnings
from pathlib import Path

import numpy as np
import pytest

import trainyard as ty
from trainyard.cli.main import main
from trainyard.fleet.workload.job import declared_job

TRACE = Path(__file__).parents[2] / "examples" / "fleet" / "jobs.csv"


@pytest.fixture(scope="module")
def comparison():
    return ty.fleet.simulate(TRACE, "4x4", ["fifo", "srtf"])


def said_by_command(capsys, *arguments):
    assert main(["fleet", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_simulations_are_those_of_the_command_line(comparison, capsys):
    told = said_by_command(
        capsys, "simulate", "--trace", str(TRACE), "--cluster", "4x4", "--policy", "fifo,srtf"
    )
    rows = comparison.rows()
    assert [row["policy"] for row in rows] == [run["policy"] for run in told["runs"]] == ["srtf", "fifo"]
    for row, run in zip(rows, told["runs"], strict=True):
        assert {name: run[name] for name in row} == row
    assert [run.policy for run in comparison.runs] == ["fifo", "srtf"]  # as they were named
    assert rows[0]["median_completion_s"] == np.median(comparison["srtf"].completion_s)
    assert comparison.best is comparison["srtf"]
    assert comparison["fifo"].mean_completion_s > comparison["srtf"].mean_completion_s


def test_studies_are_those_of_the_command_line(capsys):
    options = "compare --cluster 4x4 --policy fifo,srtf --jobs 30 --load 0.9 --seeds 2 --deadlines 0.5,1.5"
    told = said_by_command(capsys, *options.split())
    study = ty.fleet.compare("4x4", ["fifo", "srtf"], num_jobs=30, load=0.9, seeds=2, deadlines=(0.5, 1.5))
    means = {standing.policy: standing.completion_s.mean for standing in study.standings}
    assert means == {each["policy"]: each["completion_s"]["mean"] for each in told["policies"]}
    missed = {standing.policy: standing.num_missed.mean for standing in study.standings}
    assert missed == {each["policy"]: each["num_missed"]["mean"] for each in told["policies"]}
    assert min(missed.values()) > 0  # of the deadlines that were drawn
    drawn = ty.fleet.compare("4x4", "fifo", TRACE, seeds=1)
    assert drawn.standings[0].completion_s.mean not in means.values()


def test_jobs_are_read_and_drawn():
    jobs = ty.fleet.read_jobs(str(TRACE), limit=5)
    assert [job.name for job in jobs] == [f"job0{n}" for n in range(5)]
    assert ty.fleet.draw_jobs("4x4", num_jobs=7) == ty.fleet.draw_jobs(ty.parse_cluster("4x4"), num_jobs=7)
    assert ty.fleet.draw_jobs("4x4", num_jobs=7, seed=1) != ty.fleet.draw_jobs("4x4", num_jobs=7)


def test_rows_that_give_no_job_are_warned_of(tmp_path):
    lines = TRACE.read_text().splitlines()
    (tmp_path / "half.csv").write_text("\n".join([*lines[:5], *(f"bad{n},x,1,1" for n in range(20))]))
    with pytest.warns(UserWarning, match="^20 of 24 rows cannot be read"):
        assert len(ty.fleet.read_jobs(tmp_path / "half.csv")) == 4
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ty.fleet.read_jobs(TRACE)


def test_a_policy_that_cannot_run_is_a_result():
    jobs = [declared_job("only", 0.0, 1, 10.0)]
    found = ty.fleet.simulate(jobs, "1x1xA+1x1xB", ["las", "elasticflow", "synergy"])
    assert [run.policy for run in found.runs] == ["las"]
    assert [each.text for each in found.cannot_run] == ["elasticflow", "synergy"]
    with pytest.raises(ty.fleet.FleetError, match="there is no run of 'fifo'; there are"):
        found["fifo"]


def test_what_never_ran_has_no_best():
    jobs = [declared_job("only", 0.0, 1, 10.0)]
    found = ty.fleet.simulate(jobs, "1x1xA+1x1xB", "synergy")
    assert found.rows() == []
    assert "cannot run: synergy" in repr(found)
    with pytest.raises(ty.fleet.FleetError, match="no policy could run: synergy refused"):
        _ = found.best


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (lambda: ty.fleet.simulate([], 16), ty.WrongTypeError, "cluster is of type int; allowed is a Cluster"),
        (lambda: ty.fleet.simulate([], "4x4", 3), ty.WrongTypeError, "policies is of type int; allowed is a list"),
        (lambda: ty.fleet.simulate([], "4x4", ["fifo", 3]), ty.WrongTypeError, "an entry of policies is of type int"),
        (lambda: ty.fleet.simulate([], "4x4", []), ty.fleet.FleetError, "policies is an empty list"),
        (lambda: ty.fleet.simulate([], "4x4", "fifi"), ty.fleet.FleetError, "fifi"),
        (lambda: ty.fleet.simulate("no.csv", "4x4"), ty.fleet.FleetError, "no.csv"),
        (lambda: ty.fleet.compare("4x4", seeds=0), ty.fleet.FleetError, "seeds is 0"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_by_name(call, error, said):
    with pytest.raises(error, match=said) as caught:
        call()
    assert isinstance(caught.value, ty.TrainyardError)
