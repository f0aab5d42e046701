"""Every variable that is a switch is read alike: `OSTLER_NO_WARDEN=0` leaves the warden on."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from gateway.configuration.config import load_config
from gateway.configuration.parsing import ConfigError
from supervisor.agents.containment.containment import PID_FILE
from tests.support.processes import kill_mentioning

SWITCHES = ("OSTLER_ALLOW_OPEN", "OSTLER_ATTACHABLE", "OSTLER_NO_WARDEN", "OSTLER_SANDBOX")
ON = ("1", "true", "yes", "on", "TRUE", "Yes", "oN")
OFF = ("0", "false", "no", "off", "FALSE", "No", "oFF", "")
NEITHER = ("2", "-1", "perhaps", " ", "1 ", " 0", "t", "y", "enabled", "None", "\u0661", "on\n")

WAIT_S = 30.0


def serve(state: Path, **variables: str) -> subprocess.Popen[str]:
    program = Path(sysconfig.get_path("scripts")) / "ostler"
    return subprocess.Popen(
        [program, "serve", "--port", "0", "--state", state],
        env={"PATH": os.environ["PATH"], "HOME": str(state.parent), **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("variable", SWITCHES)
@pytest.mark.parametrize("text", [*ON, *OFF])
def test_one_grammar(variable, text):
    load_config({variable: text})


@pytest.mark.guarantee(name="a-setting-counts-or-the-server-does-not-start")
@pytest.mark.parametrize("variable", SWITCHES)
@pytest.mark.parametrize("text", NEITHER)
def test_anything_else_is_an_error_that_names_the_variable(variable, text):
    with pytest.raises(ConfigError) as info:
        load_config({variable: text})
    assert str(info.value).startswith(f"{variable}: {text!r} is not a boolean")
    assert "\n" not in str(info.value)


@pytest.mark.guarantee(name="a-setting-counts-or-the-server-does-not-start")
@pytest.mark.parametrize("variable", SWITCHES)
def test_a_server_does_not_start_with_such_a_value(tmp_path, variable):
    with serve(tmp_path / "state", **{variable: "perhaps"}) as process:
        try:
            said, told = process.communicate(timeout=WAIT_S)
        finally:
            process.terminate()
    assert (process.returncode, said) == (2, "")
    assert told == (
        f"ostler: {variable}: 'perhaps' is not a boolean; use 1, true, yes or on, or 0, false, no or off\n"
    )


@pytest.mark.skipif(sys.platform != "linux", reason="needs a warden")
@pytest.mark.parametrize(("text", "warden"), [("0", True), ("true", False)])
def test_the_warden_is_left_out_only_where_the_variable_says_so(tmp_path, text, warden):
    state = tmp_path / "state"
    with serve(state, OSTLER_NO_WARDEN=text) as process:
        try:
            assert process.stdout is not None
            assert "listening" in process.stdout.readline()
            server = int((state / PID_FILE).read_text())
            assert (server != process.pid) is warden
        finally:
            process.terminate()
            process.communicate(timeout=WAIT_S)
            kill_mentioning(state)


@pytest.mark.parametrize(
    ("text", "used"), [("auto", True), ("AUTO", True), ("on", True), ("0", False), ("Off", False)]
)
def test_the_keyring_takes_the_same_words(text, used):
    assert load_config({"OSTLER_KEYRING": text}).keyring is used


def test_off_turns_a_limit_off_in_any_case():
    limits = load_config({"OSTLER_MAX_AGENTS": "OFF", "OSTLER_MEMORY_BYTES": "Off"}).supervision.limits
    assert (limits.agents, limits.memory_bytes) == (None, None)


@pytest.mark.parametrize("variable", ["OSTLER_SERVER_RESTARTS", "OSTLER_DRAIN_SECONDS"])
def test_what_the_warden_reads_is_checked_too(variable):
    with pytest.raises(ConfigError) as info:
        load_config({variable: "many"})
    assert str(info.value).startswith(f"{variable}: 'many' is not a")
