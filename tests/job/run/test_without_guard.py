"""Training from a script without a main guard: its classes and functions go to the processes by value."""

import subprocess
import sys

import pytest
import torch
from torch import nn

SCRIPT = """
import sys
from dataclasses import replace
import torch
from torch import nn
import trainyard as ty

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))

scale = 2.0  # a global that a function reads

def loss(module, batch):
    return nn.functional.mse_loss(module(batch["x"]), batch["y"])

def data(step):
    x = torch.randn(16, 8, generator=torch.Generator().manual_seed(step))
    return {"x": x, "y": scale * x[:, :4]}

print("script runs")
torch.manual_seed(0)
model = ty.Model("net", Net(), loss, data(0))
plan = ty.plan(model, "1x2xA100-80G", "data_parallel").plan
config = ty.TrainConfig(steps=3, optimizer=ty.OptimizerConfig("sgd", lr=0.1))

class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return map(data, range(3))

def train(source=ty.FunctionData(data)):
    torch.manual_seed(0)
    result = ty.train(replace(model, module=Net()), plan, source, config)
    return [next(iter(metrics.losses.values())) for metrics in result.metrics]
"""
ADVICE = 'put what a script does under `if __name__ == "__main__":`'


def run(folder, script):
    (folder / "script.py").write_text(SCRIPT + script)
    return subprocess.run(
        [sys.executable, "script.py"], cwd=folder, capture_output=True, text=True, timeout=600
    )


def plain_losses():
    """The same training in one process, by PyTorch alone."""
    torch.manual_seed(0)
    first, second = nn.Linear(8, 16), nn.Linear(16, 4)
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.1)
    losses = []
    for step in range(3):
        x = torch.randn(16, 8, generator=torch.Generator().manual_seed(step))
        loss = nn.functional.mse_loss(second(torch.relu(first(x))), 2.0 * x[:, :4])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_a_script_without_a_guard_trains_as_one_process_does(tmp_path):
    pytest.importorskip("ray", reason="its copy of cloudpickle serves where cloudpickle is not installed")
    without_cloudpickle = """
sys.modules["cloudpickle"] = sys.modules["ray"] = None
try:
    train()
except TypeError as error:
    print(error)
"""
    of_workers = "print(train(torch.utils.data.DataLoader(Stream(), None, num_workers=1)))"
    done = run(tmp_path, f"print(train())\n{of_workers}\n{without_cloudpickle}")
    assert done.returncode == 0, done.stderr
    first, *losses, refusal = done.stdout.splitlines()
    assert first == "script runs"  # once: no process runs the script again
    for each in losses:
        assert [float(loss) for loss in each.strip("[]").split(",")] == pytest.approx(
            plain_losses(), rel=1e-5
        )
    assert len(losses) == 2
    assert "pip install cloudpickle" in refusal
    assert ADVICE in refusal


def test_a_script_that_trains_outside_of_its_guard_is_told_where_the_call_belongs(tmp_path):
    done = run(tmp_path, 'train()\nif __name__ == "__main__":\n    print("here")\n')
    assert done.returncode == 1
    said = done.stderr.splitlines()[-1]
    assert "ended with exit code 1 before it began: it runs the main script again; put all that" in said
