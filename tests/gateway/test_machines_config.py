from __future__ import annotations

from pathlib import Path

import pytest

from gateway.configuration.config import load_config
from gateway.configuration.machines import MachinesConfig, read_machines
from gateway.configuration.parsing import ConfigError
from supervisor import extras

DATABASE = "postgresql://ostler:hush@db/ostler"


def test_without_a_database_there_is_one_server() -> None:
    assert load_config({}).machines is None
    assert read_machines({"OSTLER_SERVER_NAME": "!"}) is None


def test_the_settings_of_one_of_several() -> None:
    found = read_machines({
        "OSTLER_DATABASE": DATABASE,
        "OSTLER_SERVER_NAME": "a.1",
        "OSTLER_ADVERTISE_URL": "http://10.0.0.5:8000/",
        "OSTLER_LEASE_SECONDS": "2.5",
        "OSTLER_SERVER_LABELS": "zone=a, gpu=",
        "OSTLER_VOLUMES": "work=/srv/work,data=/srv/data",
    })  # fmt: skip
    assert isinstance(found, MachinesConfig)
    assert (found.name, found.address, found.lease_seconds) == ("a.1", "http://10.0.0.5:8000", 2.5)
    assert found.labels == {"zone": "a", "gpu": ""}
    assert [(each.name, each.path) for each in found.volumes.volumes] == [
        ("work", Path("/srv/work")),
        ("data", Path("/srv/data")),
    ]
    assert "hush" not in repr(found)


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("OSTLER_DATABASE", "mysql://ostler:hush@db/x", "only PostgreSQL"),
        ("OSTLER_DATABASE", "postgresql://ostler:hush@db/x?hush=1", "cannot be read"),
        ("OSTLER_SERVER_NAME", "a b", "is not a name"),
        ("OSTLER_ADVERTISE_URL", "10.0.0.5:8000", "is not an address"),
        ("OSTLER_ADVERTISE_URL", "https://10.0.0.5", "is not an address"),
        ("OSTLER_LEASE_SECONDS", "0.5", "shorter than 1 s"),
        ("OSTLER_SERVER_LABELS", "zone", "is not a label"),
        ("OSTLER_VOLUMES", "work=srv", "is not absolute"),
        ("OSTLER_VOLUMES", "a=/x,a=/y", "there twice"),
    ],
)
def test_bad_input_is_named_and_no_password_shown(name: str, value: str, why: str) -> None:
    with pytest.raises(ConfigError, match=f"^{name}: .*{why}") as refused:
        read_machines({"OSTLER_DATABASE": DATABASE, name: value})
    assert "hush" not in str(refused.value)


def test_the_extra_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match="OSTLER_DATABASE needs the extra `postgres`"):
        read_machines({"OSTLER_DATABASE": DATABASE})
