"""Originals of what an event has no room for: how many bytes of them are kept, and how they are named."""

from __future__ import annotations

from supervisor.conversations.recording.bounds.attachments import (
    BLOB_BYTES,
    TEXT,
    Allowance,
    Original,
    Originals,
    pieces,
)


def test_a_turn_and_a_conversation_have_their_shares() -> None:
    originals = Originals(Allowance(turn_bytes=100, conversation_bytes=150))
    assert originals.take(60)
    assert originals.take(40)
    assert not originals.take(1)
    assert (originals.kept, originals.dropped) == (100, 1)
    originals.new_turn()
    assert not originals.take(51)
    assert originals.take(50)
    assert (originals.kept, originals.dropped) == (150, 52)


def test_what_a_thread_took_is_charged_afterwards() -> None:
    originals = Originals(Allowance(turn_bytes=100, conversation_bytes=1000), kept=500)
    assert originals.take(30)
    apart = originals.apart()
    assert apart.take(60)
    assert not apart.take(20)
    assert originals.kept == 530
    originals.charge(60)
    assert originals.kept == 590
    assert not originals.take(11)
    assert originals.take(10)


def test_an_original_is_in_as_many_blobs_as_it_needs() -> None:
    original = Original("b", Originals(), "application/json")
    assert "lost" in original.where()
    (whole,) = original.put(b"{}")
    assert (whole.blob_id, whole.body, whole.media_type, whole.masked) == (
        "b",
        b"{}",
        "application/json",
        False,
    )
    assert original.where() == "all of it is in blob b"
    (more,) = original.put(b"more")
    assert (more.blob_id, more.media_type) == ("b-2", TEXT)
    assert original.where() == "all of it is in blobs b to b-2"


def test_pieces_of_a_document_are_text() -> None:
    original = Original("b", Originals(), "application/json", masked=True)
    blobs = original.put(b"x" * (BLOB_BYTES + 1))
    assert [(blob.blob_id, len(blob.body)) for blob in blobs] == [("b", BLOB_BYTES), ("b-2", 1)]
    assert {blob.media_type for blob in blobs} == {TEXT}
    assert all(blob.masked for blob in blobs)


def test_after_what_did_not_fit_nothing_is_kept() -> None:
    original = Original("b", Originals(Allowance(turn_bytes=10, conversation_bytes=10)), TEXT)
    assert len(original.put(b"12345678")) == 1
    assert original.put(b"abc") == []
    assert original.put(b"d") == []
    assert original.where().startswith("the first 8 bytes are in blob b, the next 4 are lost")


def test_pieces_are_as_large_as_may_be_and_end_between_characters() -> None:
    assert list(pieces(b"x" * BLOB_BYTES)) == [b"x" * BLOB_BYTES]
    assert list(pieces(b"")) == [b""]
    raw = "xé".encode() + "é".encode() * (BLOB_BYTES // 2)
    assert [len(piece) for piece in pieces(raw)] == [BLOB_BYTES - 1, 4]
    assert b"".join(pieces(raw)) == raw
