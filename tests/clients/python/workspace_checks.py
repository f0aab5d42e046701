"""What a RemoteWorkspace can be asked to do. Each check holds for the peer's own server, too."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
from openhands.sdk import LLM
from openhands.sdk.secret import LookupSecret
from openhands.sdk.workspace import AsyncRemoteWorkspace
from world import World, covers, not_for_remote, say, wait_until


def _repository(directory: Path) -> Path:
    directory.mkdir(parents=True)
    run = ["git", "-C", str(directory), "-c", "user.name=A", "-c", "user.email=a@b.invalid"]
    subprocess.run([*run, "init", "-q", "-b", "main"], check=True)
    (directory / "kept.txt").write_text("before\n")
    subprocess.run([*run, "add", "-A"], check=True)
    subprocess.run([*run, "commit", "-q", "-m", "first"], check=True)
    return directory


def _change(repository: Path) -> None:
    (repository / "kept.txt").write_text("after\n")
    (repository / "new.txt").write_text("new\n")


@covers(
    "RemoteWorkspace.get_server_info",
    "RemoteWorkspace.alive",
    "RemoteWorkspace.client",
    "RemoteWorkspace.reset_client",
    "RemoteWorkspace.api_prefix",
)
def the_server(world: World) -> None:
    workspace = world.workspace()
    assert workspace.alive
    info = workspace.get_server_info()
    assert info["version"]
    workspace.reset_client()
    assert workspace.client.get("/health").json() == {"status": "ok"}
    assert workspace.api_prefix == "/api"


@covers("RemoteWorkspace.execute_command")
def commands(world: World) -> None:
    workspace = world.workspace()
    result = workspace.execute_command("echo out; echo err >&2; exit 3", cwd=workspace.working_dir)
    assert (result.exit_code, result.stdout, result.stderr) == (3, "out\n", "err\n"), result
    assert not result.timeout_occurred
    where = workspace.execute_command("pwd", cwd=workspace.working_dir)
    assert where.stdout.strip() == workspace.working_dir
    much = workspace.execute_command("seq 1 100000 | md5sum; seq 1 20000")
    assert much.stdout.endswith("20000\n") and much.stdout.count("\n") == 20001, len(much.stdout)
    late = workspace.execute_command("sleep 30", timeout=1)
    assert (late.exit_code, late.timeout_occurred) == (-1, True), late


@covers("RemoteWorkspace.start_command", "RemoteWorkspace.get_command_output", "RemoteWorkspace.stop_command")
def commands_in_the_background(world: World) -> None:
    workspace = world.workspace()
    mark = world.directory / "mark"
    command = workspace.start_command(f"echo begun; sleep 60; touch {mark}", timeout=120)
    workspace.stop_command(command)

    def ended() -> Any:
        output = workspace.get_command_output(command)
        return output is not None and output["exit_code"] is not None

    wait_until(ended, "the end of a stopped command")
    workspace.stop_command(command)
    workspace.stop_command("0" * 32)
    assert not mark.exists()


@covers("RemoteWorkspace.file_upload", "RemoteWorkspace.file_download")
def files(world: World) -> None:
    workspace = world.workspace()
    source = world.directory / "source.bin"
    source.write_bytes(bytes(range(256)) * 1000)
    there = Path(workspace.working_dir) / "below" / "there.bin"
    up = workspace.file_upload(source, there)
    assert (up.success, up.file_size) == (True, 256_000), up
    assert there.read_bytes() == source.read_bytes()
    back = world.directory / "back" / "back.bin"
    down = workspace.file_download(there, back)
    assert (down.success, down.file_size) == (True, 256_000), down
    assert back.read_bytes() == source.read_bytes()
    assert workspace.file_upload(b"bytes", there).success
    assert there.read_bytes() == b"bytes"
    missing = workspace.file_download(there.with_name("none"), back)
    assert not missing.success and "404" in str(missing.error), missing
    relative = workspace.file_upload(b"bytes", "relative.txt")
    assert not relative.success and "400" in str(relative.error), relative


@covers("RemoteWorkspace.git_changes", "RemoteWorkspace.git_diff")
def git(world: World) -> None:
    workspace = world.workspace()
    repository = _repository(Path(workspace.working_dir) / "repository")
    assert workspace.git_changes("repository") == []
    _change(repository)
    changes = {str(change.path): change.status.value for change in workspace.git_changes("repository")}
    assert changes == {"kept.txt": "UPDATED", "new.txt": "ADDED"}, changes
    diff = workspace.git_diff("repository/kept.txt")
    assert (str(diff.original).strip(), str(diff.modified).strip()) == ("before", "after"), diff
    (Path(workspace.working_dir) / "plain").mkdir()
    assert workspace.git_changes("plain") == []


@covers("RemoteWorkspace.get_llm")
def a_model(world: World) -> None:
    workspace = world.workspace()
    client = workspace.client
    llm = {"model": "openai/some", "api_key": "sk-some", "usage_id": "default"}
    client.post("/api/profiles/checked", json={"llm": llm, "include_secrets": True}).raise_for_status()
    try:
        found = workspace.get_llm("checked", temperature=0.5)
        assert isinstance(found, LLM)
        assert (found.model, found.temperature) == ("openai/some", 0.5)
        assert found.api_key is not None
        assert found.api_key.get_secret_value() == "sk-some"
        client.post("/api/profiles/checked/activate").raise_for_status()
        assert workspace.get_llm().model == "openai/some"
    finally:
        client.delete("/api/profiles/checked")
    try:
        workspace.get_llm("nonesuch")
    except FileNotFoundError:
        pass
    else:
        raise AssertionError("a profile that is not there was found")


@covers("RemoteWorkspace.get_mcp_config")
def the_mcp_servers(world: World) -> None:
    """Those of the settings; an agent that brings its own has none of them."""
    workspace = world.workspace()
    client = workspace.client
    server = {"command": "true", "args": []}
    client.post("/api/settings/mcp/checked", json=server).raise_for_status()
    try:
        config = workspace.get_mcp_config()
        assert isinstance(config, dict)
        kind = client.get("/api/settings").json()["agent_settings"]["agent_kind"]
        if kind in ("openhands", "llm"):
            assert "checked" in config
    finally:
        client.delete("/api/settings/mcp/checked").raise_for_status()


@covers("RemoteWorkspace.get_secrets")
def the_servers_secrets(world: World) -> None:
    workspace = world.workspace()
    client = workspace.client
    for name in ("FIRST_TOKEN", "SECOND_TOKEN"):
        body = {"name": name, "value": f"value-of-{name}", "description": "one of two"}
        client.put("/api/settings/secrets", json=body).raise_for_status()
    try:
        found = workspace.get_secrets()
        assert {"FIRST_TOKEN", "SECOND_TOKEN"} <= set(found)
        one = workspace.get_secrets(names=["FIRST_TOKEN"])
        assert list(one) == ["FIRST_TOKEN"]
        assert isinstance(one["FIRST_TOKEN"], LookupSecret)
        assert one["FIRST_TOKEN"].description == "one of two"
        assert one["FIRST_TOKEN"].get_value() == "value-of-FIRST_TOKEN"
        conversation = world.conversation()
        conversation.update_secrets(one)
        assert "<secret-hidden>" in say(conversation, "!env FIRST_TOKEN")
    finally:
        for name in ("FIRST_TOKEN", "SECOND_TOKEN"):
            client.delete(f"/api/settings/secrets/{name}")


@covers("RemoteWorkspace.clone_repos", "RemoteWorkspace.get_repos_context")
def repositories(world: World) -> None:
    """The client clones by itself; the server is only asked for the token."""
    origin = _repository(world.directory / "served" / "origin")
    subprocess.run(["git", "clone", "-q", "--bare", str(origin), str(origin) + ".git"], check=True)
    workspace = world.workspace()
    # The client takes https alone; git takes this for the place where it is.
    url = "https://repositories.invalid"
    settings = Path.home() / ".gitconfig"
    settings.write_text(f'[url "file://{origin.parent}"]\n\tinsteadOf = {url}\n')
    result = workspace.clone_repos([f"{url}/origin.git"])
    assert (result.success_count, result.failed_repos) == (1, []), result
    mapping = next(iter(result.repo_mappings.values()))
    assert (Path(mapping.local_path) / "kept.txt").read_text() == "before\n"
    assert "origin" in workspace.get_repos_context(result.repo_mappings)


@covers("RemoteWorkspace.load_skills_from_agent_server")
def skills(world: World) -> None:
    workspace = world.workspace()
    directory = Path(workspace.working_dir) / ".agents" / "skills" / "knock"
    directory.mkdir(parents=True)
    text = "---\nname: knock\ndescription: How to knock.\n---\nKnock twice.\n"
    (directory / "SKILL.md").write_text(text)
    found, context = workspace.load_skills_from_agent_server(
        load_public=False, load_user=False, load_project=True, load_org=False
    )
    assert [skill.name for skill in found] == ["knock"], found
    assert context.skills
    assert not context.load_public_skills


def _no_containers(call: Callable[[], Any]) -> None:
    """Only a server that keeps each conversation in a container has these: the peer's has no such route
    either."""
    try:
        call()
    except httpx.HTTPStatusError as error:
        assert error.response.status_code in (404, 405, 501), error
    else:
        raise AssertionError("it was answered")


@covers("RemoteWorkspace.get_runtime_session_key", "RemoteWorkspace.release_runtime")
def the_runtime_of_a_conversation(world: World) -> None:
    conversation = world.conversation()
    workspace = world.workspace(runtime_conversation_id=conversation.id)
    assert workspace.api_prefix == f"/api/conversations/{conversation.id}"
    _no_containers(workspace.get_runtime_session_key)
    try:
        workspace.release_runtime()
    except httpx.HTTPStatusError as error:
        assert error.response.status_code in (405, 501), error


@covers()
def the_workspace_of_a_conversation(world: World) -> None:
    """The same routes below the conversation's own."""
    conversation = world.conversation()
    workspace = world.workspace(runtime_conversation_id=conversation.id)
    assert workspace.execute_command("echo mine").stdout == "mine\n"
    there = Path(workspace.working_dir) / "there.txt"
    assert workspace.file_upload(b"content", there).success
    back = world.directory / "back.txt"
    assert workspace.file_download(there, back).success
    assert back.read_bytes() == b"content"
    _change(_repository(Path(workspace.working_dir) / "repository"))
    assert len(workspace.git_changes("repository")) == 2
    assert workspace.git_diff("repository/new.txt").modified is not None


@covers(
    "RemoteWorkspace.default_conversation_tags",
    "RemoteWorkspace.register_conversation",
    "RemoteWorkspace.conversation_id",
    "RemoteWorkspace.register_cost",
    "RemoteWorkspace.accumulated_cost",
    "RemoteWorkspace.pause",
    "RemoteWorkspace.resume",
)
def what_the_client_does_alone(world: World) -> None:
    workspace = world.workspace()
    assert workspace.default_conversation_tags == {}
    workspace.register_conversation("an-id")
    assert workspace.conversation_id == "an-id"
    workspace.register_cost(0.25)
    assert workspace.accumulated_cost == 0.25
    not_for_remote(workspace.pause)
    not_for_remote(workspace.resume)


@covers(
    "AsyncRemoteWorkspace.alive",
    "AsyncRemoteWorkspace.api_prefix",
    "AsyncRemoteWorkspace.client",
    "AsyncRemoteWorkspace.execute_command",
    "AsyncRemoteWorkspace.file_download",
    "AsyncRemoteWorkspace.file_upload",
    "AsyncRemoteWorkspace.get_command_output",
    "AsyncRemoteWorkspace.get_runtime_session_key",
    "AsyncRemoteWorkspace.get_server_info",
    "AsyncRemoteWorkspace.git_changes",
    "AsyncRemoteWorkspace.git_diff",
    "AsyncRemoteWorkspace.release_runtime",
    "AsyncRemoteWorkspace.reset_client",
    "AsyncRemoteWorkspace.start_command",
    "AsyncRemoteWorkspace.stop_command",
)
def the_asynchronous_workspace(world: World) -> None:
    place = Path(world.workspace().working_dir)
    conversation = world.conversation()
    _change(_repository(place / "repository"))

    async def run() -> None:
        workspace = AsyncRemoteWorkspace(host=world.url, working_dir=str(place))
        assert workspace.alive
        assert workspace.api_prefix == "/api"
        assert (await workspace.get_server_info())["version"]
        assert (await workspace.execute_command("echo hello")).stdout == "hello\n"
        command = await workspace.start_command("sleep 60", timeout=120)
        await workspace.stop_command(command)
        until = time.monotonic() + 20
        output = None
        while output is None or output["exit_code"] is None:
            assert time.monotonic() < until, output
            output = await workspace.get_command_output(command)
        assert (await workspace.file_upload(b"content", place / "there.txt")).success
        assert (await workspace.file_download(place / "there.txt", place / "back.txt")).success
        assert len(await workspace.git_changes("repository")) == 2
        assert (await workspace.git_diff("repository/kept.txt")).modified is not None
        await workspace.reset_client()
        assert (await workspace.client.get("/alive")).status_code == 200
        scoped = AsyncRemoteWorkspace(
            host=world.url, working_dir=str(place), runtime_conversation_id=conversation.id
        )
        for call in (scoped.release_runtime, scoped.get_runtime_session_key):
            try:
                await call()
            except httpx.HTTPStatusError as error:
                assert error.response.status_code in (404, 405, 501), error
        await scoped.reset_client()
        await workspace.reset_client()

    asyncio.run(run())
