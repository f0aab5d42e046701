"""Where Ostler's answers to the TypeScript client are not the peer's, and why: better, or by design."""

from __future__ import annotations

from tests.clients.comparison import Allowed

DESIGN: tuple[Allowed, ...] = ()

OPEN: tuple[Allowed, ...] = ()
"""What is not there yet. Must become empty."""
