"""Tiresias as its program has it, beside a plain loop that does what the authors' program does.

``simulator/run_sim.py`` of SymbioticLab/Tiresias, in integers of Python 2: divisions are rounded down.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from runs import finished

from trainyard.fleet.policies.tiresias.policy import tiresias
from trainyard.fleet.replicas.tiresias import tabulated_index, tiresias_program
from trainyard.fleet.reproduce.programs.tiresias import sixty_jobs
from trainyard.fleet.simulate_fleet import simulate_fleet
from trainyard.fleet.workload.job import Job, declared_job
from trainyard.hardware.cluster import Cluster

NEVER = 10**12


def index_of(samples: list[int], attained: int, quantum: int) -> float:
    """``cal_r_gittins_index``: chance to end within the quantum over what it takes, of the samples beyond."""
    num = len(samples)
    if attained > samples[-1] - 1:
        return 0.0
    first = next(i for i, size in enumerate(samples) if size > attained)
    if attained + quantum > samples[-1] - 1:
        last = num - 1
    else:
        last = next(i for i, size in enumerate(samples) if size > attained + quantum)
    chance = round((last - first) * 1.0 / (num - first), 5)
    cost = (sum(samples[first:last]) + quantum * (num - last)) // (num - first)
    return round(chance * 1000000 / cost, 4)


class Ranks:
    """``parse_job_dist`` and ``get_gittins_index``: the index is looked up at the next sample."""

    def __init__(self, samples: tuple[int, ...], quantum: int) -> None:
        known = sorted(samples)
        self.sizes = [*known, NEVER]
        self.table = [index_of(known, size - 1, quantum) for size in known] + [0.0]

    def of(self, attained: int) -> float:
        if attained > self.sizes[-2]:
            return 0.0
        return self.table[next(i for i, size in enumerate(self.sizes) if size > attained)]


@dataclass(eq=False)
class Task:
    """A job of the program."""

    name: str
    submit: int
    gpus: int
    duration: int
    checked: int = 0
    total: int = 0
    executed: int = 0
    pending: int = 0
    queue: int = 0
    runs: bool = False
    rank: float = 0.0
    preempted: int = 0


class Program:
    """``dlas_sim_jobs``, with ``solve_starvation`` and with the order of ``dlas-gpu-gittins``.

    Parameters
    ----------
    limits : between queues.
    by_gpus : whether service is time times GPUs.
    knob : waiting over running at which a job goes back to the first queue; 0 for never.
    """

    def __init__(
        self,
        jobs: list[Job],
        gpus: int,
        limits: tuple[int, ...],
        by_gpus: bool,
        knob: int,
        ranks: Ranks | None,
    ) -> None:
        self.coming = [
            Task(j.name, int(j.arrival_s), j.num_devices, int(j.work), int(j.arrival_s)) for j in jobs
        ]
        self.gpus, self.limits, self.by_gpus, self.knob, self.ranks = gpus, limits, by_gpus, knob, ranks
        self.runnable: list[Task] = []
        self.queues: list[list[Task]] = [[] for _ in range(len(limits) + 1)]
        self.ends: dict[str, float] = {}
        self.num_preempted = 0

    def run(self) -> None:
        end, jump, ending = NEVER, NEVER, list[Task]()
        while self.coming or self.runnable:
            start = self.coming[0].submit if self.coming else NEVER
            now = min(start, end)
            if now > jump:
                now = jump
            else:
                for task in ending if end <= start else []:
                    self.runnable.remove(task)
                    self.queues[task.queue].remove(task)
                    self.ends[task.name] = now
                while start <= end and self.coming and self.coming[0].submit == now:
                    task = self.coming.pop(0)
                    self.runnable.append(task)
                    self.queues[0].append(task)
            for task in self.runnable:
                self.look_at(task, now)
            self.schedule()
            running = [task for task in self.runnable if task.runs]
            end = min((now + task.duration - task.total for task in running), default=NEVER)
            ending = [task for task in running if now + task.duration - task.total == end]
            jump = min((self.jump(task, now) for task in self.runnable), default=NEVER)

    def service(self, task: Task) -> int:
        return task.executed * (task.gpus if self.by_gpus else 1)

    def move(self, task: Task, queue: int) -> None:
        self.queues[queue].append(task)
        # The first of them: of a job that goes back to its own queue, the old place.
        self.queues[task.queue].remove(task)
        task.queue = queue

    def look_at(self, task: Task, now: int) -> None:
        since, task.checked = now - task.checked, now
        if task.runs:
            task.total += since
            task.executed += since
            if task.queue < len(self.limits) and self.service(task) >= self.limits[task.queue]:
                self.move(task, task.queue + 1)
        elif task.executed > 0:
            task.pending += since
            if self.knob and task.queue > 0 and task.pending >= task.executed * self.knob:
                task.executed = task.pending = 0
                self.move(task, 0)
        if self.ranks is not None:
            task.rank = self.ranks.of(self.service(task))

    def schedule(self) -> None:
        free, starting = self.gpus, list[Task]()
        for queue in self.queues:
            if self.ranks is not None:
                queue.sort(key=lambda task: (task.rank, -task.submit), reverse=True)
            for task in queue:
                if free >= task.gpus:
                    free -= task.gpus
                    starting.append(task)
                elif task.runs:
                    task.runs = False
                    self.num_preempted += 1
        for task in starting:
            task.runs = True
        for queue in self.queues:
            queue.sort(key=lambda task: not task.runs)

    def jump(self, task: Task, now: int) -> int:
        """When it may next go to another queue, by what the program computes."""
        if task.runs and task.queue < len(self.limits):
            return now + (self.limits[task.queue] - task.executed) // (task.gpus if self.by_gpus else 1)
        if not task.runs and self.knob and task.queue > 0 and task.executed > 0:
            left = task.executed * self.knob - task.pending
            return now + left if left > 0 else NEVER
        return NEVER


def drawn(seed: int) -> list[Job]:
    """More than fit, from one moment to the next."""
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.integers(1, 500, 60))
    return [
        declared_job(f"{i}", float(at), int(rng.choice([1, 1, 2, 4, 8])), float(rng.integers(1, 6000)))
        for i, at in enumerate(arrivals)
    ]


SAMPLES = (200, 400, 400, 1000, 3500, 4000, 9000, 20000, 100000)


@pytest.mark.parametrize("samples", [(), SAMPLES], ids=["las", "gittins"])
@pytest.mark.parametrize("knob", [0, 1, 3])
@pytest.mark.parametrize("by_gpus", [True, False], ids=["gpu-time", "time"])
@pytest.mark.parametrize("seed", range(5))
def test_as_the_authors_program(seed: int, by_gpus: bool, knob: int, samples: tuple[int, ...]) -> None:
    jobs, limits = drawn(seed), (1000, 4000)
    program = Program(jobs, 16, limits, by_gpus, knob, Ranks(samples, limits[0]) if samples else None)
    program.run()
    policy = tiresias_program(
        thresholds=tuple(map(float, limits)),
        promote_knob=float(knob) or None,
        samples=tuple(map(float, samples)),
        two_dimensional=by_gpus,
    )
    run = simulate_fleet(jobs, Cluster.uniform(4, 4), policy, place="anywhere")
    assert finished(run) == program.ends
    assert run.num_preemptions == program.num_preempted > 0


def test_the_plain_loop_prints_what_the_program_does() -> None:
    """On the program's own jobs."""
    jobs = list(sixty_jobs())
    program = Program(jobs, 16, (3250, 7200), True, 0, None)
    program.run()
    assert np.mean([program.ends[job.name] - job.arrival_s for job in jobs]) == pytest.approx(
        190.683, abs=1e-3
    )
    assert max(program.ends.values()) == 3271


@pytest.mark.parametrize("quantum", [10, 300, 3250, 10**6])
def test_the_table_of_indices(quantum: int) -> None:
    for seed in range(10):
        samples = np.sort(np.random.default_rng(seed).integers(2, 9000, 30))
        table = tabulated_index(samples.astype(np.float64), float(quantum))
        plain = Ranks(tuple(samples.tolist()), quantum).table
        assert table == pytest.approx(plain, abs=1e-3)


def test_by_hand_time_alone_is_service() -> None:
    """A gang of two goes down after 8 s, not after 4; meanwhile the other, which came later, waits."""
    jobs = [declared_job("gang", 0, 2, 10), declared_job("one", 1, 2, 3)]
    cluster = Cluster.uniform(1, 2)
    for make in (tiresias, tiresias_program):
        policy = make(thresholds=(8.0,), two_dimensional=False)
        assert finished(simulate_fleet(jobs, cluster, policy)) == {"gang": 13, "one": 11}


def test_by_hand_who_waits_twice_as_long_as_it_ran_begins_anew() -> None:
    """Down after 10 s, it waits for others of 8 s each; 20 s later it goes to the end of the first queue."""
    jobs = [declared_job("old", 0, 1, 15), *[declared_job(f"new{i}", 10 + 8 * i, 1, 8) for i in range(6)]]
    policy = tiresias_program(thresholds=(10.0,), promote_knob=2.0)
    done = finished(simulate_fleet(jobs, Cluster.uniform(1, 1), policy))
    # At 30 s the third of the others runs, and the fourth comes at 34 s, behind it.
    assert done["old"] == 34 + 5
