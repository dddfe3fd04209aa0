"""Prefix batching of Nexus: what models gain that share first layers; and sessions that stay between epochs."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from trainyard.serve.errors import ServeError
from trainyard.serve.policies.nexus.epochs import repack
from trainyard.serve.policies.nexus.packing import PackedDevice, Session, pack
from trainyard.serve.policies.nexus.prefix import SharedPrefix, Suffix
from trainyard.serve.policies.nexus.profile import BatchingProfile

BATCHES = tuple(range(1, 129))
OBJECTIVE_S = 0.1
PREFIX_BYTES, SUFFIX_BYTES = 90e6, 8e6


def linear(request_s: float, fixed_s: float) -> BatchingProfile:
    """As the paper models it: a batch takes a fixed time, and a time for each request."""
    return BatchingProfile(BATCHES, tuple(fixed_s + request_s * size for size in BATCHES))


PREFIX, SUFFIX = linear(0.0008, 0.006), linear(0.00001, 0.0002)
WHOLE = BatchingProfile(
    BATCHES, tuple(a + b for a, b in zip(PREFIX.latency_s, SUFFIX.latency_s, strict=True))
)


def together(num_models: int, rate_per_s: float, num_suffixes: int = 1) -> tuple[Session, ...]:
    suffix = BatchingProfile(BATCHES, tuple(num_suffixes * s for s in SUFFIX.latency_s))
    each = [
        Suffix(f"m{i}", suffix, OBJECTIVE_S, rate_per_s / num_models, SUFFIX_BYTES) for i in range(num_models)
    ]
    return (SharedPrefix("prefix", PREFIX, tuple(each), PREFIX_BYTES).session,)


def apart(num_models: int, rate_per_s: float) -> tuple[Session, ...]:
    num_bytes = PREFIX_BYTES + SUFFIX_BYTES
    return tuple(
        Session(f"m{i}", WHOLE, OBJECTIVE_S, rate_per_s / num_models, num_bytes) for i in range(num_models)
    )


def most_on_a_device(sessions: object, num_models: int) -> int:
    """The greatest rate of all models together that one GPU serves."""
    assert callable(sessions)
    return max(rate for rate in range(20, 1300, 20) if len(pack(sessions(num_models, rate))) == 1)


def test_throughput_and_memory_of_special_models() -> None:
    """The paper's figure of 2 to 10 models that differ in their last layer: batched over all, and one by one."""
    models = (2, 4, 6, 8, 10)
    gains = [most_on_a_device(together, n) / most_on_a_device(apart, n) for n in models]
    assert gains == sorted(gains)
    assert gains[0] > 1
    assert gains[-1] > 2
    # Longer suffixes gain less.
    short, long = (most_on_a_device(lambda n, r, k=k: together(n, r, k), 8) for k in (1, 8))
    assert short > long
    # Memory grows by suffixes only.
    (two,), (ten,) = together(2, 100), together(10, 100)
    assert ten.weight_bytes - two.weight_bytes == 8 * SUFFIX_BYTES
    (node,) = pack(apart(10, 100))
    assert node.weight_bytes == 10 * (PREFIX_BYTES + SUFFIX_BYTES)


def test_a_combined_batch_is_the_prefix_of_all_and_a_suffix_of_each() -> None:
    suffixes = (
        Suffix("often", BatchingProfile((1, 2, 3, 4), (0.1, 0.2, 0.3, 0.4)), 5.0, 3.0),
        Suffix("seldom", BatchingProfile((1, 2), (1.0, 2.0)), 4.0, 1.0),
    )
    shared = SharedPrefix("both", BatchingProfile((1, 4, 8), (10.0, 20.0, 30.0), 0.5), suffixes)
    assert shared.parts(4) == {"often": 3, "seldom": 1}
    assert shared.parts(8) == {"often": 6, "seldom": 2}
    # One request has one suffix, the slower at worst; a batch of 8 is more than was measured of 'often'.
    assert shared.combined_profile == BatchingProfile((1, 4, 8), (11.0, 21.3, 32.4), 0.5)
    assert (shared.session.rate_per_s, shared.session.objective_s) == (4.0, 4.0)


def test_a_prefix_needs_models_with_requests() -> None:
    suffix = Suffix("m", SUFFIX, 1.0, 1.0)
    with pytest.raises(ServeError, match="with different names"):
        SharedPrefix("p", PREFIX, (suffix, suffix))
    with pytest.raises(ServeError, match="allowed is above 0"):
        SharedPrefix("p", PREFIX, (replace(suffix, rate_per_s=0.0),))


def test_memory_limits_what_shares_a_device() -> None:
    sessions = apart(4, 40)
    assert len(pack(sessions)) == 1
    assert len(pack(sessions, 2 * (PREFIX_BYTES + SUFFIX_BYTES))) == 2
    with pytest.raises(ServeError, match="use larger devices"):
        pack(sessions, PREFIX_BYTES)


def placed(nodes: tuple[PackedDevice, ...]) -> list[set[str]]:
    return [{session.name for session in node.sessions} for node in nodes]


def rates(nodes: tuple[PackedDevice, ...]) -> Counter[str]:
    found: Counter[str] = Counter()
    for node in nodes:
        for session in node.sessions:
            found[session.name] += session.rate_per_s  # type: ignore[assignment]
    return found


def with_rates(*rates_per_s: float) -> tuple[Session, ...]:
    return tuple(Session(f"m{i}", WHOLE, OBJECTIVE_S, rate) for i, rate in enumerate(rates_per_s) if rate)


def test_sessions_stay_where_they_are_between_epochs() -> None:
    before = pack(with_rates(300, 250, 200, 20))
    assert len(before) == 2
    assert repack(before, with_rates(300, 250, 200, 20)) == before
    # Fewer requests: all stay, though another packing would move some.
    less = with_rates(300, 60, 200, 120)
    after = repack(before, less)
    assert placed(after) == placed(before)
    assert placed(pack(less)) != placed(before)
    # A device whose only session ends is given up.
    assert placed(repack(before, with_rates(300, 250, 200, 0))) == [{"m0", "m1", "m2"}]
    for asked in (less, with_rates(900, 250, 200, 20), with_rates(0, 0, 200, 400)):
        found = repack(before, asked)
        assert rates(found) == pytest.approx({s.name: s.rate_per_s for s in asked})
        assert all(node.occupancy <= 1 + 1e-9 for node in found)


def test_a_shorter_objective_makes_a_device_give_up_what_no_longer_fits() -> None:
    before = pack(with_rates(400, 400))
    assert len(before) == 1
    hurried = tuple(replace(session, objective_s=0.03) for session in with_rates(400, 400))
    after = repack(before, hurried)
    assert len(after) == 2
    assert placed(after[:1])[0] < placed(before)[0]
    with pytest.raises(ServeError, match="no batch meets its objective of"):
        repack(before, tuple(replace(session, objective_s=0.01) for session in before[0].sessions))
