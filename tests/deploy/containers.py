"""The image of deploy/Containerfile and its containers, with podman and runc over a base made by debootstrap.

As root: else the image's user has another number outside. With runc, since crun refuses hosts that have both
versions of control groups.
"""

from __future__ import annotations

import os
import platform
import shutil
import socket
import ssl
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs
import httpx2

from tests.deploy.manifests import ROOT

ASKED = "OSTLER_TEST_CONTAINERS"
"""The variable that asks for these tests: they download some hundred megabytes the first time."""

BASE, IMAGE = "localhost/ostler-test-base", "localhost/ostler-test"
PODMAN = ("podman", "--runtime", "runc")
LIMITS = ("--network", "host", "--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1000:1000")
"""What a virtual machine without a network of its own for containers, and with low limits, allows."""

USER = 1000
"""The user of the image."""

MAKE_SECONDS = 900
"""For the base or the image: packages are downloaded."""

WAIT_SECONDS = 30.0
"""For a server to be ready, or to answer."""

KEY = "a-session-key-of-the-containers"


def podman(*arguments: str, seconds: float = 60.0, check: bool = True) -> str:
    """Run podman: what it printed. With `check`, a failure is one of the test, with what podman said."""
    done = subprocess.run([*PODMAN, *arguments], capture_output=True, text=True, timeout=seconds)
    if check:
        assert done.returncode == 0, f"{arguments}: {done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def make_base(directory: Path) -> None:
    """Make the image of the distribution that this machine runs, unless there is one from before."""
    if podman("images", "--quiet", BASE):
        return
    root = directory / "root"
    suite = platform.freedesktop_os_release()["VERSION_CODENAME"]
    with (directory / "debootstrap.log").open("wb") as log:
        subprocess.run(
            ["debootstrap", "--variant=minbase", suite, str(root)],
            stdout=log,
            stderr=log,
            check=True,
            timeout=MAKE_SECONDS,
        )
    tar = directory / "root.tar"
    subprocess.run(["tar", "-C", str(root), "-cf", str(tar), "."], check=True, timeout=MAKE_SECONDS)
    podman("import", str(tar), BASE, seconds=MAKE_SECONDS)
    tar.unlink()
    shutil.rmtree(root)


def make_image(directory: Path) -> None:
    """Build deploy/Containerfile. Its layers are kept, so that only what changed is made again."""
    make_base(directory)
    # Certificates of a proxy on the way to the packages are known to this machine, not to the base.
    trusted = ssl.get_default_verify_paths().cafile or "/etc/ssl/certs/ca-certificates.crt"
    settings = directory / "pip.conf"
    settings.write_text("[global]\ncert = /etc/host.crt\n")
    podman(
        *("build", "--layers", "--file", str(ROOT / "deploy" / "Containerfile"), "--tag", IMAGE),
        *("--build-arg", f"BASE={BASE}", *LIMITS),
        *(
            "--volume",
            f"{settings}:/etc/pip.conf:ro",
            "--volume",
            f"{Path(trusted).resolve()}:/etc/host.crt:ro",
        ),
        str(ROOT),
        seconds=MAKE_SECONDS,
    )


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@attrs.frozen
class Container:
    name: str
    url: str
    client: httpx2.Client

    def processes(self) -> dict[int, str]:
        """The container's processes by their ids on the host, with their names."""
        lines = podman("top", self.name, "hpid", "comm").splitlines()[1:]
        return {int(pid): name for pid, name in (line.split(maxsplit=1) for line in lines)}

    def ready(self) -> None:
        """Wait until the server takes work."""
        self._until(lambda: self.client.get("/ready").status_code == 200)

    def ask(self, text: str, directory: str) -> str:
        """Begin a conversation with the demo agent and wait for the end of its turn: its id."""
        message = {"content": [{"type": "text", "text": text}]}
        body = {"workspace": {"working_dir": directory}, "initial_message": message}
        answer = self.client.post("/api/conversations", json=body)
        assert answer.status_code == 201, answer.text
        identifier = str(answer.json()["id"])
        self._until(lambda: self.status(identifier) == "finished")
        return identifier

    def say(self, identifier: str, text: str) -> None:
        """Send a message, and wait for the end of its turn."""
        content = {"content": [{"type": "text", "text": text}], "role": "user", "run": True}
        answer = self.client.post(f"/api/conversations/{identifier}/events", json=content)
        assert answer.status_code < 300, answer.text
        self._until(lambda: text in self.answer(identifier) and self.status(identifier) == "finished")

    def status(self, identifier: str) -> str:
        return str(self.client.get(f"/api/conversations/{identifier}").json()["execution_status"])

    def answer(self, identifier: str) -> str:
        """What the agent said last."""
        found = self.client.get(f"/api/conversations/{identifier}/agent_final_response")
        return str(found.json()["response"])

    def events(self, identifier: str) -> list[str]:
        """The ids of its events, at most a page."""
        found = self.client.get(f"/api/conversations/{identifier}/events/search?limit=100")
        return [str(each["id"]) for each in found.json()["items"]]

    def stop(self) -> int:
        """End it as a runtime does, by SIGTERM: the exit status."""
        podman("stop", "--time", "30", self.name)
        return int(podman("inspect", "--format", "{{.State.ExitCode}}", self.name))

    def logs(self) -> str:
        done = subprocess.run([*PODMAN, "logs", self.name], capture_output=True, text=True, timeout=30)
        return done.stdout + done.stderr

    def _until(self, met: Callable[[], bool]) -> None:
        end = time.monotonic() + WAIT_SECONDS
        while True:
            try:
                if met():
                    return
            except httpx2.TransportError:
                state = podman("inspect", "--format", "{{.State.Running}}", self.name).strip()
                assert state == "true", self.logs()  # else it does not serve yet, or not any more
            assert time.monotonic() < end, self.logs()
            time.sleep(0.1)


@contextmanager
def running(
    directory: Path, *options: str, database: str | None = None, **variables: str
) -> Iterator[Container]:
    """A container of the image, ready: one server, or one of several over a database. It is removed at the
    end, with its volumes."""
    keys = directory / f"keys-{uuid.uuid4().hex}"
    shared = {"OSTLER_SESSION_API_KEY": KEY, "OSTLER_MASTER_KEY": "a-master-key-of-the-containers"}
    if database is not None:
        shared["OSTLER_DATABASE"] = database
    keys.write_text("".join(f"{name}={value}\n" for name, value in shared.items()))
    keys.chmod(0o400)
    os.chown(keys, USER, USER)
    name, port = f"ostler-test-{uuid.uuid4().hex[:8]}", free_port()
    values = {"OSTLER_KEYS_FILE": "/run/ostler.keys", "OSTLER_PORT": str(port), **variables}
    if database is not None:
        values |= {"OSTLER_SERVER_NAME": name, "OSTLER_ADVERTISE_URL": f"http://127.0.0.1:{port}"}
    passed = [option for each in values.items() for option in ("--env", "=".join(each))]
    url = f"http://127.0.0.1:{port}"
    with httpx2.Client(base_url=url, headers={"X-Session-API-Key": KEY}, timeout=WAIT_SECONDS) as client:
        try:
            podman(
                *("run", "--detach", "--name", name, *LIMITS, "--volume", f"{keys}:/run/ostler.keys:ro"),
                *(*passed, *options, IMAGE),
            )
            made = Container(name, url, client)
            made.ready()
            yield made
        finally:
            podman("rm", "--force", "--time", "0", "--volumes", name, check=False)
