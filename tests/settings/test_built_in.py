"""Where the secrets of the built-in agent stand, and what becomes of them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from supervisor.mcp.server import server_errors
from supervisor.settings.agent import agent_settings_to_dict
from supervisor.settings.built_in import decode_agent, decrypted, document_secrets, hidden
from supervisor.settings.exposure import _URL_PATHS, _VALUE_PATHS, ANY, REDACTED, secrets_of
from supervisor.settings.llm import linked_settings, models_of

CANARY = "canary-0123456789"
URL = f"https://vault.example/v1/it?key={CANARY}"
LISTS = frozenset({"skills"})
LLM = {"model": "m"}


class Marking:
    """A cipher whose tokens tell what they hold."""

    def encrypt(self, data: bytes) -> str:
        return f"gAAAA{data.decode()}"

    def decrypt(self, token: str) -> bytes:
        return token.removeprefix("gAAAA").encode()


def at(path: tuple[str, ...], value: str) -> Any:
    """A document with `value` there."""
    node: Any = value
    for name, parent in zip(reversed(path), (*reversed(path[:-1]), ""), strict=True):
        node = [node] if name == ANY and parent in LISTS else {"named" if name == ANY else name: node}
        if name in ("url", "value") and parent == ANY and path[:2] == ("agent_context", "secrets"):
            node["kind"] = "LookupSecret"
    return node


@pytest.mark.guarantee(name="secrets-stay-in")
@pytest.mark.parametrize("path", [*_VALUE_PATHS, *_URL_PATHS], ids=".".join)
def test_every_place_of_a_secret_is_known(path: tuple[str, ...]) -> None:
    secret = URL if path in _URL_PATHS else CANARY
    given = at(path, secret)
    assert CANARY not in json.dumps(hidden(given))
    opened = decrypted(at(path, f"gAAAA{secret}"), Marking())
    assert opened == given
    document = {"kind": "Agent", "llm": LLM, **opened}
    agent = decode_agent(document, (), lambda *_: [])
    assert CANARY not in json.dumps(agent.shown)
    masked = [*document_secrets(agent), *secrets_of(agent_settings_to_dict(agent))]
    assert CANARY in masked
    assert secret in masked


@pytest.mark.parametrize("name", ["kind", "value", "url"])
def test_a_secret_may_have_any_name(name: str) -> None:
    given = {"llm": LLM, "agent_context": {"secrets": {name: CANARY, "OTHER": "other-0123456789"}}}
    agent = decode_agent({"kind": "Agent", **given}, (), server_errors)
    assert agent.shown["agent_context"]["secrets"] == {name: REDACTED, "OTHER": REDACTED}
    assert document_secrets(agent) == [CANARY, "other-0123456789"]


def test_placeholders_are_no_secrets() -> None:
    auth = {"strategy": "bearer", "value": REDACTED}
    shown_source = {"kind": "LookupSecret", "url": f"https://vault.example/{REDACTED}"}
    agent = decode_agent(
        {
            "kind": "Agent",
            "llm": {"model": "m", "api_key": REDACTED},
            "agent_context": {
                "secrets": {"A": REDACTED, "B": shown_source},
                "skills": [{"name": "s", "mcp_tools": {"t": {"url": "https://mcp.example", "auth": auth}}}],
            },
        },
        (),
        server_errors,
    )
    assert REDACTED not in json.dumps(agent.document)
    assert document_secrets(agent) == []


def test_what_is_no_secret_is_shown() -> None:
    given: dict[str, Any] = {
        "llm": {"model": "m", "temperature": 1.0},
        "agent_context": {
            "secrets": {"A": {"kind": "StaticSecret", "value": CANARY, "description": "of the door"}},
            "skills": [{"name": "s", "mcp_tools": {"t": {"url": "https://plain", "auth": "oauth"}}}],
        },
        "allowed": {"secrets": ["NAME"]},
    }
    shown = hidden(given)
    assert shown["agent_context"]["secrets"]["A"] == {
        "kind": "StaticSecret",
        "value": REDACTED,
        "description": "of the door",
    }
    assert {**shown, "agent_context": None} == {**given, "agent_context": None}
    assert shown["agent_context"]["skills"] == given["agent_context"]["skills"]


CONNECTIONS = {"c": {"base_url": "https://x", "api_key": CANARY}}
LINKED = {"model": "m", "provider_connection_id": "c"}


def test_every_model_has_the_key_of_its_connection() -> None:
    condenser = {"kind": "LLMSummarizingCondenser", "llm": LINKED}
    given = {"llm": LINKED, "condenser": condenser, "meta_profile_llms": {"a": LINKED}}
    found = linked_settings(given, CONNECTIONS)
    keys = [found["llm"], found["condenser"]["llm"], found["meta_profile_llms"]["a"]]
    assert [each["api_key"] for each in keys] == [CANARY] * 3
    assert [each["provider_connection_id"] for each in models_of(given)] == ["c"] * 3


@pytest.mark.parametrize(
    "odd",
    [
        {"meta_profile_llms": [1]},
        {"meta_profile_llms": {"a": 5}},
        {"meta_profile_llms": "x"},
        {"condenser": [1]},
        {"condenser": {"llm": "x"}},
        {"llm": 5},
    ],
    ids=str,
)
def test_what_is_no_model_is_linked_to_nothing(odd: dict[str, Any]) -> None:
    assert linked_settings(odd, CONNECTIONS) == odd
    assert set(models_of(odd)) <= {None, 5, "x"}
