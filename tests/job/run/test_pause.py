"""A run that is asked to pause ends after its present step, and goes on from there as if nothing had been."""

import plans
import pytest

from trainyard.job.run.checkpoint.saved import complete_steps
from trainyard.job.run.train import train


def test_a_paused_run_goes_on_where_it_stopped(tmp_path):
    plan, folder, pause = plans.plan(data=2), tmp_path / "checkpoints", tmp_path / "pause"
    whole = train(plans.MODEL, plan, plans.DATA_SOURCE, plans.config(6))

    def at_step_2(metrics):
        if metrics.step == 2:
            pause.touch()

    asked = {"checkpoint": folder, "pause": pause}
    first = train(plans.MODEL, plan, plans.DATA_SOURCE, plans.config(6, **asked), on_step=at_step_2)
    stopped = first.metrics[-1].step + 1
    assert 3 <= stopped < 6
    assert complete_steps(folder)[0] == stopped
    pause.unlink()
    rest = train(plans.MODEL, plan, plans.DATA_SOURCE, plans.config(6, **asked, resume=True))
    assert rest.first_step == stopped
    losses = [m.losses["loss:loss"] for m in (*first.metrics, *rest.metrics)]
    assert losses == pytest.approx([m.losses["loss:loss"] for m in whole.metrics], rel=1e-6)


def test_pausing_needs_checkpoints(tmp_path):
    with pytest.raises(ValueError, match="pause need the folder"):
        plans.config(6, pause=tmp_path / "pause")
