"""Task: what `attuner check` says of a campaign, shown as an artifact; nothing is launched, recorded or spent."""

from __future__ import annotations

from pathlib import Path

from attuner.cli.check import examine
from attuner.config import load_campaign
from attuner.core.base import Value
from attuner.settings import load_settings
from tasks import _artifacts
from tasks._shell import step_task


@step_task(name="check")
def check(file: str, changes: dict[str, Value] | None = None) -> str:
    """Return one line that sums it up: what a launch costs, and of what budget."""
    settings = load_settings()
    found = examine(load_campaign(Path(file), configs=settings.configs_dir(), changes=changes), settings)
    _artifacts.dry_run(found.campaign.name, file, found.rows())
    carried = f"; the baseline is in {len(found.carried)} known defects" if found.carried else ""
    launch = f"about {found.cost['launch_gpu_hours']:.4f} device-hours a launch"
    return f"{file} is valid: {launch}, budget {found.cost['budget']}{carried}"
