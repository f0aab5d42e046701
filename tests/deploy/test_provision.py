"""deploy/kubernetes/provision, run with a `kubectl` that writes down what it gets."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import attrs
import pytest

from tests.deploy.manifests import KUBERNETES, faults, objects
from tests.deploy.test_kubernetes import TEMPLATES, container_of, one

CONVERSATION = "0b8f7f3e-52a4-4f0e-9f5a-6d0f4a1c2b3d"
KEY = "one-time_KEY.123"
URL = "http://[fd00::7]:8000"
KUBECTL = """#!/bin/sh
n=$(ls "$CALLS" | wc -l)
printf '%s\\n' "$@" >"$CALLS/$n.arguments"
cat >"$CALLS/$n.input"
"""
VERBS = {"apply": {"get", "create", "patch"}, "delete": {"get", "list", "watch", "delete"}}
"""What a command of kubectl asks of the API server for: deleting waits until the object is gone."""


@attrs.frozen
class Call:
    arguments: list[str]
    objects: list[dict[str, Any]]


@pytest.fixture(params=TEMPLATES)
def recipe(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The directory that the pod of a server has from its ConfigMap, which README.md makes."""
    place = tmp_path / "recipe"
    place.mkdir()
    shutil.copy(KUBERNETES / "provision", place)
    shutil.copy(KUBERNETES / "claim.yaml", place)
    shutil.copy(KUBERNETES / request.param, place / "conversation.yaml")
    return place


def provision(
    recipe: Path, kubectl: str = KUBECTL, **values: str
) -> tuple[subprocess.CompletedProcess[str], list[Call]]:
    calls, tools = recipe.parent / "calls", recipe.parent / "tools"
    for each in (calls, tools):
        each.mkdir(exist_ok=True)
    (tools / "kubectl").write_text(kubectl)
    (tools / "kubectl").chmod(0o755)
    environment = {"PATH": f"{tools}:/usr/bin:/bin", "CALLS": str(calls)}
    environment |= {f"OSTLER_PROVISION_{name}": value for name, value in values.items()}
    done = subprocess.run([recipe / "provision"], env=environment, capture_output=True, text=True, timeout=30)
    made = sorted(calls.glob("*.arguments"), key=lambda path: int(path.stem))
    return done, [
        Call(path.read_text().splitlines(), objects(path.with_suffix(".input").read_text())) for path in made
    ]


def start(**values: str) -> dict[str, str]:
    return {
        "ACTION": "start",
        "CONVERSATION": CONVERSATION,
        "LABELS": "",
        "JOIN_URL": URL,
        "JOIN_KEY": KEY,
    } | values


def test_a_start_makes_the_disk_and_the_pod(recipe: Path) -> None:
    done, calls = provision(recipe, **start(LABELS="zone=a,gpu=yes"))
    assert (done.returncode, done.stderr) == (0, "")
    assert [call.arguments[0] for call in calls] == ["delete", "apply", "apply"]
    before, claim, workload = (call.objects for call in calls)
    assert [fault for call in calls for each in call.objects for fault in faults(each)] == []
    assert before == workload
    assert {each["metadata"]["name"] for call in calls for each in call.objects} == {f"ostler-{CONVERSATION}"}
    assert [each["kind"] for each in claim] == ["PersistentVolumeClaim"]
    [made] = workload
    pod = made["spec"].get("podTemplate") or made["spec"]["template"]
    values = {each["name"]: each.get("value") for each in container_of(pod)["env"]}
    assert (values["OSTLER_JOIN"], values["OSTLER_JOIN_KEY"]) == (URL, KEY)
    assert pod["metadata"]["annotations"] == {"ostler/labels": "zone=a,gpu=yes"}
    assert pod["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"] == claim[0]["metadata"]["name"]
    assert "@" not in json.dumps(made)


def test_the_key_is_in_no_list_of_processes_and_no_annotation(recipe: Path) -> None:
    _, calls = provision(recipe, **start())
    assert KEY not in str([call.arguments for call in calls])
    assert all("--server-side" in call.arguments for call in calls if call.arguments[0] == "apply")


def test_a_stop_deletes_the_pod_and_leaves_the_disk(recipe: Path) -> None:
    done, calls = provision(recipe, ACTION="stop", CONVERSATION=CONVERSATION)
    assert (done.returncode, done.stderr) == (0, "")
    [call] = calls
    assert call.arguments[0] == "delete"
    assert [(each["kind"] in ("Sandbox", "Job"), each["metadata"]["name"]) for each in call.objects] == [
        (True, f"ostler-{CONVERSATION}")
    ]


def test_the_role_allows_what_is_asked(recipe: Path) -> None:
    _, calls = provision(recipe, **start())
    rules = {(group, name): set(rule["verbs"]) for rule in one("Role")["rules"]
             for group in rule["apiGroups"] for name in rule["resources"]}  # fmt: skip
    plurals = {"Sandbox": "sandboxes", "Job": "jobs", "PersistentVolumeClaim": "persistentvolumeclaims"}
    for call in calls:
        for each in call.objects:
            group = each["apiVersion"].rpartition("/")[0]
            assert VERBS[call.arguments[0]] <= rules[group, plurals[each["kind"]]]


@pytest.mark.parametrize(
    "wrong",
    [
        {"ACTION": "restart"},
        {"ACTION": ""},
        {"CONVERSATION": ""},
        {"CONVERSATION": "../other"},
        {"CONVERSATION": f"{CONVERSATION}\n"},
        {"LABELS": 'a="b'},
        {"LABELS": "a=b\nkind: Secret"},
        {"JOIN_URL": 'http://host"'},
        {"JOIN_URL": "http://host\\&"},
        {"JOIN_KEY": "a b"},
        {"JOIN_KEY": "$(reboot)"},
    ],
    ids=str,
)
def test_what_could_end_a_string_is_refused(recipe: Path, wrong: dict[str, str]) -> None:
    done, calls = provision(recipe, **start(**wrong))
    assert done.returncode == 1
    assert done.stderr.startswith("provision: OSTLER_PROVISION_")
    assert len(done.stderr.splitlines()) == 1
    assert calls == []


@pytest.mark.parametrize("missing", ["claim.yaml", "conversation.yaml"])
def test_a_missing_file_is_a_failure_before_anything_is_done(recipe: Path, missing: str) -> None:
    (recipe / missing).unlink()
    done, calls = provision(recipe, **start())
    assert done.returncode != 0
    assert missing in done.stderr
    assert calls == []


def test_a_failure_of_kubectl_is_one_of_the_command(recipe: Path) -> None:
    done, calls = provision(recipe, kubectl=KUBECTL + "exit 7\n", **start())
    assert (done.returncode, len(calls)) == (7, 1)
