"""Where secrets stand in agent settings, and what is shown in their place."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from supervisor.settings.errors import EncryptionUnavailable

#: What stands for a secret. Sent back by a client it means nothing, and erases.
REDACTED: Final = "**********"


class Cipher(Protocol):
    """What encrypts secrets for a client that will hand them back."""

    def encrypt(self, data: bytes) -> str:
        """A token."""
        ...


class Expose(enum.Enum):
    """How secrets are shown."""

    REDACTED = enum.auto()
    ENCRYPTED = enum.auto()
    PLAINTEXT = enum.auto()


#: Values of the header ``X-Expose-Secrets``; its absence is None. Others are an error (HTTP 400).
EXPOSE_HEADER: Final[Mapping[str | None, Expose]] = {
    None: Expose.REDACTED,
    "encrypted": Expose.ENCRYPTED,
    "true": Expose.ENCRYPTED,
    "plaintext": Expose.PLAINTEXT,
}

#: Any key of an object, any item of a list.
ANY: Final = "*"

_Path = tuple[str, ...]

_SERVER_SECRETS: Final[tuple[_Path, ...]] = (
    ("env", ANY),
    ("headers", ANY),
    ("auth", "value"),
    ("auth", "password"),
    ("auth", "headers", ANY),
    ("auth", "authentication", "client_secret"),
    ("auth", "state", "tokens", "access_token"),
    ("auth", "state", "tokens", "refresh_token"),
    ("auth", "state", "client_info", "client_secret"),
)

_LLM_SECRETS: Final[tuple[_Path, ...]] = (
    ("api_key",),
    ("aws_access_key_id",),
    ("aws_secret_access_key",),
    ("aws_session_token",),
)

#: Every place in agent settings, of either kind, whose string is a secret.
SECRET_PATHS: Final[tuple[_Path, ...]] = (
    *(("mcp_config", ANY, *path) for path in _SERVER_SECRETS),
    *(("agent_context", "skills", ANY, "mcp_tools", ANY, *path) for path in _SERVER_SECRETS),
    ("agent_context", "secrets", ANY),
    ("agent_context", "secrets", ANY, "value"),
    ("agent_context", "secrets", ANY, "headers", ANY),
    *(("llm", *path) for path in _LLM_SECRETS),
    *(("meta_profile_llms", ANY, *path) for path in _LLM_SECRETS),
    *(("condenser", "llm", *path) for path in _LLM_SECRETS),
    ("verification", "critic_api_key"),
)


def replace_secrets(settings: Mapping[str, Any], replace: Callable[[str], str | None]) -> dict[str, Any]:
    """A copy of agent settings with ``replace`` applied to each secret; None removes its key."""
    replaced: Any = settings
    for path in SECRET_PATHS:
        replaced = _replace_at(replaced, path, replace)
    return dict(replaced)


def secrets_of(settings: Mapping[str, Any]) -> list[str]:
    """Every secret in agent settings."""
    found: list[str] = []

    def note(value: str) -> str:
        found.append(value)
        return value

    replace_secrets(settings, note)
    return found


def erase_placeholders(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Without the secrets that a client sent as nothing or as the placeholder it was shown."""
    return replace_secrets(settings, lambda value: None if value in ("", REDACTED) else value)


def expose_secrets(settings: Mapping[str, Any], expose: Expose, cipher: Cipher | None) -> dict[str, Any]:
    """Agent settings as a client may see them.

    Raises EncryptionUnavailable when they are to be encrypted, hold a secret, and ``cipher`` is None.
    """

    def encrypt(value: str) -> str:
        if cipher is None:
            raise EncryptionUnavailable("secrets cannot be shown encrypted: the server has no master key")
        return cipher.encrypt(value.encode())

    show: Mapping[Expose, Callable[[str], str]] = {
        Expose.REDACTED: lambda _: REDACTED,
        Expose.ENCRYPTED: encrypt,
        Expose.PLAINTEXT: lambda value: value,
    }
    return replace_secrets(settings, show[expose])


def _replace_at(node: Any, path: _Path, replace: Callable[[str], str | None]) -> Any:
    if not path:
        return replace(node) if isinstance(node, str) else node
    key, rest = path[0], path[1:]
    if isinstance(node, list) and key == ANY:
        return [_replace_at(item, rest, replace) for item in node]
    if not isinstance(node, Mapping):
        return node
    copy = dict(node)
    for name in tuple(node) if key == ANY else (key,) if key in node else ():
        old = node[name]
        new = _replace_at(old, rest, replace)
        if new is None and old is not None:
            del copy[name]
        else:
            copy[name] = new
    return copy
