"""Commands as processes of their own, without the start of an interpreter: each is a fork of one that has
imported what commands import. Run as a module, it reads a command as a line of JSON and answers its status.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

Accident = Literal["none", "full disk", "Ctrl-C"]


class Forks:
    """The process that forks. Close it."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.forked"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )

    def run(
        self, arguments: list[str], environment: Mapping[str, str], cwd: Path, accident: Accident = "none"
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end, with nothing on its standard input.

        With a full disk no file can grow, and standard output takes nothing. Ctrl-C comes when the
        command's own function begins.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with tempfile.TemporaryDirectory() as directory:
            job = [arguments, dict(environment), str(cwd), directory, accident]
            self._process.stdin.write(json.dumps(job) + "\n")
            self._process.stdin.flush()
            status = int(self._process.stdout.readline())
            out, err = (
                path.read_text() if (path := Path(directory, name)).exists() else ""
                for name in ("out", "err")
            )
        return subprocess.CompletedProcess(arguments, status, out, err)

    def close(self) -> None:
        self._process.communicate()


def _child(
    arguments: list[str], environment: dict[str, str], cwd: str, directory: str, accident: Accident
) -> Any:
    from gateway.cli import main

    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    for number, name in enumerate(("in", "out", "err")):
        path = "/dev/full" if name == "out" and accident == "full disk" else os.path.join(directory, name)
        os.dup2(os.open(path, os.O_RDWR | os.O_CREAT), number)
    err = os.open(os.path.join(directory, "err"), os.O_RDWR)
    if accident == "full disk":
        # A pipe takes what goes to standard error: no file can grow.
        read, write = os.pipe()
        os.dup2(write, 2)
        os.close(write)
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    if accident == "Ctrl-C":
        _interrupt_at(arguments)
    try:
        status = main(arguments)
        sys.stdout.flush()  # as the end of an interpreter would
        return status
    finally:
        if accident == "full disk":
            sys.stderr.flush()
            os.close(2)
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            os.write(err, os.read(read, 65536))


def _interrupt_at(arguments: list[str]) -> None:
    """Press Ctrl-C when the function of the command begins."""
    from gateway.cli.parser import parse

    parsed = parse(arguments)
    run = "__init__:_serve" if parsed.command == "serve" else parsed.run
    module, _, function = run.partition(":")
    file = f"cli/{module.replace('.', '/')}.py"

    def profile(frame: Any, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_name == function and frame.f_code.co_filename.endswith(file):
            sys.setprofile(None)
            signal.raise_signal(signal.SIGINT)

    sys.setprofile(profile)


def _status(job: list[Any]) -> int:
    """What the interpreter makes of a command."""
    try:
        return int(_child(*job))
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # a test looks for it
        traceback.print_exc()
        return 1


def _main() -> None:
    import gateway.cli.agents.agents
    import gateway.cli.doctor.checks
    import gateway.cli.mcp.connect
    import gateway.cli.talk.chat
    import gateway.cli.talk.run  # noqa: F401

    for line in sys.stdin:
        job = json.loads(line)
        if (pid := os.fork()) == 0:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            os._exit(_status(job))  # without the end of an interpreter, which takes as long as a command
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


if __name__ == "__main__":
    _main()
