"""`python -m gateway`: the same as the `ostler` command."""

from __future__ import annotations

import sys

from gateway.cli import main

if __name__ == "__main__":
    sys.exit(main())
