"""The agents Ostler knows, as data: one TOML file each in ``catalog/``.

Nothing here starts or installs anything. A descriptor says how an agent is named, launched, configured and
told apart; whatever can be asked of the agent itself (models, modes, capabilities) is asked of it and not
written down.
"""

from __future__ import annotations

import enum
import functools
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from types import MappingProxyType

import attrs

from supervisor.agents.table import CatalogError, Table

__all__ = [
    "CUSTOM",
    "BaseUrlConfig",
    "CatalogError",
    "CredentialSource",
    "DefaultFile",
    "Descriptor",
    "FileSecret",
    "Kind",
    "NpmPackage",
    "Selected",
    "decode_descriptor",
    "detect",
    "identify",
    "load_catalog",
    "presets",
]

CATALOG_DIR = Path(__file__).with_name("catalog")

CUSTOM = "custom"
"""Key of the descriptor for a command that no other descriptor claims."""


def _frozen(mapping: Mapping[str, str]) -> Mapping[str, str]:
    return MappingProxyType(dict(mapping))


@attrs.frozen(kw_only=True)
class NpmPackage:
    """What is installed from npm, and the file in it that is run.

    Exactly one of ``entry`` (a script for Node) and ``native`` (executables by platform, best first) is set;
    both are relative to the install directory.
    """

    package: str
    version: str
    entry: str | None = None
    native: Mapping[str, tuple[str, ...]] = attrs.field(factory=dict)
    min_node: tuple[int, ...] | None = None
    """Lowest Node version that runs the entry; None when it runs without Node."""
    bin_on_path: bool = False
    """Whether ``node_modules/.bin`` has to be on the agent's PATH."""
    size_mb: int | None = None
    """Disk space of the install in MB, to tell the person who waits for it."""


@attrs.frozen(kw_only=True)
class FileSecret:
    """A secret that the agent reads from a file in its data directory instead of from a variable."""

    name: str
    path: str
    env: str | None = None
    """Variable that is set to the file's path; None when the agent finds the file by itself."""


@attrs.frozen(kw_only=True)
class DefaultFile:
    """A file put into a fresh data directory, unless one of that name is there already."""

    path: str
    content: str
    when_env: tuple[str, ...] = ()
    """Only when one of these variables is set; of several files with one path the first that applies is
    written."""


@attrs.frozen(kw_only=True)
class BaseUrlConfig:
    """A base URL that counts only inside a JSON document carried by another variable."""

    variable: str
    property: str
    unless_properties: tuple[str, ...] = ()
    unless_env: tuple[str, ...] = ()


class Kind(enum.StrEnum):
    """What a credential is."""

    LOGIN = "login"
    """A subscription login: a token, or a file that the provider's own tool left."""
    API_KEY = "api_key"
    FILE = "file"
    """A file that is given as a secret."""
    NONE = "none"
    UNKNOWN = "unknown"
    """Nobody can know what an agent reads that is known by its command alone."""


@attrs.frozen(kw_only=True)
class CredentialSource:
    """A place where an agent finds a credential. Exactly one of ``env``, ``secret`` and ``files`` is set."""

    kind: Kind
    env: str | None = None
    """A variable that holds it."""
    secret: str | None = None
    """One of the agent's ``file_secrets`` that holds it."""
    files: tuple[str, ...] = ()
    """Paths in which a leading ``$NAME`` stands for a variable of the agent's environment. The first whose
    variable is set is where the agent looks; it does not go on to the next."""
    holds: tuple[str, ...] = ()
    """Members of the file (``a.b``) of which one has to be filled; without them any content will do."""
    when: str | None = None
    """It counts only with this variable set."""
    selected: Selected | None = None
    provider: str = ""
    """Whose credential it is, for an agent that speaks to several: one credential is used for each."""
    auth_methods: tuple[str, ...] = ()
    """ACP authentication methods that work with it unattended, the best first."""

    @property
    def name(self) -> str:
        """The variable, the secret, or the file as the descriptor spells it (the usual place last)."""
        return self.env or self.secret or self.files[-1]


@attrs.frozen(kw_only=True)
class Selected:
    """A choice in the agent's own settings: ``member`` of the JSON ``file`` is ``value``, or not filled."""

    file: str
    member: str
    value: str


@attrs.frozen(kw_only=True)
class Descriptor:
    """Everything Ostler knows about one agent before starting it."""

    key: str
    name: str
    command: tuple[str, ...]
    """The command as clients show and send it; what is run is decided by ``supervisor.agents.install``."""
    args: tuple[str, ...] = ()
    """Arguments of the direct launch."""
    npm: NpmPackage | None = None
    module: str | None = None
    """A bundled agent: the Python module to run."""
    name_patterns: tuple[str, ...] = ()
    """What its command's words start with and what its ``agentInfo.name`` contains, in lower case."""
    binaries: tuple[str, ...] = ()
    """Names of its executable, matched as a whole."""
    base_url_env: str | None = None
    base_url_alias: str | None = None
    """The variable that the agent itself reads its base URL from, when that is another one."""
    base_url_config: BaseUrlConfig | None = None
    data_dir_env: Mapping[str, str] = attrs.field(factory=dict, converter=_frozen)
    """Variables that move its private data, each with the folder inside the data directory it gets."""
    env: Mapping[str, str] = attrs.field(factory=dict, converter=_frozen)
    """Fixed variables; secrets of the same name win over them."""
    sandbox_env: Mapping[str, str] = attrs.field(factory=dict, converter=_frozen)
    """Variables set only where the operator declared the machine a sandbox."""
    default_model: str | None = None
    default_mode: str | None = None
    modes: tuple[str, ...] = ()
    """Session modes that let it work unattended, the most able first."""
    model_meta_key: str | None = None
    """Key below ``_meta`` of session/new under which it takes a model."""
    credentials: tuple[CredentialSource, ...] = ()
    """Where it finds credentials. The first that is there is the one of a start, the others are withheld."""
    keeps_key: bool = False
    """Whether it writes a key that it is given into its home, so that it needs a home of ours."""
    secret_env: tuple[str, ...] = ()
    """Credential variables it reads; agents that do not list them too are not given them."""
    all_secrets: bool = False
    """Whether it is given other agents' credentials as well, as nobody can know what it reads."""
    file_secrets: tuple[FileSecret, ...] = ()
    default_files: tuple[DefaultFile, ...] = ()
    sessions_by_minute: bool = False
    """Whether it names a session's file by the minute: opened again within the minute in which it was opened
    last, it overwrites its own memory."""
    fs: bool = False
    """Whether it is offered the client's file system methods."""
    terminal: bool = False
    """Whether it is offered the client's terminal methods."""


def decode_descriptor(text: str, source: str) -> Descriptor:
    """The descriptor written in ``text`` (TOML); ``source`` names it in errors.

    Raises CatalogError for unknown, missing or wrongly typed properties and for paths that leave the data
    directory.
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise CatalogError(f"{source}: {error}") from error
    with Table(document, source) as table:
        descriptor = Descriptor(
            key=table.text("key"),
            name=table.text("name"),
            command=table.texts("command"),
            args=table.texts("args", ()),
            npm=_npm(table),
            module=table.text_or_none("module"),
            name_patterns=tuple(pattern.lower() for pattern in table.texts("name_patterns", ())),
            binaries=table.texts("binaries", ()),
            base_url_env=table.text_or_none("base_url_env"),
            base_url_alias=table.text_or_none("base_url_alias"),
            base_url_config=_base_url_config(table),
            data_dir_env={
                name: _inside(path, source) for name, path in table.variables("data_dir_env").items()
            },
            env=table.variables("env"),
            sandbox_env=table.variables("sandbox_env"),
            default_model=table.text_or_none("default_model"),
            default_mode=table.text_or_none("default_mode"),
            modes=table.texts("modes", ()),
            model_meta_key=table.text_or_none("model_meta_key"),
            credentials=tuple(_credential(item) for item in table.tables("credentials")),
            keeps_key=table.flag("keeps_key"),
            secret_env=table.texts("secret_env", ()),
            all_secrets=table.flag("all_secrets"),
            file_secrets=tuple(_file_secret(item) for item in table.tables("file_secrets")),
            default_files=tuple(_default_file(item) for item in table.tables("default_files")),
            sessions_by_minute=table.flag("sessions_by_minute"),
            fs=table.flag("fs"),
            terminal=table.flag("terminal"),
        )
    files = {spec.name for spec in descriptor.file_secrets}
    for credential in descriptor.credentials:
        if credential.secret is not None and credential.secret not in files:
            raise CatalogError(f"{source}: {credential.secret} is not among the file secrets")
    if descriptor.npm is not None and descriptor.module is not None:
        raise CatalogError(f"{source}: an agent is either an npm package or a bundled module, not both")
    return descriptor


def _npm(table: Table) -> NpmPackage | None:
    inner = table.table("npm")
    if inner is None:
        return None
    with inner:
        native = inner.table("native")
        package = NpmPackage(
            package=inner.text("package"),
            version=inner.text("version"),
            entry=inner.text_or_none("entry"),
            native={} if native is None else native.all_texts(),
            min_node=inner.version_or_none("min_node"),
            bin_on_path=inner.flag("bin_on_path"),
            size_mb=inner.number_or_none("size_mb"),
        )
    if (package.entry is None) == (not package.native):
        raise CatalogError(f"{inner.where}: exactly one of entry and native is needed")
    return package


def _base_url_config(table: Table) -> BaseUrlConfig | None:
    inner = table.table("base_url_config")
    if inner is None:
        return None
    with inner:
        return BaseUrlConfig(
            variable=inner.text("variable"),
            property=inner.text("property"),
            unless_properties=inner.texts("unless_properties", ()),
            unless_env=inner.texts("unless_env", ()),
        )


def _credential(table: Table) -> CredentialSource:
    with table:
        try:
            kind = Kind(table.text("kind"))
        except ValueError as error:
            raise CatalogError(f"{table.where}: {error}") from error
        source = CredentialSource(
            kind=kind,
            env=table.text_or_none("env"),
            secret=table.text_or_none("secret"),
            files=table.texts("files", ()),
            holds=table.texts("holds", ()),
            when=table.text_or_none("when"),
            selected=_selected(table),
            provider=table.text_or_none("provider") or "",
            auth_methods=table.texts("auth_methods", ()),
        )
    if sum(map(bool, (source.env, source.secret, source.files))) != 1:
        raise CatalogError(f"{table.where}: exactly one of env, secret and files is needed")
    return source


def _selected(table: Table) -> Selected | None:
    inner = table.table("selected")
    if inner is None:
        return None
    with inner:
        return Selected(file=inner.text("file"), member=inner.text("member"), value=inner.text("value"))


def _file_secret(table: Table) -> FileSecret:
    with table:
        path = _inside(table.text("path"), table.where)
        return FileSecret(name=table.text("name"), path=path, env=table.text_or_none("env"))


def _default_file(table: Table) -> DefaultFile:
    with table:
        path = _inside(table.text("path"), table.where)
        content = table.text("content").lstrip("\n")
        return DefaultFile(path=path, content=content, when_env=table.texts("when_env", ()))


def _inside(path: str, source: str) -> str:
    pure = PurePosixPath(path)
    if pure.is_absolute() or ".." in pure.parts:
        raise CatalogError(f"{source}: {path!r} is not a path inside the data directory")
    return str(pure)


@functools.cache
def load_catalog() -> Mapping[str, Descriptor]:
    """The bundled descriptors by key; read at the first call, the same object afterwards.

    Reads a handful of small files, synchronously: call it once before serving. Raises CatalogError.
    """
    found: dict[str, Descriptor] = {}
    for path in sorted(CATALOG_DIR.glob("*.toml")):
        descriptor = decode_descriptor(path.read_text(encoding="utf-8"), path.name)
        if descriptor.key != path.stem:
            raise CatalogError(f"{path.name}: the key is {descriptor.key!r}, it must be the file's name")
        found[descriptor.key] = descriptor
    if not found:
        raise CatalogError("no agent descriptors are installed beside supervisor.agents.catalog")
    return MappingProxyType(found)


def presets(catalog: Mapping[str, Descriptor]) -> dict[str, tuple[str, ...]]:
    """The command of every agent that has one of its own, by key."""
    return {key: descriptor.command for key, descriptor in catalog.items() if descriptor.command}


def detect(command: Sequence[str], catalog: Mapping[str, Descriptor]) -> str | None:
    """The key of the agent that ``command`` starts, or None for an unknown one.

    Any word counts whose basename, without a trailing ``@version``, starts with one of an agent's patterns or
    is the name of its executable (the rule that real clients apply too).
    """
    for word in command:
        base = word.rsplit("/", 1)[-1].lower()
        name = base.split("@", 1)[0] if not base.startswith("@") else base
        for descriptor in catalog.values():
            if name in descriptor.binaries or name.startswith(descriptor.name_patterns or ("\0",)):
                return descriptor.key
    return None


def identify(agent_name: str, catalog: Mapping[str, Descriptor]) -> str | None:
    """The key of the agent that introduced itself as ``agent_name`` (``agentInfo.name``), or None."""
    name = agent_name.lower()
    for descriptor in catalog.values():
        if any(pattern in name for pattern in descriptor.name_patterns):
            return descriptor.key
    return None
