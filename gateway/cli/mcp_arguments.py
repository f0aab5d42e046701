"""The arguments of `ostler mcp`. The standard library alone: every `ostler --help` comes by here."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any, Final

MCP: Final = "mcp"

SUMMARY: Final = "manage the MCP servers whose tools agents can use"

EPILOG: Final = (
    "The servers are those of mcp.json in the state directory; agents get what is enabled when they start. "
    "A running server is not needed. Exit status: 0 done, 1 not found or failed, 2 called wrongly."
)

ADD_EXAMPLES: Final = """examples:
  ostler mcp add files --transport stdio npx -- -y @modelcontextprotocol/server-filesystem /srv
  ostler mcp add github --transport http https://mcp.example/gh --header 'Authorization: Bearer ${GH_TOKEN}'
  ostler mcp add tracker --transport http https://mcp.example/tracker --auth oauth
  ostler mcp add search --transport stdio --env API_KEY='${SEARCH_KEY}' --disabled search-server

${NAME} stands for a secret of that name (`ostler secrets set NAME`)."""


class McpParser(argparse.ArgumentParser):
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
        if self.prog.endswith(" add"):
            # Not one of the parser's own: it would be taken as absent where an option stands before it.
            namespace.target = more.pop(0) if more and not more[0].startswith("-") else None
        if more:
            self.error(
                f"unexpected: {' '.join(more)}"
                + ("; arguments of a command go behind --" if self.prog.endswith(" add") else "")
            )
        if rest is not None and not self.prog.endswith(" add"):
            self.error("nothing goes behind --")
        namespace.command_args = rest
        return namespace, []

    def error(self, message: str) -> Any:
        """Exit with status 2 and one line."""
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def add_mcp(add: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the command; `add` is `add_parser` of the `ostler` command's subparsers."""
    mcp = add(MCP, help=SUMMARY, description=f"{SUMMARY[0].upper()}{SUMMARY[1:]}.", epilog=EPILOG)
    actions = mcp.add_subparsers(dest="action", metavar="ACTION", required=True, parser_class=McpParser)

    def action(name: str, summary: str, **more: Any) -> argparse.ArgumentParser:
        parser = actions.add_parser(
            name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.", **more
        )
        parser.add_argument("--json", action="store_true", help="print JSON, for programs")
        parser.add_argument(
            "--state", metavar="DIR", help="the state directory (OSTLER_STATE; default ~/.ostler)"
        )
        return parser

    def named(name: str, summary: str) -> argparse.ArgumentParser:
        parser = action(name, summary, epilog=EPILOG)
        parser.add_argument("name", metavar="NAME", help="of the server")
        return parser

    def showing(parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--show-secrets", action="store_true", help="show the values of headers and variables"
        )

    showing(action("list", "list the servers and where each comes from", epilog=EPILOG))
    showing(named("get", "show one server"))
    named("remove", "remove a server from mcp.json")
    named("enable", "enable a server")
    named("disable", "disable a server; it stays in mcp.json")
    test = named("test", "connect to a server and list its tools")
    test.add_argument(
        "--timeout", metavar="SECONDS", type=_seconds, default=30.0, help="give up after so long (30)"
    )
    login = named("login", "log in to a server that wants OAuth")
    login.add_argument(
        "--no-browser", action="store_true", help="print the address, and ask for the one it leads to"
    )
    named("logout", "forget the login to a server")
    adding = action(
        "add",
        "add a server to mcp.json: TARGET is its URL (http, sse) or its command (stdio)",
        epilog=ADD_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="ostler mcp add NAME --transport TYPE [options] TARGET [-- ARGS...]",
    )
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


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= 120:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds up to 120")
    return seconds
