"""The arguments of `ostler mcp`. The standard library alone: every `ostler --help` comes by here."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, Final, NoReturn

from gateway.cli.arguments import Add, actions_of, command, group, json_option
from gateway.cli.suggest import Suggesting, did_you_mean, options_of

MCP: Final = "mcp"

EPILOG: Final = (
    "The servers are those of mcp.json in the state directory; agents get what is enabled when they start. "
    "No running server is needed. Exit status: 0 done, 1 not found or failed, 2 called wrongly."
)

ADD_EPILOG: Final = (
    "TARGET is the URL of the server (http, sse) or its command (stdio), whose arguments go behind --. "
    "${NAME} stands for a secret of that name (`ostler secrets set NAME`). "
) + EPILOG

SECRETS_EPILOG: Final = (
    "Values of headers and variables, and what else may be secret, are hidden without --show-secrets. "
) + EPILOG

KEY_EPILOG: Final = (
    "What is encrypted needs the server's master key: give the command the same OSTLER_KEYS_FILE or "
    "OSTLER_MASTER_KEY, where it has one. "
) + EPILOG


class McpParser(Suggesting):
    """Takes what follows `--` as it is, for the command that is added; refuses what else it does not know."""

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
            self.error("nothing goes behind --")
        namespace.command_args = rest
        return namespace, []

    @property
    def _adds(self) -> bool:
        return self.prog.endswith(" add")

    def _refuse(self, more: Sequence[str]) -> NoReturn:
        """Say what is not known. Of words that follow an unknown option nothing is repeated: one may be the
        value of a header."""
        options = [word.split("=")[0] for word in more if word.startswith("-")]
        if options:
            hint = did_you_mean(options[0], options_of(self))
            text = f"unrecognized arguments: {' '.join(options)}{hint}"
        else:
            text = f"unexpected: {' '.join(more)}"
            hint = ""
        self.error(text + ("; arguments of a command go behind --" if self._adds and not hint else ""))


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
        "list the servers, where each comes from, and what does not count",
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
        "--timeout", metavar="SECONDS", type=_seconds, default=30.0, help="give up after so long (default 30)"
    )
    login = _named(
        actions,
        "login",
        "log in to a server that requires OAuth",
        ["ostler mcp login tracker", "ostler mcp login tracker --no-browser"],
        epilog=KEY_EPILOG,
    )
    login.add_argument(
        "--no-browser", action="store_true", help="print the address, and ask for the one it leads to"
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
        "name", metavar="NAME", help="of the server: letters, digits, dots, dashes, underscores"
    )
    adding.add_argument("--transport", metavar="TYPE", help="http, sse or stdio; required")
    adding.add_argument(
        "--header", metavar="'Key: Value'", action="append", default=[], help="for http and sse; repeatable"
    )
    adding.add_argument(
        "--env", metavar="KEY=value", action="append", default=[], help="for stdio; repeatable"
    )
    adding.add_argument("--auth", metavar="METHOD", help="for http and sse: oauth")
    adding.add_argument("--enabled", action="store_true", help="enable it at once (default)")
    adding.add_argument("--disabled", action="store_true", help="add it, but do not enable it")


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
    parser.add_argument("name", metavar="NAME", help="of the server")
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
