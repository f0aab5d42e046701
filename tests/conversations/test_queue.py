"""The work of a conversation: what waits, what is under way, and who waits for its end."""

from __future__ import annotations

import trio
from trio.testing import wait_all_tasks_blocked

from supervisor.conversations.state.queue import Queued, TurnQueue
from supervisor.events import ImageContent, Message, TextContent


def queued(seq: int, text: str = "Hello") -> Queued:
    return Queued(seq, f"event-{seq}", Message(role="user", content=(TextContent(text=text),)))


def test_the_size_of_a_message_is_that_of_its_texts_and_pictures() -> None:
    content = (
        TextContent(text="x" * 30),
        ImageContent(image_urls=("data:aa", "data:bbbb")),
        TextContent(text="yy"),
    )
    assert Queued(0, "event", Message(role="user", content=content)).size == 30 + 7 + 9 + 2


def test_what_waits_is_taken_up_while_it_is_wanted() -> None:
    queue = TurnQueue()
    assert (queue.more, queue.busy) == (False, False)
    queue.wanted = True
    assert not queue.more
    queue.waiting.append(queued(1))
    assert (queue.more, queue.busy) == (True, True)
    queue.wanted = False
    assert (queue.more, queue.busy) == (False, False)


def test_each_message_handed_over_is_a_turn_of_its_own() -> None:
    first, second = queued(7), queued(9)
    queue = TurnQueue(waiting=[first, second])
    queue.wanted = True
    queue.begin()
    turn = queue.hand_over(first)
    assert turn is queue.turn
    assert (turn.token, turn.prompt_seq) == (1, 7)
    assert list(queue.waiting) == [second]
    queue.end()
    queue.begin()
    turn = queue.hand_over(second)
    assert (turn.token, turn.prompt_seq) == (2, 9)
    assert queue.turns == 2


def test_each_message_has_signals_of_its_own() -> None:
    queue = TurnQueue()
    queue.begin()
    queue.interrupt()
    called_off, settled = queue.called_off, queue.settled
    called_off.set()
    assert queue.active is True
    assert not settled.is_set()
    queue.end()
    assert queue.active is False
    assert settled.is_set()
    queue.begin()
    assert queue.interrupted is False
    assert not queue.called_off.is_set()
    assert not queue.settled.is_set()


def test_looking_again_is_told() -> None:
    queue = TurnQueue()
    assert not queue.changed.is_set()
    queue.look_again()
    assert queue.changed.is_set()


async def test_idle_is_when_nothing_is_under_way_or_about_to_be() -> None:
    item = queued(1)
    queue = TurnQueue(waiting=[item, queued(2)])
    queue.wanted = True
    idle = trio.Event()

    async def wait() -> None:
        await queue.idle()
        idle.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        queue.begin()
        queue.hand_over(item)
        queue.end()
        await wait_all_tasks_blocked()
        assert not idle.is_set()  # the second one is about to be
        queue.begin()
        queue.wanted = False
        await wait_all_tasks_blocked()
        assert not idle.is_set()
        queue.end()
        await wait_all_tasks_blocked()
        assert idle.is_set()
