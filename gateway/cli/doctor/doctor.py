"""`ostler doctor`: check this machine, and say what to fix."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from typing import Final

from rich.text import Text

from gateway.cli.doctor.checks import CHECKS
from gateway.cli.doctor.findings import FAIL, Finding, Machine
from gateway.cli.locations import state_directory
from gateway.cli.present import print_json
from gateway.cli.terminal import console
from gateway.cli.text import clean

STYLES: Final = {"OK": "good", "WARN": "asking", "FAIL": "bad"}


def run(arguments: Namespace) -> int:
    """Run all checks. Returns 1 if one failed."""
    machine = Machine(state_directory(arguments.state, os.environ), os.environ)
    found: list[Finding] = []
    screen = console(sys.stdout)
    for check in CHECKS:
        for finding in check(machine):
            found.append(finding)
            if not arguments.json:
                status = Text(f"{finding.status:<5}", style=STYLES[finding.status])
                screen.print(Text.assemble(status, f"{finding.name}: {clean(finding.detail)}"))
                if finding.advice:
                    screen.print(Text(f"     {clean(finding.advice)}", style="bold"))
    failed = any(finding.status == FAIL for finding in found)
    if arguments.json:
        print_json({"findings": [finding._asdict() for finding in found], "ok": not failed})
    return int(failed)
