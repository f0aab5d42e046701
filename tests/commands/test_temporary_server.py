"""The server that `run` and `chat` start where there is none: it is there for the time, and then gone."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time

import pytest

from tests.support.processes import alive, kill_mentioning, mentioning, wait_until
from tests.support.terminal import CTRL_C, CTRL_D
from tests.support.thorough import everyday


@pytest.fixture(autouse=True)
def nothing_survives(place):
    yield
    kill_mentioning(place.directory)


def nothing_is_left(place):
    assert wait_until(lambda: mentioning(place.directory) == []), mentioning(place.directory)
    assert not (place.state / "temporary-server.json").exists()


def known(place):
    return json.loads((place.state / "temporary-server.json").read_text())


def wait_for_server(place):
    assert wait_until((place.state / "temporary-server.json").exists, 60)
    return known(place)


@pytest.mark.guarantee(name="nothing-survives")
def test_it_is_started_and_ended(place):
    place.state.mkdir(mode=0o700)
    # A file of one that is gone means nothing: the number of a process that runs, but is another one.
    stale = {"url": "http://127.0.0.1:1", "key": "k", "pid": os.getpid(), "started": 1}
    (place.state / "temporary-server.json").write_text(json.dumps(stale))
    done = place.run("run", "--yes", "Please write a file")
    assert done.returncode == 0, done.stderr
    assert "starting a temporary server" in done.stderr
    assert "I wrote hello-from-ostler.txt" in done.stdout
    nothing_is_left(place)
    (place.state / "temporary-server.json").write_text("{")
    again = place.run("run", "--continue", "Remember?")
    assert "Before that you said: Please write a file" in again.stdout
    nothing_is_left(place)


@pytest.mark.guarantee(name="other-users-of-the-machine")
def test_where_it_is_and_its_key_are_private(place):
    with place.going_on("run", "slowly please") as process:
        there = wait_for_server(place)
        assert (place.state / "temporary-server.json").stat().st_mode & 0o777 == 0o600
        assert place.state.stat().st_mode & 0o777 == 0o700
        refused = place.run("ps", "--url", there["url"])
        assert refused.returncode == 1
        assert "requires a key" in refused.stderr
        # Who has the state directory has the key, too.
        assert place.run("ps").returncode == 0
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        process.stdout.read()
    nothing_is_left(place)


@pytest.mark.guarantee(name="nothing-survives")
def test_commands_at_the_same_time_share_one(place):
    with place.going_on("run", "slowly please") as first:
        there = wait_for_server(place)
        second = place.run("run", "quick")
        assert second.returncode == 0, second.stderr
        assert "starting a temporary server" not in second.stderr
        assert alive(there["pid"])  # the first one goes on with it
        with place.going_on("run", "slowly, too") as third:
            assert wait_until(
                lambda: b"slowly, too" in (place.state / "journal.sqlite3-wal").read_bytes(), 60
            )
            first.send_signal(signal.SIGINT)
            assert first.wait(60) == 130
            assert alive(there["pid"])  # the last one ends it
            assert third.wait(90) == 0
    nothing_is_left(place)


def test_many_that_begin_at_once(place):
    processes = [place.start("run", f"number {number}") for number in range(everyday(3, 4))]
    for process in processes:
        out, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
        assert "number" in out
    nothing_is_left(place)


@pytest.mark.guarantee(name="nothing-survives")
def test_one_that_a_killed_command_left_is_used_and_ended_by_the_next(place):
    with place.going_on("run", "slowly please") as process:
        there = wait_for_server(place)
        process.kill()
    assert alive(there["pid"])
    done = place.run("run", "quick")
    assert done.returncode == 0, done.stderr
    assert "starting a temporary server" not in done.stderr
    nothing_is_left(place)


@pytest.mark.guarantee(name="nothing-survives")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_command_that_is_told_to_end_ends_it(place, number):
    with place.going_on("run", "slowly please") as process:
        wait_for_server(place)
        time.sleep(0.3)
        process.send_signal(number)
        assert process.wait(60) == 128 + number
        process.stdout.read()
    nothing_is_left(place)


@pytest.mark.guarantee(name="nothing-survives")
def test_ctrl_c_twice_ends_it(place):
    with place.terminal("run", "slowly please") as terminal:
        terminal.wait_for("You said")
        terminal.type(CTRL_C + CTRL_C)
        assert terminal.end() == 130
    nothing_is_left(place)


def test_ctrl_c_while_it_starts(place):
    with place.terminal("run", "slowly please") as terminal:
        terminal.wait_for("starting a temporary server")
        terminal.type(CTRL_C)
        assert terminal.end() == 130
    nothing_is_left(place)


def test_chat_has_one_too(place):
    with place.terminal("chat") as terminal:
        terminal.wait_for("\n>")
        terminal.type("hi\r")
        terminal.wait_for("work done.")
        terminal.type(CTRL_D)
        assert terminal.end() == 0
    nothing_is_left(place)


@pytest.mark.parametrize("port", ["1", "0"])
def test_a_server_of_the_same_state_elsewhere_is_found(serve, port):
    other = serve()
    del other.env["OSTLER_URL"]
    # By its control socket: of the variable, of the option, and where the address that was meant has none.
    for arguments, more in (
        ([], {}),
        (["--state", str(other.state)], {"OSTLER_STATE": str(other.directory / "none")}),
    ):
        done = other.run("run", *arguments, "hi", OSTLER_PORT=port, **more)
        assert done.returncode == 0, done.stderr
        assert "starting a temporary server" not in done.stderr
    default = other.home / ".ostler"
    default.symlink_to(other.state)
    del other.env["OSTLER_STATE"]
    done = other.run("run", "hi", OSTLER_PORT=port)
    assert done.returncode == 0, done.stderr
    assert "starting a temporary server" not in done.stderr


def test_a_server_of_the_same_state_that_cannot_be_reached(serve):
    other = serve()
    url = other.env.pop("OSTLER_URL")
    (other.state / "control.sock").unlink()
    done = other.run("run", "hi")
    assert done.returncode == 3
    assert "in use" in done.stderr or "another" in done.stderr
    assert "--url or OSTLER_URL" in done.stderr
    assert other.run("run", "--url", url, "it still serves").returncode == 0


def test_a_server_that_wants_a_key(serve):
    other = serve(OSTLER_SESSION_API_KEY="k")
    del other.env["OSTLER_URL"], other.env["OSTLER_API_KEY"]
    done = other.run("run", "hi")
    assert done.returncode == 1
    assert "requires a key" in done.stderr
    keys = other.directory / "keys"
    keys.write_text("OSTLER_SESSION_API_KEY=k\n")
    keys.chmod(0o600)
    assert other.run("run", "hi", OSTLER_KEYS_FILE=str(keys)).returncode == 0


def test_its_master_key_is_that_of_the_file_of_keys(place):
    keys = place.directory / "keys"
    keys.write_text("OSTLER_MASTER_KEY=a phrase of mine\nOSTLER_SESSION_API_KEY=not for it\n")
    keys.chmod(0o600)
    with place.going_on("run", "slowly please", OSTLER_KEYS_FILE=str(keys)) as process:
        there = wait_for_server(place)
        status = place.run("status", "--json", "--url", there["url"], OSTLER_API_KEY=there["key"])
        assert json.loads(status.stdout)["secret_key"]["source"] == "OSTLER_MASTER_KEY"
        refused = place.run("ps", "--url", there["url"], OSTLER_KEYS_FILE=str(keys))
        assert "does not know this key" in refused.stderr
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        process.stdout.read()
    assert not (place.state / "master.key").exists()
    nothing_is_left(place)


def test_something_else_at_the_address_is_no_server(place):
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer():
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(65536)
                    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi")

        threading.Thread(target=answer, daemon=True).start()
        done = place.run("run", "hi", OSTLER_PORT=str(listening.getsockname()[1]))
    assert done.returncode == 0, done.stderr
    nothing_is_left(place)


def test_a_server_that_is_named_is_never_started(place):
    for more in ({"OSTLER_URL": "http://127.0.0.1:1"}, {}):
        arguments = [] if more else ["--url", "http://127.0.0.1:1"]
        done = place.run("run", *arguments, "hi", **more)
        assert done.returncode == 3
        assert done.stderr.count("\n") == 1
    assert not place.state.exists()


def test_commands_about_the_state_need_no_server(place):
    done = place.process("secrets", "set", "ANTHROPIC_API_KEY", given="sk-0123456789")
    assert (done.returncode, done.stdout, done.stderr) == (0, "stored ANTHROPIC_API_KEY\n", "")
    assert "ANTHROPIC_API_KEY  store" in place.run("secrets", "list").stdout
    assert place.run("settings", "set", "acp_model", "demo-terse").returncode == 0
    assert place.run("settings", "get", "acp_model").stdout == "demo-terse\n"
    assert place.run("run", "hi").returncode == 0
    (found,) = place.json("conversations", "list")["conversations"]
    assert "Message" in place.run("events", found["id"][:8]).stdout
    done = place.run("logs", found["id"][:8])
    assert (done.returncode, done.stdout) == (0, "")
    assert "no agent runs, so there is no log to show" in done.stderr
    assert place.run("conversations", "show", "ffff").returncode == 1
    nothing_is_left(place)


def test_a_person_is_asked_for_a_value_once_it_can_be_stored(place):
    with place.terminal("secrets", "set", "A_TOKEN") as terminal:
        asked = terminal.wait_for("Value of A_TOKEN")
        assert "starting a temporary server" in asked
        terminal.type("a-value-to-keep\r")
        assert terminal.end() == 0
        assert "stored A_TOKEN" in terminal.text
    with place.terminal("secrets", "set", "A_TOKEN", "--url", "http://127.0.0.1:1") as terminal:
        assert terminal.end() == 3
        assert "Value of" not in terminal.text
    nothing_is_left(place)


@pytest.mark.parametrize("command", ["ps", "status"])
def test_the_others_say_how_to_start_one(place, command):
    done = place.run(command)
    assert done.returncode == 3
    assert "start one with `ostler serve`, or name another one" in done.stderr
    assert not place.state.exists()


def test_one_that_cannot_start_says_why(place):
    place.state.write_text("a file")
    done = place.run("run", "hi")
    assert done.returncode == 1
    assert "cannot be used: Not a directory" in done.stderr
    done = place.run("run", "hi", OSTLER_STATE=str(place.directory / "new"), OSTLER_MAX_BODY_BYTES="x")
    assert done.returncode == 3
    assert "OSTLER_MAX_BODY_BYTES" in done.stderr
    assert done.stderr.count("\n") == 2  # that one is started, and why it is not
