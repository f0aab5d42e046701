"""deploy/Containerfile, built and run with podman, where OSTLER_TEST_CONTAINERS=1 asks for it."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict

from supervisor.agents.spawning.confinement import can_scope
from tests.deploy.containers import (
    ASKED,
    IMAGE,
    LIMITS,
    PODMAN,
    USER,
    WAIT_SECONDS,
    make_image,
    podman,
    running,
)
from tests.support.postgres import cluster

LEASE_SECONDS = 2

pytestmark = pytest.mark.skipif(not os.environ.get(ASKED), reason=f"{ASKED}=1 asks for containers")


@pytest.fixture(scope="module", autouse=True)
def image(tmp_path_factory: pytest.TempPathFactory) -> None:
    make_image(tmp_path_factory.mktemp("image"))


@pytest.fixture(params=["docker", "kubernetes"])
def volume(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """For /data: a volume, which gets the owner that the image has there, or a disk as of Kubernetes."""
    if request.param == "docker":
        name = f"ostler-test-{os.getpid()}"
        podman("volume", "create", name)
        yield name
        podman("volume", "rm", "--force", name)
        return
    disk = tmp_path / "disk"
    disk.mkdir()
    os.chown(disk, 0, USER)  # fsGroup
    disk.chmod(0o2775)
    yield str(disk)


def test_a_conversation_in_a_container_from_its_start_to_its_end(tmp_path: Path, volume: str) -> None:
    options = ("--volume", f"{volume}:/data")
    with running(tmp_path, *options) as first:
        identifier = first.ask("Hello from outside", "/data/work")
        assert "Hello" in first.answer(identifier)
        found = first.processes()
        assert "ostler-warden" in found.values()
        began = time.monotonic()
        assert first.stop() == 0
        assert time.monotonic() - began < 10.0
        assert [pid for pid in found if Path(f"/proc/{pid}").exists()] == []
        assert "belongs to another user" not in first.logs()
    with running(tmp_path, *options) as second:
        assert second.status(identifier) == "finished"
        assert "Hello" in second.answer(identifier)
        before = second.events(identifier)
        second.say(identifier, "Greetings")
        assert second.events(identifier)[: len(before)] == before


def test_a_killed_server_comes_back_in_its_container(tmp_path: Path) -> None:
    with running(tmp_path) as container:
        identifier = container.ask("Hello", "/data/work")
        before = container.processes()
        [server] = [pid for pid, name in before.items() if name == "ostler"]
        os.kill(server, signal.SIGKILL)
        gone_by = time.monotonic() + WAIT_SECONDS
        while Path(f"/proc/{server}").exists():
            assert time.monotonic() < gone_by
            time.sleep(0.05)
        container.ready()
        assert container.status(identifier) == "finished"
        left = before.keys() & container.processes().keys()
        assert [before[pid] for pid in left] == ["ostler-warden"]
        assert container.stop() == 0


def test_an_open_server_does_not_start() -> None:
    done = subprocess.run(
        [*PODMAN, "run", "--rm", *LIMITS, IMAGE], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert "OSTLER_SESSION_API_KEY" in done.stderr


@pytest.mark.skipif(not can_scope(), reason="Landlock is older than Linux 6.12")
def test_agents_have_a_strict_wall_although_a_container_refuses_its_mounts(tmp_path: Path) -> None:
    with running(tmp_path, OSTLER_WALLS="strict") as container:
        said = podman("exec", container.name, "ostler", "doctor", check=False)
        assert "OK   walls: strict, by landlock" in said
        identifier = container.ask("Hello", "/data/work")
        assert "Hello" in container.answer(identifier)


def test_the_image_has_what_agents_need(tmp_path: Path) -> None:
    with running(tmp_path) as container:
        said = podman("exec", container.name, "ostler", "doctor", check=False)
        assert all(f"OK   {each}" in said for each in ("python:", "keys:", "state:", "node:", "npm:")), said
        assert podman("exec", container.name, "git", "--version")


def test_two_containers_are_two_servers_of_one_database(tmp_path: Path) -> None:
    pytest.importorskip("gateway.configuration.machines", reason="a server is alone in this version")
    work = tmp_path / "work"
    work.mkdir()
    os.chown(work, USER, USER)
    with cluster() as postgres:
        postgres.directory.chmod(0o755)  # for the user of the image
        name = conninfo_to_dict(postgres.database().conninfo)["dbname"]
        options = ("--volume", f"{postgres.directory}:/run/postgres", "--volume", f"{work}:/shared/work")
        several = partial(
            running,
            tmp_path,
            *options,
            database=f"postgresql://ostler@/{name}?host=/run/postgres",
            OSTLER_VOLUMES="work=/shared/work",
            OSTLER_LEASE_SECONDS=str(LEASE_SECONDS),
        )
        with several() as first, several() as second:
            identifier = first.ask("Hello from the first", "/shared/work")
            # Read from the database, and passed on to the server that has it.
            assert second.answer(identifier) == first.answer(identifier)
            assert second.events(identifier) == first.events(identifier)
            second.say(identifier, "Greetings")
            assert "Greetings" in first.answer(identifier)
            # As when a machine loses its power: the other takes the conversation over.
            podman("kill", "--signal", "KILL", first.name)
            second.say(identifier, "Welcome")
            assert "Welcome" in second.answer(identifier)
            assert second.stop() == 0
