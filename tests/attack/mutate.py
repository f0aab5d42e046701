"""Makes wrong inputs out of right ones: by bytes, and by the structure of JSON. All chance is the seed's."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from random import Random
from typing import Any

TOKENS = (
    *(
        b"\0",
        b"\xff",
        b"\xef\xbb\xbf",
        b"\r",
        b"\n",
        b"\r\n",
        b"\t",
        b"\xc3",
        b"\xed\xa0\x80",
        b"\xe2\x80\xa8",
    ),
    *(
        b"{",
        b"}",
        b"[",
        b"]",
        b'"',
        b":",
        b",",
        b"\\",
        b"/",
        b"%",
        b"%00",
        b"%ff",
        b"&",
        b"=",
        b"+",
        b"#",
        b"?",
    ),
    *(b"null", b"true", b"NaN", b"-Infinity", b"1e400", b"-0", b"1e-400", b"0x1", b"01"),
    *(
        b"\\ud800",
        b"\\udc00",
        b"\\u0000",
        b"\\u0",
        b"\\x",
        b"..",
        b"../",
        b"%2e%2e%2f",
        b"file:///",
        b"${HOME}",
    ),
    *(b'"id":', b'"method":', b'"result":', b'"error":', b'"params":', b'"__proto__":', b'"kind":'),
)
NUMBERS = (b"0", b"-1", b"2147483648", b"9007199254740993", b"9223372036854775808", b"18446744073709551616")
LONG = 5000  # characters: beyond what a trace or an error keeps
DEEP = (50, 190, 300, 3000)  # levels: around and beyond what is accepted
MOST_MUTATIONS = 4
LARGEST = 100_000  # bytes: size is attacked elsewhere

WORDS = (
    *("", " ", "\0", "\ud800", "\u2028", "ä€😀", "a\nb", "..", "/", "/etc/passwd", "null", "NaN"),
    *(
        "**********",
        "gAAAAAB",
        "!hang",
        "x" * LONG,
        "-1",
        "1e400",
        "true",
        "%00",
        "\x1b[2J",
        "kind",
        "__proto__",
    ),
)
VALUES = (
    *(None, True, False, 0, -1, 1.5, -0.0, 2**31, 2**53 + 1, 2**63, 2**64, -(2**63) - 1, 1e308, 5e-324),
    *([], {}, [None], [[]], {"": None}, [1, "a", {}], {"kind": "x"}),
)


class Mutator:
    """Changes what it is given, a little."""

    def __init__(self, random: Random) -> None:
        self.random = random

    def bytes(self, seeds: Sequence[bytes]) -> bytes:
        """One of the seeds, changed in a few places."""
        data = bytearray(self.random.choice(seeds))
        for _ in range(self.random.randint(0, MOST_MUTATIONS)):
            self._change(data, seeds)
        return bytes(data)

    def _change(self, data: bytearray, seeds: Sequence[bytes]) -> None:
        random = self.random
        start = random.randint(0, len(data))
        stop = min(len(data), start + random.choice((0, 1, 2, 8, 64)))
        match random.randrange(8):
            case 0 if data:
                data[start % len(data)] ^= 1 << random.randrange(8)
            case 1:
                data[start:stop] = random.randbytes(random.randint(0, 8))
            case 2:
                del data[start:stop]
            case 3:
                data[start:stop] = data[start:stop] * random.choice((2, 3, 50))
            case 4:
                other = random.choice(seeds)
                data[start:] = other[random.randint(0, len(other)) :]
            case 5:
                data[start:stop] = random.choice(TOKENS)
            case 6:
                data[start:stop] = random.choice(NUMBERS)
            case _:
                if random.random() < 0.1:
                    data[start:stop] = random.choice((b"[", b'{"a":', b" ")) * random.choice(DEEP)

    def json(self, seeds: Sequence[Any]) -> Any:
        """A deep copy of one of the seeds, changed in a few places; anything at all now and then."""
        value = copy.deepcopy(self.random.choice(seeds))
        for _ in range(self.random.randint(0, MOST_MUTATIONS)):
            value = self._changed(value, seeds)
        return value

    def text(self, seeds: Sequence[Any]) -> bytes:
        """The JSON of a changed value, which need not be valid JSON."""
        value = self.json(seeds)
        try:
            data = json.dumps(value, ensure_ascii=self.random.random() < 0.5).encode()
        except UnicodeEncodeError:
            data = json.dumps(value).encode()
        return self.bytes([data[:LARGEST]]) if self.random.random() < 0.3 else data[:LARGEST]

    def _changed(self, value: Any, seeds: Sequence[Any]) -> Any:
        random = self.random
        if isinstance(value, dict) and value and random.random() < 0.85:
            key = random.choice(list(value))
            match random.randrange(12):
                case 0:
                    del value[key]
                case 1:
                    value[random.choice(WORDS)] = value.pop(key)
                case 2:
                    value[random.choice(WORDS)] = self._any(seeds)
                case _:
                    value[key] = self._changed(value[key], seeds)
            return value
        if isinstance(value, list) and value and random.random() < 0.85:
            index = random.randrange(len(value))
            match random.randrange(8):
                case 0:
                    del value[index]
                case 1:
                    value[index:index] = [copy.deepcopy(value[index])] * random.choice((1, 2, 20))
                case _:
                    value[index] = self._changed(value[index], seeds)
            return value
        return self._any(seeds)

    def _any(self, seeds: Sequence[Any]) -> Any:
        random = self.random
        match random.randrange(6):
            case 0:
                return copy.deepcopy(random.choice(seeds))
            case 1 if random.random() < 0.2:
                return self._nested(random.choice(DEEP[:3]))
            case 1 | 2 | 3:
                return copy.deepcopy(random.choice(VALUES))
            case _:
                return random.choice(WORDS)

    def _nested(self, levels: int) -> Any:
        value: Any = 1
        for _ in range(levels):
            value = [value] if self.random.random() < 0.5 else {"a": value}
        return value
