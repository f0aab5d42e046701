"""Run by the peer's Python: imports the SDK once, and runs each script in a child that has it already.

Each line of standard input is JSON: `argv` (the script's path and its arguments), `environment`, `out` and
`err` (files for its output). Each line of standard output is the exit status of one, in order.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import traceback
from pathlib import Path
from typing import Any

import openhands.sdk  # noqa: F401 - so that the children have it


def run(asked: dict[str, Any]) -> int:
    """In the child: become the script."""
    for name, descriptor in (("out", 1), ("err", 2)):
        os.dup2(os.open(asked[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), descriptor)
    os.environ.clear()
    os.environ.update(asked["environment"])
    sys.argv = asked["argv"]
    sys.path[0] = str(Path(sys.argv[0]).parent)
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


def main() -> None:
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            os._exit(run(json.loads(line)))
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
