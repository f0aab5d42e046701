"""The description for people: what is shipped, what is served, and what a browser is allowed with it."""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import io
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from html.parser import HTMLParser
from pathlib import Path

import httpx2
import orjson
import pytest
import trio

from gateway.api.sockets import websocket as connection
from gateway.pages import docs, shipped

ROOT = Path(__file__).resolve().parents[2]
SWAGGER = docs.ASSETS / "swagger-ui"
LOCK = orjson.loads((SWAGGER / "lock.json").read_bytes())

PAGE = "/docs"
REDOC = "/redoc"
"""Where the peer has a second page; `server_info` names both."""
SOCKETS = "/docs/sockets.html"
"""What OpenAPI cannot describe."""
LOADED = ("/docs/start.js", "/docs/swagger-ui-bundle.js", "/docs/swagger-ui.css")
TYPES = {".js": "text/javascript", ".css": "text/css"}


async def get(server, path, **headers):
    """The answer, and its body as it is sent."""
    asked = {
        "Accept-Encoding": "identity",
        **{name.replace("_", "-"): text for name, text in headers.items()},
    }
    async with (
        httpx2.AsyncClient(timeout=20) as client,
        client.stream("GET", server.url + path, headers=asked) as found,
    ):
        return found, b"".join([piece async for piece in found.aiter_raw()])


class Page(HTMLParser):
    """What a page loads and points to, and what it holds inline."""

    def __init__(self, text):
        super().__init__()
        self.loads, self.points, self.inline, self._in = [], [], [], None
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self._in = tag if tag in ("script", "style") else None
        self.inline += [name for name in given if name.startswith("on") or name == "style"]
        if tag == "a":
            self.points.append(given["href"])
        elif tag in ("script", "link", "img"):
            self.loads.append(given.get("src") or given.get("href"))

    def handle_data(self, data):
        if self._in and data.strip():
            self.inline.append(data)

    def handle_endtag(self, tag):
        self._in = None


async def test_the_page_loads_what_is_served_here(server):
    found, body = await get(server, PAGE)
    assert (found.status_code, found.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    page = Page(body.decode())
    assert page.inline == []
    own = [name for name in page.loads if not name.startswith("data:")]
    assert sorted(f"/{name}" for name in own) == sorted(LOADED)
    for name in [*page.points, "openapi.json"]:
        assert (await get(server, f"/{name}"))[0].status_code == 200
    for name in own:
        found, _ = await get(server, f"/{name}", Accept_Encoding="gzip")
        assert found.status_code == 200
        assert found.headers["Content-Type"] == f"{TYPES[Path(name).suffix]}; charset=utf-8"
        assert found.headers["X-Content-Type-Options"] == "nosniff"


async def test_the_page_of_sockets_has_every_socket_with_its_query_and_close_codes(server):
    found, body = await get(server, SOCKETS)
    text = body.decode()
    assert (found.status_code, found.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    page = Page(text)
    assert (page.inline, page.points) == ([], ["../docs"])
    sockets = {rule.rule for rule in server.app.url_map.iter_rules() if rule.websocket}
    named = re.findall(r"<td><code>(/(?:sockets/|acp)[^<]*)</code>", text)
    assert {name.replace("CONVERSATION_ID", "<conversation_id>") for name in named} == sockets
    codes = {value for name, value in vars(connection).items() if name.isupper() and isinstance(value, int)}
    assert {int(code) for code in re.findall(r"<tr><td>(\d+)</td>", text)} == {
        code for code in codes if 1000 <= code < 5000
    }
    for parameter in ("after_seq", "resend_mode", "after_timestamp", "session_api_key"):
        assert parameter in text
    _, document = await get(server, "/openapi.json")
    assert f"]({SOCKETS.removeprefix('/')})" in orjson.loads(document)["info"]["description"]


async def test_the_second_page_is_the_first_one(server):
    first, body = await get(server, PAGE)
    second, same = await get(server, REDOC)
    assert (second.status_code, same) == (200, body)
    for name in ("Content-Type", "Content-Security-Policy"):
        assert second.headers[name] == first.headers[name]
    _, told = await get(server, "/server_info")
    assert (orjson.loads(told)["docs"], orjson.loads(told)["redoc"]) == (PAGE, REDOC)


@pytest.mark.guarantee(name="web-pages")
async def test_nothing_is_asked_of_another_server(server):
    for path in (PAGE, SOCKETS, *LOADED):
        found, _ = await get(server, path)
        rules = dict(
            rule.strip().split(" ", 1) for rule in found.headers["Content-Security-Policy"].split(";")
        )
        assert rules["default-src"] == "'none'"
        assert rules["script-src"] == rules["style-src"] == rules["connect-src"] == "'self'"
        assert rules["base-uri"] == rules["form-action"] == rules["frame-ancestors"] == "'none'"
        named = set(" ".join(rules.values()).split())
        assert named <= {"'none'", "'self'", "data:"}
    for path in (PAGE, SOCKETS, "/docs/start.js"):
        _, body = await get(server, path)
        assert not re.search(r"(?i)https?:|\"//|'//|url\(", body.decode())


@pytest.mark.guarantee(name="web-pages")
async def test_the_renderer_is_started_on_our_description_and_keeps_no_key(server):
    _, body = await get(server, "/docs/start.js")
    code = body.decode()
    assert 'url: "openapi.json"' in code
    for setting in ("persistAuthorization: false", "queryConfigEnabled: false", "validatorUrl: null"):
        assert setting in code


async def test_a_key_can_be_entered(server):
    _, body = await get(server, "/openapi.json")
    document = orjson.loads(body)
    scheme = document["components"]["securitySchemes"]["SessionKey"]
    assert (scheme["type"], scheme["in"], scheme["name"]) == ("apiKey", "header", "X-Session-API-Key")
    for path, operations in document["paths"].items():
        for operation in operations.values():
            asked = {"SessionKey": []} in operation.get("security", [])
            assert asked == (path.startswith("/api/") or path == "/metrics"), path


@pytest.mark.parametrize("path", [PAGE, REDOC, SOCKETS, *LOADED])
async def test_no_key_is_needed_to_read(server_with, path):
    async with server_with(session_api_keys=("k",)) as server:
        assert (await get(server, path))[0].status_code == 200
        assert (await get(server, "/api/status"))[0].status_code == 401


@pytest.mark.guarantee(name="web-pages")
@pytest.mark.parametrize("path", [PAGE, REDOC, SOCKETS, *LOADED])
async def test_a_rebound_name_reads_no_page(server, path):
    assert (await get(server, path, Host="evil.example"))[0].status_code == 421


@pytest.mark.parametrize("name", ["swagger-ui-bundle.js", "swagger-ui.css"])
async def test_what_is_sent_is_what_the_lock_names(server, name):
    packed, body = await get(server, f"/docs/{name}", Accept_Encoding="gzip, deflate, br")
    assert packed.headers["Content-Encoding"] == "gzip"
    assert int(packed.headers["Content-Length"]) == len(body) < 500_000
    assert hashlib.sha256(gzip.decompress(body)).hexdigest() == LOCK["sha256"][name]
    for accepted in ("", "identity", "br", "gzip;q=0"):
        plain, body = await get(server, f"/docs/{name}", Accept_Encoding=accepted)
        assert "Content-Encoding" not in plain.headers
        assert hashlib.sha256(body).hexdigest() == LOCK["sha256"][name]
    assert plain.headers["ETag"] != packed.headers["ETag"]
    for found in (plain, packed):
        assert "Accept-Encoding" in ",".join(found.headers.get_list("Vary"))


@pytest.mark.parametrize("path", [PAGE, REDOC, SOCKETS, *LOADED])
async def test_a_browser_keeps_its_copy_until_it_is_another(server, path):
    first, body = await get(server, path, Accept_Encoding="gzip")
    assert first.headers["Cache-Control"] == "no-cache"
    tag = first.headers["ETag"]
    for known in (tag, f"W/{tag}", f'"other", {tag}'):
        found, nothing = await get(server, path, Accept_Encoding="gzip", If_None_Match=known)
        assert (found.status_code, nothing) == (304, b"")
        assert found.headers["ETag"] == tag
    again, same = await get(server, path, Accept_Encoding="gzip", If_None_Match='"other"')
    assert (again.status_code, same) == (200, body)


@pytest.mark.parametrize("accepted", [b"gzip", b"identity"])
async def test_a_slow_client_holds_a_piece_and_not_the_file(gateway, accepted):
    """Who has no key must not make the server hold half a megabyte for each connection."""
    sizes = []
    telling, told = trio.open_memory_channel(1)
    telling.send_nowait({"type": "http.request", "body": b"", "more_body": False})

    async def send(message):
        if message["type"] == "http.response.body":
            sizes.append(len(message["body"]))

    scope = {
        "type": "http",
        "asgi": {},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": "/docs/swagger-ui-bundle.js",
        "raw_path": b"/docs/swagger-ui-bundle.js",
        "query_string": b"",
        "root_path": "",
        "headers": [(b"host", b"localhost"), (b"accept-encoding", accepted)],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 2),
    }
    with trio.fail_after(20):
        await gateway.app(scope, told.receive, send)
    assert sum(sizes) > 400_000
    assert max(sizes) <= shipped.PIECE_BYTES


@pytest.mark.parametrize("path", ["/docs/lock.json", "/docs/LICENSE", "/docs/..%2fdocs.py"])
async def test_nothing_else_is_served(server, path):
    assert (await get(server, path))[0].status_code == 404


@pytest.mark.guarantee(name="web-pages")
def test_what_is_shipped_is_what_the_lock_names():
    assert LOCK["integrity"].startswith("sha512-")
    assert re.fullmatch(r"\d+\.\d+\.\d+", LOCK["version"])
    for name, digest in LOCK["sha256"].items():
        packed = SWAGGER / f"{name}.gz"
        content = gzip.decompress(packed.read_bytes()) if packed.exists() else (SWAGGER / name).read_bytes()
        assert hashlib.sha256(content).hexdigest() == digest, f"{name}: run scripts/vendor-docs"
    assert "Apache License" in (SWAGGER / "LICENSE").read_text()
    shipped = {path.name.removesuffix(".gz") for path in SWAGGER.iterdir()}
    assert shipped == {*LOCK["sha256"], "lock.json"}


@pytest.fixture
def vendor(tmp_path, monkeypatch):
    """`scripts/vendor-docs`, which writes into a directory of the test's own and gets what the test packs."""
    spec = importlib.util.spec_from_file_location("vendor_docs", ROOT / "scripts" / "vendor_docs.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.PLACE = tmp_path / "swagger-ui"
    module.LOCK = module.PLACE / "lock.json"

    def run(version, content, *, given=True):
        def fetch(package, asked, place):
            assert (package, asked) == (module.PACKAGE, version)
            archive = Path(place) / "package.tgz"
            with tarfile.open(archive, "w:gz") as package:
                for name in (*module.SERVED, *module.LICENCES):
                    entry = tarfile.TarInfo(f"package/{name}")
                    entry.size = len(content)
                    package.addfile(entry, io.BytesIO(content))
            return archive

        module.fetch = fetch
        monkeypatch.setattr(sys, "argv", ["vendor-docs", *([version] if given else [])])
        module.main()

    run.place = module.PLACE
    return run


def test_another_package_of_the_same_version_is_refused(vendor, capsys):
    vendor("1.0.0", b"what was looked at")
    before = {path.name: path.read_bytes() for path in vendor.place.iterdir()}
    assert set(before) == {path.name for path in SWAGGER.iterdir()}
    assert gzip.decompress(before["swagger-ui.css.gz"]) == b"what was looked at"
    for given in (True, False):
        with pytest.raises(SystemExit, match=r"is not what .* names"):
            vendor("1.0.0", b"something else", given=given)
    assert {path.name: path.read_bytes() for path in vendor.place.iterdir()} == before
    vendor("1.0.1", b"something newer")
    lock = orjson.loads((vendor.place / "lock.json").read_bytes())
    assert lock["version"] == "1.0.1"
    assert lock["integrity"] != orjson.loads(before["lock.json"])["integrity"]


def test_the_wheel_holds_all_that_is_served(tmp_path):
    tree = tmp_path / "tree"
    tree.mkdir()
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    for name in ("gateway", "supervisor"):
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    code = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], cwd=tree, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr[-2000:]
    [wheel] = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())
    for path in docs.ASSETS.rglob("*"):
        if path.is_file():
            assert f"gateway/pages/docs_assets/{path.relative_to(docs.ASSETS)}" in held
    assert any(name.endswith("licenses/gateway/pages/docs_assets/swagger-ui/LICENSE") for name in held)
