"""The check of batches: each way in which one can be wrong is found."""

from __future__ import annotations

import re
from typing import Any

import pytest

from trainyard.serve.batch import Batch, CacheOp, Launch, WorkItem
from trainyard.serve.check import BatchChecker
from trainyard.serve.errors import ServeError


def _batch(*ops: tuple[Any, ...], items: tuple[tuple[int, int, int], ...] = (), repeat: int = 1) -> Batch:
    done = tuple(CacheOp(*op) for op in ops)
    launches = (Launch(tuple(WorkItem(*item) for item in items)),) if items else ()
    return Batch(launches, done, repeat=repeat)


@pytest.fixture
def checker() -> BatchChecker:
    """Request 0 has computed 6 of 6 tokens and has a seventh, in blocks 0 and 1 of 4 tokens; request 1 waits with 9."""
    made = BatchChecker(num_blocks=6, block_tokens=4)
    made.arrive(0, 6)
    made.arrive(1, 9)
    made.check(_batch(("allocate", 0, (0, 1)), items=((0, 0, 6),)))
    made.generate(0)
    return made


@pytest.mark.parametrize(
    ("batch", "said"),
    [
        (_batch(("allocate", 1, (1,))), "request 1 takes block 1, which others have; take one that is free"),
        (_batch(("allocate", 0, (1,))), "request 0 takes block 1, which it has already"),
        (_batch(("allocate", 1, (6,))), "request 1 uses block 6; there are 6, from 0 on"),
        (
            _batch(("allocate", 7, (2,))),
            "request 7 is not there; allowed are requests that arrived and have not left",
        ),
        (_batch(("free", 1, (2,))), "request 1 gives back block 2, which it has not; it has []"),
        (_batch(items=((0, 5, 7),)), "request 0 computes tokens from 5 on; the next one to be computed is 6"),
        (_batch(items=((0, 7, 8),)), "request 0 computes tokens from 7 on; the next one"),
        (_batch(items=((0, 6, 8),)), "request 0 computes tokens 6 to 8; its sequence has 7"),
        (_batch(items=((0, 6, 6),)), "request 0 computes tokens 6 to 6"),
        (_batch(items=((0, 6, 7), (0, 6, 7))), "request 0 is in the batch twice; it may be in it once"),
        (
            _batch(("allocate", 1, (2, 3)), items=((1, 0, 9),)),
            "computes tokens up to 9; its blocks have room for 8",
        ),
        (_batch(items=((1, 0, 4),)), "computes tokens up to 4; its blocks have room for 0"),
        (_batch(("share", 1, (1,))), "request 1 shares block 1, of which 2 tokens are computed"),
        (_batch(("share", 1, (3,))), "request 1 shares block 3, of which 0 tokens are computed"),
        (
            _batch(("allocate", 1, (2,)), ("share", 1, (0,))),
            "shares block 0 after 0 tokens, where another block begins",
        ),
        (_batch(items=((0, 6, 7),), repeat=0), "it is computed 0 times; allowed is 1 or more"),
        (Batch(preempted=(0,)), "request 0 is preempted and keeps blocks [0, 1]; it gives back all"),
        (
            _batch(("share", 1, (0,)), items=((1, 0, 4),)),
            "computes tokens from 0 on; the next one to be computed is 4",
        ),
        (_batch(items=((0, 6, 7),), repeat=3), "computes tokens up to 9; its blocks have room for 8"),
        (
            _batch(("allocate", 1, (2, 3, 4)), items=((1, 0, 8),), repeat=2),
            "repeats tokens 0 to 8; only the last one, 8, may be",
        ),
    ],
)
def test_a_wrong_batch_is_found(checker: BatchChecker, batch: Batch, said: str) -> None:
    with pytest.raises(ServeError, match=re.escape(said)):
        checker.check(batch)


def test_a_token_before_all_others_are_computed_is_found(checker: BatchChecker) -> None:
    checker.check(_batch(("allocate", 1, (2, 3)), items=((1, 0, 8),)))
    with pytest.raises(
        ServeError, match="request 1 has a new token, where 8 of the 9 before it are computed"
    ):
        checker.generate(1)


def test_a_block_of_other_tokens_is_not_shared() -> None:
    checker = BatchChecker(num_blocks=4, block_tokens=2)
    for number, tokens in enumerate([(1, 2, 3), (1, 2, 4), (9, 2, 3)]):
        checker.arrive(number, 3, tokens)
    checker.check(_batch(("allocate", 0, (0, 1)), items=((0, 0, 3),)))
    checker.check(_batch(("share", 1, (0,)), ("allocate", 1, (2,)), items=((1, 2, 3),)))
    with pytest.raises(ServeError, match="request 2 shares block 0, which is of other tokens"):
        checker.check(_batch(("share", 2, (0,))))


def test_right_batches_pass_and_all_is_given_back(checker: BatchChecker) -> None:
    checker.check(_batch(("share", 1, (0,)), ("allocate", 1, (2, 3)), items=((1, 4, 9), (0, 6, 7)), repeat=1))
    assert checker.num_held == 4
    checker.generate(0)
    checker.generate(1)
    checker.check(_batch(("free", 0, (1, 0)), items=((1, 9, 10),), repeat=3))
    checker.generate(1)
    checker.check(
        _batch(
            ("share", 0, (2,)), ("allocate", 0, (5,)), ("allocate", 1, (4,)), items=((0, 4, 8), (1, 12, 13))
        )
    )
    checker.leave(0)
    checker.leave(1)
    assert checker.num_held == 0


def _out(request: int, blocks: tuple[int, ...], to: tuple[int, ...]) -> tuple[Any, ...]:
    return ("swap out", request, blocks, "device", to, "host")


def _in(request: int, blocks: tuple[int, ...], to: tuple[int, ...]) -> tuple[Any, ...]:
    return ("swap in", request, blocks, "host", to, "device")


def _copy(request: int, block: int, to: int) -> tuple[Any, ...]:
    return ("copy", request, (block,), "device", (to,), "device")


@pytest.fixture
def samples() -> BatchChecker:
    """Requests 0 and 1 are samples of a prompt of 6 tokens in blocks 0 and 1; request 3 has 4 in block 2."""
    made = BatchChecker(num_blocks=8, block_tokens=4, num_host_blocks=4)
    made.arrive(0, 6)
    made.arrive(3, 4)
    made.check(_batch(("allocate", 0, (0, 1)), ("allocate", 3, (2,)), items=((0, 0, 6), (3, 0, 4))))
    made.fork(0, 1)
    for number in (0, 1, 3):
        made.generate(number)
    return made


@pytest.mark.parametrize(
    ("batch", "said"),
    [
        (_batch(items=((0, 6, 7),)), "request 0 writes in block 1, which others have, too; copy it before"),
        (_batch(_copy(0, 1, 2)), "request 0 copies to block 2 of the device, which others have"),
        (_batch(_copy(0, 2, 3)), "request 0 copies block 2, which it has not; it has [0, 1]"),
        (_batch(_copy(0, 1, 8)), "request 0 uses block 8; there are 8, from 0 on"),
        (_batch(_out(0, (0, 1), (0, 4))), "request 0 uses block 4 of the host; there are 4, from 0 on"),
        (_batch(_out(0, (0,), (0,))), "request 0 does 'swap out' with blocks [0]; it has [0, 1]"),
        (
            _batch(_out(0, (0, 1), (0,))),
            "request 0 does 'swap out' with (0, 1) of the device and (0,) of the host",
        ),
        (
            _batch(("swap out", 0, (0, 1))),
            "request 0 does 'swap out' with (0, 1) of the device and () of the",
        ),
        (_batch(("allocate", 0, (3,), "host")), "request 0 does 'allocate' with (3,) of the host"),
        (
            _batch(_out(0, (0, 1), (0, 1)), _out(3, (2,), (1,))),
            "request 3 copies to block 1 of the host, which others have",
        ),
        (_batch(_out(0, (0, 1), (0, 1)), items=((0, 6, 7),)), "tokens up to 7; its blocks have room for 0"),
        (_batch(_in(0, (0,), (3,))), "request 0 does 'swap in' with blocks [0]; it has []"),
        (
            _batch(_out(0, (0, 1), (0, 1)), _in(0, (0, 1), (3, 2))),
            "request 0 copies to block 2 of the device, which others have",
        ),
    ],
)
def test_a_wrong_copy_is_found(samples: BatchChecker, batch: Batch, said: str) -> None:
    with pytest.raises(ServeError, match=re.escape(said)):
        samples.check(batch)


def test_samples_are_swapped_out_and_in_together(samples: BatchChecker) -> None:
    assert samples.num_held == 3
    samples.check(_batch(_out(0, (0, 1), (3, 1)), _out(1, (0, 1), (3, 1))))
    assert samples.num_held == 3  # two of them on the host
    samples.check(
        _batch(_in(0, (3, 1), (5, 6)), _in(1, (3, 1), (5, 6)), _copy(1, 6, 0), items=((0, 6, 7), (1, 6, 7)))
    )
    samples.generate(0)
    samples.generate(1)
    samples.check(_batch(_out(1, (5, 0), (0, 1)), items=((0, 7, 8),)))
    for number in (0, 1, 3):
        samples.leave(number)
    assert samples.num_held == 0


def test_what_was_written_since_is_another_thing(samples: BatchChecker) -> None:
    """Sample 1 is swapped out; then sample 0 writes in what was their block: that of the host has not what it wrote."""
    samples.check(_batch(_out(1, (0, 1), (3, 1)), items=((0, 6, 7),)))
    samples.check(_batch(_in(1, (3, 1), (5, 6)), items=((1, 6, 7),)))
    with pytest.raises(ServeError, match="request 0 copies to block 6 of the device, which others have"):
        samples.check(_batch(_copy(0, 1, 6)))


def test_a_sample_of_a_prompt_that_is_not_computed_is_found() -> None:
    checker = BatchChecker(4, 4)
    checker.arrive(0, 6)
    with pytest.raises(
        ServeError, match="request 0 has another sample, where 0 of its 6 tokens are computed"
    ):
        checker.fork(0, 1)
