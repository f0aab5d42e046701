"""Agents from PyPI: what the lock file names, checked by hash, in a separate virtual environment.

Wheels are unpacked, so that no code of a package runs. Packages without a wheel are in a second lock file,
`sources.txt`, and are built with what the first one installed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from supervisor.agents.catalog import Descriptor, PipPackage
from supervisor.agents.install.package_manager import Launch, PackageManager, Tool, tool_environment
from supervisor.agents.install.python import find_python

PIP_SETTINGS = frozenset(
    f"pip_{name}"
    for name in (
        "cache_dir",
        "cert",
        "client_cert",
        "config_file",
        "default_timeout",
        "extra_index_url",
        "find_links",
        "index_url",
        "keyring_provider",
        "no_cache_dir",
        "no_index",
        "proxy",
        "retries",
        "timeout",
        "trusted_host",
    )
)
"""The `PIP_*` variables that say where packages come from."""

OURS: Mapping[str, str] = {
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "PIP_NO_INPUT": "1",
    "PIP_NO_WARN_SCRIPT_LOCATION": "1",
    # A user's configuration of pip may set these, which would install outside the environment.
    "PIP_REQUIRE_VIRTUALENV": "0",
    "PIP_USER": "0",
}

INSTALL = ("-m", "pip", "install", "--quiet", "--require-hashes", "--no-deps")

WHEELS = ("--only-binary", ":all:", "-r", "requirements.txt")
SOURCES = ("--no-binary", ":all:", "--no-build-isolation", "-r", "sources.txt")

PYTHON = Path("bin", "python")

AGENTS = Path(__file__).parents[1]
"""The directory of the agents that are part of Ostler."""


class Pip(PackageManager):
    """A package of PyPI. `env` is the server's environment."""

    LOCK_FILES = ("requirements.txt", "sources.txt")
    OPTIONAL = ("sources.txt",)

    def __init__(self, descriptor: Descriptor, package: PipPackage, env: Mapping[str, str]) -> None:
        self._descriptor, self._package, self._env = descriptor, package, env
        self.version = package.version
        self.tool = Tool(descriptor.name, "pip")

    async def prepare(self) -> None:
        """Do nothing: a finished environment has its Python already."""

    def check(self, lock_files: Mapping[str, bytes]) -> None:
        """Do nothing: pip itself refuses packages without a wheel."""

    async def fetch(self, staging: Path) -> None:
        """Make the environment, and install into it. Raises PythonMissing, InstallError."""
        python = await find_python(self._package.python, self._descriptor.name, self._env)
        env = {**tool_environment(self._env, PIP_SETTINGS), **OURS}
        await self.tool.run((python.path, "-I", "-m", "venv", str(staging)), staging, env)
        own = str(staging / PYTHON)
        await self.tool.run((own, *INSTALL, *WHEELS), staging, env)
        if (staging / "sources.txt").is_file():
            await self.tool.run((own, *INSTALL, *SOURCES), staging, env)

    def program(self, directory: Path) -> Path | None:
        """Return the script, or the directory of a program that is part of Ostler; None where it is
        missing."""
        if self._package.bundled is not None:
            bundled = AGENTS / self._package.bundled
            return bundled if (bundled / "__main__.py").is_file() else None
        program = directory / str(self._package.entry)
        return program if program.is_file() else None

    def is_stale(self, directory: Path) -> bool:
        """Whether the machine's Python, to which the environment's is a link, is gone."""
        return not (directory / PYTHON).is_file()

    def finish(self, staging: Path, directory: Path) -> None:
        """Point the scripts to the environment's Python at its final path."""
        here, there = (b"#!" + os.fsencode(each / "bin") + b"/" for each in (staging, directory))
        for script in (staging / "bin").iterdir():
            if script.is_symlink() or not script.is_file():
                continue
            content = script.read_bytes()
            if content.startswith(here):
                script.write_bytes(there + content[len(here) :])

    async def launch(self, directory: Path, program: Path) -> Launch:
        """Return how to run the script on the environment's Python."""
        # -P: search neither its own directory nor the workspace for modules.
        argv: Sequence[str] = (str(directory / PYTHON), "-P", str(program), *self._descriptor.args)
        return Launch(argv=tuple(argv), version=self._package.version)
