"""A text that comes in pieces: what of it is in memory, and what its event has of it."""

from __future__ import annotations

from supervisor.conversations.recording.bounds.attachments import BLOB_BYTES, Originals
from supervisor.conversations.recording.bounds.truncation import Gathered


def test_what_is_held_is_counted_whole() -> None:
    text = Gathered("b", 100, Originals())
    text.add("x" * 60)
    assert text.held == 60
    text.fold(40)
    text.add("y" * 7)
    assert text.so_far() == "x" * 40 + "y" * 7
    assert text.held == 47


def test_the_event_says_how_much_is_left_out() -> None:
    text = Gathered("b", 100, Originals())
    attachments = [*text.add("x" * (2 * BLOB_BYTES)), *text.add("y" * 30)]
    closed = text.close()
    assert f"{2 * BLOB_BYTES + 30 - 100} bytes" in closed.value.replace(",", "")
    assert closed.value.startswith("x" * 50)
    assert closed.value.endswith("x" * 20 + "y" * 30)
    whole = b"".join(each.body for each in (*attachments, *closed.attachments))
    assert len(whole) == 2 * BLOB_BYTES + 30


def test_what_is_set_aside_ends_between_characters_and_is_masked_already() -> None:
    text = Gathered("b", 100, Originals())
    attachments = text.add("x" + "é" * BLOB_BYTES)
    attachments += text.close().attachments
    assert "".join(each.body.decode() for each in attachments) == "x" + "é" * BLOB_BYTES
    assert all(each.masked for each in attachments)
    assert len(attachments) == 3


def test_a_character_that_stands_at_the_border_goes_to_the_next_blob() -> None:
    text = Gathered("b", 100, Originals())
    attachments = text.add("x" * (BLOB_BYTES - 1) + "é")
    attachments += text.close().attachments
    assert [len(each.body) for each in attachments] == [BLOB_BYTES - 1, 2]
