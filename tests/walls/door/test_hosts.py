"""Which hosts an agent reaches, and which addresses are of an inner network."""

from __future__ import annotations

import ipaddress

import pytest

from supervisor.agents.walls.door.hosts import DEFAULTS, allow_list, inner, place, way_out


@pytest.mark.parametrize(
    ("text", "host", "port", "allowed"),
    [
        ("", "pypi.org", 443, True),
        ("", "registry.npmjs.org", 80, True),
        ("", "pypi.org", 22, False),
        ("", "example.com", 443, False),
        ("", "pypi.org.example.com", 443, False),
        ("none", "pypi.org", 443, False),
        ("example.com", "example.com", 443, True),
        ("example.com", "pypi.org", 443, False),
        ("default, example.com", "pypi.org", 443, True),
        ("example.com", "sub.example.com", 443, False),
        ("*.example.com", "sub.example.com", 443, True),
        ("*.example.com", "a.b.example.com", 80, True),
        ("*.example.com", "example.com", 443, False),
        ("*.example.com", "badexample.com", 443, False),
        ("*.example.com:8443", "sub.example.com", 8443, True),
        ("*.example.com:8443", "sub.example.com", 443, False),
        ("Example.COM:8443", "example.com", 8443, True),
        ("*", "anything.example", 443, True),
        ("*", "anything.example", 22, False),
        ("*:22", "anything.example", 22, True),
        ("[::1]:8080", "::1", 8080, True),
        ("::1", "::1", 443, True),
        ("10.0.0.1:5432 example.com", "10.0.0.1", 5432, True),
    ],
)
def test_what_is_allowed(text: str, host: str, port: int, allowed: bool) -> None:
    assert allow_list(text).allows(host, port) is allowed


@pytest.mark.parametrize(
    ("text", "host", "port", "trusted"),
    [
        ("localhost:8080", "localhost", 8080, True),
        ("localhost", "localhost", 443, False),
        ("*.internal:8080", "db.internal", 8080, False),
        ("*:8080", "localhost", 8080, False),
    ],
)
def test_only_a_host_that_is_named_with_its_port_may_be_inside(
    text: str, host: str, port: int, trusted: bool
) -> None:
    found = allow_list(text)
    assert found.allows(host, port)
    assert found.trusts(host, port) is trusted


@pytest.mark.parametrize(
    "text",
    [
        "http://example.com",
        "example.com:0",
        "example.com:65536",
        "exa mple:x",
        "*.*",
        "*.10.0.0.1",
        "[::1",
        "-a.b",
    ],
)
def test_a_wrong_pattern_is_one_line(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a host; use name\.example") as error:
        allow_list(text)
    assert "\n" not in str(error.value)


def test_the_agents_own_hosts_come_to_the_others() -> None:
    joined = allow_list("").joined(["*.maker.example"])
    assert joined.allows("auth.maker.example", 443)
    assert all(joined.allows(each, 443) for each in DEFAULTS)


@pytest.mark.parametrize(
    ("host", "proxied"),
    [
        ("pypi.org", True),
        ("corp.example", False),
        ("a.corp.example", False),
        ("notcorp.example", True),
        ("b.dot.example", False),
        ("c.star.example", False),
        ("localhost", False),
        ("127.0.0.1", False),
        ("::1", False),
        ("10.0.0.1", True),
    ],
)
def test_which_hosts_are_reached_through_the_machines_proxy(host: str, proxied: bool) -> None:
    direct = "Corp.example, .dot.example,*.star.example"
    found = way_out({"https_proxy": "http://user:secret@proxy.corp:3128", "NO_PROXY": direct})
    assert (found.of(host) is not None) is proxied
    assert "secret" not in repr(found)


def test_the_machines_proxy() -> None:
    assert way_out({"ALL_PROXY": "http://all:1", "HTTPS_PROXY": "http://https:2"}).of("x") == "http://https:2"
    assert way_out({"HTTPS_PROXY": "http://https:2", "no_proxy": "*"}).of("x") is None
    assert way_out({"HTTPS_PROXY": "socks5://https:2"}).of("x") is None
    assert way_out({}).of("x") is None


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Example.com:443", ("example.com", 443)),
        ("example.com.:443", ("example.com", 443)),
        ("[::1]:80", ("::1", 80)),
        ("127.0.0.1:80", ("127.0.0.1", 80)),
        ("example.com", None),
        ("example.com:", None),
        ("example.com:http", None),
        ("a b:80", None),
        ("ex\u00e4mple:80", None),
        ("user@example.com:80", None),
        ("a" * 300 + ":80", None),
        ("::1", None),
        ("example.com:8\u0660", None),
    ],
)
def test_the_target_of_a_request(text: str, found: tuple[str, int] | None) -> None:
    assert place(text) == found


@pytest.mark.parametrize(
    "text",
    [
        "127.0.0.1", "127.8.8.8", "0.0.0.0", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254",
        "100.64.0.1", "100.100.100.200", "198.18.0.1", "224.0.0.1", "255.255.255.255", "168.63.129.16",
        "192.0.0.192",
        "::1", "::", "fe80::1", "fe80::1%eth0", "fc00::1", "fd00:ec2::254", "ff02::1", "fec0::1",
        "::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "2002:7f00:1::1",
        "2001:db8::1",
    ],
)  # fmt: skip
def test_inner_addresses(text: str) -> None:
    assert inner(ipaddress.ip_address(text))


@pytest.mark.parametrize(
    "text", ["140.82.121.4", "1.1.1.1", "2606:4700:4700::1111", "::ffff:1.1.1.1", "64:ff9b::101:101"]
)
def test_public_addresses(text: str) -> None:
    assert not inner(ipaddress.ip_address(text))
