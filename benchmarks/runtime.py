"""Seconds per training step, next to PyTorch's own way of doing the same.

Run `python benchmarks/runtime.py`. A small GPT is trained on the processor with AdamW and clipped gradients:
on one process (against plain eager PyTorch), data-parallel on two (DistributedDataParallel), with everything
sharded on two (FSDP2's `fully_shard`), and as a pipeline of two (1F1B of torch.distributed.pipelining); and on one
process with a DataLoader of two workers. Each side has processes of its own, started by its own launcher. They take
turns, one step each, so that whatever else the machine does hits both; the ratio is the median over pairs. A process has
one thread. Losses are compared first.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from itertools import repeat
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from record import finish, parser
from torch import Tensor, nn
from torch._C._distributed_c10d import TCPStore
from torch.multiprocessing.spawn import start_processes
from torch.utils.data import DataLoader, Dataset

from trainyard.job.lower.lower import lower
from trainyard.job.optimizer import OptimizerConfig
from trainyard.job.plan import Mesh, Plan, Stage, State, Traffic
from trainyard.job.run.processes.fork_server import run_ranks
from trainyard.job.run.step.data_reader import open_reader
from trainyard.job.run.step.data_source import as_data
from trainyard.job.run.step.executor import Executor
from trainyard.job.schedules import make_schedule
from trainyard.job.strategies.parallel.zero import DIVIDED
from trainyard.job.task import Task
from trainyard.processes import ProcessLimits
from trainyard.program.addresses import address
from trainyard.program.model import Model
from trainyard.zoo.common import next_token_loss, token_batch
from trainyard.zoo.gpt import Block, GPTConfig

ROWS, MICROBATCHES = 16, 4
WARM_UP, PAIRS, FEWEST_PAIRS = 3, 40, 1
STEPS = WARM_UP + PAIRS
CONFIG = GPTConfig(vocab=256, context=64, layers=4, hidden=256, heads=8, dropout=0.0)
OPTIMIZER = OptimizerConfig(lr=1e-3, clip_norm=1.0)
Step = Callable[[int], float]


class Decoder(nn.Module):
    """A GPT whose output projection is its own, or a range of its blocks with what belongs to them."""

    def __init__(self, first: int = 0, last: int = CONFIG.layers) -> None:
        super().__init__()
        self.tokens = nn.Embedding(CONFIG.vocab, CONFIG.hidden) if first == 0 else None
        self.blocks = nn.ModuleDict({str(i): Block(CONFIG) for i in range(first, last)})
        self.norm = nn.LayerNorm(CONFIG.hidden) if last == CONFIG.layers else None
        self.head = nn.Linear(CONFIG.hidden, CONFIG.vocab) if last == CONFIG.layers else None

    def forward(self, x: Tensor) -> Tensor:
        if self.tokens is not None:
            x = self.tokens(x)
        for block in self.blocks.values():
            x = block(x)
        return x if self.norm is None or self.head is None else self.head(self.norm(x))


def model() -> Model:
    """The whole model, the same in every process."""
    torch.manual_seed(0)
    return Model("decoder", Decoder(), next_token_loss, token_batch(ROWS, CONFIG.context, CONFIG.vocab))


class Texts(Dataset[Mapping[str, Tensor]]):
    """Rows of drawn tokens."""

    def __len__(self) -> int:
        return ROWS * STEPS

    def __getitem__(self, row: int) -> Mapping[str, Tensor]:
        drawn = torch.Generator().manual_seed(row)
        tokens = torch.randint(CONFIG.vocab, (CONFIG.context + 1,), generator=drawn)
        return {"tokens": tokens[:-1], "targets": tokens[1:]}


def loader() -> DataLoader[Mapping[str, Tensor]]:
    return DataLoader(Texts(), ROWS, num_workers=2)


def ours(rank: int, data: int = 1, zero: int = 0, pipeline: int = 1, has_loader: bool = False) -> Step:
    """A step of Trainyard's."""
    chosen = model()
    microbatches = MICROBATCHES if pipeline > 1 else 1
    program = Task(chosen).program(ROWS // microbatches)
    forward = [n for n in program.graph.nodes if n.op == "call_function" and n.meta["phase"] == "forward"]
    half = next(address(n) for n in forward if n.meta["layer"].startswith(f"blocks.{CONFIG.layers // 2}"))
    mesh, rows = Mesh.of(data=data), ("data",) if data > 1 else ()
    plan = Plan(
        "decoder",
        program.fingerprint,
        "local",
        ROWS,
        make_schedule("one_f_one_b", pipeline, microbatches),
        tuple(Stage(start, mesh, rows) for start in (("", half) if pipeline > 1 else ("",))),
        state=State(rows).dividing(DIVIDED.get(zero, ())),
        traffic=Traffic(4 * 2**20),
    )
    values = {name: p.detach().clone() for name, p in chosen.module.named_parameters()}
    executor = Executor(lower(program, plan, OPTIMIZER), rank, values.__getitem__, torch.device("cpu"))
    if has_loader:
        reader = open_reader(as_data(loader(), ROWS), None, 0, STEPS, "", {})
        return lambda step: executor.step(reader.next(), step).losses["loss:loss"]
    batch = {f"batch.{name}": tensor for name, tensor in chosen.batch.items()}
    return lambda step: executor.step(batch, step).losses["loss:loss"]


def adamw(module: nn.Module) -> torch.optim.Optimizer:
    """What `OPTIMIZER` says, fused as ours."""
    c = OPTIMIZER
    return torch.optim.AdamW(module.parameters(), c.lr, c.betas, c.eps, c.weight_decay, fused=True)


def eager(module: nn.Module, rank: int, num_ranks: int, has_loader: bool = False) -> Step:
    """Forward, backward, clip and update on this rank's rows."""
    whole = model().batch
    share = ROWS // num_ranks
    own = {name: tensor[rank * share : (rank + 1) * share] for name, tensor in whole.items()}
    batches = iter(loader()) if has_loader else repeat(own)
    optimizer = adamw(module)

    def step(_: int) -> float:
        optimizer.zero_grad()
        loss = next_token_loss(module, next(batches))
        loss.backward()
        nn.utils.clip_grad_norm_(module.parameters(), OPTIMIZER.clip_norm)
        optimizer.step()
        return loss.item()

    return step


def data_parallel(rank: int) -> Step:
    """DistributedDataParallel on two processes."""
    return eager(nn.parallel.DistributedDataParallel(model().module), rank, 2)


def fully_sharded(rank: int) -> Step:
    """FSDP2: each block and the rest gathered when used."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2,))
    module = model().module
    assert isinstance(module, Decoder)
    for block in module.blocks.values():
        fully_shard(block, mesh=mesh)
    fully_shard(module, mesh=mesh)
    return eager(module, rank, 2)


def pipelined(rank: int) -> Step:
    """1F1B on two processes; gradients are clipped by the norm of those of both stages, as torchtitan clips them."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    half = CONFIG.layers // 2
    whole = model()
    part = Decoder(0, half) if rank == 0 else Decoder(half, CONFIG.layers)
    part.load_state_dict({k: v for k, v in whole.module.state_dict().items() if k in part.state_dict()})
    stage = PipelineStage(part, rank, 2, torch.device("cpu"))
    schedule = Schedule1F1B(
        stage, MICROBATCHES, loss_fn=lambda y, t: F.cross_entropy(y.flatten(0, 1), t.flatten())
    )
    optimizer = adamw(part)

    def step(_: int) -> float:
        optimizer.zero_grad()
        losses: list[Tensor] = []
        if rank == 0:
            schedule.step(whole.batch["tokens"])
        else:
            schedule.step(target=whole.batch["targets"], losses=losses)
        grads = [p.grad for p in part.parameters() if p.grad is not None]
        square = nn.utils.get_total_norm(grads) ** 2
        dist.all_reduce(square)
        nn.utils.clip_grads_with_norm_(part.parameters(), OPTIMIZER.clip_norm, square**0.5)
        optimizer.step()
        return sum(loss.item() for loss in losses) / MICROBATCHES

    return step


CASES: dict[str, tuple[int, dict[str, Any], Callable[[int], Step]]] = {
    "one process / eager": (1, {}, lambda rank: eager(model().module, rank, 1)),
    "DataLoader of two workers / eager": (
        1,
        {"has_loader": True},
        lambda rank: eager(model().module, rank, 1, has_loader=True),
    ),
    "data parallel / DistributedDataParallel": (2, {"data": 2}, data_parallel),
    "ZeRO-3 / FSDP2 fully_shard": (2, {"data": 2, "zero": 3}, fully_sharded),
    "1F1B / torch.distributed.pipelining": (2, {"pipeline": 2}, pipelined),
}


def take_turns(rank: int, case: str, is_ours: bool, port: int, pairs: int) -> dict[str, Any]:
    """One side: steps when it is its turn. Seconds of each on this rank, and the loss of the first."""
    num_ranks, sizes, peer = CASES[case]
    torch.set_num_threads(1)
    step = ours(rank, **sizes) if is_ours else peer(rank)
    turns = TCPStore("localhost", port, timeout=timedelta(minutes=5))
    seconds: list[float] = []
    losses: list[float] = []
    for pair in range(WARM_UP + pairs):
        # Who begins changes from pair to pair.
        turn = 2 * pair + (is_ours == bool(pair % 2))
        turns.wait([f"turn{turn}"])
        if num_ranks > 1:
            dist.barrier()
        began = time.perf_counter()
        losses.append(step(pair))
        if num_ranks > 1:
            dist.barrier()
        seconds.append(time.perf_counter() - began)
        if rank == 0:
            turns.set(f"turn{turn + 1}", "")
    return {"seconds": seconds[WARM_UP:], "loss": losses[0]}


def run_peer(case: str, port: int, pairs: int) -> list[dict[str, Any]]:
    """PyTorch's side, in processes that are started as PyTorch starts them."""
    num_ranks = CASES[case][0]
    with tempfile.TemporaryDirectory() as folder:
        start_processes(be_peer, (case, port, pairs, folder), nprocs=num_ranks, start_method="spawn")
        return [torch.load(Path(folder) / str(rank)) for rank in range(num_ranks)]


def be_peer(rank: int, case: str, port: int, pairs: int, folder: str) -> None:
    """One process of it."""
    num_ranks = CASES[case][0]
    if num_ranks > 1:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=num_ranks)
    torch.save(take_turns(rank, case, False, port, pairs), Path(folder) / str(rank))
    if num_ranks > 1:
        dist.destroy_process_group()


def run(case: str, pairs: int) -> dict[str, float]:
    """One comparison.

    Raises
    ------
    AssertionError
        If the two sides do not start with the same loss.
    """
    num_ranks = CASES[case][0]
    turns = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    turns.set("turn0", "")
    with ThreadPoolExecutor() as both:
        peer = both.submit(run_peer, case, turns.port, pairs)
        found = run_ranks(num_ranks, take_turns, case, True, turns.port, pairs, limits=ProcessLimits(900))
        theirs = peer.result()
    losses = [rank["loss"] for rank in theirs]
    # A pipeline's loss is known to its last stage only.
    expected = losses[-1] if "1F1B" in case else sum(losses) / num_ranks
    assert abs(found[0]["loss"] - expected) < 1e-4 * expected, (case, found[0]["loss"], expected)
    own, other = found[0]["seconds"], theirs[0]["seconds"]
    return {
        "step_s": statistics.median(own),
        "pytorch_step_s": statistics.median(other),
        "times_faster": statistics.median(b / a for a, b in zip(own, other, strict=True)),
    }


def main() -> None:
    """Run all cases, print a table and write a record."""
    smallest = parser(__doc__).parse_args().smallest
    results = {}
    print(f"{'':42}{'ours ms':>10}{'PyTorch ms':>12}{'faster':>9}")
    for case in CASES:
        results[case] = found = run(case, FEWEST_PAIRS if smallest else PAIRS)
        print(
            f"{case:42}{1e3 * found['step_s']:10.1f}{1e3 * found['pytorch_step_s']:12.1f}"
            f"{found['times_faster']:8.2f}x",
            flush=True,
        )
    finish("runtime", results, smallest)


if __name__ == "__main__":
    main()
