"""A check of batches, by an account of its own."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

from trainyard.serve.batch import Batch, CacheOp, Launch, Layers, Tier, WorkItem
from trainyard.serve.check_backward import BackwardAccount
from trainyard.serve.check_blocks import BlocksAccount
from trainyard.serve.check_weights import WeightsAccount
from trainyard.serve.errors import ServeError

__all__ = ["BatchChecker", "refuse_simulated_only"]

_TIERS: dict[str, tuple[Tier, Tier, bool]] = {
    "allocate": ("device", "device", False),
    "share": ("device", "device", False),
    "free": ("device", "device", False),
    "copy": ("device", "device", True),
    "swap out": ("device", "host", True),
    "swap in": ("host", "device", True),
    "move": ("device", "device", True),
}
"""For each operation, where its blocks are, where it copies them to, and whether it copies."""


def refuse_simulated_only(batch: Batch) -> None:
    """Refuse what only simulated replicas do; an engine calls it before it computes anything.

    Raises
    ------
    ServeError
        If tokens go backward, or weights are loaded or unloaded.
    """
    if any(launch.direction == "backward" for launch in batch.launches):
        raise ServeError(
            "the policy lets tokens go backward; an engine only goes forward; simulate it, or use another policy"
        )
    if batch.weight_ops:
        raise ServeError(
            f"the policy wants to {batch.weight_ops[0]}; an engine keeps all weights on the device; simulate it, or use "
            "another policy"
        )


class BatchChecker:
    """Checks that each batch of an instance can be carried out after the batches before it.

    It knows the cache and the sequences only by what batches say and by `fork`, `generate` and `leave`.

    Parameters
    ----------
    num_blocks, block_tokens : of the cache.
    num_host_blocks : of the host.
    num_layers : of the model; None if steps are of all layers.
    max_loras : adapters that may be on the device at once; None if all are there from the beginning.
    """

    def __init__(
        self,
        num_blocks: int,
        block_tokens: int,
        num_host_blocks: int = 0,
        max_loras: int | None = None,
        num_layers: int | None = None,
    ) -> None:
        self._num_layers = num_layers
        self._half: dict[int, tuple[int, int]] = {}  # of a request, up to which token and layer
        self._weights = WeightsAccount(max_loras, num_layers)
        self._backward = BackwardAccount(num_layers)
        self._adapters: dict[int, str] = {}
        self._block_tokens = block_tokens
        self._device, self._host = BlocksAccount(num_blocks), BlocksAccount(num_host_blocks)
        self._versions = count()
        self._came: dict[int, tuple[int, int]] = {}  # of each block that comes, its instance and number there
        self._computed: dict[int, int] = {}
        self._num_tokens: dict[int, int] = {}
        self._tokens: dict[int, list[int]] = {}

    def arrive(
        self,
        request: int,
        num_tokens: int,
        tokens: Sequence[int] = (),
        adapter: str = "",
        *,
        trains: bool = False,
    ) -> None:
        """A request comes with so many tokens; these are given where they are known. If it trains, they go back, too."""
        if trains:
            self._backward.begin(request)
        self._num_tokens[request], self._adapters[request] = num_tokens, adapter
        self._tokens[request] = list(tokens)

    def move_in(
        self, request: int, num_tokens: int, num_computed: int, tokens: Sequence[int] = (), adapter: str = ""
    ) -> None:
        """A request comes from another instance, where so many of its tokens were computed; a batch moves its blocks."""
        self.arrive(request, num_tokens, tokens, adapter)
        self._computed[request] = num_computed

    def check(self, batch: Batch) -> None:
        """Take a batch into account.

        Raises
        ------
        ServeError
            If a block is used that somebody else has, or that its request has not; if what is shared was not computed, or
            is of other tokens; if a request writes in a block that others have, too; if tokens are skipped, computed
            twice or not there; if a request is in the batch twice, or goes through layers without weights; or if one that
            is preempted keeps a block on the device.
        """
        if batch.repeat < 1:
            raise ServeError(f"batch: it is computed {batch.repeat} times; allowed is 1 or more")
        self._came.clear()
        for weight_op in batch.weight_ops:
            self._weights.carry_out(weight_op)
        for op in batch.cache_ops:
            self._carry_out(op)
        for number in batch.preempted:
            self._half.pop(number, None)
            held = self._device.of.get(number)
            if held and not any(item.request == number for item in batch.items):
                raise self._error(number, f"is preempted and keeps blocks {held}; it gives back all")
        seen: set[int] = set()
        for launch in batch.launches:
            for item in launch.items:
                if item.request in seen:
                    raise self._error(item.request, "is in the batch twice; it may be in it once")
                seen.add(item.request)
                self._launch(item, batch.repeat, launch)

    def _launch(self, item: WorkItem, repeat: int, launch: Launch) -> None:
        if lacking := self._weights.lacks(self._adapters.get(item.request, ""), launch.layers):
            raise self._error(item.request, f"is computed without {lacking}; load it before")
        if launch.direction == "backward":
            self._go_back(item, repeat, launch.layers)
        elif launch.layers is None and item.request not in self._half:
            self._compute(item, repeat)
        else:
            self._compute_layers(item, repeat, launch.layers)

    def fork(self, request: int, sample: int) -> None:
        """A request has another sample, as far as it is, which has its blocks, too.

        Raises
        ------
        ServeError
            If not all of its tokens are computed.
        """
        computed, known = self._computed.get(request, 0), self._num_tokens[request]
        if computed != known:
            raise self._error(
                request, f"has another sample, where {computed} of its {known} tokens are computed"
            )
        self.arrive(sample, known, self._tokens[request], self._adapters[request])
        self._computed[sample] = computed
        for block in self._device.of[request][: -(-computed // self._block_tokens)]:
            self._device.hold(sample, block)

    def generate(self, request: int, token: int | None = None) -> None:
        """A request has one more token, at the end of a batch.

        Raises
        ------
        ServeError
            If not all tokens before it were computed, or it trains.
        """
        if self._backward.trains(request):
            raise self._error(request, "has a new token, and trains; what trains generates nothing")
        computed, before = self._computed.get(request, 0), self._num_tokens[request]
        if computed != before:
            raise self._error(
                request, f"has a new token, where {computed} of the {before} before it are computed"
            )
        self._num_tokens[request] += 1
        if token is not None and self._tokens[request]:
            self._tokens[request].append(token)

    def leave(self, request: int) -> None:
        """A request ended, and gives back all that it has."""
        for blocks in (self._device, self._host):
            for block in blocks.of.pop(request, []):
                blocks.ref_count[block] -= 1
        del self._num_tokens[request], self._tokens[request], self._adapters[request]
        self._computed.pop(request, None)
        self._half.pop(request, None)
        self._backward.end(request)

    @property
    def num_held(self) -> int:
        """Blocks that somebody holds, on the device or on the host."""
        return sum(num > 0 for each in (self._device, self._host) for num in each.ref_count.values())

    def _carry_out(self, op: CacheOp) -> None:
        if op.request not in self._num_tokens:
            raise self._error(op.request, "is not there; allowed are requests that arrived and have not left")
        own = op.blocks if op.instance is None else ()
        for tier, blocks in ((op.tier, own), (op.to_tier, op.to)):
            there = self._of(tier)
            for block in blocks:
                if not 0 <= block < there.num:
                    where = " of the host" if tier == "host" else ""
                    raise self._error(
                        op.request, f"uses block {block}{where}; there are {there.num}, from 0 on"
                    )
        held = self._device.of.setdefault(op.request, [])
        fits = _TIERS[op.kind] == (op.tier, op.to_tier, bool(op.to)) and len(op.to) in (0, len(op.blocks))
        if not fits or (op.kind == "move") != (op.instance is not None):
            raise self._error(
                op.request,
                f"does {op.kind!r} with {op.blocks} of the {op.tier} and {op.to} of the {op.to_tier}",
            )
        if op.kind == "move":
            self._come(op, held)
            return
        if op.to:
            self._replace(op)
            return
        for block in op.blocks:
            if op.kind == "free":
                if block not in held:
                    raise self._error(
                        op.request, f"gives back block {block}, which it has not; it has {held}"
                    )
                self._device.free(op.request, block)
                continue
            if block in held:
                raise self._error(op.request, f"takes block {block}, which it has already; take another one")
            if op.kind == "share":
                self._share(op.request, block)
            else:
                self._take(op.request, block, self._device)
            self._device.hold(op.request, block)
        if op.kind == "free" and not held:
            self._computed[op.request] = 0
            self._backward.forget(op.request)

    def _replace(self, op: CacheOp) -> None:
        """Blocks are copied, and the copies are in the place of those that are given back."""
        before, after = self._of(op.tier), self._of(op.to_tier)
        held = before.of.get(op.request, [])
        if op.kind != "copy" and list(op.blocks) != held:
            raise self._error(op.request, f"does {op.kind!r} with blocks {list(op.blocks)}; it has {held}")
        for block, copy in zip(op.blocks, op.to, strict=True):
            if block not in held:
                raise self._error(op.request, f"copies block {block}, which it has not; it has {held}")
            if not after.ref_count[copy]:
                after.copy(copy, before, block)
            elif op.kind == "copy" or after.version[copy] != before.version[block]:
                raise self._error(
                    op.request, f"copies to block {copy} of the {op.to_tier}, which others have"
                )
            if op.kind == "copy":
                held[held.index(block)] = copy
                before.ref_count[block] -= 1
                before.ref_count[copy] += 1
            else:
                after.hold(op.request, copy)
        if op.kind != "copy":
            for block in op.blocks:
                before.free(op.request, block)

    def _come(self, op: CacheOp, held: list[int]) -> None:
        """Blocks of another instance are copied."""
        computed, size = self._computed.get(op.request, 0), self._block_tokens
        if held or len(op.to) != -(-computed // size) or op.instance is None:
            raise self._error(
                op.request,
                f"comes with {len(op.to)} blocks to {len(held)}; {computed} of its tokens are computed",
            )
        known = self._tokens[op.request]
        for place, (source, block) in enumerate(zip(op.blocks, op.to, strict=True)):
            if self._came.get(block) != (op.instance, source):
                self._take(op.request, block, self._device)
                self._came[block] = (op.instance, source)
            end = min((place + 1) * size, computed)
            self._device.num_written[block] = end - place * size
            if end % size == 0 and len(known) >= end:
                self._device.content[block] = tuple(known[:end])
            self._device.hold(op.request, block)

    def _take(self, request: int, block: int, there: BlocksAccount) -> None:
        if there.ref_count[block]:
            raise self._error(request, f"takes block {block}, which others have; take one that is free")
        there.num_written[block], there.version[block] = 0, next(self._versions)
        there.content.pop(block, None)

    def _of(self, tier: Tier) -> BlocksAccount:
        return self._device if tier == "device" else self._host

    def _share(self, request: int, block: int) -> None:
        """Share a block; its tokens have to follow those that the request has computed."""
        if self._backward.trains(request):
            raise self._error(
                request, f"shares block {block}, and trains; all its tokens go forward themselves"
            )
        computed = self._computed.get(request, 0)
        if computed != len(self._device.of[request]) * self._block_tokens:
            raise self._error(
                request, f"shares block {block} after {computed} tokens, where another block begins before"
            )
        written = self._device.num_written[block]
        if written < self._block_tokens:
            raise self._error(request, f"shares block {block}, of which {written} tokens are computed")
        stop = computed + self._block_tokens
        known = tuple(self._tokens[request][:stop])
        if len(known) == stop and self._device.content.get(block) != known:
            raise self._error(request, f"shares block {block}, which is of other tokens")
        self._computed[request] = stop

    def _write(self, request: int, start: int, stop: int) -> None:
        """Note that the blocks of a request have these tokens, too."""
        there, size = self._device, self._block_tokens
        for place in range(start // size, -(-stop // size)):
            block, end = there.of[request][place], min(stop, (place + 1) * size)
            if there.ref_count[block] > 1:
                raise self._error(request, f"writes in block {block}, which others have, too; copy it before")
            there.num_written[block], there.version[block] = end - place * size, next(self._versions)
            if end == (place + 1) * size and len(self._tokens[request]) >= end:
                there.content[block] = tuple(self._tokens[request][:end])

    def _compute(self, item: WorkItem, repeat: int) -> None:
        number, start, stop = item
        computed, known = self._computed.get(number, 0), self._num_tokens.get(number, 0)
        if repeat > 1:  # each time with the token that the time before made
            if stop - start != 1 or stop != known:
                raise self._error(
                    number, f"repeats tokens {start} to {stop}; only the last one, {known - 1}, may be"
                )
            stop, known = stop + repeat - 1, known + repeat - 1
            self._num_tokens[number] = known
        if start != computed:
            raise self._error(
                number, f"computes tokens from {start} on; the next one to be computed is {computed}"
            )
        if not start < stop <= known:
            raise self._error(number, f"computes tokens {start} to {stop}; its sequence has {known}")
        room = len(self._device.of.get(number, [])) * self._block_tokens
        if stop > room:
            raise self._error(number, f"computes tokens up to {stop}; its blocks have room for {room}")
        self._computed[number] = stop
        self._write(number, start, stop)

    def _compute_layers(self, item: WorkItem, repeat: int, layers: Layers) -> None:
        """Tokens go through some layers; they are computed when they have gone through all."""
        stop, done = self._half.pop(item.request, (item.stop, 0))
        most = self._num_layers or 0
        if layers is None or not done == layers[0] < layers[1] <= most or stop != item.stop or repeat > 1:
            raise self._error(
                item.request,
                f"computes tokens up to {item.stop} in layers {layers}, {repeat} times; next are tokens up to "
                f"{stop} from layer {done} on, of {most}",
            )
        if layers[1] < most:
            self._half[item.request] = (stop, layers[1])
        else:
            self._compute(item, repeat)

    def _go_back(self, item: WorkItem, repeat: int, layers: Layers) -> None:
        """Gradients of tokens go back through layers; their keys and values are in its blocks."""
        number = item.request
        computed, known = self._computed.get(number, 0), self._num_tokens.get(number, 0)
        if not self._backward.trains(number):
            raise self._error(number, "goes backward; allowed are requests that train")
        if computed < known or number in self._half:
            raise self._error(number, f"goes backward, where {computed} of its {known} tokens went forward")
        if len(self._device.of.get(number, ())) * self._block_tokens < known or repeat > 1:
            raise self._error(
                number, f"goes backward {repeat} times without blocks of all tokens; allowed is once"
            )
        if wrong := self._backward.go_back(item, layers, known):
            raise self._error(number, wrong)

    @staticmethod
    def _error(request: int, said: str) -> ServeError:
        return ServeError(f"batch: request {request} {said}")
