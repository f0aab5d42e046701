"""The webhooks that an operator sets: `OSTLER_WEBHOOKS`, or the names of the wire's own server."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final
from urllib.parse import urlsplit

import attrs

from gateway.configuration.parsing import ConfigError
from supervisor.reading.decode import decode
from supervisor.reading.model import Flaw, Invalid, Model
from supervisor.reading.rules import ABOVE_ZERO, Form, Items, Limit

VARIABLE: Final = "OSTLER_WEBHOOKS"
WIRE_VARIABLE: Final = "OH_WEBHOOKS"
"""What servers of this wire call it; also `OH_WEBHOOKS_0_BASE_URL` and so on."""

SPECS_MAX: Final = 16
"""Each costs a task for each conversation in use."""

_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE: Final = re.compile(r"[\t\x20-\x7e]*")


def _address(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise ValueError("give an http or https address without query and fragment")
    _ = parts.port  # raises ValueError itself
    if not text.isascii() or not text.isprintable() or " " in text:
        raise ValueError("an address has printable ASCII characters only")
    return text.rstrip("/")


def _headers(found: Mapping[str, str]) -> Mapping[str, str]:
    for name, value in found.items():
        if not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
            raise ValueError("a header has a name and a value of printable ASCII characters")
    return found


@attrs.frozen(kw_only=True)
class WebhookSpec(Model):
    """One webhook. Times in seconds.

    A batch has at most `event_buffer_size` events and about `max_batch_bytes`. What waits longer than
    `flush_delay` is sent. A failed request is sent again `num_retries` times, `retry_delay` apart, and then
    with what comes later. Beyond `max_queue_size` events or `max_queue_bytes` the oldest are dropped.
    """

    FORBID: ClassVar[bool] = True

    base_url: Annotated[str, Form(_address)]
    headers: Annotated[Mapping[str, str], Form(_headers)] = attrs.field(factory=dict, repr=False)
    event_buffer_size: Annotated[int, Limit(ge=1)] = 5
    flush_delay: Annotated[float, ABOVE_ZERO] = 30.0
    num_retries: Annotated[int, Limit(ge=0, le=1000)] = 3
    retry_delay: Annotated[float, Limit(ge=0)] = 5
    max_queue_size: Annotated[int, Limit(ge=1, le=1_000_000)] = 1000
    max_batch_bytes: Annotated[int, Limit(ge=1)] = 5 * 1024 * 1024
    max_queue_bytes: Annotated[int, Limit(ge=1)] = 50 * 1024 * 1024

    @property
    def host(self) -> str:
        """The receiver, for logs: an address may hold a password."""
        return urlsplit(self.base_url).hostname or ""


@attrs.frozen(kw_only=True)
class _Webhooks(Model):
    webhooks: Annotated[tuple[WebhookSpec, ...], Items(max_length=SPECS_MAX)] = ()

    def judge(self) -> list[Flaw]:
        """Addresses that are given twice."""
        seen: set[str] = set()
        flaws: list[Flaw] = []
        for number, each in enumerate(self.webhooks):
            if each.base_url in seen:
                flaws.append((("webhooks", number, "base_url"), "value_error", "is given twice"))
            seen.add(each.base_url)
        return flaws


def read_webhooks(env: Mapping[str, str]) -> tuple[WebhookSpec, ...]:
    """Read the variables: ours if it is set, else the wire's. Raises ConfigError, naming the variable."""
    for variable in (VARIABLE, WIRE_VARIABLE):
        text = env.get(variable, "").strip()
        if text:
            return _decoded(variable, _json(variable, text))
    found = _numbered(env)
    return _decoded(WIRE_VARIABLE, found) if found else ()


def _numbered(env: Mapping[str, str]) -> list[dict[str, Any]]:
    """`OH_WEBHOOKS_0_BASE_URL`, `OH_WEBHOOKS_0_NUM_RETRIES` ..., counted from 0 without a gap."""
    found: list[dict[str, Any]] = []
    names = [field.name for field in attrs.fields(WebhookSpec)]
    while True:
        prefix = f"{WIRE_VARIABLE}_{len(found)}_"
        spec: dict[str, Any] = {}
        for name in names:
            text = env.get(f"{prefix}{name.upper()}")
            if text:
                spec[name] = text if name == "base_url" else _json(f"{prefix}{name.upper()}", text)
        if not spec:
            return found
        found.append(spec)


def _json(variable: str, text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise ConfigError(f"{variable} is not JSON ({error.msg}: {where})") from None
    except (ValueError, RecursionError):
        raise ConfigError(f"{variable} is not JSON") from None


def _decoded(variable: str, found: Any) -> tuple[WebhookSpec, ...]:
    try:
        return decode(_Webhooks, {"webhooks": found}).webhooks
    except Invalid as error:
        first = error.errors[0]
        place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first.loc[1:])
        raise ConfigError(f"{variable}{place}: {first.msg.removeprefix('Value error, ')}") from None
