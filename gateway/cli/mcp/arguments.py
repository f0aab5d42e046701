"""The arguments of `ostler mcp`. The standard library alone: every `ostler --help` imports this module."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, Final, NoReturn

from gateway.cli.arguments import Add, actions_of, command, group, json_option
from gateway.cli.suggest import Suggesting, did_you_mean, options_of

MCP: Final = "mcp"

EPILOG: Final = (
    "The command works on mcp.json in the state directory; an agent gets the enabled servers when it starts. "
    "A running Ostler server is not required. Exit status: 0 done, 1 not found or failed, 2 usage error."
)

ADD_EPILOG: Final = (
    "TARGET is the URL of the server (http, sse) or its command (stdio), whose arguments follow after --. "
    "${NAME} stands for a secret of that name (`ostler secrets set NAME`). "
) + EPILOG

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
        options = [word.split("=")[0] for word in more if word.startswith("-")]
        if options:
            hint = did_you_mean(options[0], options_of(self))
            text = f"unrecognized arguments: {' '.join(options)}{hint}"
        else:
            text = f"unexpected: {' '.join(more)}"
            hint = ""
        self.error(text + ("; arguments of a command follow after --" if self._adds and not hint else ""))


def add_mcp(add: Add) -> None:
    """Add the command; `add` is `add_parser` of the `ostler` command's subparsers."""
    actions = actions_of(
        group(
            add,
            MCP,
            "manage the MCP servers whose tools agents can use",
            [
                "ostler mcp list",
                "ostler mcp add tracker --transport http https://mcp.example/tracker --auth oauth",
                "ostler mcp login tracker",
            ],
            epilog=EPILOG,
        ),
        McpParser,
    )
    listing = _action(
        actions,
        "list",
        "list the servers, where each comes from, and which are not used",
        ["ostler mcp list", "ostler mcp list --json | jq -r '.servers[].name'"],
        epilog=SECRETS_EPILOG,
    )
    _showing(listing)
    _showing(_named(actions, "get", "show one server", ["ostler mcp get files"], epilog=SECRETS_EPILOG))
    _add_add(actions)
    _named(actions, "remove", "remove a server from mcp.json", ["ostler mcp remove files"])
    _named(actions, "enable", "enable a server of mcp.json", ["ostler mcp enable files"])
    _named(actions, "disable", "disable a server; it stays in mcp.json", ["ostler mcp disable files"])
    test = _named(
        actions,
        "test",
        "connect to a server and list its tools, or tell what to check",
        ["ostler mcp test files", "ostler mcp test tracker --timeout 10 --json"],
        epilog=KEY_EPILOG,
    )
    test.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=_seconds,
        default=30.0,
        help="give up after this time (default 30)",
    )
    login = _named(
        actions,
        "login",
        "log in to a server that requires OAuth",
        ["ostler mcp login tracker", "ostler mcp login tracker --no-browser"],
        epilog=KEY_EPILOG,
    )
    login.add_argument(
        "--no-browser",
        action="store_true",
        help="print the address to open, and ask for the address that the browser ends at",
    )
    _named(
        actions, "logout", "forget the login to a server", ["ostler mcp logout tracker"], epilog=KEY_EPILOG
    )


def _add_add(actions: Add) -> None:
    adding = _action(
        actions,
        "add",
        "add a server to mcp.json",
        [
            "ostler mcp add files --transport stdio npx -- -y @modelcontextprotocol/server-filesystem /srv",
            "ostler mcp add github --transport http https://mcp.example/gh \\\n"
            "      --header 'Authorization: Bearer ${GH_TOKEN}'",
            "ostler mcp add tracker --transport http https://mcp.example/tracker --auth oauth",
            "ostler mcp add search --transport stdio --env API_KEY='${SEARCH_KEY}' --disabled search-server",
        ],
        epilog=ADD_EPILOG,
    )
    adding.usage = "ostler mcp add NAME --transport TYPE [options] TARGET [-- ARGS...]"
    adding.add_argument(
        "name", metavar="NAME", help="name of the server: letters, digits, dots, dashes, underscores"
    )
    adding.add_argument("--transport", metavar="TYPE", help="http, sse or stdio; required")
    adding.add_argument(
        "--header",
        metavar="'Key: Value'",
        action="append",
        default=[],
        help="header of each request, for http and sse; repeatable",
    )
    adding.add_argument(
        "--env",
        metavar="KEY=value",
        action="append",
        default=[],
        help="environment variable of the command, for stdio; repeatable",
    )
    adding.add_argument("--auth", metavar="METHOD", help="how to log in, for http and sse: oauth")
    adding.add_argument("--enabled", action="store_true", help="add it enabled (default)")
    adding.add_argument("--disabled", action="store_true", help="add it disabled")


def _action(
    actions: Add, name: str, summary: str, examples: Sequence[str], *, epilog: str = EPILOG
) -> argparse.ArgumentParser:
    parser = command(actions, name, summary, examples, epilog=epilog, remote=False)
    json_option(parser)
    parser.add_argument(
        "--state", metavar="DIR", help="the state directory (OSTLER_STATE; default ~/.ostler)"
    )
    return parser


def _named(
    actions: Add, name: str, summary: str, examples: Sequence[str], **more: Any
) -> argparse.ArgumentParser:
    parser = _action(actions, name, summary, examples, **more)
    parser.add_argument("name", metavar="NAME", help="name of the server")
    return parser


def _showing(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--show-secrets", action="store_true", help="show the values of headers and variables"
    )


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= 120:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds up to 120")
    return seconds
