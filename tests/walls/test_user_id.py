"""A user id for each agent of root: what belongs to it inside, and stays root's on the disk."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from supervisor.agents.spawning import spawner
from supervisor.agents.walls import bubblewrap, user_id
from supervisor.agents.walls.mounts import Needs, Outside
from supervisor.agents.walls.wall import Mechanism, Wall
from supervisor.agents.walls.walls import enclosure, find
from tests.support.user import NOBODY, ROOT

NEEDS_IDS = pytest.mark.skipif(not ROOT, reason="root alone has user ids to give")


@pytest.mark.parametrize(
    ("number", "user", "lines"),
    [
        (0, 5, ["0 5 1", "1 1 4", "6 6 4294967289"]),
        (3, 5, ["0 0 3", "3 5 1", "4 4 1", "6 6 4294967289"]),
        (7, 5, ["0 0 5", "6 6 1", "7 5 1", "8 8 4294967287"]),
        (0, 1, ["0 1 1", "2 2 4294967293"]),
    ],
)
def test_an_owner_becomes_the_agents_user_and_all_others_stay(
    number: int, user: int, lines: list[str]
) -> None:
    assert spawner.renaming(number, user).decode().splitlines() == lines


def test_each_conversation_has_its_own_user_with_each_start() -> None:
    users = [
        user_id.user_of(Needs(agent="x", workspace=Path("/w"), own=(Path(f"/s/{n}"),))) for n in range(99)
    ]
    again = [
        user_id.user_of(Needs(agent="y", workspace=Path("/v"), own=(Path(f"/s/{n}"),))) for n in range(99)
    ]
    assert users == again
    assert len(set(users)) == len(users)
    assert all(user_id.FIRST_USER <= each < 2**31 - 1 for each in users)


def test_what_belongs_to_it(tmp_path: Path) -> None:
    for name in ("closed/workspace", "state/own", "home", "open/reads"):
        (tmp_path / name).mkdir(parents=True)
    for above in (tmp_path, *tmp_path.parents):
        if not above.stat().st_mode & 1:
            above.chmod(above.stat().st_mode | 0o111)
    (tmp_path / "closed").chmod(0o700)
    (tmp_path / "state").chmod(0o700)
    outside = Outside(system=(), hidden=(tmp_path / "state",), home=tmp_path / "home")
    needs = Needs(
        agent="x",
        workspace=tmp_path / "closed/workspace",
        own=(tmp_path / "state/own",),
        reads=(tmp_path / "open/reads",),
    )

    def paths(wall: Wall) -> list[str]:
        return [str(each.relative_to(tmp_path)) for each in user_id.ownership(wall, outside, needs).paths]

    assert paths(Wall.STRICT) == ["closed/workspace", "open/reads", "state/own"]
    # It has to get through to its workspace; its own is mounted where it is.
    assert paths(Wall.GUARD) == ["closed", "home", "open/reads", "state/own"]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    for name in ("workspace", "state/own", "home"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name).chmod(0o700)
    return tmp_path


def command_of(place: Path, wall: Wall, script: str, own: Path | None = None) -> list[str]:
    """What runs a shell's script behind a wall, in the workspace. Skips where there is none."""
    found = [
        Path(each) for each in ("/usr", "/etc", "/bin", "/lib", "/lib64", "/sbin") if Path(each).exists()
    ]
    outside = Outside(
        system=tuple(each for each in found if not each.is_symlink()),
        links=tuple((each, str(each.readlink())) for each in found if each.is_symlink()),
        hidden=(place / "state",),
        home=place / "home",
    )
    if (reason := find(wall, outside)) is not Mechanism.USER_ID:
        pytest.skip(str(reason))
    needs = Needs(agent="x", workspace=place / "workspace", own=(own or place / "state/own",))
    made = enclosure(wall, Mechanism.USER_ID, outside, needs)
    return made.confinement.command(made.command(["/bin/sh", "-c", script]))


def run(place: Path, wall: Wall, script: str, own: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = command_of(place, wall, script, own)
    return subprocess.run(command, cwd=place / "workspace", capture_output=True, text=True, check=False)


@NEEDS_IDS
@pytest.mark.parametrize("wall", [Wall.GUARD, Wall.STRICT])
def test_the_agent_is_another_user_to_whom_its_files_belong(place: Path, wall: Wall) -> None:
    (place / "workspace/before").write_text("1\n")
    (place / "workspace/before").chmod(0o600)
    done = run(
        place,
        wall,
        f"id -u; id -un; stat -c %U . before {place}/state/own; cat before; echo 2 > after; chmod 600 after; "
        f"echo 3 > {place}/state/own/made; grep CapEff /proc/self/status; pwd",
    )
    user, name, *owners, content, capabilities, where = done.stdout.splitlines()
    assert int(user) >= user_id.FIRST_USER
    assert (name, owners, content) == ("agent", ["agent"] * 3, "1")
    assert int(capabilities.split()[1], 16) == 0
    assert where == str(place / "workspace")
    assert done.stderr == ""
    for made in ("workspace/before", "workspace/after", "state/own/made"):
        found = (place / made).stat()
        assert (found.st_uid, found.st_gid) == (os.getuid(), os.getgid())


@NEEDS_IDS
def test_a_workspace_of_another_user_belongs_to_that_one_afterwards(place: Path) -> None:
    os.chown(place / "workspace", NOBODY, NOBODY)
    done = run(place, Wall.STRICT, "echo 1 > made && stat -c %U made")
    assert (done.stdout, done.stderr) == ("agent\n", "")
    assert (place / "workspace/made").stat().st_uid == NOBODY


@NEEDS_IDS
def test_a_directory_of_another_user_holds_the_agents_own(place: Path) -> None:
    (place / "workspace/own").mkdir(mode=0o700)
    os.chown(place / "workspace", NOBODY, NOBODY)
    done = run(place, Wall.STRICT, "stat -c %U . own; echo 1 > own/made", own=place / "workspace/own")
    assert (done.stdout, done.stderr) == ("agent\nagent\n", "")
    assert (place / "workspace/own/made").stat().st_uid == os.getuid()


@NEEDS_IDS
@pytest.mark.parametrize("wall", [Wall.GUARD, Wall.STRICT])
def test_what_is_roots_alone_stays_so(place: Path, wall: Wall) -> None:
    done = run(place, wall, "cat /etc/shadow; touch /etc/made; touch /usr/made; su -c true")
    assert done.returncode != 0
    assert len(done.stderr.splitlines()) >= 4
    assert done.stdout == ""


@NEEDS_IDS
def test_nothing_of_it_is_mounted_on_the_machine(place: Path) -> None:
    command = command_of(place, Wall.GUARD, "true")
    # A machine whose mounts reach other namespaces, as systemd makes them.
    machine = ["unshare", "--mount", "--propagation", "shared", "/bin/sh", "-c"]
    looking = [*machine, '"$@" && cat /proc/self/mountinfo', "sh", *command]
    done = subprocess.run(looking, cwd=place / "workspace", capture_output=True, text=True, check=True)
    assert " / / " in done.stdout
    assert str(place) not in done.stdout
    assert str(place) not in Path("/proc/self/mountinfo").read_text()


@pytest.mark.parametrize("many", [False, True])
def test_the_accounts_are_its_own_and_those_of_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, many: bool
) -> None:
    file = tmp_path / "passwd"
    lines = ["root:x:0:0:root:/root:/bin/sh", "nobody:x:65534:65534:nobody:/:/bin/false"]
    others = [f"user{number}:x:{number}:{number}::/home:/bin/sh" for number in range(2000 if many else 0)]
    file.write_text("\n".join([*lines, *others]))
    monkeypatch.setattr(bubblewrap, "ACCOUNTS", file)
    needs = Needs(agent="x", workspace=tmp_path, own=(tmp_path / "own",))
    found = user_id.ownership(Wall.STRICT, Outside(system=(), home=Path("/root")), needs)
    ((number, content),) = found.handed
    assert number == bubblewrap.ACCOUNTS_DESCRIPTOR
    first, *rest = content.decode().splitlines()
    assert first == f"agent:x:{found.user}:{found.user}::/root:/bin/sh"
    assert rest[:2] == lines
    assert set(rest) <= {*lines, *others}
    assert len(content) <= user_id.ACCOUNTS_BYTES + 100
