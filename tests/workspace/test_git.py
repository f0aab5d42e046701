"""What clients are told of repositories, and what no repository can make git do."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import trio

from supervisor.workspace.access import Access, PathAccess
from supervisor.workspace.git.changes import Change, Diff, changes, commit_changes, commits, file_diff
from supervisor.workspace.git.command import Git, GitProblem
from supervisor.workspace.git.delta import delta
from supervisor.workspace.git.repository import NotARepository
from supervisor.workspace.problems import Denied
from tests.support.processes import mentioning
from tests.workspace.repositories import commit, git, place, reader, repository


async def found(root: Path, ref: str | None = None) -> list[tuple[str, str]]:
    return [(each.status, each.path) for each in await changes(reader(), place(root), ref)]


async def sides(
    path: Path, *, ref: str | None = None, commit: str | None = None
) -> tuple[str | None, str | None]:
    diff = await file_diff(reader(), place(path.parent), path.name, ref=ref, commit=commit)
    return diff.modified, diff.original


async def test_what_changed_in_a_working_tree(tmp_path: Path) -> None:
    root = repository(
        tmp_path / "r", kept="k\n", changed="old\n", gone="g\n", moved="a long line\nto be moved\n"
    )
    (root / "changed").write_text("new\n")
    (root / "gone").unlink()
    git(root, "mv", "moved", "elsewhere")
    (root / "fresh").write_text("f")
    (root / ".gitignore").write_text("ignored\n")
    (root / "ignored").write_text("i")
    os.utime(root / "kept")  # Touched, but as it was.
    assert await found(root) == [
        ("ADDED", ".gitignore"),
        ("UPDATED", "changed"),
        ("ADDED", "elsewhere"),
        ("ADDED", "fresh"),
        ("DELETED", "gone"),
        ("DELETED", "moved"),
    ]
    assert git(root, "status", "--porcelain").count("\n") == 4


async def test_without_a_repository_nothing_changed(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(NotARepository):
            await found(path)
    repository(tmp_path / "below")
    assert await found(tmp_path) == []
    assert await sides(tmp_path / "file") == (None, None)


async def test_a_repository_without_commits_has_only_new_files(tmp_path: Path) -> None:
    root = repository(tmp_path / "r")
    (root / "a").write_text("x\n")
    git(root, "add", "a")
    (root / "b").write_text("y\n")
    for ref in (None, "HEAD"):
        assert await found(root, ref) == [("ADDED", "a"), ("ADDED", "b")]
    assert await sides(root / "a") == ("x", "")
    async with reader().opened(place(root)) as session:
        assert await commits(session, 10) == ([], False)


NAMES = (
    "with space",
    "new\nline",
    'quo"te',
    "tab\tulator",
    "-option",
    "ünï",
    "back\\slash",
    ":colon",
    "*star",
)


@pytest.mark.guarantee(name="clients-files-are-whole-and-bounded")
async def test_odd_names(tmp_path: Path) -> None:
    root = repository(tmp_path / "r", first="1")
    for name in NAMES:
        (root / name).write_text("x\n")
    tracked, untracked = NAMES[::2], NAMES[1::2]
    git(root, "--literal-pathspecs", "add", "--", *tracked)
    assert await found(root) == sorted(
        (("ADDED", name) for name in (*tracked, *untracked)), key=lambda c: c[1]
    )
    assert await sides(root / "new\nline") == ("x", "")
    sha = commit(root, "all")
    async with reader().opened(place(root)) as session:
        assert {each.path for each in await commit_changes(session, sha)} == set(NAMES)
    for name in ("-option", ":colon", "*star"):
        assert await sides(root / name, commit=sha) == ("x", "")


async def test_a_name_that_is_no_text(tmp_path: Path) -> None:
    root = repository(tmp_path / "r", first="1")
    Path(os.fsdecode(os.fsencode(root) + b"/bad\xff")).write_text("x")
    assert await found(root) == [("ADDED", "bad�")]


async def test_a_directory_of_a_repository_shows_its_own_part(tmp_path: Path) -> None:
    root = repository(tmp_path / "r", top="1")
    (root / "sub").mkdir()
    (root / "sub" / "a").write_text("a")
    (root / "b").write_text("b")
    git(root, "add", "sub/a")
    assert await found(root / "sub") == [("ADDED", "a")]


async def test_repositories_below_a_directory_count(tmp_path: Path) -> None:
    repository(tmp_path / "one", a="1")
    (tmp_path / "one" / "b").write_text("b")
    (tmp_path / "broken" / ".git").mkdir(parents=True)
    assert await found(tmp_path) == [("ADDED", "one/b")]
    outer = repository(tmp_path / "outer", top="t")
    repository(outer / "inner", x="x")
    (outer / "inner" / "x").write_text("other")
    (outer / "innermost").write_text("i")
    assert await found(outer) == [("UPDATED", "inner/x"), ("ADDED", "innermost")]


async def test_the_base_is_where_the_work_began(tmp_path: Path) -> None:
    origin = repository(tmp_path / "origin", a="1\n")
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", str(origin), str(clone))
    (clone / "a").write_text("2\n")
    assert await found(clone) == [("UPDATED", "a")]
    git(clone, "checkout", "-q", "-b", "work")
    commit(clone, "work")
    (origin / "later").write_text("l")
    commit(origin, "later")
    git(clone, "fetch", "-q")
    assert await found(clone) == [("UPDATED", "a")]  # not what came later to the default branch
    assert await sides(clone / "a") == ("2", "1")
    assert await found(clone, "HEAD") == []
    git(clone, "update-ref", "refs/remotes/origin/work", "HEAD")
    assert await found(clone) == [("UPDATED", "a")]  # pushed, and still to be seen
    (clone / "a").write_text("3\n")
    assert await sides(clone / "a") == ("3", "2")  # with edits on top, these alone


async def test_a_local_branch_is_compared_with_the_local_default(tmp_path: Path) -> None:
    root = repository(tmp_path / "r", a="1\n")
    git(root, "checkout", "-q", "-b", "work")
    (root / "b").write_text("b")
    commit(root, "work")
    assert await found(root) == [("ADDED", "b")]
    git(root, "checkout", "-q", "main")
    assert await found(root) == []


@pytest.mark.guarantee(name="workspace-routes")
@pytest.mark.parametrize("ref", ["nonsense", "-q", "--output=/tmp/x", "", "a\0b", "a b..", "x" * 2000])
async def test_a_ref_that_is_none(tmp_path: Path, ref: str) -> None:
    root = repository(tmp_path / "r", a="1")
    with pytest.raises(GitProblem):
        await found(root, ref)


async def test_a_link_is_its_target_and_a_file_that_is_gone_is_empty(tmp_path: Path) -> None:
    root = repository(tmp_path / "r", a="1\n", gone="g\n")
    (root / "gone").unlink()
    (root / "link").symlink_to("/etc/passwd")
    assert await sides(root / "link") == ("/etc/passwd", "")
    assert await sides(root / "gone") == ("", "g")
    with pytest.raises(GitProblem, match=r"^File does not exist: .*/never$"):
        await sides(root / "never")
    (root / "a").write_bytes(b"x" * (1024 * 1024 + 1))
    with pytest.raises(GitProblem, match="too large"):
        await sides(root / "a")


async def test_commits_and_what_they_changed(tmp_path: Path) -> None:
    root = repository(tmp_path / "r", a="1\n")
    (root / "a").write_text("2\n")
    (root / "b").write_text("b\n")
    second = commit(root, "Second: ünï\n\nbody")
    git(root, "mv", "b", "c")
    third = commit(root, "Third")
    async with reader().opened(place(root)) as session:
        two, more = await commits(session, 2)
        assert more
        assert [each.sha for each in two] == [third, second]
        assert (two[1].subject, two[1].author) == ("Second: ünï", "Ada")
        assert second.startswith(two[1].short_sha)
        assert two[1].timestamp[10] == "T"
        all_of_them, more = await commits(session, 3)
        assert not more
        first = all_of_them[-1].sha
        assert await commit_changes(session, first[:8]) == [Change("ADDED", "a")]
        assert await commit_changes(session, second) == [Change("UPDATED", "a"), Change("ADDED", "b")]
        assert await commit_changes(session, third) == [Change("DELETED", "b"), Change("ADDED", "c")]
        with pytest.raises(GitProblem):
            await commit_changes(session, "beef" * 10)
    assert await sides(root / "b", commit=third) == ("", "b")
    assert await sides(root / "a", commit=first) == ("1", "")


async def test_a_linked_working_tree_and_a_submodule(tmp_path: Path) -> None:
    root = repository(tmp_path / "r", a="1\n")
    git(root, "worktree", "add", "-q", "-b", "work", str(tmp_path / "tree"))
    (tmp_path / "tree" / "a").write_text("2\n")
    assert await found(tmp_path / "tree") == [("UPDATED", "a")]
    assert await found(root) == []
    allowed = {"GIT_ALLOW_PROTOCOL": "file"}
    git(root, "submodule", "--quiet", "add", str(repository(tmp_path / "lib", x="x")), "lib", **allowed)
    commit(root, "sub")
    (root / "lib" / "x").write_text("y")
    assert await found(root / "lib") == [("UPDATED", "x")]
    assert await found(root) == [("UPDATED", "lib/x")]


async def test_sha256_repositories(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", "-b", "main", "--object-format=sha256")
    (tmp_path / "a").write_text("1\n")
    assert await found(tmp_path) == [("ADDED", "a")]
    commit(tmp_path, "First")
    (tmp_path / "a").write_text("2\n")
    assert await sides(tmp_path / "a") == ("2", "1")


async def patch(root: Path, base: str | None = None, *excludes: str) -> tuple[bytes, str | None]:
    file, against, _ = await delta(reader(), place(root), base, excludes)
    try:
        return b"".join(iter(file.read, b"")), against
    finally:
        file.close()


@pytest.mark.guarantee(name="clients-files-are-whole-and-bounded")
async def test_a_patch_brings_the_working_tree_back_and_changes_nothing(tmp_path: Path) -> None:
    root = repository(tmp_path / "r", a="1\n", gone="g\n")
    copy = tmp_path / "copy"
    shutil.copytree(root, copy)
    (root / "a").write_text("2\n")
    (root / "gone").unlink()
    (root / "new").write_bytes(bytes(range(256)))
    (root / "node_modules").mkdir()
    (root / "node_modules" / "big").write_text("b")
    before = sorted((root / ".git").rglob("*"))
    made, against = await patch(root, None, "node_modules/")
    assert sorted((root / ".git").rglob("*")) == before
    assert against == git(root, "rev-parse", "HEAD")
    subprocess.run(["git", "apply"], cwd=copy, input=made, check=True)
    assert (copy / "a").read_text() == "2\n"
    assert (copy / "new").read_bytes() == bytes(range(256))
    assert not (copy / "gone").exists()
    assert not (copy / "node_modules").exists()
    with pytest.raises(GitProblem, match="could not be resolved"):
        await patch(root, "nonsense")


# -- a hostile repository


def hostile(root: Path, mark: Path) -> Path:
    """A repository that names a program wherever one can be named. Each leaves a mark if it runs."""
    repository(root, a="1\n", b="2\n")
    run = root / "run.sh"
    run.write_text(f'#!/bin/sh\necho "$0 $*" >> {mark}\nexit 1\n')
    run.chmod(0o755)
    for hook in ("post-index-change", "post-checkout", "pre-commit", "reference-transaction", "pre-auto-gc"):
        (root / ".git" / "hooks" / hook).write_text(run.read_text())
        (root / ".git" / "hooks" / hook).chmod(0o755)
    (root / ".git" / "info" / "attributes").write_text("* filter=evil diff=evil merge=evil\n")
    (root / ".gitattributes").write_text("* filter=evil diff=evil merge=evil\n")
    (root / ".git" / "evil").write_text(f"[core]\n\tfsmonitor = {run}\n[diff]\n\texternal = {run}\n")
    with (root / ".git" / "config").open("a") as config:
        config.write(f"""
[include]
    path = evil
[includeIf "gitdir:/"]
    path = {root}/.git/evil
[core]
    fsmonitor = {run}
    hooksPath = {root}
    pager = {run}
    editor = {run}
    sshCommand = {run}
    askPass = {run}
    gitProxy = {run}
    alternateRefsCommand = {run}
    worktree = /etc
    attributesFile = {root}/.gitattributes
    excludesFile = {root}/a
    repositoryformatversion = 1
[extensions]
    partialClone = origin
    worktreeConfig = true
[pager]
    log = {run}
    diff = {run}
    cmd = true
[diff]
    external = {run}
[diff "evil"]
    command = {run}
    textconv = {run}
[filter "evil"]
    clean = {run}
    smudge = {run}
    process = {run}
    required = true
[merge "evil"]
    driver = {run}
[log]
    showSignature = true
[gpg]
    program = {run}
[gpg "ssh"]
    program = {run}
[credential]
    helper = {run}
[protocol]
    allow = always
[remote "origin"]
    url = ext::{run}
    uploadpack = {run}
    promisor = true
    partialclonefilter = blob:none
    vcs = evil
[alias]
    log = !{run}
    diff = !{run}
[trailer "x"]
    command = {run}
[submodule "lib"]
    update = !{run}
""")
    return root


@pytest.mark.guarantee(name="workspace-routes")
async def test_a_hostile_repository_runs_nothing(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    root = hostile(tmp_path / "r", mark)
    (root / "a").write_text("other\n")
    (root / "b").unlink()
    (root / "new").write_text("n\n")
    told = {path for _, path in await found(root)}
    assert {"a", "b", "new"} <= told
    assert await sides(root / "a") == ("other", "1")
    async with reader().opened(place(root)) as session:
        (first,), _ = await commits(session, 5)
        await commit_changes(session, first.sha)
    await sides(root / "a", commit=first.sha)
    made, _ = await patch(root)
    assert b"+other" in made
    assert not mark.exists(), mark.read_text()
    # Git itself runs what is named there: the test has teeth.
    subprocess.run(
        ["git", "--no-pager", "-C", str(root), "diff"], capture_output=True, check=False, timeout=20
    )
    assert mark.exists()


@pytest.mark.guarantee(name="workspace-routes")
async def test_an_object_that_is_missing_is_not_fetched(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    root = hostile(tmp_path / "r", mark)
    blob = next(each for each in (root / ".git" / "objects").glob("??/*") if b"1\n" in _inflated(each))
    blob.unlink()
    assert await sides(root / "a") == ("1", "")
    assert not mark.exists()
    subprocess.run(
        ["git", "-C", str(root), "cat-file", "-s", "HEAD:a"], capture_output=True, check=False, timeout=20
    )
    assert mark.exists()


def _inflated(path: Path) -> bytes:
    import zlib

    data = zlib.decompress(path.read_bytes())
    return data if data.startswith(b"blob") else b""


@pytest.mark.guarantee(name="workspace-routes")
async def test_a_hostile_submodule_runs_nothing(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    root = repository(tmp_path / "r", a="1\n")
    git(
        root,
        "submodule",
        "--quiet",
        "add",
        str(repository(tmp_path / "lib", x="x")),
        "lib",
        GIT_ALLOW_PROTOCOL="file",
    )
    commit(root, "sub")
    run = tmp_path / "run.sh"
    run.write_text(f"#!/bin/sh\necho >> {mark}\ncat\n")
    run.chmod(0o755)
    git(root / "lib", "config", "core.fsmonitor", str(run))
    git(root / "lib", "config", "filter.x.clean", str(run))
    (root / "lib" / ".gitattributes").write_text("* filter=x\n")
    (root / "lib" / "x").write_text("y")
    (root / "a").write_text("2\n")
    assert ("UPDATED", "lib/x") in await found(root)
    text, _ = await patch(root)
    assert b"+2" in text
    assert not mark.exists()
    git(root, "add", "--all")  # what it would have come to
    assert mark.exists()


@pytest.mark.guarantee(name="workspace-routes")
async def test_a_program_in_the_workspace_is_not_git(tmp_path: Path) -> None:
    root = repository(tmp_path / "r", a="1")
    (root / "git").write_text(f"#!/bin/sh\ntouch {tmp_path}/mark\n")
    (root / "git").chmod(0o755)
    own = reader()
    own.environment["PATH"] = f".:{os.environ['PATH']}"  # type: ignore[index]
    assert [each.path for each in await changes(own, place(root))] == ["git"]
    assert not (tmp_path / "mark").exists()


@pytest.mark.guarantee(name="workspace-routes")
async def test_a_repository_may_not_lead_out_of_the_workspaces(tmp_path: Path) -> None:
    secret = repository(tmp_path / "secret", key="token\n")
    inside = tmp_path / "w"
    inside.mkdir()
    (inside / ".git").write_text(f"gitdir: {secret}/.git\n")
    confined = reader(Access.WORKSPACES)
    with pytest.raises(Denied):
        await file_diff(confined, place(inside, inside), "key", ref=None, commit=None)
    (inside / ".git").unlink()
    repository(inside, a="1")
    assert await changes(confined, place(inside, inside)) == []
    (inside / ".git" / "objects" / "info").mkdir(exist_ok=True)
    (inside / ".git" / "objects" / "info" / "alternates").write_text(f"{secret}/.git/objects\n")
    with pytest.raises(Denied):
        await changes(confined, place(inside, inside))
    # A repository above the workspace does not count.
    below = secret / "below"
    below.mkdir()
    with pytest.raises(NotARepository):
        await changes(confined, place(below, below))


@pytest.fixture(scope="module")
def outside(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A packed repository that nobody may read."""
    root = repository(tmp_path_factory.mktemp("outside") / "r", key="token\n")
    git(root, "gc")
    return root


def everything(root: Path) -> dict[Path, tuple[int, bytes]]:
    """What is below a directory, with the mode of each and the bytes of files."""
    return {
        path: (path.lstat().st_mode, path.read_bytes() if path.is_file() else b"") for path in root.rglob("*")
    }


@pytest.mark.parametrize(
    "name",
    [
        *("packed-refs", "refs", "refs/heads", "refs/heads/stolen", "objects", "objects/pack", "objects/ab"),
        *("objects/info", "objects/pack/pack-1.pack", "shallow", "HEAD", "index", "config", "info/exclude"),
        *("info", "sharedindex.1", "reftable"),
    ],
)
async def test_links_in_a_repository_do_not_lead_out_of_the_workspaces(
    tmp_path: Path, outside: Path, name: str
) -> None:
    before = everything(outside)
    inside = repository(tmp_path / "w", a="1\n")
    confined = reader(Access.WORKSPACES)
    (inside / "shared").mkdir()
    target = inside / ".git" / name
    if target.is_dir():
        shutil.rmtree(target)
    target.unlink(missing_ok=True)
    there = outside / ".git" / name
    target.symlink_to(there if there.exists() else outside / ".git" / "packed-refs")
    with pytest.raises(Denied):
        await changes(confined, place(inside, inside))
    # A link to another link is no way around.
    if target.is_symlink() and name in ("packed-refs", "objects/pack"):
        target.unlink()
        (inside / "shared" / "x").symlink_to(there)
        target.symlink_to(inside / "shared" / "x")
        with pytest.raises(Denied):
            await changes(confined, place(inside, inside))
    assert everything(outside) == before  # the other cases have it, too


async def test_links_within_the_workspaces_are_followed(tmp_path: Path) -> None:
    inside = repository(tmp_path / "w", a="1\n")
    (inside / ".git" / "objects").rename(inside / "kept")
    (inside / ".git" / "objects").symlink_to(inside / "kept")
    (inside / "a").write_text("2\n")
    found = await changes(reader(Access.WORKSPACES), place(inside, inside))
    assert "a" in [each.path for each in found]


@pytest.mark.guarantee(name="clients-files-are-whole-and-bounded")
@pytest.mark.parametrize("name", ["HEAD", "config", "packed-refs", "index", "objects/info/alternates"])
async def test_a_pipe_in_the_repository_hangs_nothing(tmp_path: Path, name: str) -> None:
    root = repository(tmp_path / "r", a="1\n")
    target = root / ".git" / name
    target.unlink(missing_ok=True)
    target.parent.mkdir(exist_ok=True)
    os.mkfifo(target)
    own = reader(seconds=1.5)
    with trio.fail_after(20):
        with contextlib.suppress(GitProblem, NotARepository, OSError):
            await changes(own, place(root))
    assert not mentioning(root)


@pytest.mark.guarantee(name="clients-files-are-whole-and-bounded")
async def test_a_git_that_takes_too_long_is_ended_with_its_children(tmp_path: Path) -> None:
    root = repository(tmp_path / "r", a="1\n")
    os.mkfifo(root / ".gitignore")  # Git opens it, and waits.
    with trio.fail_after(20), pytest.raises(GitProblem, match=r"longer than 1\.5 s"):
        await changes(reader(seconds=1.5), place(root))
    assert not mentioning(root)


@pytest.mark.guarantee(name="clients-files-are-whole-and-bounded")
async def test_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = repository(tmp_path / "r", a="1\n")
    for number in range(50):
        (root / f"{number}-{'x' * 200}").touch()
    async with reader().opened(place(root)) as session:
        with pytest.raises(GitProblem, match="more than 1000 bytes"):
            await session.output("ls-files", "--others", "-z", most=1000)


async def test_diff_of_a_commit_outside_of_a_repository(tmp_path: Path) -> None:
    assert await file_diff(reader(), place(tmp_path), "x", ref=None, commit="abcd") == Diff(None, None)


async def test_all_repositories_of_one_request_have_one_limit(tmp_path: Path) -> None:
    """Each would end in time; together they take too long, which is an error and not a part of the answer."""
    root = tmp_path / "several"
    for name in "abcdefgh":
        repository(root / name, kept="k")
    programs = tmp_path / "programs"
    programs.mkdir()
    slow = programs / "git"
    slow.write_text(f'#!/bin/sh\nsleep 0.2\nexec {shutil.which("git")} "$@"\n')
    slow.chmod(0o755)
    path = f"{programs}:{os.environ['PATH']}"
    patient = Git(PathAccess(Access.ALL), {"PATH": path, "HOME": "/nonexistent"}, seconds=4.0)
    assert await changes(patient, place(root / "a")) == []
    with pytest.raises(GitProblem, match="longer than 4 s"):
        await changes(patient, place(root))
