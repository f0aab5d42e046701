"""Cursors over a real file: whatever the schedule, each sees after+1, after+2, ... once and in order."""

from __future__ import annotations

import gc
import random
import weakref

import pytest
import trio

from supervisor.journal import feed, queries
from supervisor.journal.errors import LogDeleted
from supervisor.journal.rows import Frame, Stored, Transient
from tests.support.thorough import everyday


def shown(items):
    return [item.seq if isinstance(item, Stored) else item.frame.session for item in items]


async def take(cursor, count, max_items=256):
    items = []
    while len(items) < count:
        items += await cursor.next(max_items)
    return items


@pytest.mark.guarantee(name="nothing-is-lost")
async def test_durable_before_visible(log, make_row, monkeypatch):
    cursor = log.subscribe(-1)
    monkeypatch.setattr(log, "settle", lambda *_: None)
    log.append([make_row()])
    log.publish(Frame(session=b"after it"))
    with trio.move_on_after(0.05) as scope:
        await cursor.next()
    assert scope.cancelled_caught
    assert log.high_water == -1
    monkeypatch.undo()
    log.append([make_row()])
    assert shown(await take(cursor, 3)) == [0, b"after it", 1]
    assert log.high_water == 1


async def test_a_transient_with_nothing_before_it_shows_at_once(log):
    cursor = log.subscribe(None)
    log.publish(Frame(legacy=b"l", session=b"s"))
    assert await cursor.next() == [Transient(Frame(legacy=b"l", session=b"s"))]


async def test_where_a_cursor_starts(log, make_row):
    log.append([make_row() for _ in range(5)])
    await log.flushed()
    live, some, all_, beyond = (log.subscribe(after) for after in (None, 2, -1, 99))
    assert (live.after_seq, some.after_seq, all_.after_seq) == (4, 2, -1)
    assert shown(await all_.next()) == [0, 1, 2, 3, 4]
    assert shown(await some.next()) == [3, 4]
    log.append([make_row()])
    for cursor in (live, some, all_, beyond):
        assert shown(await cursor.next()) == [5]
        assert cursor.after_seq == 5


async def test_a_live_cursor_sees_what_is_not_yet_durable(log, make_row):
    log.append([make_row()])
    assert shown(await log.subscribe(None).next()) == [0]


async def test_items_come_in_portions_and_bodies_are_the_bytes_given(log, make_row):
    bodies = [b'{"n":%d}' % n for n in range(10)]
    log.append([make_row(body) for body in bodies])
    cursor = log.subscribe(-1)
    items = await take(cursor, 10, max_items=3)
    assert [item.body for item in items] == bodies
    with pytest.raises(trio.WouldBlock):
        await no_wait(cursor)


async def no_wait(cursor):
    with trio.move_on_after(0.02):
        await cursor.next()
        return
    raise trio.WouldBlock


async def test_a_cancelled_wait_takes_nothing(log, make_row):
    log.append([make_row() for _ in range(3)])
    await log.flushed()
    cursor = log.subscribe(-1)
    for _ in range(20):
        with trio.CancelScope() as scope:
            scope.cancel()
            await cursor.next()
    # Also in the middle of a read of the file.
    async with trio.open_nursery() as nursery:
        nursery.start_soon(cursor.next)
        await trio.lowlevel.checkpoint()
        await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    assert shown(await take(cursor, 3)) == [0, 1, 2]


async def test_deleting_ends_the_cursors(journal, log, make_row):
    log.append([make_row()])
    waiting, behind = log.subscribe(0), log.subscribe(-1)
    errors = []

    async def wait(cursor):
        try:
            while True:
                await cursor.next()
        except LogDeleted as error:
            errors.append(error)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait, waiting)
        await trio.testing.wait_all_tasks_blocked()
        assert await journal.delete("c-1")
        nursery.start_soon(wait, behind)
    assert len(errors) == 2
    for use in (lambda: log.append([make_row()]), lambda: log.publish(Frame()), lambda: log.subscribe(None)):
        with pytest.raises(LogDeleted):
            use()
    with pytest.raises(LogDeleted):
        await log.read(-1, 1)


async def test_the_tail_goes_with_the_last_cursor(log, make_row):
    first, second = log.subscribe(-1), log.subscribe(None)
    log.append([make_row(b"x" * 1000) for _ in range(10)])
    await log.flushed()
    tail = weakref.ref(first._tail)
    assert tail() is second._tail
    del first
    assert tail() is not None
    del second
    gc.collect()
    assert tail() is None
    # And the log goes on as if there had never been one.
    log.append([make_row()])
    assert shown(await log.subscribe(9).next()) == [10]


async def test_a_tail_that_everybody_has_read_weighs_little(log, make_row):
    cursor = log.subscribe(None)
    log.append([make_row(b"x" * 1000) for _ in range(1000)])
    await take(cursor, 1000)
    assert cursor._tail.size <= feed.TAIL_SETTLED_BYTES


async def test_a_page_from_the_file_is_bounded_in_bytes(log, make_row, monkeypatch):
    monkeypatch.setattr(queries, "CURSOR_MAX_BYTES", 2500)
    log.append([make_row(b"x" * size) for size in (1000, 1000, 1000, 9000, 10, 10)])
    await log.flushed()
    cursor = log.subscribe(-1)
    portions = [shown(await cursor.next()) for _ in range(4)]
    assert portions == [[0, 1], [2], [3], [4, 5]]


@pytest.mark.guarantee(name="nothing-is-lost")
@pytest.mark.parametrize("seed", range(everyday(4, 8)))
async def test_any_schedule(journal, make_log, make_row, monkeypatch, seed):
    """Many cursors, small tail, small pages; producers and readers of every pace."""
    chance = random.Random(seed)
    monkeypatch.setattr(feed, "TAIL_MAX_BYTES", chance.choice((1000, 5000, 50_000)))
    monkeypatch.setattr(feed, "TAIL_TRIMMED_BYTES", feed.TAIL_MAX_BYTES * 3 // 4)
    monkeypatch.setattr(feed, "TAIL_SETTLED_BYTES", chance.choice((0, 3000)))
    monkeypatch.setattr(queries, "CURSOR_MAX_BYTES", chance.choice((1, 500, 10_000)))
    log = await make_log(journal, "busy")
    total = 250
    story = []
    following = []
    all_follow = trio.Event()
    checked = []

    async def pause():
        for _ in range(chance.choice((0, 0, 0, 1, 3, 20))):
            await trio.lowlevel.checkpoint()
        if chance.random() < 0.05:
            await trio.sleep(0.002)

    async def produce():
        while log.last_seq + 1 < total:
            rows = [make_row(b"x" * chance.randrange(400)) for _ in range(chance.randrange(1, 8))]
            last = log.append(rows[: total - 1 - log.last_seq])
            story.extend(range(last + 1 - len(rows[:total]), last + 1))
            while chance.random() < 0.4:
                name = b"t%d" % len(story)
                story.append(name)
                log.publish(Frame(session=name))
            await pause()
        # The last one is for everybody: a cursor that starts after it would rightly wait for ever.
        await all_follow.wait()
        log.append([make_row()])

    async def follow(after):
        first = log.high_water if after is None else after
        cursor = log.subscribe(after)
        following.append(after)
        if len(following) == 26:
            all_follow.set()
        seen = []
        while not seen or seen[-1] != total:
            # Whatever a cancelled call would have returned, the next one does.
            with trio.move_on_after(0 if chance.random() < 0.2 else 60):
                seen += shown(await cursor.next(chance.choice((1, 3, 256))))
                assert cursor.after_seq <= log.high_water
            await pause()
        rows = [item for item in seen if isinstance(item, int)]
        assert rows == list(range(first + 1, total + 1))
        journal_place = iter(dict.fromkeys([*story, total]))
        assert all(item in journal_place for item in seen), "out of order, or twice"
        checked.append(after)

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(follow, -1)
            nursery.start_soon(produce)
            for _ in range(25):
                await pause()
                after = chance.choice((None, -1, chance.randrange(-1, log.last_seq + 1)))
                nursery.start_soon(follow, after)
    assert len(checked) == 26
    assert await log.count() == total + 1
