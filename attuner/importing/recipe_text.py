"""Writes an imported recipe as the file that campaigns name: what a person must still do stands above it, as comments."""

from __future__ import annotations

from typing import Any

import yaml

from attuner.core.campaign import Adaptation, Published
from attuner.importing.model import TITLES, Imported, Kind, one_line

SAID: tuple[Kind, ...] = ("to_set", "undecided", "unknown", "overridden", "secret", "unparsed")


def recipe_text(found: Imported, *, published: Published | None = None, adaptations: list[Adaptation] | None = None) -> str:
    """Return the text of a recipe file."""
    what = f"{found.format}{f', starts {found.entry}' if found.entry else ''}"
    size = f"; asks for {found.gpus} devices" if found.gpus else ""
    lines = [f"# {one_line(f'Imported from {found.source} ({what}){size}.')}"]
    for kind in SAID:
        lines += [f"# {TITLES[kind]}: {one_line(text)}" for text in found.of(kind)]
    body: dict[str, Any] = {"stack": found.stack, "arguments": dict(found.arguments), "env": dict(found.env)}
    if published is not None:
        body["published"] = {k: v for k, v in published.data().items() if v != ""}
    if adaptations:
        body["adaptations"] = [a.data() for a in adaptations]
    dumped = yaml.safe_dump(body, sort_keys=False, allow_unicode=True, width=120)
    return "\n".join(lines) + "\n" + dumped
