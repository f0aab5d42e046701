"""Composes an agent's environment from named inputs. Pure.

Of the server's own variables an agent gets only those that it needs to find programs, speak the user's
language and use proxies.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from supervisor.agents.catalog import Descriptor, Kind, load_catalog
from supervisor.agents.homes.credential import Choice, choose_credential, file_secret_names, in_file_secrets
from supervisor.switches import switched_on

MARKER = "OSTLER_AGENT"
"""The marker variable of every process of one agent incarnation, by which stray processes are found."""

PASSED_ON = frozenset(
    {
        "PATH", "HOME", "LANG", "LANGUAGE", "TERM", "COLORTERM", "TZ", "TMPDIR", "TMUX_TMPDIR",
        "USER", "LOGNAME", "SHELL",
        "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY",
        "http_proxy", "https_proxy", "all_proxy", "no_proxy",
        "SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE",
    }
)  # fmt: skip
"""Variables of the server that an agent sees."""

PASSED_ON_PREFIXES = ("LC_",)

XDG_PREFIX = "XDG_"
"""Passed only to an agent that uses the user's home: elsewhere they would point outside its data
directory."""

RESERVED_PREFIXES = ("OSTLER_", "OH_")
RESERVED = frozenset({"SESSION_API_KEY", "CLAUDECODE"})
"""Never given to an agent, not even as a secret.

The first is the server's own; by the second Claude Code refuses to nest.
"""

SANDBOX_DECLARATION = "OSTLER_SANDBOX"
"""Set to 1 by an operator whose machine exists for agents alone (a container, a virtual machine)."""


def base_environment(server_env: Mapping[str, str], *, isolated: bool) -> dict[str, str]:
    """Return the part of the server's environment that any child process may see."""
    prefixes = PASSED_ON_PREFIXES if isolated else (*PASSED_ON_PREFIXES, XDG_PREFIX)
    return {
        name: value for name, value in server_env.items() if name in PASSED_ON or name.startswith(prefixes)
    }


def needs_data_dir(descriptor: Descriptor, choice: Choice) -> bool:
    """Whether the agent uses a credential that belongs in a data directory.

    That is one that it reads from a file, or a key that it would write into the user's real home.
    """
    files = {spec.name for spec in descriptor.file_secrets}
    return any(
        credential.name in files
        or (descriptor.keeps_key and credential.kind is Kind.API_KEY and credential.name is not None)
        for credential in choice.credentials
    )


def compose_environment(
    *,
    server_env: Mapping[str, str],
    descriptor: Descriptor,
    secrets: Mapping[str, str],
    data_dir: Path | None,
    extra: Mapping[str, str],
    plain: Mapping[str, str] | None = None,
    home: Mapping[str, str] | None = None,
    path: Sequence[str] = (),
    catalog: Mapping[str, Descriptor] | None = None,
    choice: Choice | None = None,
    files: Collection[str] = (),
) -> dict[str, str]:
    """Return the complete environment of an agent.

    Later wins: what the server passes on, the descriptor's fixed variables, `secrets` (resolved values; empty
    ones count as absent), `home` (the variables of a separate home), `plain` (those of the settings), the
    data directory, `extra` (the caller's own). Of the credentials it has only those of `choice`, and those
    that `plain` names; without `choice` they are chosen as on a machine without a login. A base URL is put
    where the agent looks for it. `path` are directories to search before the server's PATH (see
    `Launch.path`). `catalog` says which credentials belong to other agents; the bundled one by default.
    `files` are secrets that the caller hands over as files, besides the descriptor's.

    Raises ValueError where OSTLER_SANDBOX is not a boolean.
    """
    given = {name: value for name, value in secrets.items() if value}
    if choice is None:
        choice = choose_credential(descriptor, dict.fromkeys(given, ""), in_file_secrets(descriptor, given))
    env = base_environment(server_env, isolated=data_dir is not None or bool(home))
    if data_dir is None:
        # A user who moved the agent's home keeps the login there, too.
        homes = (name for name in descriptor.data_dir_env if server_env.get(name))
        env.update({name: server_env[name] for name in homes if not _is_reserved(name)})
    env.update(descriptor.env)
    if switched_on(server_env, SANDBOX_DECLARATION):
        env.update(descriptor.sandbox_env)
    withheld = {*_withheld(descriptor, load_catalog() if catalog is None else catalog), *files}
    withheld |= choice.withheld_names
    env.update({name: value for name, value in given.items() if name not in withheld})
    env.update(home or {})
    env.update(plain or {})
    if data_dir is not None:
        for name, folder in descriptor.data_dir_env.items():
            env[name] = str(data_dir / folder)
        for spec in descriptor.file_secrets:
            if spec.env is not None and spec.name in choice.names:
                env[spec.env] = str(data_dir / spec.path)
    env.update(extra)
    for credential in choice.credentials:
        for name, value in credential.adds.items():
            wanted = env.get(value[1:], "") if value.startswith("$") else value
            if wanted and not env.get(name):
                env[name] = wanted
    owned = {*descriptor.data_dir_env, MARKER}
    env = {name: value for name, value in env.items() if name in owned or not _is_reserved(name)}
    _place_base_url(env, descriptor)
    if path:
        env["PATH"] = os.pathsep.join([*path, *filter(None, [env.get("PATH")])])
    return env


def concerning(
    descriptor: Descriptor, names: Iterable[str], catalog: Mapping[str, Descriptor] | None = None
) -> frozenset[str]:
    """Return which of these secrets the agent could get, as a variable or as a file."""
    withheld = _withheld(descriptor, load_catalog() if catalog is None else catalog)
    files = {spec.name for spec in descriptor.file_secrets}
    return frozenset(
        name for name in names if not _is_reserved(name) and (name in files or name not in withheld)
    )


def _is_reserved(name: str) -> bool:
    return name in RESERVED or name.startswith(RESERVED_PREFIXES)


def _withheld(descriptor: Descriptor, catalog: Mapping[str, Descriptor]) -> Collection[str]:
    """Return the secrets that this agent does not get: they are read from files, or only by other agents."""
    withheld = set(file_secret_names({**catalog, descriptor.key: descriptor}))
    if not descriptor.all_secrets:
        for other in catalog.values():
            withheld.update(other.secret_env)
        withheld.difference_update(descriptor.secret_env)
    return withheld


def _place_base_url(env: dict[str, str], descriptor: Descriptor) -> None:
    url = env.get(descriptor.base_url_env or "")
    if not url:
        return
    if descriptor.base_url_alias is not None:
        env.setdefault(descriptor.base_url_alias, url)
    config = descriptor.base_url_config
    if config is None or any(env.get(name) for name in config.unless_env):
        return
    try:
        document = json.loads(env.get(config.variable) or "{}")
    except ValueError:
        return  # invalid, left as it is: the agent reports its own configuration best
    if isinstance(document, dict) and not any(name in document for name in config.unless_properties):
        env[config.variable] = json.dumps({**document, config.property: url})
