"""The master key in a real keyring: unlocked, locked, stopped, killed, and not there at all."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest

from tests.support.keyring_session import KeyringSession, keyring_session, missing
from tests.support.server import ServerProcess, running_server

pytestmark = pytest.mark.interop

VALUE = "sk-of-the-keyring-test"
SOURCE = "the OS keyring (Secret Service)"
HANG_S = 25.0
"""D-Bus itself gives up after this long. Ostler's own limit is 2 s, and the rest is for a busy machine."""


@pytest.fixture(autouse=True)
def _programs() -> None:
    if names := missing():
        reason = f"{', '.join(names)} missing: apt-get install dbus gnome-keyring"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)


@pytest.fixture
def session() -> Iterator[KeyringSession]:
    with keyring_session() as opened:
        yield opened


def secrets_file(directory: Path) -> dict[str, object]:
    found: dict[str, object] = orjson.loads((directory / "state" / "secrets.json").read_bytes())
    return found


def key_file(directory: Path) -> Path:
    return directory / "state" / "master.key"


async def status(server: ServerProcess) -> dict[str, str | None]:
    found: dict[str, str | None] = (await server.rest.call("GET", "/api/status"))["secret_key"]
    return found


async def put(server: ServerProcess, name: str, expect: int = 200) -> dict[str, str]:
    body = {"name": name, "value": VALUE}
    answer: dict[str, str] = await server.rest.call("PUT", "/api/settings/secrets", body, expect=expect)
    return answer


async def value(server: ServerProcess, name: str) -> str:
    response = await server.rest.http.get(f"/api/settings/secrets/{name}")
    assert response.status_code == 200, response.text
    return str(response.text)


async def prepared(directory: Path, session: KeyringSession) -> str:
    """A state with a secret, whose key is in the keyring; the name of the key there."""
    async with running_server(directory, session.environment) as server:
        assert await status(server) == {"source": SOURCE, "problem": None}
        await put(server, "A")
    return str(secrets_file(directory)["keyring_entry"])


def test_entries_are_stored_read_and_deleted(session: KeyringSession) -> None:
    assert session.ask("get", "a").stdout == f"None|{SOURCE}\n"
    stored = session.ask("set", "a", "text of it")
    assert stored.returncode == 0, stored.stderr
    assert session.ask("get", "a").stdout == f"text of it|{SOURCE}\n"
    assert session.ask("delete", "a").returncode == 0
    assert session.ask("get", "a").stdout == f"None|{SOURCE}\n"


async def test_a_server_keeps_its_master_key_there_over_rotations(
    session: KeyringSession, tmp_path: Path
) -> None:
    first = await prepared(tmp_path, session)
    assert not key_file(tmp_path).exists()
    assert session.ask("get", first).stdout.split("|")[0] not in ("", "None")
    async with running_server(tmp_path, session.environment) as server:
        assert VALUE in await value(server, "A")
        answer = await server.rest.call("POST", "/api/secrets/rotate")
        assert (answer["key"], answer["secrets"]) == (SOURCE, 1)
        assert VALUE in await value(server, "A")
    second = str(secrets_file(tmp_path)["keyring_entry"])
    assert second != first
    assert session.ask("get", first).stdout == f"None|{SOURCE}\n"
    session.unlock()  # another session of the same person
    async with running_server(tmp_path, session.environment) as server:
        assert VALUE in await value(server, "A")
        await server.rest.call("DELETE", "/api/settings/secrets/A")
    assert VALUE not in server.output.read_text()
    assert not key_file(tmp_path).exists()


async def test_a_rotation_moves_a_key_file_into_the_keyring(session: KeyringSession, tmp_path: Path) -> None:
    async with running_server(tmp_path, {**session.environment, "OSTLER_KEYRING": "off"}) as server:
        await put(server, "A")
    assert key_file(tmp_path).exists()
    async with running_server(tmp_path, session.environment) as server:
        assert (await status(server))["source"] == str(key_file(tmp_path))
        assert (await server.rest.call("POST", "/api/secrets/rotate"))["key"] == SOURCE
    assert not key_file(tmp_path).exists()
    async with running_server(tmp_path, session.environment) as server:
        assert VALUE in await value(server, "A")


@pytest.mark.guarantee(name="keys-and-secrets")
@pytest.mark.guarantee(name="secrets-stay-in")
async def test_a_locked_keyring_is_told_and_survived(session: KeyringSession, tmp_path: Path) -> None:
    await prepared(tmp_path, session)
    before = secrets_file(tmp_path)
    session.lock()
    async with running_server(tmp_path, session.environment) as server:
        problem = (await status(server))["problem"] or ""
        refused = await put(server, "B", 503)
        for said in (problem, refused["detail"], server.output.read_text()):
            assert "the keyring is locked" in said
            assert "start Ostler again" in said
        assert (await server.rest.call("GET", "/ready"))["status"] == "ready"
    assert secrets_file(tmp_path) == before
    assert not key_file(tmp_path).exists()
    session.unlock()
    async with running_server(tmp_path, session.environment) as server:
        assert VALUE in await value(server, "A")


async def test_a_new_state_beside_a_locked_keyring_gets_a_key_file(
    session: KeyringSession, tmp_path: Path
) -> None:
    session.lock()
    async with running_server(tmp_path, session.environment) as server:
        said = server.output.read_text()
        assert "the keyring is locked" in said
        assert "ostler secrets rotate" in said
        assert (await status(server))["source"] == str(key_file(tmp_path))
        await put(server, "A")
    session.unlock()
    async with running_server(tmp_path, session.environment) as server:
        assert VALUE in await value(server, "A")
        assert (await server.rest.call("POST", "/api/secrets/rotate"))["key"] == SOURCE
    assert not key_file(tmp_path).exists()


@pytest.mark.guarantee(name="secrets-stay-in")
async def test_a_password_that_nobody_types_holds_up_no_start(tmp_path: Path) -> None:
    """A window asks for the password of the keyring, and nobody is there."""
    with keyring_session("/bin/sleep 60") as session:
        await prepared(tmp_path, session)
        session.lock()
        begun = time.monotonic()
        async with running_server(tmp_path, session.environment) as server:
            assert time.monotonic() - begun < HANG_S
            problem = (await status(server))["problem"] or ""
            assert "did not answer within 2 s; is it locked?" in problem
            assert problem in server.output.read_text()


@pytest.mark.guarantee(name="secrets-stay-in")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_keyring_that_goes_away_takes_nothing_along(
    session: KeyringSession, tmp_path: Path, number: int
) -> None:
    await prepared(tmp_path, session)
    async with running_server(tmp_path, session.environment) as server:
        before = secrets_file(tmp_path)
        session.signal(number)
        begun = time.monotonic()
        refused = await server.rest.call("POST", "/api/secrets/rotate", expect=409)
        assert time.monotonic() - begun < HANG_S
        assert "Nothing was changed" in refused["detail"]
        assert "Unlock the keyring" in refused["detail"]
        assert secrets_file(tmp_path) == before
        assert VALUE in await value(server, "A")
        await put(server, "B")
        # And once more, after it was given up.
        assert "keyring" in (await server.rest.call("POST", "/api/secrets/rotate", expect=409))["detail"]
    session.unlock()
    async with running_server(tmp_path, session.environment) as server:
        assert VALUE in await value(server, "A")
        assert VALUE in await value(server, "B")
        assert (await server.rest.call("POST", "/api/secrets/rotate"))["key"] == SOURCE


@pytest.mark.guarantee(name="secrets-stay-in")
@pytest.mark.parametrize("address", ["unix:path=/nowhere", ""])
async def test_without_a_bus_a_server_starts_and_tells_what_it_lacks(
    session: KeyringSession, tmp_path: Path, address: str
) -> None:
    await prepared(tmp_path, session)
    bare = {**session.environment, "DBUS_SESSION_BUS_ADDRESS": address, "XDG_RUNTIME_DIR": str(tmp_path)}
    async with running_server(tmp_path, bare) as server:
        problem = (await status(server))["problem"] or ""
        assert "OS keyring" in problem
        assert "start Ostler again" in problem
        assert problem in server.output.read_text()
    new = tmp_path / "new"
    new.mkdir()
    async with running_server(new, bare) as server:
        assert (await status(server))["source"] == str(key_file(new))
        await put(server, "A")
