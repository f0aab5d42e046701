"""Arguments and environment."""

from __future__ import annotations

import resource
import socket
from pathlib import Path

import pytest

from gateway.configuration.config import Config, load_config
from gateway.configuration.parsing import ConfigError
from supervisor.events import Vocabulary


def test_defaults(monkeypatch):
    monkeypatch.setenv("HOME", "/home/somebody")
    config = load_config({})
    assert (config.host, config.port, config.state) == ("127.0.0.1", 8000, Path("/home/somebody/.ostler"))
    assert config.session_api_keys == ()
    assert config == Config()


def test_arguments_go_before_the_environment(tmp_path):
    env = {"OSTLER_HOST": "::1", "OSTLER_PORT": "1", "OSTLER_STATE": "/env"}
    config = load_config(env)
    assert (config.host, config.port, config.state) == ("::1", 1, Path("/env"))
    env["OSTLER_ALLOW_OPEN"] = "1"
    config = load_config(env, host="0.0.0.0", port="0", state=str(tmp_path))
    assert (config.host, config.port, config.state) == ("0.0.0.0", 0, tmp_path)
    assert load_config({"OSTLER_PORT": "", "OSTLER_HOST": ""}).port == 8000


@pytest.mark.guarantee(name="a-setting-counts-or-the-server-does-not-start")
@pytest.mark.parametrize(
    ("arguments", "env", "named"),
    [
        ({"port": "x"}, {}, "--port"),
        ({"port": "65536"}, {}, "--port"),
        ({"port": "-1"}, {}, "--port"),
        ({"host": ""}, {}, "--host"),
        ({"host": "a b"}, {}, "--host"),
        ({"state": ""}, {}, "--state"),
        ({"state": "~nobody-of-that-name/x"}, {}, "--state"),
        ({}, {"OSTLER_PORT": "x"}, "OSTLER_PORT"),
        ({}, {"OSTLER_MAX_BODY_BYTES": "0"}, "OSTLER_MAX_BODY_BYTES"),
        ({}, {"OSTLER_EVENT_VOCABULARY": "both"}, "OSTLER_EVENT_VOCABULARY"),
        ({}, {"OSTLER_LOG": "xml"}, "OSTLER_LOG"),
        ({}, {"OSTLER_WORKSPACE_ACCESS": "some"}, "OSTLER_WORKSPACE_ACCESS"),
        ({}, {"OSTLER_BASH_COMMANDS": "0"}, "OSTLER_BASH_COMMANDS"),
        ({}, {"OSTLER_MAX_SUBSCRIBERS": "many"}, "OSTLER_MAX_SUBSCRIBERS"),
        ({}, {"OSTLER_GRACE_SECONDS": "inf"}, "OSTLER_GRACE_SECONDS"),
        ({}, {"OSTLER_STALL_SECONDS": "-1"}, "OSTLER_STALL_SECONDS"),
        ({}, {"OSTLER_CORS_ORIGIN_REGEX": "("}, "OSTLER_CORS_ORIGIN_REGEX"),
        ({}, {"OH_SESSION_API_KEYS": "key"}, "OH_SESSION_API_KEYS"),
        ({}, {"OH_SESSION_API_KEYS": "[1]"}, "OH_SESSION_API_KEYS"),
        ({}, {"OSTLER_ALLOW_OPEN": "perhaps"}, "OSTLER_ALLOW_OPEN"),
        ({}, {"OSTLER_ALLOWED_HOSTS": "https://a.example"}, "OSTLER_ALLOWED_HOSTS"),
        ({}, {"OSTLER_ALLOWED_HOSTS": "a.example:80"}, "OSTLER_ALLOWED_HOSTS"),
        ({}, {"OSTLER_ALLOWED_HOSTS": "a.*.example"}, "OSTLER_ALLOWED_HOSTS"),
        ({}, {"OSTLER_MAX_CONVERSATIONS": "0"}, "OSTLER_MAX_CONVERSATIONS"),
        ({}, {"OSTLER_MAX_CONNECTIONS": "-1"}, "OSTLER_MAX_CONNECTIONS"),
        ({}, {"OSTLER_MAX_MESSAGE_BYTES": "1e3"}, "OSTLER_MAX_MESSAGE_BYTES"),
        ({}, {"OSTLER_BODY_SECONDS": "0"}, "OSTLER_BODY_SECONDS"),
        ({}, {"OSTLER_MAX_FRAME_BYTES": "16M"}, "OSTLER_MAX_FRAME_BYTES"),
    ],
)
def test_what_cannot_be_used_is_named(arguments, env, named):
    with pytest.raises(ConfigError) as info:
        load_config(env, **arguments)
    assert str(info.value).startswith(named)
    assert "\n" not in str(info.value)


@pytest.mark.parametrize(
    ("env", "keys"),
    [
        ({"OSTLER_SESSION_API_KEYS": "a, b,,a"}, ("a", "b")),
        ({"OSTLER_SESSION_API_KEY": "a"}, ("a",)),
        ({"OH_SESSION_API_KEYS": '["a", ""]'}, ("a",)),
        (
            {"OH_SESSION_API_KEYS_0": "a", "OH_SESSION_API_KEYS_1": "b", "OH_SESSION_API_KEYS_X": "c"},
            ("a", "b"),
        ),
        ({"SESSION_API_KEY": "a"}, ("a",)),
        ({"SESSION_API_KEY": " "}, ()),
    ],
)
def test_session_keys_by_any_of_their_names(env, keys):
    assert load_config(env).session_api_keys == keys


def test_a_vocabulary_can_be_forced():
    assert load_config({}).event_vocabulary is None
    assert load_config({"OSTLER_EVENT_VOCABULARY": "core"}).event_vocabulary is Vocabulary.CORE


def test_keys_are_not_shown():
    assert "s3cr3t" not in repr(load_config({"OSTLER_SESSION_API_KEY": "s3cr3t"}))


HERE = ("127.0.0.1", "127.8.9.1", "::1", "::ffff:127.0.0.1", "localhost", "127.1")
ELSEWHERE = ("0.0.0.0", "::", "192.168.1.5", "fe80::1", "::ffff:10.0.0.1", "0", "lan.example", "both.example")


@pytest.fixture
def names(monkeypatch):
    known = {"lan.example": ["192.168.1.5"], "both.example": ["127.0.0.1", "192.168.1.5"]}
    real = socket.getaddrinfo

    def resolve(host, port, *args, **kwargs):
        if host in known:
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, 0)) for each in known[host]]
        return real(host, port, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)


@pytest.mark.parametrize("host", HERE)
def test_an_open_server_may_listen_on_this_machine(host):
    assert load_config({}, host=host).host == host


@pytest.mark.guarantee(name="other-machines")
@pytest.mark.parametrize("host", ELSEWHERE)
def test_an_open_server_may_not_listen_elsewhere(names, host):
    for arguments, env, named in (({"host": host}, {}, "--host"), ({}, {"OSTLER_HOST": host}, "OSTLER_HOST")):
        with pytest.raises(ConfigError) as info:
            load_config({**env, "OSTLER_SESSION_API_KEY": " "}, **arguments)
        line = str(info.value)
        assert line.startswith(f"{named}: {host} ")
        assert "OSTLER_SESSION_API_KEY" in line
        assert "OSTLER_ALLOW_OPEN=1" in line
        assert "\n" not in line
    assert load_config({"OSTLER_ALLOW_OPEN": "1"}, host=host).allow_open
    assert load_config({"OSTLER_SESSION_API_KEY": "k"}, host=host).host == host
    with pytest.raises(ConfigError):
        load_config({"OSTLER_ALLOW_OPEN": "0"}, host=host)


def test_a_name_that_leads_nowhere_is_left_to_listening():
    assert load_config({}, host="no-such-host.invalid").host == "no-such-host.invalid"


def test_further_names_and_limits():
    env = {
        "OSTLER_ALLOWED_HOSTS": "a.example, *.b.example,192.0.2.1",
        "OSTLER_MAX_CONVERSATIONS": "3",
        "OSTLER_MAX_CONNECTIONS": "4",
        "OSTLER_MAX_MESSAGE_BYTES": "5",
        "OSTLER_BODY_SECONDS": "6.5",
    }
    config = load_config(env)
    assert config.allowed_hosts == ("a.example", "*.b.example", "192.0.2.1")
    assert (config.max_conversations, config.max_connections, config.max_message_bytes) == (3, 4, 5)
    assert config.body_seconds == 6.5


def test_connections_leave_files_for_the_agents(monkeypatch):
    for soft, most in ((1024, 342), (10**6, 4096), (resource.RLIM_INFINITY, 4096), (20, 8)):
        monkeypatch.setattr(resource, "getrlimit", lambda _what, soft=soft: (soft, soft))
        assert load_config({}).max_connections == most
