"""Secrets of other servers, fetched from a server of the test's own."""

from __future__ import annotations

import attrs
import pytest

from supervisor.credentials import lookup as module
from supervisor.credentials.lookup import LookupFailed, Lookups
from supervisor.credentials.secret import MAX_VALUE_BYTES
from supervisor.credentials.source import LookupSecret
from tests.support.elsewhere import KEY, elsewhere, reply

pytestmark = pytest.mark.guarantee(name="clients-with-a-key")


async def test_the_value_is_the_body_and_the_headers_are_sent() -> None:
    async with elsewhere(reply("ü-value".encode())) as server:
        source = attrs.evolve(server.source(), headers={"X-Session-API-Key": KEY, "Host": "x", "Te": "y"})
        assert await Lookups().fetch({"A": source, "B": source}) == {"A": "ü-value", "B": "ü-value"}
    asked = server.asked[0].decode()
    assert asked.startswith("GET /secret?key=in-the-url HTTP/1.1\r\n")
    assert f"x-session-api-key: {KEY}" in asked.lower().replace(
        "X-Session-API-Key".lower(), "x-session-api-key"
    )
    assert f"host: 127.0.0.1:{server.port}" in asked.lower()
    assert "\r\nte:" not in asked.lower()


@pytest.mark.parametrize(
    ("name", "body", "value"),
    [
        ("utf-8", "schlüssel".encode(), "schlüssel"),
        ("UTF8", "schlüssel".encode(), "schlüssel"),
        ("us-ascii", b"key", "key"),
        ("ISO-8859-1", "schlüssel".encode("latin-1"), "schlüssel"),
        (None, "schlüssel".encode(), "schlüssel"),
        ("us-ascii", "schlüssel".encode(), None),
        ("utf-8", "schlüssel".encode("latin-1"), None),
        ("utf-7", b"key", None),
        ("utf-16", "key".encode("utf-16"), None),
        ("idna", b"key", None),
        ("rot13", b"key", None),
        ("base64", b"a2V5", None),
    ],
)
async def test_what_an_answer_may_be_written_in(name: str | None, body: bytes, value: str | None) -> None:
    """Only what decodes in linear time, and into the text that was meant."""
    headers = "" if name is None else f"Content-Type: text/plain; charset={name}\r\n"
    async with elsewhere(reply(body, headers=headers)) as server:
        if value is not None:
            assert await Lookups().fetch({"TOKEN": server.source()}) == {"TOKEN": value}
            return
        with pytest.raises(LookupFailed, match="is not text"):
            await Lookups().fetch({"TOKEN": server.source()})


@pytest.mark.guarantee(name="secrets-stay-in")
@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (reply(b"no", "403 Forbidden"), "status 403"),
        (reply(b"", "302 Found", "Location: http://127.0.0.1:1/other\r\n"), "redirects are not followed"),
        (reply(b""), "empty"),
        (reply(b" \n"), "empty"),
        (reply(b"\xff\xfe\x00"), "text"),
        (reply(b"a\0b"), "NUL"),
        (reply(b"x" * (MAX_VALUE_BYTES + 1)), "bytes"),
        (reply(b"x", headers="Content-Encoding: gzip\r\n"), "compressed"),
        (reply(b"x", headers="Content-Type: text/plain; charset=nonsense\r\n"), "text"),
        (b"nonsense\r\n\r\n", "RemoteProtocolError"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf", "RemoteProtocolError"),
    ],
)
async def test_a_failure_is_told_and_quotes_nothing(answer: bytes, says: str) -> None:
    async with elsewhere(answer) as server:
        with pytest.raises(LookupFailed) as caught:
            await Lookups().fetch({"TOKEN": server.source()})
    told = str(caught.value)
    assert told.startswith(f"Secret TOKEN cannot be looked up at http://127.0.0.1:{server.port}: ")
    assert says in told
    assert len(server.asked) == 1  # a redirect is nobody's business but its server's
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
    for hidden in (KEY, "in-the-url", "/secret", "other"):
        assert hidden not in told.replace("TOKEN", "")


@pytest.mark.parametrize(
    "source",
    [
        LookupSecret("http://127.0.0.1:1/x"),
        LookupSecret("http://nobody.invalid/x"),
        LookupSecret("http://127.0.0.1:1/x", {"A": "b\r\nC: d"}),
        LookupSecret("http://127.0.0.1:1/x", {"A": "\udc80"}),
        LookupSecret("http://127.0.0.1:1/x", {"bad name": "x"}),
    ],
)
async def test_what_cannot_be_asked_fails_alike(source: LookupSecret) -> None:
    with pytest.raises(LookupFailed, match="Secret A cannot be looked up at "):
        await Lookups().fetch({"A": source})


async def test_an_endless_answer_is_given_up_by_its_bytes() -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with elsewhere(
        head + b"10000\r\n" + b"x" * 0x10000 + b"\r\n10000\r\n" + b"x" * 0x10000, hold=True
    ) as it:
        with pytest.raises(LookupFailed, match="at most"):
            await Lookups().fetch({"A": it.source()})


async def test_an_answer_that_does_not_come_is_given_up_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOKUP_SECONDS", 0.3)
    async with elsewhere(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n", hold=True) as server:
        with pytest.raises(LookupFailed, match=r"no answer|Timeout"):
            await Lookups().fetch({"A": server.source(), "B": server.source()})


@pytest.mark.parametrize(
    ("hosts", "url", "allowed"),
    [
        (None, "http://169.254.169.254/", True),
        ((), "https://keys.example/", False),
        (("*",), "https://keys.example/", True),
        (("keys.example",), "https://KEYS.example.:8443/x", True),
        (("keys.example",), "https://keys.example.evil/x", False),
        (("keys.example",), "https://keys.example@evil/x", False),
        (("*.example",), "https://a.keys.example/x", True),
        (("*.example",), "https://example/x", False),
        (("127.0.0.1",), "http://127.0.0.1:1/x", True),
        (("127.0.0.1",), "http://localhost:1/x", False),
        (("::1",), "http://[::1]:1/x", True),
    ],
)
def test_which_hosts_may_be_asked(hosts: tuple[str, ...] | None, url: str, allowed: bool) -> None:
    assert Lookups(hosts).allows(url) is allowed


@pytest.mark.guarantee(name="secrets-stay-in")
async def test_a_host_that_may_not_be_asked_gets_no_request() -> None:
    async with elsewhere(reply(b"value")) as server:
        with pytest.raises(LookupFailed, match="OSTLER_SECRET_LOOKUPS"):
            await Lookups(()).fetch({"A": server.source()})
        assert server.asked == []


async def test_no_proxy_and_no_netrc_of_the_environment_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    async with elsewhere(reply(b"value")) as server:
        assert await Lookups().fetch({"A": server.source()}) == {"A": "value"}
