"""Agents from PyPI: with a Python and a pip that are a script of ours, and once with the real ones."""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import attrs
import pytest
import trio

from supervisor.agents.catalog import PipPackage, Versions, decode_descriptor
from supervisor.agents.errors import InstallError, PythonMissing
from supervisor.agents.install import install, packages, programs
from supervisor.agents.install.install import ensure_installed
from supervisor.agents.install.programs import find_python
from tests.support.processes import alive

AGENT = decode_descriptor(
    'key = "tiny"\nname = "Tiny"\ncommand = ["uvx", "tiny@1.0"]\nargs = ["acp"]\n'
    '[pip]\npackage = "tiny"\nversion = "1.0"\nentry = "bin/tiny"\npython = ">=3.11,<3.99"\nsize_mb = 1\n',
    "tiny.toml",
)
ANY = Versions((3, 11), (3, 99))

PYTHON = """#!{python} -IS
import json, os, pathlib, shutil, subprocess, sys, time
here = pathlib.Path({here!r})
arguments = sys.argv[1:]
if "-c" in arguments:
    print("3.12.1")
    print(sys.argv[0])
    sys.exit()
with (here / "runs").open("a") as runs:
    runs.write(json.dumps([arguments, os.getcwd(), dict(os.environ)]) + "\\n")
mode = (here / "mode").read_text()
if "venv" in arguments:
    made = pathlib.Path(arguments[-1]) / "bin"
    made.mkdir()
    (made / "python").symlink_to(here / "python3.12")
    sys.exit()
if mode == "fail":
    print("half done")
    sys.exit("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES")
if mode == "hang":
    child = subprocess.Popen(["/bin/sleep", "60"], start_new_session=True)
    (here / "child").write_text(str(child.pid))
    time.sleep(60)
if mode != "empty":
    script = pathlib.Path.cwd() / "bin" / "tiny"
    script.write_text("#!" + str(pathlib.Path.cwd() / "bin" / "python") + "\\nprint('hello')\\n")
"""


class FakePython:
    def __init__(self, directory):
        self.directory = directory
        self.program = directory / "python3.12"
        self.env = {"PATH": str(directory), "HOME": str(directory)}

    def mode(self, mode):
        (self.directory / "mode").write_text(mode)

    def runs(self):
        file = self.directory / "runs"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


@pytest.fixture
def fake(tmp_path, monkeypatch):
    directory = tmp_path / "bin"
    directory.mkdir()
    made = FakePython(directory)
    made.program.write_text(PYTHON.format(python=sys.executable, here=str(directory)))
    made.program.chmod(0o755)
    made.mode("ok")
    return made


@pytest.fixture
def locks(tmp_path, monkeypatch):
    directory = tmp_path / "locks"
    (directory / "tiny").mkdir(parents=True)
    (directory / "tiny" / "requirements.txt").write_text("tiny==1.0 \\\n    --hash=sha256:00\n")
    monkeypatch.setattr(install, "LOCKS_DIR", directory)
    return directory / "tiny"


@pytest.fixture
def prefix(tmp_path):
    return tmp_path / "agents"


def left(prefix):
    return sorted(path.name for path in (prefix / "tiny").iterdir() if path.name != ".lock")


async def run_install(prefix, env, told=None, seconds=60.0, descriptor=AGENT):
    told = [] if told is None else told
    return await ensure_installed(descriptor, prefix, progress=told.append, seconds=seconds, server_env=env)


async def test_install_then_direct_launch(prefix, fake, locks):
    told = []
    launch = await run_install(prefix, fake.env, told)
    (name,) = left(prefix)
    home = prefix / "tiny" / name
    assert launch.argv == (str(home / "bin/python"), "-P", str(home / "bin/tiny"), "acp")
    assert (launch.version, launch.path) == ("1.0", ())
    assert told[0] == "Installing Tiny 1.0 (once, about 1 MB on disk)"
    # A script of the environment finds its Python where it is now.
    assert (home / "bin/tiny").read_text().startswith(f"#!{home}/bin/python\n")
    venv, installing = fake.runs()
    assert venv[0][:3] == ["-I", "-m", "venv"]
    assert installing[0][:3] == ["-m", "pip", "install"]
    assert {"--require-hashes", "--no-deps", "--only-binary"} <= set(installing[0])

    assert await run_install(prefix, fake.env) == launch
    assert len(fake.runs()) == 2


async def test_what_has_no_wheel_is_built_afterwards(prefix, fake, locks):
    (locks / "sources.txt").write_text("old==1.0 \\\n    --hash=sha256:00\n")
    await run_install(prefix, fake.env)
    _, wheels, sources = (run[0] for run in fake.runs())
    assert wheels[-1] == "requirements.txt"
    assert sources[-1] == "sources.txt"
    assert {"--require-hashes", "--no-deps", "--no-build-isolation"} <= set(sources)


async def test_pip_gets_only_what_it_needs(prefix, fake, locks):
    fake.env |= {"OSTLER_MASTER_KEY": "k", "PIP_INDEX_URL": "r", "PIP_CERT": "c", "https_proxy": "p"}
    fake.env |= {"PIP_TARGET": "/x", "PIP_USER": "1", "PYTHONPATH": "/x", "VIRTUAL_ENV": "/x"}
    await run_install(prefix, fake.env)
    env = fake.runs()[1][2]
    assert {"PIP_INDEX_URL", "PIP_CERT", "https_proxy", "HOME"} <= set(env)
    assert not {"OSTLER_MASTER_KEY", "PIP_TARGET", "PYTHONPATH", "VIRTUAL_ENV"} & set(env)
    assert env["PIP_USER"] == "0"


async def test_failure_leaves_nothing_and_says_why(prefix, fake, locks):
    fake.mode("fail")
    with pytest.raises(InstallError) as caught:
        await run_install(prefix, fake.env)
    assert "Installing Tiny failed: pip exited with" in str(caught.value)
    assert "DO NOT MATCH THE HASHES" in str(caught.value)
    assert left(prefix) == []


async def test_install_without_its_program(prefix, fake, locks):
    fake.mode("empty")
    with pytest.raises(InstallError, match="but its program is missing"):
        await run_install(prefix, fake.env)
    assert left(prefix) == []


async def started(fake):
    child = fake.directory / "child"
    while not (child.exists() and child.read_text()):
        await trio.to_thread.run_sync(time.sleep, 0.01)  # in real time, whatever clock Trio has
    return int(child.read_text())


@pytest.mark.guarantee(name="nothing-hangs")
async def test_a_deadline_ends_pip_and_leaves_nothing(prefix, fake, locks, mock_clock):
    fake.mode("hang")

    async def hanging():
        with pytest.raises(InstallError, match="pip did not end in 90 s"):
            await run_install(prefix, fake.env, seconds=90)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(hanging)
        pid = await started(fake)
        mock_clock.jump(90)
        mock_clock.rate = 1.0  # pip is ended in real time
    assert not alive(pid)
    assert left(prefix) == []


async def test_cancellation_ends_pip_and_leaves_nothing(prefix, fake, locks):
    fake.mode("hang")
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run_install, prefix, fake.env)
            pid = await started(fake)
            nursery.cancel_scope.cancel()
    assert not alive(pid)
    assert left(prefix) == []


async def test_an_environment_whose_python_is_gone_is_made_anew(prefix, fake, locks):
    launch = await run_install(prefix, fake.env)
    (name,) = left(prefix)
    link = prefix / "tiny" / name / "bin" / "python"
    link.unlink()
    link.symlink_to("/nowhere/python")
    assert await run_install(prefix, fake.env) == launch
    assert len(fake.runs()) == 4
    assert link.is_file()


async def test_without_a_python_of_its_versions_one_sentence_says_so(prefix, fake, locks, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(fake.program))
    later = attrs.evolve(AGENT, pip=attrs.evolve(AGENT.pip, python=Versions((3, 13), (3, 15))))
    with pytest.raises(PythonMissing) as caught:
        await run_install(prefix, fake.env, descriptor=later)
    assert str(caught.value) == (
        "Tiny needs Python 3.13 or newer, below 3.15, with its module venv (found: 3.12.1). "
        "Install one, and have its directory on PATH"
    )
    assert left(prefix) == []
    assert fake.runs() == []


async def test_a_python_that_cannot_make_environments_is_passed_over(fake, tmp_path, monkeypatch):
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "python3.11").write_text("#!/bin/sh\necho 'No module named ensurepip' >&2\nexit 1\n")
    (bare / "python3.11").chmod(0o755)
    env = {"PATH": f"{bare}:{fake.directory}"}
    found = await find_python(ANY, "Tiny", env)
    assert (found.path, found.version) == (str(fake.program), (3, 12, 1))
    monkeypatch.setattr(sys, "executable", str(bare / "python3.11"))
    with pytest.raises(PythonMissing, match=r"with its module venv\. Install"):
        await find_python(ANY, "Tiny", {"PATH": str(bare)})


async def test_a_version_managers_python_is_found(fake, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nowhere")
    home = tmp_path / "home"
    (home / ".pyenv/versions/3.12.1/bin").mkdir(parents=True)
    (home / ".pyenv/versions/3.12.1/bin/python3").symlink_to(fake.program)
    found = await find_python(ANY, "Tiny", {"PATH": "/nowhere", "HOME": str(home)})
    assert found.version == (3, 12, 1)
    assert programs.MANAGED[0].startswith(".pyenv")


# -- the real ones ------------------------------------------------------------------------------------------


def make_wheel(directory, body):
    """A wheel of one module with a console script; returns its hash."""
    files = {
        "tiny.py": body,
        "tiny-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n",
        "tiny-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "tiny-1.0.dist-info/entry_points.txt": "[console_scripts]\ntiny = tiny:main\n",
    }
    digest = {
        name: base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        for name, text in files.items()
    }
    record = "".join(f"{name},sha256={digest[name]},{len(text)}\n" for name, text in files.items())
    path = directory / "tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)
        wheel.writestr("tiny-1.0.dist-info/RECORD", record + "tiny-1.0.dist-info/RECORD,,\n")
    return hashlib.sha256(path.read_bytes()).hexdigest()


async def test_a_real_environment_from_a_real_wheel(tmp_path, prefix, locks):
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    digest = make_wheel(wheels, "import sys\ndef main(): print(sys.prefix, *sys.argv[1:])\n")
    env = {"PATH": str(Path(sys.executable).parent), "HOME": str(tmp_path)}
    env |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels)}
    (locks / "requirements.txt").write_text(f"tiny==1.0 \\\n    --hash=sha256:{digest}\n")
    launch = await run_install(prefix, env)
    (name,) = left(prefix)
    home = prefix / "tiny" / name

    def said(*argv):
        return subprocess.run(argv, capture_output=True, text=True, check=True, env={}).stdout

    assert said(*launch.argv) == f"{home} acp\n"
    assert said(str(home / "bin" / "tiny"), "x") == f"{home} x\n"

    # The same command refuses what has another hash.
    (tmp_path / "requirements.txt").write_text(f"tiny==1.0 \\\n    --hash=sha256:{'0' * 64}\n")
    again = [launch.argv[0], *packages.INSTALL, "--force-reinstall", *packages.WHEELS]
    refused = subprocess.run(again, capture_output=True, text=True, check=False, env=env, cwd=tmp_path)
    assert refused.returncode != 0
    assert "DO NOT MATCH THE HASHES" in refused.stderr


def test_a_range_of_versions():
    assert str(AGENT.pip.python) == ">=3.11,<3.99"
    assert isinstance(AGENT.package, PipPackage)
    assert ANY.fit((3, 11, 0))
    assert not ANY.fit((3, 10, 9))
    assert not ANY.fit((3, 99))
