"""The log of commands: pages, filters, bounds, watchers."""

from __future__ import annotations

import json

import pytest
import trio

from supervisor.workspace.commands import log as bash_log
from supervisor.workspace.commands.log import BashCommand, BashLog, BashOutput, Wanted


def command(log, scope=None):
    id_, timestamp = log.stamp()
    log.add(scope, BashCommand(command="true", cwd=None, timeout=300, id=id_, timestamp=timestamp))
    return id_


def output(log, command_id, order=0, text="x", scope=None):
    id_, timestamp = log.stamp()
    log.add(
        scope,
        BashOutput(
            id=id_,
            timestamp=timestamp,
            command_id=command_id,
            order=order,
            exit_code=None,
            stdout=text,
            stderr=None,
        ),
    )
    return id_


def ids(log, scope=None, **wanted):
    items, after = log.search(scope, Wanted(**wanted))
    return [item.id for item in items], after


def everything(log, **wanted):
    found, page = [], None
    while True:
        more, page = ids(log, page=page, **wanted)
        found += more
        if page is None:
            return found


@pytest.fixture
def log():
    return BashLog(10_000_000, 1000)


def test_stamps_are_unique_and_in_order(log):
    times = [log.stamp()[1] for _ in range(1000)]
    assert times == sorted(set(times))
    log._last = "2999-01-01T00:00:00.999999Z"
    assert log.stamp()[1] == "2999-01-01T00:00:01.000000Z"


@pytest.mark.parametrize("newest_first", [False, True])
def test_pages_have_each_event_once(log, newest_first):
    made = [command(log) for _ in range(25)]
    expected = made[::-1] if newest_first else made
    assert everything(log, limit=7, newest_first=newest_first) == expected
    assert everything(log, limit=25, newest_first=newest_first) == expected


def test_a_page_whose_first_event_is_gone_begins_behind_it():
    log = BashLog(10_000_000, 10)
    made = [command(log) for _ in range(10)]
    _, page = ids(log, limit=3)
    made += [command(log) for _ in range(5)]
    assert everything(log, limit=3)[0] == made[5]
    assert ids(log, page=page, limit=3)[0] == made[5:8]


def test_a_page_that_nobody_knows_is_the_first(log):
    made = [command(log) for _ in range(3)]
    assert ids(log, page="rubbish")[0] == made


def test_filters(log):
    one, two = command(log), command(log)
    outs = [output(log, one, order) for order in range(4)]
    other = output(log, two)
    assert ids(log, kind="BashCommand")[0] == [one, two]
    assert ids(log, command_id=one)[0] == outs
    assert ids(log, command_id=one, order_above=1)[0] == outs[2:]
    assert ids(log, command_id=one, newest_first=True, limit=1)[0] == outs[-1:]
    # A command has no order: it is not left out.
    assert ids(log, order_above=0)[0] == [one, two, *outs[1:]]
    since = log.get(None, outs[2]).timestamp
    assert ids(log, since=since)[0] == [outs[2], outs[3], other]
    assert ids(log, before=since)[0] == [one, two, *outs[:2]]
    assert ids(log, command_id="0" * 32)[0] == []


def test_a_page_is_bounded_in_bytes(log, monkeypatch):
    monkeypatch.setattr(bash_log, "PAGE_BYTES", 1000)
    one = command(log)
    outs = [output(log, one, order, "x" * 700) for order in range(3)]
    assert ids(log, command_id=one)[0] == outs[:1]
    assert everything(log, command_id=one) == outs


def test_scopes_do_not_see_each_other(log):
    mine, theirs = command(log, "a"), command(log)
    outs = output(log, mine, scope="a")
    assert ids(log, "a")[0] == [mine, outs]
    assert ids(log)[0] == [theirs]
    assert log.get(None, mine) is None
    assert ids(log, command_id=mine)[0] == []
    assert (log.clear(None), log.clear(None), log.clear("a")) == (1, 0, 2)
    assert (len(log), log.bytes) == (0, 0)


def test_an_id_is_found_in_both_forms(log):
    one = command(log)
    dashed = f"{one[:8]}-{one[8:12]}-{one[12:16]}-{one[16:20]}-{one[20:]}"
    assert log.get(None, dashed.upper()).id == one


def test_bounds_drop_the_oldest_and_keep_the_newest():
    log = BashLog(1000, 1000)
    one = command(log)
    last = [output(log, one, order, "x" * 400) for order in range(5)][-1]
    assert log.bytes <= 1000
    assert log.get(None, one) is None
    assert log.get(None, last) is not None
    big = output(log, one, 5, "x" * 5000)
    assert ids(log)[0] == [big]


async def test_a_watcher_sees_what_was_and_what_comes_once(log):
    one = command(log)
    with log.watching(None, past=True) as watcher:
        outs = [output(log, one, order) for order in range(3)]
        command(log, "elsewhere")
        seen = [json.loads(await watcher.next())["id"] for _ in range(4)]
        assert seen == [one, *outs]
        with trio.move_on_after(0.05) as scope:
            await watcher.next()
        assert scope.cancelled_caught
        late = output(log, one, 3)
        assert json.loads(await watcher.next())["id"] == late


@pytest.mark.guarantee(name="clients-commands-are-bounded-and-ended")
async def test_a_watcher_that_takes_nothing_is_told_so_and_holds_a_bounded_amount(log, monkeypatch):
    monkeypatch.setattr(bash_log, "PENDING_BYTES", 2000)
    one = command(log)
    with log.watching(None, past=False) as watcher:
        for order in range(50):
            output(log, one, order, "x" * 500)
        assert watcher.overrun.is_set()
        assert watcher._bytes <= 2000
