"""Predicted against measured: step time, peak memory and sent bytes of plans that run on this machine.

Run with ``python benchmarks/predict.py``; takes a few minutes, writes a record. Nothing is fitted to the cases:
ops are measured by themselves (`trainyard.cost.measured`), collectives once per machine.

Other work on the machine lengthens steps and not predictions, so beside the step's time the processor time of
its main thread is compared with the computing that was predicted, which holds under any load.

Memory is counted at the allocator (PyTorch's memory profiler), on top of the model state that is there before a
step: the resident size of a process also moves with what the C library keeps of freed memory, so it says
little about steps of a few MB. Sent bytes are those that the runtime counts.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from record import finish, parser
from torch.profiler import ProfilerActivity, profile

from trainyard.hardware.cluster import Cluster
from trainyard.hardware.local import local_cluster
from trainyard.job.catalog import parse_strategies
from trainyard.job.lower.lower import Lowered, lower
from trainyard.job.plan import Plan
from trainyard.job.planning import make_setting
from trainyard.job.run.processes.fork_server import run_ranks
from trainyard.job.run.step.executor import Executor
from trainyard.job.run.step.initial import initial_values
from trainyard.job.setting import apply
from trainyard.job.simulate import Simulation, simulate_plan
from trainyard.job.simulation.traces import measured_ops
from trainyard.job.task import Task
from trainyard.program.model import Model
from trainyard.zoo import gpt, llama, resnet
from trainyard.zoo.gpt import GPTConfig
from trainyard.zoo.llama import LlamaConfig
from trainyard.zoo.resnet import ResNetConfig

_WARM_UP = 2
# Above all levels of the profiler's library, which otherwise prints a line whenever it starts and stops.
os.environ.setdefault("KINETO_LOG_LEVEL", "6")


@dataclass(frozen=True)
class Sizes:
    """How much is measured.

    Attributes
    ----------
    context : tokens of a sequence.
    hidden : of a transformer.
    steps : of a run; the first ones do not count.
    rounds : predictions and runs of each case.
    budget_s : seconds for which the ops of a case are measured.
    """

    context: int = 128
    hidden: int = 256
    steps: int = 9
    rounds: int = 3
    budget_s: float = 2.0


_SMALLEST = Sizes(16, 32, 3, 1, 0.1)


def build(name: str, sizes: Sizes) -> Model:
    """The model of a case."""
    context, hidden = sizes.context, sizes.hidden
    if name == "gpt":
        config = GPTConfig(vocab=2048, context=context, layers=4, hidden=hidden, heads=4)
        return gpt.build(name, config, 8)
    if name == "llama":
        return llama.build(name, LlamaConfig(2048, context, 4, hidden, 4, 2, 704), 8)
    return resnet.build(name, ResNetConfig(64, 10, (1, 1, 1, 1), base=32, bottleneck=False), 16)


CASES = (
    (1, "gpt", "data_parallel"),
    (1, "gpt", "sublinear(segments=4)"),
    (1, "llama", "data_parallel"),
    (1, "resnet", "data_parallel"),
    (2, "gpt", "data_parallel"),
    (2, "gpt", "zero(stage=1)"),
    (2, "gpt", "zero(stage=3)"),
    (2, "gpt", "megatron(tensor=2, pipeline=1, data=1, microbatch_rows=4)"),
    (2, "gpt", "gpipe(stages=2, microbatches=4)"),
    (2, "llama", "megatron(tensor=1, pipeline=2, data=1, microbatch_rows=2)"),
    (2, "resnet", "data_parallel"),
    (4, "gpt", "data_parallel"),
    (4, "gpt", "megatron(tensor=2, pipeline=2, data=1, microbatch_rows=2)"),
    (4, "llama", "megatron(tensor=1, pipeline=2, data=2, microbatch_rows=1)"),
    (4, "llama", "zero(stage=2)"),
)
"""Processes, model, strategies."""
_SMALLEST_CASES = [CASES[0], CASES[6]]


@dataclass(frozen=True)
class Measured:
    """What one rank measured: median seconds of a step and of the processor time of
    its main thread, most bytes of tensors, bytes sent in a step."""

    step_s: float
    work_s: float
    peak_bytes: int
    sent_bytes: int


def run_rank(rank: int, name: str, plan: Plan, sizes: Sizes) -> Measured:
    """Run a plan's steps as one rank."""
    torch.set_num_threads(1)
    model = build(name, sizes)
    lowered = lower(Task(model).program(plan.rows_per_microbatch), plan)
    executor = Executor(lowered, rank, initial_values(model, 0), torch.device("cpu"), seed=0)
    batch = {f"batch.{key}": value for key, value in model.batch.items()}
    laps, cpu = [], []
    for step in range(sizes.steps):
        start, busy = time.perf_counter(), time.thread_time()
        sent = executor.groups.sent_bytes
        executor.step(batch, step)
        laps.append(time.perf_counter() - start)
        cpu.append(time.thread_time() - busy)
    sent = executor.groups.sent_bytes - sent
    state = _state_bytes(executor)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        executor.step(batch, sizes.steps)
    return Measured(median(laps[_WARM_UP:]), median(cpu[_WARM_UP:]), state + _most_allocated(profiler), sent)


def _state_bytes(executor: Executor) -> int:
    """Bytes of the storages that are there between steps."""
    tensors = [*executor.params.values(), *executor.buffers.values()]
    for state in executor.state.buckets.values():
        tensors += [t for t in (state.master, state.weights, state.grads) if t is not None]
    for member in executor.optimizer.inner.members:
        for slots in member.state.values():
            tensors += [t for t in slots.values() if isinstance(t, torch.Tensor)]
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    return sum(storages.values())


def _most_allocated(profiler: Any) -> int:
    """Most bytes allocated since the profiler started."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    changes = sorted(
        (e["ts"], e["args"]["Ev Idx"], e["args"]["Bytes"]) for e in events if e["name"] == "[memory]"
    )
    level = most = 0
    for _, _, change in changes:
        level += change
        most = max(most, level)
    return most


def run_case(num_processes: int, name: str, strategies: str, sizes: Sizes) -> dict[str, Any]:
    """Predict and measure one case."""
    cluster = local_cluster(num_processes)
    setting = make_setting(Task(build(name, sizes)), cluster)
    plan = apply(parse_strategies(strategies), setting)
    lowered = lower(setting.task.program(plan.rows_per_microbatch), plan)
    # In turns, so that both see the machine as fast as it happens to be.
    rounds = [
        _predict_and_run(num_processes, name, plan, cluster, lowered, sizes) for _ in range(sizes.rounds)
    ]
    predicted, ranks = rounds[-1]
    stage = [plan.coordinate(rank)["pipeline"] for rank in range(num_processes)]
    memory_errors = [
        abs(predicted.peak_bytes[s] / found.peak_bytes - 1) for s, found in zip(stage, ranks, strict=True)
    ]
    predicted_s = median(p.step_s for p, _ in rounds)
    predicted_work_s = median(max(p.work_s) for p, _ in rounds)
    measured_s = median(max(r.step_s for r in found) for _, found in rounds)
    work_s = median(max(r.work_s for r in found) for _, found in rounds)
    return {
        "num_processes": num_processes,
        "model": name,
        "strategies": strategies,
        "predicted_step_s": predicted_s,
        "measured_step_s": measured_s,
        "predicted_work_s": predicted_work_s,
        "measured_work_s": work_s,
        "work_error": predicted_work_s / work_s - 1,
        "step_error": predicted_s / measured_s - 1,
        "predicted_peak_bytes": max(predicted.peak_bytes),
        "measured_peak_bytes": max(r.peak_bytes for r in ranks),
        "memory_error": max(memory_errors),
        "predicted_sent_bytes": [predicted.sent_bytes[s] for s in stage],
        "measured_sent_bytes": [r.sent_bytes for r in ranks],
        "load_average": os.getloadavg()[0],
    }


def _predict_and_run(
    num_processes: int, name: str, plan: Plan, cluster: Cluster, lowered: Lowered, sizes: Sizes
) -> tuple[Simulation, list[Measured]]:
    ops = measured_ops(lowered, cluster, num_threads=1, budget_s=sizes.budget_s, again=True)
    return simulate_plan(lowered, cluster, ops), run_ranks(num_processes, run_rank, name, plan, sizes)


def _line(found: dict[str, Any], same: bool) -> str:
    times = (
        f"{1000 * found[f'predicted_{what}_s']:8.1f} ms of {1000 * found[f'measured_{what}_s']:8.1f} "
        f"({100 * found[f'{what}_error']:+6.1f} %)"
        for what in ("step", "work")
    )
    return (
        f"{found['num_processes']} {found['model']:7}{found['strategies']:60} step {'; work '.join(times)}; "
        f"{found['predicted_peak_bytes'] / 2**20:7.2f} MiB of {found['measured_peak_bytes'] / 2**20:7.2f} "
        f"({100 * found['memory_error']:.2f} %); bytes {'equal' if same else 'differ'}; "
        f"load {found['load_average']:.1f}"
    )


def main() -> None:
    """Run the cases whose text holds what is given, print a table, and write a record if all were run."""
    options = parser(__doc__)
    options.add_argument("only", nargs="?", default="", metavar="TEXT", help="of the cases that are run")
    given = options.parse_args()
    chosen = [case for case in CASES if given.only in " ".join(map(str, case))]
    if not chosen:
        cases = "\n".join(" ".join(map(str, case)) for case in CASES)
        raise SystemExit(f"no case has {given.only!r} in its text; the cases are\n{cases}")
    if given.smallest:
        chosen = _SMALLEST_CASES
    results = []
    for case in chosen:
        found = run_case(*case, _SMALLEST if given.smallest else Sizes())
        results.append(found)
        pairs = zip(found["predicted_sent_bytes"], found["measured_sent_bytes"], strict=True)
        same = all(abs(a - b) <= 0.001 * b + 64 for a, b in pairs)
        print(_line(found, same), flush=True)
    time_error = median(abs(r["step_error"]) for r in results)
    work_error = median(abs(r["work_error"]) for r in results)
    memory_error = median(r["memory_error"] for r in results)
    print(
        f"median error: {100 * time_error:.1f} % of a step's time, {100 * work_error:.1f} % of its computing, "
        f"{100 * memory_error:.2f} % of memory"
    )
    if not given.only:
        summary = {
            "median_step_error": time_error,
            "median_work_error": work_error,
            "median_memory_error": memory_error,
            "cases": results,
        }
        finish("predict", summary, given.smallest)


if __name__ == "__main__":
    main()
