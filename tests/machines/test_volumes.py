"""OSTLER_VOLUMES: how it is read, which path is on which volume, and that a marker proves each."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.machines.errors import MachinesRefused
from supervisor.machines.volumes import MARKER, Volume, Volumes, parse, prove
from tests.machines.servers import connected


def test_it_is_read():
    assert parse("") == Volumes()
    assert parse(" data=/srv/data/ , work=/srv//w/../work,") == Volumes(
        (Volume("data", Path("/srv/data")), Volume("work", Path("/srv/work")))
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("/srv", "'/srv' is not name=path"),
        ("Data=/srv", "'Data=/srv' is not name=path"),
        ("=/srv", "'=/srv' is not name=path"),
        ("data=srv", "the path of data is not absolute"),
        ("data=", "the path of data is not absolute"),
        ("a=/a,a=/b", "a=/b is there twice"),
        ("a=/a,b=/a/", "b=/a/ is there twice"),
    ],
)
def test_what_is_wrong_is_said(text, says):
    with pytest.raises(ValueError, match=says):
        parse(text)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/srv", None),
        ("/srv/data", "data"),
        ("/srv/data/a/b", "data"),
        ("/srv/data/../other", None),
        ("/srv/database", None),
        ("/srv/data/inner/x", "inner"),
        ("data", None),
    ],
)
def test_a_path_is_on_the_innermost_volume_above_it(path, name):
    assert parse("data=/srv/data,inner=/srv/data/inner").volume_of(Path(path)) == name


def test_the_first_server_marks_a_volume_and_others_must_find_the_mark(database, tmp_path):
    with connected(database) as connection:
        shared, other = tmp_path / "shared", tmp_path / "other"
        shared.mkdir()
        other.mkdir()
        prove(connection, [Volume("data", shared)])
        prove(connection, [Volume("data", shared)])
        assert len((shared / MARKER).read_text().strip()) == 32
        expected = rf"^OSTLER_VOLUMES: {other} is not the volume data of the other servers"
        with pytest.raises(MachinesRefused, match=expected):
            prove(connection, [Volume("data", other)])
        assert list(other.iterdir()) == [], "it may be where the volume is to be mounted"
        prove(connection, [Volume("another", other)])
        with pytest.raises(MachinesRefused, match=expected):
            prove(connection, [Volume("data", other)])
        (shared / MARKER).unlink()
        with pytest.raises(MachinesRefused, match="is not the volume data"):
            prove(connection, [Volume("data", shared)])


def test_a_marker_that_is_there_is_taken(database, tmp_path):
    """Of a database that was lost, or the same volume under two names."""
    (tmp_path / MARKER).write_text("known\n")
    with connected(database) as connection:
        prove(connection, [Volume("data", tmp_path)])
        assert connection.execute("SELECT value FROM meta WHERE name = 'volume:data'").fetchone() == (
            "known",
        )


def test_a_directory_that_is_missing_or_unreadable_is_refused(database, tmp_path):
    with connected(database) as connection:
        missing = tmp_path / "missing"
        with pytest.raises(MachinesRefused, match=rf"^OSTLER_VOLUMES: {missing} is not a directory"):
            prove(connection, [Volume("data", missing)])
        assert not missing.exists()
        (tmp_path / MARKER).mkdir()
        with pytest.raises(MachinesRefused, match=r"^OSTLER_VOLUMES: .* cannot be used"):
            prove(connection, [Volume("data", tmp_path)])
