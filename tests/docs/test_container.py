"""What docs/container.md has for a container's runtime, which tests have not: it is held to the code."""

from __future__ import annotations

import json
import re
import shlex
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.cli.parser import build_parser
from gateway.configuration.config import load_config
from tests.docs.test_configuration import ROWS
from tests.docs.test_pages import Page
from tests.support.server import running_server

ROOT = Path(__file__).resolve().parents[2]
KUBERNETES = ROOT / "docs" / "examples" / "kubernetes.yaml"
EXTRAS = re.compile(r'"/src\[([\w,]+)\]"')


def instructions() -> list[tuple[str, str]]:
    [dockerfile] = [text for language, text in Page("container.md").blocks() if language == "dockerfile"]
    return [(line.partition(" ")[0], line.partition(" ")[2]) for line in dockerfile.splitlines()]


def test_the_image_is_made_of_what_there_is() -> None:
    found = instructions()
    named = dict(found)
    assert [word for word, _ in found][:2] == ["FROM", "COPY"]
    setup = ConfigParser()
    setup.read(ROOT / "setup.cfg")
    [extras] = [match[1] for _, text in found if (match := EXTRAS.search(text))]
    assert set(extras.split(",")) <= set(setup["options.extras_require"])
    variables = dict(pair.split("=", 1) for pair in shlex.split(named["ENV"]))
    assert variables.keys() <= ROWS.keys()
    config = load_config({**variables, "OSTLER_SESSION_API_KEY": "k" * 32})
    assert (str(config.state), str(config.port)) == (named["VOLUME"], named["EXPOSE"])
    parser = build_parser()
    commands = [shlex.split(text) for word, text in found if word == "RUN" and text.startswith("ostler ")]
    for command in (*commands, json.loads(named["ENTRYPOINT"])):
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
