"""The latest commits of a repository."""

from __future__ import annotations

import attrs

from supervisor.workspace.git.command import Session, commit_id

_FIELDS = "%H%x1f%h%x1f%aI%x1f%an%x1f%s"

SUBJECT_CHARACTERS = 1000
"""Longest subject or author that is shown."""


@attrs.frozen
class Commit:
    """A commit. `timestamp` is the author's, with its zone."""

    sha: str
    short_sha: str
    subject: str
    author: str
    timestamp: str


async def commits(session: Session, limit: int) -> tuple[list[Commit], bool]:
    """The newest commits that HEAD has, and whether there are more. Raises GitProblem."""
    head = commit_id(await session.attempt("rev-parse", "--verify", "--quiet", "HEAD"))
    if head is None:
        return [], False
    shown = ("--no-show-signature", "--no-color", "--encoding=UTF-8", f"--format={_FIELDS}")
    output = await session.output("log", "-z", *shown, "-n", str(limit + 1), head, "--")
    found = []
    for record in output.decode("utf-8", "replace").split("\0"):
        fields = record.split("\x1f", 4)
        if len(fields) == 5:
            sha, short, timestamp, author, subject = fields
            cut = slice(SUBJECT_CHARACTERS)
            found.append(Commit(sha, short, subject[cut], author[cut], timestamp))
    return found[:limit], len(found) > limit
