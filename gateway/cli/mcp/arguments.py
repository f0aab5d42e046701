"""The arguments of `ostler mcp`. The standard library alone: every `ostler --help` imports this module."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final, NoReturn

from gateway.cli.arguments import CLIENTS, STATE, Commands, option, seconds
from gateway.cli.suggest import Suggesting, did_you_mean, options_of

MCP: Final = "mcp"

EPILOG: Final = (
    "The command works on mcp.json in the state directory; an agent gets the enabled servers when it starts. "
    "A running Ostler server is not required. Exit status: 0 done, 1 not found or failed, 2 usage error."
)

QUOTED: Final = "In single quotes, ${NAME} stands for a secret of that name (`ostler secrets set NAME`). "

ADD_EPILOG: Final = (
    "TARGET is the URL of the server; a command follows after --. The transport is stdio for a command, "
    "http for a URL, sse for one that ends with /sse. "
    f"{QUOTED}{EPILOG}"
)

IMPORT_EPILOG: Final = (
    "Read are .mcp.json, .vscode/mcp.json and .cursor/mcp.json of this directory, and the files of Claude "
    "Code, Claude Desktop, Cursor and VS Code in the home. Without NAME and --all the command asks. Servers "
    "that mcp.json has stay as they are. ${NAME}, ${env:NAME} and ${input:name} become secrets. "
) + EPILOG

NOT_HERE: Final[Mapping[str, str]] = {
    "--client-id": "write the client into JSON: `ostler mcp add-json`, docs/mcp.md",
    "--client-secret": "write the client into JSON: `ostler mcp add-json`, docs/mcp.md",
    "--callback-port": "the login chooses a free port, and takes a pasted address",
}
"""Options of `claude mcp add` that `ostler mcp add` has not, and what to do."""

SECRETS_EPILOG: Final = (
    "Without --show-secrets, values of headers, variables and other possible secrets are hidden. "
) + EPILOG

KEY_EPILOG: Final = (
    "Encrypted values require the server's master key: if the server has OSTLER_KEYS_FILE or "
    "OSTLER_MASTER_KEY, give the command the same. "
) + EPILOG


class McpParser(Suggesting):
    """Passes the arguments after `--` on unchanged, as the command to add; refuses other unknown
    arguments."""

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str], namespace: argparse.Namespace
    ) -> tuple[argparse.Namespace, list[str]]:
        """Split at the first `--`; `command_args` is None where there is none."""
        given = list(args)
        rest: list[str] | None = None
        if "--" in given:
            at = given.index("--")
            given, rest = given[:at], given[at + 1 :]
        namespace, more = super().parse_known_args(given, namespace)
        if self._adds:
            # Not one of the parser's own: it would be taken as absent where an option stands before it.
            namespace.target = more.pop(0) if more and not more[0].startswith("-") else None
        if more:
            self._refuse(more)
        if rest is not None and not self._adds:
            self.error("this command takes no arguments after --")
        namespace.command_args = rest
        return namespace, []

    @property
    def _adds(self) -> bool:
        return self.prog.endswith(" add")

    def _refuse(self, more: Sequence[str]) -> NoReturn:
        """Report unknown arguments. Words after an unknown option are not repeated: one may be the value of a
        header."""
        if self.prog.endswith(" add-json"):
            self.error("JSON must be one argument: put it into single quotes")
        options = [word.split("=")[0] for word in more if word.startswith("-")]
        if options and (advice := NOT_HERE.get(options[0])) and self._adds:
            self.error(f"there is no {options[0]}: {advice}")
        if options:
            hint = did_you_mean(options[0], options_of(self))
            text = f"unrecognized arguments: {' '.join(options)}{hint}"
        else:
            text = f"unexpected: {' '.join(word.split('=')[0] for word in more)}"
            hint = ""
        self.error(text + ("; arguments of a command follow after --" if self._adds and not hint else ""))


NAME: Final = option("name NAME", "name of the server")
NEW_NAME: Final = option("name NAME", "name of the server: letters, digits, dots, dashes, underscores")
SHOW_SECRETS: Final = option("--show-secrets", "show the values of headers and variables")


def add_mcp(commands: Commands) -> None:
    """Add the command."""
    group = commands.group(
        MCP,
        "manage the MCP servers whose tools agents can use",
        [
            "ostler mcp list",
            "ostler mcp add files -- npx -y @modelcontextprotocol/server-filesystem /srv",
            "ostler mcp import",
            "ostler mcp login tracker",
        ],
        "mcp.mcp",
        epilog=EPILOG,
        parser_class=McpParser,
    )
    add = partial(group.add, epilog=EPILOG, remote=False)
    add(
        "list",
        "list the servers, where each comes from, and which are not used",
        ["ostler mcp list", "ostler mcp list --json | jq -r '.servers[].name'"],
        STATE,
        SHOW_SECRETS,
        epilog=SECRETS_EPILOG,
    )
    add("get", "show one server", ["ostler mcp get files"], STATE, NAME, SHOW_SECRETS, epilog=SECRETS_EPILOG)
    adding = add(
        "add",
        "add a server to mcp.json",
        [
            "ostler mcp add files -- npx -y @modelcontextprotocol/server-filesystem /srv",
            "ostler mcp add github https://mcp.example/gh \\\n"
            "      --header 'Authorization: Bearer ${GH_TOKEN}'",
            "ostler mcp add tracker https://mcp.example/tracker --auth oauth",
            "ostler mcp add search --env 'API_KEY=${SEARCH_KEY}' --disabled -- search-server",
        ],
        STATE,
        NEW_NAME,
        option("-t --transport TYPE", "http, sse or stdio (default: what the target implies)"),
        option(
            "-H --header",
            "header of each request, for http and sse; repeatable",
            metavar="'Key: Value'",
            action="append",
            default=[],
        ),
        option(
            "-e --env KEY=value",
            "environment variable of the command, for stdio; repeatable",
            action="append",
            default=[],
        ),
        option("-s --scope SCOPE", "only user, which is the default: all conversations"),
        option("--auth METHOD", "how to log in, for http and sse: oauth"),
        option("--enabled", "add it enabled (default)"),
        option("--disabled", "add it disabled"),
        epilog=ADD_EPILOG,
    )
    adding.usage = "ostler mcp add NAME [options] URL, or ostler mcp add NAME [options] -- COMMAND [ARGS...]"
    add(
        "add-json",
        "add a server as other clients write it in JSON",
        [
            """ostler mcp add-json files '{"command": "npx", "args": ["-y", "some-server"]}'""",
            """ostler mcp add-json web '{"type": "http", "url": "https://mcp.example/x"}'""",
        ],
        STATE,
        NEW_NAME,
        option("text JSON", "the object of the server, in single quotes"),
        run="mcp.mcp:add_json",
        epilog=QUOTED + EPILOG,
    )
    add(
        "import",
        "take servers over from Claude, Cursor, VS Code or a project's .mcp.json",
        [
            "ostler mcp import",
            "ostler mcp import github files",
            "ostler mcp import --all --from cursor",
            "ostler mcp import --from ~/project/.mcp.json",
        ],
        STATE,
        option("names NAME", "servers to import (default: the command asks)", nargs="*"),
        option("--all", "import all that mcp.json does not have"),
        option("--from CLIENT", f"look only there: {', '.join(CLIENTS)}, or a path", dest="origin"),
        run="mcp.importing:run",
        epilog=IMPORT_EPILOG,
    )
    add("remove", "remove a server from mcp.json", ["ostler mcp remove files"], STATE, NAME)
    for name, summary in (
        ("enable", "enable a server of mcp.json"),
        ("disable", "disable a server; it stays in mcp.json"),
    ):
        add(name, summary, [f"ostler mcp {name} files"], STATE, NAME, run="mcp.mcp:switch_server")
    add(
        "test",
        "connect to a server and list its tools, or tell what to check",
        ["ostler mcp test files", "ostler mcp test tracker --timeout 10 --json"],
        STATE,
        NAME,
        option(
            "--timeout SECONDS", "give up after this time (default 30)", type=seconds(most=120), default=30.0
        ),
        run="mcp.connect:run",
        epilog=KEY_EPILOG,
    )
    add(
        "login",
        "log in to a server that requires OAuth",
        ["ostler mcp login tracker", "ostler mcp login tracker --no-browser"],
        STATE,
        NAME,
        option("--no-browser", "print the address to open, and ask for the address that the browser ends at"),
        run="mcp.connect:run",
        epilog=KEY_EPILOG,
    )
    add(
        "logout",
        "forget the login to a server",
        ["ostler mcp logout tracker"],
        STATE,
        NAME,
        run="mcp.connect:run",
        epilog=KEY_EPILOG,
    )
