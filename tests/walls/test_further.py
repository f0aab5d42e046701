"""Further paths that an agent's settings name: what is given, and what is refused."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest

from supervisor.agents.walls import walls as module
from supervisor.agents.walls.further import Paths
from supervisor.agents.walls.mounts import Kind, Mount, Needs, Outside
from supervisor.agents.walls.wall import Mechanism, Wall, WallUnavailable
from supervisor.agents.walls.walls import Walls

both = pytest.mark.parametrize("wall", [Wall.GUARD, Wall.STRICT])


@pytest.fixture
def place(tmp_path: Path) -> Path:
    base = tmp_path.resolve()
    for name in ("home/state/data", "home/.codex", "shared/docs/part", "shared/out", "other"):
        (base / name).mkdir(parents=True)
    (base / "work/.git/hooks").mkdir(parents=True)
    (base / "shared/notes.txt").touch()
    (base / "home/keys").touch()
    return base


def walls(place: Path, **allowed: str) -> Walls:
    outside = Outside(
        system=(Path("/usr"),),
        hidden=(place / "home/state",),
        hidden_files=(place / "home/keys",),
        logins=((place / "home/.codex", frozenset({"codex"})),),
        home=place / "home",
    )
    paths = Paths(**{name: tuple(place / each for each in text.split()) for name, text in allowed.items()})
    return Walls(wall=Wall.STRICT, look=lambda: outside, allowed=paths.resolved())


@pytest.fixture(autouse=True)
def namespaces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every wall is possible here, and made of namespaces."""
    monkeypatch.setattr(module, "find", lambda wall, outside, *, network=True: Mechanism.NAMESPACES)


def given(walls: Walls, place: Path, wall: Wall = Wall.STRICT, **further: str) -> set[Mount]:
    needs = Needs(agent="codex", workspace=place / "work", kept=(place / "work/.git/hooks",))
    paths = Paths(**{name: tuple(place / each for each in text.split()) for name, text in further.items()})
    enclosure = walls.enclosure(wall, needs, further=paths)
    assert enclosure is not None
    return set(enclosure.mounts)


def shown(kind: Kind, path: Path, source: Path | None = None) -> Mount:
    return Mount(kind, path, source or path)


def test_parts_of_what_is_allowed_are_given(place: Path) -> None:
    allowed = walls(place, reads="shared other", writes="shared/out")
    found = given(allowed, place, reads="shared/docs/part shared/notes.txt shared/out", writes="")
    read = {each.target for each in found if each.kind is Kind.READ_ONLY}
    wanted = ("shared/docs/part", "shared/notes.txt", "shared/out", "work/.git/hooks")
    assert {each for each in read if each.is_relative_to(place)} == {place / each for each in wanted}
    found = given(allowed, place, reads="shared", writes="shared/out")
    assert shown(Kind.READ_ONLY, place / "shared") in found
    assert shown(Kind.WRITABLE, place / "shared/out") in found
    assert place / "other" not in {each.target for each in found}


def test_what_may_be_written_may_be_read_and_not_the_other_way(place: Path) -> None:
    assert shown(Kind.READ_ONLY, place / "shared/out") in given(
        walls(place, writes="shared"), place, reads="shared/out"
    )
    with pytest.raises(WallUnavailable) as refused:
        given(walls(place, reads="shared"), place, writes="shared/out")
    assert str(refused.value) == (
        f"acp_walls_write: {place}/shared/out is not allowed for agents. Leave it out, or start the "
        f"server with OSTLER_WALLS_ALLOW_WRITE={place}/shared/out"
    )


@both
@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("other", "{place}/other is not allowed for agents. Leave it out, or start the server with "
         "OSTLER_WALLS_ALLOW_READ={place}/other"),
        ("shared/gone", "{place}/shared/gone does not exist. Make it, or leave it out"),
        ("shared/notes.txt/x", "{place}/shared/notes.txt/x does not exist. Make it, or leave it out"),
        ("shared/circle", "{place}/shared/circle cannot be used: "),
        ("shared/away", "{place}/shared/away leads to {place}/other, which is not allowed for agents. Leave "
         "it out, or start the server with OSTLER_WALLS_ALLOW_READ={place}/other"),
        ("shared/way/x", "{place}/shared/way/x leads to {place}/other/x, which is not allowed"),
    ],
)  # fmt: skip
def test_what_is_refused_with_the_cause_and_the_remedy(place: Path, wall: Wall, path: str, said: str) -> None:
    (place / "shared/circle").symlink_to("circle")
    (place / "shared/away").symlink_to("../other")
    (place / "shared/way").symlink_to(place / "other")
    (place / "other/x").touch()
    with pytest.raises(WallUnavailable) as refused:
        given(walls(place, reads="shared"), place, wall, reads=path)
    assert str(refused.value).startswith(f"acp_walls_read: {said.format(place=place)}")


@both
@pytest.mark.parametrize("setting", ["reads", "writes"])
@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("home/state", "leads into {place}/home/state, which is kept from agents. Leave it out"),
        ("home/state/data", "leads into {place}/home/state, which is kept from agents"),
        ("home/keys", "leads into {place}/home/keys, which is kept from agents"),
        ("home/.codex", "leads into {place}/home/.codex, which is kept from agents"),
        ("link", "leads into {place}/home/state, which is kept from agents"),
        ("home", "holds {place}/home/state, which is kept from agents. Name parts of it instead"),
        ("", "holds {place}/home/state, which is kept from agents"),
        ("/", "holds {place}/home/state, which is kept from agents"),
        ("/proc", "leads into /proc, which is kept from agents"),
        ("/proc/self/fd", "leads into /proc, which is kept from agents"),
        ("/proc/self/root", "holds {place}/home/state, which is kept from agents"),
    ],
)
def test_what_is_hidden_is_not_shown_whatever_is_allowed(
    place: Path, wall: Wall, setting: str, path: str, said: str
) -> None:
    (place / "link").symlink_to("home/state/data")
    everything = walls(place, reads="/", writes="/")
    needs = Needs(agent="codex", workspace=place / "work")
    with pytest.raises(WallUnavailable, match="kept from agents") as refused:
        everything.enclosure(wall, needs, further=Paths(**{setting: (place / path,)}))
    assert said.format(place=place) in str(refused.value)


def test_a_link_within_what_is_allowed_is_there_under_its_name(place: Path) -> None:
    (place / "latest").symlink_to("shared/docs")
    found = given(walls(place, reads="shared"), place, reads="latest")
    assert shown(Kind.READ_ONLY, place / "shared/docs") in found
    assert shown(Kind.READ_ONLY, place / "latest", place / "shared/docs") in found
    (place / "shared/new").symlink_to("docs")
    found = given(walls(place, reads="shared"), place, reads="shared shared/new")
    # It is seen as it is.
    assert place / "shared/new" not in {each.target for each in found}


def test_what_is_allowed_may_be_a_link_and_may_be_made_later(place: Path) -> None:
    (place / "latest").symlink_to("shared/docs")
    allowed = walls(place, reads="latest later")
    assert shown(Kind.READ_ONLY, place / "shared/docs/part") in given(allowed, place, reads="latest/part")
    (place / "later").mkdir()
    assert shown(Kind.READ_ONLY, place / "later") in given(allowed, place, reads="later")
    (place / "later").rmdir()
    (place / "later").symlink_to("other")
    with pytest.raises(WallUnavailable, match="which is not allowed"):
        given(allowed, place, reads="later")


@both
def test_a_place_that_runs_later_can_be_given(place: Path, wall: Wall) -> None:
    hooks = place / "work/.git/hooks"
    allowed = walls(place, writes="work/.git")
    assert shown(Kind.READ_ONLY, hooks) in given(allowed, place, wall)
    assert shown(Kind.READ_ONLY, hooks) not in given(allowed, place, wall, writes="work/.git/hooks")
    assert shown(Kind.READ_ONLY, hooks) in given(allowed, place, wall, reads="work/.git")


def test_without_a_wall_they_have_no_effect(place: Path) -> None:
    needs = Needs(agent="x", workspace=place)
    assert walls(place).enclosure(Wall.OFF, needs, further=Paths(reads=(Path("/gone"),))) is None


def test_what_is_open_to_root_alone_is_hidden_too(place: Path) -> None:
    found = walls(place, reads="/")
    assert found.look is not None
    private = attrs.evolve(found.look(), private=((place / "other", True),))
    with pytest.raises(WallUnavailable, match=r"leads into .*/other, which is kept from agents"):
        given(attrs.evolve(found, look=lambda: private), place, reads="other")
