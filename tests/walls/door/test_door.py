"""An agent behind its door: in a real network namespace, as an ordinary user and as root."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import AnyStr

import pytest
import trio
from structlog.testing import capture_logs

from supervisor.agents.spawning.descriptors import DOOR_CONNECTIONS
from supervisor.agents.walls.door import door as doors
from supervisor.agents.walls.door import shim
from supervisor.agents.walls.door.door import open_door
from supervisor.agents.walls.door.hosts import allow_list
from supervisor.agents.walls.door.rewiring import Wiring
from tests.walls.door import inside
from tests.walls.door.inside import line, opened
from tests.walls.door.server import Asked, Server, serving

KEY = "sk-ant-api03-abcDEF0123456789abcDEF0123456789"
WAIT_S = 30.0
REQUESTS = 1000
LARGE = 48 * 1024 * 1024
MEMORY_BYTES = 8_000_000
"""What the server may hold of a body that the API does not take: the pieces that are under way."""
LATE_S = 0.5  # no hang of somebody else's; a blocked loop would be late by seconds

CLIENT = """
import hashlib, http.client, json, socket, sys, time
door, proxy = ("127.0.0.1", 6801), ("127.0.0.1", 6802)
def say(*words):
    print(*words, flush=True)
"""

pytestmark = pytest.mark.guarantee(name="malicious-agents")


@pytest.fixture(params=inside.users())
def user(request: pytest.FixtureRequest) -> str:
    inside.require(request.param)
    return request.param


@pytest.fixture
async def server():
    async with serving() as found:
        yield found


def wired(server: Server) -> tuple[Wiring, str, str]:
    """A key for that server: the wiring, the path for the agent, and its placeholder."""
    wiring = Wiring()
    path = wiring.address(f"{server.url}/v1", KEY).removeprefix("http://127.0.0.1:6801")
    [instead] = wiring.upstreams[0].keys
    return wiring, path, instead


async def test_the_agent_has_a_key_that_is_none(user: str, server: Server, tmp_path: Path) -> None:
    wiring, path, instead = wired(server)
    program = """
path, key = sys.argv[1:]
c = http.client.HTTPConnection(*door)
c.request("POST", path + "/messages", b"{}", {"x-api-key": key})
r = c.getresponse()
say(r.status, r.read().decode())
"""
    async with opened(tmp_path, user=user, wiring=wiring) as agent:
        assert await agent.run(CLIENT + program, path, instead) == "200 good\n"
        assert agent.door.opened.is_set()
        assert os.listdir(agent.door.directory) == ["shim.py"]
        directory = agent.door.directory
    assert not directory.exists()
    assert server.asked[0].target == "/v1/messages"
    assert server.asked[0].headers["x-api-key"] == KEY


async def test_an_answer_is_streamed_as_it_comes(user: str, server: Server, tmp_path: Path) -> None:
    go_on = [trio.Event() for _ in range(5)]

    async def stream(asked: Asked) -> None:
        await asked.read()
        await asked.begin(200, (("Content-Type", "text/event-stream"),))
        for number, event in enumerate(go_on):
            await asked.piece(f"data: {number}\n\n".encode())
            await event.wait()
        await asked.end()

    server.handler = stream
    wiring, path, instead = wired(server)
    program = """
path, key = sys.argv[1:]
c = http.client.HTTPConnection(*door)
c.request("POST", path + "/messages", b"{}", {"x-api-key": key})
r = c.getresponse()
while piece := r.readline():
    if piece.strip():
        say(piece.decode().strip())
say("end")
"""
    async with opened(tmp_path, user=user, wiring=wiring) as agent:
        process = agent.start(CLIENT + program, path, instead)
        with process:
            for number, event in enumerate(go_on):
                assert await line(process) == f"data: {number}"
                event.set()
            assert await line(process) == "end"


async def test_many_requests_share_connections(server: Server, tmp_path: Path) -> None:
    wiring, path, instead = wired(server)
    program = """
path, key, count = sys.argv[1:]
c = http.client.HTTPConnection(*door)
for n in range(int(count)):
    c.request("POST", path + "/messages", b"x" * 100, {"x-api-key": key})
    assert c.getresponse().read() == b"good"
    local = c.sock.getsockname()
    assert n == 0 or local == first
    first = local
say("done")
"""
    async with opened(tmp_path, wiring=wiring) as agent:
        assert await agent.run(CLIENT + program, path, instead, str(REQUESTS)) == "done\n"
    assert len(server.asked) == REQUESTS
    assert {each.headers["x-api-key"] for each in server.asked} == {KEY}
    assert server.connections == 1


async def test_a_large_upload_waits_for_the_api(server: Server, tmp_path: Path) -> None:
    begun, go_on = trio.Event(), trio.Event()

    async def slow(asked: Asked) -> None:
        begun.set()
        await go_on.wait()
        await asked.read()
        await asked.answer(asked.digest.encode())

    server.handler = slow
    wiring, path, instead = wired(server)
    program = """
path, key, size = sys.argv[1:]
digest, left = hashlib.sha256(), int(size)
def pieces():
    global left
    while left:
        data = (b"%07d\\n" % (left % 9999999)) * 8192
        data = data[:left]
        digest.update(data)
        left -= len(data)
        yield data
c = http.client.HTTPConnection(*door)
c.request("POST", path + "/files", pieces(), {"x-api-key": key, "Content-Length": size})
r = c.getresponse()
say(r.status, r.read().decode() == digest.hexdigest())
"""
    async with opened(tmp_path, wiring=wiring) as agent:
        tracemalloc.start()
        try:
            process = agent.start(CLIENT + program, path, instead, str(LARGE))
            with process:
                with trio.fail_after(WAIT_S):
                    await begun.wait()
                await trio.sleep(0.3)
                tracemalloc.reset_peak()
                before, _ = tracemalloc.get_traced_memory()
                go_on.set()
                assert await line(process) == "200 True"
                _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert before < MEMORY_BYTES
        assert peak - before < MEMORY_BYTES
    assert server.asked[0].size == LARGE


async def test_a_tunnel_carries_both_directions(user: str, tmp_path: Path) -> None:
    program = """
port, size = int(sys.argv[1]), int(sys.argv[2])
import threading
s = socket.create_connection(proxy)
s.sendall(b"CONNECT localhost:%d HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n" % port)
head = b""
while not head.endswith(b"\\r\\n\\r\\n"):
    head += s.recv(1)
assert head.startswith(b"HTTP/1.1 200"), head
data = b"0123456789abcdef" * (size // 16)
def send():
    s.sendall(data)
    s.shutdown(socket.SHUT_WR)
threading.Thread(target=send).start()
got = hashlib.sha256()
while piece := s.recv(65536):
    got.update(piece)
say(got.hexdigest() == hashlib.sha256(data).hexdigest())
"""

    async def echo(stream: trio.SocketStream) -> None:
        async for data in stream:
            await stream.send_all(data)
        await stream.send_eof()

    async with trio.open_nursery() as nursery:
        [listener] = await nursery.start(partial(trio.serve_tcp, host="127.0.0.1"), echo, 0)
        port = listener.socket.getsockname()[1]
        async with opened(tmp_path, user=user, allowed=allow_list(f"localhost:{port}")) as agent:
            assert await agent.run(CLIENT + program, str(port), str(LARGE // 4)) == "True\n"
            assert agent.refused == []
        nursery.cancel_scope.cancel()


async def test_there_is_no_other_way_out(user: str, server: Server, tmp_path: Path) -> None:
    program = """
port = int(sys.argv[1])
found = []
for host in ("127.0.0.1", "1.1.1.1", "10.0.0.1", "169.254.169.254"):
    try:
        socket.create_connection((host, port), timeout=3).close()
        found.append(host)
    except OSError:
        pass
c = http.client.HTTPConnection(*proxy)
for target in ("http://127.0.0.1:%d/" % port, "http://pypi.org:%d/" % port, "http://[::1]:%d/" % port):
    c.request("GET", target)
    r = c.getresponse()
    found.append(r.status)
    r.read()
    c.close()
say(json.dumps(found))
"""
    async with opened(tmp_path, user=user) as agent:
        assert json.loads(await agent.run(CLIENT + program, str(server.port))) == [403, 403, 403]
        assert [each[:2] for each in agent.refused] == [
            ("127.0.0.1", server.port),
            ("pypi.org", server.port),
            ("::1", server.port),
        ]
    assert server.connections == 0


async def test_a_flood_slows_its_agent_alone(server: Server, tmp_path: Path) -> None:
    wiring, path, instead = wired(server)
    program = """
path, key = sys.argv[1:]
# Half-open, half a head, and requests without a pause.
held = []
for n in range(400):
    s = socket.socket()
    s.settimeout(1)
    try:
        s.connect(door if n % 2 else proxy)
    except OSError:
        break
    if n % 3:
        s.send(b"GET /p/0/v1 HTTP/1.1\\r\\nX: ")
    held.append(s)
say(len(held))
sys.stdin.readline()
for s in held:
    s.close()
c = http.client.HTTPConnection(*door)
c.request("POST", path + "/messages", b"{}", {"x-api-key": key})
say(c.getresponse().status)
"""
    async with opened(tmp_path, wiring=wiring) as agent:
        latest = 0.0

        async def look() -> None:
            nonlocal latest
            while True:
                began = trio.current_time()
                await trio.sleep(0.01)
                latest = max(latest, trio.current_time() - began - 0.01)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(look)
            before = len(os.listdir("/proc/self/fd"))
            process = agent.start(CLIENT + program, path, instead)
            with process:
                assert int(await line(process)) > DOOR_CONNECTIONS
                # What is beyond the bound waits in the kernel, in the agent's own namespace.
                assert len(os.listdir("/proc/self/fd")) - before <= DOOR_CONNECTIONS + 10
                assert process.stdin is not None
                process.stdin.write("\n")
                process.stdin.flush()
                assert await line(process) == "200"
            nursery.cancel_scope.cancel()
    assert latest < LATE_S


async def endless(asked: Asked) -> None:
    """Answers without end."""
    await asked.read()
    await asked.begin(200)
    while True:
        await asked.piece(b"x" * 1000)
        await trio.sleep(0.001)


async def test_a_killed_agent_leaves_nothing(user: str, server: Server, tmp_path: Path) -> None:
    server.handler = endless
    wiring, path, instead = wired(server)
    program = """
path, key = sys.argv[1:]
c = http.client.HTTPConnection(*door)
c.request("POST", path + "/messages", b"{}", {"x-api-key": key})
r = c.getresponse()
r.read(5000)
say("reading")
while r.read(1000):
    pass
"""
    before = set(os.listdir("/proc/self/fd"))
    async with opened(tmp_path, user=user, wiring=wiring) as agent:
        process = agent.start(CLIENT + program, path, instead)
        with process:
            assert await line(process) == "reading"
            process.send_signal(signal.SIGKILL)
        with trio.fail_after(WAIT_S):
            await server.asked[0].left.wait()
    await trio.sleep(0.1)  # the fixture's server closes its end
    assert len(set(os.listdir("/proc/self/fd")) - before) <= 1
    assert [*tmp_path.iterdir()] == []


async def test_the_end_of_the_door_ends_every_connection(server: Server, tmp_path: Path) -> None:
    async def until_left(asked: Asked) -> None:
        await asked.read()
        await asked.begin(200)
        await asked.piece(b"begun")
        assert await asked.stream.receive_some() == b""

    server.handler = until_left
    wiring, path, instead = wired(server)
    program = """
path, key = sys.argv[1:]
c = http.client.HTTPConnection(*door)
c.request("POST", path + "/messages", b"{}", {"x-api-key": key})
r = c.getresponse()
say(r.read(5).decode())
try:
    r.read()
except (http.client.IncompleteRead, ConnectionError):
    say("cut")
for _ in range(1000):
    try:
        socket.create_connection(door).close()
        time.sleep(0.01)
    except OSError:
        say("closed")
        break
"""
    async with opened(tmp_path, wiring=wiring) as agent:
        process = agent.start(CLIENT + program, path, instead)
        assert await line(process) == "begun"
    with process:
        assert await line(process) == "cut"
        assert await line(process) == "closed"
    with trio.fail_after(WAIT_S):
        await server.asked[0].left.wait()


async def test_models_that_are_added_later_are_reached(server: Server, tmp_path: Path) -> None:
    wiring, path, instead = wired(server)
    program = """
path, key = sys.argv[1:]
c = http.client.HTTPConnection(*door)
def ask(path):
    c.request("GET", path + "/x")
    r = c.getresponse()
    r.read()
    c.close()
    return r.status
say(ask("/p/1"))
sys.stdin.readline()
say(ask("/p/1"))
"""
    async with opened(tmp_path, wiring=wiring) as agent, serving() as other:
        process = agent.start(CLIENT + program, path, instead)
        with process:
            assert await line(process) == "404"
            wiring.session({"llm": {"model": "x", "base_url": other.url}})
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
            assert await line(process) == "200"


async def test_hosts_that_are_allowed_later_are_reached(server: Server, tmp_path: Path) -> None:
    program = """
port = int(sys.argv[1])
c = http.client.HTTPConnection(*proxy)
for _ in range(2):
    c.request("GET", "http://localhost:%d/" % port)
    r = c.getresponse()
    r.read()
    c.close()
    say(r.status)
    sys.stdin.readline()
"""
    async with opened(tmp_path) as agent:
        process = agent.start(CLIENT + program, str(server.port))
        with process:
            assert await line(process) == "403"
            agent.door.allow([f"localhost:{server.port}"])
            assert process.stdin is not None
            process.stdin.write("\n\n")
            process.stdin.flush()
            assert await line(process) == "200"


# -- the handing over ------------------------------------------------------------------------------------


async def test_only_one_agent_hands_over(user: str, tmp_path: Path) -> None:
    async with opened(tmp_path, user=user) as agent:
        await agent.run("print()")
        process = agent.start("print('never')")
        with process:
            assert await line(process) == (
                "ostler: the agent's network door does not open: No such file or directory"
            )
        assert process.returncode == 127


async def test_an_agent_in_the_servers_network_is_no_agent(tmp_path: Path) -> None:
    """Else every process of the machine would have its key."""
    flags = [each for each in inside.FLAGS if each != "--unshare-net"]
    async with opened(tmp_path) as agent:
        with capture_logs() as lines:
            process = subprocess.Popen(
                agent.command(["echo", "never"], flags),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            with process:
                said = await line(process)
        if "Address already in use" in said:
            pytest.skip("a program of this machine has the door's port")
        assert (
            said == "ostler: the agent's network door does not open: the server refused it; its log says why"
        )
        assert process.returncode == 127
        assert not agent.door.opened.is_set()
    assert [each["reason"] for each in lines] == [
        "the agent shares the server's network; start it in a network namespace of its own"
    ]


async def test_what_is_no_listener_is_refused(tmp_path: Path) -> None:
    import array
    import socket

    before = set(os.listdir("/proc/self/fd"))
    async with open_door(
        upstreams=[], allowed=allow_list(""), refused=lambda *_: None, parent=tmp_path
    ) as door:
        with capture_logs() as lines, socket.socket(socket.AF_UNIX) as channel, socket.socket() as plain:
            channel.setblocking(False)
            channel.connect(os.path.relpath(door.directory / doors.SOCKET_NAME))
            rights = array.array("i", [plain.fileno(), 0])
            channel.sendmsg([b"d"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights.tobytes())])
            with trio.fail_after(WAIT_S):
                await trio.lowlevel.wait_readable(channel)
            assert channel.recv(1) == b""
    assert len(lines) == 1
    assert "did not hand over listeners" in lines[0]["reason"]
    assert len(set(os.listdir("/proc/self/fd")) - before) <= 1


async def test_a_door_without_an_agent_leaves_nothing(tmp_path: Path) -> None:
    async def fail() -> None:
        async with open_door(
            upstreams=[], allowed=allow_list(""), refused=lambda *_: None, parent=tmp_path
        ) as door:
            assert door.directory.stat().st_mode & 0o777 == 0o700
            assert sorted(os.listdir(door.directory)) == ["door", "shim.py"]
            raise KeyError("the block's own")

    with pytest.raises(KeyError, match="the block's own"):
        await fail()
    assert [*tmp_path.iterdir()] == []


async def test_a_door_that_is_cancelled_leaves_nothing(user: str, server: Server, tmp_path: Path) -> None:
    wiring, path, instead = wired(server)
    program = """
path, key = sys.argv[1:]
c = http.client.HTTPConnection(*door)
c.request("POST", path + "/messages", b"{}", {"x-api-key": key})
say(c.getresponse().status)
sys.stdin.readline()
"""
    before = set(os.listdir("/proc/self/fd"))
    with trio.CancelScope() as scope:
        async with opened(tmp_path, user=user, wiring=wiring) as agent:
            process = agent.start(CLIENT + program, path, instead)
            assert await line(process) == "200"
            scope.cancel()
            await trio.sleep_forever()
    assert scope.cancelled_caught
    process.kill()
    with process:
        assert [*tmp_path.iterdir()] == []
    assert len(set(os.listdir("/proc/self/fd")) - before) <= 1


async def test_a_directory_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="nowhere"):
        async with open_door(
            upstreams=[], allowed=allow_list(""), refused=lambda *_: None, parent=tmp_path / "nowhere"
        ):
            raise AssertionError


async def test_a_kernel_may_refuse_ipv6(user: str, server: Server, tmp_path: Path) -> None:
    wiring, path, instead = wired(server)
    program = """
path, key = sys.argv[1:]
try:
    socket.socket(socket.AF_INET6).bind(("::1", 0))
except OSError:
    say("no IPv6")
c = http.client.HTTPConnection(*door)
c.request("GET", path + "/x", headers={"x-api-key": key})
say(c.getresponse().status)
"""
    async with opened(tmp_path, user=user, wiring=wiring) as agent:
        argv = [doors.PYTHON, "-I", "-c", CLIENT + program, path, instead]
        command = agent.command(argv, [*inside.FLAGS, "--cap-add", "ALL", "--uid", "0", "--gid", "0"])
        start = command.index("--") + 1
        without = 'echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6; exec "$@"'
        process = subprocess.Popen(
            [*command[:start], "sh", "-c", without, "sh", *command[start:]], stdout=subprocess.PIPE, text=True
        )
        with process:
            assert await line(process) == "no IPv6"
            assert await line(process) == "200"


# -- what the server runs for the agent ------------------------------------------------------------------


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


async def until_closed(most: int) -> None:
    """Wait until there are as few descriptors."""
    with trio.fail_after(WAIT_S):
        while descriptors() > most:
            await trio.sleep(0.01)


@contextmanager
def killed(process: subprocess.Popen[AnyStr]) -> Iterator[subprocess.Popen[AnyStr]]:
    """Kill it at the end, also of a test that fails."""
    with process:
        try:
            yield process
        finally:
            process.kill()


async def behind(agent: inside.Opened, program: str, *words: str) -> subprocess.Popen[str]:
    """Start a Python program behind the agent's door, as a terminal of the agent."""

    async def start(prefix: Sequence[str]) -> subprocess.Popen[str]:
        return agent.popen([*prefix, doors.PYTHON, "-I", "-c", program, *words])

    return await agent.door.behind(start, inside=inside.INSIDE)


CALL = (
    CLIENT
    + """
path, key = sys.argv[1:3]
c = http.client.HTTPConnection(*door)
c.request("POST", path + "/messages", b"{}", {"x-api-key": key})
r = c.getresponse()
say(r.status, r.read().decode())
"""
)
STAY = "sys.stdin.readline()\n"


async def test_a_terminal_has_the_same_door(user: str, server: Server, tmp_path: Path) -> None:
    wiring, path, instead = wired(server)
    async with opened(tmp_path, user=user, wiring=wiring) as agent:
        with killed(agent.start(CALL + STAY, path, instead)) as own:
            assert await line(own) == "200 good"
            before = descriptors()
            for _ in range(3):
                with killed(await behind(agent, CALL + STAY, path, instead)) as process:
                    assert await line(process) == "200 good"
                    assert os.listdir(agent.door.directory) == ["shim.py"]
                await until_closed(before)
    assert [each.headers["x-api-key"] for each in server.asked] == [KEY] * 4


async def test_the_end_of_a_terminal_ends_its_connections_alone(server: Server, tmp_path: Path) -> None:
    server.handler = endless
    wiring, path, instead = wired(server)
    program = (
        CLIENT
        + """
path, key = sys.argv[1:3]
c = http.client.HTTPConnection(*door)
c.request("POST", path + "/messages", b"{}", {"x-api-key": key})
r = c.getresponse()
while r.read(1000):
    say("reading")
"""
    )
    async with opened(tmp_path, wiring=wiring) as agent:
        with killed(agent.start(program, path, instead)) as own:
            assert await line(own) == "reading"
            left = []

            async def start(prefix: Sequence[str]) -> subprocess.Popen[bytes]:
                left.append(agent.popen([*prefix, doors.PYTHON, "-I", "-c", program, path, instead]))
                return subprocess.Popen(["sleep", "1000"])

            # What it started lives on.
            with killed(await agent.door.behind(start, inside=inside.INSIDE)) as process, killed(left[0]):
                assert await line(left[0]) == "reading"
                assert len(server.asked) == 2
                process.kill()
                with trio.fail_after(WAIT_S):
                    await server.asked[1].left.wait()
                assert not server.asked[0].left.is_set()


async def test_terminals_that_are_idle_take_no_room(server: Server, tmp_path: Path) -> None:
    wiring, path, instead = wired(server)
    async with opened(tmp_path, wiring=wiring, connections=1) as agent:
        idle = CLIENT + "say('idle')\n" + STAY
        with killed(agent.start(idle)) as own, killed(await behind(agent, idle)) as other:
            assert (await line(own), await line(other)) == ("idle", "idle")
            for _ in range(2):
                with killed(await behind(agent, CALL, path, instead)) as process:
                    assert await line(process) == "200 good"


async def test_a_terminal_that_never_hands_over_leaves_nothing(tmp_path: Path) -> None:
    async with opened(tmp_path) as agent:
        before = descriptors()

        async def start(prefix: Sequence[str]) -> subprocess.Popen[bytes]:
            assert sorted(os.listdir(agent.door.directory)) == ["door", "door-1", "shim.py"]
            assert (agent.door.directory / "door-1").stat().st_mode & 0o777 == 0o600
            return subprocess.Popen(["sleep", "1000"])

        with killed(await agent.door.behind(start)):
            assert descriptors() > before
        await until_closed(before)
        with trio.fail_after(WAIT_S):
            while len(os.listdir(agent.door.directory)) > 2:
                await trio.sleep(0.01)


async def test_a_terminal_that_does_not_start_leaves_nothing(tmp_path: Path) -> None:
    async def fail(prefix: Sequence[str]) -> subprocess.Popen[bytes]:
        raise FileNotFoundError("no-such-program")

    async def hang(prefix: Sequence[str]) -> subprocess.Popen[bytes]:
        scope.cancel()
        await trio.sleep_forever()
        raise AssertionError

    async with opened(tmp_path) as agent:
        before = descriptors()
        with pytest.raises(FileNotFoundError, match="no-such-program"):
            await agent.door.behind(fail)
        with trio.CancelScope() as scope:
            await agent.door.behind(hang)
        assert scope.cancelled_caught
        assert descriptors() <= before
        assert sorted(os.listdir(agent.door.directory)) == ["door", "shim.py"]


async def test_a_terminal_without_a_descriptor_for_its_door_is_its_callers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(pid: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    async with opened(tmp_path) as agent:
        before = descriptors()
        with monkeypatch.context() as patched:
            patched.setattr(doors.os, "pidfd_open", none)
            with capture_logs() as lines:
                process = await behind(agent, "print('never')")
        with killed(process):
            assert (await line(process)).startswith("ostler: the agent's network door does not open: ")
            process.wait()
        assert process.returncode == shim.FAILED
        await until_closed(before)
        assert [each["event"] for each in lines] == ["an agent's network door does not open for a terminal"]


async def test_a_terminal_in_the_servers_network_is_refused(tmp_path: Path) -> None:
    flags = [each for each in inside.FLAGS if each != "--unshare-net"]
    async with opened(tmp_path) as agent:
        before = descriptors()

        async def start(prefix: Sequence[str]) -> subprocess.Popen[str]:
            return agent.popen([*prefix, "echo", "never"], flags)

        with capture_logs() as lines:
            with killed(await agent.door.behind(start, inside=inside.INSIDE)) as process:
                said = await line(process)
            if "Address already in use" in said:
                pytest.skip("a program of this machine has the door's port")
            assert said.endswith("the server refused it; its log says why")
        await until_closed(before)
    assert "shares the server's network" in lines[0]["reason"]


# -- the shim --------------------------------------------------------------------------------------------


async def test_the_program_inherits_nothing_of_the_shim(tmp_path: Path) -> None:
    # By another interpreter than Python, which would ignore SIGPIPE by itself.
    shell = "ls -l /proc/self/fd; grep SigIgn /proc/self/status"
    async with opened(tmp_path) as agent:
        process = subprocess.Popen(
            agent.command(["/bin/sh", "-c", shell]),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
        with process:
            said, _ = await trio.to_thread.run_sync(process.communicate)
    *descriptors, ignored = said.splitlines()
    assert [each for each in descriptors if "socket:" in each] == []
    assert [each.split()[8] for each in descriptors[1:]] == ["0", "1", "2", "3"]  # the last is of ls itself
    assert int(ignored.split()[1], 16) & (1 << (signal.SIGPIPE - 1) | 1 << (signal.SIGXFSZ - 1)) == 0


async def test_a_door_is_found_by_a_path_that_is_too_long_for_a_socket(user: str, tmp_path: Path) -> None:
    async with opened(tmp_path, user=user) as door:
        command = door.command(["echo", "through"], place=f"/run/{'deep/' * 30}door")
        done = await trio.run_process(command, capture_stdout=True, capture_stderr=True, check=False)
        assert (done.stdout, done.stderr) == (b"through\n", b"")


async def test_a_program_that_is_not_there_is_said(tmp_path: Path) -> None:
    async with opened(tmp_path) as agent:
        process = subprocess.Popen(
            agent.command(["no-such-program"]),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={"PATH": "/usr/bin:/bin"},
        )
        with process:
            assert (
                await line(process) == "ostler: no-such-program cannot be started: No such file or directory"
            )
        assert process.returncode == shim.FAILED


def test_the_shim_imports_little() -> None:
    """Each module takes its time at each start of an agent."""
    code = f"exec(open({shim.__file__!r}).read(), {{'__name__': 'shim'}}); import sys; print(*sys.modules)"
    said = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True
    )
    assert not {"socket", "signal", "enum", "re", "typing", "subprocess"} & set(said.stdout.split())


def test_the_shim_is_read_by_old_pythons() -> None:
    import ast

    ast.parse(Path(shim.__file__).read_text(), feature_version=(3, 9))
