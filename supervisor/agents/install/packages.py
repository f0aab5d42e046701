"""Agents from npm and PyPI: what their lock files name, checked by hash, without code of a package.

npm runs no install scripts. pip unpacks wheels into a separate virtual environment; packages without a wheel
are in a second lock file, `sources.txt`, and are built with what the first one installed.

`Npm` and `Pip` have the same methods. Their paths are those of the agent's directory, finished or not.
"""

from __future__ import annotations

import functools
import json
import os
import platform
import re
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import attrs
import trio

from supervisor.agents.catalog import Descriptor, NpmPackage, PipPackage
from supervisor.agents.endings import StopPolicy
from supervisor.agents.environment import base_environment
from supervisor.agents.errors import InstallError, SpawnError
from supervisor.agents.install.programs import Program, find_node, find_npm, find_python
from supervisor.agents.pipes import LineTail
from supervisor.agents.process import AgentProcess, spawn
from supervisor.patience import PathTimeout, in_time

T = TypeVar("T")

TOOL_STOP = StopPolicy(stdin_grace=0.1, term_grace=1.0)
"""npm and pip do not read their input, so its end does not stop them; SIGTERM does."""

ERROR_LINES = 12
"""Lines of a tool's output that an error quotes: npm and pip repeat their reason in the last few lines."""

DISK_SECONDS = 60.0
"""Seconds for one step on install directories: the largest removes or moves half a gigabyte."""

DISK = trio.CapacityLimiter(4)
"""Threads that work on install directories at a time."""

NPM_ARGUMENTS = (
    "ci",
    "--ignore-scripts",
    "--no-audit",
    "--no-fund",
    "--no-update-notifier",
    "--loglevel=http",
)
"""npm leaves out an optional package that it cannot fetch, and succeeds: its log of requests says why."""

NPM_SETTINGS = frozenset(
    {
        "npm_config_cache", "npm_config_cafile", "npm_config_fetch_retries",
        "npm_config_fetch_retry_maxtimeout", "npm_config_fetch_retry_mintimeout", "npm_config_fetch_timeout",
        "npm_config_globalconfig", "npm_config_https_proxy",
        "npm_config_noproxy", "npm_config_offline", "npm_config_proxy", "npm_config_registry",
        "npm_config_strict_ssl", "npm_config_userconfig",
    }
)  # fmt: skip
"""The `npm_config_*` variables that say where packages come from, and how long npm tries.

Others, of which `npm run` sets dozens, would make the installation depend on how the server was started.
"""

NPM_PATIENCE: Mapping[str, str] = {
    # Milliseconds. npm's own limits tell of a registry that is down after 70 s, of a silent one after 15 min.
    "npm_config_fetch_retries": "2",
    "npm_config_fetch_retry_mintimeout": "500",
    "npm_config_fetch_retry_maxtimeout": "1000",
    "npm_config_fetch_timeout": "10000",
}
"""What npm gets where the server's environment does not set it."""

MACHINES = {"x86_64": "x64", "amd64": "x64", "aarch64": "arm64"}
"""npm's names of processors."""

PIP_SETTINGS = frozenset(
    {
        "pip_cache_dir", "pip_cert", "pip_client_cert", "pip_config_file", "pip_default_timeout",
        "pip_extra_index_url", "pip_find_links", "pip_index_url", "pip_keyring_provider", "pip_no_cache_dir",
        "pip_no_index", "pip_proxy", "pip_retries", "pip_timeout", "pip_trusted_host",
    }
)  # fmt: skip
"""The `PIP_*` variables that say where packages come from, and how long pip tries."""

PIP_VARIABLES: Mapping[str, str] = {
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "PIP_NO_INPUT": "1",
    "PIP_NO_WARN_SCRIPT_LOCATION": "1",
    # A user's configuration of pip may set these, which would install outside the environment.
    "PIP_REQUIRE_VIRTUALENV": "0",
    "PIP_USER": "0",
}

PIP_PATIENCE: Mapping[str, str] = {"PIP_RETRIES": "2", "PIP_DEFAULT_TIMEOUT": "10"}
"""What pip gets where the server's environment does not set it. In seconds; a silent index takes 30 s."""

NPM_NAMES = ("npm_config_registry", "npm_config_fetch_timeout and npm_config_fetch_retries")
PIP_NAMES = ("PIP_INDEX_URL", "PIP_DEFAULT_TIMEOUT and PIP_RETRIES")
"""What errors name: the variable of the registry, and those of the patience."""

NO_REGISTRY = re.compile(
    r"failed, reason: (?P<request>.+)|network (?P<timeout>timeout) at: "
    r"|Retry\(total=0,.* broken by '\w+\(.*?: (?P<connection>[A-Z][^'\"()]+)"
)
"""What npm and pip write when they give up on a registry that does not answer."""

FAILED_REQUEST = re.compile(r"attempt \d+ failed with (\w+)")
"""What npm writes of a request that failed, also for an optional package."""

NPM_REQUESTS = "npm http "
"""What the lines about npm's requests begin with."""

NO_SPACE = re.compile(r"\bENOSPC\b|No space left on device")

INSTALL = ("-m", "pip", "install", "--quiet", "--require-hashes", "--no-deps")

WHEELS = ("--only-binary", ":all:", "-r", "requirements.txt")
SOURCES = ("--no-binary", ":all:", "--no-build-isolation", "-r", "sources.txt")

PYTHON = Path("bin", "python")

AGENTS = Path(__file__).parents[1]
"""The directory of the agents that are part of Ostler."""


@attrs.frozen(kw_only=True)
class Launch:
    """How an agent is started."""

    argv: tuple[str, ...]
    version: str | None = None
    """The pinned version; None for the user's own command."""
    path: tuple[str, ...] = ()
    """Directories that have to come first on its PATH."""


async def on_disk(work: Callable[..., T], *args: object, wasted: Callable[[T], object] = lambda _: None) -> T:
    """Run work in a thread; cancellation abandons it.

    Raises InstallError after DISK_SECONDS.
    """
    task = functools.partial(work, *args)
    what = "to read and write the directory of installed agents"
    try:
        return await in_time(task, what, limiter=DISK, seconds=DISK_SECONDS, wasted=wasted)
    except PathTimeout as error:
        raise InstallError(str(error)) from error


class Tool:
    """Runs the programs of one package manager. `agent`, `name` and the names of variables, of its registry
    and of its patience, are for messages."""

    def __init__(self, agent: str, name: str, registry: str, patience: str) -> None:
        self.name = name
        self._registry, self._patience = registry, patience
        self._agent = agent
        self._output = LineTail()
        self._process: AgentProcess | None = None

    async def run(self, argv: Sequence[str], cwd: Path, env: Mapping[str, str]) -> None:
        """Run one to its end. Raises InstallError with its last output. Cancellation ends its processes."""
        self._output = LineTail()
        try:
            async with spawn(argv, cwd=cwd, env=env, stop=TOOL_STOP) as process:
                self._process = process
                async for data in process.stdout:
                    self._output.feed(bytes(data))
                status = await process.wait()
        except SpawnError as error:
            raise InstallError(f"cannot install {self._agent}: {error}") from error
        if status.code != 0:
            raise self.failed(str(status))

    def failed(self, ending: str) -> InstallError:
        """Return the error of a program that ended like this, with its last output."""
        errors = () if self._process is None else self._process.stderr_tail()
        lines = [
            line
            for line in (*self._output.lines(), *errors)
            if line.strip() and not line.startswith(NPM_REQUESTS)
        ]
        reason = f"Installing {self._agent} failed: "
        text = "\n".join(lines)
        if (found := NO_REGISTRY.search(text)) is not None:
            cause = next(part for part in found.groups() if part is not None).strip(" .")
            return self._no_registry(cause)
        if NO_SPACE.search(text) is not None:
            return InstallError(f"{reason}the disk is full. Make room, and install it again")
        return InstallError("\n".join([f"{reason}{self.name} {ending}", *lines[-ERROR_LINES:]]))

    def incomplete(self, version: str) -> InstallError:
        """Return the error of a program that ended well, but did not install the agent's."""
        errors = [] if self._process is None else self._process.stderr_tail()
        if failures := FAILED_REQUEST.findall("\n".join(errors)):
            return self._no_registry(failures[-1])
        return InstallError(f"{self.name} installed {self._agent} {version}, but its program is missing")

    def _no_registry(self, cause: str) -> InstallError:
        return InstallError(
            f"Installing {self._agent} failed: {self.name} cannot reach its registry ({cause}). Check the "
            f"network, and {self._registry}; {self._patience} set how long {self.name} tries"
        )


def tool_environment(
    env: Mapping[str, str], settings: frozenset[str], defaults: Mapping[str, str]
) -> dict[str, str]:
    """Return a package manager's part of the server's environment: what any process gets, and the variables
    of these names (in lower case), which come after the defaults: pip takes the last of two spellings."""
    given = {name: value for name, value in env.items() if name.lower() in settings}
    spelled = {name.lower() for name in given}
    missing = {name: value for name, value in defaults.items() if name.lower() not in spelled}
    return {**missing, **base_environment(env, isolated=False), **given}


class Npm:
    """A package of npm. `env` is the server's environment."""

    lock_files = ("package.json", "package-lock.json")
    optional = ()
    """Lock files that an agent may lack."""

    def __init__(self, descriptor: Descriptor, package: NpmPackage, env: Mapping[str, str]) -> None:
        self._descriptor, self._env = descriptor, env
        self.package = package
        self._node: Program | None = None
        self.tool = Tool(descriptor.name, "npm", *NPM_NAMES)

    async def prepare(self) -> None:
        """Find what the agent runs on, whether it is installed or not: Node.js, or nothing.

        Raises NodeMissing.
        """
        if self.package.entry is not None:
            self._node = await find_node(self.package.min_node, self._env)

    async def require(self) -> None:
        """Find what an installation and the agent need. Raises NodeMissing."""
        await self.prepare()
        await find_npm(self._env)

    def check(self, lock_files: Mapping[str, bytes]) -> None:
        """Refuse a platform without a program, before half a gigabyte is downloaded. Raises InstallError."""
        if self.package.entry is not None:
            return
        locked = json.loads(lock_files["package-lock.json"])["packages"]
        for candidate in self.package.native.get(platform_name(), ()):
            if any(name and candidate.startswith(f"{name}/") for name in locked):
                return
        raise InstallError(
            f"the pinned {self._descriptor.name} {self.package.version} has no program for "
            f"{platform_name()}; install it yourself and set acp_command"
        )

    async def fetch(self, staging: Path) -> None:
        """Run `npm ci` in `staging`, in which the lock files are. Raises InstallError; cancellation ends
        it."""
        npm = await find_npm(self._env)
        env = tool_environment(self._env, NPM_SETTINGS, NPM_PATIENCE)
        # Programs that npm starts find the Node that npm itself runs on.
        env["PATH"] = os.pathsep.join([str(Path(npm[0]).parent), env.get("PATH", os.defpath)])
        await self.tool.run((*npm, *NPM_ARGUMENTS), staging, env)

    def program(self, directory: Path) -> Path | None:
        """Return the script, or the executable for this platform; None where it is missing. Blocks."""
        package = self.package
        candidates = package.native.get(platform_name(), ()) if package.entry is None else (package.entry,)
        return next((path for name in candidates if (path := directory / name).is_file()), None)

    def is_stale(self, directory: Path) -> bool:
        """A finished install can always run."""
        return False

    def finish(self, staging: Path, directory: Path) -> None:
        """Set the executable's mode, which would be an install script's work. Blocks; raises OSError."""
        program = self.program(staging)
        if self.package.native and program is not None:
            program.chmod(program.stat().st_mode | 0o111)

    async def launch(self, directory: Path, program: Path) -> Launch:
        """Return how to run the executable, or the script on Node.js."""
        package, node = self.package, self._node
        path = (str(directory / "node_modules" / ".bin"),) if package.bin_on_path else ()
        if node is None:
            return Launch(argv=(str(program), *self._descriptor.args), version=package.version, path=path)
        if await on_disk(functools.partial(shutil.which, "node", path=self._env.get("PATH"))) != node.path:
            path = (*path, str(Path(node.path).parent))  # its own children look for `node` too
        argv = (node.path, str(program), *self._descriptor.args)
        return Launch(argv=argv, version=package.version, path=path)


class Pip:
    """A package of PyPI. `env` is the server's environment."""

    lock_files = ("requirements.txt", "sources.txt")
    optional = ("sources.txt",)

    def __init__(self, descriptor: Descriptor, package: PipPackage, env: Mapping[str, str]) -> None:
        self._descriptor, self._env = descriptor, env
        self.package = package
        self.tool = Tool(descriptor.name, "pip", *PIP_NAMES)

    async def prepare(self) -> None:
        """Do nothing: a finished environment has its Python already."""

    async def require(self) -> None:
        """Find the Python that an installation needs. Raises PythonMissing, InstallError."""
        await find_python(self.package.python, self._descriptor.name, self._env)

    def check(self, lock_files: Mapping[str, bytes]) -> None:
        """Do nothing: pip itself refuses packages without a wheel."""

    async def fetch(self, staging: Path) -> None:
        """Make the environment, and install into it. Raises PythonMissing, InstallError; cancellation ends
        pip."""
        python = await find_python(self.package.python, self._descriptor.name, self._env)
        env = {**tool_environment(self._env, PIP_SETTINGS, PIP_PATIENCE), **PIP_VARIABLES}
        await self.tool.run((python.path, "-I", "-m", "venv", str(staging)), staging, env)
        own = str(staging / PYTHON)
        await self.tool.run((own, *INSTALL, *WHEELS), staging, env)
        if (staging / "sources.txt").is_file():
            await self.tool.run((own, *INSTALL, *SOURCES), staging, env)

    def program(self, directory: Path) -> Path | None:
        """Return the script, or the directory of a program that is part of Ostler; None where it is missing.
        Blocks."""
        if self.package.bundled is not None:
            bundled = AGENTS / self.package.bundled
            return bundled if (bundled / "__main__.py").is_file() else None
        program = directory / str(self.package.entry)
        return program if program.is_file() else None

    def is_stale(self, directory: Path) -> bool:
        """Whether the machine's Python, to which the environment's is a link, is gone. Blocks."""
        return not (directory / PYTHON).is_file()

    def finish(self, staging: Path, directory: Path) -> None:
        """Point the scripts to the environment's Python at its final path. Blocks; raises OSError."""
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
        argv = (str(directory / PYTHON), "-P", str(program), *self._descriptor.args)
        return Launch(argv=argv, version=self.package.version)


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
