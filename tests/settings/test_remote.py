"""Settings of a remote agent: which addresses and headers there are, and when the address goes."""

from __future__ import annotations

import pytest

from supervisor.agents.remote.relay import MODULE, websocket_url
from supervisor.settings.agent import decode_agent_settings
from supervisor.settings.document import Rules, _change_agent
from supervisor.settings.errors import SettingsError
from supervisor.settings.profiles.profile import profile_to_settings, settings_to_profile
from supervisor.settings.remote import RELAY_COMMAND

PRESETS = {"codex": ("codex-acp",), "claude-code": ("claude",)}


def decoded(**members):
    return decode_agent_settings({"agent_kind": "acp", **members}, PRESETS)


def errors(**members):
    with pytest.raises(SettingsError) as info:
        decoded(**members)
    return [(each.loc[2:], each.msg) for each in info.value.errors]


@pytest.mark.parametrize(
    ("url", "meant"),
    [
        ("ws://host", "ws://host/acp"),
        ("http://host/", "ws://host/acp"),
        ("https://host:8443/agents/a?x=1#y", "wss://host:8443/agents/a?x=1"),
        ("wss://[::1]/acp", "wss://[::1]/acp"),
    ],
)
def test_addresses(url, meant):
    settings = decoded(acp_url=url)
    assert settings.acp_url == url
    assert (settings.acp_server, settings.acp_command) == ("custom", RELAY_COMMAND)
    assert websocket_url(url) == meant


def test_the_command_is_the_relay():
    assert RELAY_COMMAND[-1] == MODULE


@pytest.mark.parametrize(
    "url",
    ["host", "ftp://host", "ws://", "ws://host:x", "ws://host:0", "ws://ho st", "ws://host/\n", "//host"],
)
def test_what_is_no_address(url):
    (found,) = errors(acp_url=url)
    assert found[0] == ("acp_url",)
    assert "such as wss://" in found[1]
    assert url not in found[1]


def test_an_address_holds_no_credentials():
    ((_, said),) = errors(acp_url="wss://user:pass@host/acp")
    assert "name a secret in acp_headers" in said


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("Authorization", "Bearer abc", "looks like a credential"),
        ("x-api-key", "abc", "looks like a credential"),
        ("Cookie", "abc", "looks like a credential"),
        ("Host", "abc", "belongs to the connection"),
        ("Sec-WebSocket-Key", "abc", "belongs to the connection"),
        ("Bad Name", "abc", "a header's name"),
        ("X-Team", "a\r\nb", ""),
    ],
)
def test_headers_that_are_refused(name, value, said):
    ((loc, text),) = errors(acp_url="ws://host", acp_headers={name: value})
    assert loc == ("acp_headers", name)
    assert said in text


def test_headers_name_secrets():
    headers = {"Authorization": "Bearer ${TOKEN}", "X-Team": "blue"}
    assert decoded(acp_url="ws://host", acp_headers=headers).acp_headers == headers


@pytest.mark.parametrize(
    ("diff", "agent"),
    [
        ({"acp_server": "codex"}, ("codex", None)),
        ({"acp_command": ["mine"]}, ("custom", None)),
        ({"acp_url": "ws://other"}, ("custom", "ws://other")),
        ({"acp_model": "m"}, ("custom", "ws://host")),
        ({"acp_url": None}, ("custom", None)),
    ],
)
def test_another_agent_takes_its_place(diff, agent):
    current = {
        "agent_kind": "acp",
        "acp_server": "custom",
        "acp_command": list(RELAY_COMMAND),
        "acp_url": "ws://host",
    }
    found = _change_agent(current, diff, Rules(PRESETS, lambda value, loc: []), {})
    assert (found["acp_server"], found.get("acp_url")) == agent


def test_a_profile_of_it_finds_it_in_the_settings():
    settings = decoded(acp_url="ws://host", acp_headers={"X-Team": "blue"})
    profile = settings_to_profile(settings, "mine", PRESETS)
    server = {"agent_kind": "acp", "acp_url": "ws://host", "acp_headers": {"X-Team": "blue"}}
    found = profile_to_settings(profile, PRESETS, server)
    assert (found.acp_url, found.acp_headers) == ("ws://host", {"X-Team": "blue"})
    other = settings_to_profile(decoded(acp_server="codex"), "other", PRESETS)
    assert profile_to_settings(other, PRESETS, server).acp_url is None
