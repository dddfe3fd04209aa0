"""Fair share: waiting jobs in the order of Slurm's Fair Tree, by the device time of accounts and users.

The tree has a root, accounts under the root, and under each account its users. Let S be the shares of an account or a
user over those of all its siblings, and U its usage over theirs. Its level fairshare is

    LF = S / U,    infinite without usage

Siblings come in the order of their LF, the largest first. All users of an account come before those of an account with a
smaller LF, whatever their own LF. Accounts with equal LF are merged: their users are put in one order. Jobs of equal
users go by arrival. Usage is devices times time, halved in every half-life (``PriorityDecayHalfLife``).

Running jobs keep their devices. Slurm computes priorities every five minutes (``PriorityCalcPeriod``), this policy at
every decision. Since the order changes while jobs run, it also decides five minutes after the last decision.

References
----------
R. Cox, L. Morrison, "Fair Tree Fairshare Algorithm", Brigham Young University, 2014; in Slurm since version 14.11
(``fair_tree.html`` of Slurm's documentation), where usage and its decay are those of "Multifactor Priority Plugin".

Fidelity: simplified.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from trainyard.fleet.allocation import Allocation, Queue, Reasons
from trainyard.fleet.errors import FleetError
from trainyard.fleet.pairs import check_weights, weights_of
from trainyard.fleet.periods import check_period
from trainyard.fleet.snapshot import Floats, Ints, Need, Snapshot
from trainyard.fleet.traits import ORDERED, Traits
from trainyard.hardware.cluster import Cluster

_INF = float("inf")
_WEEK_S = 7 * 86400.0
Shares = tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class FairShare:
    """The policy.

    Attributes
    ----------
    by : "user" for the tree of accounts and their users, "account" for accounts alone.
    half_life_s : time in which usage is halved; infinite for usage that counts for ever.
    account_shares, user_shares : names with their shares; all others have one share.
    backfill : whether later jobs may start before a job that does not fit.
    period_s : time after which the order is looked at again while jobs wait.
    """

    by: Literal["user", "account"] = "user"
    half_life_s: float = _WEEK_S
    account_shares: Shares = ()
    user_shares: Shares = ()
    backfill: bool = False
    period_s: float = 300.0
    needs: frozenset[Need] = field(default=frozenset(), init=False)
    preempts: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        check_period("a half-life of fair_share", self.half_life_s, endless=True)
        check_period("a period of fair_share", self.period_s, endless=True)
        check_weights("account_shares of fair_share", self.account_shares, of="account")
        check_weights("user_shares of fair_share", self.user_shares, of="user")
        if self.by == "account" and self.user_shares:
            raise FleetError(
                "user_shares of fair_share are for by='user'; with by='account', users of an account are not told apart"
            )

    @property
    def traits(self) -> Traits:
        """It only orders jobs, by usage."""
        holds_up: Literal["nobody", "same nodes"] = "nobody" if self.backfill else "same nodes"
        accounts, users = (tuple(dict(shares)) for shares in (self.account_shares, self.user_shares))
        named = *(("account", name) for name in accounts), *(("user", name) for name in users)
        return Traits(holds_up=holds_up, usage_half_life_s=self.half_life_s, named=named, supports=ORDERED)

    def start(self, cluster: Cluster) -> None:
        """Return the state, which is always empty: the simulator or the daemon counts usage."""

    def decide(self, snapshot: Snapshot, state: None) -> tuple[Allocation, None]:
        """Put the waiting jobs in order."""
        levels = self.level_fairshares(snapshot)
        keys = [-level[snapshot.owner] for level in levels]
        order = np.lexsort((np.arange(snapshot.num_jobs), *reversed(keys)))
        # With backfilling, all jobs that fit have started: another order changes nothing.
        again_s = _INF if self.backfill else snapshot.now_s + self.period_s
        reasons = Reasons(np.arange(snapshot.num_jobs), lambda number: self._why(snapshot, levels, number))
        return Allocation(Queue(order, backfill=self.backfill), again_s, stands=True, reasons=reasons), state

    def level_fairshares(self, snapshot: Snapshot) -> list[Floats]:
        """Return the level fairshare of every owner's account, and of its user within the account if users count."""
        used_s = snapshot.usage_device_s
        names, account = snapshot.owner_groups("account")
        shares = weights_of(names, self.account_shares)
        account_used_s = np.bincount(account, used_s, len(names)).astype(np.float64)
        of_account = _level(shares, account_used_s, np.zeros(len(names), np.int64))[account]
        if self.by == "account":
            return [of_account]
        names, user = snapshot.owner_groups("user")
        return [of_account, _level(weights_of(names, self.user_shares)[user], used_s, account)]

    def _why(self, snapshot: Snapshot, levels: list[Floats], number: int) -> str:
        owner = int(snapshot.owner[number])
        of = [
            f"{kind} {name!r}" for kind, name in zip(("account", "user"), snapshot.owners[owner], strict=True)
        ]
        said = [
            f"{who} has a level fairshare of {level[owner]:.3g}"
            for who, level in zip(of, levels, strict=False)
        ]
        return f"{' and '.join(said)}; larger ones go first"


def _level(shares: Floats, used_s: Floats, parent: Ints) -> Floats:
    """Return the level fairshares of nodes of the tree: part of their siblings' shares over part of their usage."""
    num_parents = int(parent.max(initial=-1)) + 1
    all_shares, all_used_s = (np.bincount(parent, column, num_parents)[parent] for column in (shares, used_s))
    with np.errstate(divide="ignore", invalid="ignore"):
        level: Floats = (shares / all_shares) / (used_s / all_used_s)
    level[used_s <= 0] = _INF
    return level


def fair_share(
    *,
    by: Literal["user", "account"] = "user",
    half_life_s: float | None = _WEEK_S,
    account_shares: Shares = (),
    user_shares: Shares = (),
    backfill: bool = False,
    period_s: float = 300.0,
) -> FairShare:
    """Waiting jobs by the usage of their accounts and users, as in Slurm's Fair Tree.

    Parameters
    ----------
    by : "user" for the tree of accounts and their users, "account" for accounts alone.
    half_life_s : seconds in which usage is halved (``PriorityDecayHalfLife``); None for usage that always counts in full.
    account_shares, user_shares : pairs of a name and its shares; all others have one share.
    backfill : whether later jobs may start before a job that does not fit. If not, those that could use some of the same
        nodes wait behind it.
    period_s : seconds after which the order is computed again while jobs wait (``PriorityCalcPeriod``).

    Returns
    -------
    The policy.

    Raises
    ------
    FleetError
        If a time is too short or too long, or shares are no pairs of a name and a number from 1e-9 to 1e9.

    Examples
    --------
    >>> fair_share(account_shares=(("vision", 3), ("speech", 1))).by
    'user'
    """
    half_life_s = _INF if half_life_s is None else half_life_s
    return FairShare(by, half_life_s, account_shares, user_shares, backfill, period_s)
