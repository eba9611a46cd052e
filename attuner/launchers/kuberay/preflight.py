"""What is asked before a RayJob is created: the installed schema, quotas, and nodes with room. Each needs a right that may be
missing; then it is skipped, with a word. Nothing here changes anything."""

from __future__ import annotations

import logging
from typing import Any

from attuner.core.campaign import Cluster
from attuner.core.errors import UserError
from attuner.launchers.kuberay import capacity, checks
from attuner.launchers.kuberay.api import GET_CRD, LIST_NODES, LIST_QUOTAS, KubeApi

_log = logging.getLogger(__name__)
CRD = "rayjobs.ray.io"


class Preflight:
    """Asks a cluster whether it could ever run what is about to be submitted."""

    def __init__(self, api: KubeApi, cluster: Cluster) -> None:
        self._api, self._cluster = api, cluster
        self._schema: dict[str, Any] | None = None
        self._asked = False
        self._warned: set[str] = set()

    def schema(self, body: dict[str, Any]) -> None:
        """Raise UserError if the RayJob breaks the schema that is installed."""
        if not self._asked:
            answer = self._api.call(GET_CRD, self._api.extensions().read_custom_resource_definition, CRD, ok=(403, 404))
            if answer.status == 403:
                self.say("the RayJob's schema may not be read here (configs/kube/capacity.yaml); the server alone validates")
            self._schema, self._asked = checks.schema_of(answer.body) if answer.ok else None, True
        wrong = checks.schema_problems(body, self._schema) if self._schema else []
        if wrong:
            raise UserError(
                f"cluster {self._cluster.name}: the RayJob breaks the installed schema: {wrong[0]}; is KubeRay older than 1.6?"
            )

    def room(self, body: dict[str, Any]) -> None:
        """Raise UserError for what could never start, however long one waits."""
        spec = self._api.spec
        answer = self._api.call(LIST_QUOTAS, self._api.core().list_namespaced_resource_quota, spec.namespace, ok=(403,))
        if answer.status == 403:
            self.say("quotas may not be listed here (configs/kube/role.yaml); whether they can admit the job is not checked")
        wrong = capacity.quota_problem(answer.body.get("items", []), body) if answer.ok else ""
        if wrong:
            raise UserError(f"namespace {spec.namespace}: {wrong}; it could never start: ask for less, or for a larger quota")
        nodes = None if spec.autoscaled else self.nodes()
        wrong = capacity.capacity_problem(nodes, body, key=spec.gpu_key) if nodes else ""
        if wrong:
            raise UserError(
                f"cluster {self._cluster.name}: {wrong}; ask for less, or set kube.autoscaled if nodes come on demand"
            )

    def nodes(self) -> list[dict[str, Any]] | None:
        """Return the nodes, None where they may not be listed."""
        answer = self._api.call(LIST_NODES, self._api.core().list_node, ok=(403,))
        if answer.status == 403:
            self.say("nodes may not be listed here (configs/kube/capacity.yaml); whether they have room is not checked")
            return None
        return list(answer.body.get("items", []))

    def say(self, text: str) -> None:
        """Say once what is skipped."""
        if text not in self._warned:
            self._warned.add(text)
            _log.warning("namespace %s: %s", self._api.spec.namespace, text)
