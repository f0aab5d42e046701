"""The `ostler` command. This module imports nothing at first: the process hides its keys before that."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

TYPE_CHECKING = False  # typing's own would have to be imported
if TYPE_CHECKING:
    import argparse
    from contextlib import ExitStack

    from gateway.cli.client import Server
    from supervisor.agents.containment.lifeline import Lifeline

FAILED = 1
BAD_INPUT = 2

INTERRUPTED = 130
"""128 and the number of SIGINT, as shells have it."""

PIPE_CLOSED = 141
"""128 and the number of SIGPIPE."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the exit status: 0 done, 1 failed, 2 bad input, 3 no server, 130 Ctrl-C.

    Without `argv` this process is the command's own: it hides itself from others of the user, and `serve` may
    make it the warden of servers.
    """
    try:
        if argv is None:
            from supervisor.agents.spawning.prctl import attachable, hide_from_peers

            # The keys are in this process's environment and memory, and agents are processes of the same
            # user.
            if not attachable():
                hide_from_peers()
        # Imported here and below, so that nothing takes time before, and --version and --help stay quick.
        from gateway.cli.parser import parse

        arguments = parse(None if argv is None else list(argv))
        if arguments.command == "serve":
            return _serve(arguments, ours=argv is None)
        return _run(arguments)
    except SystemExit:
        _flush()
        raise
    except BaseException as error:  # noqa: BLE001 - KeyboardInterrupt, and groups of it
        return _ended(error)


def _run(arguments: argparse.Namespace) -> int:
    """Run a command other than `serve`; the exit status."""
    from contextlib import ExitStack
    from importlib import import_module

    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by `>&-`
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
        stream = getattr(sys, name)
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal that lacks a character is not a reason to fail
    module, _, function = arguments.run.partition(":")
    run = getattr(import_module(f"gateway.cli.{module}"), function)
    with ExitStack() as stack:
        given = (_server(arguments, stack),) if arguments.remote else ()
        try:
            status: int | None = run(*given, arguments)
        except Exception as error:
            _blame_stranger(arguments, error)
            raise
        sys.stdout.flush()
    return status or 0


def _blame_stranger(arguments: argparse.Namespace, error: Exception) -> None:
    """Raise Foreign where the answers of another program broke a command, which is no bug of Ostler."""
    from gateway.cli.client import Server
    from gateway.cli.failures import Failure, first
    from gateway.configuration.parsing import ConfigError

    named = getattr(arguments, "url", None) or os.environ.get("OSTLER_URL")
    if not hasattr(arguments, "url") or isinstance(first(error), Failure | ConfigError | OSError):
        return
    server = Server.of(named, os.environ)
    if server.surely_foreign():
        raise server.foreign() from error


def _ended(error: BaseException) -> int:
    """Say in one line what ended a command; the exit status. A traceback is for `python -X dev`."""
    from gateway.cli.failures import BadInput, Failure, first
    from gateway.configuration.parsing import ConfigError

    error = first(error)
    _flush()
    if isinstance(error, KeyboardInterrupt):
        if sys.stderr is not None and sys.stderr.isatty():
            print(file=sys.stderr)  # the shell's prompt begins on a line of its own
        return INTERRUPTED
    if isinstance(error, BrokenPipeError):
        return PIPE_CLOSED
    if isinstance(error, Failure):
        return _fail(error, error.status)
    if isinstance(error, ConfigError):
        return _fail(error, BadInput.status)
    if isinstance(error, OSError):
        return _fail(error, FAILED)
    if sys.flags.dev_mode or not isinstance(error, Exception):
        raise error
    import traceback

    place = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{place.filename.rpartition('/')[2]}, line {place.lineno}"
    return _fail(f"this is a bug of Ostler: {type(error).__name__}: {error} ({where})", FAILED)


def _flush() -> None:
    """Write out what is left, or nothing at all, not even when the exit flushes: the reader of our output may
    have closed the pipe, the disk may be full."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _server(arguments: argparse.Namespace, stack: ExitStack) -> Server:
    """The server of a command; the stack ends one that was started for it. Raises Failure."""
    from gateway.cli.client import Server
    from gateway.cli.failures import Failure

    env: Mapping[str, str] = os.environ
    if arguments.alone and arguments.state is not None:
        from gateway.cli.locations import state_directory

        env = {**env, "OSTLER_STATE": str(state_directory(arguments.state, env))}
    named = arguments.url or env.get("OSTLER_URL")
    if arguments.alone and not named:
        try:
            server = Server.of(None, env)
            if server.is_ostler and server.serves(env):
                return server
        except Failure:
            pass  # what a name or a variable has wrong is found below, too
        # Only here: it imports Trio.
        from gateway.cli.talk.temporary import found_or_started

        return stack.enter_context(found_or_started(arguments, env, _note))
    return Server.of_state(arguments.url, env)


def _note(text: str) -> None:
    """For a person who waits; a script's standard error stays as it is."""
    if sys.stderr is not None and sys.stderr.isatty():
        print(text, file=sys.stderr)


def _serve(arguments: argparse.Namespace, *, ours: bool) -> int:
    from contextlib import suppress

    from gateway.configuration import keys
    from supervisor.agents.containment.lifeline import WardenGone

    variables = keys.take_variables(os.environ) if ours else {}
    lifeline: Lifeline | None = None
    try:
        warden = ours and _needs_warden(arguments)
    except ValueError as error:
        return _fail(error, BAD_INPUT)
    try:
        place = None
        if keys.JOIN_VARIABLE in os.environ or keys.JOIN_KEY_VARIABLE in variables:
            from gateway.configuration.joining import join

            place = join(os.environ, variables)
        place = place or keys.find(arguments.keys_fd, arguments.keys_file, os.environ)
        if warden:
            from supervisor.agents.containment.lifeline import become_warden

            with suppress(OSError):  # then it runs without one
                lifeline = become_warden()  # returns in each of the servers
        # Only now: keys that the warden never had in memory cannot be read from it.
        given = {**variables, **(place.read() if place is not None else {})}
    except keys.KeysError as error:
        return _fail(error, BAD_INPUT)
    except WardenGone as error:
        return _fail(error, FAILED)

    if ours:
        # Another process, whose interpreter starts while this one imports.
        from supervisor.agents.spawning.start import launch_ahead

        launch_ahead()
        # In the server, after the fork: the warden needs few descriptors.
        from supervisor.agents.spawning.descriptors import raise_limit

        raise_limit()
        from gateway.serving.start import collect_rarely, import_hypercorn, import_structlog

        collect_rarely()
        import_structlog()
        import_hypercorn()

    import attrs

    from gateway.configuration.config import load_config
    from gateway.configuration.parsing import ConfigError
    from supervisor.agents.containment.levels import LevelUnavailable, choose
    from supervisor.agents.limits.starting import obstacle

    try:
        config = load_config(
            {**os.environ, **given},
            host=arguments.host,
            port=arguments.port,
            state=arguments.state,
            containment=arguments.containment,
        )
        level = choose(config.containment, warden=lifeline is not None)
    except (ConfigError, LevelUnavailable) as error:
        return _fail(error, BAD_INPUT)
    unkept = obstacle(config.supervision.agent_limits, level)
    if unkept is not None:
        return _fail(unkept, BAD_INPUT)

    from gateway.serving.server import StartupError, run

    try:
        run(attrs.evolve(config, containment=level), lifeline, given)
    except (StartupError, WardenGone) as error:
        return _fail(error, FAILED)
    return 0


def _fail(error: object, status: int) -> int:
    from gateway.cli.text import folded, one_line, without_codes

    # Names and addresses are untrusted text.
    print(folded(f"ostler: {one_line(without_codes(str(error)))}", sys.stderr), file=sys.stderr)
    _flush()
    return status


def _needs_warden(arguments: argparse.Namespace) -> bool:
    """Raises ValueError where the variable is not a boolean."""
    from supervisor.agents.containment.lifeline import NO_WARDEN_VARIABLE, warden_possible
    from supervisor.switches import switched_on

    if switched_on(os.environ, NO_WARDEN_VARIABLE) or arguments.no_warden:
        return False
    containment = arguments.containment or os.environ.get("OSTLER_CONTAINMENT")
    return containment != "tree" and warden_possible()
