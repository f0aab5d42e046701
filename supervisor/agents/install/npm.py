"""Agents from npm: what the lock file names, checked by hash, without install scripts."""

from __future__ import annotations

import functools
import json
import os
import platform
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from supervisor.agents.catalog import Descriptor, NpmPackage
from supervisor.agents.errors import InstallError
from supervisor.agents.install.node import Node, find_node, find_npm
from supervisor.agents.install.package_manager import Launch, PackageManager, Tool, on_disk, tool_environment

NPM_ARGUMENTS = ("ci", "--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier")

NPM_SETTINGS = frozenset(
    f"npm_config_{name}"
    for name in (
        "cache",
        "cafile",
        "globalconfig",
        "https_proxy",
        "noproxy",
        "offline",
        "proxy",
        "registry",
        "strict_ssl",
        "userconfig",
    )
)
"""The `npm_config_*` variables that say where packages come from.

Others, of which `npm run` sets dozens, would make the installation depend on how the server was started.
"""

MACHINES = {"x86_64": "x64", "amd64": "x64", "aarch64": "arm64"}
"""npm's names of processors."""


class Npm(PackageManager):
    """A package of npm. `env` is the server's environment."""

    LOCK_FILES = ("package.json", "package-lock.json")

    def __init__(self, descriptor: Descriptor, package: NpmPackage, env: Mapping[str, str]) -> None:
        self._descriptor, self._package, self._env = descriptor, package, env
        self._node: Node | None = None
        self.version = package.version
        self.tool = Tool(descriptor.name, "npm")

    async def prepare(self) -> None:
        """Find Node.js, if the agent runs on it. Raises NodeMissing."""
        if self._package.entry is not None:
            self._node = await find_node(self._package.min_node, self._env)

    def check(self, lock_files: Mapping[str, bytes]) -> None:
        """Refuse a platform without a program, before half a gigabyte is downloaded. Raises InstallError."""
        if self._package.entry is not None:
            return
        locked = json.loads(lock_files["package-lock.json"])["packages"]
        for candidate in self._package.native.get(platform_name(), ()):
            if any(name and candidate.startswith(f"{name}/") for name in locked):
                return
        raise InstallError(
            f"the pinned {self._descriptor.name} {self._package.version} has no program for "
            f"{platform_name()}; install it yourself and set acp_command"
        )

    async def fetch(self, staging: Path) -> None:
        """Run `npm ci`."""
        npm = await find_npm(self._env)
        env = tool_environment(self._env, NPM_SETTINGS)
        # Programs that npm starts find the Node that npm itself runs on.
        env["PATH"] = os.pathsep.join([str(Path(npm[0]).parent), env.get("PATH", os.defpath)])
        await self.tool.run((*npm, *NPM_ARGUMENTS), staging, env)

    def program(self, directory: Path) -> Path | None:
        """Return the script, or the executable for this platform; None where it is missing."""
        package = self._package
        candidates = package.native.get(platform_name(), ()) if package.entry is None else (package.entry,)
        return next((path for name in candidates if (path := directory / name).is_file()), None)

    def finish(self, staging: Path, directory: Path) -> None:
        """Set the executable's mode, which would be an install script's work."""
        program = self.program(staging)
        if self._package.native and program is not None:
            program.chmod(program.stat().st_mode | 0o111)

    async def launch(self, directory: Path, program: Path) -> Launch:
        """Return how to run the executable, or the script on Node.js."""
        package, node = self._package, self._node
        path = (str(directory / "node_modules" / ".bin"),) if package.bin_on_path else ()
        if node is None:
            return Launch(argv=(str(program), *self._descriptor.args), version=package.version, path=path)
        if await on_disk(functools.partial(shutil.which, "node", path=self._env.get("PATH"))) != node.path:
            path = (*path, str(Path(node.path).parent))  # its own children look for `node` too
        argv = (node.path, str(program), *self._descriptor.args)
        return Launch(argv=argv, version=package.version, node=node.version_text, path=path)


def platform_name() -> str:
    """The name of this platform in the `native` tables, e.g. `linux-x64-musl`."""
    machine = platform.machine().lower()
    name = f"{sys.platform}-{MACHINES.get(machine, machine)}"
    if name == "linux-x64" and " avx2 " not in _cpu_flags():
        name += "-baseline"
    if sys.platform == "linux" and not _has_glibc():
        name += "-musl"
    return name


def _cpu_flags() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return next((f"{line} " for line in text.splitlines() if line.startswith("flags")), "")


def _has_glibc() -> bool:
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") is not None
    except (ValueError, OSError):
        return False
