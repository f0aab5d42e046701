"""What comes of each attempt. `SECURITY.md` shows this table, `test_escapes.py` compares it to what happens.

An escape that is not expected fails the test, and so does a stop: a gap that is closed leaves the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import attrs

LEVELS: Final = ("off", "guard", "strict", "landlock")
USERS: Final = ("user", "root")


@attrs.frozen
class Outcome:
    """What comes of an attempt at one level."""

    escapes: bool
    why: str = ""
    """Of a gap, or of what cannot succeed without walls, either."""


ESCAPES: Final = Outcome(True)
STOPPED: Final = Outcome(False)


class Row(NamedTuple):
    """An attempt of one user, at each level."""

    off: Outcome
    guard: Outcome
    strict: Outcome
    landlock: Outcome = Outcome(False)
    """`strict` of Landlock's rules."""


class Both(NamedTuple):
    """An attempt of an ordinary user, and of root."""

    user: Row
    root: Row


def gap(why: str) -> Outcome:
    """The attempt escapes though there is a wall."""
    return Outcome(True, why)


def never(why: str) -> Outcome:
    """The attempt cannot succeed without walls, so it proves nothing about them."""
    return Outcome(False, why)


def both(off: Outcome, guard: Outcome, strict: Outcome, landlock: Outcome | None = None) -> Both:
    """The same for an ordinary user and root. `landlock`: if it is not as `strict`."""
    row = Row(off, guard, strict, landlock or strict)
    return Both(row, row)


def of_user(guard: Outcome, landlock: Outcome = STOPPED) -> Both:
    """What agents of root are stopped at by `guard`, since their user ids are others."""
    return Both(Row(ESCAPES, guard, STOPPED, landlock), Row(ESCAPES, STOPPED, STOPPED, landlock))


def of_root() -> Both:
    """What an ordinary user cannot do anyway."""
    return Both(Row(ROOTS, STOPPED, STOPPED), Row(ESCAPES, STOPPED, STOPPED))


def but_by_landlock(landlock: Outcome) -> Both:
    """What Landlock's rules alone do not stop."""
    return both(ESCAPES, STOPPED, STOPPED, landlock)


ROOTS = never("the system allows it to root alone")

USERS_FILES = gap("`guard` is not about the user's own files")
SAME_PLACES = gap("`guard` leaves these as they are")
SAME_NETWORK = gap("these belong to the network, which is that of the machine")
SAME_FILE = gap("a hard link that is in the workspace already is that file")
NEW_FILES = gap("what is not there at the start can be made, and a link can be replaced")
DISK = gap("nothing limits the disk")
ROOTS_PROCESSES = gap("the kernel counts no processes of root")
NO_RULES = gap("Landlock has no rules for these")
WHOLE_WORKSPACE = gap("Landlock's rules allow the whole workspace")
SEARCHED = gap("no namespace ends these, but Ostler's search for what an agent left (`OSTLER_CONTAINMENT`)")

STOPS = both(ESCAPES, STOPPED, STOPPED)

EXPECTED: Final[Mapping[str, Both]] = {
    # Files, by name.
    "read_master_key": STOPS,
    "read_journal": STOPS,
    "read_other_home": STOPS,
    "read_other_worktree": STOPS,
    "read_agent_login": STOPS,
    "write_master_key": STOPS,
    "write_journal": STOPS,
    "write_other_home": STOPS,
    "write_other_worktree": STOPS,
    "write_agent_login": STOPS,
    "write_install": STOPS,
    "make_in_state": STOPS,
    "replace_control_socket": STOPS,
    # Links. Nothing takes a file back that had a second name in the workspace before the walls.
    "read_by_symbolic_link": STOPS,
    "read_by_dots": STOPS,
    "read_by_hard_link": STOPS,
    "write_by_hard_link": STOPS,
    "read_prepared_link": both(ESCAPES, SAME_FILE, SAME_FILE),
    "read_by_handle": of_root(),
    "list_state": STOPS,
    "stat_master_key": but_by_landlock(NO_RULES),
    "chmod_agent_login": but_by_landlock(NO_RULES),
    "watch_log": but_by_landlock(NO_RULES),
    # What `guard` is not about.
    "read_user_file": both(ESCAPES, USERS_FILES, STOPPED),
    "write_user_file": both(ESCAPES, USERS_FILES, STOPPED),
    "read_other_tmp": of_user(SAME_PLACES),
    "read_other_shm": of_user(SAME_PLACES),
    "connect_key_agent": of_user(SAME_PLACES, NO_RULES),
    # The system, which an ordinary user does not change either.
    "write_system": of_root(),
    "remount_system": of_root(),
    "read_passwords": of_root(),
    "read_disk": of_root(),
    "make_disk": of_root(),
    "mount_disk": of_root(),
    "set_core_pattern": of_root(),
    "set_modprobe": of_root(),
    "set_overcommit": of_root(),
    "open_sysrq": of_root(),
    "read_kernel_memory": of_root(),
    "leave_group": of_root(),
    # Processes.
    "list_processes": but_by_landlock(NO_RULES),
    "read_environment": STOPS,
    "read_memory": STOPS,
    "write_memory": STOPS,
    "read_memory_by_call": STOPS,
    "attach_debugger": STOPS,
    "read_descriptor": STOPS,
    "take_descriptor": STOPS,
    "read_by_root": STOPS,
    "read_by_root_of_parents": STOPS,
    "read_by_directory": STOPS,
    "signal_server": STOPS,
    "signal_agent": STOPS,
    "signal_group": STOPS,
    "signal_by_pidfd": STOPS,
    "signal_by_fcntl": STOPS,
    "change_priority": STOPS,
    "change_limit": STOPS,
    "change_score": STOPS,
    # Memory and sockets of others. Names of abstract ones belong to the network.
    "read_segment": but_by_landlock(NO_RULES),
    "read_queue": STOPS,
    "connect_control": but_by_landlock(NO_RULES),
    "connect_bus": but_by_landlock(NO_RULES),
    "connect_abstract": STOPS,
    "connect_port": both(ESCAPES, SAME_NETWORK, SAME_NETWORK),
    "ask_names": both(ESCAPES, SAME_NETWORK, SAME_NETWORK),
    "open_raw_socket": of_root(),
    "open_packet_socket": of_root(),
    "open_vsock": STOPS,
    # The kernel's other doors.
    "read_session_key": STOPS,
    "read_user_keyring": STOPS,
    "set_up_ring": STOPS,
    "handle_page_faults": STOPS,
    "run_setuid": Both(Row(ESCAPES, STOPPED, STOPPED), Row(never("it is root"), STOPPED, STOPPED)),
    "read_left_descriptor": STOPS,
    "type_into_terminal": STOPS,
    "write_to_terminal": but_by_landlock(NO_RULES),
    # Mounts.
    "unmount_masks": STOPS,
    "bind_below_masks": STOPS,
    "remount_hooks": STOPS,
    "mount_over": of_root(),
    "mount_proc": but_by_landlock(NO_RULES),
    "pivot_root": STOPS,
    "leave_root": STOPS,
    "enter_namespaces": of_root(),
    # The workspace.
    "write_hook": but_by_landlock(WHOLE_WORKSPACE),
    "write_editor_task": but_by_landlock(WHOLE_WORKSPACE),
    "replace_git_directory": but_by_landlock(WHOLE_WORKSPACE),
    "write_git_config": but_by_landlock(WHOLE_WORKSPACE),
    "make_repository": both(ESCAPES, NEW_FILES, NEW_FILES),
    "replace_editor_link": both(ESCAPES, NEW_FILES, NEW_FILES),
    # Its end.
    "outlive_session": but_by_landlock(SEARCHED),
    "outlive_unmarked": but_by_landlock(SEARCHED),
    "outlive_adopted": but_by_landlock(SEARCHED),
    # Limits.
    "use_processes": Both(
        Row(ESCAPES, STOPPED, STOPPED), Row(ESCAPES, STOPPED, STOPPED, landlock=ROOTS_PROCESSES)
    ),
    "use_memory": STOPS,
    "use_disk": both(ESCAPES, DISK, DISK),
    "use_file_size": STOPS,
    "use_open_files": STOPS,
    "use_priority": of_root(),
}
