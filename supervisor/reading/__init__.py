"""The one reader of untrusted input: requests, settings, profiles, descriptors and events are described as
attrs classes; decoding, located errors and the JSON Schema are derived from these. Depends on no other
room."""

from __future__ import annotations

from supervisor.reading.decode import among, attempt, check_of, decode, one_of
from supervisor.reading.encode import as_json
from supervisor.reading.errors import (
    MAX_ERRORS,
    TOO_MANY,
    Check,
    ErrorDetail,
    Errors,
    HTTPValidationError,
    Invalid,
)
from supervisor.reading.model import (
    INTEGRAL,
    NEVER_NULL,
    WITHOUT_EFFECT,
    Flaw,
    Like,
    Location,
    Model,
    Named,
    Variant,
    Written,
    described,
    wire_name,
)
from supervisor.reading.rules import (
    ABOVE_ZERO,
    FILLED,
    NO_NUL,
    Form,
    Items,
    Limit,
    Names,
    Properties,
    Rule,
    Size,
)
from supervisor.reading.schema import Components, reference

__all__ = [
    "ABOVE_ZERO",
    "FILLED",
    "INTEGRAL",
    "MAX_ERRORS",
    "NEVER_NULL",
    "NO_NUL",
    "TOO_MANY",
    "WITHOUT_EFFECT",
    "Check",
    "Components",
    "ErrorDetail",
    "Errors",
    "Flaw",
    "Form",
    "HTTPValidationError",
    "Invalid",
    "Items",
    "Like",
    "Limit",
    "Location",
    "Model",
    "Named",
    "Names",
    "Properties",
    "Rule",
    "Size",
    "Variant",
    "Written",
    "among",
    "as_json",
    "attempt",
    "check_of",
    "decode",
    "described",
    "one_of",
    "reference",
    "wire_name",
]
