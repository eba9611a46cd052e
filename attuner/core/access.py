"""How this machine reaches a cluster (Access), and what a look at one found (Check). Of secrets only file names are here."""

from __future__ import annotations

from pydantic import Field

from attuner.core.base import Record


class Access(Record):
    """The way to a running Ray cluster; all of it from settings, none of it on record."""

    address: str = Field(default="", description="job API, http(s)://host:port; '' is a local Ray of the campaign's own")
    python: str = Field(default="python", description="interpreter on the cluster's nodes")
    token_file: str = Field(default="", description="file with the token that the cluster demands")
    ca: str = Field(default="", description="bundle or folder of certificates that an https address is checked against")
    headers_file: str = Field(default="", description="JSON file of more request headers, e.g. a proxy's")
    storage_mount: str = Field(default="", description="where this machine sees the cluster's storage path, if elsewhere")


class Check(Record):
    """One thing that a doctor looked at."""

    name: str
    ok: bool
    detail: str
    mend: str = Field(default="", description="what to do about it; '' if nothing")
