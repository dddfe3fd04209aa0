"""A file with model() and data(step), as a job of a fleet: level 1 plans it, trains it and saves it.

jobs.yaml beside this file has it as a job. Alone: trainyard train examples/fleet/own/own_model.py
"""

import torch
from torch import nn


def model():
    """The module, its loss, and the batch of one step."""
    net = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 1))
    return net, loss, data(0)


def loss(net, batch):
    """Of a batch, as a mean over its rows."""
    return nn.functional.mse_loss(net(batch["x"]), batch["y"])


def data(step):
    """The batch of a step."""
    x = torch.randn(8, 8, generator=torch.Generator().manual_seed(step))
    return {"x": x, "y": x.sum(1, keepdim=True).sin()}
