"""The properties at the head of a Markdown file, between two lines of dashes, in YAML. Pure.

A file comes from an untrusted repository. So aliases, which could expand to gigabytes, and deep nesting are
refused, and every scalar is read as a text or as null.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

HEAD_BYTES: Final = 16 * 1024
"""Most bytes of the properties: some hundred times what a person writes."""

MAX_DEPTH: Final = 8
"""Deepest nesting of lists and objects."""

BOUNDARY: Final = re.compile(r"^-{3,}[ \t\r]*$", re.MULTILINE)

NOTHING: Final = frozenset({"", "~", "null", "Null", "NULL"})
"""Spellings of null as a plain scalar."""


class BadHead(ValueError):
    """The properties cannot be read. The message says why and quotes nothing."""


def split_head(text: str) -> tuple[dict[str, Any], str]:
    """The properties (texts, None, lists and objects of those), and the rest of the text.

    Without properties all of it is the rest. Raises BadHead.
    """
    text = text.strip()
    bounds = list(islice(BOUNDARY.finditer(text), 2))
    if len(bounds) < 2 or bounds[0].start():
        return {}, text
    head = text[bounds[0].end() : bounds[1].start()]
    if len(head.encode(errors="replace")) > HEAD_BYTES:
        raise BadHead(f"its properties have more than {HEAD_BYTES} bytes")
    return _properties(head), text[bounds[1].end() :].strip()


def _properties(head: str) -> dict[str, Any]:
    import yaml  # late: only who reads skills needs it

    try:
        events = yaml.parse(head, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        nodes = (each for each in events if isinstance(each, yaml.NodeEvent | yaml.CollectionEndEvent))
        found = next(_values(nodes, 0), None)
    except yaml.YAMLError as error:
        raise BadHead(f"its properties are not YAML: {type(error).__name__}") from None
    return found if isinstance(found, dict) else {}


def _values(events: Iterator[Any], depth: int) -> Iterator[Any]:
    """The values until the end of the collection that they are in."""
    import yaml

    if depth > MAX_DEPTH:
        raise BadHead(f"its properties are nested deeper than {MAX_DEPTH} levels")
    for event in events:
        match event:
            case yaml.CollectionEndEvent():
                return
            case yaml.ScalarEvent(value=value, style=style):
                yield None if not style and value in NOTHING else value
            case yaml.SequenceStartEvent():
                yield list(_values(events, depth + 1))
            case yaml.MappingStartEvent():
                both = list(_values(events, depth + 1))
                yield {
                    key: value
                    for key, value in zip(both[::2], both[1::2], strict=True)
                    if isinstance(key, str)
                }
            case _:
                raise BadHead("its properties have an alias")
