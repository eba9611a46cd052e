"""What a run form asks for: a campaign file or the same in fields, and what holds instead of what the file says.

The form's models carry titles and descriptions for the Prefect UI; whatever they let through is judged by the same reader as
a campaign file, whose errors are one line.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field

from attuner.core.base import Value
from attuner.core.errors import UserError
from attuner.settings import Settings

Proposers = Literal["catalog", "claude", "fixed_knobs", "manual", "random", "scripted", "tpe"]
Launchers = Literal["ray_jobs", "kuberay", "replay"]
Stacks = Literal["mcore", "megatron", "slime", "bridge", "automodel", "replay"]
CHANGES = {
    "budget_gpu_hours": ("budget.gpu_hours",),
    "proposer": ("proposer.name",),
    "launcher": ("launcher.name",),
    "seed": ("proposer.seed", "launcher.seed"),
}
"""Keys of a campaign file that each field of the form sets."""
REQUESTS = "requests"
"""Folder below ATTUNER_HOME: campaigns that were asked for by fields, as the files that they are."""


class Form(BaseModel):
    """A part of the form; an unknown field is an error."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())


class WorkloadFields(Form):
    """What every launch trains; it never changes in a campaign."""

    model: str = Field(title="Model", description="its name, for reports and the board", examples=["tiny-moe"])
    dataset: str = Field(title="Data set", description="name, or name@sha256:…; docs/data.md", examples=["python-stdlib"])
    seq_len: int = Field(gt=0, title="Row length", description="tokens of one row; the recipe's seq_length")
    global_batch: int = Field(gt=0, title="Global batch", description="rows per update; the recipe's global_batch_size")
    precision: str = Field(title="Precision", description="fp32, bf16 or fp16; the recipe's params_dtype", examples=["bf16"])
    seed: int = Field(default=1234, title="Training seed", description="the recipe's seed")
    steps: int = Field(default=10, gt=1, title="Steps", description="steps of one launch, warm-up and scored")
    warmup_steps: int = Field(default=2, ge=1, title="Warm-up steps", description="steps that aren't scored")
    gpus: int = Field(gt=0, title="Devices", description="devices of one launch; CPU slots on a CPU cluster")
    hardware: str = Field(title="Hardware", description="cpu, h100, b200 …", examples=["cpu"])


class StackFields(Form):
    """The training framework, and which one exactly."""

    name: Stacks = Field(default="mcore", title="Framework", description="docs/stacks.md says what each needs")
    version: str = Field(title="Version", description="that is installed on the cluster", examples=["0.16.1"])
    source: str = Field(default="", title="Checkout", description="folder of the framework's source, where it has one")
    commit: str = Field(default="", title="Commit", description="that the checkout must be at")


class CampaignFields(Form):
    """A campaign in fields instead of a file."""

    name: str = Field(title="Name", description="small letters, digits and -; at most 24 characters", max_length=24)
    workload: WorkloadFields = Field(title="Workload", description="what every launch trains")
    baseline: str = Field(
        title="Baseline recipe",
        description="recipe file: a path, or one below configs/",
        examples=["recipes/mcore/tiny-moe-carried-over.yaml"],
    )
    stack: StackFields = Field(title="Framework", description="which one exactly")
    cluster: str = Field(
        default="clusters/laptop.yaml", title="Cluster file", description="where launches run: a path, or one below configs/"
    )
    expected_s: float = Field(
        default=60, gt=0, title="Seconds of a launch", description="your guess of one launch; the first reserve is made from it"
    )
    max_s: float = Field(default=600, gt=0, title="Limit of a launch", description="seconds after which a launch is ended")
    more: dict[str, Any] = Field(
        default_factory=dict,
        title="More",
        description="other keys of a campaign file as JSON, e.g. {'noise': {…}, 'prepare': {…}, 'gate': {…}}",
    )

    def data(self) -> dict[str, Any]:
        """Return the campaign as a file would hold it."""
        given = self.model_dump(exclude={"more", "cluster", "expected_s", "max_s"})
        given["stack"] = {k: v for k, v in given["stack"].items() if v}
        body = {
            **given,
            "launcher": {"name": "ray_jobs", "cluster": self.cluster},
            "proposer": {"name": "catalog"},
            "launch": {"expected_s": self.expected_s, "max_s": self.max_s},
        }
        for key, value in self.more.items():
            body[key] = {**body[key], **value} if isinstance(value, dict) and isinstance(body.get(key), dict) else value
        return body


def fields_of(given: CampaignFields | Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return the form's fields as plain data, or None for a form without them."""
    if given is None or isinstance(given, CampaignFields):
        return given.data() if given is not None else None
    return CampaignFields.model_validate(given).data()


def changes_of(**given: Value) -> dict[str, Value]:
    """Return what the form sets instead of what the file says, by key of a campaign file."""
    return {key: value for name, value in given.items() if value is not None for key in CHANGES[name]}


def check_request(
    file: str, campaign_id: str, fields: dict[str, Any] | None, changes: dict[str, Value], *, dry_run: bool
) -> None:
    """Refuse a form that asks for two things at once, or for nothing.

    Raises:
        UserError: one line.
    """
    if campaign_id:
        also = [*(["fields"] if fields else []), *([next(iter(changes))] if changes else []), *(["dry_run"] if dry_run else [])]
        if also:
            raise UserError(
                f"campaign_id: {campaign_id} goes on as it is on record, so {also[0]} can't be set; leave it empty, or leave "
                "campaign_id empty to begin a new campaign"
            )
    elif not file and not fields:
        raise UserError("file: is empty; name a campaign file (configs/campaigns/…), or fill in `fields`")


def request_file(file: str, fields: dict[str, Any] | None, settings: Settings) -> str:
    """Return the campaign's file; fields of a form become one, below ATTUNER_HOME, named by its content."""
    if fields is None:
        return file
    text = yaml.safe_dump(fields, sort_keys=False, allow_unicode=True)
    folder = settings.home / REQUESTS
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{fields.get('name', 'campaign')}-{hashlib.sha256(text.encode()).hexdigest()[:8]}.yaml".replace("/", "_")
    path.write_text("# asked for by a run form\n" + text, encoding="utf-8")
    return str(path)
