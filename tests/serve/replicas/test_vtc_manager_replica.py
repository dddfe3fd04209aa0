"""The queues of VTC's program under its manager, beside what they put out."""

from __future__ import annotations

import pytest
from served import table
from shared_data import DATA, needs_data

from trainyard.serve.reproduce.programs.vtc_manager import ADMISSIONS, served


@needs_data(DATA)
@pytest.mark.parametrize("name", sorted(ADMISSIONS))
def test_service_is_as_in_the_program(name):
    results, service = served(ADMISSIONS[name])
    stopped, whole = (row for row in table(DATA / "reference/serve/vtc.csv") if row["policy"] == name)

    assert results.end_s == pytest.approx(float(whole["end_s"]), rel=1e-6)
    last = service.moments[-1]
    assert (last.num_decodes, last.num_prefills) == (int(whole["decode_steps"]), int(whole["prefill_steps"]))
    _means_are(results.served, whole)

    end = service.stopped(float(stopped["stop_s"]))
    assert end.at_s == pytest.approx(float(stopped["end_s"]), rel=1e-6)
    assert (end.num_decodes, end.num_prefills) == (
        int(stopped["decode_steps"]),
        int(stopped["prefill_steps"]),
    )
    assert abs(end.tokens["c0"] - end.tokens["c1"]) == int(stopped["service_gap_tokens"])
    done = [each for each in results.served if each.finished_s <= end.at_s]
    assert len(done) == int(stopped["finished"])
    _means_are(done, stopped)

    for row in table(DATA / "reference/serve/vtc_service.csv"):
        if row["policy"] == name:
            moment = service.after_decodes(int(row["decode_steps"]))
            assert moment.at_s == pytest.approx(float(row["t_s"]), abs=1e-3)
            assert [moment.tokens["c0"], moment.tokens["c1"]] == [
                int(row["service_c0_tokens"]),
                int(row["service_c1_tokens"]),
            ]


def _means_are(served, said):
    for client in ("c0", "c1"):
        ttft_s = [each.ttft_s for each in served if each.request.client == client]
        assert sum(ttft_s) / len(ttft_s) == pytest.approx(float(said[f"ttft_mean_{client}_s"]), rel=1e-6)
    for what in ("ttft", "e2e"):
        times_s = [getattr(each, f"{what}_s") for each in served]
        assert sum(times_s) / len(times_s) == pytest.approx(float(said[f"{what}_mean_s"]), rel=1e-6)
