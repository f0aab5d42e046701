"""Credential files that agents share and rotate: no login is destroyed, no newer token overwritten."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import attrs
import pytest
import trio

from supervisor.agents.homes.shared_logins import Rotated, SharedLogins

NAME = "CODEX_AUTH_JSON"


def login(token: str) -> str:
    return json.dumps({"tokens": {"refresh_token": token}})


@attrs.define
class Harness:
    root: Path
    stored: str | None = None
    logins: SharedLogins = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.open()

    def open(self) -> None:
        self.logins = SharedLogins(self.root / "logins", self.keep)

    async def keep(self, rotated: Rotated) -> None:
        await trio.lowlevel.checkpoint()
        if self.stored is not None and rotated.known(self.stored):
            self.stored = rotated.value

    def target(self, user: str) -> Path:
        return self.root / user / "codex" / "auth.json"

    async def checkout(self, user: str, value: str):
        return await self.logins.checkout(NAME, value, user=user, target=self.target(user))


@pytest.fixture
def harness(tmp_path):
    return Harness(tmp_path, login("one"))


def replace(path: Path, text: str) -> None:
    """As agents do that write beside and rename."""
    beside = path.with_name("auth.json.tmp")
    beside.write_text(text)
    beside.replace(path)


async def test_a_credential_file_is_private_and_no_link_to_look_through(harness):
    lease = await harness.checkout("a", harness.stored)
    target = harness.target("a")
    assert target.read_text() == login("one")
    assert stat.S_IMODE(os.lstat(target).st_mode) == 0o600
    assert not target.is_symlink()
    assert [stat.S_IMODE(os.stat(p).st_mode) for p in (target.parent, harness.root / "logins")] == [0o700] * 2
    assert lease.tokens == {"one"}
    assert login("one") not in repr(lease)
    for path in (harness.root / "logins").rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600)


async def test_what_an_agent_rotated_is_stored_when_it_ends(harness):
    lease = await harness.checkout("a", harness.stored)
    harness.target("a").write_text(login("two"))
    await harness.logins.release(lease)
    assert harness.stored == login("two")


async def test_agents_with_one_login_see_each_others_rotation(harness):
    await harness.checkout("a", harness.stored)
    await harness.checkout("b", harness.stored)
    harness.target("a").write_text(login("two"))
    assert harness.target("b").read_text() == login("two")


async def test_an_agent_that_starts_later_gets_the_newest_token_also_by_an_older_value(harness):
    await harness.checkout("a", harness.stored)
    harness.target("a").write_text(login("two"))
    await harness.checkout("b", login("one"))
    assert harness.target("b").read_text() == login("two")
    assert harness.stored == login("two")
    harness.target("b").write_text(login("three"))
    await harness.checkout("c", login("two"))
    assert harness.target("c").read_text() == harness.target("a").read_text() == login("three")


@pytest.mark.parametrize("first", ["a", "b"])
async def test_of_two_files_that_were_replaced_the_later_rotation_wins(harness, first):
    leases = {user: await harness.checkout(user, harness.stored) for user in "ab"}
    replace(harness.target("a"), login("two"))
    replace(harness.target("b"), login("three"))
    os.utime(harness.target("a"), (1e9, 1e9))
    os.utime(harness.target("b"), (1e9 + 5, 1e9 + 5))
    for user in sorted(leases, key=lambda user: user != first):
        await harness.logins.release(leases[user])
    assert harness.stored == login("three")
    await harness.checkout("a", login("two"))
    assert harness.target("a").read_text() == login("three")


async def test_an_older_token_that_is_written_late_does_not_win(harness):
    lease = await harness.checkout("a", harness.stored)
    other = await harness.checkout("b", harness.stored)
    harness.target("a").write_text(login("two"))
    await harness.logins.release(lease)
    harness.target("b").write_text(login("one"))  # what it had in memory
    await harness.logins.release(other)
    assert harness.stored == login("two")
    assert harness.target("a").read_text() == login("two")


async def test_a_login_that_a_person_stored_meanwhile_stays(harness):
    lease = await harness.checkout("a", harness.stored)
    harness.stored = login("another person's")
    harness.target("a").write_text(login("two"))
    await harness.logins.release(lease)
    assert harness.stored == login("another person's")
    await harness.checkout("a", harness.stored)
    assert harness.target("a").read_text() == login("another person's")


@pytest.mark.parametrize("left", ["", "{}", '{"tokens": {"refr', None])
async def test_an_emptied_or_half_written_file_counts_for_nothing(harness, left):
    lease = await harness.checkout("a", harness.stored)
    harness.target("a").write_text(login("two"))
    await harness.logins.release(lease)
    lease = await harness.checkout("a", harness.stored)
    if left is None:
        harness.target("a").unlink()
    else:
        harness.target("a").write_text(left)
    await harness.logins.release(lease)
    assert harness.stored == login("two")
    await harness.checkout("a", harness.stored)
    assert harness.target("a").read_text() == login("two")


async def test_a_server_that_was_killed_loses_no_rotation(harness):
    await harness.checkout("a", harness.stored)
    harness.target("a").write_text(login("two"))
    harness.open()
    await harness.checkout("a", harness.stored)
    assert harness.target("a").read_text() == harness.stored == login("two")


async def test_a_credential_that_is_withdrawn_is_gone_and_one_that_the_agent_made_stays(harness):
    await harness.checkout("a", harness.stored)
    await harness.logins.revoke(NAME, user="a", target=harness.target("a"))
    assert not harness.target("a").exists()
    harness.target("a").write_text("its own")
    await harness.logins.revoke(NAME, user="a", target=harness.target("a"))
    assert harness.target("a").read_text() == "its own"


async def test_what_nobody_uses_any_more_is_stored_and_removed(harness):
    await harness.checkout("a", harness.stored)
    await harness.checkout("b", harness.stored)
    harness.target("a").write_text(login("two"))
    await harness.logins.forget("a")
    assert list((harness.root / "logins" / NAME).iterdir())
    await harness.logins.forget("b")
    assert not list((harness.root / "logins" / NAME).iterdir())
    assert harness.stored == login("two")


async def test_many_conversations_with_one_login_leave_the_last_rotation(harness):
    async def live(number: int) -> None:
        user = f"c{number}"
        lease = await harness.checkout(user, harness.stored)
        before = json.loads(harness.target(user).read_text())["tokens"]["refresh_token"]
        rotate = (
            harness.target(user).write_text
            if number % 2
            else lambda text: replace(harness.target(user), text)
        )
        rotate(login(f"{before}+{number}"))
        await harness.logins.release(lease)

    async with trio.open_nursery() as nursery:
        for number in range(12):
            nursery.start_soon(live, number)
    await harness.checkout("last", harness.stored)
    assert harness.target("last").read_text() == harness.stored
    assert harness.stored != login("one")
