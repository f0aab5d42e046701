"""What setup.cfg requires."""

from __future__ import annotations

import configparser
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

NAME = re.compile(r"[A-Za-z0-9._-]+")


def normal(name: str) -> str:
    """As package indexes compare names (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def declared(section: str, option: str) -> dict[str, str]:
    """Requirements by name, as setup.cfg writes them."""
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    lines = [line.strip() for line in parser[section][option].splitlines()]
    found = [line for line in lines if line and not line.startswith("#")]
    return {normal(NAME.match(line)[0]): line for line in found}  # type: ignore[index]


CORE = declared("options", "install_requires")
EXTRAS = {name: declared("options.extras_require", name) for name in ("cli", "mcp", "postgres")}
"""What not every installation has."""
RUNTIME = CORE | {name: line for extra in EXTRAS.values() for name, line in extra.items()}
TEST = declared("options.extras_require", "test")
