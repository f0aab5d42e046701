"""Credential files that agents share and rotate: no login is destroyed, no newer token overwritten."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import attrs
import pytest
import trio

from supervisor.agents.shared_logins import Rotated, SharedLogins

NAME = "CODEX_AUTH_JSON"


def login(token: str) -> str:
    return json.dumps({"tokens": {"refresh_token": token}})


@attrs.define
class House:
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
def house(tmp_path):
    return House(tmp_path, login("one"))


def replace(path: Path, text: str) -> None:
    """As agents do that write beside and rename."""
    beside = path.with_name("auth.json.tmp")
    beside.write_text(text)
    beside.replace(path)


async def test_a_credential_file_is_private_and_no_link_to_look_through(house):
    lease = await house.checkout("a", house.stored)
    target = house.target("a")
    assert target.read_text() == login("one")
    assert stat.S_IMODE(os.lstat(target).st_mode) == 0o600
    assert not target.is_symlink()
    assert [stat.S_IMODE(os.stat(p).st_mode) for p in (target.parent, house.root / "logins")] == [0o700] * 2
    assert lease.tokens == {"one"}
    assert login("one") not in repr(lease)
    for path in (house.root / "logins").rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600)


async def test_what_an_agent_rotated_is_stored_when_it_ends(house):
    lease = await house.checkout("a", house.stored)
    house.target("a").write_text(login("two"))
    await house.logins.give_back(lease)
    assert house.stored == login("two")


async def test_agents_with_one_login_see_each_others_rotation(house):
    await house.checkout("a", house.stored)
    await house.checkout("b", house.stored)
    house.target("a").write_text(login("two"))
    assert house.target("b").read_text() == login("two")


async def test_an_agent_that_starts_later_gets_the_newest_token_also_by_an_older_value(house):
    await house.checkout("a", house.stored)
    house.target("a").write_text(login("two"))
    await house.checkout("b", login("one"))
    assert house.target("b").read_text() == login("two")
    assert house.stored == login("two")
    house.target("b").write_text(login("three"))
    await house.checkout("c", login("two"))
    assert house.target("c").read_text() == house.target("a").read_text() == login("three")


@pytest.mark.parametrize("first", ["a", "b"])
async def test_of_two_files_that_were_replaced_the_later_rotation_wins(house, first):
    leases = {user: await house.checkout(user, house.stored) for user in "ab"}
    replace(house.target("a"), login("two"))
    replace(house.target("b"), login("three"))
    os.utime(house.target("a"), (1e9, 1e9))
    os.utime(house.target("b"), (1e9 + 5, 1e9 + 5))
    for user in sorted(leases, key=lambda user: user != first):
        await house.logins.give_back(leases[user])
    assert house.stored == login("three")
    await house.checkout("a", login("two"))
    assert house.target("a").read_text() == login("three")


async def test_an_older_token_that_is_written_late_does_not_win(house):
    lease = await house.checkout("a", house.stored)
    other = await house.checkout("b", house.stored)
    house.target("a").write_text(login("two"))
    await house.logins.give_back(lease)
    house.target("b").write_text(login("one"))  # what it had in memory
    await house.logins.give_back(other)
    assert house.stored == login("two")
    assert house.target("a").read_text() == login("two")


async def test_a_login_that_a_person_stored_meanwhile_stays(house):
    lease = await house.checkout("a", house.stored)
    house.stored = login("another person's")
    house.target("a").write_text(login("two"))
    await house.logins.give_back(lease)
    assert house.stored == login("another person's")
    await house.checkout("a", house.stored)
    assert house.target("a").read_text() == login("another person's")


@pytest.mark.parametrize("left", ["", "{}", '{"tokens": {"refr', None])
async def test_an_emptied_or_half_written_file_counts_for_nothing(house, left):
    lease = await house.checkout("a", house.stored)
    house.target("a").write_text(login("two"))
    await house.logins.give_back(lease)
    lease = await house.checkout("a", house.stored)
    if left is None:
        house.target("a").unlink()
    else:
        house.target("a").write_text(left)
    await house.logins.give_back(lease)
    assert house.stored == login("two")
    await house.checkout("a", house.stored)
    assert house.target("a").read_text() == login("two")


async def test_a_server_that_was_killed_loses_no_rotation(house):
    await house.checkout("a", house.stored)
    house.target("a").write_text(login("two"))
    house.open()
    await house.checkout("a", house.stored)
    assert house.target("a").read_text() == house.stored == login("two")


async def test_a_credential_that_is_withdrawn_is_gone_and_one_that_the_agent_made_stays(house):
    await house.checkout("a", house.stored)
    await house.logins.revoke(NAME, user="a", target=house.target("a"))
    assert not house.target("a").exists()
    house.target("a").write_text("its own")
    await house.logins.revoke(NAME, user="a", target=house.target("a"))
    assert house.target("a").read_text() == "its own"


async def test_what_nobody_uses_any_more_is_stored_and_removed(house):
    await house.checkout("a", house.stored)
    await house.checkout("b", house.stored)
    house.target("a").write_text(login("two"))
    await house.logins.forget("a")
    assert list((house.root / "logins" / NAME).iterdir())
    await house.logins.forget("b")
    assert not list((house.root / "logins" / NAME).iterdir())
    assert house.stored == login("two")


async def test_many_conversations_with_one_login_leave_the_last_rotation(house):
    async def live(number: int) -> None:
        user = f"c{number}"
        lease = await house.checkout(user, house.stored)
        before = json.loads(house.target(user).read_text())["tokens"]["refresh_token"]
        rotate = (
            house.target(user).write_text if number % 2 else lambda text: replace(house.target(user), text)
        )
        rotate(login(f"{before}+{number}"))
        await house.logins.give_back(lease)

    async with trio.open_nursery() as nursery:
        for number in range(12):
            nursery.start_soon(live, number)
    await house.checkout("last", house.stored)
    assert house.target("last").read_text() == house.stored
    assert house.stored != login("one")
