"""The checks of `ostler doctor` that look for a server: the control socket and the address."""

from __future__ import annotations

import socket
import stat

from gateway.cli.client import CONNECT_SECONDS, Server
from gateway.cli.doctor.findings import FAIL, OK, WARN, Finding, Findings, Machine
from gateway.cli.failures import Failure, Unreachable
from gateway.cli.text import one_line
from gateway.configuration.address import DEFAULT_HOST, DEFAULT_PORT, http_url, local_url
from gateway.serving.control import CONTROL_FILE, connect


def port(machine: Machine) -> Findings:
    """Whether a server runs at the address, or can listen there."""
    if machine.env.get("OSTLER_PORT") == "0":
        yield Finding("port", OK, "any free port")
        return
    try:
        url = local_url(machine.env)
        server = Server(url, None)
    except (ValueError, Failure):
        return  # the configuration check reports it
    try:
        if server.is_ostler:
            yield Finding("port", OK, f"a server runs at {url}")
            return
    except Unreachable:
        yield from _free(machine, url, server.port)
        return
    except Failure:
        pass
    yield Finding(
        "port", FAIL, f"something else answers at {url}", "Choose another port: OSTLER_PORT, or serve --port."
    )


def named(machine: Machine) -> Findings:
    """Whether the server that OSTLER_URL names answers, which commands use before any other."""
    if not machine.env.get("OSTLER_URL"):
        return
    name, advice = (
        "OSTLER_URL",
        "Correct OSTLER_URL, or unset it: commands then use the server of this machine.",
    )
    try:
        server = Server.of(None, machine.env)
        if server.is_ostler:
            yield Finding(name, OK, f"a server runs at {server.url}")
        else:
            yield Finding(name, FAIL, f"something else answers at {server.url}", advice)
    except Failure as error:
        yield Finding(name, FAIL, one_line(str(error)), advice)


def control_socket(machine: Machine) -> Findings:
    """Whether a server has this state directory, wherever it listens."""
    path = machine.state / CONTROL_FILE
    name = "control socket"
    try:
        is_socket = stat.S_ISSOCK(path.lstat().st_mode)
    except OSError:
        yield Finding(name, OK, "none: no server uses this state directory")
        return
    if not is_socket:
        advice = "Remove it; the server creates its own."
        yield Finding(name, WARN, f"{path} is not a socket; commands need the address of the server", advice)
        return
    try:
        connect(path, CONNECT_SECONDS).close()
        ours = Server(http_url(DEFAULT_HOST, DEFAULT_PORT), None, path).is_ostler
    except ConnectionRefusedError:
        yield Finding(name, OK, f"a killed server left {path}; the next one replaces it")
    except (OSError, Failure) as error:
        advice = "Read the server's log, or restart it."
        yield Finding(name, WARN, f"{path} does not answer ({one_line(str(error))})", advice)
    else:
        if ours:
            yield Finding(name, OK, f"a server uses this state directory; commands reach it by {path}")
        else:
            yield Finding(
                name, WARN, f"something else answers at {path}", "End that program, and remove the file."
            )


def _free(machine: Machine, url: str, number: int) -> Findings:
    host = machine.env.get("OSTLER_HOST") or DEFAULT_HOST
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, number, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind(address)
    except OSError as error:
        yield Finding(
            "port",
            FAIL,
            f"cannot listen on {url}: {error.strerror or error}",
            "Choose another address: OSTLER_HOST and OSTLER_PORT, or serve --host and --port.",
        )
    else:
        yield Finding("port", OK, f"free: no server runs at {url}")
