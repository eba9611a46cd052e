"""The objects of the stand-in API server: versions, selectors, finalizers, graceful deletion, ownership, validation."""

from __future__ import annotations

import copy
import threading
import time
import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

Obj = dict[str, Any]
KINDS = {
    "rayjobs": ("ray.io/v1", "RayJob"),
    "rayclusters": ("ray.io/v1", "RayCluster"),
    "pods": ("v1", "Pod"),
    "events": ("v1", "Event"),
    "configmaps": ("v1", "ConfigMap"),
    "nodes": ("v1", "Node"),
    "resourcequotas": ("v1", "ResourceQuota"),
    "persistentvolumeclaims": ("v1", "PersistentVolumeClaim"),
    "localqueues": ("kueue.x-k8s.io/v1beta1", "LocalQueue"),
    "customresourcedefinitions": ("apiextensions.k8s.io/v1", "CustomResourceDefinition"),
}


def stamp(t: float | None = None) -> str:
    """Return a Kubernetes time, in whole seconds as the server keeps it."""
    return datetime.fromtimestamp(time.time() if t is None else t, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Refuse(Exception):
    """A status that is not 2xx."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code, self.reason, self.message = code, reason, message


@dataclass
class Rule:
    """One rule of a Role."""

    groups: list[str]
    resources: list[str]
    verbs: list[str]


def rules_of(*roles: Obj) -> list[Rule]:
    """Return the rules of Roles as they stand in their files."""
    return [Rule(r["apiGroups"], r["resources"], r["verbs"]) for role in roles for r in role["rules"]]


@dataclass
class Store:
    """The objects, their versions and their past."""

    objects: dict[tuple[str, str, str], Obj] = field(default_factory=dict)
    past: list[tuple[int, str, str, str, Obj]] = field(default_factory=list)
    version: int = 100
    oldest: int = 0
    schema: dict[str, Obj] = field(default_factory=dict)
    changed: threading.Condition = field(default_factory=lambda: threading.Condition(threading.RLock()))

    def _note(self, kind: str, resource: str, found: Obj) -> None:
        self.version += 1
        found["metadata"]["resourceVersion"] = str(self.version)
        namespace = found["metadata"].get("namespace", "")
        self.past.append((self.version, kind, resource, namespace, copy.deepcopy(found)))
        self.changed.notify_all()

    def create(self, resource: str, namespace: str, body: Obj, *, dry: bool = False, strict: bool = False) -> Obj:
        """Create an object. Raises Refuse."""
        with self.changed:
            made = copy.deepcopy(body)
            meta = made.setdefault("metadata", {})
            name = meta.get("name") or meta.get("generateName", "") + uuid.uuid4().hex[:5]
            if resource in self.schema:
                problems = validate(made, self.schema[resource], strict=strict)
                if problems:
                    raise Refuse(422, "Invalid", f"{KINDS[resource][1]} {name!r} is invalid: {problems[0]}")
            if (resource, namespace, name) in self.objects:
                raise Refuse(409, "AlreadyExists", f"{resource} {name!r} already exists")
            api, kind = KINDS[resource]
            made |= {"apiVersion": api, "kind": kind}
            more = {"namespace": namespace} if namespace else {}
            meta |= {"name": name, "uid": str(uuid.uuid4()), "creationTimestamp": stamp(), "generation": 1, **more}
            if not dry:
                self.objects[(resource, namespace, name)] = made
                self._note("ADDED", resource, made)
            return copy.deepcopy(made)

    def get(self, resource: str, namespace: str, name: str) -> Obj:
        """Return an object. Raises Refuse."""
        with self.changed:
            if (resource, namespace, name) not in self.objects:
                raise Refuse(404, "NotFound", f"{resource} {name!r} not found")
            return copy.deepcopy(self.objects[(resource, namespace, name)])

    def list(self, resource: str, namespace: str = "", selector: str = "") -> list[Obj]:
        """Return the objects that a label selector picks."""
        with self.changed:
            return [
                copy.deepcopy(o)
                for (r, n, _), o in self.objects.items()
                if r == resource and namespace in ("", n) and selected(o, selector)
            ]

    def update(self, resource: str, body: Obj) -> Obj:
        """Replace an object; a stale resourceVersion is a conflict. Without finalizers a deleted object goes."""
        with self.changed:
            key = (resource, body["metadata"].get("namespace", ""), body["metadata"]["name"])
            if key not in self.objects:
                raise Refuse(404, "NotFound", f"{resource} {key[2]!r} not found")
            here = self.objects[key]
            if body["metadata"].get("resourceVersion") not in (None, here["metadata"]["resourceVersion"]):
                raise Refuse(409, "Conflict", f"{resource} {key[2]!r}: the object has been modified")
            made = copy.deepcopy(body)
            if {**made, "metadata": 0} == {**here, "metadata": 0} and _bare(made) == _bare(here):
                return copy.deepcopy(here)
            self.objects[key] = made
            if made["metadata"].get("deletionTimestamp") and not made["metadata"].get("finalizers") and resource != "pods":
                self.remove(resource, key[1], key[2])
            else:
                self._note("MODIFIED", resource, made)
            return copy.deepcopy(made)

    def delete(self, resource: str, namespace: str, name: str, *, grace_s: float = 30.0) -> Obj:
        """Delete: at once, or when finalizers are off and containers have ended."""
        with self.changed:
            found = self.get(resource, namespace, name)
            held = found["metadata"].get("finalizers") or (resource == "pods" and found.get("spec", {}).get("nodeName"))
            if not held:
                self.remove(resource, namespace, name)
            elif not found["metadata"].get("deletionTimestamp"):
                here = self.objects[(resource, namespace, name)]
                here["metadata"]["deletionTimestamp"] = stamp(time.time() + (grace_s if resource == "pods" else 0))
                self._note("MODIFIED", resource, here)
            return found

    def remove(self, resource: str, namespace: str, name: str) -> None:
        """Take an object away, and delete what it owned."""
        with self.changed:
            gone = self.objects.pop((resource, namespace, name))
            self._note("DELETED", resource, gone)
            uid = gone["metadata"]["uid"]
            for (r, n, m), o in list(self.objects.items()):
                if any(ref["uid"] == uid for ref in o["metadata"].get("ownerReferences", [])) and (r, n, m) in self.objects:
                    self.delete(r, n, m)

    def expire(self) -> None:
        """Forget the past: whoever watched from before now must list again."""
        with self.changed:
            self.version += 1
            self.oldest = self.version
            self.past.clear()


def _bare(found: Obj) -> Obj:
    return {k: v for k, v in found["metadata"].items() if k != "resourceVersion"}


def selected(found: Obj, selector: str) -> bool:
    """Tell whether an equality selector picks an object."""
    tags = found["metadata"].get("labels") or {}
    return all(tags.get(k) == v for k, _, v in (x.partition("=") for x in selector.split(",") if x))


def validate(value: Any, schema: Obj, path: str = "", *, strict: bool) -> list[str]:
    """Return what breaks a structural schema."""
    if schema.get("x-kubernetes-int-or-string"):
        return [] if isinstance(value, int | str) else [f"{path}: must be integer or string"]
    if value is None:
        return [] if schema.get("nullable") else [f"{path}: must not be null"]
    kinds = {"object": dict, "array": list, "string": str, "integer": int, "number": int | float, "boolean": bool}
    kind = schema.get("type")
    if kind and (not isinstance(value, kinds[kind]) or (kind in ("integer", "number") and isinstance(value, bool))):
        return [f"{path}: Invalid value: must be of type {kind}"]
    found = [f"{path}: Unsupported value {value!r}"] if "enum" in schema and value not in schema["enum"] else []
    if "minimum" in schema and value < schema["minimum"]:
        found.append(f"{path}: should be greater than or equal to {schema['minimum']}")
    if kind == "object":
        fields, rest = schema.get("properties", {}), schema.get("additionalProperties")
        found += [f"{path}.{k}: Required value" for k in schema.get("required", []) if k not in value]
        for name, inner in value.items():
            if name in fields:
                found += validate(inner, fields[name], f"{path}.{name}".lstrip("."), strict=strict)
            elif isinstance(rest, dict):
                found += validate(inner, rest, f"{path}.{name}", strict=strict)
            elif strict and fields and not schema.get("x-kubernetes-preserve-unknown-fields") and path != "metadata":
                found.append(f'strict decoding error: unknown field "{path}.{name}"')
    if kind == "array":
        for i, inner in enumerate(value):
            found += validate(inner, schema.get("items", {}), f"{path}[{i}]", strict=strict)
    return found
