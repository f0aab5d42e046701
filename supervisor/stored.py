"""What Ostler stored itself and reads back: made what its types say, and not judged as what others send.

A document of an older version lacks properties, which get their defaults; what this version does not know is
dropped.
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
    """The converter of all documents. It makes its hooks once for each type."""
    # Imported with the first document, in the thread that reads it: the start of a server does without.
    from cattrs.preconf.orjson import make_converter

    made = make_converter(detailed_validation=False)
    # A word that is gone by now was right when it was stored.
    made.register_structure_hook_func(
        lambda hint: getattr(hint, "__origin__", None) is Literal, lambda value, _: value
    )
    return made


def structure(kind: type[T], document: Any, *versions: int) -> T:
    """What was stored of a `kind`, in one of these versions. Raises ValueError, whose text quotes nothing."""
    try:
        if not versions or document["version"] in versions:
            return converter().structure(document, kind)
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        raise ValueError("it is not what Ostler writes") from error
    raise ValueError("it was written by another version of Ostler")


def loads(kind: type[T], data: bytes, *versions: int) -> T:
    """The same from bytes."""
    try:
        document = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        # Without the cause: it holds the document.
        raise ValueError(f"it is not JSON: {error.msg}") from None
    return structure(kind, document, *versions)
