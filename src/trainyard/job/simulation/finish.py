"""The end of a step: reductions, the optimizer, and the weights that every rank gets back."""

from __future__ import annotations

from trainyard.cost.ops import Pass
from trainyard.job.lower.buckets import Bucket, is_sharded
from trainyard.job.lower.lower import StageProgram
from trainyard.job.plan import DATA
from trainyard.job.simulation.build import Assembly
from trainyard.job.simulation.memory import Effect
from trainyard.job.simulation.prices import Prices


class Finish:
    """Adds the tasks after the last action of every rank."""

    def __init__(
        self, assembly: Assembly, prices: Prices, stages: list[list[StageProgram]], optimizer: Pass
    ) -> None:
        self.assembly, self.prices, self.stages, self.optimizer = assembly, prices, stages, optimizer
        self.plan = prices.plan
        self.buckets = [[b for s in own for b in s.buckets] for own in stages]

    def add(self) -> None:
        ranks = range(self.plan.pipeline)
        for rank in ranks:
            self._wait(rank, self.assembly.sending[rank], "sends are done")
        self._sum_over_stages()
        for rank in ranks:
            self._wait(rank, self.assembly.waiting[rank], "gradients are reduced")
            self._scale(rank)
        if self.plan.num_ranks > 1:
            self._together(tuple(ranks), self.prices.everyone_s(8), "gradient norm", 8, self.plan.num_ranks)
        for rank in ranks:
            elements = sum(b.num_elements // b.num_shards for b in self.buckets[rank])
            self.assembly.then(
                rank, self.prices.pass_s(self.optimizer, rank, elements), self.optimizer, "optimizer"
            )
            self._publish(rank)
        if self.plan.num_ranks > 1:
            self._together(tuple(ranks), self.prices.everyone_s(8), "losses", 8, self.plan.num_ranks)

    def _wait(self, rank: int, tasks: list[int], label: str) -> None:
        if tasks:
            join = self.assembly.then(rank, 0.0, label, "other")
            self.assembly.builder.add_dependencies(tasks, join)

    def _together(
        self, ranks: tuple[int, ...], seconds: float, label: str, num_bytes: int, num_ranks: int | None = None
    ) -> None:
        """An all-reduce in which pipeline ranks wait for each other."""
        assembly = self.assembly
        size = len(ranks) if num_ranks is None else num_ranks
        ready = [assembly.tail[rank] for rank in ranks]
        for rank in ranks:
            task = assembly.add_one(rank, "compute", seconds, label, "all_reduce")
            assembly.builder.add_dependencies(ready, task)
            assembly.tail[rank] = task
            assembly.sent.append((rank, "all_reduce", num_bytes, size))

    def _sum_over_stages(self) -> None:
        shared: dict[tuple[str, ...], Bucket] = {}
        for bucket in (b for own in self.buckets for b in own if len(b.stages) > 1):
            shared.setdefault(bucket.paths, bucket)
        for bucket in shared.values():
            ranks = tuple(sorted({self.plan.schedule.rank_of(s) for s in bucket.stages}))
            num_bytes = bucket.num_elements * 4
            seconds = self.prices.between_stages_s(ranks, num_bytes)
            self._together(ranks, seconds, f"sum {', '.join(bucket.paths)} over stages", num_bytes)
            for rank in ranks if bucket.reduced else ():
                kind = "all_reduce" if bucket.num_shards == 1 else "reduce_scatter"
                self._asynchronous(rank, kind, bucket)

    def _asynchronous(self, rank: int, kind: str, bucket: Bucket) -> None:
        assembly = self.assembly
        num_bytes = bucket.num_elements * 4
        seconds = self.prices.collective_s(kind, DATA, rank, num_bytes)
        task = assembly.add_one(rank, "communication", seconds, f"{bucket.name} {kind}", kind)
        assembly.builder.add_dependencies(assembly.tail[rank], task)
        assembly.waiting[rank].append(task)
        assembly.sent.append((rank, kind, num_bytes, self.plan.data))
        if bucket.num_shards > 1:
            staged = self.prices.staged_bytes(kind, num_bytes)
            part = num_bytes // bucket.num_shards
            assembly.memory.add(assembly.tail[rank], rank, Effect(0, "communication", 0, part + staged))
            assembly.memory.add(task, rank, Effect(0, "communication", 0, -staged))

    def _scale(self, rank: int) -> None:
        """The norm, and the pass that clips; what is left of ZeRO's reductions is let go."""
        pass_s = self.prices.pass_s
        elements = sum(b.num_elements // b.num_shards for b in self.buckets[rank])
        seconds = pass_s("scale", rank, elements) + pass_s("norm", rank, elements)
        task = self.assembly.then(rank, seconds, "clip gradients", "optimizer")
        self.assembly.memory.add(
            task, rank, Effect(0, "communication", 0, -self.assembly.unsettled_bytes[rank])
        )

    def _reduces_to_part(self, bucket: Bucket) -> bool:
        """Whether the reduced gradient is a tensor beside the rank's own, held to the end of the step."""
        return bucket.reduced and bucket.num_shards > 1 and not is_sharded(self.plan, bucket)

    def _publish(self, rank: int) -> None:
        """Updated parts go to the peers; where the weights have another type they are converted."""
        plan, assembly = self.plan, self.assembly
        width = 4 if plan.dtype == "float32" else 2
        gathered = [b for b in self.buckets[rank] if b.num_shards > 1 and plan.zero_stage < 3]
        converted = [b for b in self.buckets[rank] if b.num_shards == 1 and width != 4]
        copied = sum(b.num_elements // b.num_shards for b in (*gathered, *converted))
        if copied:
            seconds = self.prices.pass_s("copy", rank, copied, width)
            assembly.then(rank, seconds, "convert weights", "optimizer")
        held = sum(b.num_elements // b.num_shards for b in gathered) * width
        works = []
        for bucket in gathered:
            num_bytes = bucket.num_elements * width
            seconds = self.prices.collective_s("all_gather", DATA, rank, num_bytes)
            task = assembly.add_one(rank, "communication", seconds, f"{bucket.name} all_gather", "all_gather")
            assembly.builder.add_dependencies(assembly.tail[rank], task)
            assembly.sent.append((rank, "all_gather", num_bytes, plan.data))
            works.append(task)
        if works:
            assembly.memory.add(assembly.tail[rank], rank, Effect(0, "communication", held, 0))
            join = assembly.then(rank, 0.0, "weights are back", "other")
            assembly.builder.add_dependencies(works, join)
            assembly.memory.add(join, rank, Effect(0, "communication", 0, -held))
        parts = sum(
            b.num_elements * 4 // b.num_shards for b in self.buckets[rank] if self._reduces_to_part(b)
        )
        if parts:
            assembly.memory.add(assembly.tail[rank], rank, Effect(0, "communication", 0, -parts))
