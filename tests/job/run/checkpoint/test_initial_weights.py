"""A run begins with weights from elsewhere, by name; what does not fit is told or refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import one_rank
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from trainyard.job.run.checkpoint.folders import read_whole
from trainyard.job.run.checkpoint.initial_weights import initialized
from trainyard.job.run.config import InitFrom, TrainConfig, WorkerInput
from trainyard.job.run.errors import WeightsError
from trainyard.job.run.processes.worker import prepare, train_rank
from trainyard.job.run.step.data import FunctionData
from trainyard.job.run.step.initial import InitialValueError, initial_values
from trainyard.program.model import Model


def other_weights() -> dict[str, Tensor]:
    """All tensors of another model of the same kind."""
    torch.manual_seed(9)
    return {name: value.clone() for name, value in one_rank.Net().state_dict().items()}


def from_(weights: Any, rename: dict[str, str] | None = None) -> tuple[dict[str, Tensor], str]:
    """The initial values of the tiny model, and what is said of them."""
    model = one_rank.model()
    values, _, note = initialized(initial_values(model, 0), model, InitFrom(weights, rename or {}))
    return {name: values(name) for name in model.module.state_dict()}, note


def test_weights_are_read_from_every_form(tmp_path: Path) -> None:
    wanted = other_weights()
    save_file(wanted, tmp_path / "w.safetensors")
    torch.save(wanted, tmp_path / "w.pt")
    for weights in (wanted, tmp_path / "w.safetensors", tmp_path / "w.pt"):
        values, note = from_(weights)
        assert all(torch.equal(values[name], wanted[name]) for name in wanted)
        assert note == f"initial weights: {len(wanted)} of {len(wanted)} tensors are loaded"
    one_rank.run(tmp_path / "run", 2)
    trained = read_whole(tmp_path / "run" / "step-00000002")
    for folder in (tmp_path / "run", tmp_path / "run" / "step-00000002"):
        values, _ = from_(folder)
        assert all(torch.equal(values[name].view(trained[name].shape), trained[name]) for name in trained)


def test_names_are_mapped_and_what_is_left_over_is_told() -> None:
    wanted = other_weights()
    some = {f"net.{name}": value for name, value in wanted.items() if not name.startswith("unused.")}
    values, note = from_({**some, "head.weight": torch.ones(2)}, {"net.": "", "net.nothing.": "other."})
    own = one_rank.model().module.state_dict()
    for name, value in values.items():
        assert torch.equal(value, (own if name.startswith("unused.") else wanted)[name])
    assert note.endswith(
        "not loaded, so as the model begins: unused.weight, unused.bias; not used: head.weight"
    )


class Tied(nn.Module):
    """One weight with two names."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
        self.second.weight = self.first.weight


def test_a_tied_weight_is_loaded_by_either_name() -> None:
    model = Model("tied", Tied(), lambda m, b: m.first(b).sum(), torch.ones(1, 2))
    values, _, _ = initialized(
        initial_values(model, 0), model, InitFrom({"second.weight": torch.full((2, 2), 7.0)})
    )
    assert torch.equal(values("first.weight"), torch.full((2, 2), 7.0))


def test_weights_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    weights = other_weights()
    with pytest.raises(InitialValueError, match=r"layers.0.weight has shape \(3, 5\) there and \(5, 3\)"):
        from_({**weights, "layers.0.weight": weights["layers.0.weight"].T})
    with pytest.raises(InitialValueError, match=r"no weight has a name of the model: there net\.limit"):
        from_({f"net.{name}": value for name, value in weights.items()})
    file = tmp_path / "code.pt"
    torch.save({"x": one_rank.Net()}, file)
    with pytest.raises(WeightsError, match=r"code.pt cannot be read"):
        from_(file)


def test_a_run_begins_with_them() -> None:
    known, _ = one_rank._prepared()
    config = TrainConfig(1, one_rank.OPTIMIZER, init_from=InitFrom(other_weights()))
    prepared = prepare(WorkerInput(one_rank.model(), known.plan, FunctionData(one_rank.batch), config))
    assert torch.equal(prepared.values("layers.0.weight"), other_weights()["layers.0.weight"])
    assert torch.equal(prepared.held["layers.0.weight"], other_weights()["layers.0.weight"])
    said: list[Any] = []
    work = WorkerInput(one_rank.model(), known.plan, FunctionData(one_rank.batch), config)
    said += train_rank(work, prepared, 0, torch.device("cpu"), resume=False)
    ready, step = said
    assert ready.notes == (
        f"initial weights: {len(other_weights())} of {len(other_weights())} tensors are loaded",
    )
    plain = one_rank.model()
    plain.module.load_state_dict(other_weights())
    loss = plain.loss(plain.module, one_rank.batch(0))
    assert isinstance(loss, Tensor)
    assert step.losses["loss:loss"] == pytest.approx(loss.item(), rel=1e-6)
