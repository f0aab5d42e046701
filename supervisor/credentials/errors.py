"""Errors of stored secrets. No message ever holds a value."""

from __future__ import annotations

from pathlib import Path


class CredentialsFailure(Exception):
    """Base of the errors of credentials. Its text is safe to show to a client and to log."""


class InvalidSecretName(CredentialsFailure):
    """A secret name does not match `SECRET_NAME`."""


class InvalidSecretValue(CredentialsFailure):
    """A secret value is blank, a redacted placeholder, or cannot stand in an environment."""


class SecretsCorrupt(CredentialsFailure):
    """The secret file is damaged. It is left unchanged, for a person to repair."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(
            f"secret file {path} is not usable: {reason}; "
            "restore it from a backup, or move it away and set the secrets again"
        )
        self.path = path


class WrongMasterKey(CredentialsFailure):
    """The master key in use is not the one that the secret file was written with. Nothing was changed."""

    def __init__(self, path: Path, source: str) -> None:
        super().__init__(
            f"secret file {path} was encrypted with another master key than the one from {source}; "
            "give the key that it was encrypted with"
        )
        self.path = path
        self.source = source


class MasterKeyUnavailable(CredentialsFailure):
    """The master key is in the OS keyring, which cannot be read. Nothing was changed."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(
            f"the master key of secret file {path} is in the OS keyring: {reason}; "
            "make the keyring readable and start Ostler again"
        )
        self.path = path


class CannotRotate(CredentialsFailure):
    """No new master key is set. Nothing was changed."""


class NotDecryptable(CredentialsFailure):
    """A token was not made with this key, or was damaged."""
