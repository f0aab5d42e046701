from __future__ import annotations

import time

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.acp.framing import HEAD_BYTES, FrameSplitter, Oversize


def split_in(data: bytes, sizes: list[int], **kwargs: int) -> list[bytes | Oversize]:
    splitter = FrameSplitter(**kwargs)
    frames: list[bytes | Oversize] = []
    rest = data
    for size in sizes:
        frames += splitter.feed(rest[:size])
        rest = rest[size:]
    return frames + splitter.feed(rest) + splitter.finish()


@pytest.mark.parametrize(
    ("data", "frames"),
    [
        (b'{"a":1}\n{"b":2}\n', [b'{"a":1}', b'{"b":2}']),
        (b'{"a":1}\r\n\r\n\n  \n{"b":2}\r\n', [b'{"a":1}', b'{"b":2}']),
        (b'\xef\xbb\xbf{"a":1}\n\xef\xbb\xbf\n', [b'{"a":1}']),
        (b"banner\n{}\n", [b"banner", b"{}"]),
        (b'{"a":1}\n{"unfinished"', [b'{"a":1}', b'{"unfinished"']),
        (b"\n\n\n", []),
        (b"", []),
        (b'  {"padded":1}\t\n', [b'{"padded":1}']),
        (b'{"padded":1} \t\n{"padded":2}\t\r\n', [b'{"padded":1}', b'{"padded":2}']),
    ],
)
def test_lines_become_frames(data: bytes, frames: list[bytes]) -> None:
    assert split_in(data, []) == frames
    assert split_in(data, [1] * len(data)) == frames


lines = st.lists(
    st.one_of(
        st.binary(max_size=40),
        st.sampled_from(
            [b'{"id":1}', b'{"x":"' + b"y" * 30 + b'"}', b"", b"\r", b"{1234}\r", b"\xef\xbb\xbf{}"]
        ),
    ),
    max_size=12,
)


@given(lines, st.lists(st.integers(0, 30), max_size=30), st.integers(1, 50))
def test_any_chunking_gives_the_same_frames(parts: list[bytes], sizes: list[int], cap: int) -> None:
    data = b"\n".join(parts)
    whole = split_in(data, [], max_frame=cap)
    assert split_in(data, sizes, max_frame=cap) == whole
    assert split_in(data, [1] * len(data), max_frame=cap) == whole


def test_the_oversize_frame_alone_is_lost() -> None:
    big = b'{"jsonrpc":"2.0","id":7,"result":"' + b"x" * 500 + b'"}'
    data = b'{"a":1}\n' + big + b'\n{"b":2}\n'
    for sizes in ([], [1] * len(data), [100] * 10):
        frames = split_in(data, sizes, max_frame=200)
        assert frames == [b'{"a":1}', Oversize(len(big), 7, None, answers=True), b'{"b":2}']


def test_a_frame_of_exactly_the_cap_is_kept() -> None:
    line = b"{" + b"x" * 8 + b"}"
    assert split_in(line + b"\r\n", [], max_frame=10) == [line]
    assert split_in(line + b"\r\n", [1] * 12, max_frame=10) == [line]
    assert split_in(line + b"y\n", [], max_frame=10) == [Oversize(11)]


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        (b'{"jsonrpc":"2.0","id":3,"method":"m","params":"', (3, "m", False)),
        (b'{"id":"a\\"b","error":{"id":9,"message":"', ('a"b', None, True)),
        (
            b'{"method":"session/update","params":{"id":5,"method":"inner","x":"',
            (None, "session/update", False),
        ),
        (b'{"params":{"text":"\\"id\\":1,"},"id":2,"x":"', (2, None, False)),
        (b'{"params":{"a":{"b":[]},"id":5,"method":"inner"},"id":2,"x":"', (2, None, False)),
        (b'{"result":{"deep":[{"id":4},', (None, None, True)),
        (b'{"id":true,"method":5,"x":"', (None, None, False)),
        (b'{"id" : 12 , "method" : "m" , "x":"', (12, "m", False)),
        (b'\xef\xbb\xbf{"id":1,"x":"', (1, None, False)),
        (b"plain noise ", (None, None, False)),
    ],
)
def test_whom_an_oversize_frame_concerned(head: bytes, expected: tuple[object, object, bool]) -> None:
    (frame,) = split_in(head + b"z" * 300 + b"\n", [], max_frame=128)
    assert isinstance(frame, Oversize)
    assert (frame.id, frame.method, frame.answers) == expected
    assert frame.size == len(head) + 300


def test_what_the_cut_head_ends_in_is_not_believed() -> None:
    for lead in (b'{"jsonrpc":"2.0","id":', b'{"x":"\\"id\\":'):
        digits = b"1" * (HEAD_BYTES + 10)
        (frame,) = split_in(lead + digits + b"}\n", [], max_frame=64)
        assert isinstance(frame, Oversize)
        assert frame.id is None


@given(st.binary(min_size=65, max_size=6000))
def test_salvaging_never_raises(data: bytes) -> None:
    for frame in split_in(b"{" + data, [], max_frame=64):
        assert isinstance(frame, bytes | Oversize)


def test_discarding_keeps_a_bounded_head_only() -> None:
    splitter = FrameSplitter(max_frame=100_000)
    for _ in range(200):
        assert splitter.feed(b"x" * 65536) == []
    assert len(splitter._partial) <= HEAD_BYTES
    (frame,) = splitter.feed(b"\n")
    assert frame == Oversize(200 * 65536)


def test_a_large_frame_in_small_pieces_takes_linear_time() -> None:
    def seconds(size: int) -> float:
        splitter = FrameSplitter()
        piece = b"x" * 512
        start = time.process_time()  # others on the machine must not count
        for _ in range(size // 512):
            splitter.feed(piece)
        assert len(splitter.feed(b"\n")) == 1
        return time.process_time() - start

    # 32 times the bytes; rescanning what is buffered would take some 1000 times as long.
    small, large = min(seconds(2**19) for _ in range(3)), seconds(2**24)
    assert large < 200 * small


def test_a_frame_survives_whole() -> None:
    text = "ü€🙂" * 30_000
    line = orjson.dumps({"text": text}) + b"\n"
    splitter = FrameSplitter()
    frames = [f for i in range(0, len(line), 4096) for f in splitter.feed(line[i : i + 4096])]
    assert [orjson.loads(f) for f in frames if isinstance(f, bytes)] == [{"text": text}]
    assert splitter.finish() == []


def test_the_cap_must_be_positive() -> None:
    with pytest.raises(ValueError, match="max_frame"):
        FrameSplitter(0)
