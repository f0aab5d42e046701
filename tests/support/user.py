"""Another user than root, for tests that are run as root: what is root's own is open to it anyway."""

from __future__ import annotations

import os
import shutil

import pytest

NOBODY = 65534
ROOT = os.geteuid() == 0

USER = NOBODY if ROOT else os.geteuid()
"""Who runs what is started with AS_USER."""

AS_USER = (
    # It may read all files, since the interpreter of root may be in root's home; that opens nothing in /proc.
    [
        "setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups",
        "--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search",
    ]
    if ROOT
    else []
)  # fmt: skip
"""Before a command."""

NEEDS_USER = pytest.mark.skipif(ROOT and shutil.which("setpriv") is None, reason="cannot become another user")


def give(path: os.PathLike[str] | str) -> None:
    """Make it that user's."""
    if ROOT:
        os.chown(path, NOBODY, NOBODY)
