"""When a server renews its lease, when it looks for dead ones, and how much it takes over.

Rules alone, without clock, database or chance: times are seconds, `ttl` is that of a lease, and a `draw` is
a number of `random.random()`, taken for each call.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil
from typing import Final

RENEWALS: Final = 3
"""Renewals within one TTL. So two may fail, one after the other, before the lease ends."""

ATTEMPTS: Final = 15
"""Attempts within one TTL while renewals fail: ten fit between the first that fails and the end of the
lease. More would hold a database down that is just coming back, since each opens a connection."""

JITTER: Final = 0.2
"""The part of a period by which it is shortened at random. So servers that came together, as after an outage
of the database, are spread over the period again within some 50 renewals. No period is lengthened: a third
of the TTL is a promise."""

AFTER_EXPIRY: Final = 0.1
"""Seconds after the end of a lease before which its server is not declared dead. The warden of that one uses
them to kill, and the clocks of database and warden may differ in speed (0.05 % of 15 s is 8 ms)."""

SPREAD_PER_SERVER: Final = 0.001
"""Seconds that each server adds to the time over which all answer one occasion, such as a death: so about
one in a millisecond comes to the database. Few servers lose nothing by it, and of many one comes early."""

MOST_SPREAD: Final = 1.0
"""The most seconds of it: half of the two that a takeover may take after the end of a lease."""

MOST_CLAIMED: Final = 8
"""The most conversations in one claim, as each starts an agent. A server that could take more claims again,
and others come between."""


def next_renewal(ttl: float, draw: float) -> float:
    """Seconds from sending a renewal that succeeded to sending the next one."""
    return _shortened(ttl / RENEWALS, draw)


def next_attempt(ttl: float, draw: float) -> float:
    """Seconds from a renewal that failed to the next attempt."""
    return _shortened(ttl / ATTEMPTS, draw)


def next_scan(to_expiries: Iterable[float], servers: int, ttl: float, draw: float) -> float:
    """Seconds until the next look for dead servers.

    `to_expiries` are the seconds to the ends of the leases of the other servers, as seen now; `servers` is
    how many there are. Those that ended more than `AFTER_EXPIRY` ago do not count: this server was not
    allowed to declare them dead, or another one has been faster.
    """
    soonest = min((each for each in to_expiries if each > -AFTER_EXPIRY), default=ttl)
    return min(_shortened(ttl / RENEWALS, draw), soonest + AFTER_EXPIRY + next_claim(servers, draw))


def next_claim(servers: int, draw: float) -> float:
    """Seconds to the next claim, from the news that conversations wait for an owner, or a claim that left
    some."""
    return draw * min(servers * SPREAD_PER_SERVER, MOST_SPREAD)


def suspected_below(ttl: float) -> float:
    """The seconds to an expiry below which the server missed a renewal. A scan needs to see no others."""
    return ttl - ttl / RENEWALS


def may_declare_dead(own_since_age: float, ttl: float) -> bool:
    """Whether a server may declare others dead, whose own lease has been unbroken for `own_since_age`.

    A whole TTL: after an outage of the database all others had the time to renew.
    """
    return own_since_age >= ttl


def share_to_claim(own_free: int, all_free: int, waiting: int) -> int:
    """How many of the `waiting` conversations a server claims now, by its part of all free memory (bytes).

    At least one, unless only others have free memory: so the last ones are claimed too, and where memory is
    short everywhere, conversations have an owner that says so. It is rounded up, so that one round of all
    servers takes all, or the most that they may.
    """
    if waiting <= 0 or (own_free <= 0 < all_free):
        return 0
    part = min(1.0, own_free / all_free) if all_free > 0 else 0.0
    return min(waiting, MOST_CLAIMED, max(1, ceil(waiting * part)))


def _shortened(period: float, draw: float) -> float:
    return period * (1 - JITTER * draw)
