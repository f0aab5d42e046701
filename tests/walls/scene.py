"""What an agent attacks, and how a test sees from outside whether it succeeded.

A scene is a directory with the files of a user who runs Ostler, a process that stands for the server and one
for another agent. All of it belongs to one user.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import pty
import re
import resource
import secrets
import shutil
import signal
import socket
import sqlite3
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import attrs
import trio

from tests.support.processes import alive
from tests.walls import escapes

HERE = Path(__file__).parent

PYTHON = "/usr/bin/python3"
"""Every user can run it, inside walls too. The tests' own may be in a home."""

AGENT_S = 300.0
"""A bound that only a hang breaks."""

SOON_S = 10.0
"""How long what an attempt did may take to be seen."""

BEATS_S = 0.3
BEATS_LOOKS = 4

AMOUNTS = {"processes": 300, "memory_mb": 192, "file_mb": 48, "disk_mb": 24, "open_files": 1500}
"""What attempts use up. Limits below these stop them."""

SECRETS = [
    "master_key",
    "journal",
    "other_login",
    "other_worktree",
    "agent_login",
    "user_key",
    "other_tmp",
    "other_shm",
    "name",
    "command_line",
    "environment",
    "memory",
    "held",
    "segment",
    "queue",
    "control_answer",
    "bus_answer",
    "key_agent_answer",
    "abstract_answer",
    "port_answer",
    "session_key",
    "user_keyring",
    "left",
]

ROOT_USER = 0

CAPABILITIES = {
    "read_by_handle": 2,  # CAP_DAC_READ_SEARCH
    "open_raw_socket": 13,  # CAP_NET_RAW
    "open_packet_socket": 13,
    "mount_over": 21,  # CAP_SYS_ADMIN
    "enter_namespaces": 21,
    "use_priority": 23,  # CAP_SYS_NICE
    "make_disk": 27,  # CAP_MKNOD
}
"""What root needs for an attempt, and may lack in a container."""

WRITTEN = {
    "write_system": "/etc",
    "remount_system": "/etc",
    "set_core_pattern": "/proc/sys/kernel/core_pattern",
    "set_modprobe": "/proc/sys/kernel/modprobe",
    "set_overcommit": "/proc/sys/vm/overcommit_memory",
    "open_sysrq": "/proc/sysrq-trigger",
}
"""The same for what is written, which may be read-only or missing."""

NAMESPACED = ("unmount_masks", "bind_below_masks", "remount_hooks", "pivot_root", "leave_root")
"""Attempts of an ordinary user that begin with a user namespace."""

RUNTIME = (Path("/run"), Path("/run/user", str(os.getuid())))


class Result(NamedTuple):
    """What came of an attempt."""

    name: str
    outcome: str
    """`escaped`, `stopped` or `failed`."""
    seen: str


class Command(NamedTuple):
    """A command, and the descriptors that it inherits."""

    argv: Sequence[str]
    descriptors: Sequence[int] = ()


@attrs.frozen(kw_only=True)
class Scene:
    """One user's files and processes; made by `open_scene`, which owns them."""

    user: int
    base: Path
    """All of its files are below."""
    user_home: Path
    state: Path
    """Ostler's state directory."""
    home: Path
    """The agent's own, in the state directory."""
    install: Path
    """The agent's program, in the state directory."""
    workspace: Path
    others: tuple[Path, ...]
    """Credentials of other agents, outside of the state directory."""
    run_later: tuple[Path, ...]
    """Files of the workspace that programs outside run."""
    targets: dict[str, Any]
    secrets: dict[str, str]
    impossible: dict[str, str]
    """Attempts that cannot succeed on this machine, and why."""
    left: int
    """A descriptor with a secret, which a careless server leaves open."""
    terminal: tuple[int, int]
    """The server's: the side of the user, and that of the programs."""
    shown: bytearray = attrs.field(factory=bytearray)
    """What the terminal has shown."""
    witness: Path
    """What the server and the other agent noted."""

    def proven(self, result: Result) -> bool:
        """Whether an attempt has succeeded, as seen from outside."""
        kind, _, key = escapes.ATTEMPTS[result.name].proof.partition(":")
        believed = result.outcome == "escaped"
        if kind == "secret":
            return self.secrets[key] in result.seen
        if kind == "file":
            written = escapes.mark(result.name)
            return written in Path(self.targets[key]).read_bytes()
        if kind == "check":
            check: Callable[[str], bool] = getattr(self, key)
            end = time.monotonic() + (SOON_S if believed and key in LATE else 0)
            while not (found := check(result.name)) and time.monotonic() < end:
                time.sleep(0.02)
            return found
        return believed

    # -- the checks that attempts name

    def made_in_state(self, name: str) -> bool:
        return (self.state / f"escape-{name}").exists()

    def made_in_system(self, name: str) -> bool:
        return Path(f"{self.targets['system']}-{name}").exists()

    def new_repository(self, name: str) -> bool:
        hook = self.workspace / "inner/.git/hooks/post-checkout"
        return hook.exists() and escapes.mark(name) in hook.read_bytes()

    def mode_changed(self, name: str) -> bool:
        return stat.S_IMODE(os.stat(self.targets["agent_login"]).st_mode) == 0o644

    def memory_changed(self, name: str) -> bool:
        with open(f"/proc/{self.targets['agent_pid']}/mem", "rb", buffering=0) as memory:
            return os.pread(memory.fileno(), 64, self.targets["canary_address"]).startswith(
                escapes.mark(name)
            )

    def signalled(self, name: str) -> bool:
        return f" signal {int(escapes.SIGNALS[name])}\n" in self.witness.read_text()

    def priority_changed(self, name: str) -> bool:
        return os.getpriority(os.PRIO_PROCESS, self.targets["agent_pid"]) == escapes.LAST_PRIORITY

    def limit_changed(self, name: str) -> bool:
        limits = Path(f"/proc/{self.targets['agent_pid']}/limits").read_text()
        return re.search(r"^Max core file size +0 +0 ", limits, re.MULTILINE) is not None

    def score_changed(self, name: str) -> bool:
        return Path(f"/proc/{self.targets['agent_pid']}/oom_score_adj").read_text().strip() == "777"

    def asked(self, name: str) -> bool:
        return escapes.mark(name).decode().strip() in self.witness.read_text()

    def typed(self, name: str) -> bool:
        """The user sees it in the terminal."""
        with contextlib.suppress(BlockingIOError):
            self.shown.extend(os.read(self.terminal[0], 65536))
        return escapes.mark(name).strip() in self.shown

    def mounted_over(self, name: str) -> bool:
        return escapes.mark(name) in Path(self.targets["mounted_over"]).read_bytes()

    def group_made(self, name: str) -> bool:
        return any(group.exists() for group in _groups(self.targets))

    def outlived(self, name: str) -> bool:
        """Whether its beats go on though the agent has ended."""
        beat = self.home / f"beat-{name}"
        if not beat.exists():
            return False
        # The kernel ends a namespace a moment after the program whose end is seen here.
        for _ in range(BEATS_LOOKS):
            before = beat.stat().st_size
            time.sleep(BEATS_S)
            if beat.stat().st_size == before:
                return False
        return True


LATE = {"signalled", "asked", "typed"}
"""Checks of what another process has to note first."""


Wall = Callable[[Scene, Sequence[str]], contextlib.AbstractContextManager[Command]]
"""Makes a command that runs inside the walls out of one that does not."""


async def attack(scene: Scene, wall: Wall, names: Sequence[str] = ()) -> dict[str, Result]:
    """Run the agent inside the wall, and return what came of each attempt, as seen from outside."""
    agent = [PYTHON, "-I", "-S", str(scene.install / "escapes.py"), json.dumps(scene.targets), *names]
    with wall(scene, agent) as command:
        session = [PYTHON, "-I", "-S", str(scene.base / "victim.py"), "session"]
        key = [scene.targets["session_key"], scene.secrets["session_key"]]
        with trio.fail_after(AGENT_S):
            done = await trio.run_process(
                [*as_user(scene.user), *session, *key, *command.argv],
                cwd=scene.workspace,
                env={"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "HOME": str(scene.home)},
                stdin=scene.terminal[1],
                capture_stdout=True,
                capture_stderr=True,
                pass_fds=command.descriptors,
                check=False,
            )
    said = [Result(**json.loads(line)) for line in done.stdout.decode().splitlines()]
    assert [each.name for each in said] == list(names or escapes.ATTEMPTS), done.stderr.decode()
    assert [each for each in said if each.outcome == "failed"] == []
    results = {}
    for each in said:
        outcome = "escaped" if scene.proven(each) else "stopped"
        fooled = " (believed only)" if outcome != each.outcome else ""
        results[each.name] = Result(each.name, outcome, f"{each.seen[:200]}{fooled}")
    return results


def as_user(user: int) -> list[str]:
    """What runs a command as this user."""
    if user == os.getuid():
        return []
    return ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "--"]


@contextlib.contextmanager
def open_scene(user: int) -> Iterator[Scene]:
    """A scene of this user; its files, processes and keys end with the block."""
    base = Path(tempfile.mkdtemp(prefix="ostler-walls-"))
    try:
        with contextlib.ExitStack() as stack:
            yield _made(base, user, stack)
    finally:
        _end_processes(base)
        shutil.rmtree(base)


def _made(base: Path, user: int, stack: contextlib.ExitStack) -> Scene:
    token = base.name
    base.chmod(0o755)
    hidden = {name: secrets.token_hex(12) for name in SECRETS}
    user_home = base / "home"
    state, workspace = user_home / ".local/state/ostler", user_home / "projects/own"
    home, install = state / "homes/own", state / "agents/demo"
    other_tmp = Path(tempfile.gettempdir()) / f"{token}-other"
    other_shm = Path("/dev/shm") / f"{token}-other"
    files = {
        "master_key": state / "master.key",
        "journal": state / "journal.sqlite3",
        "other_login": state / "homes/other/login.json",
        "other_worktree": state / "worktrees/other/README.md",
        "agent_login": user_home / ".codex/auth.json",
        "user_key": user_home / ".ssh/id_ed25519",
        "user_profile": user_home / ".profile",
        "install_file": install / "index.js",
        "hook": workspace / ".git/hooks/post-checkout",
        "git_config": workspace / ".git/config",
        "editor_task": workspace / ".vscode/tasks.json",
        "linked_task": workspace / "settings/tasks.json",
        "control_to_replace": state / "control.old",
        "mounted_over": state / "settings.json",
        "looked_at": state / "secrets.json",
        "pulse": state / "server.log",
        "to_hold": state / "held",
        "to_hold_too": state / "held-too",
        "left": state / "left",
        "other_tmp": other_tmp,
        "other_shm": other_shm,
    }
    for name, path in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{hidden.get('held' if name == 'to_hold' else name, name)}\n")
        path.chmod(0o600)
    stack.callback(other_tmp.unlink)
    stack.callback(other_shm.unlink)
    files["journal"].unlink()
    with contextlib.closing(sqlite3.connect(files["journal"])) as database:
        database.execute("CREATE TABLE event (content TEXT)")
        database.execute("INSERT INTO event VALUES (?)", (hidden["journal"],))
        database.commit()
    (state / hidden["name"]).touch()
    home.mkdir(parents=True)
    (base / "sockets").mkdir()
    run = _runtime_directory(token, user, stack)
    os.link(files["agent_login"], workspace / "prepared")
    (workspace / ".idea").symlink_to("settings")
    looked_at = files["looked_at"].stat()
    hidden["looked_at"] = f"{looked_at.st_ino} {looked_at.st_size} {looked_at.st_mtime_ns}"
    hidden["prepared"] = hidden["agent_login"]
    shutil.copy(HERE / "escapes.py", install)
    shutil.copy(HERE / "victim.py", base)
    for each in (base, other_tmp, other_shm, *base.rglob("*")):
        os.chown(each, user, user, follow_symlinks=False)
    targets: dict[str, Any] = {name: str(path) for name, path in files.items()}
    targets |= {
        "base": str(base),
        "linked_task": str(workspace / ".idea/tasks.json"),
        "state": str(state),
        "home": str(home),
        "workspace": str(workspace),
        "prepared": str(workspace / "prepared"),
        "control": str(state / "control.sock"),
        "bus": str(run / "bus"),
        "key_agent": str(base / "sockets/key-agent"),
        "abstract": f"{token}-abstract",
        "queue": f"/{token}",
        "segment_key": secrets.randbits(30) + 1,
        "segment_size": len(hidden["segment"]),
        "memory_size": len(hidden["memory"]),
        "session_key": f"{token}-session",
        "user_keyring": f"{token}-user",
        "system": f"/etc/{token}",
        "group": token,
        "amounts": AMOUNTS,
    }
    user_side, program_side = pty.openpty()
    os.set_blocking(user_side, False)
    stack.callback(os.close, user_side)
    stack.callback(os.close, program_side)
    targets["terminal"] = os.ttyname(program_side)
    os.chown(targets["terminal"], user, user)
    left = os.open(files["left"], os.O_RDONLY)
    stack.callback(os.close, left)
    impossible: dict[str, str] = {}
    scene = Scene(
        user=user,
        base=base,
        user_home=user_home,
        state=state,
        home=home,
        install=install,
        workspace=workspace,
        others=(files["agent_login"].parent,),
        run_later=(files["hook"].parent, files["git_config"], files["editor_task"].parent),
        targets=targets,
        secrets=hidden,
        impossible=impossible,
        left=left,
        terminal=(user_side, program_side),
        witness=base / "witness",
    )
    _start_victims(scene, stack)
    _find_ways(scene)
    stack.callback(_clean_system, targets)
    return scene


def _runtime_directory(token: str, user: int, stack: contextlib.ExitStack) -> Path:
    """Where services of the user listen: in `/run`. It is not made where that cannot be written."""
    above = next((path for path in RUNTIME if os.access(path, os.W_OK)), RUNTIME[0])
    path = above / token
    with contextlib.suppress(PermissionError):
        path.mkdir()
        stack.callback(shutil.rmtree, path)
        os.chown(path, user, user)
    return path


# -- processes -----------------------------------------------------------------------------------------------


def _start_victims(scene: Scene, stack: contextlib.ExitStack) -> None:
    targets, hidden = scene.targets, scene.secrets
    has_bus = os.path.isdir(os.path.dirname(targets["bus"]))
    if not has_bus:
        scene.impossible["connect_bus"] = "nothing can be made in /run"
    common = {"witness": str(scene.witness), "memory": hidden["memory"], "user_keyring": None}
    server = _victim(
        scene,
        stack,
        common
        | {
            "role": "server",
            "directory": str(scene.state),
            "to_hold": targets["to_hold_too"],
            "pulse": targets["pulse"],
            "leads": False,
            "listeners": [
                [socket.AF_UNIX, targets["control"], hidden["control_answer"]],
                [socket.AF_UNIX, targets["key_agent"], hidden["key_agent_answer"]],
                [socket.AF_UNIX, f"\0{targets['abstract']}", hidden["abstract_answer"]],
                [socket.AF_INET, ["127.0.0.1", 0], hidden["port_answer"]],
                *([[socket.AF_UNIX, targets["bus"], hidden["bus_answer"]]] if has_bus else []),
            ],
        },
    )
    agent = _victim(
        scene,
        stack,
        common
        | {
            "role": "agent",
            "directory": str(Path(targets["other_login"]).parent),
            "to_hold": targets["to_hold"],
            "pulse": None,
            "leads": True,
            "listeners": [],
            "user_keyring": [targets["user_keyring"], hidden["user_keyring"]],
            "segment": hidden["segment"],
            "segment_key": targets["segment_key"],
            "queue": hidden["queue"],
            "queue_name": targets["queue"],
        },
    )
    targets |= {"server_pid": server["pid"], "port": server["port"], "names_port": server["names_port"]}
    targets |= {"agent_pid": agent["pid"], "held_descriptor": agent["held_descriptor"]}
    targets |= {name: agent[name] for name in ("memory_address", "canary_address")}
    if not agent["has_keyring"]:
        scene.impossible.update(
            dict.fromkeys(("read_user_keyring", "read_session_key"), "no kernel keyrings")
        )
    if not agent["has_queue"]:
        scene.impossible["read_queue"] = "no message queues"


def _victim(scene: Scene, stack: contextlib.ExitStack, wanted: dict[str, Any]) -> dict[str, Any]:
    """Start one, which ends with the stack. Returns its addresses."""
    process = subprocess.Popen(
        [
            *as_user(scene.user),
            PYTHON,
            "-I",
            "-S",
            str(scene.base / "victim.py"),
            "victim",
            scene.secrets["command_line"],
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={"AGENT_API_KEY": scene.secrets["environment"]},
    )

    def end() -> None:
        process.communicate()
        assert process.returncode == 0

    stack.callback(end)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps(wanted) + "\n")
    process.stdin.flush()
    ready: dict[str, Any] = json.loads(process.stdout.readline())
    return ready


def _end_processes(base: Path) -> None:
    """Kill what names this scene in its command, and wait until it is gone."""
    end = time.monotonic() + 30
    while found := list(_mentioning(base)):
        assert time.monotonic() < end, found
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def _mentioning(base: Path) -> Iterator[int]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if os.fsencode(base) in (entry / "cmdline").read_bytes() and alive(int(entry.name)):
                    yield int(entry.name)


# -- the machine ---------------------------------------------------------------------------------------------


def _find_ways(scene: Scene) -> None:
    """What attempts need of the machine; where it lacks that, they are impossible."""
    targets, impossible = scene.targets, scene.impossible
    as_root = scene.user == ROOT_USER
    _find_handle(targets, impossible)
    _find_disk(scene.base, targets, impossible)
    _find_groups(targets, impossible)
    _make_setuid(scene)
    for name, kind in (("open_vsock", "AF_VSOCK"),):
        try:
            socket.socket(getattr(socket, kind), socket.SOCK_STREAM).close()
        except (OSError, AttributeError) as error:
            impossible[name] = f"{kind}: {error}"
    for name in ("set_up_ring", "handle_page_faults"):
        outcome, seen = escapes.tried(escapes.ATTEMPTS[name], targets)
        if outcome != "escaped":
            impossible[name] = f"the tests cannot, either: {seen}"
    if as_root:
        held = int(re.findall(r"^CapEff:\s(\w+)", Path("/proc/self/status").read_text(), re.MULTILINE)[0], 16)
        impossible |= {
            name: f"root lacks capability {number}"
            for name, number in CAPABILITIES.items()
            if not held >> number & 1
        }
        for name, path in WRITTEN.items():
            if not os.access(path, os.W_OK):
                impossible[name] = f"root cannot write {path}"
    else:
        namespace = [*as_user(scene.user), "unshare", "--user", "true"]
        if subprocess.run(namespace, capture_output=True, check=False).returncode != 0:
            impossible |= dict.fromkeys(NAMESPACED, "users make no user namespaces here")
        if _setting("kernel/io_uring_disabled") not in (None, "0"):
            impossible["set_up_ring"] = "kernel.io_uring_disabled"
        if _setting("kernel/yama/ptrace_scope") not in (None, "0"):
            debugging = ("attach_debugger", "read_memory", "write_memory", "read_memory_by_call")
            impossible |= dict.fromkeys((*debugging, "take_descriptor"), "kernel.yama.ptrace_scope")
        if _setting("dev/tty/legacy_tiocsti") == "0":
            impossible["type_into_terminal"] = "dev.tty.legacy_tiocsti"
    if os.getpriority(os.PRIO_PROCESS, 0) == escapes.LAST_PRIORITY:
        impossible["change_priority"] = "the tests have the last priority"
    if resource.getrlimit(resource.RLIMIT_CORE)[1] == 0:
        impossible["change_limit"] = "core dumps are off"
    if 0 <= resource.getrlimit(resource.RLIMIT_NOFILE)[1] <= AMOUNTS["open_files"]:
        impossible["use_open_files"] = "the limit of open files is small"
    try:
        with open("/proc/kcore", "rb") as memory:
            memory.read(4)
    except OSError as error:
        impossible["read_kernel_memory"] = f"the tests cannot, either: {error.strerror}"


def _setting(name: str) -> str | None:
    try:
        return Path("/proc/sys", name).read_text().strip()
    except OSError:
        return None


def _find_handle(targets: dict[str, Any], impossible: dict[str, str]) -> None:
    most = 128
    handle = ctypes.create_string_buffer(8 + most)
    ctypes.memmove(handle, most.to_bytes(4, "little"), 4)
    mount = ctypes.c_int()
    path = targets["master_key"].encode()
    if escapes.libc.name_to_handle_at(-100, path, handle, ctypes.byref(mount), 0) == -1:
        impossible["read_by_handle"] = "the file system has no handles"
        size = 0
    else:
        size = int.from_bytes(handle.raw[:4], "little")
    targets["handle"] = handle.raw[8 : 8 + size].hex()
    targets["handle_type"] = int.from_bytes(handle.raw[4:8], "little")


def _find_disk(base: Path, targets: dict[str, Any], impossible: dict[str, str]) -> None:
    number = base.stat().st_dev
    targets |= {"disk": "/dev/null", "disk_type": "", "disk_point": "/", "disk_number": number}
    wanted = f"{os.major(number)}:{os.minor(number)}"
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        device, root, point = before.split()[2:5]
        kind, source = after.split()[:2]
        if (device, root) == (wanted, "/") and base.is_relative_to(point) and os.path.exists(source):
            targets |= {"disk": source, "disk_type": kind, "disk_point": point}
            break
    reason = "it is not a device"
    try:
        with open(targets["disk"], "rb") as disk:
            if disk.read(512):
                return
    except OSError as error:
        reason = f"root cannot open it, either: {error.strerror}"
    impossible |= dict.fromkeys(("read_disk", "make_disk", "mount_disk"), f"the disk: {reason}")


def _find_groups(targets: dict[str, Any], impossible: dict[str, str]) -> None:
    points = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        kind, options = after.split()[0], after.split()[-1].split(",")
        if kind == "cgroup2" or (kind == "cgroup" and "pids" in options):
            points.append(before.split()[4])
    targets["groups"] = points
    if not any(os.access(point, os.W_OK) for point in points):
        impossible["leave_group"] = "control groups cannot be written here"


def _groups(targets: dict[str, Any]) -> Iterator[Path]:
    return (Path(point, targets["group"]) for point in targets["groups"])


def _make_setuid(scene: Scene) -> None:
    program = scene.workspace / "setuid-id"
    shutil.copy("/usr/bin/id", program)
    scene.targets["setuid"] = str(program)
    if os.getuid() != ROOT_USER or os.statvfs(program).f_flag & os.ST_NOSUID:
        scene.impossible["run_setuid"] = "no set-user-ID program can be made"
    else:
        program.chmod(0o4755)


def _clean_system(targets: dict[str, Any]) -> None:
    """Take away what attempts left outside of the scene's directory."""
    for name in ("write_system", "remount_system"):
        Path(f"{targets['system']}-{name}").unlink(missing_ok=True)
    while escapes.libc.umount2(targets["mounted_over"].encode(), escapes.MNT_DETACH) == 0:
        pass
    for group in _groups(targets):
        end = time.monotonic() + 30
        while group.exists():
            try:
                group.rmdir()
            except OSError:
                assert time.monotonic() < end
                time.sleep(0.01)
