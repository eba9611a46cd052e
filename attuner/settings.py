"""Settings from the environment, prefix ATTUNER_; everything else stands in files."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from pydantic import Field

from attuner.config import project_root
from attuner.core.access import Access
from attuner.core.base import Record
from attuner.core.campaign import StackSpec
from attuner.core.errors import UserError

KNOWN = {
    "ATTUNER_HOME": "folder of the ledger and of the campaigns' files (default: ./out)",
    "ATTUNER_PROJECT": "checkout with flows/, rules/ and configs/ (default: the working directory, then the package's own)",
    "ATTUNER_RAY_ADDRESS": "job API of a running Ray cluster, http://host:8265 (default: a local Ray of the campaign's own)",
    "ATTUNER_RAY_PYTHON": "Python of the cluster's nodes (default: this one for a local Ray, else `python`)",
    "ATTUNER_RAY_TOKEN_FILE": "file with the token that the Ray cluster demands (RAY_AUTH_MODE=token there)",
    "ATTUNER_RAY_CA": "file or folder of certificates for an https:// address",
    "ATTUNER_RAY_HEADERS_FILE": "JSON file of more headers for requests to the Ray cluster, e.g. of a proxy before it",
    "ATTUNER_STORAGE_MOUNT": "where this machine sees the cluster's `storage` path, if not under the same path",
    "ATTUNER_MEGATRON_SRC": "folder of the Megatron-LM checkout that the job uses, where stack.source doesn't say",
    "ATTUNER_SLIME_SRC": "folder of slime's checkout, where stack.slime_source doesn't say",
    "ATTUNER_WEBHOOK_FILE": "file whose one line is the URL that news and alerts are posted to (docs/nightly.md)",
}

INHERITED = ("ATTUNER_RAY_ID", "ATTUNER_SERVES", "ATTUNER_IMAGE_DIGEST")
"""Marks on processes that attuner started, and on images; not settings."""


class Settings(Record):
    """Where things are on this machine."""

    home: Path
    project: Path | None
    ray_address: str = ""
    ray_python: str = Field(default="python")
    ray_token_file: str = ""
    ray_ca: str = ""
    ray_headers_file: str = ""
    storage_mount: str = ""
    megatron_source: str = ""
    slime_source: str = ""
    webhook_file: str = ""

    @property
    def ledger(self) -> Path:
        """Return the ledger's file."""
        return self.home / "attuner.duckdb"

    def access(self) -> Access:
        """Return the way to the Ray cluster."""
        return Access(
            address=self.ray_address,
            python=self.ray_python,
            token_file=self.ray_token_file,
            ca=self.ray_ca,
            headers_file=self.ray_headers_file,
            storage_mount=self.storage_mount,
        )

    def folder(self, campaign_id: str) -> Path:
        """Return the folder of one campaign."""
        return self.home / campaign_id

    def sourced(self, stack: StackSpec, *, source: str = "") -> StackSpec:
        """Return the stack with this machine's checkouts: `source` (a command's option) first, then what the stack states."""
        if stack.name in ("bridge", "automodel"):
            return stack.model_copy(update={"source": source or stack.source})
        if stack.name not in ("megatron", "slime"):
            return stack
        checkouts = {
            "source": source or stack.source or self.megatron_source,
            "slime_source": stack.slime_source or self.slime_source,
        }
        return stack.model_copy(update=checkouts)

    def rules_dir(self) -> Path:
        """Return rules/ of the project, or the copy that rides along with an installed package."""
        return self._data("rules")

    def configs_dir(self) -> Path:
        """Return configs/ of the project, or the copy that rides along with an installed package."""
        return self._data("configs")

    def _data(self, name: str) -> Path:
        if self.project is not None:
            return self.project / name
        inside = Path(__file__).parent / "_data" / name
        if not inside.is_dir():
            raise UserError(f"no {name}/ found; run inside a checkout or pass --project DIR")
        return inside

    def flows_file(self) -> Path:
        """Return flows/campaign.py, which is run from a checkout, as Prefect deployments do."""
        if self.project is None:
            raise UserError("flows/ is not installed with the package: run inside a checkout or pass --project DIR")
        return self.project / "flows" / "campaign.py"


def load_settings(environ: Mapping[str, str] | None = None, *, project: str = "") -> Settings:
    """Read the settings.

    Raises:
        UserError: a variable with our prefix is unknown, or the project is no checkout.
    """
    env = os.environ if environ is None else environ
    unknown = sorted(k for k in env if k.startswith("ATTUNER_") and k not in KNOWN and k not in INHERITED)
    if unknown:
        raise UserError(f"{unknown[0]}: no such setting; known: {', '.join(KNOWN)}")
    given = project or env.get("ATTUNER_PROJECT", "")
    if given and not (Path(given) / "flows" / "campaign.py").is_file():
        raise UserError(f"--project {given}: no flows/campaign.py there; name a checkout of attuner")
    here = Path.cwd()
    root = (
        Path(given).resolve()
        if given
        else (here if (here / "flows" / "campaign.py").is_file() and (here / "rules").is_dir() else project_root())
    )
    address = env.get("ATTUNER_RAY_ADDRESS", "")
    if address and not address.startswith(("http://", "https://")):
        raise UserError(f"ATTUNER_RAY_ADDRESS: {address} is not a job API address; it looks like http://host:8265")
    if "@" in address:
        raise UserError("ATTUNER_RAY_ADDRESS: holds a name or a password; put secrets into files, see docs/ray.md")
    places = ("ATTUNER_RAY_TOKEN_FILE", "ATTUNER_RAY_CA", "ATTUNER_RAY_HEADERS_FILE", "ATTUNER_STORAGE_MOUNT")
    for name in (*places, "ATTUNER_WEBHOOK_FILE"):
        if env.get(name) and not Path(env[name]).exists():
            raise UserError(f"{name}: {env[name]}: no such file or folder")
    return Settings(
        home=Path(env.get("ATTUNER_HOME", "out")).resolve(),
        project=root,
        ray_address=address,
        ray_python=env.get("ATTUNER_RAY_PYTHON", "") or ("python" if address else sys.executable),
        ray_token_file=env.get("ATTUNER_RAY_TOKEN_FILE", ""),
        ray_ca=env.get("ATTUNER_RAY_CA", ""),
        ray_headers_file=env.get("ATTUNER_RAY_HEADERS_FILE", ""),
        storage_mount=env.get("ATTUNER_STORAGE_MOUNT", ""),
        megatron_source=env.get("ATTUNER_MEGATRON_SRC", ""),
        slime_source=env.get("ATTUNER_SLIME_SRC", ""),
        webhook_file=env.get("ATTUNER_WEBHOOK_FILE", ""),
    )
