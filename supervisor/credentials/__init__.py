"""Secrets: their store, their sources, and what an agent may get."""

from __future__ import annotations

from supervisor.credentials.cipher import Cipher
from supervisor.credentials.errors import (
    CredentialsFailure,
    InvalidSecretName,
    InvalidSecretValue,
    NotDecryptable,
    SecretsCorrupt,
    WrongMasterKey,
)
from supervisor.credentials.master import MasterKey
from supervisor.credentials.secret import REDACTED, Secret, SecretInfo
from supervisor.credentials.source import (
    LookupSecret,
    SecretSource,
    SecretSourceError,
    StaticSecret,
    StoreReference,
    decode_secret_source,
)
from supervisor.credentials.store import SecretStore

__all__ = [
    "REDACTED",
    "Cipher",
    "CredentialsFailure",
    "InvalidSecretName",
    "InvalidSecretValue",
    "LookupSecret",
    "MasterKey",
    "NotDecryptable",
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
]
