"""What every record shares: frozen, no unknown keys, canonical JSON and a digest of it."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from pydantic import BaseModel, ConfigDict

Scalar = bool | int | float | str | None
Value = Scalar | list[Scalar]
"""A final argument value. Booleans come first so that `True` is never read as `1`."""


def canonical_json(data: Any) -> str:
    """One spelling for equal data: sorted keys, no spaces, no NaN (records spell it as a string)."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def digest_of(data: Any) -> str:
    """Return the sha256 (hex) of `data`'s canonical JSON."""
    return hashlib.sha256(canonical_json(data).encode()).hexdigest()


class Record(BaseModel):
    """A frozen noun of attuner; equal content means equal digest."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings", protected_namespaces=())

    def data(self) -> dict[str, Any]:
        """Return the record as plain JSON data (NaN and infinities as strings)."""
        return json.loads(self.model_dump_json())  # type: ignore[no-any-return]

    def digest(self) -> str:
        """Return the sha256 (hex) of the record's canonical JSON."""
        return digest_of(self.data())
