"""A Chromium for the web UI."""

from __future__ import annotations

import os
import shutil

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")


def find_chromium() -> str:
    """The one on PATH. Without any, tests are skipped; in CI they fail."""
    for name in NAMES:
        if found := shutil.which(name):
            return found
    missing = "no Chromium on PATH: the web UI cannot be tried (on Debian: apt-get install chromium)"
    if os.environ.get("CI") == "true":
        pytest.fail(missing)
    pytest.skip(missing)
