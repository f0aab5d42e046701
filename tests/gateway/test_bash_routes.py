"""Commands over HTTP: the shapes of the wire, the paths below a conversation, what is refused."""

from __future__ import annotations

import re

import orjson
import pytest
import trio
from jsonschema import Draft202012Validator

from gateway.api.routes.conversations import conversations
from gateway.api.routes.workspace import bash as bash_routes
from gateway.configuration.config import load_supervision
from supervisor.conversations.state.start import StartRequest
from supervisor.journal.errors import JournalUnavailable
from supervisor.workspace.access import Access
from tests.support.processes import mentioning

WAIT_S = 30.0
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")
HEX = re.compile(r"[0-9a-f]{32}")


def dashed(id_):
    return f"{id_[:8]}-{id_[8:12]}-{id_[12:16]}-{id_[16:20]}-{id_[20:]}"


async def call(gateway, method, path, body=None, status=200, **more):
    with trio.fail_after(WAIT_S):
        found, answer = await gateway.call(method, path, body, **more)
    assert found == status, answer
    return answer


async def validated(gateway, method, path, answer, status="200"):
    """The answer against what the description says of it."""
    description = await call(gateway, "GET", "/openapi.json")
    schema = description["paths"][path][method.lower()]["responses"][status]["content"]["application/json"]
    Draft202012Validator({**schema["schema"], "components": description["components"]}).validate(answer)


async def in_workspace(gateway, tmp_path):
    """A conversation whose workspace is not there yet, and the beginning of its paths."""
    conversation, _ = await gateway.supervisor.create(StartRequest(working_dir=str(tmp_path / "w")))
    return conversation, f"/api/conversations/{conversation.id}/bash"


async def test_a_command_is_run_to_its_end(gateway, tmp_path):
    body = {"command": "echo hi; echo err >&2; exit 3", "cwd": str(tmp_path), "timeout": 30}
    answer = await call(gateway, "POST", "/api/bash/execute_bash_command", body)
    assert HEX.fullmatch(answer["id"])
    assert HEX.fullmatch(answer["command_id"])
    assert TIME.fullmatch(answer["timestamp"])
    assert answer == {
        "id": answer["id"],
        "timestamp": answer["timestamp"],
        "command_id": answer["command_id"],
        "order": 0,
        "exit_code": 3,
        "stdout": "hi\n",
        "stderr": "err\n",
        "kind": "BashOutput",
    }
    await validated(gateway, "POST", "/api/bash/execute_bash_command", answer)
    quiet = await call(gateway, "POST", "/api/bash/execute_bash_command", {"command": "true"})
    assert (quiet["stdout"], quiet["stderr"], quiet["exit_code"]) == (None, None, 0)


async def test_a_command_is_started_watched_and_stopped(gateway):
    started = await call(
        gateway, "POST", "/api/bash/start_bash_command", {"command": "sleep 300", "cwd": None}
    )
    assert started == {
        "command": "sleep 300",
        "cwd": None,
        "timeout": 300,
        "id": started["id"],
        "timestamp": started["timestamp"],
        "kind": "BashCommand",
    }
    await validated(gateway, "POST", "/api/bash/start_bash_command", started)
    poll = (
        "/api/bash/bash_events/search?kind__eq=BashOutput&sort_order=TIMESTAMP&limit=100"
        f"&command_id__eq={started['id']}"
    )
    assert await call(gateway, "GET", poll) == {"items": [], "next_page_id": None}
    stop = f"/api/bash/bash_commands/{dashed(started['id'])}/stop"
    assert await call(gateway, "POST", stop) == {"success": True}
    page = await call(gateway, "GET", poll)
    assert [(item["order"], item["exit_code"]) for item in page["items"]] == [(0, -15)]
    assert (await call(gateway, "GET", f"{poll}&order__gt=0"))["items"] == []
    assert len((await call(gateway, "GET", f"{poll}&order__gt=-1"))["items"]) == 1
    assert await call(gateway, "POST", stop) == {"success": True}  # it has ended already
    none = f"/api/bash/bash_commands/{'0' * 32}/stop"
    assert await call(gateway, "POST", none, status=404) == {"detail": "Not Found"}
    await call(gateway, "POST", "/api/bash/bash_commands/none/stop", status=422)


async def test_events_are_found_by_id_searched_and_cleared(gateway):
    for word in ("one", "two", "three"):
        await call(gateway, "POST", "/api/bash/execute_bash_command", {"command": f"echo {word}"})
    page = await call(gateway, "GET", "/api/bash/bash_events/search")
    await validated(gateway, "GET", "/api/bash/bash_events/search", page)
    assert [item["kind"] for item in page["items"]] == ["BashCommand", "BashOutput"] * 3
    first, *_, last = page["items"]
    newest = await call(gateway, "GET", "/api/bash/bash_events/search?sort_order=TIMESTAMP_DESC&limit=1")
    assert newest["items"] == [last]
    rest, page_id = [], newest["next_page_id"]
    while page_id:
        path = f"/api/bash/bash_events/search?sort_order=TIMESTAMP_DESC&limit=2&page_id={page_id}"
        more = await call(gateway, "GET", path)
        rest, page_id = rest + more["items"], more["next_page_id"]
    assert [*newest["items"], *rest] == page["items"][::-1]
    at = page["items"][2]["timestamp"]
    since = await call(gateway, "GET", f"/api/bash/bash_events/search?timestamp__gte={at}")
    before = await call(gateway, "GET", f"/api/bash/bash_events/search?timestamp__lt={at[:-1]}")  # naive: UTC
    assert (before["items"], since["items"]) == (page["items"][:2], page["items"][2:])
    assert await call(gateway, "GET", f"/api/bash/bash_events/{first['id']}") == first
    assert await call(gateway, "GET", f"/api/bash/bash_events/{'0' * 32}", status=404) == {
        "detail": "Not Found"
    }
    batch = await call(gateway, "GET", "/api/bash/bash_events/", [first["id"], "none", last["id"]])
    assert batch == [first, None, last]
    # The same path without the slash is that of the DELETE alone.
    await call(gateway, "GET", "/api/bash/bash_events", [first["id"]], 405)
    response = await gateway.app.test_client().get("/api/bash/bash_events")
    assert response.headers["Allow"] == "DELETE"
    await call(gateway, "DELETE", "/api/bash/bash_events/", status=405)
    assert await call(gateway, "DELETE", "/api/bash/bash_events") == {"cleared_count": 6}
    assert (await call(gateway, "GET", "/api/bash/bash_events/search"))["items"] == []


@pytest.mark.parametrize(
    ("body", "loc", "kind"),
    [
        ({}, ["body", "command"], "missing"),
        ({"command": 3}, ["body", "command"], "string_type"),
        ({"command": "a\0b"}, ["body", "command"], "value_error"),
        ({"command": "x" * 200_000}, ["body", "command"], "string_too_long"),
        ({"command": "true", "cwd": 3}, ["body", "cwd"], "string_type"),
        ({"command": "true", "timeout": "soon"}, ["body", "timeout"], "int_type"),
        ({"command": "true", "timeout": 1.5}, ["body", "timeout"], "int_type"),
        ([], ["body"], "model_attributes_type"),
    ],
)
@pytest.mark.parametrize("verb", ["start", "execute"])
async def test_what_is_no_command_is_refused(gateway, body, loc, kind, verb):
    answer = await call(gateway, "POST", f"/api/bash/{verb}_bash_command", body, 422)
    assert [(each["loc"], each["type"]) for each in answer["detail"]] == [(loc, kind)]


@pytest.mark.parametrize(
    "query",
    [
        "kind__eq=BashError",
        "command_id__eq=x",
        "limit=0",
        "limit=101",
        "sort_order=x",
        "order__gt=x",
        "timestamp__gte=x",
    ],
)
async def test_wrong_queries_are_refused(gateway, query):
    answer = await call(gateway, "GET", f"/api/bash/bash_events/search?{query}", status=422)
    assert answer["detail"][0]["loc"] == ["query", query.partition("=")[0]]


async def test_an_unknown_parameter_is_ignored(gateway):
    await call(gateway, "GET", "/api/bash/bash_events/search?cid=1")


@pytest.mark.guarantee(name="clients-commands-are-bounded-and-ended")
async def test_too_many_commands_are_told_so(gateway_with):
    async with gateway_with(supervision=limited(commands=1)) as gateway:
        await call(gateway, "POST", "/api/bash/start_bash_command", {"command": "sleep 300"})
        answer = await call(gateway, "POST", "/api/bash/start_bash_command", {"command": "true"}, 429)
        assert answer["detail"].startswith("1 commands are running, which is the limit.")
        assert "OSTLER_BASH_COMMANDS" in answer["detail"]


def limited(**limits):
    return load_supervision({f"OSTLER_BASH_{name.upper()}": str(value) for name, value in limits.items()})


async def test_many_events_of_one_answer_are_bounded(gateway, monkeypatch):
    monkeypatch.setattr("gateway.api.routes.workspace.bash.MAX_BATCH_BYTES", 3000)
    answer = await call(
        gateway, "POST", "/api/bash/execute_bash_command", {"command": "head -c 1000 /dev/zero"}
    )
    assert len(orjson.dumps(answer)) > 3000
    refused = await call(gateway, "GET", "/api/bash/bash_events/", [answer["id"]] * 2, 413)
    assert "Ask for fewer" in refused["detail"]


# Below a conversation.


async def test_a_conversations_commands_are_run_in_its_workspace_and_apart(gateway, tmp_path):
    _, base = await in_workspace(gateway, tmp_path)
    answer = await call(gateway, "POST", f"{base}/execute_bash_command", {"command": "pwd"})
    assert answer["stdout"] == f"{tmp_path}/w\n"
    await validated(gateway, "POST", "/api/conversations/{conversation_id}/bash/execute_bash_command", answer)
    (tmp_path / "w" / "in").mkdir()
    inside = {"command": "pwd", "cwd": f"{tmp_path}/w/in"}
    answer = await call(gateway, "POST", f"{base}/execute_bash_command", inside)
    assert answer["stdout"] == f"{tmp_path}/w/in\n"
    events = await call(gateway, "GET", f"{base}/bash_events/search")
    assert len(events["items"]) == 4
    assert (await call(gateway, "GET", "/api/bash/bash_events/search"))["items"] == []
    await call(gateway, "GET", f"/api/bash/bash_events/{answer['id']}", status=404)
    assert await call(gateway, "GET", f"{base}/bash_events/{answer['id']}") == answer
    assert await call(gateway, "GET", f"{base}/bash_events/", [answer["id"]]) == [answer]
    started = await call(gateway, "POST", f"{base}/start_bash_command", {"command": "sleep 300"})
    assert started["cwd"] == f"{tmp_path}/w"
    await call(gateway, "POST", f"/api/bash/bash_commands/{started['id']}/stop", status=404)
    assert await call(gateway, "POST", f"{base}/bash_commands/{started['id']}/stop") == {"success": True}
    assert await call(gateway, "DELETE", f"{base}/bash_events") == {"cleared_count": 6}


@pytest.mark.parametrize("cwd", ["/", "..", "relative", "{w}/../out", "{w}/link", "{w}-beside"])
async def test_a_directory_outside_of_the_workspace_is_refused(gateway, tmp_path, cwd):
    _, base = await in_workspace(gateway, tmp_path)
    (tmp_path / "w").mkdir()
    (tmp_path / "w-beside").mkdir()
    (tmp_path / "w" / "link").symlink_to("/")
    body = {"command": "true", "cwd": cwd.format(w=tmp_path / "w")}
    answer = await call(gateway, "POST", f"{base}/execute_bash_command", body, 422)
    assert answer["detail"][0]["loc"] == ["body", "cwd"]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "start_bash_command"),
        ("POST", "execute_bash_command"),
        ("GET", "bash_events/search"),
        ("GET", "bash_events/x"),
        ("DELETE", "bash_events"),
        ("POST", f"bash_commands/{'0' * 32}/stop"),
    ],
)
async def test_an_unknown_conversation_has_no_commands(gateway, method, path):
    body = {"command": "true"} if "command" in path and "stop" not in path else None
    unknown = "/api/conversations/00000000-0000-4000-8000-000000000000/bash"
    answer = await call(gateway, method, f"{unknown}/{path}", body, 404)
    assert answer["detail"].startswith("Conversation not found")
    await call(gateway, method, f"/api/conversations/x/bash/{path}", body, 422)


async def test_a_deleted_conversation_leaves_no_command(gateway, tmp_path):
    conversation, base = await in_workspace(gateway, tmp_path)
    await call(gateway, "POST", f"{base}/start_bash_command", {"command": "sleep 300"})
    assert gateway.services.bash.running == 1
    await call(gateway, "DELETE", f"/api/conversations/{conversation.id}")
    assert gateway.services.bash.running == 0
    assert len(gateway.services.bash.log) == 0


@pytest.mark.parametrize("scoped", [False, True])
async def test_the_workspace_of_an_agent_that_never_started_is_made(gateway, tmp_path, scoped):
    """As a repository, since its agent's start leaves a directory that is there already as it is."""
    _, base = await in_workspace(gateway, tmp_path)
    body = {"command": "pwd; echo new > new", **({} if scoped else {"cwd": f"{tmp_path}/w"})}
    ran = await call(gateway, "POST", f"{base if scoped else '/api/bash'}/execute_bash_command", body)
    assert ran["stdout"] == f"{tmp_path}/w\n"
    changed = await call(gateway, "GET", f"/api/git/changes?path={tmp_path}/w")
    assert [each["path"] for each in changed] == ["new"]
    nowhere = {"command": "pwd", "cwd": f"{tmp_path}/x"}
    assert (await call(gateway, "POST", "/api/bash/execute_bash_command", nowhere))["exit_code"] == -1
    assert not (tmp_path / "x").exists()


# Who may.


ALL = [
    ("POST", "start_bash_command"),
    ("POST", "execute_bash_command"),
    ("GET", "bash_events/search"),
    ("GET", "bash_events/x"),
    ("GET", "bash_events/"),
    ("DELETE", "bash_events"),
    ("POST", f"bash_commands/{'0' * 32}/stop"),
]


@pytest.mark.guarantee(name="workspace-routes")
@pytest.mark.parametrize("access", [Access.OFF, Access.WORKSPACES])
async def test_an_operator_can_switch_commands_off(gateway_with, tmp_path, access):
    async with gateway_with(workspace_access=access) as gateway:
        _, base = await in_workspace(gateway, tmp_path)
        for above in ("/api/bash", base):
            for method, path in ALL:
                body = {"command": f"touch {tmp_path}/x"} if path.endswith("_bash_command") else None
                answer = await call(gateway, method, f"{above}/{path}", body, 403)
                assert "OSTLER_WORKSPACE_ACCESS" in answer["detail"]
        assert not (tmp_path / "x").exists()


@pytest.mark.guarantee(name="workspace-routes")
async def test_a_key_is_asked_for(gateway_with, tmp_path):
    async with gateway_with(session_api_keys=("k3y",)) as gateway:
        for method, path in ALL:
            body = {"command": f"touch {tmp_path}/x"} if path.endswith("_bash_command") else None
            await call(gateway, method, f"/api/bash/{path}", body, 401)
            wrong = {"X-Session-API-Key": "no"}
            await call(gateway, method, f"/api/bash/{path}", body, 401, headers=wrong)
    assert not (tmp_path / "x").exists()


@pytest.mark.guarantee(name="workspace-routes")
@pytest.mark.parametrize("verb", ["start", "execute"])
async def test_foreign_pages_run_nothing_on_an_open_server(gateway, tmp_path, verb):
    body = {"command": f"touch {tmp_path}/x"}
    path = f"/api/bash/{verb}_bash_command"
    await call(gateway, "POST", path, body, 403, headers={"Origin": "http://evil.example"})
    await call(gateway, "POST", path, body, 421, headers={"Host": "evil.example"})
    # What a page can post without asking first.
    await call(
        gateway, "POST", path, status=415, data=orjson.dumps(body), headers={"Content-Type": "text/plain"}
    )
    assert not (tmp_path / "x").exists()


@pytest.mark.guarantee(name="what-is-deleted-is-gone")
@pytest.mark.parametrize("how", ["start_bash_command", "execute_bash_command"])
async def test_no_command_begins_in_a_conversation_that_is_deleted_meanwhile(
    gateway, tmp_path, monkeypatch, how
):
    conversation, base = await in_workspace(gateway, tmp_path)
    make = bash_routes.make_working_directories

    async def while_it_is_deleted(services, directory, own):
        await call(gateway, "DELETE", f"/api/conversations/{conversation.id}")
        await make(services, directory, own=own)

    monkeypatch.setattr(bash_routes, "make_working_directories", while_it_is_deleted)
    await call(gateway, "POST", f"{base}/{how}", {"command": f"touch {tmp_path}/ran"}, status=404)
    assert gateway.services.bash.running == 0
    assert not (tmp_path / "ran").exists()
    assert len(gateway.services.bash.log) == 0


@pytest.mark.guarantee(name="what-is-deleted-is-gone")
async def test_a_client_that_goes_away_while_it_deletes_leaves_no_command(gateway, tmp_path):
    conversation, base = await in_workspace(gateway, tmp_path)
    await call(gateway, "POST", f"{base}/start_bash_command", {"command": f"sleep 300 # {tmp_path}"})
    bash, delete, query = gateway.services.bash, gateway.supervisor.delete, conversations.DeleteQuery()
    async with trio.open_nursery() as nursery:

        async def and_go_away(conversation_id, closed=None):
            await delete(conversation_id, closed)
            nursery.cancel_scope.cancel()
            await trio.lowlevel.checkpoint()

        gateway.supervisor.delete = and_go_away
        nursery.start_soon(conversations.delete, gateway.services, conversation.id, query)
    assert bash.running == 0
    assert len(bash.log) == 0
    assert mentioning(tmp_path) == []


async def test_a_deletion_that_fails_ends_no_command(gateway, tmp_path):
    conversation, base = await in_workspace(gateway, tmp_path)
    await call(gateway, "POST", f"{base}/start_bash_command", {"command": "sleep 300"})

    async def not_now(conversation_id, closed=None):
        raise JournalUnavailable("Cannot delete the conversation now; it still exists.")

    gateway.supervisor.delete = not_now
    await call(gateway, "DELETE", f"/api/conversations/{conversation.id}", status=503)
    assert gateway.services.bash.running == 1
