from __future__ import annotations

from supervisor.machines.disks import Disks, shown
from supervisor.machines.volumes import Volumes, parse

A = Disks(name="a", instance="1", volumes=parse("work=/srv/work,data=/srv/data"))
B = Disks(name="b", instance="2", volumes=parse("work=/mnt/work"))
A_AGAIN = Disks(name="renamed", instance="1", volumes=Volumes())


def test_what_is_on_a_volume_is_on_the_same_disk_for_all_who_have_it() -> None:
    disk = A.of("/srv/work/project")
    assert (disk, B.has(disk), A_AGAIN.has(disk), shown(disk)) == (
        "volume:work",
        True,
        False,
        "the volume work",
    )


def test_what_is_elsewhere_is_on_the_disk_of_one_server_under_any_name() -> None:
    disk = A.of("/home/me/project")
    assert (A.has(disk), A_AGAIN.has(disk), B.has(disk)) == (True, True, False)
    assert shown(disk) == "the disk of the server a"


def test_agents_data_is_on_its_volume_or_on_the_servers_disk() -> None:
    assert (A.of_data, str(A.data)) == ("volume:data", "/srv/data")
    assert (B.of_data, B.data) == (B.own, None)
