"""Headers of a model's requests: which of them are credentials."""

from __future__ import annotations

import pytest

from supervisor.agents.builtin.library.headers import is_credential
from supervisor.settings.built_in import secrets_within

CREDENTIALS = (
    "Authorization",
    "Proxy-Authorization",
    "Cookie",
    "X-API-Key",
    "x-goog-api-key",
    "api_key",
    "ApiKey",
    "SubscriptionKey",
    "Ocp-Apim-Subscription-Key",
    "X-Auth-Token",
    "X-AuthToken",
    "Helicone-Auth",
    "CF-Access-Client-Secret",
    "X-Password",
)
WORDS = (
    "X-Title",
    "HTTP-Referer",
    "Accept",
    "Content-Type",
    "User-Agent",
    "X-Author",
    "X-Key-Name",
    "Monkey",
    "",
)


@pytest.mark.guarantee(name="keys-and-secrets")
@pytest.mark.parametrize("name", [*CREDENTIALS, *WORDS])
def test_the_agent_and_the_server_hide_the_same(name: str) -> None:
    secret = name in CREDENTIALS
    model = {"llm": [{"extra_headers": {name: "a-value"}}]}
    assert is_credential(name) is secret
    assert secrets_within(model) == (["a-value"] if secret else [])
