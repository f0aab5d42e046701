"""Values that are too common to be hidden, and credentials that are not."""

from __future__ import annotations

import secrets
import string

import pytest

from supervisor.credentials.common import too_common
from supervisor.credentials.masking import HIDDEN, Masker


@pytest.mark.guarantee(name="secrets-stay-in")
@pytest.mark.parametrize(
    "value",
    [
        "production", "PRODUCTION", "staging-eu", "prod_2", "development", "localhost", "us-east-1",
        "europe-west4", "eu-central-1", "anthropic", "openrouter", "google-vertex", "claude-code",
        "gemini-cli", "disabled", "true", "short", "/home/alice/work", "/usr/local/bin",
        "~/projects/shop", "./node_modules",
        "/workspace/project", "C:\\Users\\alice", "en_US.UTF-8", "Europe/Berlin", "https://api.example.com/v1",
        "http://localhost:8080", "localhost:5432", "api.openai.com", "127.0.0.1", "http://127.0.0.1:9/v1",
        "2026-11-22", "v1.22.333", "xxxxxxxxxxxx", "********",
    ],
)  # fmt: skip
def test_common_values_are_not_hidden(value: str) -> None:
    assert too_common(value)
    command = f"deploy --to {value} --now"
    assert Masker([value]).text(command) == command


@pytest.mark.guarantee(name="secrets-stay-in")
@pytest.mark.parametrize(
    "value",
    [
        "hunter2hunter2", "us-hunterpassword",
        "correct horse battery", "swordfish", "Pr0duction!", "sk-ant-REDACTED",
        "ghp_16C7e42F292c6912E7710c838347Ae178B4a", "AKIAIOSFODNN7EXAMPLE", "12345678", "4111111111111111",
        "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "/wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEY",
        "/9j/4AAQSkZJRgABAQAAAQABAAD", "https://hooks.slack.com/services/T00/B00/XXXXabcdXXXX12",
        "https://user:pass@example.com/", "postgres://u:p@localhost/db", "https://example.com/?token=abc",
        "d41d8cd98f00b204e9800998ecf8427e", "550e8400-e29b-41d4-a716-446655440000", "production-x7Gh2kQ9",
        "-----BEGIN KEY-----\nabc\n", "/home/alice/AbCdEfGhIjKlMnOpQrStUv12", "alice@example.com",
    ],
)  # fmt: skip
def test_credentials_are_hidden(value: str) -> None:
    assert too_common(value) is None
    assert HIDDEN in Masker([value]).text(f"deploy --to {value} --now")


def test_nothing_that_is_made_up_by_chance_is_common() -> None:
    alphabets = (
        string.ascii_letters + string.digits,
        string.ascii_letters + string.digits + "+/",
        string.ascii_letters + string.digits + "-_",
        "0123456789abcdef",
        string.ascii_lowercase + string.digits,
    )
    for alphabet in alphabets:
        for length in (16, 24, 40):
            for _ in range(400):
                value = "".join(secrets.choice(alphabet) for _ in range(length))
                assert too_common(value) is None, value
                assert too_common(f"/{value}") is None, value


def test_the_parts_of_a_document_count_by_themselves() -> None:
    document = '{"project_path": "/home/alice/very/long/path/to/it", "key": "Zx81Kq0Pm27LwVr93TnBy54"}'
    masker = Masker([document])
    assert masker.text("cd /home/alice/very/long/path/to/it") == "cd /home/alice/very/long/path/to/it"
    assert masker.text("use Zx81Kq0Pm27LwVr93TnBy54") == f"use {HIDDEN}"


def test_the_servers_own_keys_are_always_hidden() -> None:
    assert Masker([], always=["production"]).text("in production") == f"in {HIDDEN}"
