"""Makes `schemas/`: what the tests need of the published schemas, without descriptions.

    python -m tests.deploy.excerpt KUBERNETES_VALIDATE CHECK_JSONSCHEMA SANDBOX_CRD

The arguments are two unpacked wheels of PyPI and a file of a clone; `schemas/README.md` has their versions.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

import yaml

SCHEMAS: Final = Path(__file__).parent / "schemas"

KUBERNETES: Final = "1.37.0"
"""The version whose API the manifests are held to."""

KINDS: Final = (
    "configmap-v1",
    "deployment-apps-v1",
    "job-batch-v1",
    "networkpolicy-networking-v1",
    "persistentvolumeclaim-v1",
    "pod-v1",
    "poddisruptionbudget-policy-v1",
    "role-rbac-v1",
    "rolebinding-rbac-v1",
    "secret-v1",
    "service-v1",
    "serviceaccount-v1",
)
"""Files of `kubernetes-validate`: one for each kind of object that a manifest or a test has."""

DEFINITIONS: Final = "/api/_definitions.json#/$defs/"
"""What references to definitions begin with in these files."""

POD: Final = "io.k8s.api.core.v1.PodSpec"
CLAIM: Final = "io.k8s.api.core.v1.PersistentVolumeClaimSpec"
METADATA: Final = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"


def plain(schema: Any) -> Any:
    """The schema without descriptions. A property of that name stays."""
    if isinstance(schema, list):
        return [plain(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: plain(value)
        for name, value in schema.items()
        if not (name == "description" and isinstance(value, str)) and not name.startswith("x-kubernetes-")
    }


def near(schema: Any) -> Any:
    """The schema with references to definitions of its own document."""
    return json.loads(json.dumps(schema).replace(DEFINITIONS, "#/$defs/"))


def named(schema: Any) -> set[str]:
    """The definitions that a schema refers to."""
    if isinstance(schema, list):
        return {name for each in schema for name in named(each)}
    if not isinstance(schema, dict):
        return set()
    found = {name for value in schema.values() for name in named(value)}
    reference = schema.get("$ref")
    return found | {reference.removeprefix("#/$defs/")} if isinstance(reference, str) else found


def kubernetes(package: Path) -> dict[str, Any]:
    """The kinds, and the definitions that they use. Strict: a property that the API lacks is an error."""
    directory = package / "kubernetes_validate" / "kubernetes-json-schema" / f"v{KUBERNETES}-local-strict"
    definitions = json.loads((directory / "_definitions.json").read_text())["$defs"]
    kinds = {}
    for name in KINDS:
        schema = near(plain(json.loads((directory / f"{name}.json").read_text())))
        del schema["$schema"], schema["$id"]
        [version], [kind] = (schema["properties"][each]["enum"] for each in ("apiVersion", "kind"))
        kinds[f"{version} {kind}"] = schema
    used: dict[str, Any] = {}
    wanted = named(kinds) | {POD, CLAIM, METADATA}
    while wanted:
        name = wanted.pop()
        used[name] = near(plain(definitions[name]))
        wanted |= named(used[name]) - used.keys()
    return {"kinds": kinds, "$defs": dict(sorted(used.items()))}


def sandbox(path: Path) -> dict[str, Any]:
    """The Sandbox of v1beta1. Its pods and claims are left to the schema of Kubernetes."""
    crd = yaml.safe_load(path.read_text())
    [schema] = [
        plain(version["schema"]["openAPIV3Schema"])
        for version in crd["spec"]["versions"]
        if version["name"] == "v1beta1"
    ]
    strict(schema)
    properties = schema["properties"]
    del properties["status"]
    properties["metadata"] = {"$ref": f"#/$defs/{METADATA}"}
    properties["apiVersion"]["enum"] = [f"{crd['spec']['group']}/v1beta1"]
    properties["kind"]["enum"] = [crd["spec"]["names"]["kind"]]
    spec = properties["spec"]["properties"]
    spec["podTemplate"]["properties"]["spec"] = {"$ref": f"#/$defs/{POD}"}
    spec["volumeClaimTemplates"]["items"]["properties"]["spec"] = {"$ref": f"#/$defs/{CLAIM}"}
    return schema


def strict(schema: Any) -> None:
    """Have a property that the schema lacks be an error, as `kubectl --validate=strict` has it."""
    if isinstance(schema, list):
        for each in schema:
            strict(each)
    if isinstance(schema, dict):
        for each in schema.values():
            strict(each)
        if "properties" in schema and schema.get("type") == "object":
            schema.setdefault("additionalProperties", False)


def main() -> None:
    kubernetes_validate, check_jsonschema, crd = map(Path, sys.argv[1:])
    compose = json.loads(
        (check_jsonschema / "check_jsonschema/builtin_schemas/vendor/compose-spec.json").read_text()
    )
    made = kubernetes(kubernetes_validate)
    made["kinds"]["agents.x-k8s.io/v1beta1 Sandbox"] = sandbox(crd)
    for name, content in (("kubernetes", made), ("compose", plain(compose))):
        (SCHEMAS / f"{name}.json").write_text(json.dumps(content, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
