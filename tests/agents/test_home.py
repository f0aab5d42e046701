"""Homes of conversations, furnished from a real one: what is linked, what is not, and the bounds."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest

from supervisor.agents.catalog import CatalogError, decode_descriptor, load_catalog
from supervisor.agents.homes import home as rooms
from supervisor.agents.homes.home import Furnishing, furnish_home, remove_tree, settle_home
from supervisor.agents.homes.short_path import LONGEST, remove_short_path, short_path, short_place

TOKEN = {"access_token": "one", "refresh_token": "two"}


def put(root: Path, *names: str, text: str = "x") -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def linked(home: Path) -> set[str]:
    """The links below, relative."""
    found = set()
    for directory, names, files in os.walk(home):
        found |= {str(Path(directory, each).relative_to(home)) for each in (*names, *files)
                  if Path(directory, each).is_symlink()}  # fmt: skip
    return found


@pytest.fixture
def real(tmp_path: Path) -> Path:
    home = tmp_path / "real"
    home.mkdir()
    return home


async def furnish(tmp_path: Path, real: Path, spec: Furnishing | None = None) -> rooms.Home:
    return await furnish_home(tmp_path / "own", real, spec or Furnishing(), avoid=tmp_path / "state")


async def test_an_unknown_agent_gets_directories_of_its_own_with_links_to_files(
    tmp_path: Path, real: Path
) -> None:
    put(real, ".profile", ".tool/login", ".config/tool/a/b.toml", "src/main.c", ".git/index", ".git/HEAD")
    home = await furnish(tmp_path, real)
    assert linked(home.path) == {".profile", ".tool/login", ".config/tool/a/b.toml", "src", ".git"}
    assert stat.S_IMODE((home.path / ".config" / "tool").stat().st_mode) == 0o700
    put(real, ".tool/later")
    assert ".tool/later" in (await furnish(tmp_path, real)).links


async def test_what_tells_of_a_running_process_stays_where_it_is(tmp_path: Path, real: Path) -> None:
    put(real, ".t/run.pid", ".t/Hub.SOCK", ".t/hub.port", ".t/empty.lock", text="")
    put(real, ".t/hub.json", text='{"host": "127.0.0.1", "PID": 4711}')
    put(real, ".t/uv.lock", text="version = 1\n" * 100)
    put(real, ".t/broken.json", text="{")
    put(real, ".t/locked.lock/owner")
    os.mkfifo(real / ".t" / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        before = os.getcwd()
        os.chdir(real / ".t")
        try:
            server.bind("s")
        finally:
            os.chdir(before)
        home = await furnish(tmp_path, real)
    assert linked(home.path) == {".t/uv.lock", ".t/broken.json"}
    assert sorted(os.listdir(home.path / ".t")) == ["broken.json", "uv.lock"]


@pytest.mark.guarantee(name="a-crash-is-contained-and-bounded")
async def test_large_directories_are_linked_as_a_whole_and_links_have_a_bound(
    tmp_path: Path, real: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(real, *(f".cache/tool/many/{number}" for number in range(rooms.LARGE + 1)), ".cache/tool/few/1")
    assert linked((await furnish(tmp_path, real)).path) == {".cache/tool/many", ".cache/tool/few/1"}
    monkeypatch.setattr(rooms, "LINKS_MAX", 10)
    put(real, *(f".a{number}/x/y/file" for number in range(30)))
    home = await furnish_home(tmp_path / "other", real, Furnishing(), avoid=tmp_path / "state")
    assert len(home.links) <= 10
    assert len(linked(home.path)) <= 10


@pytest.mark.guarantee(name="a-crash-is-contained-and-bounded")
async def test_looking_has_a_bound(tmp_path: Path, real: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rooms, "LOOKS_MAX", 50)
    put(real, *(f".t/{a}/{b}/{c}" for a in range(5) for b in range(5) for c in range(5)))
    home = await furnish(tmp_path, real)
    # Beyond it directories are linked, which needs no look into them.
    assert any((home.path / name).is_dir() for name in linked(home.path))
    for path in real.rglob("*"):
        assert (home.path / path.relative_to(real)).exists(), path


async def test_circles_of_links_and_closed_directories_hold_up_nothing(tmp_path: Path, real: Path) -> None:
    (real / ".t").mkdir()
    (real / ".t" / "up").symlink_to("..")
    (real / ".t" / "self").symlink_to("self")
    (real / "away").symlink_to("/nowhere")
    home = await furnish(tmp_path, real)
    assert linked(home.path) == {".t/up", ".t/self", "away"}
    remove_tree(home.path)
    assert not home.path.exists()
    assert sorted(os.listdir(real / ".t")) == ["self", "up"]


async def test_the_state_is_not_brought_along(tmp_path: Path) -> None:
    real = tmp_path
    put(real, "state/secrets.json", ".tool/x", "docs/y")
    home = await furnish_home(
        tmp_path / "state" / "data" / "own", real, Furnishing(), avoid=tmp_path / "state"
    )
    assert linked(home.path) == {".tool/x", "docs"}
    # Where the home is the state, what stands there openly is the server's.
    home = await furnish_home(tmp_path / "data" / "own", real, Furnishing(), avoid=real)
    assert linked(home.path) == {".tool/x"}


async def test_a_known_agent_has_its_own_data_and_all_else_as_links(tmp_path: Path, real: Path) -> None:
    put(real, ".cline/data/settings.json", ".cline/data/tasks/1", ".cline/login.json", ".npm/x/y")
    put(real, ".config/cline/state", ".config/git/config", text="z")
    spec = Furnishing(
        private=(".cline", ".config/cline"),
        links=(".cline/login.json",),
        copies=(".cline/data/settings.json",),
    )
    home = await furnish(tmp_path, real, spec)
    assert linked(home.path) == {".cline/login.json", ".npm", ".config/git"}
    copied = home.path / ".cline" / "data" / "settings.json"
    assert (copied.read_text(), copied.is_symlink()) == ("x", False)
    copied.write_text("mine")
    await furnish(tmp_path, real, spec)
    assert copied.read_text() == "mine"
    assert not (home.path / ".config" / "cline").exists()


@pytest.mark.guarantee(name="a-crash-is-contained-and-bounded")
async def test_copies_have_a_bound_and_take_no_pipes(
    tmp_path: Path, real: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rooms, "COPY_BYTES", 100)
    put(real, ".t/a", ".t/b", text="x" * 60)
    put(real, ".t/c", text="y")
    os.mkfifo(real / ".t" / "pipe")
    (real / ".t" / "link").symlink_to("a")
    home = await furnish(tmp_path, real, Furnishing(copies=(".t",), bare=True))
    assert sorted(os.listdir(home.path / ".t")) == ["a", "c", "link"]
    assert (home.path / ".t" / "link").resolve() == real / ".t" / "a"


@pytest.mark.parametrize(("later", "wins"), [(True, "new"), (False, "old")])
async def test_of_two_logins_the_later_one_counts(tmp_path: Path, real: Path, later: bool, wins: str) -> None:
    put(real, ".t/login.json", text=json.dumps({**TOKEN, "is": "old"}))
    home = await furnish(tmp_path, real)
    own = home.path / ".t" / "login.json"
    own.unlink()
    own.write_text(json.dumps({**TOKEN, "is": "new"}))
    when = (real / ".t" / "login.json").stat().st_mtime_ns + (10**9 if later else -(10**9))
    os.utime(own, ns=(when, when))
    await settle_home(home)
    assert json.loads((real / ".t" / "login.json").read_text())["is"] == wins
    await furnish(tmp_path, real)
    assert own.is_symlink()


@pytest.mark.guarantee(name="keys-and-secrets")
async def test_nothing_but_logins_is_written_back(tmp_path: Path, real: Path) -> None:
    put(real, ".t/settings.json", text='{"model": "large"}')
    put(real, ".t/login.json", text=json.dumps(TOKEN))
    home = await furnish(tmp_path, real)
    for name, text in (("settings.json", '{"model": "small"}'), ("login.json", "{}"), ("new.json", "{}")):
        (home.path / ".t" / name).unlink(missing_ok=True)
        (home.path / ".t" / name).write_text(text)
    await settle_home(home)
    assert (real / ".t" / "settings.json").read_text() == '{"model": "large"}'
    assert json.loads((real / ".t" / "login.json").read_text()) == TOKEN
    assert not (real / ".t" / "new.json").exists()


async def test_a_real_home_that_is_missing_or_a_file_leaves_an_empty_one(tmp_path: Path) -> None:
    put(tmp_path, "file")
    for real in (tmp_path / "nowhere", tmp_path / "file", None):
        home = await furnish_home(tmp_path / "own", real, Furnishing(), avoid=tmp_path / "state")
        assert os.listdir(home.path) == []


REMOVE = """
import os, sys
from pathlib import Path
from supervisor.agents.homes.home import remove_tree
root = Path(sys.argv[1])
if os.getuid() == 0:
    os.chown(root, 65534, 65534)
    os.setuid(65534)
mod = root / "home" / "go" / "pkg" / "mod"
mod.mkdir(parents=True)
(mod / "file").write_text("x")
(root / "home" / "link").symlink_to(root / "kept")
(root / "kept").mkdir()
(root / "kept" / "file").write_text("x")
for closed in (mod, mod.parent, mod.parent.parent):
    closed.chmod(0o500)
(root / "home" / "dark").mkdir(mode=0o000)
remove_tree(root / "home")
assert not (root / "home").exists(), list((root / "home").rglob("*"))
assert (root / "kept" / "file").read_text() == "x"
"""


@pytest.mark.guarantee(name="a-crash-is-contained-and-bounded")
def test_closed_directories_are_removed_and_no_link_is_followed() -> None:
    # Not below `tmp_path`: another user has to get there, and each run of pytest closes what is above that.
    with tempfile.TemporaryDirectory() as own:
        Path(own).chmod(0o755)
        place = Path(own, "place")
        place.mkdir()
        run = subprocess.run(
            [sys.executable, "-c", REMOVE, str(place)],
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
        )
    assert run.returncode == 0, run.stderr


def test_a_long_name_gets_a_short_one_in_a_private_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "t"))
    (tmp_path / "t").mkdir()
    long = tmp_path / ("d" * LONGEST)
    long.mkdir()
    short = short_path(long)
    assert (short.is_symlink(), short.resolve(), short) == (True, long, short_path(long))
    assert stat.S_IMODE(short.parent.stat().st_mode) == 0o700
    remove_short_path(long)
    assert os.listdir(tmp_path / "t") == []
    assert short_path(Path("/short")) == Path("/short")


@pytest.mark.parametrize("how", ["directory", "open directory", "file", "link", "link to nothing"])
def test_another_user_who_makes_the_place_first_changes_its_name_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    temporary = tmp_path / "t"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    long = tmp_path / ("d" * LONGEST)
    long.mkdir()
    usual = short_path(long).parent
    remove_short_path(long)
    if how == "file":
        usual.touch()
    elif how.startswith("link"):
        if how == "link":
            (tmp_path / "own").mkdir(mode=0o700)
        usual.symlink_to(tmp_path / "own")
    else:
        usual.mkdir(mode=0o700)
        if how == "directory":
            os.chown(usual, 12345, -1) if os.getuid() == 0 else usual.chmod(0o711)
        else:
            usual.chmod(0o777)
    short = short_path(long)
    assert (short.is_symlink(), short.resolve(), short) == (True, long, short_path(long))
    assert short.parent != usual
    assert (short.parent.stat().st_uid, stat.S_IMODE(short.parent.stat().st_mode)) == (os.getuid(), 0o700)
    other = short_place(long / "tmp")
    assert other != long / "tmp"
    # A second one shares it; and it is found when the other user has gone.
    assert short_path(long.with_name("e" * LONGEST)).parent == short.parent
    usual.rmdir() if usual.is_dir() and not usual.is_symlink() else usual.unlink()
    assert short_path(long) == short
    for each in (long, long.with_name("e" * LONGEST)):
        remove_short_path(each)
    assert not short.parent.exists()


def test_short_names_are_made_while_others_of_their_place_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "t"))
    (tmp_path / "t").mkdir()
    parent = tmp_path / ("d" * LONGEST)
    first, second = parent / "1", parent / "2"
    short_path(first)
    making = Path.mkdir

    def removed_then(place: Path, *args: object, **options: object) -> None:
        making(place, *args, **options)  # type: ignore[arg-type]
        remove_short_path(first)  # as the end of another conversation does
        with suppress(OSError):
            place.rmdir()
        monkeypatch.setattr(Path, "mkdir", making)

    monkeypatch.setattr(Path, "mkdir", removed_then)
    assert short_path(second).is_symlink()


def test_descriptors_say_whose_home_an_agent_has() -> None:
    kinds = {key: descriptor.home_kind for key, descriptor in load_catalog().items()}
    assert kinds["custom"] == "own"
    assert {kinds[key] for key in ("claude-code", "codex", "gemini-cli", "opencode", "demo")} == {"shared"}
    text = (
        'key = "a"\nname = "A"\ncommand = ["a"]\n[home]\nkind = "own"\nprivate = [".a"]\nlinks = [".a/l"]\n'
    )
    assert decode_descriptor(text, "a.toml").home_kind == "own"
    for wrong in ("../b", "/etc"):
        with pytest.raises(CatalogError, match="home"):
            decode_descriptor(text.replace(".a/l", wrong), "a.toml")
