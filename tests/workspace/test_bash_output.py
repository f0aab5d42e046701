"""What a command writes becomes parts: whole characters, masked, the beginning and the end."""

from __future__ import annotations

import pytest

from supervisor.credentials.masking import NOTHING, Masker
from supervisor.workspace.commands import output as bash_output
from supervisor.workspace.commands.output import Output

SECRET = "tok-1234567890abcdef"


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(bash_output, "OUTPUT_CHARACTERS", 100)
    monkeypatch.setattr(bash_output, "TAIL_BYTES", 50)
    monkeypatch.setattr(bash_output, "LINE_CHARACTERS", 20)


def told(pieces, most=10_000, mask=NOTHING):
    """The parts of standard output and of standard error, the last ones included."""
    parts = []
    output = Output(mask, most, lambda out, err: parts.append((out, err)))
    for piece in pieces:
        error = isinstance(piece, tuple)
        output.add(piece[0] if error else piece, error=error)
    parts.append(output.finish(output.ends()))
    return parts


def test_nothing_is_null():
    assert told([]) == [(None, None)]


def test_both_streams_are_apart():
    assert told([b"a", (b"b",), b"c"]) == [("ac", "b")]


@pytest.mark.guarantee(name="clients-commands-are-bounded-and-ended")
@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_however_it_is_cut_the_characters_are_whole(size):
    text = "aä€😀\udcff".encode("utf-8", "surrogateescape") * 20
    parts = told([text[at : at + size] for at in range(0, len(text), size)])
    assert "".join(out for out, _ in parts) == "aä€😀�" * 20
    assert all(len(out) <= 100 for out, _ in parts)


def test_full_parts_are_told_at_once_and_exactly_full_ones_at_the_end():
    assert told([b"x" * 250]) == [("x" * 100, None), ("x" * 100, None), ("x" * 50, None)]
    assert told([b"x" * 100]) == [("x" * 100, None)]


@pytest.mark.guarantee(name="clients-commands-are-bounded-and-ended")
@pytest.mark.parametrize("cut", range(1, len(SECRET)))
def test_a_secret_in_two_pieces_is_masked(cut):
    parts = told([SECRET[:cut].encode(), SECRET[cut:].encode() + b"!"], mask=Masker([SECRET]))
    assert parts == [("<secret-hidden>!", None)]


def test_what_is_beyond_but_fits_into_the_end_is_whole():
    whole = "ä" * 40
    data = whole.encode()
    assert told([data[:31], data[31:60], data[60:]], most=31) == [(whole, None)]


def joined(pieces, **options):
    return "".join(out or "" for out, _ in told(pieces, **options))


def test_what_is_dropped_is_said_where_it_was():
    out = joined([b"begin\n", b"x" * 30_000, b"\nlast line\n"], most=6)
    begin, note, end = out.partition("\n[Ostler dropped ")
    count, _, end = end.partition(" bytes of output here: OSTLER_BASH_OUTPUT_BYTES]\n")
    assert (begin, note != "") == ("begin\n", True)
    assert end == "x" * (50 - len("\nlast line\n")) + "\nlast line\n"
    assert int(count) + len(end) == 30_000 + len("\nlast line\n")


def test_the_end_begins_with_a_whole_line_where_there_is_one():
    assert joined([b"a", b"0123456789\n" * 5000], most=1).endswith("]\n" + "0123456789\n" * 4)


@pytest.mark.guarantee(name="clients-commands-are-bounded-and-ended")
def test_half_a_secret_is_shown_on_no_side_of_what_is_dropped():
    half = len(SECRET) // 2
    noise = b"=" * 10 + b"\n"
    pieces = [SECRET[:half].encode(), SECRET[half:].encode() + b"\n", *[noise] * 5000]
    assert SECRET[:half] not in joined(pieces, most=half, mask=Masker([SECRET]))
    # The kept end begins in the middle of it.
    tail = SECRET.encode() + b"\n" + b"-" * (50 - half)
    assert SECRET[half:] not in joined([b"a", b"x" * 40_000, tail], most=1, mask=Masker([SECRET]))
