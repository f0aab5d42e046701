"""How settings are shown to clients."""

from __future__ import annotations

from typing import Any

import pytest

from supervisor.mcp.server import server_errors
from supervisor.settings.document import Rules, SettingsDocument, apply_change, first_document, public
from supervisor.settings.errors import EncryptionUnavailable
from supervisor.settings.exposure import EXPOSE_HEADER, Expose

PRESETS = {"demo": ("demo",)}

ACP = {
    "mcp_config": {
        "env": {"command": "run", "args": ["plain"], "env": {"K": "sk-0"}},
        "web": {
            "url": "https://plain",
            "headers": {"X": "sk-1"},
            "auth": {"strategy": "header", "headers": {"Y": "sk-2"}},
        },
        "basic": {
            "url": "https://plain",
            "auth": {"strategy": "basic", "username": "plain", "password": "sk-3"},
        },
        "key": {
            "url": "https://plain",
            "auth": {"strategy": "api_key", "value": "sk-4", "header_name": "plain"},
        },
        "oauth": {
            "url": "https://plain",
            "auth": {
                "strategy": "oauth2",
                "authentication": {"type": "oauth", "client_id": "plain", "client_secret": "sk-5"},
                "state": {
                    "tokens": {"access_token": "sk-6", "refresh_token": "sk-7", "scope": "plain"},
                    "client_info": {"client_secret": "sk-8"},
                    "token_expires_at": 1.5,
                },
            },
        },
    },
    "agent_context": {
        "secrets": {"A": "sk-9", "B": {"kind": "StaticSecret", "value": "sk-10"}},
        "skills": [{"name": "plain", "mcp_tools": {"t": {"command": "c", "env": {"K": "sk-11"}}}}],
    },
}
OPENHANDS = {
    "agent_kind": "openhands",
    "llm": {"model": "plain", "api_key": "sk-0", "aws_session_token": "sk-1", "base_url": None},
    "verification": {"critic_api_key": "sk-2"},
    "meta_profile_llms": {"m": {"api_key": "sk-3"}},
}


class Reversing:
    def encrypt(self, data: bytes) -> str:
        return data.decode()[::-1]


def document(diff: dict[str, Any]) -> SettingsDocument:
    rules = Rules(PRESETS, server_errors)
    return apply_change(first_document(PRESETS), {"agent_settings_diff": diff}, rules)


def leaves(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [leaf for item in value.values() for leaf in leaves(item)]
    if isinstance(value, list):
        return [leaf for item in value for leaf in leaves(item)]
    return [value] if isinstance(value, str) else []


@pytest.mark.parametrize(("diff", "count"), [(ACP, 12), (OPENHANDS, 4)])
def test_secrets_and_nothing_else_are_replaced(diff: dict[str, Any], count: int) -> None:
    plain = public(document(diff), Expose.PLAINTEXT)
    expected = leaves(plain)
    assert sum(leaf.startswith("sk-") for leaf in expected) == count
    redacted = public(document(diff), Expose.REDACTED)
    assert leaves(redacted) == ["**********" if leaf.startswith("sk-") else leaf for leaf in expected]
    encrypted = public(document(diff), Expose.ENCRYPTED, Reversing())
    assert leaves(encrypted) == [leaf[::-1] if leaf.startswith("sk-") else leaf for leaf in expected]


@pytest.mark.guarantee(name="clients-with-a-key")
@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("https://vault/v1/secret/key-in-the-path", "https://vault/**********"),
        ("https://user:sk-1@vault", "https://vault/**********"),
        ("https://vault:8200/?token=sk-1", "https://vault:8200/**********"),
        ("https://[::1]:8200/#sk-1", "https://[::1]:8200/**********"),
        ("https://vault:port/sk-1", "**********"),
        ("/relative/sk-1", "**********"),
        ("https://vault", "https://vault"),
        ("https://vault:8200/", "https://vault:8200/"),
        # Names, not keys: secrets of the server's own store.
        ("/api/settings/secrets/TOKEN", "/api/settings/secrets/TOKEN"),
        ("http://localhost:80/api/settings/secrets/TOKEN", "http://localhost:80/api/settings/secrets/TOKEN"),
        ("http://u:sk-1@localhost/api/settings/secrets/TOKEN", "http://localhost/**********"),
        ("http://localhost/api/settings/secrets/TOKEN?sk-1", "http://localhost/**********"),
        ("http://localhost/api/settings/secrets/TOKEN/sk-1", "http://localhost/**********"),
    ],
)
@pytest.mark.parametrize("kind", ["acp", "openhands"])
def test_of_where_a_secret_is_fetched_the_host_is_shown(url: str, told: str, kind: str) -> None:
    source = {"kind": "LookupSecret", "url": url, "headers": {"X": "sk-2"}}
    diff = {"agent_kind": kind, "agent_context": {"secrets": {"A": source}}}

    def shown(expose: Expose, of: SettingsDocument) -> dict[str, Any]:
        found: dict[str, Any] = public(of, expose, Reversing())
        secret: dict[str, Any] = found["agent_settings"]["agent_context"]["secrets"]["A"]
        return secret

    settings = document(diff)
    redacted = shown(Expose.REDACTED, settings)
    assert redacted == {**source, "url": told, "headers": {"X": "**********"}}
    assert shown(Expose.PLAINTEXT, settings) == source
    assert shown(Expose.ENCRYPTED, settings)["url"] == url[::-1]
    if told != url:
        # What was shown in its place is nothing when it comes back.
        back = document({**diff, "agent_context": {"secrets": {"A": redacted}}})
        assert "url" not in shown(Expose.PLAINTEXT, back)


def test_encryption_without_a_key_fails_only_if_there_is_a_secret() -> None:
    assert public(first_document(PRESETS), Expose.ENCRYPTED) == public(
        first_document(PRESETS), Expose.PLAINTEXT
    )
    with pytest.raises(EncryptionUnavailable):
        public(document(ACP), Expose.ENCRYPTED)


def test_shape() -> None:
    shown = public(first_document(PRESETS), Expose.REDACTED)
    assert set(shown) == {
        "agent_settings",
        "conversation_settings",
        "misc_settings",
        "llm_api_key_is_set",
        "active_profile",
        "active_agent_profile_id",
        "active_meta_profile",
    }
    assert shown["llm_api_key_is_set"] is False
    assert public(document(OPENHANDS), Expose.REDACTED)["llm_api_key_is_set"] is True


def test_header_values() -> None:
    assert EXPOSE_HEADER[None] is Expose.REDACTED
    assert EXPOSE_HEADER["true"] is EXPOSE_HEADER["encrypted"] is Expose.ENCRYPTED
    assert EXPOSE_HEADER["plaintext"] is Expose.PLAINTEXT
    assert "false" not in EXPOSE_HEADER
