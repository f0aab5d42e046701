"""Arguments and environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.config import Config, load_config
from gateway.parsing import ConfigError
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
    config = load_config(env, host="0.0.0.0", port="0", state=str(tmp_path))
    assert (config.host, config.port, config.state) == ("0.0.0.0", 0, tmp_path)
    assert load_config({"OSTLER_PORT": "", "OSTLER_HOST": ""}).port == 8000


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
        ({}, {"OSTLER_MAX_SUBSCRIBERS": "many"}, "OSTLER_MAX_SUBSCRIBERS"),
        ({}, {"OSTLER_GRACE_SECONDS": "inf"}, "OSTLER_GRACE_SECONDS"),
        ({}, {"OSTLER_STALL_SECONDS": "-1"}, "OSTLER_STALL_SECONDS"),
        ({}, {"OSTLER_CORS_ORIGIN_REGEX": "("}, "OSTLER_CORS_ORIGIN_REGEX"),
        ({}, {"OH_SESSION_API_KEYS": "key"}, "OH_SESSION_API_KEYS"),
        ({}, {"OH_SESSION_API_KEYS": "[1]"}, "OH_SESSION_API_KEYS"),
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
