"""The directories that clients may use where they are confined: those of the conversations there are."""

from __future__ import annotations

import pytest

from gateway.api import known_directories
from gateway.api.app import create_app
from gateway.api.known_directories import KnownDirectories
from gateway.pages import docs
from supervisor.conversations.state.start import StartRequest


async def create(gateway, directory):
    conversation, _ = await gateway.supervisor.create(StartRequest(working_dir=directory))
    return conversation.id


async def test_an_application_that_is_made_again_adds_its_workspaces_once(gateway, monkeypatch):
    def fail(_):
        raise MemoryError

    services = gateway.services
    before = list(services.known.also)
    with monkeypatch.context() as broken:
        broken.setattr(docs, "install", fail)
        with pytest.raises(MemoryError):
            create_app(services)
    assert services.known.also == before
    create_app(services)
    assert len(services.known.also) == len(before) + 1


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(known_directories, "PAGE", 2)


async def test_they_come_and_go_with_their_conversations(gateway, small):
    known = KnownDirectories(gateway.supervisor)
    assert list(await known()) == []
    ids = [await create(gateway, f"/w{number}") for number in range(5)]
    assert set(await known()) == {f"/w{number}" for number in range(5)}
    ids += [await create(gateway, f"/w{number}") for number in (5, 0)]
    assert set(await known()) == {f"/w{number}" for number in range(6)}
    await gateway.supervisor.delete(ids[0])
    assert "/w0" in await known()  # the last one has it, too
    await gateway.supervisor.delete(ids[-1])
    await gateway.supervisor.delete(ids[3])
    assert set(await known()) == {"/w1", "/w2", "/w4", "/w5"}
    # One goes, one comes: as many as before.
    await gateway.supervisor.delete(ids[1])
    await create(gateway, "/w9")
    assert set(await known()) == {"/w2", "/w4", "/w5", "/w9"}


async def test_what_was_registered_counts_too(gateway):
    known = KnownDirectories(gateway.supervisor)

    async def registered():
        return ["/r", "/w"]

    known.also.append(registered)
    await create(gateway, "/w")
    assert sorted(await known()) == ["/r", "/w"]


async def test_there_is_a_limit_and_the_newest_count(gateway, small, monkeypatch):
    monkeypatch.setattr(known_directories, "MAX_ROOTS", 4)
    known = KnownDirectories(gateway.supervisor)
    for number in range(7):
        await create(gateway, f"/w{number}")
    assert set(await known()) == {"/w3", "/w4", "/w5", "/w6"}
    assert set(await known()) == {"/w3", "/w4", "/w5", "/w6"}
