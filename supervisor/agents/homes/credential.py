"""Which credentials an agent uses at a start: one for each provider, chosen by a pure function.

An agent that gets two credentials of one provider uses the one that it prefers, or refuses both. So one is
chosen here, by the order of the agent's descriptor, and the others are withheld.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import attrs

from supervisor.agents.catalog import CredentialSource, Descriptor, Kind

MACHINE: Final = "machine"
"""Origin of a credential that the user did not give: the provider's own tool left it on this machine."""

ANYTHING: Final = ""
"""A pseudo-member: the file has any content at all."""

TOKEN_WORDS: Final = ("token", "secret", "key", "password", "refresh", "access", "credential")
"""Parts of member names whose values are to be hidden."""


@attrs.frozen(kw_only=True)
class Found:
    """What was found in a file, or in the value of a file secret. Holds no value.

    `holds` are the filled members, of those that the agent's descriptor asks for; `ANYTHING` among them means
    that there is any content. `place` is the source's `name`.
    """

    place: str
    path: Path | None = None
    holds: frozenset[str] = frozenset()


@attrs.frozen(kw_only=True)
class Credential:
    """A credential that is used. `name` is its variable or secret, `file` the file that was found."""

    kind: Kind
    name: str | None = None
    file: str | None = None
    origin: str | None = None
    """Where it was given, in the caller's words, or `MACHINE`."""
    provider: str = ""
    auth_methods: tuple[str, ...] = ()
    adds: Mapping[str, str] = attrs.field(factory=dict)


@attrs.frozen
class Named:
    """A variable and where its value was given."""

    name: str
    origin: str


@attrs.frozen
class Withheld:
    """A secret that the agent does not get, and why."""

    name: str
    reason: str


@attrs.frozen(kw_only=True)
class Choice:
    """The credentials with which an agent is started."""

    credentials: tuple[Credential, ...] = ()
    """In the descriptor's order; several only for an agent of several providers."""
    base_url: Named | None = None
    withheld: tuple[Withheld, ...] = ()
    unknown: bool = False
    """Whether it is unknown which credentials the agent reads."""

    @property
    def credential(self) -> Credential:
        """The first one; one of kind NONE or UNKNOWN where there is none."""
        if self.credentials:
            return self.credentials[0]
        return Credential(kind=Kind.UNKNOWN if self.unknown else Kind.NONE)

    @property
    def names(self) -> frozenset[str]:
        """The variables and file secrets that are used."""
        return frozenset(each.name for each in self.credentials if each.name is not None)

    @property
    def withheld_names(self) -> frozenset[str]:
        """The secrets that the agent does not get."""
        return frozenset(each.name for each in self.withheld)


def choose_credential(
    descriptor: Descriptor, origins: Mapping[str, str], found: Collection[Found] = ()
) -> Choice:
    """Choose the credentials of an agent.

    `origins` maps the name of each secret that has a value to where it was given; `found` are the files on
    this machine and the file secrets that were looked into.

    The first available source of each provider counts. In the descriptors a subscription login comes before
    an API key, and a key that would come next is withheld. A base URL counts with any of them.
    """
    chosen: dict[str, Credential] = {}
    for source in descriptor.credentials:
        if source.provider not in chosen and (source.when is None or source.when in origins):
            credential = _present(source, origins, found)
            if credential is not None:
                chosen[source.provider] = credential
    names = {credential.name for credential in chosen.values()}
    withheld: dict[str, Withheld] = {}
    for source in descriptor.credentials:
        name = source.env or source.secret
        if name is None or name in names or name in withheld or name not in origins:
            continue
        used = chosen.get(source.provider)
        if used is not None:
            withheld[name] = Withheld(name, _reason(used, source))
        elif source.when is not None and source.when not in origins:
            withheld[name] = Withheld(name, f"it counts only with {source.when}")
        elif source.secret is not None:
            withheld[name] = Withheld(name, "it holds no credential")
    urls = (descriptor.base_url_alias, descriptor.base_url_env)
    url = next((name for name in urls if name is not None and name in origins), None)
    used_once: dict[tuple[str | None, str | None], Credential] = {}
    for credential in chosen.values():  # a file may hold those of several providers
        used_once.setdefault((credential.name, credential.file), credential)
    return Choice(
        credentials=tuple(used_once.values()),
        base_url=None if url is None else Named(url, origins[url]),
        withheld=tuple(withheld.values()),
        unknown=descriptor.all_secrets and not descriptor.credentials,
    )


def auth_params(
    descriptor: Descriptor, choice: Choice, offered: Collection[str], env: Mapping[str, str]
) -> dict[str, Any] | None:
    """Return the parameters of `authenticate`: the first method of the ids in `offered` that works with a
    chosen credential. None where there is none. `env` is the agent's composed environment."""
    methods = (method for credential in choice.credentials for method in credential.auth_methods)
    chosen = next((method for method in methods if method in offered), None)
    if chosen is None:
        return None
    params: dict[str, Any] = {"methodId": chosen}
    url = env.get(descriptor.base_url_alias or "")
    if url:
        # An agent with its own variable for the URL takes it as a parameter, too.
        params["_meta"] = {"gateway": {"baseUrl": url}}
    return params


def helpful_names(descriptor: Descriptor) -> tuple[str, ...]:
    """Return the secrets that would each suffice as the agent's credential, the first choice first."""
    given = (source.env or source.secret for source in descriptor.credentials if source.when is None)
    return tuple(dict.fromkeys(name for name in given if name is not None))


def _present(
    source: CredentialSource, origins: Mapping[str, str], found: Collection[Found]
) -> Credential | None:
    wanted = source.holds or (ANYTHING,)
    if source.env is not None:
        if source.env not in origins:
            return None
        name: str | None = source.env
        file, origin = None, origins[source.env]
    else:
        if source.secret is not None and source.secret not in origins:
            return None
        seen = next((each for each in found if each.place == source.name), None)
        if seen is None or not seen.holds.intersection(wanted):
            return None
        name = source.secret
        file = None if seen.path is None else str(seen.path)
        origin = MACHINE if name is None else origins[name]
    return Credential(
        kind=source.kind,
        name=name,
        file=file,
        origin=origin,
        provider=source.provider,
        auth_methods=source.auth_methods,
        adds=source.adds,
    )


def _reason(used: Credential, source: CredentialSource) -> str:
    which = used.name or used.file
    if used.kind in (Kind.LOGIN, Kind.FILE) and source.kind is Kind.API_KEY:
        return f"a login takes priority over a key: {which}"
    return f"one credential is used: {which}"


def file_secret_names(catalog: Mapping[str, Descriptor]) -> frozenset[str]:
    """Return the secrets that some agent reads from a file: no agent gets them as a variable."""
    return frozenset(spec.name for descriptor in catalog.values() for spec in descriptor.file_secrets)


def in_file_secrets(descriptor: Descriptor, secrets: Mapping[str, str]) -> tuple[Found, ...]:
    """Look into the agent's file secrets, given their values by name."""
    return tuple(
        Found(place=spec.name, holds=held_in(value, members(descriptor, spec.name)))
        for spec in descriptor.file_secrets
        if (value := secrets.get(spec.name))
    )


def members(descriptor: Descriptor, place: str) -> frozenset[str]:
    """Return the members that the descriptor asks for in a file."""
    sources = (source for source in descriptor.credentials if source.env is None and source.name == place)
    return frozenset(member for source in sources for member in source.holds)


def held_in(text: str, wanted: Collection[str]) -> frozenset[str]:
    """Return the members (`a.b`) of `wanted` that are filled in `text` (JSON or TOML), and `ANYTHING` if it
    has any content. An empty document has none."""
    if not text.strip():
        return frozenset()
    document = _document(text)
    if document is None:
        return frozenset({ANYTHING})
    if not document:
        return frozenset()
    return frozenset({ANYTHING, *(member for member in wanted if member_of(document, member))})


def member_of(document: Any, member: str) -> Any:
    """Return the value of a member (`a.b`) of a decoded document; None where it is absent."""
    for part in member.split("."):
        if not isinstance(document, Mapping):
            return None
        document = document.get(part)
    return document


def tokens_in(text: str) -> frozenset[str]:
    """Return the values inside a credential file (JSON or TOML) that must never be shown."""
    return frozenset(_tokens(_document(text), hidden=False))


def _tokens(value: Any, *, hidden: bool) -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _tokens(inner, hidden=hidden or any(word in name.lower() for word in TOKEN_WORDS))
    elif isinstance(value, list):
        for inner in value:
            yield from _tokens(inner, hidden=hidden)
    elif isinstance(value, str) and hidden:
        yield value


def _document(text: str) -> Any:
    """Return the decoded text; None when it is neither JSON nor TOML."""
    for decode in (json.loads, tomllib.loads):
        try:
            document = decode(text)
        except (ValueError, RecursionError):
            continue
        return document if document is not None else {}
    return None
