"""What holds for the whole process: a table of named modes, each with an optional value."""

from __future__ import annotations

from collections.abc import Iterable

# The points of the protocol that `crash`, `hang`, `slow` and `error` can name.
POINTS = {
    "initialize": "init",
    "authenticate": "auth",
    "logout": "logout",
    "session/new": "new",
    "session/load": "load",
    "session/resume": "resume",
    "session/fork": "fork",
    "session/list": "list",
    "session/close": "close",
    "session/delete": "delete",
    "session/prompt": "prompt",
    "session/set_mode": "mode",
    "session/set_config_option": "config",
    "session/set_model": "model",
}

KNOWN = {
    "normal": "nothing unusual; the default",
    "crash": "POINT[:HOW] die there; POINT as below or start, turn (after 3 chunks), idle (after an answer), "
    "replay (in the middle of a load); HOW is an exit code (1) or a signal name",
    "hang": "POINT never answer there",
    "slow": "POINT:SECONDS answer late there",
    "error": "POINT:CODE[:MESSAGE] answer this error there",
    "until-start": "N crash, hang, slow and error hold for the first N processes of this home only",
    "gate": "PATH initialize is not answered before this file is there",
    "stderr": "N lines on stderr before a crash (3)",
    "silent": "read everything, answer nothing",
    "banner": "N lines that are not JSON on stdout before anything else (1)",
    "noise": "a blank line and a line that is not JSON before every message; CRLF line ends",
    "bom": "a byte order mark before the first message",
    "dribble": "write every message byte by byte (splits UTF-8 sequences)",
    "farewell": "TEXT this line on stdout at the start, then exit with 0",
    "ignore-eof": "stay when stdin is closed",
    "ignore-term": "ignore SIGTERM",
    "grandchild": "KIND[,KIND...] processes started at once: plain, pipe (holds our stdout), stubborn "
    "(ignores SIGTERM), session (its own, no environment), daemon (the same, re-parented)",
    "protocol": "N answer initialize with this protocol version; 2 answers in the shape of the v2 draft",
    "without": "NAME[,NAME...] do not offer: load, resume, close, list, fork, delete, modes, config",
    "name": "TEXT agentInfo.name (scripted-agent)",
    "version": "TEXT agentInfo.version (1.0)",
    "key": "NAME session/new answers -32000 unless this variable is set or authenticate was called",
    "prompt-key": "NAME the same at session/prompt",
    "auth": "ID[,ID...] ids in authMethods",
    "grouped-models": "the model option has its values in groups",
    "legacy-models": "a models block and session/set_model, no config options",
    "null-load": "session/load and session/resume answer null",
    "late-replay": "session/load answers first and replays afterwards",
    "cancel": "HOW what session/cancel does: obey (default), ignore, late:SECONDS, error, end_turn, crash, "
    "early (forgets one that comes before a turn of the word slowly begins)",
    "same-ids": "every tool call of every turn has the id call_1 (else they count up per session)",
    "mode-names": "ID[,ID...] the session modes; a new session is in the first (default,yolo,plan)",
    "options": "KIND[,KIND...] kinds of the permission options, in order",
    "bad-types": "wrong JSON types in every optional field of answers",
    "chatty": "commands, usage and title updates right after session/new, outside any turn",
    "single": "a prompt while a turn of another session runs is an error",
    "tells": "answers prompts, and Ostler's requests, as an agent that tells its events itself",
    "takes": "takes messages during a turn, besides `tells`; what they say is done before the turn ends",
    "tells-agent": "tells what it is before session/new is answered",
    "usage": "every turn reports usage: a usage_update and the answer's usage",
    "capability": "JSON merged into agentCapabilities",
    "models": "N more models to choose from",
    "hub": "VARIABLE needs a helper that all agents share which have the same directory in this variable "
    "(HOME): the first one starts it, in a session of its own; it forgets sessions when it ends",
    "env-auth": "ID:NAME[+NAME...][,...] authMethods of type env_var, and the variables that they require",
    "keep": "VARIABLE[/PATH] sessions are kept below the directory in this variable, not in --home",
    "refuse": "WORD[,WORD...] refuse models and modes of these names; ~WORD: accept it and keep the old one",
    "options-before": "JSON list of config options that come before the others",
    "named-models": "NAME[,NAME...] more models of these names",
    "numbered": "session ids are the smallest free numbers, as of agents that count",
    "resumes-calls": "a `counted` call that was cut off is run, unasked, before the next prompt",
    "greets": "SECONDS a chunk of text so long after session/new was answered",
    "initialize-once": "a second initialize is an error",
    "described": "BYTES of agentInfo.name, agentInfo.title and agentInfo.version",
}

REPEATABLE = {"crash", "hang", "slow", "error"}


class Modes:
    """The chosen modes; unknown names end the program, so that a typing error fails the test."""

    def __init__(self, chosen: Iterable[str]) -> None:
        self._values: dict[str, list[str]] = {}
        for text in chosen:
            name, _, value = text.partition("=")
            if name not in KNOWN:
                raise SystemExit(f"unknown mode: {name}")
            values = self._values.setdefault(name, [])
            if name not in REPEATABLE:
                values.clear()
            values.append(value)

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def text(self, name: str, default: str = "") -> str:
        return self._values.get(name, [""])[-1] or default

    def number(self, name: str, default: float = 0) -> float:
        return float(self.text(name, str(default)))

    def listed(self, name: str, default: str = "") -> list[str]:
        return [part for part in self.text(name, default).split(",") if part]

    def at(self, name: str, point: str) -> str | None:
        """The part of a `POINT[:VALUE]` mode after the point, or None when the mode does not name it."""
        for value in self._values.get(name, ()):
            where, _, rest = value.partition(":")
            if where == point:
                return rest
        return None
