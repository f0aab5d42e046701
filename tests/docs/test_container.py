"""The image, and the pod of docs/container.md, held to the code without a runtime for containers."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.cli.parser import build_parser
from gateway.configuration.config import load_config
from tests.docs.test_configuration import ROWS
from tests.support.server import running_server

ROOT = Path(__file__).resolve().parents[2]
INSTALL = re.compile(r"ostler agents install \S+")
KUBERNETES = ROOT / "docs" / "examples" / "kubernetes.yaml"


def instructions() -> list[tuple[str, str]]:
    lines = (ROOT / "deploy" / "Containerfile").read_text().replace("\\\n", "").splitlines()
    return [
        (line.partition(" ")[0], line.partition(" ")[2])
        for line in lines
        if line and not line.startswith("#")
    ]


def test_the_image_is_made_of_what_there_is() -> None:
    found = instructions()
    named = dict(found)
    copied = [
        shlex.split(text)[:-1] for word, text in found if word == "COPY" and not text.startswith("--from")
    ]
    assert all((ROOT / each).exists() for sources in copied for each in sources)
    variables = {
        pair.split("=", 1)[0]: pair.split("=", 1)[1]
        for word, text in found
        if word == "ENV"
        for pair in text.split()
    }
    assert variables.keys() - {"PATH"} <= ROWS.keys()
    config = load_config({**variables, "OSTLER_SESSION_API_KEY": "k" * 32})
    assert (str(config.state.parent), str(config.port)) == (named["VOLUME"], named["EXPOSE"])
    parser = build_parser()
    [install] = [match[0] for word, text in found if word == "RUN" and (match := INSTALL.search(text))]
    for command in (install.split(), json.loads(named["ENTRYPOINT"])):
        parser.parse_args(command[1:])


@pytest.fixture
def pod() -> tuple[dict[str, Any], dict[str, Any]]:
    """The secret, and the pod's specification."""
    secret, pod = yaml.safe_load_all(KUBERNETES.read_text())
    assert (secret["kind"], pod["kind"]) == ("Secret", "Pod")
    return secret, pod["spec"]


def test_the_pod_mounts_what_the_secret_has(pod: Any) -> None:
    secret, spec = pod
    [container] = spec["containers"]
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounts.keys() == volumes.keys()
    files = set()
    for name, volume in volumes.items():
        source = volume.get("secret")
        if source is not None:
            assert source["secretName"] == secret["metadata"]["name"]
            # Without the group's bit the server could not read it; with others', it refuses the keys' file.
            assert source["defaultMode"] == 0o440
            assert {item["key"] for item in source["items"]} <= secret["stringData"].keys()
            files |= {f"{mounts[name]}/{item['path']}" for item in source["items"]}
    variables = {each["name"]: each["value"] for each in container["env"]}
    assert variables.keys() <= ROWS.keys()
    assert variables["OSTLER_KEYS_FILE"] in files
    assert f"{variables['OSTLER_SECRETS_DIR']}/ANTHROPIC_API_KEY" in files
    image = {name for word, text in instructions() if word == "VOLUME" for name in text.split()}
    assert mounts["state"] in image
    for line in secret["stringData"]["ostler.keys"].split():
        assert line.partition("=")[0] in ROWS


async def test_the_probes_are_routes(pod: Any, tmp_path: Path) -> None:
    [container] = pod[1]["containers"]
    async with running_server(tmp_path) as server:
        for probe in ("livenessProbe", "readinessProbe"):
            assert (await server.rest.http.get(container[probe]["httpGet"]["path"])).status_code == 200
            assert container[probe]["httpGet"]["port"] == container["ports"][0]["containerPort"]
