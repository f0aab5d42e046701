"""The process that starts others for the server, so that the server never waits for an exec.

    python -I -S spawner.py CHANNEL SERVER HIDDEN DIES
    python -I -S spawner.py confine WANTED COMMAND ...

Run as a file, with a bare interpreter and the standard library alone (link.py is the server's side): 9 MB, of
which 6 are shared with other interpreters. Opening a program's file can block without limit - another process
only needs a lease on it - and a fork in the server would wait for that with the interpreter's lock held.

The first message on the channel is the spawner's own tag, a decimal number, 0 for none; it answers READY. A
request is one byte with descriptors: a memory file with the request, one end of a socket pair to report on,
then standard input, output and error, then the working directory if that is a descriptor. A grandchild of
this process starts each program. Its parent exits at once, so the kernel reparents it to the server before
the exec: the server can wait for it, and a parent-death signal that the program asks for is bound to the
server's main thread. On its socket the grandchild sends `p<pid>` and waits for one byte, so that the server
knows of it before foreign code runs. Then it reports why the start failed (`e<errno> <step>`), or the socket
closes with the exec. This process itself never blocks: it opens no path and reads no request.

The second form confines itself and becomes one command: for starts without the spawner, and inside a
namespace.
"""

from __future__ import annotations

import _socket
import marshal
import os
import resource
import signal
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:  # without importing `typing`, which costs as much as everything else
    from collections.abc import Callable
    from typing import Any, NoReturn

MOST_DESCRIPTORS = 6
"""Descriptors of one request: see above."""

ADOPTION_SECONDS = 5.0
"""Seconds that reparenting to the server may take, which is the time that a process needs to end. Beyond that
the server is gone."""

ADOPTION_POLL_SECONDS = 0.0002

RLIMIT_LOCKS = 10
"""The limit that carries the tag (see process_tag.py)."""

GO = b"g"
"""From the server: it knows the PID."""

READY = b"r"
"""On the channel, once: requests are served."""

TAG_BYTES = 32
"""Bytes of the message with the tag: more than a 64-bit number has digits."""

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 1, 4, 22, 24, 38

LANDLOCK_CREATE_RULESET, LANDLOCK_ADD_RULE, LANDLOCK_RESTRICT_SELF = 444, 445, 446
"""System call numbers: Linux gives calls added since 5.1 the same number on all common architectures."""

OPEN_TREE, MOVE_MOUNT, MOUNT_SETATTR = 428, 429, 442
"""The same for calls that mount."""

LANDLOCK_VERSION = 1
"""A flag of the first: return the version of the interface."""

LANDLOCK_SCOPES = 6
"""The version from which on a ruleset can hold back abstract sockets and signals."""

SCOPED = 0b11
"""Both of them."""

SECCOMP_SET_MODE_FILTER = 2
"""The mode of PR_SET_SECCOMP that installs a filter."""

LANDLOCK_PATH = 1
"""A rule about a file, or about a directory with all below it."""

RUN, READ, LIST, WRITE, OWN = 0b1101, 0b1100, 0b1000, ~1, ~0
"""Rights of a rule (linux/landlock.h): execute and read files and directories; read them; list directories;
everything except execute; everything."""

FILE_RIGHTS = 0b1100_0000_0000_0111
"""The rights that apply to a file that is not a directory."""

AT_FDCWD, AT_EMPTY_PATH, AT_RECURSIVE = -100, 0x1000, 0x8000
OPEN_TREE_CLONE, MOVE_MOUNT_F_EMPTY_PATH = 1, 4
MOUNT_ATTR_IDMAP = 0x100000
MS_REC, MS_SLAVE = 0x4000, 0x80000
"""Constants of mounting (linux/mount.h, linux/fcntl.h)."""

CLONE_NEWNS, CLONE_NEWUSER = 0x20000, 0x10000000

ID_NONE = 2**32 - 1
"""Not a user id (`(uid_t)-1`); those below are."""

CAPABILITY_VERSION = 0x20080522
"""Of the call capset: the one with two words for each set."""


class Refused(Exception):
    """A step of the start failed: (errno, step)."""


def serve(channel: _socket.socket, server: int) -> None:
    """Start what the server requests, until it closes the channel."""
    room = _socket.CMSG_SPACE(MOST_DESCRIPTORS * 4)
    while True:
        try:
            data, extra, _, _ = channel.recvmsg(1, room, _socket.MSG_CMSG_CLOEXEC)
        except InterruptedError:
            continue
        except OSError:
            return
        if not data:
            return
        numbers = b"".join(payload for _, kind, payload in extra if kind == _socket.SCM_RIGHTS)
        descriptors = list(memoryview(numbers[: len(numbers) // 4 * 4]).cast("i"))
        # With too few (this process may be out of descriptors) closing them tells the server.
        if len(descriptors) >= MOST_DESCRIPTORS - 1:
            start(descriptors, server)
        for descriptor in descriptors:
            os.close(descriptor)


def start(descriptors: list[int], server: int) -> None:
    """Fork the grandchild that becomes the program, and wait until its parent has ended."""
    try:
        pid = os.fork()
    except OSError as error:
        report(descriptors[1], error.errno or 0, "fork")
        return
    if pid:
        # Soon: the child reads its request from memory, forks, and exits.
        os.waitpid(pid, 0)
        return
    try:
        request = read_request(descriptors[0])
        if request["tag"]:
            # Before the next fork, so that the server's child carries the tag from the beginning.
            tag(request["tag"])
        # The second fork makes an orphan of the program, which the kernel gives to the server, its subreaper.
        if os.fork() == 0:
            become(request, descriptors, server)
    except OSError as error:
        report(descriptors[1], error.errno or 0, "fork")
    finally:
        os._exit(0)


def read_request(descriptor: int) -> dict[str, Any]:
    """Read the server's request: `argv`, `env`, `cwd`, `tag`, `group`, `needs`, `confine`."""
    size = os.fstat(descriptor).st_size
    data = b""
    while len(data) < size and (more := os.pread(descriptor, size - len(data), len(data))):
        data += more
    return marshal.loads(data)  # type: ignore[no-any-return] # noqa: S302 - the server wrote it


def tag(number: int) -> None:
    """Set the tag of this process."""
    resource.setrlimit(RLIMIT_LOCKS, (number, resource.getrlimit(RLIMIT_LOCKS)[1]))


def report(descriptor: int, number: int, step: str) -> None:
    """Report why nothing was started."""
    try:
        os.write(descriptor, b"e%d %s" % (number, step.encode()))
    except OSError:
        return


def become(request: dict[str, Any], descriptors: list[int], server: int) -> NoReturn:
    """Become the program, or report why not. Does not return."""
    socket = descriptors[1]
    try:
        wait_for_adoption(server)
        # A session and a group of its own, which one signal reaches as a whole.
        os.setsid()
        os.write(socket, b"p%d\n" % os.getpid())
        # The server could not end a program whose PID it does not know.
        if os.read(socket, 1) != GO:
            os._exit(1)
        execute(request, descriptors)
    except Refused as refused:
        report(socket, *refused.args)
    except OSError as error:
        report(socket, error.errno or 0, "start")
    finally:
        os._exit(1)


def wait_for_adoption(server: int) -> None:
    """Wait until the server is the parent of this process."""
    until = time.monotonic() + ADOPTION_SECONDS
    while os.getppid() != server:
        if time.monotonic() > until:
            os._exit(1)
        time.sleep(ADOPTION_POLL_SECONDS)


def execute(request: dict[str, Any], descriptors: list[int]) -> None:
    """Prepare this process for the program and become it. Raises Refused."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)  # Python ignores them, and an ignored signal is inherited
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    if request["group"] is not None:
        attempt("group", enter, request["group"])
    attempt("chdir", os.chdir, descriptors[5] if request["cwd"] is None else request["cwd"])
    for standard, descriptor in enumerate(descriptors[2:5]):
        os.dup2(descriptor, standard)
    # All other descriptors are closed by the exec.
    if request["needs"] is not None:
        attempt("exec", look_for, request["needs"], request["path"])
    if request["confine"] is not None:
        attempt("confine", confine, request["confine"])
    argv, env = request["argv"], request["env"]
    attempt("exec", become_program, argv, env, request["path"])


def confine(wanted: dict[str, Any]) -> None:
    """Apply a confinement (confinement.py) to this process and all that it starts. Raises OSError."""
    if wanted["ownership"] is not None:
        show_as_owned(*wanted["ownership"])
    if wanted["unprivileged"]:
        drop_capabilities()
    limits = wanted["limits"]
    if wanted["more_processes"] is not None:
        limits = [*limits, (resource.RLIMIT_NPROC, machine_threads() + wanted["more_processes"])]
    for number, most in limits:
        # Limits can only be lowered without privileges.
        soft, hard = (
            most if each == resource.RLIM_INFINITY else min(most, each) for each in resource.getrlimit(number)
        )
        # Programs raise their soft limit of open files to the hard one; no other.
        resource.setrlimit(number, (soft, hard if number == resource.RLIMIT_NOFILE else min(soft, hard)))
    if wanted["reach"] is not None or wanted["scoped"]:
        wall(wanted["reach"], wanted["scoped"])
    if wanted["system_calls"] is not None:
        filter_calls(wanted["system_calls"])


def machine_threads() -> int:
    """Return the number of processes and threads of the whole machine (proc_loadavg(5)), an upper bound of
    the user's, which the kernel does not report. Raises OSError."""
    with open("/proc/loadavg", "rb") as file:  # noqa: PTH123 - without another import
        return int(file.read().split()[3].partition(b"/")[2])


def kernel(number: int, *arguments: bytes | int | None) -> int:
    """Make a system call. Raises OSError."""
    import ctypes

    words = [each if isinstance(each, bytes) else ctypes.c_long(each or 0) for each in arguments]
    return checked(ctypes.CDLL(None, use_errno=True).syscall(ctypes.c_long(number), *words))


def checked(result: int) -> int:
    """Return what a function of the C library returned. Raises OSError if it failed."""
    import ctypes

    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def control(option: int, *arguments: int) -> None:
    """Make the call prctl(2). Raises OSError."""
    import ctypes

    words = map(ctypes.c_ulong, (*arguments, 0, 0, 0, 0)[:4])
    checked(ctypes.CDLL(None, use_errno=True).prctl(option, *words))


def show_as_owned(user: int, paths: list[bytes], handed: list[tuple[int, bytes]]) -> None:
    """Mount each of these paths over itself, for this process and all that it starts, such that what belongs
    to the owner of the path belongs to `user` (idmapped mounts, Linux 5.12). On the disk nothing changes, and
    what is made there belongs to the owner. Needs root's rights. Raises OSError.

    `handed`: content that a descriptor of this number has for the program.
    """
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    checked(libc.unshare(CLONE_NEWNS))
    # Mounts of the machine still arrive here; none of these reaches the machine.
    checked(libc.mount(None, b"/", None, ctypes.c_ulong(MS_REC | MS_SLAVE), None))
    namespaces: dict[tuple[int, int], int] = {}
    trees = []
    for path in paths:
        tree = kernel(OPEN_TREE, AT_FDCWD, path, OPEN_TREE_CLONE | AT_RECURSIVE | os.O_CLOEXEC)
        found = os.fstat(tree)
        owner = found.st_uid, found.st_gid
        if owner not in namespaces:
            namespaces[owner] = renaming_namespace(libc, owner, user)
        # struct mount_attr: what to set, what to clear, propagation, the user namespace
        numbers = (MOUNT_ATTR_IDMAP, 0, 0, namespaces[owner])
        changes = b"".join(each.to_bytes(8, sys.byteorder) for each in numbers)
        kernel(MOUNT_SETATTR, tree, b"", AT_EMPTY_PATH | AT_RECURSIVE, changes, len(changes))
        trees.append(tree)
    # Only now: what is mounted so cannot be mounted with another owner once more.
    for path, tree in zip(paths, trees, strict=True):
        kernel(MOVE_MOUNT, tree, b"", AT_FDCWD, path, MOVE_MOUNT_F_EMPTY_PATH)
        os.close(tree)
    for namespace in namespaces.values():
        os.close(namespace)
    for number, content in handed:
        memory = os.memfd_create("handed")
        os.write(memory, content)
        os.lseek(memory, 0, os.SEEK_SET)
        os.dup2(memory, number)
        os.close(memory)


def renaming_namespace(libc: Any, owner: tuple[int, int], user: int) -> int:
    """Return a descriptor of a user namespace that makes this owner and group `user`, and leaves all others.
    Raises OSError."""
    made, ready = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(made)
            control(PR_SET_PDEATHSIG, signal.SIGKILL)
            os.write(ready, b"y" if libc.unshare(CLONE_NEWUSER) == 0 else b"n")
            signal.pause()
        finally:
            os._exit(0)
    os.close(ready)
    try:
        if os.read(made, 1) != b"y":
            raise OSError(1, os.strerror(1))  # EPERM: user namespaces are switched off
        for name, number in zip(("uid_map", "gid_map"), owner, strict=True):
            with open(f"/proc/{pid}/{name}", "wb", buffering=0) as file:  # noqa: PTH123 - without an import
                file.write(renaming(number, user))
        return os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(made)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def renaming(number: int, user: int) -> bytes:
    """The lines of an id map (user_namespaces(7)) that make `number` `user`, and leave all others."""
    first, second = sorted((number, user))
    others = [(0, first), (first + 1, second), (second + 1, ID_NONE)]
    lines = [(start, start, end - start) for start, end in others if end > start]
    return b"".join(b"%d %d %d\n" % each for each in sorted([*lines, (number, user, 1)]))


def drop_capabilities() -> None:
    """Give up all capabilities, for this process and all that it starts. Raises OSError."""
    number = 0
    while True:
        try:
            control(PR_CAPBSET_DROP, number)
        except OSError as error:
            if error.errno != 22:  # EINVAL: the kernel has no more
                raise
            break
        number += 1
    import ctypes

    header = CAPABILITY_VERSION.to_bytes(4, sys.byteorder) + bytes(4)
    checked(ctypes.CDLL(None, use_errno=True).capset(header, bytes(24)))
    control(PR_SET_NO_NEW_PRIVS, 1)  # or root would have them again with each exec


def wall(reach: list[tuple[bytes, int]] | None, scoped: bool) -> None:
    """Restrict this process to these paths, each with its rights, and with `scoped` to its own sockets and
    processes, by Landlock. Raises OSError."""
    version = kernel(LANDLOCK_CREATE_RULESET, None, 0, LANDLOCK_VERSION)
    # Landlock allows what a ruleset does not handle, so handle all rights that this kernel knows.
    handled = 0 if reach is None else (1 << {1: 13, 2: 14, 3: 15, 4: 15}.get(version, 16)) - 1
    wanted = (handled, 0, SCOPED) if scoped else (handled,)
    described = b"".join(each.to_bytes(8, sys.byteorder) for each in wanted)
    rules = kernel(LANDLOCK_CREATE_RULESET, described, len(described), 0)
    for path, rights in reach or ():
        try:
            # Programs are the operator's and may be links. A client's path was resolved; a link in it now is
            # an attack.
            place = os.open(path, os.O_PATH) if rights == RUN else walk(path)
        except FileNotFoundError:
            continue  # nothing to allow
        directory = os.fstat(place).st_mode & 0o170000 == 0o040000
        allowed = handled & rights & (-1 if directory else FILE_RIGHTS)
        rule = allowed.to_bytes(8, sys.byteorder) + place.to_bytes(4, sys.byteorder)
        kernel(LANDLOCK_ADD_RULE, rules, LANDLOCK_PATH, rule, 0)
        os.close(place)
    # Landlock demands it: a set-user-ID program must not run confined by its caller.
    control(PR_SET_NO_NEW_PRIVS, 1)
    kernel(LANDLOCK_RESTRICT_SELF, rules, 0)
    os.close(rules)


def filter_calls(steps: bytes) -> None:
    """Filter the system calls of this process and of all that it starts. Raises OSError."""
    import ctypes

    control(PR_SET_NO_NEW_PRIVS, 1)  # as for Landlock
    held = ctypes.create_string_buffer(steps)
    # struct sock_fprog: the number of steps of 8 bytes, and where they are
    program = (len(steps) // 8).to_bytes(8, sys.byteorder) + ctypes.addressof(held).to_bytes(8, sys.byteorder)
    described = ctypes.create_string_buffer(program)
    control(PR_SET_SECCOMP, SECCOMP_SET_MODE_FILTER, ctypes.addressof(described))


def walk(path: bytes) -> int:
    """Open a resolved path without following links: a link in it was put there afterwards."""
    here = os.open(b"/", os.O_PATH)
    for step in path.split(b"/"):
        if step:  # A link is opened itself, so nothing can be opened below it.
            below = os.open(step, os.O_PATH | os.O_NOFOLLOW, dir_fd=here)
            os.close(here)
            here = below
    return here


def attempt(step: str, work: Callable[..., object], *arguments: object) -> None:
    """Run `work`; raise Refused with the name of the step on OSError."""
    try:
        work(*arguments)
    except OSError as error:
        raise Refused(error.errno or 0, step) from None


def enter(group: bytes) -> None:
    """Move into a control group."""
    descriptor = os.open(group, os.O_WRONLY)
    try:
        os.write(descriptor, b"0")
    finally:
        os.close(descriptor)


def candidates(name: bytes, path: list[bytes]) -> list[bytes]:
    """Return the paths at which a program of that name may be."""
    return [name] if b"/" in name else [os.path.join(directory, name) for directory in path]  # noqa: PTH118


def look_for(name: bytes, path: list[bytes]) -> None:
    """Raise FileNotFoundError for a missing program: a wrapper would start first and hide the error."""
    for candidate in candidates(name, path):
        if os.path.isfile(candidate) and os.access(candidate, os.X_OK):  # noqa: PTH113
            return
    raise FileNotFoundError(2, "")


def become_program(argv: list[bytes], env: dict[bytes, bytes], path: list[bytes]) -> None:
    """Execute the first candidate that works; else raise the most specific error, as execvp(3) does."""
    specific: OSError | None = None
    last: OSError = FileNotFoundError(2, "")
    for candidate in candidates(argv[0], path):
        try:
            os.execve(candidate, argv, env)  # noqa: S606
        except (FileNotFoundError, NotADirectoryError) as error:
            last = error
        except OSError as error:
            specific = specific or error
    raise specific or last


def hide_and_bind(hidden: bool, dies: bool, server: int) -> None:
    """Hide the environments that pass through this process from the user's other processes, and tie its life
    to the server's main thread. Like prctl.py, which cannot be imported here."""
    try:
        import ctypes

        prctl = ctypes.CDLL(None).prctl
        zero = ctypes.c_ulong(0)
        if hidden:
            prctl(PR_SET_DUMPABLE, zero, zero, zero, zero)
        if dies:
            prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL), zero, zero, zero)
    except (ImportError, AttributeError, OSError):
        return
    # The server ended before the death signal was set, so none will come.
    if os.getppid() != server:
        os._exit(1)


def confine_and_become(wanted: str, argv: list[str]) -> NoReturn:
    """Confine this process and execute the command: for starts without the spawner."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    path = [os.fsencode(each) for each in os.get_exec_path()]  # imports, which confinement may prevent
    try:
        confine(marshal.loads(bytes.fromhex(wanted)))  # noqa: S302 - the server wrote it
        become_program([os.fsencode(each) for each in argv], dict(os.environb), path)
    except OSError as error:
        sys.stderr.write(f"{argv[0]} cannot be started: {os.strerror(error.errno or 0)}\n")
    os._exit(127)


if __name__ == "__main__":
    if sys.argv[1] == "confine":
        confine_and_become(sys.argv[2], sys.argv[3:])
    _channel, _server, _hidden, _dies = map(int, sys.argv[1:])
    os.set_inheritable(_channel, False)  # else the started programs could send requests as the server
    hide_and_bind(bool(_hidden), bool(_dies), _server)
    _own = _socket.socket(fileno=_channel)
    if _word := _own.recv(TAG_BYTES):
        if _number := int(_word):
            tag(_number)
        _own.send(READY)
        serve(_own, _server)
