"""The log of a server whose standard error cannot be written."""

from __future__ import annotations

import io
import os
import subprocess
import sys

import pytest

from gateway.serving.logs import Lines

pytestmark = pytest.mark.guarantee(name="nothing-is-lost")

CODE = """
import resource, sys
from gateway.serving import logs
resource.setrlimit(resource.RLIMIT_FSIZE, (10, resource.RLIM_INFINITY))
logs.configure()
logs.say("on standard output")
import structlog
log = structlog.get_logger("x")
for number in range(3):
    log.info("a line that is lost", number=number)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
log.info("there is room again")
"""


def test_lines_that_cannot_be_written_are_counted(tmp_path):
    path = tmp_path / "log"
    with path.open("wb") as file, (tmp_path / "said").open("wb") as said:
        done = subprocess.run([sys.executable, "-c", CODE], stdout=said, stderr=file, check=False)
    assert done.returncode == 0
    assert (tmp_path / "said").read_text() == "on standar"
    torn, second, third = path.read_text().splitlines()
    assert len(torn) == 10
    assert second == "3 lines of the log were lost"
    assert "there is room again" in third


@pytest.mark.parametrize("closed", [False, True])
def test_nobody_reads_or_the_descriptor_is_gone(closed):
    ours, theirs = os.pipe()
    os.close(ours)
    with io.TextIOWrapper(os.fdopen(theirs, "wb", buffering=0), write_through=True) as stream:
        if closed:
            stream.close()
        Lines(stream).write("lost")


def test_a_line_that_is_no_unicode():
    ours, theirs = os.pipe()
    with os.fdopen(theirs, "w") as stream:
        Lines(stream).write("\ud800")
    with os.fdopen(ours, "rb") as read:
        assert read.read() == b"\\ud800\n"
