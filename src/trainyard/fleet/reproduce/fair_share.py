"""Fair share: accounts and users that always have jobs waiting get device time in the ratio of their shares."""

from __future__ import annotations

from collections.abc import Iterator

from trainyard.fleet.policies.fair_share import fair_share
from trainyard.fleet.reproduce.queueing import ONE_DEVICE
from trainyard.fleet.simulate_fleet import simulate_fleet
from trainyard.fleet.workload.job import declared_job
from trainyard.published import PaperTable, Row

_ACCOUNT_SHARES, _USER_SHARES = {"a": 2.0, "b": 1.0}, {"a1": 3.0, "a2": 1.0, "b1": 1.0}
# Of a level fairshare that is 1 for everybody: shares among siblings, times those of the account.
_PARTS = {"a1": 2 / 3 * 3 / 4, "a2": 2 / 3 * 1 / 4, "b1": 1 / 3}
_UNTIL_S, _JOB_S = 36_000.0, 60.0


def _rows() -> Iterator[Row]:
    policy = fair_share(
        half_life_s=3600.0,
        account_shares=tuple(_ACCOUNT_SHARES.items()),
        user_shares=tuple(_USER_SHARES.items()),
    )
    jobs = [
        declared_job(f"{user} {number}", 0.0, 1, _JOB_S, account=user[0], user=user)
        for number in range(int(_UNTIL_S / _JOB_S))
        for user in _PARTS
    ]
    run = simulate_fleet(jobs, ONE_DEVICE, policy)
    early = [
        name.split()[0] for name, end_s in zip(run.names, run.finish_s, strict=True) if end_s <= _UNTIL_S
    ]
    for user, part in _PARTS.items():
        yield Row(user, part, early.count(user) / len(early))


TABLES = (
    PaperTable(
        "Cox and Morrison, Fair Tree, 2014: a level fairshare of 1 is usage in the ratio of shares, by hand",
        "part of the device time",
        "simulated: ten hours of one device; account a of 2 shares has users of 3 and 1, account b of 1 share has one; "
        "all always have jobs of a minute waiting, and usage is halved in an hour",
        _rows,
        tolerance=0.03,
    ),
)
