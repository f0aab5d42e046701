"""The layout of the secret file: names and descriptions in the clear, values encrypted. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import attrs

from supervisor.credentials.secret import SecretsCorrupt
from supervisor.stored import OtherVersion, check_version

#: The version of a file without earlier keys and without a key in the keyring.
PLAIN_VERSION: Final = 1

#: With either: a program that knows only the first version would drop them when it writes.
FORMAT_VERSION: Final = 2

#: A text encrypted with the master key in every file, so that a wrong key shows before it does harm.
PROBE: Final = b"ostler"


@attrs.frozen
class Sealed:
    """A secret in the file: the token of its value."""

    token: str = attrs.field(repr=False)
    description: str | None = None


@attrs.frozen
class Document:
    """The file's content.

    `check` is the token of PROBE. `retired` are the earlier master keys, each encrypted under the present
    one. `keyring_entry` names the entry of the OS keyring that holds the present key, if one does.
    """

    check: str
    secrets: Mapping[str, Sealed]
    retired: tuple[str, ...] = ()
    keyring_entry: str | None = None


def parse_document(data: bytes, where: str) -> Document:
    """Parse the file's bytes. Raises SecretsCorrupt, which names `where`."""
    try:
        document = json.loads(data)
        check_version(document, PLAIN_VERSION, FORMAT_VERSION)
        secrets = {
            name: Sealed(str(entry["value"]), entry["description"])
            for name, entry in document["secrets"].items()
        }
        entry = document.get("keyring_entry")
        retired = tuple(map(str, document.get("retired", ())))
        return Document(str(document["check"]), secrets, retired, None if entry is None else str(entry))
    except OtherVersion as error:
        raise SecretsCorrupt(where, str(error)) from None
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise SecretsCorrupt(where, "it is not the JSON that Ostler writes") from error


def dump_document(document: Document) -> bytes:
    """The bytes of the file."""
    plain = not document.retired and document.keyring_entry is None
    found: dict[str, Any] = {"version": PLAIN_VERSION if plain else FORMAT_VERSION, "check": document.check}
    if document.keyring_entry is not None:
        found["keyring_entry"] = document.keyring_entry
    if document.retired:
        found["retired"] = document.retired
    found["secrets"] = {
        name: {"value": sealed.token, "description": sealed.description}
        for name, sealed in sorted(document.secrets.items())
    }
    return json.dumps(found, indent=1).encode() + b"\n"
