"""A check of batches, by an account of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from trainyard.serve.batch import Batch, CacheOp, WorkItem
from trainyard.serve.errors import ServeError

__all__ = ["BatchChecker"]


class BatchChecker:
    """Whether each batch of an instance can be carried out after those before it.

    It knows the cache and the sequences only by what batches say and by `generated` and `left`.

    Parameters
    ----------
    num_blocks, block_tokens : of the cache.
    """

    def __init__(self, num_blocks: int, block_tokens: int) -> None:
        self._num_blocks, self._block_tokens = num_blocks, block_tokens
        self._num_holders: Counter[int] = Counter()
        self._blocks: dict[int, list[int]] = {}
        self._computed: dict[int, int] = {}
        self._num_tokens: dict[int, int] = {}
        self._tokens: dict[int, list[int]] = {}
        self._num_written: Counter[int] = Counter()
        self._content: dict[int, tuple[int, ...]] = {}

    def arrive(self, request: int, num_tokens: int, tokens: Sequence[int] = ()) -> None:
        """A request comes with so many tokens; these are given where they are known."""
        self._num_tokens[request] = num_tokens
        self._tokens[request] = list(tokens)

    def check(self, batch: Batch) -> None:
        """Take a batch into account.

        Raises
        ------
        ServeError
            If a block is used that somebody else has, or that its request has not; if what is shared was not computed, or
            is of other tokens; if tokens are skipped, computed twice or not there; if a request is in the batch twice; or
            if one that is preempted keeps a block.
        """
        if batch.repeat < 1:
            raise ServeError(f"batch: it is computed {batch.repeat} times; allowed is 1 or more")
        for op in batch.cache_ops:
            self._carry_out(op)
        for number in batch.preempted:
            if self._blocks.get(number) and not any(item.request == number for item in batch.items):
                raise self._error(
                    number, f"is preempted and keeps blocks {self._blocks[number]}; it gives back all"
                )
        seen: set[int] = set()
        for item in batch.items:
            if item.request in seen:
                raise self._error(item.request, "is in the batch twice; it may be in it once")
            seen.add(item.request)
            self._compute(item, batch.repeat)

    def generate(self, request: int, token: int | None = None) -> None:
        """A request has one more token, at the end of a batch.

        Raises
        ------
        ServeError
            If not all tokens before it were computed.
        """
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
        for block in self._blocks.pop(request, []):
            self._num_holders[block] -= 1
        del self._num_tokens[request], self._tokens[request]
        self._computed.pop(request, None)

    @property
    def num_held(self) -> int:
        """Blocks that somebody holds."""
        return sum(num > 0 for num in self._num_holders.values())

    def _carry_out(self, op: CacheOp) -> None:
        held = self._blocks.setdefault(op.request, [])
        if op.request not in self._num_tokens:
            raise self._error(op.request, "is not there; allowed are requests that arrived and have not left")
        for block in op.blocks:
            if not 0 <= block < self._num_blocks:
                raise self._error(op.request, f"uses block {block}; there are {self._num_blocks}, from 0 on")
            if op.kind == "give back":
                if block not in held:
                    raise self._error(
                        op.request, f"gives back block {block}, which it has not; it has {held}"
                    )
                held.remove(block)
                self._num_holders[block] -= 1
                continue
            if block in held:
                raise self._error(op.request, f"takes block {block}, which it has already; take another one")
            if op.kind == "share":
                self._share(op.request, block)
            elif self._num_holders[block]:
                raise self._error(
                    op.request, f"takes block {block}, which others have; take one that is free"
                )
            else:
                self._num_written[block] = 0
                self._content.pop(block, None)
            held.append(block)
            self._num_holders[block] += 1
        if op.kind == "give back" and not held:
            self._computed[op.request] = 0

    def _share(self, request: int, block: int) -> None:
        """What is in a block follows what the request has computed."""
        computed = self._computed.get(request, 0)
        if computed != len(self._blocks[request]) * self._block_tokens:
            raise self._error(
                request, f"shares block {block} after {computed} tokens, where another block begins before"
            )
        if self._num_written[block] < self._block_tokens:
            raise self._error(
                request, f"shares block {block}, of which {self._num_written[block]} tokens are computed"
            )
        stop = computed + self._block_tokens
        known = tuple(self._tokens[request][:stop])
        if len(known) == stop and self._content.get(block) != known:
            raise self._error(request, f"shares block {block}, which is of other tokens")
        self._computed[request] = stop

    def _write(self, request: int, stop: int) -> None:
        """Its blocks have all tokens up to this one."""
        for place, block in enumerate(self._blocks[request]):
            end = min(stop, (place + 1) * self._block_tokens)
            written = end - place * self._block_tokens
            if written > self._num_written[block]:
                self._num_written[block] = written
                if written == self._block_tokens and len(self._tokens[request]) >= end:
                    self._content[block] = tuple(self._tokens[request][:end])

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
        room = len(self._blocks.get(number, [])) * self._block_tokens
        if stop > room:
            raise self._error(number, f"computes tokens up to {stop}; its blocks have room for {room}")
        self._computed[number] = stop
        self._write(number, stop)

    @staticmethod
    def _error(request: int, said: str) -> ServeError:
        return ServeError(f"batch: request {request} {said}")
