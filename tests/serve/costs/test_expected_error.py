"""Errors to expect are those of the newest comparison with measured servers, here and in the guide."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainyard.serve.costs.expected_error import EXPECTED_ERRORS, ExpectedError, expected_errors

ROOT = Path(__file__).resolve().parents[3]
(RECORD,) = (ROOT / "benchmarks" / "records").glob("*Z-serve_truth.json")
KINDS = {"dense": "dense models", "mixture": "mixtures"}
_FEWEST = 5


def _ratios(errors: dict[str, float]) -> tuple[float, float]:
    return round(errors["measured_to_predicted_p10"], 2), round(errors["measured_to_predicted_p90"], 2)


def _recorded() -> set[ExpectedError]:
    """The errors of the record, as the product says them."""
    found = json.loads(RECORD.read_text())["results"]["errors"]
    errors = set()
    for server in ("vllm", "sglang", "trtllm"):
        for kind, words in KINDS.items():
            for source in ("device", "kernels"):
                key = f"{words} of {server}: {{}} ms, ours, {source}"
                ttft, tpot = found.get(key.format("TTFT")), found.get(key.format("TPOT"))
                if tpot is not None and tpot["num"] >= _FEWEST:
                    num = int(tpot["num"])
                    errors.add(ExpectedError(server, kind, source, num, _ratios(ttft), _ratios(tpot)))
    return errors


def test_they_are_those_of_the_record() -> None:
    assert len(EXPECTED_ERRORS) == len(set(EXPECTED_ERRORS)) >= 6
    assert set(EXPECTED_ERRORS) == _recorded()


def test_the_guide_has_them() -> None:
    guide = (ROOT / "docs" / "guide-serve.md").read_text()
    for each in EXPECTED_ERRORS:
        ttft, tpot = (f"{low:.2f} to {high:.2f}" for low, high in (each.ttft, each.tpot))
        assert f"| {each.server} | {each.kind} | {each.source} | {each.num} | {ttft} | {tpot} |" in guide


@pytest.mark.parametrize(
    ("policy", "server"), [("vllm", "vllm"), ("trtllm(capacity='max_utilization') + vtc", "trtllm")]
)
def test_policies_are_told_by_their_servers(policy: str, server: str) -> None:
    (found,) = expected_errors([policy, policy], False, "device")
    assert (found.server, found.kind, found.source) == (server, "dense", "device")
    (mixture,) = expected_errors([policy], True, "device")
    assert (mixture.server, mixture.kind) == (server, "mixture")


def test_other_policies_have_none() -> None:
    assert expected_errors(["sarathi", "vllm_v0", "orca + vtc"], False, "device") == []
    assert expected_errors(["vllm"], False, "layers") == []


def test_a_sentence_has_both_ranges() -> None:
    error = ExpectedError("vllm", "dense", "device", 12, (0.81, 2.5), (0.9, 1.13))
    assert str(error) == (
        "8 of 10 measured configurations of vllm had 0.81 to 2.50 times the TTFT and 0.90 to 1.13 times the TPOT that is "
        "predicted (12, dense)"
    )
