"""Where keys come from other than by variables."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import httpx2
import pytest

from gateway.cli.client import Server
from gateway.cli.failures import BadInput
from gateway.configuration import keys
from gateway.configuration.address import session_keys
from supervisor.credentials.external_sources import KEYS_FILE, ExternalSources, is_private
from supervisor.credentials.master import KEY_VARIABLES, PREVIOUS_VARIABLES

WAIT_S = 20.0
KEY = "k3y-that-nobody-may-read"
CONTENT = f"OSTLER_SESSION_API_KEY={KEY}\n"


@pytest.fixture
def file(tmp_path):
    def make(content=CONTENT, mode=0o600, name="keys"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        path.chmod(mode)
        return path

    return make


def test_every_variable_that_is_read_as_a_key_is_one():
    names = (*KEY_VARIABLES, *PREVIOUS_VARIABLES, "OSTLER_SECRET_ANY", "OSTLER_API_KEY")
    assert [name for name in names if not keys.is_key(name)] == []
    for name in (
        "OSTLER_SESSION_API_KEY",
        "OSTLER_SESSION_API_KEYS",
        "SESSION_API_KEY",
        "OH_SESSION_API_KEYS_7",
    ):
        assert session_keys({name: "x"}) == ("x",)
        assert keys.is_key(name)
    assert session_keys({"OH_SESSION_API_KEYS": '["x"]'}) == ("x",)
    assert keys.is_key("OH_SESSION_API_KEYS")
    settings = ("OSTLER_SECRETS_DIR", "OSTLER_PORT", "OSTLER_KEYS_FILE", "PATH", "OSTLER_KEYRING")
    assert [name for name in settings if keys.is_key(name) or is_private(name)] == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", {}),
        ("# a comment\n\n  \nOSTLER_MASTER_KEY=a b=c#d\n", {"OSTLER_MASTER_KEY": "a b=c#d"}),
        ("\ufeffOSTLER_MASTER_KEY = x \r\n", {"OSTLER_MASTER_KEY": "x"}),
        ("OSTLER_MASTER_KEY='x y'", {"OSTLER_MASTER_KEY": "x y"}),
        ('OSTLER_MASTER_KEY="x\'"', {"OSTLER_MASTER_KEY": "x'"}),
        ("OSTLER_MASTER_KEY='", {"OSTLER_MASTER_KEY": "'"}),
        ("OSTLER_MASTER_KEY=$HOME\\n", {"OSTLER_MASTER_KEY": "$HOME\\n"}),
        ("OSTLER_SECRET_A=1\nOSTLER_SECRET_B=", {"OSTLER_SECRET_A": "1", "OSTLER_SECRET_B": ""}),
    ],
)
def test_lines(text, found):
    assert keys.parse(text.encode(), "here") == found


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"OSTLER_MASTER_KEY", "here, line 1: the line is not NAME=value"),
        (b"\nexport OSTLER_MASTER_KEY=s3cr3t", "here, line 2: the line is not NAME=value"),
        (b"OSTLER_MASTER_KEY=s3cr3t\0", "here, line 1: the line is not NAME=value"),
        (b"OSTLER_PORT=s3cr3t", "here, line 1: OSTLER_PORT is not the name of a key; set it as a variable"),
        (b"OSTLER_SECRET_A=1\nOSTLER_SECRET_A=s3cr3t", "here, line 2: OSTLER_SECRET_A is given twice"),
        (b"OSTLER_SECRET_A=s3cr3t\xff", "here is not valid UTF-8"),
        (b"#" * (keys.MOST_BYTES + 1), f"here has more than {keys.MOST_BYTES} bytes"),
    ],
)
def test_what_is_no_file_of_keys(data, complaint):
    with pytest.raises(keys.KeysError) as info:
        keys.parse(data, "here")
    assert str(info.value) == complaint


def test_keys_among_credentials_are_no_secret_for_agents(file, tmp_path):
    file(name=KEYS_FILE)
    assert KEYS_FILE == keys.CREDENTIAL
    assert ExternalSources.of({"CREDENTIALS_DIRECTORY": str(tmp_path)}).read() == ([], ())


def test_the_first_place_counts(file, tmp_path):
    argument, variable = (
        file("OSTLER_MASTER_KEY=argument", name="a"),
        file("OSTLER_MASTER_KEY=variable", name="v"),
    )
    file("OSTLER_MASTER_KEY=credential", name="ostler.keys")
    environ = {"CREDENTIALS_DIRECTORY": str(tmp_path), "OSTLER_KEYS_FILE": str(variable)}
    assert keys.find(None, str(argument), environ).read() == {"OSTLER_MASTER_KEY": "argument"}
    assert keys.find(None, None, environ).read() == {"OSTLER_MASTER_KEY": "variable"}
    del environ["OSTLER_KEYS_FILE"]
    assert keys.find(None, None, environ).read() == {"OSTLER_MASTER_KEY": "credential"}
    (tmp_path / "ostler.keys").unlink()
    assert keys.find(None, None, environ) is None
    with pytest.raises(keys.KeysError, match="exclude each other"):
        keys.find("0", str(argument), {})


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o620, 0o606, 0o660])
def test_a_file_that_is_open_to_others_is_refused(file, mode):
    path = file(mode=mode)
    with pytest.raises(keys.KeysError) as info:
        keys.find(None, str(path), {})
    assert str(info.value) == f"--keys-file: file {path} is open to others (mode {mode:04o}); chmod 600 it"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_whose_file_it_may_be(file, monkeypatch):
    path = file()
    os.chown(path, 65533, 65533)
    with pytest.raises(keys.KeysError, match="belongs to another user"):
        keys.find(None, str(path), {})
    os.chown(path, 0, 0)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    path.chmod(0o440)  # as systemd and Kubernetes give it
    assert keys.find(None, str(path), {}).read() == {"OSTLER_SESSION_API_KEY": KEY}
    path.chmod(0o444)
    with pytest.raises(keys.KeysError, match="open to others"):
        keys.find(None, str(path), {})


def test_what_is_no_file_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe", 0o600)
    for path, complaint in (
        (tmp_path / "pipe", "is not a regular file; give a pipe with --keys-fd"),
        (tmp_path, "is not a regular file"),
        (tmp_path / "none", "cannot be read: No such file"),
        (f"{tmp_path}/\0", "cannot be read"),
    ):
        with pytest.raises(keys.KeysError, match=complaint):
            keys.find(None, str(path), {})


@pytest.mark.parametrize("memory", [True, False])
def test_a_pipe_is_read_to_its_end_and_closed(monkeypatch, memory):
    if not memory:
        monkeypatch.delattr(os, "memfd_create")
    ours, theirs = os.pipe()
    content = "".join(f"OSTLER_SECRET_{number}={'x' * 1000}\n" for number in range(500)).encode()

    def write():
        with os.fdopen(theirs, "wb", buffering=0) as file:
            file.write(content)

    thread = threading.Thread(target=write)
    thread.start()
    place = keys.find(str(ours), None, {})
    thread.join()
    assert len(place.read()) == 500
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(ours)


def test_a_descriptor_has_bounds(monkeypatch):
    for text in ("x", "-1", "1", "2", "", "99999999999", "\u0663"):
        with pytest.raises(keys.KeysError, match="is not a descriptor to read from"):
            keys.find(text, None, {})
    with pytest.raises(keys.KeysError, match="descriptor 999 cannot be read"):
        keys.find("999", None, {})
    with pytest.raises(keys.KeysError, match="more than"):
        keys.find(str(os.open("/dev/zero", os.O_RDONLY)), None, {})
    monkeypatch.setattr(keys, "DESCRIPTOR_SECONDS", 0.05)
    ours, theirs = os.pipe()
    with pytest.raises(keys.KeysError, match="did not end within"):
        keys.find(str(ours), None, {})
    os.close(theirs)


def serve(tmp_path, *arguments, **options):
    return subprocess.run(
        [sys.executable, "-m", "gateway", "serve", "--port", "0", "--state", tmp_path / "state", *arguments],
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), **options.pop("variables", {})},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        cwd=tmp_path,
        **options,
    )


@pytest.mark.parametrize("warden", [[], ["--no-warden"]])
def test_wrong_keys_are_one_line_and_status_2(tmp_path, file, warden):
    wide, bad = file(mode=0o644, name="wide"), file("OSTLER_PORT=1", name="bad")
    wrong = f"{bad}, line 1: OSTLER_PORT is not the name of a key; set it as a variable"
    open_to_others = f"{wide} is open to others (mode 0644); chmod 600 it"
    for arguments, variables, complaint in (
        (["--keys-file", wide], {}, f"--keys-file: file {open_to_others}"),
        (["--keys-file", bad], {}, f"--keys-file: file {wrong}"),
        (["--keys-fd", "77"], {}, "--keys-fd: descriptor 77 cannot be read: Bad file descriptor"),
        ([], {"OSTLER_KEYS_FILE": str(wide)}, f"OSTLER_KEYS_FILE: file {open_to_others}"),
    ):
        done = serve(tmp_path, *warden, *arguments, variables=variables)
        assert (done.returncode, done.stdout, done.stderr) == (2, "", f"ostler: {complaint}\n")
    assert not (tmp_path / "state").exists()


def test_keys_by_standard_input_close_a_server(tmp_path):
    # Open to others, it would not start without a key.
    done = serve(tmp_path, "--host", "192.0.2.1", "--keys-fd", "0", input=CONTENT)
    assert done.returncode == 1
    assert "cannot listen on 192.0.2.1" in done.stderr
    done = serve(tmp_path, "--host", "192.0.2.1", "--keys-fd", "0", input="")
    assert done.returncode == 2


@pytest.mark.parametrize("warden", [True, False])
def test_a_server_keeps_the_keys_that_it_was_given_once(tmp_path, file, warden):
    path = file()
    command = [sys.executable, "-m", "gateway", "serve", "--port", "0", "--state", tmp_path / "state"]
    command += ["--keys-file", path, *([] if warden else ["--no-warden"])]
    variables = {"OSTLER_SESSION_API_KEY": "variable", "SESSION_API_KEY": "another"}
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), **variables}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=tmp_path
    ) as process:
        try:
            url = process.stdout.readline().split()[-1]

            def status(key):
                return httpx2.get(
                    f"{url}/api/settings", headers={"X-Session-API-Key": key}, timeout=WAIT_S
                ).status_code

            expected = {KEY: 200, "another": 200, "variable": 401, "": 401}  # a file goes before a variable
            assert {key: status(key) for key in expected} == expected
            if warden:
                path.unlink()
                os.kill(int((tmp_path / "state" / "server.pid").read_text()), signal.SIGKILL)
                assert "listening" in process.stdout.readline()
                assert {key: status(key) for key in expected} == expected
            process.terminate()
            assert process.wait(WAIT_S) == 0
        finally:
            process.kill()


def test_variables_leave_the_environment():
    code = """
import os
from gateway.configuration import keys
taken = keys.take_variables(os.environ)
print(sorted(taken), os.environ.get("PLAIN"), flush=True)
print(any(name in os.environ for name in taken))
data = open("/proc/self/environ", "rb").read()
print(b"s3cr3t" in data, b"PLAIN=plain" in data, b"OSTLER_PORT=1" in data, flush=True)
os.system("echo ${OSTLER_SECRET_A-unset}")
"""
    environment = {"PLAIN": "plain", "OSTLER_SECRET_A": "s3cr3t-1", "OSTLER_MASTER_KEY": "s3cr3t=2"}
    out = subprocess.run(
        [sys.executable, "-c", code],
        env={**environment, "OSTLER_PORT": "1"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    names = "['OSTLER_MASTER_KEY', 'OSTLER_SECRET_A']"
    assert out.splitlines() == [f"{names} plain", "False", "False True True", "unset"]


def test_commands_find_their_key_in_the_file(file):
    path = str(file())
    assert Server.of(None, {"OSTLER_KEYS_FILE": path}).key == KEY
    assert Server.of(None, {"OSTLER_KEYS_FILE": path, "OSTLER_API_KEY": "x"}).key == "x"
    with pytest.raises(BadInput, match="open to others"):
        Server.of(None, {"OSTLER_KEYS_FILE": str(file(mode=0o644))})
