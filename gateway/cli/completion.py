"""`ostler completion`: shell scripts that complete commands, options and ids.

The scripts call `ostler completion SHELL -- WORDS...`, which prints a line for each candidate: the word, a
tab, and a description. So there is one implementation, and the scripts never become outdated.
"""

from __future__ import annotations

import argparse
import os
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from gateway.cli.agents.names import known_agents
from gateway.cli.arguments import HELP, SHORT, expanded
from gateway.cli.client import Server
from gateway.cli.failures import BadInput, Failure
from gateway.cli.locations import state_directory
from gateway.cli.operate.which import WAITING
from gateway.cli.suggest import did_you_mean, main_names, subparsers_of
from gateway.cli.text import one_line

SECONDS: Final = 2.0
"""For the server's answer: a person has pressed a key."""

IDS: Final = 100
"""Conversations that are offered, the one changed last first."""

MCP_CHANGES: Final[Mapping[str, bool | None]] = {"remove": None, "enable": False, "disable": True}
"""Actions of `ostler mcp` that change mcp.json, and whether their servers are enabled (None: any)."""

Candidate = tuple[str, str]

BASH: Final = r"""# ostler: completion for bash. In ~/.bashrc: eval "$(ostler completion bash)"
_ostler() {
    local word rest
    COMPREPLY=()
    while IFS=$'\t' read -r word rest; do
        COMPREPLY+=("$word")
    done < <("${COMP_WORDS[0]}" completion bash -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
    if [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == */ ]]; then
        compopt -o nospace 2>/dev/null
    fi
}
complete -F _ostler ostler
"""

ZSH: Final = r"""#compdef ostler
# ostler: completion for zsh. In ~/.zshrc, after compinit: eval "$(ostler completion zsh)"
_ostler() {
    local -a described
    local word rest
    while IFS=$'\t' read -r word rest; do
        described+=("${word//:/\\:}${rest:+:$rest}")
    done < <("${words[1]}" completion zsh -- "${(@)words[2,CURRENT]}" 2>/dev/null)
    _describe -V ostler described
}
compdef _ostler ostler
"""

FISH: Final = r"""# ostler: completion for fish. Make its directory, and write it there:
# mkdir -p ~/.config/fish/completions
# ostler completion fish > ~/.config/fish/completions/ostler.fish
function __ostler_complete
    set -l tokens (commandline -opc) (commandline -ct)
    $tokens[1] completion fish -- $tokens[2..-1] 2>/dev/null
end
complete -c ostler -f -k -a '(__ostler_complete)'
"""

SCRIPTS: Final = {"bash": BASH, "zsh": ZSH, "fish": FISH}


def run(arguments: Namespace) -> None:
    """Print the script, or, with words, the candidates for the last one. Raises BadInput."""
    if not arguments.words:
        if arguments.shell not in SCRIPTS:
            hint = did_you_mean(arguments.shell or "", SCRIPTS)
            raise BadInput(f"give a shell: bash, zsh or fish{hint}")
        print(SCRIPTS[arguments.shell], end="")
        return
    for word, summary in candidates(arguments.parser, arguments.words):
        print(f"{word}\t{one_line(summary)}" if summary else word)


def candidates(parser: argparse.ArgumentParser, words: list[str]) -> Iterator[Candidate]:
    """The candidates for the last word. The words are those after `ostler`."""
    *before, current = words
    if current and not before:
        yield from ((word, "") for word in (HELP, *SHORT) if word.startswith(current))
    before = before[1:] if before[:1] == [HELP] else expanded(before)
    joined = ""
    if current == "=":  # bash cuts words there
        current = ""
    elif current.startswith("--") and "=" in current:
        option, _, current = current.partition("=")
        before.append(option)
        joined = f"{option}="
    chosen: list[str] = []
    given: dict[str, str] = {}
    expecting: argparse.Action | None = None
    place = 0
    for word in before:
        if expecting is not None:
            if word == "=":
                continue
            given[expecting.dest] = word
            expecting = None
        elif word.startswith("-") and word != "-":
            takes_value = (action for action in parser._actions if action.nargs in (None, 1))
            expecting = next((action for action in takes_value if word in action.option_strings), None)
        else:
            below = subparsers_of(parser)
            if below is None:
                for positional in _positionals(parser)[place : place + 1]:
                    given[positional.dest] = word
                place += 1
            elif word in below.choices:
                parser = below.choices[word]
                chosen.append(parser.prog.rpartition(" ")[2])
                place = 0
            else:
                return
    for word, summary in _offered(parser, chosen, expecting, place, current, given):
        if word.startswith(current):
            yield f"{joined}{word}", summary


def _offered(
    parser: argparse.ArgumentParser,
    chosen: list[str],
    expecting: argparse.Action | None,
    place: int,
    current: str,
    given: Mapping[str, str],
) -> Iterable[Candidate]:
    if expecting is not None:
        return _values(chosen, expecting, current, given)
    if current.startswith("-"):
        return _options(parser)
    below = subparsers_of(parser)
    if below is not None:
        summaries = {action.dest: action.help or "" for action in below._choices_actions}
        names = list(below.choices) if current else main_names(list(below.choices))
        return [(name, summaries.get(name, "")) for name in names]
    positionals = _positionals(parser)
    if place < len(positionals):
        return _values(chosen, positionals[place], current, given)
    if positionals and positionals[-1].nargs in ("*", "+"):
        return _values(chosen, positionals[-1], current, given)
    return ()


def _positionals(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    return [action for action in parser._actions if not action.option_strings]


def _options(parser: argparse.ArgumentParser) -> Iterator[Candidate]:
    for action in parser._actions:
        long = [spelling for spelling in action.option_strings if spelling.startswith("--")]
        if action.option_strings and action.help is not argparse.SUPPRESS:
            yield (long or action.option_strings)[0], action.help or ""


def _values(
    chosen: list[str], action: argparse.Action, current: str, given: Mapping[str, str]
) -> Iterable[Candidate]:
    if action.choices is not None:
        return [(str(choice), "") for choice in action.choices]
    if chosen[:1] == ["completion"]:
        return [(shell, "") for shell in SCRIPTS]
    if action.dest == "containment":
        from supervisor.agents.containment.levels import AUTO, Level

        return [(level, "") for level in (AUTO, *Level)]
    if action.dest in ("cwd", "state", "output"):
        return _paths(current, directories=action.dest != "output")
    if action.dest in ("id", "ids", "resume"):
        path = f"/api/conversations/search?limit={IDS}&sort_order=UPDATED_AT_DESC"
        if chosen[:1] in (["approve"], ["deny"]):
            path += f"&status={WAITING}"
        return _ask(given, path, lambda found: [(each["id"], each["title"] or "") for each in found["items"]])
    of_setting = action.dest == "value" and given.get("key") == "acp_server"
    if action.dest == "agent" or chosen[:1] == ["agents"] or of_setting:
        return [(name, "") for name in known_agents()]
    if chosen[:1] == ["settings"] and action.dest == "key":
        return _ask(given, "/api/settings", lambda found: [(name, "") for name in found["agent_settings"]])
    if chosen[:1] == ["mcp"]:
        from gateway.cli.arguments import CLIENTS
        from gateway.cli.mcp.add import METHODS, TRANSPORTS, USER

        fixed = {"transport": TRANSPORTS, "auth": METHODS, "origin": CLIENTS, "scope": (USER,)}
        if action.dest in fixed:
            return [(value, "") for value in fixed[action.dest]]
        if action.dest == "names":
            return _importable(given)
        known = action.dest == "name" and not chosen[1].startswith("add")
        return _mcp_servers(chosen[1], given) if known else ()
    if chosen == ["secrets", "unset"]:
        return _ask(
            given,
            "/api/secrets",
            lambda found: [(each["name"], each["description"] or "") for each in found["secrets"]],
        )
    return ()


def _paths(current: str, *, directories: bool) -> Iterator[Candidate]:
    folder, _, beginning = current.rpartition("/")
    shown = f"{folder}/" if "/" in current else ""
    try:
        found = sorted(Path(os.path.expanduser(shown or ".")).iterdir())  # noqa: PTH111 - `/` at the end stays
    except (OSError, RuntimeError):
        return
    for path in found:
        if not path.name.startswith(beginning) or (path.name.startswith(".") and not beginning):
            continue
        if path.is_dir():
            yield f"{shown}{path.name}/", ""
        elif not directories:
            yield f"{shown}{path.name}", ""


def _mcp_servers(action: str, given: Mapping[str, str]) -> list[Candidate]:
    """The servers that the action can be about, from the files; nothing where they are broken."""
    from gateway.cli.mcp.servers import FILE, file_of, found

    try:
        servers, _ = found(file_of(state_directory(given.get("state"), os.environ)))
    except (Failure, OSError):
        return []
    changing = action in MCP_CHANGES
    names = {
        each.name: each.transport or each.state
        for each in servers
        if not changing or (each.source == FILE and MCP_CHANGES[action] in (None, each.enabled))
    }
    return list(names.items())


def _importable(given: Mapping[str, str]) -> list[Candidate]:
    """The servers of other clients that `ostler mcp import` can add; nothing where mcp.json is broken."""
    from gateway.cli.mcp.importing import importable

    try:
        return importable(state_directory(given.get("state"), os.environ), given.get("origin"))
    except (Failure, OSError):
        return []


def _ask(given: Mapping[str, str], path: str, read: Callable[[Any], list[Candidate]]) -> list[Candidate]:
    """What a server knows; nothing when there is none."""
    try:
        env = {**os.environ, "OSTLER_STATE": given["state"]} if "state" in given else os.environ
        return read(Server.of(given.get("url"), env).call("GET", path, seconds=SECONDS))
    except Failure:
        return []
