"""An agent tries to escape: without walls it must succeed, and each level stops what the table says."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping

import pytest

from supervisor.agents.spawning.confinement import can_scope
from supervisor.agents.walls.wall import Mechanism
from supervisor.agents.walls.wall import Wall as Kind
from tests.walls import escapes, levels, table
from tests.walls.expected import EXPECTED, LEVELS, USERS, Outcome
from tests.walls.levels import Walled
from tests.walls.scene import PYTHON, ROOT_USER, Result, Scene, attack, open_scene

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="walls are Linux's")

IN_CI = os.environ.get("CI") == "true"

FIRST_USER, MANY_USERS = 50_000, 10_000
"""User ids that nothing else has. Each run has its own: limits and keyrings belong to an id."""


def user_id(user: str) -> int:
    """Whose scene it is. Skips where the tests cannot be that user."""
    if os.getuid() == ROOT_USER:
        return ROOT_USER if user == "root" else FIRST_USER + os.getpid() % MANY_USERS
    if user == "root":
        pytest.skip("the tests do not run as root")
    return os.getuid()


def needs(program: str) -> None:
    """Skip where a program is missing, except in CI."""
    if shutil.which(program) is None and not IN_CI:
        pytest.skip(f"there is no {program}")


def needs_walls(scene: Scene) -> None:
    """Skip where there are none, except in CI."""
    reason = levels.obstacle(scene.user)
    if reason is not None and not IN_CI:
        pytest.skip(reason)


@pytest.fixture(params=USERS)
def scene(request: pytest.FixtureRequest) -> Iterator[Scene]:
    for program in ("setpriv", PYTHON):
        needs(program)
    with open_scene(user_id(request.param)) as made:
        yield made


def user_of(scene: Scene) -> str:
    return "root" if scene.user == ROOT_USER else "user"


@pytest.mark.guarantee(name="malicious-agents")
@pytest.mark.parametrize("level", LEVELS)
async def test_each_level_stops_what_the_table_says(
    level: str, scene: Scene, record_property: Callable[[str, object], None]
) -> None:
    record_property("impossible here", scene.impossible)
    if level != "off":
        needs_walls(scene)
    if level == "landlock" and not can_scope():
        pytest.skip("Landlock is older than Linux 6.12")
    found = await attack(scene, levels.LEVELS[level])
    assert unexpected(scene, level, found) == {}, scene.impossible


def unexpected(scene: Scene, level: str, found: Mapping[str, Result]) -> dict[str, Result]:
    """What came out otherwise than the table says."""
    wrong = {}
    for name, result in found.items():
        expected: Outcome = getattr(getattr(EXPECTED[name], user_of(scene)), level)
        escaped = result.outcome == "escaped"
        if level != "off" and name == "connect_abstract" and not can_scope():
            continue  # before Linux 6.12 it is reached
        if escaped != expected.escapes and (escaped or name not in scene.impossible):
            wrong[name] = result
    return wrong


async def test_root_without_a_user_id_for_its_agents_has_the_same_strict_wall(scene: Scene) -> None:
    """As where root's file system has no idmapped mounts, or root is root of a namespace alone."""
    if scene.user != ROOT_USER:
        pytest.skip("an ordinary user has no other ids to give")
    needs_walls(scene)
    found = await attack(scene, Walled(Kind.STRICT, mechanism=Mechanism.NAMESPACES))
    # The kernel counts no processes of root.
    assert unexpected(scene, "strict", found).keys() == {"use_processes"}


HOLES = {
    "masks": (
        Walled(Kind.GUARD, (levels.MASKS,), Mechanism.NAMESPACES),
        ["read_master_key", "write_agent_login", "read_by_symbolic_link", "chmod_agent_login", "watch_log"],
    ),
    "processes": (
        Walled(Kind.GUARD, (levels.PROCESSES,), Mechanism.NAMESPACES),
        ["signal_server", "list_processes", "signal_group", "change_limit", "outlive_session"],
    ),
    "read-only": (
        Walled(Kind.GUARD, (levels.READ_ONLY,), Mechanism.NAMESPACES),
        ["write_hook", "replace_git_directory", "write_editor_task"],
    ),
    "memory": (
        Walled(Kind.STRICT, (levels.MEMORY,), Mechanism.NAMESPACES),
        ["read_segment", "read_queue"],
    ),
    "filter": (
        Walled(Kind.STRICT, (levels.FILTER,), Mechanism.NAMESPACES),
        ["read_session_key", "open_vsock", "set_up_ring", "handle_page_faults"],
    ),
    "session": (
        Walled(Kind.STRICT, (levels.NEW_SESSION,), Mechanism.NAMESPACES),
        ["type_into_terminal"],
    ),
}
"""Walls without one of their parts, and what then escapes."""

ROOTS_HOLE = Walled(Kind.GUARD, (levels.USER_NAMESPACE, levels.CAPABILITIES), Mechanism.NAMESPACES)
ROOTS_ESCAPES = ["unmount_masks", "bind_below_masks", "remount_hooks", "open_packet_socket", "read_by_handle"]
"""What root does behind mounts alone: without a user namespace, and with all capabilities."""


async def missed(scene: Scene, wall: Walled, names: list[str]) -> dict[str, Result]:
    """What did not escape though the machine can do it."""
    needs_walls(scene)
    found = await attack(scene, wall, names)
    return {
        name: result
        for name, result in found.items()
        if result.outcome != "escaped" and name not in scene.impossible
    }


@pytest.mark.parametrize("hole", HOLES)
async def test_a_hole_is_found(hole: str, scene: Scene) -> None:
    assert await missed(scene, *HOLES[hole]) == {}


async def test_mounts_alone_are_no_wall_for_root(scene: Scene) -> None:
    if scene.user != ROOT_USER:
        pytest.skip("an ordinary user has no mounts without a user namespace")
    assert await missed(scene, ROOTS_HOLE, ROOTS_ESCAPES) == {}


def test_every_attempt_is_expected() -> None:
    assert list(EXPECTED.keys() - escapes.ATTEMPTS.keys()) == []
    assert list(escapes.ATTEMPTS.keys() - EXPECTED.keys()) == []
    assert len(EXPECTED) > 60
    assert {each.kind for each in escapes.ATTEMPTS.values()} == set(escapes.KINDS)


def test_the_table_is_what_is_expected() -> None:
    assert table.PAGE.read_text() == table.page(), "write it: python3 -m tests.walls.table"
