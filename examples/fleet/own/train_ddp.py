"""Plain PyTorch with DistributedDataParallel as a job of a fleet: told to end, it saves, and later goes on from there.

jobs.yaml beside this file has it as a job. Alone: torchrun --nproc-per-node 2 examples/fleet/own/train_ddp.py
"""

import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trainyard.fleet import progress

STEPS, ROWS = 150, 32


def batch(step, rank, world):
    """The part of a rank: rows are drawn anew for every step, so that a step is the same however often it is begun."""
    x = torch.randn(ROWS, 8, generator=torch.Generator().manual_seed(step))[rank::world]
    return x, x.sum(1, keepdim=True).sin()


def main():
    told_to_end = []
    signal.signal(signal.SIGTERM, lambda *_: told_to_end.append(True))
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    device = f"cuda:{os.environ['LOCAL_RANK']}" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    net = DistributedDataParallel(nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1)).to(device))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    saved, first = (progress.job_dir() or Path()) / "checkpoint.pt", 0
    if saved.exists():
        state = torch.load(saved, map_location=device)
        net.module.load_state_dict(state["net"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["step"]
    for step in range(first, STEPS):
        x, y = (part.to(device) for part in batch(step, dist.get_rank(), dist.get_world_size()))
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(net(x), y)
        loss.backward()
        optimizer.step()
        time.sleep(0.02)  # as if the model were larger
        progress.report(step + 1, loss.item())
        stops = torch.tensor(float(bool(told_to_end)), device=device)
        dist.all_reduce(stops)  # one rank may hear of it a step before the others
        if (stops or step + 1 == STEPS) and dist.get_rank() == 0:
            state = {"net": net.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}
            torch.save(state, saved.with_suffix(".part"))
            saved.with_suffix(".part").replace(saved)
        if stops:
            sys.exit(143)


main()
