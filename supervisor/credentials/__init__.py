"""Secrets: their store, their sources, and what an agent may get."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.first_use import names_of

if TYPE_CHECKING:
    from supervisor.credentials.cipher import Cipher
    from supervisor.credentials.errors import (
        CannotRotate,
        CredentialsFailure,
        InvalidSecretName,
        InvalidSecretValue,
        MasterKeyUnavailable,
        NotDecryptable,
        SecretsCorrupt,
        WrongMasterKey,
    )
    from supervisor.credentials.external_sources import FoundSecret, is_private, take_private
    from supervisor.credentials.lookup import LOOKUP_REFUSED, LookupFailed, Lookups
    from supervisor.credentials.master import MasterKey
    from supervisor.credentials.os_keyring import OsKeyring
    from supervisor.credentials.secret import REDACTED, Secret, SecretInfo
    from supervisor.credentials.source import (
        LookupSecret,
        SecretSource,
        SecretSourceError,
        StaticSecret,
        StoreReference,
        decode_secret_source,
    )
    from supervisor.credentials.store import Rotation, SecretStore
else:
    homes = {
        "cipher": "Cipher",
        "errors": (
            "CannotRotate CredentialsFailure InvalidSecretName InvalidSecretValue MasterKeyUnavailable "
            "NotDecryptable SecretsCorrupt WrongMasterKey"
        ),
        "external_sources": "FoundSecret is_private take_private",
        "lookup": "LOOKUP_REFUSED LookupFailed Lookups",
        "master": "MasterKey",
        "os_keyring": "OsKeyring",
        "secret": "REDACTED Secret SecretInfo",
        "source": (
            "LookupSecret SecretSource SecretSourceError StaticSecret StoreReference decode_secret_source"
        ),
        "store": "Rotation SecretStore",
    }
    __getattr__ = names_of(__name__, homes)

__all__ = [
    "LOOKUP_REFUSED",
    "REDACTED",
    "CannotRotate",
    "Cipher",
    "CredentialsFailure",
    "FoundSecret",
    "InvalidSecretName",
    "InvalidSecretValue",
    "LookupFailed",
    "LookupSecret",
    "Lookups",
    "MasterKey",
    "MasterKeyUnavailable",
    "NotDecryptable",
    "OsKeyring",
    "Rotation",
    "Secret",
    "SecretInfo",
    "SecretSource",
    "SecretSourceError",
    "SecretStore",
    "SecretsCorrupt",
    "StaticSecret",
    "StoreReference",
    "WrongMasterKey",
    "decode_secret_source",
    "is_private",
    "take_private",
]
