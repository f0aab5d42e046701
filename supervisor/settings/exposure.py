"""Where secrets are in agent settings, and what clients see instead of them."""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

from supervisor.origin import shown_origin
from supervisor.settings.errors import EncryptionUnavailable

#: The beginning of every token of the cipher. Other values are plain text, of a file of an earlier release.
ENCRYPTED_START: Final = "gAAAA"

#: The placeholder for a secret. If a client sends it back, the secret is erased.
REDACTED: Final = "**********"

PLACEHOLDER: Final = re.compile(rf"|([a-z][a-z0-9+.-]*://[^/]*/)?{re.escape(REDACTED)}")
"""What a client sends in place of a secret that it does not have: nothing, or the placeholder it was
shown."""


class Cipher(Protocol):
    """What encrypts secrets for a client that will hand them back."""

    def encrypt(self, data: bytes) -> str:
        """A token."""
        ...


class StorageCipher(Cipher, Protocol):
    """What encrypts secrets for the disk, and opens them again. Both raise errors of their own."""

    def decrypt(self, token: str) -> bytes:
        """What the token was made of."""
        ...


class Expose(enum.Enum):
    """How secrets are shown."""

    REDACTED = enum.auto()
    ENCRYPTED = enum.auto()
    PLAINTEXT = enum.auto()


#: Values of the header `X-Expose-Secrets`; its absence is None. Others are an error (HTTP 400).
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

CREDENTIALS: Final = ("api_key", "aws_access_key_id", "aws_secret_access_key", "aws_session_token")
"""The properties of a language model that hold secrets."""

_LLM_SECRETS: Final[tuple[_Path, ...]] = tuple((name,) for name in CREDENTIALS)

#: Every path in agent settings, of either kind, whose string is a secret as a whole.
_VALUE_PATHS: Final[tuple[_Path, ...]] = (
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

#: Where a secret is fetched from: user, path and query of such a URL may be keys. Clients see of it what
#: `shown_url` leaves.
_URL_PATHS: Final[tuple[_Path, ...]] = (("agent_context", "secrets", ANY, "url"),)

OWN_SECRET: Final = re.compile(r"/api/settings/secrets/[^/?#]+")
"""The path of a secret of this server's own store: a name, and no key."""

#: Paths by their first key, then by their second, ...; `_HERE` where one ends.
_Tree = dict[str, "_Tree"]

_HERE: Final = ""


def _tree(paths: Iterable[_Path]) -> _Tree:
    tree: _Tree = {}
    for path in paths:
        below = tree
        for key in (*path, _HERE):
            below = below.setdefault(key, {})
    return tree


#: The same paths as trees, so that settings are walked and copied once instead of once per path.
_VALUE_TREE: Final = _tree(_VALUE_PATHS)
_URL_TREE: Final = _tree(_URL_PATHS)
_SECRET_TREE: Final = _tree((*_VALUE_PATHS, *_URL_PATHS))


def replace_secrets(settings: Mapping[str, Any], replace: Callable[[str], str | None]) -> dict[str, Any]:
    """A copy of agent settings with `replace` applied to each secret; None removes its key."""
    return dict(_replaced(settings, _SECRET_TREE, replace))


def secrets_of(settings: Mapping[str, Any]) -> list[str]:
    """Every secret in agent settings, to be masked where an agent says it. URLs are not among them."""
    return _noted(settings, _VALUE_TREE)


def holds_token(settings: Mapping[str, Any]) -> bool:
    """Whether some secret in agent settings is a token of a cipher."""
    return any(each.startswith(ENCRYPTED_START) for each in _noted(settings, _SECRET_TREE))


def _noted(settings: Mapping[str, Any], tree: _Tree) -> list[str]:
    found: list[str] = []

    def note(value: str) -> str:
        found.append(value)
        return value

    _replaced(settings, tree, note)
    return found


def seal(settings: Mapping[str, Any], cipher: StorageCipher) -> dict[str, Any]:
    """Agent settings for the disk: every secret is a token. Raises what the cipher raises."""
    return replace_secrets(settings, lambda value: cipher.encrypt(value.encode()))


def unseal(settings: Mapping[str, Any], cipher: StorageCipher) -> dict[str, Any]:
    """Agent settings from the disk, or from a client that was shown them encrypted; values in the clear stay.
    Raises what the cipher raises."""

    def opened(value: str) -> str:
        return cipher.decrypt(value).decode() if value.startswith(ENCRYPTED_START) else value

    return replace_secrets(settings, opened)


def erase_placeholders(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Without the secrets that a client sent as nothing or as the placeholder it was shown."""
    return replace_secrets(settings, lambda value: None if PLACEHOLDER.fullmatch(value) else value)


def shown_url(url: str) -> str:
    """Of the URL of a secret what may be shown: its host, and the name of one of this server's own."""
    try:
        parts, shown = urlsplit(url), shown_origin(url)
    except ValueError:
        return REDACTED
    alone = not (parts.query or parts.fragment or parts.username or parts.password)
    if alone and (parts.path in ("", "/") or OWN_SECRET.fullmatch(parts.path)):
        return url
    return f"{shown}/{REDACTED}" if parts.hostname else REDACTED


def expose_secrets(settings: Mapping[str, Any], expose: Expose, cipher: Cipher | None) -> dict[str, Any]:
    """Agent settings as a client may see them.

    Raises EncryptionUnavailable when they are to be encrypted, hold a secret, and `cipher` is None.
    """

    def encrypt(value: str) -> str:
        if cipher is None:
            raise EncryptionUnavailable("secrets cannot be shown encrypted: the server has no master key")
        return cipher.encrypt(value.encode())

    if expose is Expose.REDACTED:
        hidden = _replaced(settings, _VALUE_TREE, lambda _: REDACTED)
        return dict(_replaced(hidden, _URL_TREE, shown_url))
    return replace_secrets(settings, encrypt if expose is Expose.ENCRYPTED else lambda value: value)


def _replaced(node: Any, tree: _Tree, replace: Callable[[str], str | None]) -> Any:
    if isinstance(node, str):
        return replace(node) if _HERE in tree else node
    every = tree.get(ANY)
    if isinstance(node, list) and every is not None:
        return [_replaced(item, every, replace) for item in node]
    if not isinstance(node, Mapping):
        return node
    copy = {}
    for name, old in node.items():
        below = tree.get(name, every)
        new = old if below is None else _replaced(old, below, replace)
        if new is not None or old is None:
            copy[name] = new
    return copy
