"""What a server is known by."""

from __future__ import annotations

import stat

from supervisor.credentials.cipher import Cipher
from supervisor.machines.identity import INSTANCE_FILE, SERVERS_LABEL, instance_of


def test_a_state_directory_keeps_its_id(tmp_path):
    first = instance_of(tmp_path / "a")
    assert len(first) == 32
    assert instance_of(tmp_path / "a") == first
    assert instance_of(tmp_path / "b") != first
    assert stat.S_IMODE((tmp_path / "a" / INSTANCE_FILE).stat().st_mode) == 0o600


def test_the_key_of_servers_comes_from_the_master_key_alone():
    one, two = Cipher("one phrase"), Cipher("another phrase")
    assert one.derived(SERVERS_LABEL) == "80cf3e31ec7be0b732e3ae781e450d52da6171c12e4d3133780254eb70a74830"
    assert two.derived(SERVERS_LABEL) != one.derived(SERVERS_LABEL) != one.derived(b"another purpose")
    assert one.opening([two]).derived(SERVERS_LABEL) == one.derived(SERVERS_LABEL)
