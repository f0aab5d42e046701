"""Git, kept workspaces and the pages of a workspace over HTTP: shapes, refusals, and the cookie."""

from __future__ import annotations

from http.cookies import SimpleCookie
from pathlib import Path
from typing import Any

import attrs
import orjson
import pytest

from gateway.api.routes.workspace.git import NO_REPOSITORY
from gateway.api.workspace_cookie import AHEAD_SECONDS, MAX_AGE_SECONDS, NAME, is_good, issue
from supervisor.workspace.access import Access
from supervisor.workspace.saved import MAX_SAVED
from tests.gateway.harness import FakeConversation, Gateway
from tests.workspace.repositories import git, repository

KEY = "the-key"
HEADERS = {"X-Session-API-Key": KEY}


async def fetch(gateway: Gateway, path: str, method: str = "GET", **more: Any) -> Any:
    return await gateway.app.test_client(use_cookies=False).open(path, method=method, **more)


async def conversation_in(gateway: Gateway, workspace: Path) -> FakeConversation:
    conversation = await gateway.conversation()
    conversation.request = attrs.evolve(conversation.request, working_dir=str(workspace))
    return conversation


# -- git


async def test_git_over_http(gateway: Gateway, tmp_path: Path) -> None:
    root = repository(tmp_path / "r", a="1\n")
    sha = git(root, "rev-parse", "HEAD")
    (root / "a").write_text("2\n")
    conversation = await conversation_in(gateway, root)
    for base, top in (("/api/git", f"{root}/"), (f"/api/conversations/{conversation.id}/git", "")):
        assert await gateway.call("GET", f"{base}/changes?path={top}.") == (
            200,
            [{"status": "UPDATED", "path": "a"}],
        )
        assert await gateway.call("GET", f"{base}/diff?path={top}a") == (
            200,
            {"modified": "2", "original": "1"},
        )
        assert await gateway.call("GET", f"{base}/diff?path={top}a&commit={sha[:7]}") == (
            200,
            {"modified": "1", "original": ""},
        )
        status, found = await gateway.call("GET", f"{base}/commits?path={top}.&limit=50")
        assert (status, found["has_more"]) == (200, False)
        assert [(each["sha"], each["subject"], each["author"]) for each in found["commits"]] == [
            (sha, "First", "Ada")
        ]
        assert set(found["commits"][0]) == {"sha", "short_sha", "subject", "author", "timestamp"}
        assert await gateway.call("GET", f"{base}/commits/{sha}/changes?path={top}.") == (
            200,
            [{"status": "ADDED", "path": "a"}],
        )


async def test_git_without_a_repository(gateway: Gateway, tmp_path: Path) -> None:
    (tmp_path / "f").write_text("x")
    assert await gateway.call("GET", f"/api/git/changes?path={tmp_path}") == (200, [])
    assert await gateway.call("GET", f"/api/git/commits?path={tmp_path}") == (
        200,
        {"commits": [], "has_more": False},
    )
    assert await gateway.call("GET", f"/api/git/commits/abcd/changes?path={tmp_path}") == (200, [])
    client = gateway.app.test_client()
    for route in ("changes", "commits", "commits/abcd/changes"):
        response = await client.get(f"/api/git/{route}?path={tmp_path}")
        assert response.headers["Ostler-Warning"] == NO_REPOSITORY
    assert await gateway.call("GET", f"/api/git/diff?path={tmp_path}/f") == (
        200,
        {"modified": None, "original": None},
    )
    assert await gateway.call("GET", f"/api/git/diff?path={tmp_path}/g") == (
        400,
        {"detail": f"File does not exist: {tmp_path}/g"},
    )


@pytest.mark.guarantee(name="workspace-routes")
@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("changes?path=relative", 400),
        ("changes?path={root}&ref=--output=x", 400),
        ("changes?path={root}&ref=nonsense", 400),
        ("diff?path={root}/a&ref=HEAD&commit=abcd", 400),
        ("diff?path={root}/a&commit=--output=x", 422),
        ("diff?path={root}/a&commit=deadbeef", 400),
        ("diff?path=/", 400),
        ("diff?path={root}/..", 400),
        ("commits?path={root}&limit=0", 422),
        ("commits?path={root}&limit=201", 422),
        ("commits?path={root}&limit=-1%20x", 422),
        ("commits/-x/changes?path={root}", 422),
        ("commits/HEAD/changes?path={root}", 422),
        ("commits/deadbeef/changes?path={root}", 400),
        ("changes", 422),
        ("repositories/search?provider=github", 501),
        ("repositories/search?provider=none", 422),
    ],
)
async def test_what_git_is_not_asked(gateway: Gateway, tmp_path: Path, path: str, status: int) -> None:
    root = repository(tmp_path / "r", a="1\n")
    assert (await gateway.call("GET", f"/api/git/{path.format(root=root)}"))[0] == status


# -- kept workspaces


@pytest.mark.guarantee(name="clients-files-are-whole-and-bounded")
async def test_workspaces_are_kept_in_a_private_file(gateway_with: Any, tmp_path: Path) -> None:
    one = {"id": "/w/a", "name": "a", "path": "/w/a", "parentPath": "/w"}
    two = {"id": "2", "name": "b", "path": "/w/b"}
    parent = {"id": "/w", "name": "w", "path": "/w"}
    async with gateway_with() as gateway:
        assert await gateway.call("GET", "/api/workspaces") == (
            200,
            {"workspaces": [], "workspaceParents": []},
        )
        assert await gateway.call("POST", "/api/workspaces", {"workspaces": [one, two, one]}) == (
            200,
            {"workspaces": [one, two], "workspaceParents": []},
        )
        for _ in range(2):
            everything = {"workspaces": [one, two], "workspaceParents": [parent]}
            assert await gateway.call("POST", "/api/workspaces/parents", {"parents": [parent]}) == (
                200,
                everything,
            )
    file = tmp_path / "workspaces.json"
    assert file.stat().st_mode & 0o777 == 0o600
    async with gateway_with() as gateway:
        assert await gateway.call("GET", "/api/workspaces") == (200, everything)
        assert await gateway.call("DELETE", "/api/workspaces?path=/w/a") == (200, {"deleted": True})
        assert await gateway.call("DELETE", "/api/workspaces?path=/w/a") == (
            404,
            {"detail": "Workspace not found"},
        )
        assert await gateway.call("DELETE", "/api/workspaces/parents?path=/w") == (200, {"deleted": True})
        assert await gateway.call("DELETE", "/api/workspaces/parents?path=/w") == (
            404,
            {"detail": "Workspace parent not found"},
        )
        assert await gateway.call("GET", "/api/workspaces") == (
            200,
            {"workspaces": [two], "workspaceParents": []},
        )


@pytest.mark.guarantee(name="clients-files-are-whole-and-bounded")
async def test_a_damaged_file_of_workspaces_is_not_overwritten(gateway: Gateway, tmp_path: Path) -> None:
    for content in (
        "{",
        "[]",
        '{"schema_version": 2}',
        '{"schema_version": 1, "workspaces": [1], "workspaceParents": []}',
    ):
        (tmp_path / "workspaces.json").write_text(content)
        item = {"id": "x", "name": "x", "path": "/x"}
        assert (await gateway.call("GET", "/api/workspaces"))[0] == 409
        assert (await gateway.call("POST", "/api/workspaces", {"workspaces": [item]}))[0] == 409
        assert (await gateway.call("DELETE", "/api/workspaces?path=/x"))[0] == 409
        assert (tmp_path / "workspaces.json").read_text() == content


async def test_what_is_not_kept(gateway: Gateway) -> None:
    for item in (
        {"id": "", "name": "x", "path": "/x"},
        {"id": "x", "name": "x" * 257, "path": "/x"},
        {"id": "x"},
        1,
    ):
        assert (await gateway.call("POST", "/api/workspaces", {"workspaces": [item]}))[0] == 422
    for number in range(2):
        many = [{"id": "x", "name": "x", "path": f"/{number}/{n}"} for n in range(MAX_SAVED)]
        assert (await gateway.call("POST", "/api/workspaces", {"workspaces": many}))[0] == (200, 409)[number]


@pytest.mark.guarantee(name="workspace-routes")
async def test_a_client_cannot_widen_its_workspaces(gateway_with: Any, tmp_path: Path) -> None:
    inside = tmp_path / "w"
    inside.mkdir()
    (tmp_path / "secret").write_text("s")
    async with gateway_with(workspace_access=Access.WORKSPACES) as gateway:
        await conversation_in(gateway, inside)
        item = {"id": "x", "name": "x", "path": str(tmp_path)}
        assert (await gateway.call("POST", "/api/workspaces", {"workspaces": [item]}))[0] == 403
        assert (await gateway.call("GET", f"/api/file/download?path={tmp_path}/secret"))[0] == 403
        item["path"] = str(inside)
        assert (await gateway.call("POST", "/api/workspaces", {"workspaces": [item]}))[0] == 200


# -- pages of a workspace


@pytest.mark.guarantee(name="pages-of-a-workspace")
async def test_a_workspace_as_a_site(gateway: Gateway, tmp_path: Path) -> None:
    root = tmp_path / "w"
    (root / "sub" / "empty").mkdir(parents=True)
    (root / "index.html").write_text("<p>")
    (root / "sub" / "plot.png").write_bytes(b"\x89PNG")
    (root / "page.svg").write_text("<svg>")
    (root / "doc.pdf").write_text("%PDF")
    (root / "data.weird").write_text("x")
    (root / "a.tar.gz").write_text("x")
    (tmp_path / "secret").write_text("s")
    (root / "out").symlink_to(tmp_path / "secret")
    conversation = await conversation_in(gateway, root)
    base = f"/api/conversations/{conversation.id}/workspace"
    for path, media_type in (
        ("", "text/html; charset=utf-8"),
        ("/", "text/html; charset=utf-8"),
        ("/index.html", "text/html; charset=utf-8"),
        ("/sub/plot.png", "image/png"),
        ("/page.svg", "image/svg+xml"),
        ("/doc.pdf", "application/pdf"),
        ("/data.weird", "application/octet-stream"),
        ("/a.tar.gz", "application/octet-stream"),
    ):
        response = await fetch(gateway, base + path)
        assert (response.status_code, response.content_type) == (200, media_type), path
        assert response.headers["X-Content-Type-Options"] == "nosniff"
        policy = response.headers.get("Content-Security-Policy")
        if path == "/doc.pdf":
            assert policy is None
        else:
            assert policy.startswith("sandbox ")
            assert "allow-same-origin" not in policy
            assert "allow-top-navigation" not in policy
    for path, status, detail in (
        ("/sub", 404, "No index.html in directory"),
        ("/sub/", 404, "No index.html in directory"),
        ("/missing", 404, "File not found"),
        ("/out", 400, "Path is outside the workspace"),
        ("/%2e%2e/secret", 400, "Path is outside the workspace"),
        ("/sub/%2e%2e/%2e%2e/secret", 400, "Path is outside the workspace"),
    ):
        assert await gateway.call("GET", base + path) == (status, {"detail": detail}), path


def cookie_of(response: Any) -> SimpleCookie:
    return SimpleCookie(response.headers["Set-Cookie"].replace("; Partitioned", ""))


@pytest.mark.guarantee(name="pages-of-a-workspace")
async def test_the_cookie_opens_the_files_of_workspaces_and_nothing_else(
    gateway_with: Any, tmp_path: Path
) -> None:
    root = tmp_path / "w"
    root.mkdir()
    (root / "index.html").write_text("<p>")
    async with gateway_with(session_api_keys=(KEY,)) as gateway:
        conversation = await conversation_in(gateway, root)
        page = f"/api/conversations/{conversation.id}/workspace"
        assert (await fetch(gateway, page)).status_code == 401
        assert (await fetch(gateway, page, headers=HEADERS)).status_code == 200
        assert (await fetch(gateway, "/api/auth/workspace-session", "POST")).status_code == 401
        response = await fetch(gateway, "/api/auth/workspace-session", "POST", headers=HEADERS)
        assert (response.status_code, await response.get_data()) == (204, b"")
        line = response.headers["Set-Cookie"]
        morsel = cookie_of(response)[NAME]
        assert KEY not in line
        assert (morsel["path"], morsel["httponly"], morsel["samesite"]) == (
            "/api/conversations",
            True,
            "None",
        )
        assert line.endswith("; Secure; Partitioned")
        cookie = {"Cookie": f"{NAME}={morsel.value}"}
        for method in ("GET", "HEAD"):
            for path in (page, f"{page}/", f"{page}/index.html"):
                assert (await fetch(gateway, path, method, headers=cookie)).status_code == 200
        # For every other operation that there is, it is as if nothing was presented.
        tried = 0
        for rule in gateway.app.url_map.iter_rules():
            if not rule.rule.startswith("/api/") or rule.websocket:
                continue
            values = dict.fromkeys(rule.arguments, conversation.id)
            path = gateway.app.url_map.bind("localhost").build(rule.endpoint, values)
            for method in sorted((rule.methods or set()) - {"OPTIONS"}):
                if path.startswith(page) and method in ("GET", "HEAD"):
                    continue
                tried += 1
                found = (await fetch(gateway, path, method, headers=cookie)).status_code
                assert found == 401, (method, path)
        assert tried > 80
        assert (await fetch(gateway, page, "POST", headers=cookie)).status_code in (401, 405)
        # Nor is it a key elsewhere, nor the key a cookie.
        assert (await fetch(gateway, page, headers={"X-Session-API-Key": morsel.value})).status_code == 401
        assert (await fetch(gateway, page, headers={"Cookie": f"{NAME}={KEY}"})).status_code == 401
        assert (await fetch(gateway, page, headers={"Cookie": f"{NAME}="})).status_code == 401
        cleared = await fetch(gateway, "/api/auth/workspace-session", "DELETE", headers=HEADERS)
        assert cleared.status_code == 204
        assert cookie_of(cleared)[NAME]["max-age"] == "0"


@pytest.mark.guarantee(name="pages-of-a-workspace")
async def test_the_cookie_is_secure_where_browsers_take_that(gateway_with: Any) -> None:
    async with gateway_with(session_api_keys=(KEY,), allowed_hosts=("*",)) as gateway:
        for more, secure in (
            ({"Host": "localhost:8000"}, True),
            ({"Host": "127.0.0.1"}, True),
            ({"Host": "[::1]:80"}, True),
            ({"Host": "box.example"}, False),
            ({"Host": "box.example", "X-Forwarded-Proto": "https, http"}, True),
            ({"Host": "localhost", "X-Forwarded-Host": "box.example"}, False),
        ):
            response = await fetch(
                gateway, "/api/auth/workspace-session", "POST", headers={**HEADERS, **more}
            )
            assert (response.headers["Set-Cookie"].endswith("; Secure; Partitioned")) == secure, more


@pytest.mark.guarantee(name="pages-of-a-workspace")
async def test_another_site_reads_no_page_of_a_workspace(gateway_with: Any, tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("<p>")
    async with gateway_with(session_api_keys=(KEY,)) as gateway:
        conversation = await conversation_in(gateway, tmp_path)
        page = f"/api/conversations/{conversation.id}/workspace"
        for origin, may in (
            ("https://evil.example", False),
            ("null", False),
            ("http://localhost:3000", True),
        ):
            cookie = {"Cookie": f"{NAME}={issue(KEY)}", "Origin": origin}
            response = await fetch(gateway, page, headers=cookie)
            assert ("Access-Control-Allow-Origin" in response.headers) == may


@pytest.mark.guarantee(name="pages-of-a-workspace")
def test_a_cookie_ends_with_its_key_and_by_itself() -> None:
    value = issue("a", now=1000.0)
    assert is_good(value, ("b", "a"), now=1000.0)
    assert is_good(value, ("a",), now=1000.0 + MAX_AGE_SECONDS)
    assert not is_good(value, ("a",), now=1001.0 + MAX_AGE_SECONDS)
    assert is_good(value, ("a",), now=1000.0 - 2 * 3600)  # by another server's clock, or one set back
    assert not is_good(value, ("a",), now=999.0 - AHEAD_SECONDS)
    assert not is_good(value, ("b",), now=1000.0)
    assert not is_good(value, (), now=1000.0)
    version, begun, seal = value.split(".")
    for other in (
        f"{version}.{int(begun) + 1}.{seal}",
        f"2.{begun}.{seal}",
        "",
        None,
        "a",
        f"{value}x",
        "1.x.y",
    ):
        assert not is_good(other, ("a",), now=1000.0)


async def test_the_description_has_the_form_of_an_upload(gateway: Gateway) -> None:
    response = await fetch(gateway, "/openapi.json")
    paths = orjson.loads(await response.get_data(as_text=False))["paths"]
    body = paths["/api/file/upload"]["post"]["requestBody"]["content"]
    assert body["multipart/form-data"]["schema"]["required"] == ["file"]
    assert "/api/conversations/{conversation_id}/workspace/{file_path}" in paths
    flag = next(each for each in paths["/api/file/home"]["get"]["parameters"])
    assert flag["schema"] == {"type": "boolean", "default": False}
