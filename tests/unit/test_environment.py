"""Laws of what a campaign runs on: what files set counts, known even where it is nothing, and never on record in words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lab import ID, Lab, campaign

from attuner.core.campaign import Campaign
from attuner.core.environment import Environment
from attuner.launchers.replay import Row
from attuner.policy import drift
from attuner.steps.birth import birth
from attuner.steps.environment import read_environment

REST = Row(step_s=1.0, jitter=0.002)


def environment(*, looked: dict[str, str] | None = None, **declared: str) -> Environment:
    return Environment(looked=looked or {}, declared=declared)


def test_the_first_patch_is_a_change_and_so_is_the_last_one_taken_out() -> None:
    none, one = environment(framework="1"), environment(framework="1", patches="fix-loss-scaling")
    assert [str(c) for c in drift.diff(none, one)] == ["patches  → fix-loss-scaling"]
    assert drift.said(drift.diff(one, none)) == "patches fix-loss-scaling → none"
    assert drift.diff(none, environment(framework="1", patches="")) == []
    assert drift.diff(Environment(looked={"torch": "2"}), one) == []  # who declared nothing knows of no patch


@pytest.mark.parametrize("seen", [{}, {"torch": "2.13", "sglang": "0.1.0"}])
def test_a_framework_is_no_double_of_what_happens_to_have_its_version(seen: dict[str, str]) -> None:
    old = Environment(looked=seen, declared={"framework": "0.1.0", "attuner": "0.1.0"})
    new = Environment(looked={**seen, "sglang": "0.2.0"} if seen else {}, declared={"framework": "0.2.0", "attuner": "0.2.0"})
    assert "framework" in [c.key for c in drift.diff(old, new, ignore=["attuner", "sglang"])]


def set_up(**changes: Any) -> Campaign:
    """A campaign with another stack section, or another cluster."""
    made = campaign()
    cluster = {k.removeprefix("cluster_"): v for k, v in changes.items() if k.startswith("cluster_")}
    stack = made.stack.model_copy(update={k: v for k, v in changes.items() if not k.startswith("cluster_")})
    launcher = made.launcher.model_copy(update={"cluster": made.launcher.cluster.model_copy(update=cluster)})
    return made.model_copy(update={"stack": stack, "launcher": launcher})


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"patches": ["fix"]}, "patches"),
        ({"script": "other.py"}, "script"),
        ({"script_arguments": ["--token-file", "hidden"]}, "script"),
        ({"cluster_name": "other"}, "cluster"),
        ({"cluster_env": {"NVTE_X": "hidden"}}, "cluster_env"),
    ],
)
def test_what_files_set_is_compared_and_never_on_record_in_words(tmp_path: Path, changes: dict[str, Any], key: str) -> None:
    made = Lab(tmp_path, [REST])
    birth(made.kit(), campaign())
    now = read_environment(made.kit(), set_up(**changes), None)
    (change,) = drift.diff(drift.lived(made.history()), now, ignore=["data", "framework"])
    assert change.key == key
    assert "hidden" not in str(now.data())


def test_a_record_from_before_settings_were_declared_counts_for_what_its_campaign_says(tmp_path: Path) -> None:
    made = Lab(tmp_path, [REST])
    born = set_up(script="train.py", cluster_env={"A": "1"}, patches=["fix"])
    birth(made.kit(), born)
    was = made.history().find("environment", "birth", Environment)
    assert was is not None
    old = {k: v for k, v in was.declared.items() if k not in ("patches", "script", "cluster", "cluster_env")}
    made.kit().ledger.append(ID, "environment", "birth", was.model_copy(update={"declared": old}))
    now = read_environment(made.kit(), born, None)
    assert drift.diff(drift.lived(made.history()), now, ignore=["data"]) == []
    now = read_environment(made.kit(), set_up(script="train.py", cluster_env={"A": "2"}, patches=["fix"]), None)
    assert [c.key for c in drift.diff(drift.lived(made.history()), now, ignore=["data"])] == ["cluster_env"]
    unknown = environment(framework="1")  # such as an alert's of that time: it knows nothing of them
    assert drift.diff(unknown, environment(framework="1", script="x", cluster="y", cluster_env="z")) == []
