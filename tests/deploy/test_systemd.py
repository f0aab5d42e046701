"""The units of docs/systemd and deploy/systemd as `systemd-analyze` sees them, and their variables."""

from __future__ import annotations

import os
import shutil
import subprocess
from configparser import ConfigParser
from pathlib import Path

import pytest

from tests.deploy.manifests import DEPLOY, ROOT
from tests.deploy.test_kubernetes import KILL_S

UNIT = ROOT / "docs" / "systemd" / "ostler.service"
MACHINES = DEPLOY / "systemd" / "machines.conf"
VARIABLES = DEPLOY / "systemd" / "ostler.env"


def verify(directory: Path, machines: str | None) -> str:
    """What systemd says against the unit, as one machine or as one of several."""
    if shutil.which("systemd-analyze") is None:
        assert os.environ.get("CI") != "true", "systemd-analyze is missing. Install the package systemd."
        pytest.skip("systemd-analyze is not installed")
    # The command has to be there.
    (directory / "ostler.service").write_text(UNIT.read_text().replace("/opt/ostler/bin/ostler", "/bin/true"))
    if machines is not None:
        (directory / "ostler.service.d").mkdir()
        (directory / "ostler.service.d" / "machines.conf").write_text(machines)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", "ostler.service"],
        env={"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "SYSTEMD_UNIT_PATH": f"{directory}:"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    said = "\n".join(line for line in done.stderr.splitlines() if "ostler" in line)
    assert done.returncode == 0 or said
    return said


@pytest.mark.parametrize("machines", [None, MACHINES.read_text()], ids=["one", "several"])
def test_systemd_takes_the_unit(tmp_path: Path, machines: str | None) -> None:
    assert verify(tmp_path, machines) == ""


def test_a_mistake_is_seen(tmp_path: Path) -> None:
    assert "machines.conf" in verify(
        tmp_path, MACHINES.read_text().replace("NoNewPrivileges=yes", "NoNewPrivilege=yes")
    )


def section(name: str) -> dict[str, str]:
    unit = ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(MACHINES)
    return dict(unit[name])


def test_the_machines_share_a_file_system_that_the_unit_waits_for() -> None:
    values = dict(
        line.split("=", 1) for line in VARIABLES.read_text().splitlines() if not line.startswith("#")
    )
    shared = section("Unit")["RequiresMountsFor"]
    service = section("Service")
    assert service["ReadWritePaths"] == shared
    volumes = dict(each.split("=") for each in values["OSTLER_VOLUMES"].split(","))
    assert all(path.startswith(f"{shared}/") for path in volumes.values())
    assert float(service["TimeoutStopSec"]) >= float(values["OSTLER_DRAIN_SECONDS"]) + KILL_S
    assert values["OSTLER_ADVERTISE_URL"] == f"http://{values['OSTLER_SERVER_NAME']}.internal:8000"
