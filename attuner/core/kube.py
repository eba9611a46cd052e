"""KubeSpec: what a cluster file says of Kubernetes; the launcher `kuberay` makes RayJobs of it."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from attuner.core.base import Record

DNS_LABEL = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"
QUANTITY = r"^[0-9]+(\.[0-9]+)?([eE][0-9]+|m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$"


class Share(Record):
    """What one pod asks of its node beside devices; asked and limited alike."""

    cpu: str = Field(default="4", pattern=QUANTITY, description="cores, a Kubernetes quantity")
    memory: str = Field(default="16Gi", pattern=QUANTITY, description="a Kubernetes quantity")


class KubeSpec(Record):
    """Where and how launches run on Kubernetes. One namespace; a head pod without devices, worker pods with them."""

    namespace: str = Field(pattern=DNS_LABEL, description="where RayJobs are made")
    context: str = Field(default="", description="of the kubeconfig; '' is its current one")
    kubeconfig: str = Field(default="", description="file; '' is KUBECONFIG, ~/.kube/config, or the pod's own account")
    image: str = Field(min_length=1, description="with Ray, the framework and its libraries; best by digest: name@sha256:…")
    image_pull_secrets: list[str] = Field(default_factory=list, description="names of Secrets to pull the image with")
    python: str = Field(default="python", description="interpreter inside the image")
    ray_version: str = Field(default="", description="of the image; KubeRay decides some features by it")
    service_account: str = Field(default="", description="of head and workers; '' is the namespace's default")
    head: Share = Share()
    worker: Share = Share(cpu="32", memory="256Gi")
    gpu_key: str = Field(default="nvidia.com/gpu", description="the devices' name among a node's resources")
    limits: dict[str, str] = Field(default_factory=dict, description="more resources of a worker, e.g. rdma/hca_shared: '1'")
    node_selector: dict[str, str] = Field(default_factory=dict, description="of workers")
    head_node_selector: dict[str, str] = Field(default_factory=dict, description="of the head")
    tolerations: list[dict[str, Any]] = Field(default_factory=list, description="of head and workers, as Kubernetes writes them")
    annotations: dict[str, str] = Field(default_factory=dict, description="of worker pods, e.g. secondary networks for RDMA")
    queue: str = Field(default="", description="Kueue's LocalQueue: the label kueue.x-k8s.io/queue-name")
    priority_class: str = Field(default="", description="of head and workers; '' is none")
    pvc: str = Field(default="", description="volume claim that head and workers mount; every node must be able to write it")
    mount: str = Field(default="/mnt/attuner", pattern=r"^/", description="where the claim is mounted")
    ship_mount: str = Field(default="/etc/attuner/ship", pattern=r"^/", description="where runner and job are mounted")
    shm_gib: float = Field(default=64.0, gt=0, description="size of /dev/shm, counted against the worker's memory")
    env: dict[str, str] = Field(default_factory=dict, description="of every container, e.g. NCCL_SOCKET_IFNAME")
    queue_timeout_s: float = Field(default=86400, gt=0, description="how long a job may wait for Kueue")
    pull_patience_s: float = Field(
        default=180, ge=0, description="how long an image may fail to be pulled, while devices are held"
    )
    autoscaled: bool = Field(default=False, description="nodes are added on demand: too few of them now is no refusal")
