from __future__ import annotations

import contextlib
import errno
import os
import shutil
import socket
import stat
import subprocess
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from supervisor.acp import files
from supervisor.acp.errors import RpcError
from supervisor.acp.output import MAX_OUTPUT_BYTES, OUTPUTS_BYTES, OutputPool, OutputRing, Seen
from supervisor.acp.services import MAX_TERMINALS, Services
from tests.support.starting import start_process

PATIENCE = 30  # seconds until a test that waits for a real process gives up


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    path = tmp_path / "workspace"
    path.mkdir()
    return path


@asynccontextmanager
async def serving(workspace: Path, **kwargs: Any) -> AsyncIterator[Services]:
    environment = {"PATH": os.environ["PATH"]}
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            services = Services(
                files.Jail(workspace),
                nursery,
                **{"environment": environment, "start": start_process, **kwargs},
            )
            yield services
            await services.close()


async def refused(services: Services, method: str, **params: Any) -> RpcError:
    with pytest.raises(RpcError) as caught:
        await services.handle(method, params)
    return caught.value


async def until_gone(pid: int) -> None:
    while _alive(pid):
        await trio.sleep(0.005)


def _alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


# -- files -------------------------------------------------------------------------------------------------


async def test_reading_and_writing(workspace: Path) -> None:
    async with serving(workspace) as services:
        path = str(workspace / "new" / "deep" / "file.txt")
        assert await services.handle("fs/write_text_file", {"path": path, "content": "a\nü\nlast"}) == {}
        assert await services.handle("fs/read_text_file", {"path": path}) == {"content": "a\nü\nlast"}
        await services.handle("fs/write_text_file", {"path": path, "content": "short"})
        assert Path(path).read_text() == "short"


@pytest.mark.parametrize(
    ("line", "limit", "content"),
    [
        (None, None, "one\ntwo\nthree\n"),
        (2, None, "two\nthree\n"),
        (None, 1, "one\n"),
        (2, 1, "two\n"),
        (0, 1, "one\n"),
        (3, 99, "three\n"),
        (4, None, ""),
        (1000, 5, ""),
        (1, 0, ""),
        ("odd", -3, ""),
    ],
)
async def test_reading_some_lines(workspace: Path, line: Any, limit: Any, content: str) -> None:
    (workspace / "f").write_text("one\ntwo\nthree\n")
    async with serving(workspace) as services:
        params = {"path": str(workspace / "f"), "line": line, "limit": limit}
        assert await services.handle("fs/read_text_file", params) == {"content": content}


async def test_reading_is_capped(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_READ_BYTES", 1000)
    path = workspace / "f"
    path.write_bytes(b"x" * 990 + b"\n" + b"y" * 500 + b"\n" + b"z\n")
    async with serving(workspace) as services:
        error = await refused(services, "fs/read_text_file", path=str(path))
        assert (error.code, error.data["maxBytes"]) == (-32602, 1000)
        assert (await refused(services, "fs/read_text_file", path=str(path), limit=2)).code == -32602
        read = await services.handle("fs/read_text_file", {"path": str(path), "line": 2, "limit": 1})
        assert read["content"] == "y" * 500 + "\n"


async def test_text_that_is_not_utf8(workspace: Path) -> None:
    (workspace / "f").write_bytes(b"caf\xe9")
    async with serving(workspace) as services:
        assert await services.handle("fs/read_text_file", {"path": str(workspace / "f")}) == {
            "content": "caf\ufffd"
        }


async def test_what_cannot_be_read_or_written(workspace: Path) -> None:
    (workspace / "dir").mkdir()
    (workspace / "plain").write_text("x")
    os.mkfifo(workspace / "pipe")
    async with serving(workspace) as services:
        expected = {
            str(workspace / "missing"): -32002,
            str(workspace / "dir"): -32602,
            str(workspace): -32602,
            str(workspace / "plain" / "below"): -32602,
            str(workspace / "pipe"): -32602,
            "relative/path": -32602,
            "": -32602,
            str(workspace / "nul\0"): -32602,
        }
        for path, code in expected.items():
            assert (await refused(services, "fs/read_text_file", path=path)).code == code, path
        for path in [str(workspace / "dir"), str(workspace), str(workspace / "plain" / "below"), "relative"]:
            assert (await refused(services, "fs/write_text_file", path=path, content="")).code == -32602, path
        assert (await refused(services, "fs/read_text_file")).code == -32602
        assert (await refused(services, "fs/write_text_file", path=str(workspace / "x"))).code == -32602
        assert (workspace / "plain").read_text() == "x"


@pytest.mark.guarantee(name="malicious-agents")
@pytest.mark.guarantee(name="secrets-stay-in")
async def test_nothing_leads_out_of_the_workspace(workspace: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("s")
    (tmp_path / "workspace-evil").mkdir()
    (workspace / "link").symlink_to(secret)
    (workspace / "up").symlink_to(tmp_path)
    (workspace / "chain").symlink_to(workspace / "link")
    (workspace / "dangling").symlink_to(tmp_path / "created")
    (workspace / "loop").symlink_to(workspace / "loop")
    async with serving(workspace) as services:
        for path in [
            str(secret),
            "/etc/passwd",
            f"{workspace}/../secret",
            f"{workspace}/x/../../secret",
            f"{workspace}/link",
            f"{workspace}/up/secret",
            f"{workspace}/chain",
            f"{workspace}/dangling",
            f"{workspace}/up/new/file",
            f"{tmp_path}/workspace-evil/f",
        ]:
            assert (await refused(services, "fs/read_text_file", path=path)).code == -32602, path
            assert (await refused(services, "fs/write_text_file", path=path, content="!")).code == -32602, (
                path
            )
        await refused(services, "fs/read_text_file", path=f"{workspace}/loop")
        assert secret.read_text() == "s"
        assert sorted(p.name for p in tmp_path.iterdir()) == ["secret", "workspace", "workspace-evil"]


async def test_links_within_the_workspace_work(workspace: Path) -> None:
    (workspace / "real").mkdir()
    (workspace / "alias").symlink_to("real")
    async with serving(workspace) as services:
        await services.handle("fs/write_text_file", {"path": f"{workspace}/alias/f", "content": "x"})
        assert (workspace / "real" / "f").read_text() == "x"


async def test_a_workspace_reached_through_a_link(workspace: Path, tmp_path: Path) -> None:
    alias = tmp_path / "alias"
    alias.symlink_to(workspace)
    (workspace / "f").write_text("x")
    async with serving(alias) as services:
        for path in (alias / "f", workspace / "f"):
            assert await services.handle("fs/read_text_file", {"path": str(path)}) == {"content": "x"}


async def test_a_link_put_there_after_the_check_is_not_followed(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "f").write_text("secret")
    (workspace / "d").mkdir()
    (workspace / "d" / "f").write_text("fine")
    jail = files.Jail(workspace)
    found = jail.locate(str(workspace / "d" / "f"))
    monkeypatch.setattr(jail, "locate", lambda path: found[: path.count("/")])
    assert jail.read_text("d/f/") == "fine"
    (workspace / "d").rename(workspace / "moved")
    (workspace / "d").symlink_to(tmp_path / "outside")
    with pytest.raises(RpcError):
        jail.read_text("d/f/")
    with pytest.raises(RpcError):
        jail.write_text("d/f/", "!")
    with pytest.raises(RpcError):
        jail.open_directory("d/")
    assert (tmp_path / "outside" / "f").read_text() == "secret"


@pytest.mark.guarantee(name="malicious-agents")
@pytest.mark.parametrize("moved", ["workspace", "above"])
async def test_a_workspace_exchanged_for_a_link_does_not_move_its_root(tmp_path: Path, moved: str) -> None:
    workspace = tmp_path / "above" / "workspace"
    workspace.mkdir(parents=True)
    (workspace / "f").write_text("fine")
    (tmp_path / "outside" / "workspace").mkdir(parents=True)
    for path in (tmp_path / "outside" / "f", tmp_path / "outside" / "workspace" / "f"):
        path.write_text("secret")
    async with serving(workspace) as services:
        params = {"path": str(workspace / "f")}
        assert await services.handle("fs/read_text_file", params) == {"content": "fine"}
        swapped = workspace if moved == "workspace" else workspace.parent
        swapped.rename(tmp_path / "kept")
        swapped.symlink_to(tmp_path / "outside")
        for path in (workspace / "f", tmp_path / "outside" / "f"):
            await refused(services, "fs/read_text_file", path=str(path))
            await refused(services, "fs/write_text_file", path=str(path), content="!")
        await refused(services, "terminal/create", command="ls")
        await refused(services, "terminal/create", command="ls", cwd=str(workspace))
    assert (tmp_path / "outside" / "f").read_text() == "secret"


@pytest.mark.guarantee(name="malicious-agents")
async def test_links_exchanged_all_the_time_lead_nowhere(workspace: Path, tmp_path: Path) -> None:
    """A race for real: a directory and a link to the outside swap places while files are read and written."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "f").write_text("secret")
    (workspace / "real").mkdir()
    (workspace / "real" / "f").write_text("fine")
    (workspace / "link").symlink_to(tmp_path / "outside")
    over = threading.Event()

    def swap() -> None:
        while not over.is_set():
            for old, new in (("real", "d"), ("d", "real"), ("link", "d"), ("d", "link")):
                try:
                    (workspace / old).rename(workspace / new)
                except OSError:  # A write has made the directory that was missing.
                    if (workspace / "real").exists():
                        shutil.rmtree(workspace / "d", ignore_errors=True)

    thread = threading.Thread(target=swap)
    thread.start()
    jail, reads = files.Jail(workspace), []
    try:
        until = time.monotonic() + 0.5
        while time.monotonic() < until:
            with contextlib.suppress(RpcError):
                reads.append(jail.read_text(f"{workspace}/d/f"))
            with contextlib.suppress(RpcError):
                jail.write_text(f"{workspace}/d/f", "fine")
            with contextlib.suppress(RpcError):
                descriptor = jail.open_directory(f"{workspace}/d")
                reads.append("secret" if "outside" in os.readlink(f"/proc/self/fd/{descriptor}") else "fine")
                os.close(descriptor)
    finally:
        over.set()
        thread.join()
    assert set(reads) <= {"fine", ""}
    assert "fine" in reads
    assert (tmp_path / "outside" / "f").read_text() == "secret"


@pytest.mark.guarantee(name="malicious-agents")
async def test_what_tells_of_the_server_is_not_served() -> None:
    """Even where the workspace is the whole machine: these files answer for the process that opens them."""
    async with serving(Path("/")) as services:
        for path in (
            "/proc/self/environ",
            "/proc/self/mem",
            "/proc/thread-self/environ",
            f"/proc/{os.getpid()}/environ",
            "/proc/self/root/proc/self/environ",
        ):
            assert (await refused(services, "fs/read_text_file", path=path)).code in (-32602, -32002), path
            assert (await refused(services, "fs/write_text_file", path=path, content="")).code in (
                -32602,
                -32002,
                -32603,
            ), path
        for path in ("/dev/zero", "/dev/tty", "/dev/fd/0", "/proc/self/fd/0", "/dev/stdin"):
            with trio.fail_after(30):
                assert isinstance(await refused(services, "fs/read_text_file", path=path), RpcError), path


async def test_paths_that_no_file_can_have(workspace: Path) -> None:
    async with serving(workspace) as services:
        for name in ("x" * 300, "x/" * 3000, "../" * 5000 + "etc/passwd", "\ud800", "a\0/../../secret"):
            path = f"{workspace}/{name}"
            for method in ("fs/read_text_file", "fs/write_text_file"):
                assert (await refused(services, method, path=path, content="")).code in (-32602, -32603)
            assert (await refused(services, "terminal/create", command="ls", cwd=path)).code in (
                -32602,
                -32002,
            )
        assert list(workspace.iterdir()) == []


@pytest.mark.guarantee(name="malicious-agents")
async def test_nothing_that_hangs_is_opened(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(workspace / "pipe")
    monkeypatch.chdir(workspace)  # the name of a socket must be short
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("socket")
        reader = os.open(workspace / "pipe", os.O_RDONLY | os.O_NONBLOCK)
        async with serving(workspace) as services:
            for name in ("pipe", "socket"):
                with trio.fail_after(30):
                    path = str(workspace / name)
                    await refused(services, "fs/read_text_file", path=path)
                    await refused(services, "fs/write_text_file", path=path, content="x")
                    await refused(services, "terminal/create", command="ls", cwd=path)
        os.close(reader)


@pytest.mark.guarantee(name="malicious-agents")
async def test_a_file_larger_than_any_disk(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_SKIP_BYTES", 1 << 24)
    path = workspace / "sparse"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    async with serving(workspace) as services:
        with trio.fail_after(60):
            assert (await refused(services, "fs/read_text_file", path=str(path))).code == -32602
            assert (await refused(services, "fs/read_text_file", path=str(path), limit=1)).code == -32602
            error = await refused(services, "fs/read_text_file", path=str(path), line=2, limit=1)
            assert (error.code, error.data["maxBytes"]) == (-32602, files.MAX_SKIP_BYTES)


async def test_a_long_search_ends_when_nobody_waits_any_more(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MAX_SKIP_BYTES", 1 << 40)
    path = workspace / "sparse"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    async with serving(workspace) as services:
        with trio.move_on_after(0.05) as scope:
            await services.handle("fs/read_text_file", {"path": str(path), "line": 2})
        assert scope.cancelled_caught
        with trio.fail_after(30):
            while services._limiter.borrowed_tokens:
                await trio.sleep(0.01)


async def test_a_file_system_that_does_not_answer(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("supervisor.acp.services.FILE_SECONDS", 0.05)
    answers = threading.Event()

    def hang(*_args: Any, **_kwargs: Any) -> str:
        answers.wait(PATIENCE)
        return ""

    async with serving(workspace) as services:
        monkeypatch.setattr(services._jail, "read_text", hang)
        monkeypatch.setattr(services._jail, "write_text", hang)
        path = str(workspace / "f")
        assert (await refused(services, "fs/read_text_file", path=path)).code == -32603
        assert (await refused(services, "fs/write_text_file", path=path, content="")).code == -32603
        with trio.fail_after(30), trio.CancelScope() as scope:
            scope.cancel()
            await services.handle("fs/write_text_file", {"path": path, "content": ""})
        answers.set()


async def test_many_short_lines(workspace: Path) -> None:
    (workspace / "f").write_text("\n" * 200_000 + "a\n\nb\nc")
    async with serving(workspace) as services:
        for line, limit, content in ((200_001, 3, "a\n\nb\n"), (200_004, None, "c"), (200_005, 1, "")):
            params = {"path": str(workspace / "f"), "line": line, "limit": limit}
            assert await services.handle("fs/read_text_file", params) == {"content": content}
        params = {"path": str(workspace / "f"), "line": 10**30, "limit": 10**30}
        assert await services.handle("fs/read_text_file", params) == {"content": ""}


async def test_what_is_not_offered_is_not_served(workspace: Path) -> None:
    async with serving(workspace, fs=False, terminal=False) as services:
        for method in ("fs/read_text_file", "terminal/create", "session/request_permission"):
            assert not services.serves(method)
            assert (await refused(services, method, path=str(workspace))).code == -32601


# -- terminals ---------------------------------------------------------------------------------------------


async def start(services: Services, script: str, **params: Any) -> dict[str, Any]:
    created = await services.handle("terminal/create", {"command": "sh", "args": ["-c", script], **params})
    return {"sessionId": "s", "terminalId": created["terminalId"]}


async def test_a_command_runs(workspace: Path) -> None:
    (workspace / "sub").mkdir()
    async with serving(
        workspace, environment={"PATH": os.environ["PATH"], "BASE": "b", "OVER": "1"}
    ) as services:
        script = 'pwd; echo "$BASE$OVER$GIVEN"; env | grep -c OSTLER_TEST_LEAK; echo err >&2; exit 3'
        os.environ["OSTLER_TEST_LEAK"] = "x"
        try:
            terminal = await start(
                services,
                script,
                cwd=str(workspace / "sub"),
                env=[{"name": "OVER", "value": "2"}, {"name": "GIVEN", "value": "3"}, {"name": 5}],
            )
        finally:
            del os.environ["OSTLER_TEST_LEAK"]
        status = {"exitCode": 3, "signal": None}
        assert await services.handle("terminal/wait_for_exit", terminal) == status
        output = await services.handle("terminal/output", terminal)
        assert output == {
            "output": f"{workspace}/sub\nb23\n0\nerr\n",
            "truncated": False,
            "exitStatus": status,
        }
        assert await services.handle("terminal/release", terminal) == {}
        for method in ("output", "wait_for_exit", "kill", "release"):
            assert (await refused(services, f"terminal/{method}", **terminal)).code == -32002


async def test_a_shell_line_as_the_command(workspace: Path) -> None:
    async with serving(workspace) as services:
        created = await services.handle("terminal/create", {"command": "echo a && pwd | cat"})
        await services.handle("terminal/wait_for_exit", created)
        assert (await services.handle("terminal/output", created))["output"] == f"a\n{workspace}\n"


async def test_what_cannot_be_started(workspace: Path, tmp_path: Path) -> None:
    descriptors = len(os.listdir("/proc/self/fd"))
    async with serving(workspace) as services:
        assert (await refused(services, "terminal/create", command="no-such-program-x")).code == -32602
        assert (await refused(services, "terminal/create")).code == -32602
        assert (await refused(services, "terminal/create", command="ls", cwd=str(tmp_path))).code == -32602
        assert (await refused(services, "terminal/create", command="ls", cwd="sub")).code == -32602
        assert (
            await refused(services, "terminal/create", command="ls", cwd=f"{workspace}/no")
        ).code == -32002
        assert (await refused(services, "terminal/create", command="ls", args=["a\0b"])).code == -32602
    assert len(os.listdir("/proc/self/fd")) == descriptors


async def test_killing_keeps_the_output(workspace: Path) -> None:
    async with serving(workspace) as services:
        terminal = await start(services, "sleep 600 & echo $!; echo ready; wait")
        output = {"output": ""}
        while "ready" not in output["output"]:
            output = await services.handle("terminal/output", terminal)
            await trio.sleep(0.005)
        assert "exitStatus" not in output
        child = int(output["output"].split()[0])
        assert _alive(child)
        assert await services.handle("terminal/kill", terminal) == {}
        await until_gone(child)
        output = await services.handle("terminal/output", terminal)
        assert output["exitStatus"] == {"exitCode": None, "signal": "SIGKILL"}
        assert output["output"].endswith("ready\n")
        assert await services.handle("terminal/kill", terminal) == {}


async def test_waiting_can_be_cancelled(workspace: Path) -> None:
    async with serving(workspace) as services:
        terminal = await start(services, "sleep 600")
        with trio.move_on_after(0.02) as scope:
            await services.handle("terminal/wait_for_exit", terminal)
        assert scope.cancelled_caught
        assert "exitStatus" not in await services.handle("terminal/output", terminal)


async def test_a_descendant_that_holds_the_pipe_does_not_hold_up_the_exit(workspace: Path) -> None:
    async with serving(workspace) as services:
        terminal = await start(services, "sleep 600 & echo $!")
        with trio.fail_after(30):
            await services.handle("terminal/wait_for_exit", terminal)
        child = int((await services.handle("terminal/output", terminal))["output"])
        assert _alive(child)
        await services.handle("terminal/release", terminal)
        await until_gone(child)


@pytest.mark.guarantee(name="nothing-survives")
@pytest.mark.parametrize("how", ["close", "cancel"])
async def test_nothing_survives_the_end(workspace: Path, how: str) -> None:
    pids = workspace / "pids"
    async with trio.open_nursery() as nursery:
        services = Services(
            files.Jail(workspace),
            nursery,
            environment={"PATH": os.environ["PATH"]},
            start=start_process,
        )
        for _ in range(3):
            await start(services, f"trap '' TERM HUP INT; sleep 600 & echo $$ $! >> {pids}; wait")
        with trio.fail_after(PATIENCE):
            while not pids.exists() or len(pids.read_text().split()) < 6:
                await trio.sleep(0.005)
        if how == "close":
            await services.close()
        else:
            nursery.cancel_scope.cancel()
    leaders = [int(line.split()[0]) for line in pids.read_text().splitlines()]
    with trio.fail_after(PATIENCE):
        for pid in map(int, pids.read_text().split()):
            await until_gone(pid)
    for leader in leaders:  # reaped, not left as a zombie
        assert not Path(f"/proc/{leader}").exists()


async def test_output_is_cut_from_its_beginning(workspace: Path) -> None:
    async with serving(workspace) as services:
        script = "i=0; while [ $i -lt 3000 ]; do echo line $i; i=$((i+1)); done; printf 'ü🙂'"
        terminal = await start(services, script, outputByteLimit=50)
        await services.handle("terminal/wait_for_exit", terminal)
        output = await services.handle("terminal/output", terminal)
        assert output["truncated"]
        assert output["output"].endswith("line 2999\nü🙂")
        assert len(output["output"].encode()) == 50


async def test_a_flood_of_output_takes_bounded_memory(workspace: Path) -> None:
    async with serving(workspace) as services:
        terminal = await start(services, "head -c 30000000 /dev/zero | tr '\\0' x", outputByteLimit=1000)
        await services.handle("terminal/wait_for_exit", terminal)
        (held,) = services._terminals.values()
        assert held.ring.held <= 1000 + 2 * 65536
        output = await services.handle("terminal/output", terminal)
        assert (output["output"], output["truncated"]) == ("x" * 1000, True)


async def test_terminals_are_bounded(workspace: Path) -> None:
    async with serving(workspace) as services:
        for _ in range(MAX_TERMINALS):
            await services.handle("terminal/create", {"command": "true"})
        assert (await refused(services, "terminal/create", command="true")).code == -32603


@pytest.mark.guarantee(name="no-agent-starves-the-others")
async def test_a_large_output_is_read_beside_everything_else(workspace: Path) -> None:
    # Bytes that are no UTF-8: each is decoded on its own.
    script = f"head -c {MAX_OUTPUT_BYTES} /dev/zero | tr '\\0' '\\377'"
    async with serving(workspace) as services:
        terminal = await start(services, script, outputByteLimit=MAX_OUTPUT_BYTES)
        await services.handle("terminal/wait_for_exit", terminal)

        async def watch(gaps: list[float]) -> None:
            last = time.process_time()  # so that other processes do not count
            while True:
                await trio.sleep(0)
                now = time.process_time()
                gaps.append(now - last)
                last = now

        async def longest_gap() -> float:
            """The longest time that nothing else ran, as a part of the whole."""
            gaps = [0.0]
            async with trio.open_nursery() as nursery:
                nursery.start_soon(watch, gaps)
                begun = time.process_time()
                for _ in range(5):
                    shown = await services.handle("terminal/output", terminal)
                took = time.process_time() - begun
                nursery.cancel_scope.cancel()
            assert shown["output"] == "\ufffd" * MAX_OUTPUT_BYTES
            return max(gaps) / took

        # A busy machine may keep this thread from running while the other one works.
        assert min([await longest_gap() for _ in range(3)]) < 0.1


@pytest.mark.guarantee(name="whatever-an-agent-says-is-bounded")
def test_the_outputs_of_all_terminals_together_are_bounded() -> None:
    pool = OutputPool()
    rings = [OutputRing(MAX_OUTPUT_BYTES, pool) for _ in range(MAX_TERMINALS)]
    quiet = OutputRing(MAX_OUTPUT_BYTES, pool)
    quiet.add(b"the little that one says stays")
    for _ in range(64):
        for ring in rings:
            ring.add(b"x" * 65536)
            assert sum(each.held for each in (*rings, quiet)) <= OUTPUTS_BYTES
    assert all(ring.truncated and ring.held > 65536 for ring in rings)
    assert quiet.text(final=True) == "the little that one says stays"
    del ring
    del rings[1:]  # released: their share is free again
    for _ in range(200):
        rings[0].add(b"y" * 65536)
    assert rings[0].text(final=True) == "y" * MAX_OUTPUT_BYTES


def test_a_pool_may_be_full() -> None:
    pool = OutputPool(limit=100)
    first, second = OutputRing(100, pool), OutputRing(100, pool)
    first.add(b"a" * 50)
    second.add(b"b" * 50)
    assert (first.text(final=True), second.text(final=True)) == ("a" * 50, "b" * 50)
    second.add(b"b")
    assert second.truncated


@pytest.mark.parametrize("size", [1, 100, 65536])
def test_a_ring_of_any_pieces_takes_what_it_keeps(size: int) -> None:
    ring = OutputRing(100_000)
    for _ in range(400_000 // size + 1):
        ring.add(b"z" * size)
    chunks = list(ring._chunks)
    assert sum(map(len, chunks)) == ring.held <= 100_000 + 2 * 65536
    assert len(chunks) <= 100  # not an object for each piece
    assert ring.text(final=True) == "z" * 100_000


@given(st.text(max_size=60), st.integers(0, 80), st.lists(st.integers(1, 9), max_size=40))
def test_the_ring_keeps_the_end_at_a_character_boundary(text: str, limit: int, sizes: list[int]) -> None:
    data = text.encode("utf-8", "replace")
    ring = OutputRing(limit)
    rest = data
    for size in sizes:
        ring.add(rest[:size])
        rest = rest[size:]
    ring.add(rest)
    kept = ring.text(final=True)
    whole = data.decode()
    assert whole.endswith(kept)
    assert ring.truncated == (len(data) > limit)
    assert len(kept.encode()) <= limit
    # No character was dropped that had room.
    if ring.truncated and kept != whole:
        dropped = whole[: len(whole) - len(kept)]
        assert len((dropped[-1] + kept).encode()) > limit


def test_an_unfinished_character_is_left_out_until_it_is_whole() -> None:
    ring = OutputRing(100)
    ring.add("ok 🙂".encode()[:-2])
    assert ring.text(final=False) == "ok "
    assert ring.text(final=True) == "ok \ufffd"
    ring.add("🙂".encode()[-2:])
    assert ring.text(final=False) == "ok 🙂"


# -- a file that cannot be written keeps its text -----------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Any:
    place = tmp_path / "small"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small file system is not permitted here")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.guarantee(name="nothing-is-lost")
@pytest.mark.parametrize("linked", [False, True])
async def test_a_full_disk_keeps_the_old_file(small_disk: Path, linked: bool) -> None:
    path = small_disk / "f"
    path.write_text("old")
    if linked:
        (small_disk / "g").hardlink_to(path)
    before = sorted(small_disk.iterdir())
    async with serving(small_disk) as services:
        error = await refused(services, "fs/write_text_file", path=str(path), content="x" * 2_000_000)
        assert (error.code, error.message) == (-32603, "No space left on device")
        assert path.read_text() == "old"
        assert sorted(small_disk.iterdir()) == before
        await services.handle("fs/write_text_file", {"path": str(path), "content": "new"})
        assert path.read_text() == "new"


@pytest.mark.guarantee(name="nothing-is-lost")
async def test_any_failure_keeps_the_old_file(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing can be mounted: a write that fails in the middle."""
    (workspace / "f").write_text("old")

    def fail(file: Any, data: bytes) -> None:
        file.write(data[:3])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files, "_write_all", fail)
    async with serving(workspace) as services:
        for name in ("f", "fresh"):
            error = await refused(services, "fs/write_text_file", path=str(workspace / name), content="newer")
            assert error.message == "No space left on device"
    assert [(path.name, path.read_text()) for path in workspace.iterdir()] == [("f", "old")]


async def test_a_file_that_is_replaced_keeps_its_mode_and_its_names(workspace: Path) -> None:
    script, other = workspace / "script", workspace / "linked"
    script.write_text("old, and longer than what comes")
    script.chmod(0o751)
    other.write_text("old, and longer than what comes")
    (workspace / "second-name").hardlink_to(other)
    (workspace / "link").symlink_to("script")
    async with serving(workspace) as services:
        for name in ("link", "linked"):
            await services.handle("fs/write_text_file", {"path": str(workspace / name), "content": "new"})
    assert (script.read_text(), stat.S_IMODE(script.stat().st_mode)) == ("new", 0o751)
    assert (workspace / "link").is_symlink()
    assert (workspace / "second-name").read_text() == "new"
    assert len(list(workspace.iterdir())) == 4


async def test_a_file_that_may_not_be_written_is_not_replaced(workspace: Path) -> None:
    """The directory would permit that; the file's mode does not."""
    if os.geteuid() == 0:
        pytest.skip("root may write everything")
    (workspace / "f").write_text("old")
    (workspace / "f").chmod(0o444)
    async with serving(workspace) as services:
        error = await refused(services, "fs/write_text_file", path=str(workspace / "f"), content="new")
        assert error.code == -32603
    assert (workspace / "f").read_text() == "old"


def test_the_end_of_an_output_has_the_pieces_that_its_bytes_are_in():
    seen = Seen((b"abc", b"def", b"ghi"), 0, False)
    assert seen.last(9) == seen
    assert seen.last(7) == seen
    assert seen.last(6).pieces == seen.last(4).pieces == (b"def", b"ghi")
    assert seen.last(3).pieces == (b"ghi",)
    assert seen.last(3).truncated
