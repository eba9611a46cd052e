"""Resolving as a job of the cluster, through the driver on a local Ray: the way in when the checkout is in the image only."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
from megatron_bench import GPUS, RECIPES, ROOT, SOURCE, Bench, frame, needs_checkout

from attuner.config import load_recipe
from attuner.core.campaign import Cluster
from attuner.core.errors import Refused
from attuner.core.recipe import EffectiveConfig
from attuner.core.run import Attempt
from attuner.launchers.ray_jobs import RayJobs
from attuner.stacks.megatron.stack import MegatronStack

LLAMA = "llama3-8b"


@pytest.mark.slow
@needs_checkout
@pytest.mark.filterwarnings("ignore")  # Ray warns while it is imported
def test_a_job_in_the_image_says_what_a_checkout_here_says(tmp_path: Path) -> None:
    recipe = load_recipe(RECIPES / f"{LLAMA}.yaml")
    bad = recipe.changed({"pipeline_model_parallel_size": 3})
    campaign = frame(recipe, GPUS[LLAMA])
    stack = MegatronStack()
    job = stack.resolve_job([recipe, bad], campaign, source=str(Path(SOURCE).resolve()))
    cluster = Cluster(name="c", devices=1, devices_per_node=1)
    launcher = RayJobs(cluster, tmp_path, address="", python=sys.executable, runner=ROOT / "attuner" / "runner")
    attempt = Attempt(launch_id="r01", number=1, submission_id="c-r01-a1", folder=str(tmp_path / "run"), submitted_at=0.0)
    (tmp_path / "run").mkdir()
    try:
        attempt = launcher.submit(attempt, job)
        deadline = time.monotonic() + 300
        while not launcher.poll(attempt).done() and time.monotonic() < deadline:
            time.sleep(0.5)
        files = launcher.files(attempt)
    finally:
        launcher.close()
    assert files.stamp.outcome == "ok", files.stamp.detail
    final, refused = stack.resolved(files, campaign)
    assert isinstance(final, EffectiveConfig)
    assert isinstance(refused, Refused)
    here = Bench.made()
    try:
        assert final.arguments == here.base(LLAMA).arguments
        assert final.facts == here.base(LLAMA).facts
    finally:
        here.stack.close()
