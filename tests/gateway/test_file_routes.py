"""Files over HTTP: listed, sent, received, archived, and what is refused."""

from __future__ import annotations

import errno
import io
import os
import resource
import shutil
import stat
import subprocess
import tarfile
import threading
import zipfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import httpx2
import orjson
import pytest
import trio
from werkzeug.datastructures import FileStorage

from gateway.api.errors import ApiError
from gateway.api.files.downloads import Downloads
from gateway.api.files.uploads import PIECE_BYTES
from gateway.api.routes.workspace import files
from supervisor.conversations.state.start import StartRequest
from supervisor.events import Message, MessageEvent, TextContent
from supervisor.workspace import directories
from supervisor.workspace.access import Access
from supervisor.workspace.exclusion import is_excluded, may_hold_credentials
from tests.gateway.harness import Gateway
from tests.workspace.repositories import git, repository


async def fetch(gateway: Gateway, path: str, method: str = "GET", **more: Any) -> Any:
    return await gateway.app.test_client().open(path, method=method, **more)


async def send(gateway: Gateway, path: Path | str, content: bytes, base: str = "/api") -> tuple[int, Any]:
    response = await fetch(
        gateway,
        f"{base}/file/upload",
        "POST",
        query_string={"path": str(path)},
        files={"file": FileStorage(io.BytesIO(content), filename="x")},
    )
    return response.status_code, orjson.loads(await response.get_data(as_text=False))


async def test_home_is_what_clients_begin_with(gateway: Gateway) -> None:
    home = gateway.services.config.state
    for name in ("Work", "apps", ".hidden"):
        (home / name).mkdir()
    (home / "file").touch()
    (home / "link").symlink_to("/")
    assert await gateway.call("GET", "/api/file/home") == (
        200,
        {
            "home": str(home),
            "favorites": [{"label": name, "path": str(home / name)} for name in ("apps", "Work")],
            "locations": [{"label": "/", "path": "/"}],
        },
    )
    _, found = await gateway.call("GET", "/api/file/home?include_hidden=true")
    assert [each["label"] for each in found["favorites"]] == [".hidden", "apps", "Work"]


@pytest.mark.parametrize("access", [Access.OFF, Access.WORKSPACES])
async def test_home_is_told_whatever_is_permitted(gateway_with: Any, access: Access, tmp_path: Path) -> None:
    (tmp_path / "private").mkdir()
    async with gateway_with(workspace_access=access) as gateway:
        await gateway.conversation()
        status, found = await gateway.call("GET", "/api/file/home")
    shown = [{"label": "w", "path": "/w"}] if access is Access.WORKSPACES else []
    assert (status, found) == (200, {"home": str(tmp_path), "favorites": [], "locations": shown})


@pytest.mark.guarantee(name="clients-files-are-whole-and-bounded")
async def test_a_damaged_list_of_workspaces_keeps_nobody_from_beginning(
    gateway_with: Any, tmp_path: Path
) -> None:
    (tmp_path / "workspaces.json").write_text("{")
    for access in Access:
        async with gateway_with(workspace_access=access) as gateway:
            conversation = await gateway.conversation()
            conversation.request = conversation.request.__class__(working_dir=str(tmp_path))
            status, found = await gateway.call("GET", "/api/file/home")
            assert status == 200
            if access is Access.WORKSPACES:
                assert [each["path"] for each in found["locations"]] == [str(tmp_path)]
            assert (await gateway.call("GET", "/api/workspaces"))[0] == 409


async def test_directories_page_by_page(gateway: Gateway, tmp_path: Path) -> None:
    root = tmp_path / "d"
    names = ["a", "B", "b", "C", "ü", ".h"]
    for name in names:
        (root / name).mkdir(parents=True)
    (root / "file").touch()
    (root / "link").symlink_to(root / "a")
    Path(os.fsdecode(os.fsencode(root) + b"/bad\xff")).mkdir()
    seen, page = [], ""
    while page is not None:
        query = f"?path={root}&limit=2" + (f"&page_id={quote(page)}" if page else "")
        status, found = await gateway.call("GET", f"/api/file/search_subdirs{query}")
        assert status == 200
        assert all(item["path"] == str(root / item["name"]) for item in found["items"])
        seen += [item["name"] for item in found["items"]]
        page = found["next_page_id"]
    assert seen == ["a", "B", "b", "C", "ü"]
    _, found = await gateway.call("GET", f"/api/file/search_subdirs?path={root}&include_hidden=1")
    assert found["items"][0]["name"] == ".h"


@pytest.mark.parametrize(
    ("query", "status", "detail"),
    [
        ("path=relative", 400, "Path must be absolute"),
        ("path=/nonexistent", 404, "Directory not found"),
        ("path=/etc/passwd", 400, "Path is not a directory"),
        ("path=/&limit=0", 422, None),
        ("path=/&limit=101", 422, None),
        ("path=/&include_hidden=perhaps", 422, None),
        ("", 422, None),
        ("path=%00", 400, "Path must be absolute"),
        ("path=/a%00b", 422, None),
        ("path=/" + 5000 * "x", 422, None),
        ("path=/" + 300 * "x", 400, "File name too long"),
    ],
)
async def test_what_cannot_be_listed(gateway: Gateway, query: str, status: int, detail: str | None) -> None:
    found, body = await gateway.call("GET", f"/api/file/search_subdirs?{query}")
    assert found == status
    if detail is not None:
        assert body == {"detail": detail}


@pytest.mark.guarantee(name="clients-files-are-whole-and-bounded")
async def test_a_huge_directory_is_read_for_a_while_and_held_by_the_page(
    gateway: Gateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3000):
        (tmp_path / "d" / f"{number:05}").mkdir(parents=True)
    status, found = await gateway.call(
        "GET", f"/api/file/search_subdirs?path={tmp_path}/d&limit=3&page_id=02998"
    )
    assert (status, [item["name"] for item in found["items"]]) == (200, ["02998", "02999"])
    monkeypatch.setattr(directories, "LISTING_SECONDS", 0.0)
    assert await gateway.call("GET", f"/api/file/search_subdirs?path={tmp_path}/d") == (
        400,
        {"detail": "The directory has too many entries to be listed."},
    )


async def test_a_directory_is_made_with_those_above_it(gateway: Gateway, tmp_path: Path) -> None:
    target = tmp_path / "a" / "b" / "c"
    for _ in range(2):
        assert await gateway.call("POST", f"/api/file/create_directory?path={target}") == (
            200,
            {"success": True},
        )
    assert target.is_dir()
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        assert await gateway.call("POST", f"/api/file/create_directory?path={path}") == (
            400,
            {"detail": "Path exists and is not a directory"},
        )


# -- received


@pytest.mark.parametrize("size", [0, 1, PIECE_BYTES + 3])
async def test_a_file_is_stored_and_comes_back(gateway: Gateway, tmp_path: Path, size: int) -> None:
    content = os.urandom(size // 2) + b"\r\n--" * (size // 8) + b"\n" * (size - size // 2 - size // 8 * 4)
    target = tmp_path / "new" / "deep" / "file.bin"
    assert await send(gateway, target, content) == (200, {"success": True, "file_size": len(content)})
    assert target.read_bytes() == content
    response = await fetch(gateway, f"/api/file/download?path={target}")
    assert (response.status_code, response.content_type) == (200, "application/octet-stream")
    assert response.headers["Content-Length"] == str(size)
    assert response.headers["Content-Disposition"] == 'attachment; filename="file.bin"'
    assert response.headers["X-Content-Type-Options"] == "nosniff"
    assert await response.get_data(as_text=False) == content
    assert sorted(each.name for each in target.parent.iterdir()) == ["file.bin"]


@pytest.mark.guarantee(name="clients-files-are-whole-and-bounded")
async def test_a_file_that_is_replaced_keeps_its_mode_and_is_never_half(
    gateway: Gateway, tmp_path: Path
) -> None:
    target = tmp_path / "script"
    target.write_text("old")
    target.chmod(0o750)
    reading = target.open()
    assert (await send(gateway, target, b"new"))[0] == 200
    assert (target.read_text(), stat.S_IMODE(target.stat().st_mode), reading.read()) == ("new", 0o750, "old")
    reading.close()
    (tmp_path / "link").symlink_to(target)
    assert (await send(gateway, tmp_path / "link", b"by the link"))[0] == 200
    assert target.read_text() == "by the link"
    assert (tmp_path / "link").is_symlink()


@pytest.mark.guarantee(name="workspace-routes")
async def test_what_cannot_be_stored(gateway: Gateway, tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "pipe")
    for path, detail in (
        ("relative", "Path must be absolute"),
        (tmp_path / "d", "Path is a directory"),
        ("/", "Path is a directory"),
        (tmp_path / "file" / "below", "A parent of the path is not a directory"),
        (tmp_path / "pipe", "Path is not a file"),
        ("/dev/full", "Path is not a file"),
    ):
        assert await send(gateway, path, b"x") == (400, {"detail": detail}), path
    assert sorted(each.name for each in tmp_path.iterdir() if each.name.endswith(".ostler")) == []


def form(*parts: bytes, end: bytes = b"--B--\r\n") -> bytes:
    return b"".join(b"--B\r\n" + part + b"\r\n" for part in parts) + end


FILE = b'Content-Disposition: form-data; name="file"; filename="f"\r\n\r\ncontent'
TEXT = b'Content-Disposition: form-data; name="file"\r\n\r\ncontent'
OTHER = b'Content-Disposition: form-data; name="note"\r\n\r\n'

FORMS: dict[str, tuple[bytes, int]] = {
    "right": (form(OTHER + b"n", FILE, OTHER + b"m"), 200),
    "empty": (b"", 422),
    "no file": (form(OTHER + b"n"), 422),
    "text": (form(TEXT), 422),
    "two files": (form(FILE, FILE), 422),
    "cut": (form(FILE, end=b""), 422),
    "cut in the head": (b"--B\r\nContent-Disposition: form-data; name=", 422),
    "other boundary": (form(FILE).replace(b"--B", b"--C"), 422),
    "no disposition": (form(b"X: y\r\n\r\ncontent"), 422),
    "endless head": (b"--B\r\nX: " + 300_000 * b"y", 413),
    "endless preamble": (300_000 * b"y", 413),
    "endless field": (form(OTHER + 200_000 * b"y", FILE), 413),
    "many parts": (form(*(20 * [OTHER]), FILE), 413),
    "bad head": (form(b"\xff\xfe: \xff\r\n\r\nx"), 422),
}


@pytest.mark.guarantee(name="clients-files-are-whole-and-bounded")
@pytest.mark.parametrize("name", FORMS)
async def test_forms(gateway: Gateway, tmp_path: Path, name: str) -> None:
    data, expected = FORMS[name]
    target = tmp_path / "d" / "file"
    response = await fetch(
        gateway,
        f"/api/file/upload?path={target}",
        "POST",
        data=data,
        headers={"Content-Type": "multipart/form-data; boundary=B"},
    )
    assert response.status_code == expected, await response.get_data()
    assert [each.name for each in target.parent.iterdir()] == (["file"] if expected == 200 else [])
    if expected == 200:
        assert target.read_bytes() == b"content"


@pytest.mark.parametrize(
    "kind", ["application/json", "multipart/form-data", "multipart/form-data; boundary=ü", ""]
)
async def test_a_body_that_is_no_form(gateway: Gateway, tmp_path: Path, kind: str) -> None:
    headers = {"Content-Type": kind} if kind else {}
    status, body = await gateway.call(
        "POST", f"/api/file/upload?path={tmp_path}/f", data=b"x", headers=headers
    )
    assert (status, body) == (415, {"detail": "The body must be multipart/form-data with a boundary"})
    assert not (tmp_path / "f").exists()


@pytest.mark.guarantee(name="workspace-routes")
async def test_a_page_of_another_site_stores_nothing(gateway: Gateway, tmp_path: Path) -> None:
    """A form needs no preflight: on a server without keys it is the Origin that refuses it."""
    headers = {"Content-Type": "multipart/form-data; boundary=B", "Origin": "https://evil.example"}
    for path in (f"/api/file/upload?path={tmp_path}/f", f"/api/file/create_directory?path={tmp_path}/f"):
        status, _ = await gateway.call("POST", path, data=form(FILE), headers=headers)
        assert status == 403
    assert not (tmp_path / "f").exists()


@pytest.mark.guarantee(name="clients-files-are-whole-and-bounded")
async def test_a_full_disk_is_told_and_leaves_nothing(
    gateway: Gateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.write

    def write(descriptor: int, data: Any) -> int:
        if threading.current_thread() is not threading.main_thread() and len(data) > 1000:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(descriptor, data)

    (tmp_path / "f").write_text("old")
    monkeypatch.setattr("supervisor.workspace.files.os.write", write)
    status, body = await send(gateway, tmp_path / "f", bytes(100_000))
    assert (status, body) == (507, {"detail": "There is no room on the disk: No space left on device."})
    monkeypatch.undo()
    assert (tmp_path / "f").read_text() == "old"
    assert not list(tmp_path.glob(".*.ostler"))


# -- sent


@pytest.mark.guarantee(name="workspace-routes")
async def test_what_cannot_be_downloaded(gateway: Gateway, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "file").touch()
    for path, status, detail in (
        ("relative", 400, "Path must be absolute"),
        (tmp_path / "missing", 404, "File not found"),
        (tmp_path / "file" / "below", 404, "File not found"),
        (tmp_path, 400, "Path is not a file"),
        ("/", 400, "Path is not a file"),
        (tmp_path / "pipe", 400, "Path is not a file"),
        (tmp_path / "loop", 400, "Path is not a file"),
        ("/dev/zero", 400, "Path is not a file"),
        ("/proc/self/environ", 403, "Files below /proc are not served: they tell of the server."),
        ("/proc/self/mem", 403, "Files below /proc are not served: they tell of the server."),
    ):
        with trio.fail_after(20):
            found = await gateway.call("GET", f"/api/file/download?path={path}")
        assert found == (status, {"detail": detail}), path


@pytest.mark.parametrize("name", ['quo"te', "new\nline", "ünï", "a;b=c", "back\\slash"])
async def test_a_name_cannot_leave_its_header(gateway: Gateway, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("x")
    response = await fetch(gateway, "/api/file/download", query_string={"path": str(tmp_path / name)})
    assert response.status_code == 200
    disposition = response.headers["Content-Disposition"]
    assert disposition.isascii()
    assert disposition.isprintable()
    if name != "a;b=c":
        assert disposition.startswith("attachment; filename*=utf-8''")


@pytest.mark.parametrize(
    ("asked", "status", "body", "told"),
    [
        ("bytes=2-4", 206, b"234", "bytes 2-4/10"),
        ("bytes=7-", 206, b"789", "bytes 7-9/10"),
        ("bytes=-2", 206, b"89", "bytes 8-9/10"),
        ("bytes=-20", 206, b"0123456789", "bytes 0-9/10"),
        ("bytes=8-99", 206, b"89", "bytes 8-9/10"),
        ("bytes=10-", 416, b"", "bytes */10"),
        ("bytes=0-1,4-5", 200, b"0123456789", None),
        ("bytes=4-2", 200, b"0123456789", None),
        ("lines=1-2", 200, b"0123456789", None),
        (None, 200, b"0123456789", None),
    ],
)
async def test_a_part_of_a_file_is_downloaded(
    gateway: Gateway, tmp_path: Path, asked: str | None, status: int, body: bytes, told: str | None
) -> None:
    """A download that broke off goes on where it was, and a player seeks."""
    (tmp_path / "f").write_bytes(b"0123456789")
    path, headers = f"/api/file/download?path={tmp_path}/f", {} if asked is None else {"Range": asked}
    response = await fetch(gateway, path, headers=headers)
    assert (response.status_code, await response.get_data()) == (status, body)
    assert response.headers.get("Content-Range") == told
    assert response.headers["Accept-Ranges"] == "bytes"
    assert response.headers["Content-Length"] == str(len(body))
    head = await fetch(gateway, path, "HEAD", headers=headers)
    assert (head.status_code, head.headers.get("Content-Range")) == (200, None)  # it has no ranges
    assert await head.get_data() == b""


async def test_a_file_of_a_time_that_no_calendar_has_is_downloaded(
    gateway: Gateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "f").write_bytes(b"0123456789")

    def beyond(seconds: int) -> str:
        raise ValueError("year 3170843 is out of range")

    monkeypatch.setattr("gateway.api.files.streaming.http_date", beyond)
    response = await fetch(gateway, f"/api/file/download?path={tmp_path}/f")
    assert (response.status_code, await response.get_data()) == (200, b"0123456789")
    assert "Last-Modified" not in response.headers


async def test_a_file_that_a_client_has_is_not_sent_again(gateway: Gateway, tmp_path: Path) -> None:
    file, path = tmp_path / "f", f"/api/file/download?path={tmp_path}/f"
    file.write_bytes(b"0123456789")
    found = (await fetch(gateway, path)).headers
    part = {"Range": "bytes=0-0"}
    for name, value in (("If-None-Match", found["ETag"]), ("If-Modified-Since", found["Last-Modified"])):
        response = await fetch(gateway, path, headers={name: value, **part})
        assert (response.status_code, await response.get_data()) == (304, b"")
        assert response.headers["ETag"] == found["ETag"]
    for value in (found["ETag"], found["Last-Modified"]):
        assert (await fetch(gateway, path, headers={"If-Range": value, **part})).status_code == 206
    file.write_bytes(b"another one")
    os.utime(file, (0, 0))
    for name, value in (("If-None-Match", found["ETag"]), ("If-Range", found["ETag"])):
        response = await fetch(gateway, path, headers={name: value, **(part if "Range" in name else {})})
        assert (response.status_code, await response.get_data()) == (200, b"another one")
    response = await fetch(gateway, path, headers={"If-Range": found["Last-Modified"], **part})
    assert (response.status_code, await response.get_data()) == (200, b"another one")


@pytest.fixture
async def client(server: Gateway) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(timeout=30, base_url=server.url) as opened:
        yield opened


async def test_an_answer_without_a_file_describes_none(client: httpx2.AsyncClient, tmp_path: Path) -> None:
    """What describes a body is that of the file: of 304 it would be wrong."""
    (tmp_path / "f").write_bytes(b"0123456789")
    path = f"/api/file/download?path={tmp_path}/f"
    found = (await client.get(path)).headers
    response = await client.get(path, headers={"If-None-Match": found["ETag"]})
    assert response.status_code == 304
    assert not {"content-length", "content-type"} & set(response.headers)


@pytest.mark.guarantee(name="clients-files-are-whole-and-bounded")
async def test_a_large_file_goes_both_ways_in_little_memory(
    client: httpx2.AsyncClient, tmp_path: Path
) -> None:
    """Larger than a body may be, and than memory should be."""
    size, piece = 80 * 1024 * 1024, os.urandom(1024 * 1024)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    async def body() -> AsyncIterator[bytes]:
        yield b'--B\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n'
        for _ in range(size // len(piece)):
            yield piece
        yield b"\r\n--B--\r\n"

    response = await client.post(
        "/api/file/upload",
        params={"path": str(tmp_path / "f")},
        content=body(),
        headers={"Content-Type": "multipart/form-data; boundary=B"},
    )
    assert (response.status_code, response.json()) == (200, {"success": True, "file_size": size})
    received = 0
    async with client.stream("GET", "/api/file/download", params={"path": str(tmp_path / "f")}) as answer:
        async for data in answer.aiter_bytes():
            received += len(data)
    assert received == size
    head = await client.head("/api/file/download", params={"path": str(tmp_path / "f")})
    assert (head.status_code, head.headers["Content-Length"]) == (200, str(size))
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert grown < 16 * PIECE_BYTES + 16 * 1024 * 1024


@pytest.mark.guarantee(name="clients-files-are-whole-and-bounded")
async def test_an_upload_that_is_too_large(server_with: Any, tmp_path: Path) -> None:
    async with (
        server_with(max_upload_bytes=3 * PIECE_BYTES) as server,
        httpx2.AsyncClient(timeout=30) as http,
    ):

        async def body() -> AsyncIterator[bytes]:
            yield b'--B\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n'
            for _ in range(5):
                yield bytes(PIECE_BYTES)

        kind = {"Content-Type": "multipart/form-data; boundary=B"}
        url = f"{server.url}/api/file/upload?path={tmp_path}/f"
        chunked = await http.post(url, content=body(), headers=kind)
        assert (chunked.status_code, chunked.json()) == (413, {"detail": "Request Entity Too Large"})
        told = await http.post(url, files={"file": bytes(4 * PIECE_BYTES)})
        assert told.status_code == 413
    assert not (tmp_path / "f").exists()
    assert not list(tmp_path.glob(".*.ostler"))


@pytest.mark.guarantee(name="clients-files-are-whole-and-bounded")
async def test_a_client_that_leaves_in_the_middle_leaves_nothing(server: Gateway, tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    stream = await trio.open_tcp_stream("127.0.0.1", int(server.url.rpartition(":")[2]))
    head = b"POST /api/file/upload?path=%b/d/f HTTP/1.1\r\nHost: localhost\r\n" % os.fsencode(tmp_path)
    head += b"Content-Type: multipart/form-data; boundary=B\r\nContent-Length: 9000000\r\n\r\n"
    await stream.send_all(head + form(FILE, end=b"") + bytes(3_000_000))
    with trio.fail_after(20):
        while not list((tmp_path / "d").iterdir()):
            await trio.sleep(0.01)
        await stream.aclose()
        while list((tmp_path / "d").iterdir()):
            await trio.sleep(0.01)


@pytest.mark.guarantee(name="clients-files-are-whole-and-bounded")
async def test_a_client_that_sends_too_slowly_is_told(server_with: Any, tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    async with server_with(body_seconds=0.2) as server:
        stream = await trio.open_tcp_stream("127.0.0.1", int(server.url.rpartition(":")[2]))
        head = b"POST /api/file/upload?path=%b/d/f HTTP/1.1\r\nHost: localhost\r\n" % os.fsencode(tmp_path)
        head += b"Content-Type: multipart/form-data; boundary=B\r\nContent-Length: 9000000\r\n\r\n"
        await stream.send_all(head + form(FILE, end=b""))
        with trio.fail_after(20):
            assert b" 408 " in await stream.receive_some()
        await stream.aclose()
    assert not list((tmp_path / "d").iterdir())


@pytest.mark.guarantee(name="clients-files-are-whole-and-bounded")
async def test_a_file_that_shrinks_while_it_is_sent_ends_the_connection(
    client: httpx2.AsyncClient, tmp_path: Path
) -> None:
    target = tmp_path / "f"
    with target.open("wb") as file:
        file.truncate(64 * 1024 * 1024)

    async def read() -> None:
        async with client.stream("GET", "/api/file/download", params={"path": str(target)}) as answer:
            async for _ in answer.aiter_bytes():
                os.truncate(target, 1)

    with trio.fail_after(20), pytest.raises(httpx2.TransportError):
        await read()


@pytest.mark.guarantee(name="clients-files-are-whole-and-bounded")
@pytest.mark.parametrize("size", [1, 1000, 200_000])
async def test_a_small_file_that_shrinks_is_answered_as_it_is(
    gateway: Gateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    target = tmp_path / "f"
    target.write_bytes(b"x" * size)
    opened = files.open_file

    def shrinking(place: Any) -> Any:
        found = opened(place)
        os.truncate(target, size // 2)
        return found

    monkeypatch.setattr(files, "open_file", shrinking)
    response = await fetch(gateway, f"/api/file/download?path={target}")
    data = await response.get_data(as_text=False)
    assert (response.status_code, data) == (200, b"x" * (size // 2))
    assert response.headers["Content-Length"] == str(size // 2)


@pytest.mark.guarantee(name="clients-files-are-whole-and-bounded")
async def test_downloads_have_their_places(server: Gateway, tmp_path: Path) -> None:
    """Each holds files open: also those whose clients do not read, over however many connections."""
    downloads = server.services.downloads
    downloads.limit = 5
    target = tmp_path / "f"
    with target.open("wb") as file:
        file.truncate(64 * 1024 * 1024)
    root = tmp_path / "d"
    root.mkdir()
    (root / "noise").write_bytes(os.urandom(8_000_000))
    paths = {"/api/file/download": {"path": str(target)}}
    paths["/api/file/archive"] = {"path": str(root), "format": "tar.gz"}
    async with AsyncExitStack() as stack:
        for url, query in [*paths.items()] * 2:
            one = await stack.enter_async_context(httpx2.AsyncClient(timeout=30, base_url=server.url))
            answer = await stack.enter_async_context(one.stream("GET", url, params=query))
            assert answer.status_code == 200
        assert downloads.taken == 4
        async with httpx2.AsyncClient(timeout=30, base_url=server.url) as another:
            for url, query in paths.items():
                refused = await another.get(url, params=query)
                assert (refused.status_code, "downloads" in refused.json()["detail"]) == (429, True)
            from_elsewhere = httpx2.AsyncHTTPTransport(local_address="127.0.0.2")
            async with httpx2.AsyncClient(transport=from_elsewhere, base_url=server.url) as other:
                path = "/api/file/download"
                async with other.stream("GET", path, params=paths[path]) as answer:
                    assert answer.status_code == 200
            assert (
                await another.head("/api/file/archive", params=paths["/api/file/archive"])
            ).status_code != 500
            small = tmp_path / "small"
            small.write_text("s")
            assert (await another.get("/api/file/download", params={"path": str(small)})).text == "s"
    with trio.fail_after(20):
        while downloads.taken:
            await trio.sleep(0.01)
    async with httpx2.AsyncClient(timeout=30, base_url=server.url) as another:
        found = await another.get("/api/file/archive", params=paths["/api/file/archive"])
        assert found.status_code == 200
    assert downloads.taken == 0


def asked(address: str, key: str | None = None) -> Any:
    return SimpleNamespace(remote_addr=address, headers={} if key is None else {"X-Session-API-Key": key})


def taken_by(downloads: Downloads, request: Any) -> list[Any]:
    """As many as it gets."""
    held = []
    with suppress(ApiError):
        while True:
            held.append(downloads.begin(request))
    return held


@pytest.mark.guarantee(name="clients-files-are-whole-and-bounded")
@pytest.mark.parametrize(("limit", "most"), [(1, 1), (2, 1), (3, 2), (4, 3), (12, 9), (64, 48)])
def test_one_client_leaves_places_for_others(limit: int, most: int) -> None:
    downloads = Downloads(limit)
    first = taken_by(downloads, asked("10.0.0.1"))
    others = [taken_by(downloads, asked(f"10.0.0.{number}")) for number in range(2, 70)]
    assert len(first) == most
    assert downloads.taken == len(first) + sum(map(len, others)) == limit
    assert all(len(each) <= most for each in others)
    first.clear()
    assert len(taken_by(downloads, asked("10.0.0.99"))) > 0
    del others
    assert downloads.taken == 0


def test_clients_are_told_apart_by_their_keys_where_there_are_keys() -> None:
    open_to_all, keyed = Downloads(4), Downloads(4, keyed=True)
    for downloads, more in ((open_to_all, 0), (keyed, 1)):
        held = taken_by(downloads, asked("10.0.0.1", "one"))
        assert len(held) == 3
        assert len(taken_by(downloads, asked("10.0.0.1", "two"))) == more


@pytest.mark.guarantee(name="clients-files-are-whole-and-bounded")
def test_a_slot_is_released_once() -> None:
    downloads = Downloads(2)
    held = [downloads.begin(asked("10.0.0.1")), downloads.begin(asked("10.0.0.2"))]
    with pytest.raises(ApiError):
        downloads.begin(asked("10.0.0.3"))
    held[0].release()
    held[0].release()
    assert downloads.taken == 1
    del held
    assert downloads.taken == 0


async def test_a_file_that_grows_is_sent_as_it_was(client: httpx2.AsyncClient, tmp_path: Path) -> None:
    target = tmp_path / "f"
    target.write_bytes(bytes(2_000_000))
    received = 0
    async with client.stream("GET", "/api/file/download", params={"path": str(target)}) as answer:
        with target.open("ab") as file:
            file.write(bytes(1_000_000))
        async for data in answer.aiter_bytes():
            received += len(data)
    assert received == 2_000_000


# -- below a conversation, and within the workspaces


async def test_below_a_conversation_paths_are_of_its_workspace(gateway: Gateway, tmp_path: Path) -> None:
    workspace = tmp_path / "w"
    workspace.mkdir()
    (tmp_path / "secret").write_text("s")
    (workspace / "out").symlink_to(tmp_path / "secret")
    conversation = await gateway.conversation()
    conversation.request = conversation.request.__class__(working_dir=str(workspace))
    base = f"/api/conversations/{conversation.id}"
    assert await send(gateway, "sub/f", b"x", base) == (200, {"success": True, "file_size": 1})
    assert await send(gateway, workspace / "g", b"y", base) == (200, {"success": True, "file_size": 1})
    assert (workspace / "sub" / "f").read_bytes() == b"x"
    response = await fetch(gateway, f"{base}/file/download?path=sub/f")
    assert await response.get_data(as_text=False) == b"x"
    assert (await gateway.call("POST", f"{base}/file/create_directory?path=new"))[0] == 200
    for path in ("../secret", str(tmp_path / "secret"), "out", "sub/../../secret", "/etc/passwd"):
        status, body = await gateway.call("GET", f"{base}/file/download?path={path}")
        assert status == 422
        assert "must be inside the conversation workspace" in str(body["detail"])
    status, _ = await gateway.call("GET", f"/api/conversations/{'0' * 32}/file/download?path=x")
    assert status == 404


@pytest.mark.parametrize("access", [Access.ALL, Access.WORKSPACES])
@pytest.mark.parametrize("scoped", [False, True])
@pytest.mark.parametrize("below", ["", "deep", "deep/er"])
async def test_a_client_that_writes_before_the_agent_starts_makes_the_workspace(
    gateway_with: Any, tmp_path: Path, access: Access, scoped: bool, below: str
) -> None:
    """As the agent's start makes it: a repository, whose changes clients show."""
    outer, inner = tmp_path / "w", tmp_path / "w" / "deep"
    async with gateway_with(workspace_access=access) as gateway:
        for directory in (inner, outer):
            conversation, _ = await gateway.supervisor.create(StartRequest(working_dir=str(directory)))
        base = f"/api/conversations/{conversation.id}" if scoped else "/api"
        if below:
            made = below if scoped else outer / below
            assert (await gateway.call("POST", f"{base}/file/create_directory?path={made}"))[0] == 200
        assert (await send(gateway, outer / below / "f", b"x", base))[0] == 200
        status, changed = await gateway.call("GET", f"{base}/git/changes?path={outer}")
        assert (status, [each["path"] for each in changed]) == (200, [os.path.join(below, "f")])
    assert not (inner / ".git").exists(), "it is inside of a repository"


async def test_other_directories_are_no_repositories(gateway: Gateway, tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.mkdir()
    for directory in (there, tmp_path / "w"):
        await gateway.supervisor.create(StartRequest(working_dir=str(directory)))
    for parent in (there, tmp_path / "w-too", tmp_path / "other" / "deep"):
        assert (await send(gateway, parent / "f", b"x"))[0] == 200
    assert not (tmp_path / "w").exists()
    assert not list(tmp_path.rglob(".git"))


@pytest.mark.guarantee(name="workspace-routes")
async def test_nothing_leads_out_of_the_workspaces(gateway_with: Any, tmp_path: Path) -> None:
    inside, secret = tmp_path / "w", tmp_path / "secret"
    inside.mkdir()
    secret.mkdir()
    (secret / "f").write_text("s")
    (inside / "link").symlink_to(secret)
    (inside / "f").write_text("mine")
    async with gateway_with(workspace_access=Access.WORKSPACES) as gateway:
        conversation = await gateway.conversation()
        conversation.request = conversation.request.__class__(working_dir=str(inside))
        assert (await fetch(gateway, f"/api/file/download?path={inside}/f")).status_code == 200
        outside = (f"{secret}/f", f"{inside}/link/f", f"{inside}/../secret/f", "/etc/passwd")
        for path in outside:
            assert (await gateway.call("GET", f"/api/file/download?path={path}"))[0] == 403, path
            assert (await send(gateway, path, b"x"))[0] == 403, path
            assert (await gateway.call("POST", f"/api/file/create_directory?path={path}/n"))[0] == 403, path
            assert (await gateway.call("GET", f"/api/file/archive?path={path}"))[0] == 403, path
            assert (await gateway.call("GET", f"/api/git/changes?path={path}"))[0] == 403, path
        assert (await gateway.call("GET", f"/api/file/search_subdirs?path={secret}"))[0] == 403
    assert (secret / "f").read_text() == "s"


@pytest.mark.guarantee(name="workspace-routes")
async def test_a_link_that_is_put_there_meanwhile_leads_nowhere(
    gateway_with: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The moment between the look at a path and its opening."""
    inside, secret = tmp_path / "w", tmp_path / "secret"
    (inside / "d").mkdir(parents=True)
    secret.mkdir()
    (secret / "f").write_text("s")
    (inside / "d" / "f").write_text("mine")
    async with gateway_with(workspace_access=Access.WORKSPACES) as gateway:
        conversation = await gateway.conversation()
        conversation.request = conversation.request.__class__(working_dir=str(inside))
        admit = gateway.services.access.admit

        async def exchanged(path: str, **more: Any) -> Any:
            place = await admit(path, **more)
            if (inside / "d").is_dir() and not (inside / "d").is_symlink():
                (inside / "d").rename(inside / "aside")
                (inside / "d").symlink_to(secret)
            return place

        monkeypatch.setattr(type(gateway.services.access), "admit", staticmethod(exchanged))
        status, body = await gateway.call("GET", f"/api/file/download?path={inside}/d/f")
        assert (status, body) == (404, {"detail": "File not found"})
        (inside / "d").unlink()
        (inside / "aside").rename(inside / "d")
        status, body = await send(gateway, inside / "d" / "f", b"theirs")
        assert (status, body) == (400, {"detail": "A parent of the path is not a directory"})
    assert (secret / "f").read_text() == "s"
    assert sorted(each.name for each in secret.iterdir()) == ["f"]


async def test_switched_off_is_off(gateway_with: Any, tmp_path: Path) -> None:
    (tmp_path / "f").write_text("x")
    async with gateway_with(workspace_access=Access.OFF) as gateway:
        conversation = await gateway.conversation()
        scoped = f"/api/conversations/{conversation.id}"
        for method, path in (
            ("GET", f"/api/file/download?path={tmp_path}/f"),
            ("GET", f"/api/file/archive?path={tmp_path}"),
            ("GET", f"/api/file/search_subdirs?path={tmp_path}"),
            ("POST", f"/api/file/create_directory?path={tmp_path}/d"),
            ("GET", f"/api/git/changes?path={tmp_path}"),
            ("GET", f"/api/git/diff?path={tmp_path}/f"),
            ("GET", f"/api/git/commits?path={tmp_path}"),
            ("GET", f"{scoped}/file/download?path=f"),
            ("GET", f"{scoped}/git/changes?path=."),
            ("GET", f"{scoped}/workspace/f"),
        ):
            status, body = await gateway.call(method, path)
            assert status == 403, path
            assert "OSTLER_WORKSPACE_ACCESS" in body["detail"]
        assert (await send(gateway, tmp_path / "g", b"x"))[0] == 403
        # A conversation is not a file.
        response = await fetch(gateway, f"/api/file/download-trajectory/{conversation.id}")
        assert response.status_code == 200


# -- archives


def members(data: bytes) -> dict[str, bytes | None]:
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as archive:
        return {
            each.name: None if each.isdir() else (archive.extractfile(each) or io.BytesIO()).read()
            for each in archive
        }


async def archived(gateway: Gateway, path: Path, more: str = "") -> dict[str, bytes | None]:
    response = await fetch(gateway, f"/api/file/archive?path={path}&format=tar.gz{more}")
    assert (response.status_code, response.content_type) == (200, "application/gzip")
    return members(await response.get_data(as_text=False))


async def test_a_directory_as_an_archive(gateway: Gateway, tmp_path: Path) -> None:
    root = tmp_path / "d"
    (root / "sub" / "empty").mkdir(parents=True)
    (root / "node_modules").mkdir()
    (root / "node_modules" / "x").touch()
    (root / "large").write_bytes(bytes(700_000))
    (root / "build").write_text("a file of that name")
    (root / "sub" / "ünï").write_text("u")
    (root / "link").symlink_to("/etc/passwd")
    os.mkfifo(root / "pipe")
    raw = os.fsdecode(b"bad\xff")
    (root / raw).write_text("r")
    found = await archived(gateway, root)
    manifest = orjson.loads(found.pop("d/archive_manifest.json") or b"")
    assert found == {
        "d": None,
        "d/sub": None,
        "d/sub/empty": None,
        "d/large": bytes(700_000),
        "d/build": b"a file of that name",
        "d/sub/ünï": b"u",
        f"d/{raw}": b"r",
    }
    assert (manifest["file_count"], manifest["total_bytes"]) == (4, 700_000 + 21)
    assert "d/node_modules/x" in await archived(gateway, root, "&use_default_excludes=false")
    few = await archived(gateway, root, "&exclude=sub/&exclude=l*")
    assert set(few) == {"d", "d/build", f"d/{raw}", "d/archive_manifest.json"}


@pytest.mark.guarantee(name="workspace-routes")
async def test_an_archive_has_no_credentials_of_git(gateway: Gateway, tmp_path: Path) -> None:
    root = repository(tmp_path / "r", a="1")
    git(root, "remote", "add", "origin", "https://user:TOKEN@example.org/r.git?key=TOKEN")
    response = await fetch(gateway, f"/api/file/archive?path={root}&format=tar.gz&use_default_excludes=0")
    found = members(await response.get_data(as_text=False))
    assert "r/.git/HEAD" in found
    assert not {"r/.git/config", "r/.git/logs/HEAD"} & set(found)
    assert not any(b"TOKEN" in (content or b"") for content in found.values())
    assert response.headers["X-Archive-Repo-Remote"] == "https%3A%2F%2Fexample.org%2Fr.git"
    assert response.headers["X-Archive-Branch"] == "main"
    assert response.headers["X-Archive-Head-Commit"] == git(root, "rev-parse", "HEAD")


@pytest.mark.guarantee(name="workspace-routes")
@pytest.mark.parametrize(
    "place", [".git", ".git/modules", "bare", "bare/..", "elsewhere/meta", "bare/worktrees/w"]
)
async def test_a_git_directory_of_any_name_shows_no_credentials(
    gateway: Gateway, tmp_path: Path, place: str
) -> None:
    root = repository(tmp_path / "r", a="1")
    git(root, "remote", "add", "origin", "https://user:TOKEN@example.org/r.git")
    shutil.copytree(root / ".git", root / ".git/modules/m")
    shutil.copytree(root / ".git", root / "bare")
    (root / "bare/worktrees/w").mkdir(parents=True)
    (root / "bare/worktrees/w/config.worktree").write_text("TOKEN")
    shutil.copytree(root / ".git", root / "elsewhere/meta")
    found = await archived(gateway, (root / place).resolve(), "&use_default_excludes=0")
    assert len(found) > 1
    assert not any(b"TOKEN" in (content or b"") for content in found.values())
    assert not [name for name in found if name.endswith(("/config", "/logs/HEAD"))]
    # What looks like one and is none keeps its files.
    (root / "app/objects").mkdir(parents=True)
    (root / "app/config").write_text("mine")
    assert (await archived(gateway, root / "app"))["app/config"] == b"mine"


async def test_a_part_of_git_that_is_all_credentials_is_not_archived(
    gateway: Gateway, tmp_path: Path
) -> None:
    root = repository(tmp_path / "r", a="1")
    path = f"/api/file/archive?path={root}/.git/logs&format=tar.gz"
    assert (await gateway.call("GET", path))[0] == 400


@pytest.mark.guarantee(name="workspace-routes")
@pytest.mark.parametrize("place", ["/proc", "/proc/self", "/proc/self/task"])
@pytest.mark.parametrize("kind", ["tar.gz", "git-delta"])
async def test_what_the_kernel_tells_of_processes_is_not_archived(
    gateway: Gateway, place: str, kind: str
) -> None:
    status, answer = await gateway.call("GET", f"/api/file/archive?path={place}&format={kind}")
    assert (status, "/proc" in answer["detail"]) == (403, True)
    assert (await gateway.call("GET", f"/api/file/search_subdirs?path={place}"))[0] == 403


@pytest.mark.guarantee(name="clients-files-are-whole-and-bounded")
async def test_an_archive_is_whole_whatever_happens_meanwhile(
    client: httpx2.AsyncClient, tmp_path: Path
) -> None:
    root = tmp_path / "d"
    root.mkdir()
    noise = os.urandom(3_000_000)
    for number in range(12):
        (root / f"{number:02}").write_bytes(noise)
    data = bytearray()
    async with client.stream(
        "GET", "/api/file/archive", params={"path": str(root), "format": "tar.gz"}
    ) as answer:
        async for piece in answer.aiter_raw():
            data += piece
            for each in root.iterdir():
                os.truncate(each, 10)
    found = members(bytes(data))
    assert len(found) == 14
    assert all(
        content is None or len(content) in (10, 3_000_000)
        for name, content in found.items()
        if "manifest" not in name
    )


async def test_the_changes_of_a_repository_as_a_patch(gateway: Gateway, tmp_path: Path) -> None:
    root = repository(tmp_path / "w" / "r", a="1\n")
    (root / "a").write_text("2\n")
    for path in (root, root.parent):  # the only repository below counts
        response = await fetch(gateway, f"/api/file/archive?path={path}")
        assert (response.status_code, response.content_type) == (200, "text/x-patch; charset=utf-8")
        assert response.headers["X-Archive-Base-Commit"] == git(root, "rev-parse", "HEAD")
        assert response.headers["Content-Disposition"] == 'attachment; filename="r.patch"'
        made = await response.get_data(as_text=False)
        assert b"-1\n+2\n" in made
    git(root, "checkout", "-q", "a")
    subprocess.run(["git", "apply"], cwd=root, input=made, check=True)
    assert (root / "a").read_text() == "2\n"
    for path, detail in ((tmp_path, "Not a git repository: "), (tmp_path / "no", "Directory not found")):
        repository(tmp_path / "w" / "other")
        _, body = await gateway.call("GET", f"/api/file/archive?path={path}")
        assert body["detail"].startswith(detail)
    for ref in ("-x", "nonsense"):
        assert (await gateway.call("GET", f"/api/file/archive?path={root}&base_ref={ref}"))[0] == 400


@pytest.mark.parametrize(
    ("path", "patterns", "directory", "excluded"),
    [
        ("a/build", ["build/"], True, True),
        ("a/build", ["build/"], False, False),
        ("build/x", ["build/"], False, True),
        ("x.pyc", ["*.pyc"], False, True),
        ("secrets/prod/key", ["secrets/prod"], False, True),
        ("a/secrets/prod", ["secrets/prod"], False, False),
        ("a/b/test", ["*/test"], False, False),
        ("a/x/c", ["a/*/c"], False, True),
        ("a", ["/", ""], False, False),
    ],
)
def test_patterns(path: str, patterns: list[str], directory: bool, excluded: bool) -> None:
    assert is_excluded(path.split("/"), patterns, directory=directory) == excluded


def test_what_of_git_may_hold_credentials() -> None:
    assert all(map(may_hold_credentials, ("config", "config.worktree", "logs", "FETCH_HEAD", "credentials")))
    assert not any(map(may_hold_credentials, (".git", "HEAD", "objects", "configs")))


# -- a conversation as an archive


@pytest.mark.guarantee(name="clients-files-are-whole-and-bounded")
async def test_a_conversation_as_an_archive(gateway: Gateway) -> None:
    conversation = await gateway.conversation(title="Fix")
    said = [
        MessageEvent(source="user", llm_message=Message(role="user", content=(TextContent(text=f"{n}"),)))
        for n in range(450)
    ]
    await conversation.record(*said)
    base = conversation.id.replace("-", "")
    for path in (
        f"/api/file/download-trajectory/{base}",
        f"/api/conversations/{conversation.id}/file/download-trajectory/{conversation.id}",
    ):
        response = await fetch(gateway, path)
        assert (response.status_code, response.content_type) == (200, "application/octet-stream")
        assert response.headers["Content-Disposition"] == f'attachment; filename="{base}.zip"'
        archive = zipfile.ZipFile(io.BytesIO(await response.get_data(as_text=False)))
        assert archive.testzip() is None
        names = archive.namelist()
        assert names[0] == f"{base}/meta.json"
        assert names[1:] == [f"{base}/events/event-{n:05}-{each.id}.json" for n, each in enumerate(said)]
        assert orjson.loads(archive.read(names[0]))["title"] == "Fix"
        assert orjson.loads(archive.read(names[-1]))["id"] == said[-1].id
    other = await gateway.conversation()
    assert (await gateway.call("GET", f"/api/conversations/{other.id}/file/download-trajectory/{base}"))[
        0
    ] == 422
    assert (await gateway.call("GET", f"/api/file/download-trajectory/{'0' * 32}"))[0] == 404
    assert (await gateway.call("GET", "/api/file/download-trajectory/x"))[0] == 422
