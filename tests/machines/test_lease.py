"""The rules of leases, as tables."""

from __future__ import annotations

import random

import pytest

from supervisor.machines import lease

TTL = 15.0
GB = 1 << 30


def test_two_renewals_may_fail_before_a_lease_ends():
    assert lease.next_renewal(TTL, 0.0) == pytest.approx(5.0)
    assert 4.0 < lease.next_renewal(TTL, 0.999) < 4.01
    latest_failure = lease.next_renewal(TTL, 0.0) + lease.next_renewal(TTL, 0.0)
    assert latest_failure + lease.next_attempt(TTL, 0.0) < TTL


def test_ten_attempts_fit_between_a_failed_renewal_and_the_end():
    left = TTL - lease.next_renewal(TTL, 0.0)
    assert left / lease.next_attempt(TTL, 0.0) == pytest.approx(10)
    assert lease.next_attempt(TTL, 0.999) > 0.79


@pytest.mark.parametrize(
    ("to_expiries", "servers", "draw", "seconds"),
    [
        ([], 1, 0.0, 5.0),
        ([14.0, 11.0], 3, 0.0, 5.0),
        ([14.0, 11.0], 3, 0.5, 4.5),
        ([14.0, 2.0], 3, 0.0, 2.1),
        ([14.0, 2.0], 3, 0.5, 2.1015),
        ([2.0], 1000, 0.5, 2.6),
        ([2.0], 9000, 0.5, 2.6),
        ([-0.2, -3.0], 1000, 0.5, 4.5),
        ([-0.04, -3.0], 1000, 0.5, 0.56),
        ([-0.1, 0.2], 1000, 0.0, 0.3),
    ],
)
def test_a_scan_comes_each_third_and_after_the_next_expiry(to_expiries, servers, draw, seconds):
    assert lease.next_scan(to_expiries, servers, TTL, draw) == pytest.approx(seconds)


def test_a_scan_is_never_before_the_expiry_that_it_is_for():
    drawn = random.Random(3)
    for _ in range(1000):
        left = drawn.uniform(0.001, TTL)
        wait = lease.next_scan([left], drawn.randrange(1, 5000), TTL, drawn.random())
        assert wait <= TTL / 3 + 1e-9
        assert wait >= left + lease.AFTER_EXPIRY or wait >= TTL / 3 * (1 - lease.JITTER)


def test_servers_that_started_together_do_not_stay_in_step():
    drawn = random.Random(4)
    times = [sum(lease.next_renewal(TTL, drawn.random()) for _ in range(100)) for _ in range(1000)]
    in_step = [sum(1 for each in times if start <= each % 4.5 < start + 0.1) for start in (0, 1, 2, 3, 4)]
    assert max(in_step) < 100


def test_many_servers_answer_one_occasion_over_a_second():
    drawn = random.Random(5)
    times = sorted(lease.next_claim(1000, drawn.random()) for _ in range(1000))
    assert times[0] < 0.02
    assert 0.9 < times[-1] < 1.0
    assert max(lease.next_claim(3, draw) for draw in (0.0, 0.5, 0.999)) < 0.004


def test_only_those_that_missed_a_renewal_are_suspected():
    assert lease.suspected_below(TTL) == pytest.approx(TTL - lease.next_renewal(TTL, 0.0))


@pytest.mark.parametrize(("age", "may"), [(0.0, False), (14.9, False), (15.0, True), (3600.0, True)])
def test_a_server_declares_others_dead_after_a_whole_ttl(age, may):
    assert lease.may_declare_dead(age, TTL) is may


@pytest.mark.parametrize(
    ("own", "everything", "waiting", "share"),
    [
        (GB, 4 * GB, 0, 0),
        (GB, 4 * GB, 8, 2),
        (GB, 4 * GB, 9, 3),
        (GB, 1000 * GB, 1, 1),
        (GB, 1000 * GB, 2500, 3),
        (GB, GB, 1000, lease.MOST_CLAIMED),
        (GB, GB, 3, 3),
        (0, 4 * GB, 8, 0),
        (0, 0, 8, 1),
        (2 * GB, GB, 4, 4),
    ],
)
def test_the_share_of_a_server(own, everything, waiting, share):
    assert lease.share_to_claim(own, everything, waiting) == share


@pytest.mark.parametrize("waiting", [1, 7, 2500])
def test_one_round_of_all_servers_takes_all(waiting):
    drawn = random.Random(6)
    free = [drawn.randrange(GB, 64 * GB) for _ in range(900)]
    assert sum(lease.share_to_claim(own, sum(free), waiting) for own in free) >= waiting
