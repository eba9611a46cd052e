"""The laws of the launcher `kuberay`, with the real client over HTTP and an operator stand-in: attach, charge, reasons, end."""

from __future__ import annotations

import pytest
from kube_lab import NAMESPACE, Kube, end_of, job


def test_a_launch_runs_to_its_end_and_is_charged_from_its_pods(kube: Kube) -> None:
    launcher, attempt = kube.launcher(), kube.attempt()
    where = launcher.submit(attempt, job(gpus=8))
    assert where.address == f"kube:{NAMESPACE}/lab-0001-l01-a1"
    state = end_of(launcher, where)
    assert (state.phase, state.gone) == ("succeeded", False)
    stamp = launcher.files(where).stamp
    assert stamp.gpu_seconds == pytest.approx(kube.held_s(), abs=2 * 4 * 1.1)
    assert (stamp.outcome, stamp.nodes) == ("ok", ["n1", "n2"])
    assert stamp.versions["image"].startswith("sha256:abab")
    assert kube.store.list("rayjobs") == kube.store.list("configmaps") == []
    assert kube.server.created("rayjobs") == ["lab-0001-l01-a1"]
