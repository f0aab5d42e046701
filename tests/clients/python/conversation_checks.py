"""What a RemoteConversation can be asked to do. Each check holds for the peer's own server, too."""

from __future__ import annotations

import asyncio
import os
import threading
import time
import uuid
from pathlib import Path
from typing import Any

from openhands.sdk import LLM
from openhands.sdk.agent import ACPAgent
from openhands.sdk.conversation.impl.remote_conversation import RemoteConversation, WebSocketCallbackClient
from openhands.sdk.conversation.request import StartConversationRequest
from openhands.sdk.conversation.secret_registry import SecretRegistry
from openhands.sdk.event import AgentErrorEvent, ConversationStateUpdateEvent, PauseEvent
from openhands.sdk.hooks import HookConfig
from openhands.sdk.llm import Message, TextContent
from openhands.sdk.secret import LookupSecret, StaticSecret
from openhands.sdk.security.confirmation_policy import AlwaysConfirm, NeverConfirm
from openhands.sdk.security.llm_analyzer import LLMSecurityAnalyzer
from openhands.sdk.workspace import LocalWorkspace
from world import (
    WAIT_S,
    World,
    covers,
    durable,
    kinds,
    message_text,
    not_for_remote,
    refused,
    say,
    status,
    told,
    wait_until,
)


@covers(
    "RemoteConversation.send_message",
    "RemoteConversation.run",
    "RemoteConversation.arun",
    "RemoteConversation.id",
    "RemoteConversation.state",
    "RemoteConversation.compose_callbacks",
    "RemoteState.id",
    "RemoteState.events",
    "RemoteState.execution_status",
)
def talking(world: World) -> None:
    seen: list[Any] = []
    again: list[Any] = []
    both = RemoteConversation.compose_callbacks([seen.append, again.append])
    conversation = world.conversation(callbacks=[both])
    assert status(conversation) == "idle"
    assert say(conversation, "hello there").strip() == "echo: hello there"
    assert status(conversation) == "finished"
    assert conversation.state.id == conversation.id
    parts = Message(role="user", content=[TextContent(text="in parts, "), TextContent(text="by somebody")])
    conversation.send_message(parts, sender="somebody")
    conversation.run(blocking=False)
    wait_until(lambda: kinds(conversation).count("ObservationEvent") == 2, "the second answer")
    wait_until(lambda: status(conversation) == "finished", "the end of the second turn")
    conversation.send_message("and once more")
    asyncio.run(conversation.arun())
    assert kinds(conversation).count("MessageEvent") == 3
    assert [event.id for event in seen] == [event.id for event in again]
    wanted = {"MessageEvent", "ActionEvent", "ObservationEvent", "StreamingDeltaEvent"}
    assert wanted <= {type(event).__name__ for event in seen}


@covers("RemoteConversation.create")
def creation_by_a_request(world: World) -> None:
    workspace = world.workspace()
    request = StartConversationRequest(
        agent=world.agent(), workspace=LocalWorkspace(working_dir=workspace.working_dir), tags={"made": "so"}
    )
    conversation = world.keep(RemoteConversation.create(workspace, request, visualizer=None))
    conversation.delete_on_close = False
    assert workspace.conversation_id == str(conversation.id)
    assert say(conversation, "by a request").strip() == "echo: by a request"


@covers("RemoteConversation.attach")
def a_second_client(world: World) -> None:
    first = world.conversation()
    say(first, "first client")
    second = world.keep(RemoteConversation.attach(world.workspace(), first.id, visualizer=None))
    second.delete_on_close = False
    assert durable(second) == durable(first)
    assert isinstance(second.agent, ACPAgent)
    assert say(second, "second client").strip() == "echo: second client"
    wait_until(lambda: durable(first) == durable(second), "the second client's turn by the first")


@covers(
    "RemoteConversation.close", "RemoteConversation.cleanup_initiated", "RemoteConversation.cleanup_complete"
)
def resuming_and_deleting(world: World) -> None:
    identity = uuid.uuid4()
    first = world.conversation(conversation_id=identity)
    assert first.id == identity
    say(first, "to be resumed")
    before = durable(first)
    assert not first.cleanup_initiated
    first.close()
    assert first.cleanup_complete
    second = world.conversation(conversation_id=identity, delete_on_close=True)
    assert durable(second) == before
    assert "to be resumed" in say(second, "!remember")
    client = second.workspace.client
    second.close()
    assert client.get(f"/api/conversations/{identity}").status_code == 404


@covers(
    "RemoteConversation.set_confirmation_policy",
    "RemoteConversation.reject_pending_actions",
    "RemoteConversation.confirmation_policy_active",
    "RemoteConversation.is_confirmation_mode_active",
    "RemoteState.confirmation_policy",
)
def confirmation(world: World) -> None:
    """What is asked and rejected is only Ostler's: the peer answers agents' requests for permission by
    itself."""
    conversation = world.conversation()
    assert isinstance(conversation.state.confirmation_policy, NeverConfirm)
    assert not conversation.confirmation_policy_active
    conversation.set_confirmation_policy(AlwaysConfirm())
    conversation.state.refresh_from_server()
    assert isinstance(conversation.state.confirmation_policy, AlwaysConfirm)
    assert conversation.confirmation_policy_active
    assert isinstance(conversation.is_confirmation_mode_active, bool)
    say(conversation, "!write asked.txt content")
    if status(conversation) == "waiting_for_confirmation":
        conversation.reject_pending_actions("not today")
        wait_until(lambda: "UserRejectObservation" in kinds(conversation), "the rejection")
        assert not (Path(world.workspace().working_dir) / "asked.txt").exists()
    else:
        conversation.reject_pending_actions()


@covers("RemoteConversation.set_security_analyzer", "RemoteState.security_analyzer")
def a_security_analyzer(world: World) -> None:
    conversation = world.conversation()
    conversation.set_security_analyzer(LLMSecurityAnalyzer())
    conversation.state.refresh_from_server()
    assert isinstance(conversation.state.security_analyzer, LLMSecurityAnalyzer)
    conversation.set_security_analyzer(None)
    conversation.state.refresh_from_server()
    assert conversation.state.security_analyzer is None


def _in_mid_turn(conversation: Any, prompt: str) -> threading.Thread:
    streams: list[Any] = []
    watch = WebSocketCallbackClient(conversation.workspace.host, str(conversation.id), streams.append)
    watch.start()
    assert watch.wait_until_ready(WAIT_S)
    conversation.send_message(prompt)
    runner = threading.Thread(target=conversation.run)
    runner.start()
    wait_until(lambda: any(type(event).__name__ == "StreamingDeltaEvent" for event in streams), "the stream")
    watch.stop()
    return runner


@covers("RemoteConversation.interrupt")
def an_interrupt(world: World) -> None:
    conversation = world.conversation()
    runner = _in_mid_turn(conversation, "!slow 400 50")
    conversation.interrupt()
    runner.join(WAIT_S)
    assert not runner.is_alive()
    assert status(conversation) == "paused"
    wait_until(lambda: "InterruptEvent" in kinds(conversation), "the InterruptEvent")


@covers("RemoteConversation.pause")
def a_pause(world: World) -> None:
    conversation = world.conversation()
    runner = _in_mid_turn(conversation, "!slow 30 50")
    conversation.pause()
    runner.join(WAIT_S)
    assert not runner.is_alive()
    assert status(conversation) == "paused"
    wait_until(lambda: "PauseEvent" in kinds(conversation), "the PauseEvent")


@covers("RemoteConversation.load_plugin")
def a_plugin(world: World) -> None:
    """An external agent cannot load one: a reason, not an unknown route."""
    conversation = world.conversation()
    refused(lambda: conversation.load_plugin("no-such-plugin"), 400, 409)


@covers("RemoteConversation.update_secrets", "RemoteState.secret_registry")
def secrets(world: World) -> None:
    """Before the first turn, as the agent's environment is made then."""
    served = world.directory / "served"
    served.mkdir()
    (served / "token").write_text("looked-up")
    conversation = world.conversation()
    with world.files_served(served) as url:
        conversation.update_secrets(
            {
                "PLAIN": "plain-value",
                "CALLED": lambda: "called-value",
                "STATIC": StaticSecret(value="static-value"),
                "LOOKED_UP": LookupSecret(url=f"{url}/token"),
            }
        )
        conversation.state.refresh_from_server()
        assert isinstance(conversation.state.secret_registry, SecretRegistry)
        for name in ("PLAIN", "CALLED", "STATIC", "LOOKED_UP"):
            answer = say(conversation, f"!env {name}")
            # A secret's value is hidden in what an agent says: that is how we know that the agent has it.
            assert "<secret-hidden>" in answer, f"{name}: {answer}"


@covers("RemoteConversation.ask_agent")
def a_question(world: World) -> None:
    conversation = world.conversation()
    say(conversation, "remember the blue door")
    before = told(conversation)
    answer = conversation.ask_agent("what was it?")
    assert "what was it?" in answer, answer
    assert told(conversation) == before
    assert status(conversation) == "finished"
    runner = _in_mid_turn(conversation, "!slow 40 50")
    assert "and now?" in conversation.ask_agent("and now?")
    assert runner.is_alive(), "the question waited for the turn, or ended it"
    runner.join(WAIT_S)
    assert status(conversation) == "finished"
    answer = say(conversation, "!remember")
    assert "blue door" in answer
    assert "what was it?" not in answer


@covers("RemoteConversation.set_title", "RemoteConversation.generate_title")
def titles(world: World) -> None:
    conversation = world.conversation()
    say(conversation, "mend the roof of the old house")
    # Without a model: the client makes a title of the message itself.
    unreachable = LLM(model="openai/none", base_url="http://127.0.0.1:9", api_key="none", num_retries=0)
    assert conversation.generate_title(llm=unreachable).startswith("mend the roof")
    conversation.set_title("The roof")
    info = conversation.workspace.client.get(f"/api/conversations/{conversation.id}").json()
    assert info["title"] == "The roof"


@covers("RemoteConversation.condense")
def condensing(world: World) -> None:
    conversation = world.conversation()
    say(conversation, "something to condense")
    refused(conversation.condense, 409)
    assert status(conversation) == "finished"


@covers("RemoteConversation.fork")
def forks(world: World) -> None:
    conversation = world.conversation()
    say(conversation, "the first thing")
    say(conversation, "the second thing")
    identity = uuid.uuid4()
    whole = world.keep(conversation.fork(conversation_id=identity, title="A fork", tags={"a": "b"}))
    assert whole.id == identity
    info = whole.workspace.client.get(f"/api/conversations/{identity}").json()
    assert (info["title"], info["tags"], info["execution_status"]) == ("A fork", {"a": "b"}, "idle"), info
    assert kinds(whole).count("MessageEvent") == kinds(conversation).count("MessageEvent")
    assert "the second thing" in say(whole, "!remember")
    first = next(event for event in conversation.state.events if type(event).__name__ == "ObservationEvent")
    part = world.keep(conversation.fork(from_event_id=first.id))
    texts = [
        event.llm_message.content[0].text
        for event in part.state.events
        if type(event).__name__ == "MessageEvent" and event.source == "user"
    ]
    assert texts == ["the first thing"], texts
    refused(lambda: conversation.fork(from_event_id=str(uuid.uuid4())), 404)
    refused(lambda: conversation.fork(conversation_id=identity), 409)
    not_for_remote(lambda: conversation.fork(agent=world.agent()))
    assert kinds(conversation).count("MessageEvent") == 2


@covers("RemoteConversation.navigate_to", "RemoteState.refresh_from_server")
def navigation(world: World) -> None:
    """What comes next descends from where the client went.

    The memory of an agent follows with Ostler; with the peer an agent still knows what was left.
    """
    conversation = world.conversation()
    say(conversation, "the first thing")
    first = next(event for event in conversation.state.events if type(event).__name__ == "ObservationEvent")
    say(conversation, "the second thing")
    conversation.navigate_to(first.id)
    info = conversation.state.refresh_from_server()
    assert info["leaf_event_id"] == first.id, info.get("leaf_event_id")
    answer = say(conversation, "the other thing").strip()
    branch = _branch(conversation)
    assert first.id in branch
    said = [message_text(event) for event in branch.values() if type(event).__name__ == "MessageEvent"]
    after = list(branch).index(first.id) + 1
    between = {type(event).__name__ for event in list(branch.values())[after:]}
    if world.ostler:
        # The agent cannot go back: it gets what was said on this branch, and a person reads that it did.
        lost, *others = [text for text in said if text.startswith("The agent's memory")]
        assert not others
        assert said == ["the first thing", "the other thing", lost]
        assert answer.split(" echo: ") == [
            "echo: <<RESUMED CONVERSATION>>",
            "Your memory of this conversation was lost. This is what was said and done so far:",
            "User: the first thing",
            "Assistant:",
            "the first thing",
            "<<END OF TRANSCRIPT>>",
            "The user's next message follows.",
            "the other thing",
        ], answer
        between -= {"ConversationStateUpdateEvent", "SystemPromptEvent"}
    else:
        assert said == ["the first thing", "the other thing"]
        assert answer == "echo: the other thing"
    assert between == {"MessageEvent", "ActionEvent", "ObservationEvent"}, between
    conversation.navigate_to(None)
    assert conversation.state.refresh_from_server()["leaf_event_id"] is None
    assert say(conversation, "from the start").strip() == "echo: from the start"
    if world.ostler:
        assert say(conversation, "!remember").strip() == '["from the start"]'
    refused(lambda: conversation.navigate_to(str(uuid.uuid4())), 404)


def _branch(conversation: Any) -> dict[str, Any]:
    """What the newest event follows, by id, oldest first, itself at the end."""
    events = {event.id: event for event in conversation.state.events}
    found = []
    at: str | None = max(
        (event for event in events.values() if type(event).__name__ == "ObservationEvent"),
        key=lambda event: event.timestamp,
    ).id
    while at is not None:
        found.append(at)
        at = events[at].parent_id
    return {identity: events[identity] for identity in reversed(found)}


@covers("RemoteConversation.conversation_stats", "RemoteState.stats")
def stats(world: World) -> None:
    conversation = world.conversation()
    say(conversation, "!usage 1000 200000 0.5")
    conversation.state.refresh_from_server()
    metrics = conversation.conversation_stats.get_combined_metrics()
    assert metrics.accumulated_cost == 0.5, metrics
    assert conversation.state.stats.usage_to_metrics
    conversation.close()
    assert conversation.workspace.accumulated_cost == 0.5


@covers(
    "RemoteState.activated_knowledge_skills",
    "RemoteState.invoked_skills",
    "RemoteState.agent",
    "RemoteState.workspace",
    "RemoteState.persistence_dir",
    "RemoteState.model_dump",
    "RemoteState.model_dump_json",
    "RemoteConversation.get_persistence_dir",
)
def getters(world: World) -> None:
    conversation = world.conversation()
    for asked in range(2):
        state = conversation.state
        assert state.activated_knowledge_skills == []
        assert state.invoked_skills == []
        assert isinstance(state.agent, ACPAgent)
        assert list(state.agent.acp_command)[: len(world.command)] == world.command
        directory = state.workspace["working_dir"] if isinstance(state.workspace, dict) else state.workspace
        assert str(getattr(directory, "working_dir", directory)) == world.workspace().working_dir
        assert isinstance(state.persistence_dir, str)
        assert conversation.id.hex in state.persistence_dir.replace("-", "")
        assert str(conversation.id) in state.model_dump_json()
        assert state.model_dump()["execution_status"] in ("idle", "finished")
        if not asked:
            say(conversation, "and after a turn")
    assert conversation.get_persistence_dir("base", conversation.id) == f"base/{conversation.id.hex}"


@covers("RemoteState.hook_config")
def hooks(world: World) -> None:
    """A Stop hook that is satisfied the second time: what it says first goes back to the agent."""
    marker = world.directory / "stopped-once"
    command = f"test -e {marker} || {{ touch {marker}; echo once more >&2; exit 2; }}"
    config = HookConfig.model_validate({"stop": [{"matcher": "*", "hooks": [{"command": command}]}]})
    conversation = world.conversation(hook_config=config)
    say(conversation, "work")
    conversation.state.refresh_from_server()
    given = conversation.state.hook_config
    assert given is None or given.stop[0].hooks[0].command == command
    ran = [event for event in conversation.state.events if type(event).__name__ == "HookExecutionEvent"]
    assert [event.hook_event_type for event in ran] == ["Stop", "Stop"], ran
    assert [event.blocked for event in ran] == [True, False]
    assert ran[0].exit_code == 2
    assert "once more" in say(conversation, "!remember")


@covers("RemoteConversation.stuck_detector", "RemoteConversation.execute_tool")
def not_for_remote_conversations(world: World) -> None:
    conversation = world.conversation()
    not_for_remote(lambda: conversation.stuck_detector)
    not_for_remote(lambda: conversation.execute_tool("any", None))


@covers("RemoteConversation.hook_processor")
def hooks_are_the_servers(world: World) -> None:
    assert world.conversation().hook_processor is None


@covers(
    "RemoteEventsList.add_event",
    "RemoteEventsList.append",
    "RemoteEventsList.create_default_callback",
    "RemoteEventsList.reconcile",
    "RemoteState.update_state_from_event",
    "RemoteState.create_state_update_callback",
)
def the_clients_copy(world: World) -> None:
    """The copy of the log is the client's own; `reconcile` alone asks the server, and finds nothing
    missing."""
    conversation = world.conversation()
    say(conversation, "some events")
    events = conversation.state.events
    assert events.reconcile() == 0
    before = len(events)
    events.append(PauseEvent())
    events.add_event(PauseEvent())
    events.create_default_callback()(PauseEvent())
    assert len(events) == before + 3
    assert len(events[:2]) == 2
    update = ConversationStateUpdateEvent(key="execution_status", value="stuck")
    conversation.state.update_state_from_event(update)
    assert status(conversation) == "stuck"
    update = ConversationStateUpdateEvent(key="execution_status", value="finished")
    conversation.state.create_state_update_callback()(update)
    assert status(conversation) == "finished"


@covers(
    "WebSocketCallbackClient.start",
    "WebSocketCallbackClient.stop",
    "WebSocketCallbackClient.wait_until_ready",
)
def the_socket_client(world: World) -> None:
    conversation = world.conversation()
    seen: list[Any] = []
    client = WebSocketCallbackClient(world.url, str(conversation.id), seen.append)
    client.start()
    assert client.wait_until_ready(WAIT_S)
    say(conversation, "to both")
    wait_until(lambda: any(type(event).__name__ == "ObservationEvent" for event in seen), "the answer")
    client.stop()
    before = len(seen)
    say(conversation, "to one")
    assert len(seen) == before


@covers()
def a_thought_belongs_to_what_follows(world: World) -> None:
    """A thought is never an empty message."""
    conversation = world.conversation()
    say(conversation, "!think a thought\n!tool\n!text done")
    messages = [event for event in conversation.state.events if type(event).__name__ == "MessageEvent"]
    empty = [event for event in messages if not "".join(part.text for part in event.llm_message.content)]
    assert not empty
    reasons = [getattr(event, "reasoning_content", None) for event in conversation.state.events]
    assert any("thought" in reason for reason in reasons if reason)


@covers()
def an_error_keeps_the_agents_words(world: World) -> None:
    conversation = world.conversation()
    conversation.send_message("!error -32000 boom upstream")
    try:
        conversation.run(timeout=60)
    except Exception as error:
        assert "boom upstream" in str(error), error
    else:
        raise AssertionError("the run did not fail")
    assert status(conversation) == "error"
    assert not [event for event in conversation.state.events if isinstance(event, AgentErrorEvent)]


@covers()
def a_turn_that_waits_at_once(world: World) -> None:
    """`run` takes only a snapshot that it gets after the answer to POST run for the end of it."""
    conversation = world.conversation()
    conversation.set_confirmation_policy(AlwaysConfirm())
    slowest = 0.0
    for number in range(int(os.environ.get("QUICK_TURNS", "10"))):
        conversation.send_message(f"!write {number}.txt content")
        begin = time.monotonic()
        conversation.run(timeout=10)
        slowest = max(slowest, time.monotonic() - begin)
        if status(conversation) == "waiting_for_confirmation":
            conversation.reject_pending_actions("no")
            wait_until(lambda: status(conversation) in ("idle", "finished"), "the end of the turn")
    assert slowest < 9.0, slowest
