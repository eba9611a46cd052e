"""Our own checks of a RayJob before it is sent: what KubeRay's controller would refuse later, and what nobody refuses.

The API server validates against the schema (a dry run), but not `submissionMode: Bogus`, a name that KubeRay's controller
rejects only after admission, or a label that is too long. The schema is checked here too where the CRD may be read.
"""

from __future__ import annotations

import re
from typing import Any

from attuner.launchers.kuberay.capacity import pods_of, quantity

NAME_LENGTH = 47
"""KubeRay appends to the name and refuses longer ones (validation.go, MaxRayJobNameLength)."""
DNS_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
LABEL = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")
ENV_NAME = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*")
MODES = ("K8sJobMode", "HTTPMode", "InteractiveMode", "SidecarMode")
INT32 = 2**31 - 1
SHIP_BYTES = 1 << 20
"""A ConfigMap holds at most this much."""


def problems(rayjob: dict[str, Any]) -> list[str]:
    """Return what is wrong with a RayJob of ours, one line each, with the field."""
    return [*_names(rayjob), *_spec(rayjob["spec"]), *_pods(rayjob)]


def _names(rayjob: dict[str, Any]) -> list[str]:
    name, found = rayjob["metadata"]["name"], []
    if len(name) > NAME_LENGTH:
        found.append(
            f"metadata.name: {name} has {len(name)} characters, KubeRay takes {NAME_LENGTH}; shorten the campaign's name"
        )
    if not DNS_1035.fullmatch(name):
        found.append(f"metadata.name: {name} must begin with a letter for KubeRay; rename the campaign")
    for key, value in rayjob["metadata"].get("labels", {}).items():
        if len(value) > 63 or not LABEL.fullmatch(value):
            found.append(f"metadata.labels.{key}: {value!r} is no label value")
    return found


def _spec(spec: dict[str, Any]) -> list[str]:
    found = []
    if spec.get("submissionMode") not in MODES:
        found.append(f"spec.submissionMode: {spec.get('submissionMode')}: unknown; known: {', '.join(MODES)}")
    if spec.get("backoffLimit") != 0:
        found.append("spec.backoffLimit: must be 0: a retry by KubeRay is a launch that nobody decided")
    if not spec.get("shutdownAfterJobFinishes") or spec.get("ttlSecondsAfterFinished") != 0:
        found.append("spec.shutdownAfterJobFinishes: the cluster must end with the job, at once")
    for key in ("activeDeadlineSeconds", "preRunningDeadlineSeconds"):
        if not isinstance(spec.get(key), int) or not 0 < spec[key] <= INT32:
            found.append(f"spec.{key}: {spec.get(key)} is not a positive number of seconds")
    if not found and spec["activeDeadlineSeconds"] <= spec["preRunningDeadlineSeconds"]:
        found.append("spec.activeDeadlineSeconds: leaves no time after starting")
    if not str(spec.get("entrypoint", "")).strip():
        found.append("spec.entrypoint: is empty")
    return found


def _pods(rayjob: dict[str, Any]) -> list[str]:
    found = []
    for group, count, spec in pods_of(rayjob):
        mounted = {v["name"] for v in spec["volumes"]}
        if count < 1:
            found.append(f"{group}: {count} pods")
        for container in spec["containers"]:
            where = f"{group}.{container['name']}"
            if not container.get("image") or re.search(r"\s", container["image"]):
                found.append(f"{where}.image: {container.get('image')!r} is no image name")
            found += [f"{where}.env: {e['name']!r} is no name" for e in container["env"] if not ENV_NAME.fullmatch(e["name"])]
            found += [
                f"{where}.volumeMounts: {m['name']}: {m['mountPath']} is not absolute, or no such volume"
                for m in container["volumeMounts"]
                if not m["mountPath"].startswith("/") or m["name"] not in mounted
            ]
            found += _resources(where, container["resources"])
    return found


def _resources(where: str, resources: dict[str, dict[str, str]]) -> list[str]:
    found = []
    for kind, wanted in resources.items():
        for name, value in wanted.items():
            try:
                amount = quantity(value)
            except ValueError:
                found.append(f"{where}.{kind}.{name}: {value!r} is no quantity")
                continue
            if "/" in name and amount != int(amount):
                found.append(f"{where}.{kind}.{name}: {value}: devices come whole")
    return found


def oversized(ship: dict[str, Any]) -> str:
    """Return why a ConfigMap can't be stored, '' if it can."""
    size = sum(len(v) for part in ("data", "binaryData") for v in ship.get(part, {}).values())
    return f"runner and job document take {size} bytes, a ConfigMap holds {SHIP_BYTES}" if size > SHIP_BYTES else ""


# ------------------------------------------------------------------------------------- the CRD's own schema


def schema_of(crd: dict[str, Any], version: str = "v1") -> dict[str, Any] | None:
    """Return the JSON Schema of a served version of a custom resource definition; None if there is none."""
    found = next((v for v in crd.get("spec", {}).get("versions", []) if v["name"] == version and v.get("served")), None)
    if found is None:
        return None
    schema: dict[str, Any] = _json_schema(found["schema"]["openAPIV3Schema"])
    schema["properties"]["metadata"] = {"type": "object"}
    return schema


def _json_schema(node: Any) -> Any:
    """Turn a structural schema into JSON Schema; a field that it doesn't name is an error, as strict validation has it."""
    if isinstance(node, list):
        return [_json_schema(x) for x in node]
    if not isinstance(node, dict):
        return node
    out: dict[str, Any] = {}
    for key, value in node.items():
        if key in ("properties", "patternProperties"):
            out[key] = {name: _json_schema(inner) for name, inner in value.items()}
        else:
            out[key] = value if key in ("default", "enum", "example") else _json_schema(value)
    if out.get("x-kubernetes-int-or-string"):
        out["type"] = ["integer", "string"]
    elif node.get("nullable") and isinstance(out.get("type"), str):
        out["type"] = [out["type"], "null"]
    if node.get("type") == "object" and "properties" in node and "additionalProperties" not in node:
        out["additionalProperties"] = bool(node.get("x-kubernetes-preserve-unknown-fields"))
    return out


def schema_problems(rayjob: dict[str, Any], schema: dict[str, Any]) -> list[str]:
    """Return where a RayJob breaks the schema, one line each."""
    import jsonschema  # type: ignore[import-untyped,unused-ignore]

    found = jsonschema.Draft202012Validator(schema).iter_errors(rayjob)
    return [f"{'.'.join(str(p) for p in e.path)}: {' '.join(e.message.split())[:160]}" for e in found]
