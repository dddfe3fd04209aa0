"""The check of batches: each way in which one can be wrong is found."""

from __future__ import annotations

import re

import pytest

from trainyard.serve.batch import Batch, CacheOp, Launch, WorkItem
from trainyard.serve.check import BatchChecker
from trainyard.serve.errors import ServeError


def _batch(
    *ops: tuple[str, int, tuple[int, ...]], items: tuple[tuple[int, int, int], ...] = (), repeat: int = 1
) -> Batch:
    done = tuple(CacheOp(*op) for op in ops)  # type: ignore[arg-type]
    launches = (Launch(tuple(WorkItem(*item) for item in items)),) if items else ()
    return Batch(launches, done, repeat=repeat)


@pytest.fixture
def checker() -> BatchChecker:
    """Request 0 has computed 6 of 6 tokens and has a seventh, in blocks 0 and 1 of 4 tokens; request 1 waits with 9."""
    made = BatchChecker(num_blocks=6, block_tokens=4)
    made.arrive(0, 6)
    made.arrive(1, 9)
    made.check(_batch(("take", 0, (0, 1)), items=((0, 0, 6),)))
    made.generate(0)
    return made


@pytest.mark.parametrize(
    ("batch", "said"),
    [
        (_batch(("take", 1, (1,))), "request 1 takes block 1, which others have; take one that is free"),
        (_batch(("take", 0, (1,))), "request 0 takes block 1, which it has already"),
        (_batch(("take", 1, (6,))), "request 1 uses block 6; there are 6, from 0 on"),
        (
            _batch(("take", 7, (2,))),
            "request 7 is not there; allowed are requests that arrived and have not left",
        ),
        (_batch(("give back", 1, (2,))), "request 1 gives back block 2, which it has not; it has []"),
        (_batch(items=((0, 5, 7),)), "request 0 computes tokens from 5 on; the next one to be computed is 6"),
        (_batch(items=((0, 7, 8),)), "request 0 computes tokens from 7 on; the next one"),
        (_batch(items=((0, 6, 8),)), "request 0 computes tokens 6 to 8; its sequence has 7"),
        (_batch(items=((0, 6, 6),)), "request 0 computes tokens 6 to 6"),
        (_batch(items=((0, 6, 7), (0, 6, 7))), "request 0 is in the batch twice; it may be in it once"),
        (
            _batch(("take", 1, (2, 3)), items=((1, 0, 9),)),
            "computes tokens up to 9; its blocks have room for 8",
        ),
        (_batch(items=((1, 0, 4),)), "computes tokens up to 4; its blocks have room for 0"),
        (_batch(("share", 1, (1,))), "request 1 shares block 1, of which 2 tokens are computed"),
        (_batch(("share", 1, (3,))), "request 1 shares block 3, of which 0 tokens are computed"),
        (
            _batch(("take", 1, (2,)), ("share", 1, (0,))),
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
            _batch(("take", 1, (2, 3, 4)), items=((1, 0, 8),), repeat=2),
            "repeats tokens 0 to 8; only the last one, 8, may be",
        ),
    ],
)
def test_a_wrong_batch_is_found(checker: BatchChecker, batch: Batch, said: str) -> None:
    with pytest.raises(ServeError, match=re.escape(said)):
        checker.check(batch)


def test_a_token_before_all_others_are_computed_is_found(checker: BatchChecker) -> None:
    checker.check(_batch(("take", 1, (2, 3)), items=((1, 0, 8),)))
    with pytest.raises(
        ServeError, match="request 1 has a new token, where 8 of the 9 before it are computed"
    ):
        checker.generate(1)


def test_a_block_of_other_tokens_is_not_shared() -> None:
    checker = BatchChecker(num_blocks=4, block_tokens=2)
    for number, tokens in enumerate([(1, 2, 3), (1, 2, 4), (9, 2, 3)]):
        checker.arrive(number, 3, tokens)
    checker.check(_batch(("take", 0, (0, 1)), items=((0, 0, 3),)))
    checker.check(_batch(("share", 1, (0,)), ("take", 1, (2,)), items=((1, 2, 3),)))
    with pytest.raises(ServeError, match="request 2 shares block 0, which is of other tokens"):
        checker.check(_batch(("share", 2, (0,))))


def test_right_batches_pass_and_all_is_given_back(checker: BatchChecker) -> None:
    checker.check(_batch(("share", 1, (0,)), ("take", 1, (2, 3)), items=((1, 4, 9), (0, 6, 7)), repeat=1))
    assert checker.num_held == 4
    checker.generate(0)
    checker.generate(1)
    checker.check(_batch(("give back", 0, (1, 0)), items=((1, 9, 10),), repeat=3))
    checker.generate(1)
    checker.check(
        _batch(("share", 0, (2,)), ("take", 0, (5,)), ("take", 1, (4,)), items=((0, 4, 8), (1, 12, 13)))
    )
    checker.leave(0)
    checker.leave(1)
    assert checker.num_held == 0
