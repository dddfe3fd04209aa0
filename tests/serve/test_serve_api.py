"""The public functions of level 3: the same as the command line, and what they refuse."""

import json
from pathlib import Path

import pytest

import trainyard as ty
from trainyard.cli.main import main

TRACE = Path(__file__).parents[2] / "examples" / "serve" / "requests.csv"
PLACE = ("gpt2", "1x2xA100-80G")
LENGTHS = "--prompt-tokens 100 --output-tokens 20"
SHORT = {"prompt_tokens": 100, "output_tokens": 20}


def said_by_command(capsys, *arguments):
    assert main(["serve", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_simulations_are_those_of_the_command_line(capsys):
    options = f"--model gpt2 --cluster 1x2xA100-80G --policy vllm,sarathi --tp 2 --rate 4 --num 40 --ttft 500ms {LENGTHS}"
    told = said_by_command(capsys, "simulate", *options.split())
    requests = ty.serve.draw_requests(4.0, 40, ttft_s=0.5, **SHORT)
    found = ty.serve.simulate(requests, *PLACE, ["vllm", "sarathi"], tensor_parallel=2)
    assert found.deployment.num_devices == 2
    assert sorted(row["policy"] for row in found.rows()) == ["sarathi", "vllm"]
    for row, run in zip(found.rows(), told["runs"], strict=True):
        shared = {name: value for name, value in row.items() if value == value}  # NaN equals nothing
        assert {name: run[name] for name in shared} == shared
    assert found.best is found[found.rows()[0]["policy"]]


def test_plans_are_those_of_the_command_line(capsys):
    options = f"gpt2 --cluster 1x2xA100-80G --policy vllm --rate 2 --num 20 --ttft 1s --tpot 100ms {LENGTHS}"
    told = said_by_command(capsys, "plan", *options.split())
    requests = ty.serve.draw_requests(2.0, 20, ttft_s=1.0, tpot_s=0.1, **SHORT)
    found = ty.serve.plan(requests, *PLACE, policies=["vllm"])
    assert found.is_met is told["is_met"] is True
    assert found.deployment.num_devices == 1
    assert f"--tp {found.deployment.model.tensor_parallel} " in told["simulated_by"]


def test_requests_are_read_with_their_objectives():
    requests = ty.serve.read_requests(str(TRACE), limit=3, e2e_s=2.0)
    assert [each.request.name for each in requests] == ["r000", "r001", "r002"]
    assert {each.request.e2e_s for each in requests} == {2.0}
    served = ty.serve.simulate(iter(requests), *PLACE, "vllm,sarathi", num_replicas=1)
    # The first prompt is longer than the context of the model.
    assert [(row["num_served"], row["num_refused"]) for row in served.rows()] == [(2, 1), (2, 1)]


def test_a_policy_that_cannot_serve_is_a_result():
    requests = ty.serve.draw_requests(2.0, 3, **SHORT)
    found = ty.serve.simulate(
        requests, *PLACE, "vllm", router="prefill_decode(prefill_replicas=1)", num_replicas=1
    )
    assert [each.name for each in found.cannot_run] == ["vllm"]
    assert found.rows() == []
    with pytest.raises(ty.serve.ServeError, match="no policy could serve: vllm"):
        _ = found.best
    with pytest.raises(ty.serve.ServeError, match="there is no run of 'vllm'"):
        found["vllm"]


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (lambda: ty.serve.simulate([], ty, "1x1"), ty.WrongTypeError, "model is of type module"),
        (lambda: ty.serve.simulate([], PLACE[0], None), ty.WrongTypeError, "cluster is None; allowed is a Cluster"),
        (lambda: ty.serve.plan([], PLACE[0], PLACE[1], policies=[1]), ty.WrongTypeError, "an entry of policies"),
        (lambda: ty.serve.plan([], PLACE[0], "1x1xT4+1x2xT4"), ty.serve.ServeError, "different devices, or nodes"),
        (lambda: ty.serve.plan([], PLACE[0], PLACE[1], router="no"), ty.serve.ServeError, "no"),
        (lambda: ty.serve.simulate([], *PLACE, "vlm"), ty.serve.ServeError, "vlm"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_by_name(call, error, said):
    with pytest.raises(error, match=said) as caught:
        call()
    assert isinstance(caught.value, ty.TrainyardError)
