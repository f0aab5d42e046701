"""The program as a parent: it imports the SDK once, and forks a process for each conversation.

    python DIRECTORY/parent.py ARGUMENTS... SERVER SPAWNER

Started by `supervisor.agents.spawning.forker` with a channel as its standard input, on which it takes the
requests of spawner.py (the file SPAWNER, for the server with the process id SERVER). Each fork is the
server's child with its own session, tag, marker, environment, streams and directory, as if an exec had
started it. It runs the program, and shares the memory of the imports with its siblings. Nothing of a
conversation enters the parent itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import importlib.util
import os
import signal
import sys
import traceback
from pathlib import Path
from socket import socket
from types import ModuleType
from typing import Any, NoReturn

HERE = Path(__file__).resolve().parent

FIRST_TURN = (
    "anyio._backends._asyncio",
    "h11",
    "h2.connection",
    "httpcore",
    "litellm._service_logger",
    "litellm.litellm_core_utils.default_encoding",
    "litellm.llms.litellm_proxy.chat.transformation",
    "litellm.llms.openai.chat.gpt_audio_transformation",
    "litellm.llms.openai_like.dynamic_config",
    "litellm.llms.vertex_ai.vertex_ai_partner_models.anthropic.transformation",
    "litellm.proxy._experimental.mcp_server.utils",
    "litellm.proxy.openai_files_endpoints.common_utils",
    "litellm.responses.mcp.chat_completions_handler",
    "litellm.types.litellm_core_utils.streaming_chunk_builder_utils",
    "openai.resources",
    "openhands.sdk.llm.provider_connection_store",
    "tiktoken.load",
    "tiktoken_ext.openai_public",
)
"""Modules that the first turn would import again in each process: 100 MB and a second. Missing ones are
skipped."""

ENV_START, ENV_END = 50, 51
"""Fields of /proc/self/stat (proc(5)): the addresses of the exec's environment in memory."""


def main() -> int:
    """Serve the server until it closes the channel."""
    server, spawner_file = int(sys.argv[-2]), sys.argv[-1]
    channel = socket(fileno=os.dup(0))
    os.set_inheritable(channel.fileno(), False)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    program = load()
    for name, value in program.QUIET.items():
        os.environ.setdefault(name, value)
    program._import_sdk()
    for name in FIRST_TURN:
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    threads = len(list(Path("/proc/self/task").iterdir()))
    if threads != 1:
        # A fork has only the forking thread: a lock that another thread held would stay locked.
        print(f"{threads} threads run after the imports; forks need one", file=sys.stderr)
        return 1
    spawner = _module("ostler_spawner", spawner_file)

    def become(argv: list[bytes], env: dict[bytes, bytes], path: list[bytes]) -> NoReturn:
        # This program's own arguments: every fork that is requested here runs the same program.
        _continue(program, [str(HERE), *sys.argv[1:-2]], env)

    spawner.become_program = become  # type: ignore[attr-defined]
    # Exempt what is there now from collection, which would touch, and so copy, the pages in every fork.
    # Reference counts still do: a fork has 46 MB of its own where 24 would do (docs/decisions/0008).
    gc.collect()
    gc.freeze()
    channel.send(spawner.READY)
    spawner.serve(channel, server)
    return 0


def _continue(program: ModuleType, arguments: list[str], env: dict[bytes, bytes]) -> NoReturn:
    """Run the program in a fork. Streams, directory, session and tag are set already."""
    status = 1
    try:
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_IGN)  # Python's default
        for each in list(Path("/proc/self/fd").iterdir()):
            if int(each.name) > 2:  # closing the channel reports to the server that the start is complete
                with contextlib.suppress(OSError):
                    os.close(int(each.name))
        _show(env)
        os.environb.clear()
        os.environb.update(env)
        sys.argv = arguments
        status = program.main() or 0
    except SystemExit as ending:
        status = ending.code if isinstance(ending.code, int) else 1
    except BaseException:  # noqa: BLE001 - the interpreter's own end would run the parent's
        traceback.print_exc()
    finally:
        os._exit(status)


def _show(env: dict[bytes, bytes]) -> None:
    """Overwrite the values that differ in the environment that other processes see (/proc/PID/environ), where
    they have the same length, as the marker has. The visible environment is that of the parent's exec."""
    fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
    start, end = int(fields[ENV_START - 3]), int(fields[ENV_END - 3])
    block = ctypes.string_at(start, end - start)
    at = 0
    for entry in block.split(b"\0"):
        name, equals, old = entry.partition(b"=")
        new = env.get(name)
        if equals and new is not None and new != old and len(new) == len(old):
            ctypes.memmove(start + at + len(name) + 1, new, len(new))
        at += len(entry) + 1


def load() -> Any:
    """Load the program of this directory, as `__main__` does."""
    return _module("ostler_builtin_main", str(HERE / "__main__.py")).load()


def _module(name: str, path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a module")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    sys.exit(main())
