"""The manifests of deploy/kubernetes, against the published schemas and each other. No cluster ran them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.manifests import KUBERNETES, ROOT, faults, objects

MANIFESTS = [*sorted(KUBERNETES.glob("*.yaml")), ROOT / "docs" / "examples" / "kubernetes.yaml"]
TEMPLATES = ("sandbox.yaml", "job.yaml")
SHARED = {"OSTLER_DATABASE", "OSTLER_SESSION_API_KEY", "OSTLER_MASTER_KEY"}
"""What is secret, and the same on all servers. All of it can stand in a file of keys."""

KILL_S = 20
"""Seconds after OSTLER_DRAIN_SECONDS until the warden kills the server (docs/configuration.md)."""


def read(name: str) -> list[dict[str, Any]]:
    return objects((KUBERNETES / name).read_text())


def one(kind: str) -> dict[str, Any]:
    [found] = [each for each in read("servers.yaml") if each["kind"] == kind]
    return found


def pod_of(name: str) -> dict[str, Any]:
    """The pod of the workload: metadata and specification."""
    [found] = [each for each in read(name) if each["kind"] in ("Deployment", "Job", "Sandbox")]
    spec: dict[str, Any] = found["spec"]
    pod: dict[str, Any] = spec["podTemplate"] if found["kind"] == "Sandbox" else spec["template"]
    return pod


def container_of(pod: dict[str, Any]) -> dict[str, Any]:
    [container] = pod["spec"]["containers"]
    found: dict[str, Any] = container
    return found


def variables(pod: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in container_of(pod)["env"]}


def labels(pod: dict[str, Any]) -> set[tuple[str, str]]:
    return set(pod["metadata"]["labels"].items())


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_the_objects_fit_the_published_schemas(path: Path) -> None:
    found = objects(path.read_text())
    assert found
    assert [fault for each in found for fault in faults(each)] == []


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("servers.yaml", "replicas: 3", "replicas: three"),
        ("servers.yaml", "readinessProbe", "readynessProbe"),
        ("servers.yaml", "kind: RoleBinding", "kind: RoleBindings"),
        ("network.yaml", "podSelector", "podsSelector"),
        ("sandbox.yaml", "podTemplate", "template"),
        ("sandbox.yaml", "restartPolicy: Never", "restartPolicy: [Never]"),
        ("sandbox.yaml", "v1beta1", "v1"),
        ("job.yaml", "backoffLimit", "backOffLimit"),
    ],
)
def test_a_mistake_is_seen(name: str, old: str, new: str) -> None:
    text = (KUBERNETES / name).read_text()
    assert old in text
    assert [fault for each in objects(text.replace(old, new)) for fault in faults(each)]


def test_both_templates_have_the_same_pod() -> None:
    sandbox, job = map(pod_of, TEMPLATES)
    assert sandbox == job


@pytest.mark.parametrize("name", ["servers.yaml", *TEMPLATES])
def test_a_pod_has_its_volumes_probes_and_time_to_end(name: str) -> None:
    pod = pod_of(name)
    container = container_of(pod)
    assert {each["name"] for each in container["volumeMounts"]} == {
        each["name"] for each in pod["spec"]["volumes"]
    }
    # What the image has for a volume.
    assert "/data" in {each["mountPath"] for each in container["volumeMounts"]}
    probes = {probe: container[probe]["httpGet"] for probe in container if probe.endswith("Probe")}
    assert probes["readinessProbe"]["path"] == "/ready"
    assert {each["path"] for each in probes.values()} <= {"/ready", "/alive"}
    assert [(each["name"], each["containerPort"]) for each in container["ports"]] == [("http", 8000)]
    assert {each["port"] for each in probes.values()} == {"http"}
    pause = container.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
    drain = float(variables(pod)["OSTLER_DRAIN_SECONDS"]["value"])
    assert pod["spec"]["terminationGracePeriodSeconds"] >= pause + drain + KILL_S


def test_what_is_selected_is_there() -> None:
    servers, conversations = labels(pod_of("servers.yaml")), labels(pod_of("job.yaml"))
    deployment, service = one("Deployment"), one("Service")
    assert set(deployment["spec"]["selector"]["matchLabels"].items()) <= servers
    assert set(service["spec"]["selector"].items()) <= servers
    assert not set(service["spec"]["selector"].items()) <= conversations  # clients do not reach these
    assert set(one("PodDisruptionBudget")["spec"]["selector"]["matchLabels"].items()) <= servers
    policies = {each["metadata"]["name"]: each["spec"] for each in read("network.yaml")}
    for name, pod in (("ostler-servers", servers), ("ostler-conversations", conversations)):
        assert set(policies[name]["podSelector"]["matchLabels"].items()) <= pod
        assert policies[name]["policyTypes"] == ["Ingress", "Egress"]


def test_the_servers_find_their_secrets_and_their_account() -> None:
    [secret] = read("secret.yaml")
    pod = pod_of("servers.yaml")
    volumes = {each["name"]: each for each in pod["spec"]["volumes"]}
    keys = volumes["keys"]["secret"]
    assert keys["secretName"] == secret["metadata"]["name"]
    assert (
        keys["defaultMode"] == 0o440
    )  # the group's, whom fsGroup names; the file of keys may not be open to others
    [item] = keys["items"]
    assert item["key"] in secret["stringData"]
    mounts = {each["name"]: each["mountPath"] for each in container_of(pod)["volumeMounts"]}
    found = variables(pod)
    assert found["OSTLER_KEYS_FILE"]["value"] == f"{mounts['keys']}/{item['path']}"
    named = {line.partition("=")[0] for line in secret["stringData"][item["key"]].split()}
    assert named == SHARED
    assert found["OSTLER_PROVISION"]["value"] == f"{mounts['provision']}/provision"
    assert volumes["provision"]["configMap"]["defaultMode"] == 0o555
    account = one("ServiceAccount")["metadata"]["name"]
    assert pod["spec"]["serviceAccountName"] == account
    assert [each["name"] for each in one("RoleBinding")["subjects"]] == [account]
    assert one("RoleBinding")["roleRef"]["name"] == one("Role")["metadata"]["name"]


def test_a_pod_of_a_conversation_gets_no_secret_but_the_key_to_join() -> None:
    pod = pod_of("job.yaml")
    assert variables(pod).keys() - {"POD_IP", "OSTLER_ADVERTISE_URL", "OSTLER_DRAIN_SECONDS"} == {
        "OSTLER_JOIN",
        "OSTLER_JOIN_KEY",
    }
    assert "secret" not in json.dumps(pod["spec"]["volumes"])
    assert pod["spec"]["automountServiceAccountToken"] is False
