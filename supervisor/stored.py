"""Reads documents that Ostler stored itself: converted to their types, without the checks on foreign input.

Properties that a document of an older version lacks get their defaults; unknown properties are dropped.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import orjson

if TYPE_CHECKING:
    from cattrs import Converter

T = TypeVar("T")


@cache
def converter() -> Converter:
    """Return the converter of all documents. It makes its hooks once for each type."""
    # Imported with the first document, in the thread that reads it, to keep the start of a server fast.
    from cattrs.preconf.orjson import make_converter

    made = make_converter(detailed_validation=False)
    # A literal value that no longer exists was valid when it was stored, so it is not checked.
    made.register_structure_hook_func(
        lambda hint: getattr(hint, "__origin__", None) is Literal, lambda value, _: value
    )
    return made


class OtherVersion(ValueError):
    """A document has another version."""


def check_version(document: Any, *versions: int, key: str = "version") -> None:
    """Check the version of a stored document. Raises OtherVersion; LookupError, TypeError if it has none."""
    if document[key] not in versions:
        raise OtherVersion("it was written by another version of Ostler")


def structure(kind: type[T], document: Any, *versions: int) -> T:
    """Convert a stored document of a `kind`, in one of these versions. Raises ValueError, whose text quotes
    nothing of the document."""
    try:
        if versions:
            check_version(document, *versions)
        return converter().structure(document, kind)
    except OtherVersion:
        raise
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        raise ValueError("it is not what Ostler writes") from error


def loads(kind: type[T], data: bytes, *versions: int) -> T:
    """Convert a document from its bytes, like `structure`."""
    try:
        document = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        # Without the cause, which quotes the document.
        raise ValueError(f"it is not JSON: {error.msg}") from None
    return structure(kind, document, *versions)
