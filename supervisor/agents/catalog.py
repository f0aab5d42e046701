"""The agents Ostler knows, as data: one TOML file each in `catalog/`.

Nothing here starts or installs anything. A descriptor says how an agent is named, launched, configured and
recognized. What the agent itself reports (models, modes, capabilities) is asked of it and not written down.
"""

from __future__ import annotations

import enum
import functools
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Final, Literal

import attrs

from supervisor.reading.decode import decode
from supervisor.reading.model import ErrorDetail, Flaw, Invalid, Model, Written
from supervisor.reading.rules import Form

CATALOG_DIR = Path(__file__).with_name("catalog")

CUSTOM = "custom"
"""Key of the descriptor for a command that matches no other descriptor."""

OWN: Final = "own"
SHARED: Final = "shared"
"""Whose home an agent has: its conversation's, or the user's."""


def _frozen(mapping: Mapping[str, str]) -> Mapping[str, str]:
    return MappingProxyType(dict(mapping))


def _inside(text: str) -> str:
    path = PurePosixPath(text)
    if path.is_absolute() or ".." in path.parts:
        raise ValueError("it is not a path inside the data directory")
    return str(path)


def dotted(version: Iterable[int]) -> str:
    """Return a version as people write it."""
    return ".".join(map(str, version))


def _version(text: str) -> tuple[int, ...]:
    parts = text.split(".")
    if not all(part.isdecimal() for part in parts):
        raise ValueError("it is not a version like 22.19")
    return tuple(int(part) for part in parts)


Inside = Annotated[str, Form(_inside)]
"""A path inside the data directory."""

Lower = Annotated[str, Form(str.lower)]
"""A text in lower case."""

Version = Annotated[tuple[int, ...], Written(str), Form(_version)]
"""A version, written as numbers with dots between them."""


@attrs.frozen
class Versions:
    """Versions from `first` on, without `end` (written `>=3.12,<3.15`)."""

    first: tuple[int, ...]
    end: tuple[int, ...]

    def fit(self, version: tuple[int, ...]) -> bool:
        """Whether this version is one of them."""
        return self.first <= version < self.end

    def __str__(self) -> str:
        return f">={dotted(self.first)},<{dotted(self.end)}"


def _versions(text: str) -> Versions:
    lower, comma, upper = text.partition(",")
    if not (lower.startswith(">=") and comma and upper.startswith("<")):
        raise ValueError("it is not a range like >=3.12,<3.15")
    return Versions(_version(lower.removeprefix(">=")), _version(upper.removeprefix("<")))


PythonVersions = Annotated[Versions, Written(str), Form(_versions)]
"""The versions of Python that a lock file was made for."""


class CatalogError(Exception):
    """A descriptor is not usable; the message names the file, the property and what was expected."""


class Described(Model):
    """A part of a descriptor: unknown properties are refused."""

    __slots__ = ()
    FORBID: ClassVar[bool] = True


@attrs.frozen(kw_only=True)
class NpmPackage(Described):
    """What is installed from npm, and the file in it that is run.

    Exactly one of `entry` (a script for Node) and `native` (executables by platform, best first) is set;
    both are relative to the install directory.
    """

    package: str
    version: str
    entry: str | None = None
    native: Mapping[str, tuple[str, ...]] = attrs.field(factory=dict)
    min_node: Version | None = None
    """Lowest Node version that runs the entry; None when it runs without Node."""
    bin_on_path: bool = False
    """Whether `node_modules/.bin` has to be on the agent's PATH."""
    size_mb: int | None = None
    """Disk space of the install in MB, shown to a person who waits for it."""

    def judge(self) -> Iterable[Flaw]:
        """Require either a script or executables."""
        if (self.entry is None) == (not self.native):
            yield (), "value_error", "exactly one of entry and native is needed"


@attrs.frozen(kw_only=True)
class PipPackage(Described):
    """What is installed from PyPI into a separate environment, and the program in it that is run."""

    package: str
    version: str
    entry: Inside | None = None
    """The program, a Python script in the environment (`bin/my-agent`), for the environment's Python."""
    bundled: Inside | None = None
    """A program that is part of Ostler, for the environment's Python: a directory next to this module."""
    python: PythonVersions
    size_mb: int | None = None
    """As for npm."""

    def judge(self) -> Iterable[Flaw]:
        """Require exactly one program."""
        if (self.entry is None) == (self.bundled is None):
            yield (), "value_error", "exactly one of entry and bundled is needed"


@attrs.frozen(kw_only=True)
class SecretFile(Described):
    """A secret that the agent reads from a file in its data directory instead of from a variable."""

    name: str
    path: Inside
    env: str | None = None
    """Variable that is set to the file's path; None when the agent finds the file by itself."""


@attrs.frozen(kw_only=True)
class DefaultFile(Described):
    """A file for a fresh data directory, unless one of that name exists already."""

    path: Inside
    content: Annotated[str, Form(lambda text: text.lstrip("\n"))]
    when_env: tuple[str, ...] = ()
    """Write it only when one of these variables is set; of several files with one path the first that applies
    is written."""


@attrs.frozen(kw_only=True)
class AgentHome(Described):
    """Whose home it has, and what of the user's home a separate one has.

    Without `private` every directory with a dot is recreated with links to the files in it, and everything
    else is linked. `private` are the directories that the agent keeps its data in: everything else is linked,
    and of these only what `links` and `copies` name. See `supervisor.agents.homes.home`.
    """

    kind: Literal["own", "shared"] = "own"
    private: tuple[Inside, ...] = ()
    links: tuple[Inside, ...] = ()
    copies: tuple[Inside, ...] = ()


@attrs.frozen(kw_only=True)
class BaseUrlConfig(Described):
    """A base URL that counts only inside a JSON document carried by another variable."""

    variable: str
    property: str
    unless_properties: tuple[str, ...] = ()
    unless_env: tuple[str, ...] = ()


class Kind(enum.StrEnum):
    """The kinds of credentials."""

    LOGIN = "login"
    """A subscription login: a token, or a file that the provider's own tool left."""
    API_KEY = "api_key"
    FILE = "file"
    """A file that is given as a secret."""
    NONE = "none"
    UNKNOWN = "unknown"
    """For an agent known by its command alone: what it reads is unknown."""


@attrs.frozen(kw_only=True)
class Endpoint(Described):
    """The API that a key is for, and where the agent takes its base URL from: a variable, or a property of a
    JSON document in one.

    The network door puts its own address there, and gives the agent no key (`walls.door.rewiring`).
    """

    url: str | None = None
    """The base URL that the agent uses where none is set; None where it has none."""
    env: str | None = None
    variable: str | None = None
    property: str | None = None
    """The place in the document, with dots between names; what is missing is made."""

    def judge(self) -> Iterable[Flaw]:
        """Require exactly one place."""
        in_document = self.variable is not None
        if in_document is (self.env is not None) or in_document is (self.property is None):
            yield (), "value_error", "either env, or variable and property are needed"


@attrs.frozen(kw_only=True)
class CredentialSource(Described):
    """A place where an agent finds a credential. Exactly one of `env`, `secret` and `files` is set."""

    kind: Kind
    env: str | None = None
    """A variable that holds it."""
    secret: str | None = None
    """One of the agent's `file_secrets` that holds it."""
    files: tuple[str, ...] = ()
    """Paths in which a leading `$NAME` stands for a variable of the agent's environment. The agent looks only
    into the first whose variable is set."""
    holds: tuple[str, ...] = ()
    """Members of the file (`a.b`) of which one has to be filled; without them any content counts."""
    when: str | None = None
    """It counts only with this variable set."""
    selected: Selected | None = None
    provider: str = ""
    """The credential's provider, for an agent of several providers: one credential is used for each."""
    auth_methods: tuple[str, ...] = ()
    """ACP authentication methods that work with it unattended, the best first."""
    api: Endpoint | None = None
    """Where a key counts. None: not known, or its address is fixed; then the agent has the key itself, also
    behind the network door."""
    adds: Mapping[str, str] = attrs.field(factory=dict, converter=_frozen)
    """Variables that the agent needs with it, unless they are set: `$NAME` stands for another variable."""

    @property
    def name(self) -> str:
        """The variable, the secret, or the file as the descriptor spells it (the usual place last)."""
        return self.env or self.secret or self.files[-1]

    def judge(self) -> Iterable[Flaw]:
        """Require exactly one place."""
        if sum(map(bool, (self.env, self.secret, self.files))) != 1:
            yield (), "value_error", "exactly one of env, secret and files is needed"


@attrs.frozen(kw_only=True)
class Selected(Described):
    """A choice in the agent's own settings: `member` of the JSON `file` is `value`, or not filled."""

    file: str
    member: str
    value: str


@attrs.frozen(kw_only=True)
class Descriptor(Described):
    """Everything Ostler knows about one agent before starting it."""

    key: str
    name: str
    command: tuple[str, ...]
    """The command as clients show and send it. `supervisor.agents.install.install` decides what is run."""
    args: tuple[str, ...] = ()
    """Arguments of the direct launch."""
    npm: NpmPackage | None = None
    pip: PipPackage | None = None
    module: str | None = None
    """A bundled agent: the Python module to run."""
    name_patterns: tuple[Lower, ...] = ()
    """Parts of its `agentInfo.name`, in lower case. A match never makes a command this agent's."""
    base_url_env: str | None = None
    base_url_alias: str | None = None
    """The variable that the agent itself reads its base URL from, if it differs."""
    base_url_config: BaseUrlConfig | None = None
    data_dir_env: Mapping[str, Inside] = attrs.field(factory=dict, converter=_frozen)
    """Variables that move its private data, each with the folder inside the data directory it gets."""
    home: AgentHome | None = None
    """Its home. Without it: the user's, if variables move its private data, else a separate one."""
    env: Mapping[str, str] = attrs.field(factory=dict, converter=_frozen)
    """Fixed variables; secrets of the same name win over them."""
    session_meta: Mapping[str, Any] = attrs.field(factory=dict)
    """The `_meta` with which its sessions are opened."""
    sandbox_env: Mapping[str, str] = attrs.field(factory=dict, converter=_frozen)
    """Variables set only where the operator declared the machine a sandbox."""
    credentials: tuple[CredentialSource, ...] = ()
    """Where it finds credentials. The first one there is used for a start, the others are withheld."""
    keeps_key: bool = False
    """Whether it writes a key that it is given into its home, so that it needs a data directory."""
    secret_env: tuple[str, ...] = ()
    """Credential variables it reads; agents that do not list them do not get them."""
    all_secrets: bool = False
    """Whether it gets other agents' credentials as well, since it is unknown what it reads."""
    file_secrets: tuple[SecretFile, ...] = ()
    default_files: tuple[DefaultFile, ...] = ()
    sessions: tuple[Inside, ...] = ()
    """The directories and files in its data directory that hold its sessions, and no login: the agent of a
    fork gets copies of them. Empty: not known, so a session stays in the data directory in which it was
    made."""
    sessions_at_rest: bool = False
    """Whether they are a database, which can be copied consistently only while no process has it open."""
    sessions_by_minute: bool = False
    """Whether it names a session's file by the minute: opened again within the same minute, it overwrites its
    own memory."""
    resumes_calls: bool | None = None
    """Whether it runs a tool call that was cut off when its session is resumed: such a session is abandoned.
    None: it was not tried, so it may."""
    native_events: bool = False
    """Whether it reports its conversation in the interface's own events: its `_ostler/` notifications are
    accepted, and it gets the conversation's settings with the session (docs/built-in-agent.md). Only for
    programs that are part of Ostler."""
    secrets_with_session: bool = False
    """Whether it gets secrets with its session, and in no variable of its process."""
    takes_messages: bool = False
    """Whether it takes messages during a turn, with `_ostler/message`, and reports which it has taken. Only
    with `native_events`; other agents get a message when the turn before has ended."""
    fs: bool = False
    """Whether the client's file system methods are offered to it."""
    terminal: bool = False
    """Whether the client's terminal methods are offered to it."""
    hosts: tuple[str, ...] = ()
    """Hosts that it needs for a login, or for a key whose API is not known, as in OSTLER_AGENT_HOSTS. The
    network door lets it reach them where it has such a credential, or none."""
    warm: Literal["session", "directory"] | None = None
    """Whether a warm process of it may be started before there is a conversation for it: it knows no
    conversation before its session is opened. `session`: it takes its working directory from the session
    alone. `directory`: its process has to be started in it. None: it cannot. See
    `supervisor.conversations.agent.warm.pool`."""

    forks: Inside | None = None
    """A file in the program's directory that is run in its place, to import once and fork the warm processes
    and all others that would start the same way (see `supervisor.agents.spawning.forker`)."""

    @property
    def home_kind(self) -> str:
        """Return `own` or `shared`.

        Helpers that an agent finds by its HOME end with the conversation that started them, so an agent whose
        data is not moved otherwise has a home per conversation.
        """
        if self.home is not None:
            return self.home.kind
        return SHARED if self.data_dir_env or self.module is not None else OWN

    def judge(self) -> Iterable[Flaw]:
        """Require exactly one way to start, and a description of each file that a secret comes from."""
        files = {spec.name for spec in self.file_secrets}
        for index, credential in enumerate(self.credentials):
            if credential.secret is not None and credential.secret not in files:
                place = ("credentials", index, "secret")
                yield place, "value_error", f"{credential.secret} is not among the file secrets"
        if self.takes_messages and not self.native_events:
            yield ("takes_messages",), "value_error", "only an agent with native events takes messages"
        if sum(each is not None for each in (self.npm, self.pip, self.module)) > 1:
            yield (), "value_error", "an agent has one of npm, pip and module"

    @property
    def package(self) -> NpmPackage | PipPackage | None:
        """What Ostler installs for it; None for one that is bundled, or known by its command alone."""
        return self.npm or self.pip


def decode_descriptor(text: str, source: str) -> Descriptor:
    """Return the descriptor written in `text` (TOML); `source` names it in errors.

    Raises CatalogError for unknown, missing or wrongly typed properties and for paths that leave the data
    directory.
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise CatalogError(f"{source}: {error}") from error
    try:
        return decode(Descriptor, document)
    except Invalid as error:
        said = "; ".join(f"{_place(each)}{each.msg.removeprefix('Value error, ')}" for each in error.errors)
        raise CatalogError(f"{source}: {said}") from None


def _place(error: ErrorDetail) -> str:
    """Return the place of an error as TOML spells it: `npm.version: `, `credentials[0]: `."""
    parts = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.loc)
    return f"{parts.removeprefix('.')}: " if parts else ""


@functools.cache
def load_catalog() -> Mapping[str, Descriptor]:
    """Return the bundled descriptors by key; read at the first call, the same object afterwards.

    Reads a handful of small files, synchronously: call it once before serving. Raises CatalogError.
    """
    found: dict[str, Descriptor] = {}
    for path in sorted(CATALOG_DIR.glob("*.toml")):
        descriptor = decode_descriptor(path.read_text(encoding="utf-8"), path.name)
        if descriptor.key != path.stem:
            raise CatalogError(f"{path.name}: the key is {descriptor.key!r}, it must be the file's name")
        found[descriptor.key] = descriptor
    if not found:
        raise CatalogError("no agent descriptors are installed next to supervisor.agents.catalog")
    return MappingProxyType(found)


def presets(catalog: Mapping[str, Descriptor]) -> dict[str, tuple[str, ...]]:
    """Return the command of each agent that has one, by key."""
    return {key: descriptor.command for key, descriptor in catalog.items() if descriptor.command}


def behaving(
    descriptor: Descriptor,
    catalog: Mapping[str, Descriptor],
    *,
    name: str | None = None,
    methods: str | None = None,
    after_cut_off: str | None = None,
) -> Descriptor:
    """Return the descriptor with what is known of its agent's behaviour on the wire.

    A command behaves like the agent of the catalogue that it introduces itself as (`name`); it gets none of
    that agent's logins and files. `methods` and `after_cut_off` are the settings `acp_client_methods` and
    `acp_after_cut_off`, which take precedence over both.
    """
    key = identify(name, catalog) if name and descriptor.key == CUSTOM else None
    like = catalog[key or descriptor.key]
    return attrs.evolve(
        descriptor,
        fs=like.fs if methods is None else methods in ("fs", "both"),
        terminal=like.terminal if methods is None else methods in ("terminal", "both"),
        sessions_by_minute=like.sessions_by_minute,
        resumes_calls=like.resumes_calls if after_cut_off is None else after_cut_off == "new_session",
    )


def identify(agent_name: str, catalog: Mapping[str, Descriptor]) -> str | None:
    """Return the key of the agent that introduced itself as `agent_name` (`agentInfo.name`), or None."""
    name = agent_name.lower()
    for descriptor in catalog.values():
        if not descriptor.native_events and any(pattern in name for pattern in descriptor.name_patterns):
            return descriptor.key
    return None
