"""The run form: what it offers is what is wired, what it changes stands in the campaign's record, bad input is one clear line."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, get_args

import pytest
from lab import ROOT

sys.path.insert(0, str(ROOT))  # flows/ and tasks/ are run from the checkout, never installed

from attuner import wiring
from attuner.cli.check import examine
from attuner.config import load_campaign
from attuner.core.campaign import Campaign
from attuner.core.errors import UserError
from attuner.settings import load_settings
from flows.request import (
    CampaignFields,
    Launchers,
    Proposers,
    Stacks,
    changes_of,
    check_request,
    fields_of,
    request_file,
)

REPLAY = str(ROOT / "configs" / "campaigns" / "replay-quickstart.yaml")
FIELDS: dict[str, Any] = {
    "name": "from-form",
    "workload": {
        **{"model": "tiny-moe", "dataset": "python-stdlib", "seq_len": 128, "global_batch": 8, "precision": "fp32"},
        **{"gpus": 2, "hardware": "cpu"},
    },
    "baseline": "recipes/mcore/tiny-moe-carried-over.yaml",
    "stack": {"version": "0.16.1"},
}


def test_the_form_offers_what_is_wired() -> None:
    assert set(get_args(Proposers)) == set(wiring.PROPOSERS)
    assert set(get_args(Launchers)) == set(wiring.LAUNCHERS)
    assert set(get_args(Stacks)) == set(wiring.STACKS)


def test_what_the_form_changes_stands_in_the_record_and_nothing_else() -> None:
    plain = load_campaign(Path(REPLAY), configs=ROOT / "configs")
    assert plain.changed == []
    changes = changes_of(budget_gpu_hours=0.5, proposer="scripted", launcher=None, seed=7)
    found = load_campaign(Path(REPLAY), configs=ROOT / "configs", changes=changes)
    # the proposer is the file's own: not a change
    assert [str(x) for x in found.changed] == [
        *("budget.gpu_hours 0.4 → 0.5", "proposer.seed None → 7", "launcher.seed 1 → 7"),
    ]
    assert (found.budget.gpu_hours, found.proposer.seed, found.launcher.seed) == (0.5, 7, 7)
    assert found.proposer.script == plain.proposer.script
    assert Campaign.model_validate(found.data()).changed == found.changed


def test_a_file_cannot_claim_to_have_been_changed(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(Path(REPLAY).read_text() + "changed: []\n")
    with pytest.raises(UserError, match="changed: is set by attuner"):
        load_campaign(file, configs=ROOT / "configs")


def test_fields_become_the_file_that_they_are(tmp_path: Path) -> None:
    settings = load_settings({"ATTUNER_HOME": str(tmp_path)}, project=str(ROOT))
    more = {"launch": {"hang_s": 30}, "noise": {"floor": 0.05}, "proposer": {"name": "random"}}
    asked = fields_of(CampaignFields.model_validate({**FIELDS, "more": more}))
    file = request_file("", asked, settings)
    assert request_file("", asked, settings) == file
    found = load_campaign(Path(file), configs=ROOT / "configs")
    assert (found.name, found.proposer.name, found.noise.floor) == ("from-form", "random", 0.05)
    assert (found.launch.expected_s, found.launch.hang_s, found.launch.max_s) == (60, 30, 600)
    assert found.source_file == file
    said = dict(examine(found, settings).rows())
    assert "tiny-moe" in said["workload"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "file: is empty"),
        ({"campaign_id": "c-1", "fields": FIELDS}, "fields can't be set"),
        ({"campaign_id": "c-1", "changes": {"budget.gpu_hours": 1.0}}, "budget.gpu_hours can't be set"),
        ({"campaign_id": "c-1", "dry_run": True}, "dry_run can't be set"),
    ],
)
def test_a_form_that_asks_for_two_things_or_none_is_refused_in_one_line(given: dict[str, Any], words: str) -> None:
    whole = {"file": "", "campaign_id": "", "fields": None, "changes": {}, "dry_run": False, **given}
    with pytest.raises(UserError, match=words) as caught:
        check_request(**whole)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"baseline": "recipes/none.yaml"}, "no such file"),
        ({"more": {"budgett": 3}}, "did you mean budget"),
        ({"more": {"budget": {"gpu_hours": -1}}}, r"budget\.gpu_hours"),
        ({"workload": {**FIELDS["workload"], "gpus": 64}}, "64 is more than the"),
        ({"name": "A Name"}, "name: "),
    ],
)
def test_bad_fields_are_one_line_with_the_key(tmp_path: Path, fields: dict[str, Any], words: str) -> None:
    settings = load_settings({"ATTUNER_HOME": str(tmp_path)}, project=str(ROOT))
    file = request_file("", fields_of({**FIELDS, **fields}), settings)
    with pytest.raises(UserError, match=words) as caught:
        load_campaign(Path(file), configs=ROOT / "configs")
    assert "\n" not in str(caught.value)
