"""The default base that a working tree is compared with: the commit that its work began from."""

from __future__ import annotations

from typing import Final

from supervisor.workspace.git.command import Session, commit_id

HEAD: Final = "HEAD"

_REMOTE: Final = "refs/remotes/origin/"
_LOCAL: Final = "refs/heads/"
_DEFAULTS: Final = ("main", "master")


async def base_of(session: Session, ref: str | None) -> str | None:
    """The id of the commit, or tree, to compare with. None for a `ref` that names none.

    Without a ref it is the first of these that exists, as the wire prescribes: the remote's branch of the
    same name, unless it is HEAD and nothing has changed; the merge base with the remote's default branch; the
    remote's default branch; the local default branch, if it is not the current one and HEAD contains all of
    it; HEAD; the empty tree. Nothing is fetched.
    """
    if ref is not None:
        found = await session.commit(ref)
        return session.repository.empty_tree if found is None and ref == HEAD else found
    refs = await _refs(session)
    head = commit_id(await session.attempt("rev-parse", "--verify", "--quiet", HEAD))
    branch = refs.get("")
    if branch is not None:
        upstream = refs.get(_REMOTE + branch)
        if upstream is not None and (upstream != head or await _dirty(session)):
            return upstream
    default = await _default(refs)
    if default is not None:
        return await _merge_base(session, refs[default]) or refs[default]
    for name in _DEFAULTS:
        if (local := refs.get(_LOCAL + name)) is not None:
            if name != branch and await _merge_base(session, local) == local:
                return local
            break
    return head or session.repository.empty_tree


async def _default(refs: dict[str, str]) -> str | None:
    """The name of the remote's default branch, where one is known here."""
    target = refs.get(f"{_REMOTE}HEAD ")
    names = ([target] if target else []) + [_REMOTE + name for name in _DEFAULTS]
    return next((name for name in names if name in refs), None)


async def _refs(session: Session) -> dict[str, str]:
    """Ids by name, of the refs that matter; under "" the current branch, and with a blank behind it, where a
    symbolic one leads."""
    current = await session.attempt("symbolic-ref", "--quiet", HEAD)
    branch = (current or b"").decode("utf-8", "replace").strip().removeprefix(_LOCAL)
    names = [f"{_REMOTE}HEAD", *(place + name for place in (_REMOTE, _LOCAL) for name in _DEFAULTS)]
    if branch:
        names.append(_REMOTE + branch)
    form = "%(refname) %(objectname) %(symref)"
    output = await session.attempt("for-each-ref", f"--format={form}", "--", *names)
    found: dict[str, str] = {}
    for line in (output or b"").decode("utf-8", "replace").splitlines():
        name, _, rest = line.partition(" ")
        target, _, symbolic = rest.partition(" ")
        found[name] = target
        if symbolic:
            found[f"{name} "] = symbolic
    leads_to = found.get(f"{_REMOTE}HEAD ")
    if leads_to and leads_to not in found:
        found[leads_to] = found[f"{_REMOTE}HEAD"]
    if branch:
        found[""] = branch
    return found


async def _merge_base(session: Session, other: str) -> str | None:
    return commit_id(await session.attempt("merge-base", HEAD, other))


async def _dirty(session: Session) -> bool:
    """Whether tracked files differ from HEAD."""
    quiet = ("diff", "--quiet", "--no-ext-diff", "--no-textconv", "--ignore-submodules=dirty", HEAD, "--")
    return await session.attempt(*quiet) is None
