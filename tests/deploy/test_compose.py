"""deploy/compose: held to the Compose specification, to the image, and to nginx."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from gateway.configuration.keys import is_key
from tests.deploy.manifests import DEPLOY, schemas
from tests.deploy.test_kubernetes import KILL_S

COMPOSE = DEPLOY / "compose"
SERVERS = ("server-a", "server-b")
DRAIN_S = 5
"""OSTLER_DRAIN_SECONDS, unless it is set."""


def project(text: str | None = None) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(text or (COMPOSE / "compose.yaml").read_text())
    return found


def faults(found: dict[str, Any]) -> list[str]:
    validator = Draft202012Validator(schemas("compose"))
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(found)]


def test_the_project_fits_the_published_schema() -> None:
    assert faults(project()) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [("depends_on:", "depend_on:"), ("restart: on-failure", "restart: {}"), ("secrets:", "secret:")],
)
def test_a_mistake_is_seen(old: str, new: str) -> None:
    text = (COMPOSE / "compose.yaml").read_text()
    assert old in text
    assert faults(project(text.replace(old, new)))


def test_the_servers_share_one_database_and_one_volume() -> None:
    found = project()
    services = found["services"]
    first, second = (services[name] for name in SERVERS)
    differing = {"OSTLER_ADVERTISE_URL"}
    assert {
        name for name in first["environment"] if first["environment"][name] != second["environment"][name]
    } == differing
    for name in SERVERS:
        service = services[name]
        assert service["hostname"] == name
        assert service["environment"]["OSTLER_ADVERTISE_URL"] == f"http://{name}:8000"
        assert float(service["stop_grace_period"].removesuffix("s")) >= DRAIN_S + KILL_S
        assert service["environment"]["OSTLER_KEYS_FILE"] == f"/run/secrets/{service['secrets'][0]}"
        volumes = dict(each.split(":") for each in service["volumes"])
        assert volumes.keys() <= found["volumes"].keys()
        assert volumes["shared"] == "/shared"
        shared = dict(each.split("=") for each in service["environment"]["OSTLER_VOLUMES"].split(","))
        assert all(path.startswith("/shared/") for path in shared.values())
    assert first["volumes"][0] != second["volumes"][0]  # a state directory is one server's
    assert "database" in services
    database = services["database"]
    assert database["environment"]["POSTGRES_USER"] == "ostler"
    assert database["environment"]["POSTGRES_PASSWORD_FILE"] == f"/run/secrets/{database['secrets'][0]}"


def test_no_secret_is_in_the_project() -> None:
    found = project()
    named = {name for service in found["services"].values() for name in service.get("environment", {})}
    assert [name for name in named if is_key(name) or name == "POSTGRES_PASSWORD"] == []
    assert {each for service in found["services"].values() for each in service.get("secrets", [])} == found[
        "secrets"
    ].keys()


def test_the_image_has_the_places_of_the_volumes() -> None:
    text = (DEPLOY / "Containerfile").read_text()
    [made] = re.findall(r"install -d -o ostler -g ostler (.*)", text)
    environment = project()["services"][SERVERS[0]]["environment"]
    volumes = dict(each.split("=") for each in environment["OSTLER_VOLUMES"].split(","))
    assert {"/data", *volumes.values()} <= set(made.split())  # Ostler makes no volume's directory


def test_the_proxy_takes_both_servers_by_turns() -> None:
    text = (COMPOSE / "nginx.conf").read_text()
    [upstream] = re.findall(r"^upstream ostler \{(.*?)^\}", text, re.MULTILINE | re.DOTALL)
    assert re.findall(r"server (\S+);", upstream) == [f"{name}:8000" for name in SERVERS]
    assert not re.search(r"ip_hash|hash |sticky|random|least_conn", upstream)


def test_nginx_reads_the_configuration(tmp_path: Path) -> None:
    if shutil.which("nginx") is None:
        pytest.skip("nginx is not installed")
    text = (COMPOSE / "nginx.conf").read_text()
    for name in SERVERS:  # names that only Compose resolves
        text = text.replace(f"{name}:8000", "127.0.0.1:8000")
    main = tmp_path / "main.conf"
    user = "user root;\n" if os.geteuid() == 0 else ""
    main.write_text(
        f"{user}pid {tmp_path}/pid;\nerror_log stderr;\nevents {{}}\nhttp {{\naccess_log off;\n{text}}}\n"
    )
    command = [str(shutil.which("nginx")), "-t", "-e", "stderr", "-c", str(main)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    assert "test is successful" in done.stderr
