"""Another release of megatron-core, for PYTHONPATH: the installed one's files under a later version, with what a test plants."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import util
from pathlib import Path

VERSION = "0.16.99"


def release(folder: Path, plant: Mapping[str, tuple[str, str]] | None = None) -> Path:
    """Make the release and return its folder.

    Args:
        folder: where it goes; its files are links to those that are installed.
        plant: file below megatron/core → (text that stands there once, text that takes its place).
    """
    spec = util.find_spec("megatron.core")
    core = Path(next(iter(spec.submodule_search_locations or []))) if spec else Path()
    info = (core / "package_info.py").read_text()
    changed = {"package_info.py": _versioned(info)}
    for name, (old, new) in (plant or {}).items():
        text = (core / name).read_text()
        assert text.count(old) == 1, f"{name}: {text.count(old)} places"
        changed[name] = text.replace(old, new)
    _linked(core, folder / "megatron" / "core", changed)
    about = folder / f"megatron_core-{VERSION}.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: megatron-core\nVersion: {VERSION}\n")
    return folder


def _versioned(info: str) -> str:
    for name, value in zip(("MAJOR", "MINOR", "PATCH"), VERSION.split("."), strict=True):
        info = re.sub(rf"^{name} = .*$", f"{name} = {value}", info, flags=re.MULTILINE)
    return info


def _linked(source: Path, there: Path, changed: Mapping[str, str]) -> None:
    """Link what lies in `source`, folder by folder only as far as something in it changes."""
    there.mkdir(parents=True)
    inside = {name.split("/")[0] for name in changed if "/" in name}
    for path in source.iterdir():
        if path.name in changed:
            (there / path.name).write_text(changed[path.name])
        elif path.name in inside:
            deeper = {n.partition("/")[2]: t for n, t in changed.items() if n.startswith(f"{path.name}/")}
            _linked(path, there / path.name, deeper)
        elif path.name != "__pycache__":
            (there / path.name).symlink_to(path)
