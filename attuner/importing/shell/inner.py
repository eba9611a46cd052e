"""Follows a script inside a command: `srun … bash -c "…"`, `bash run.sh`, behind the wrappers that launch scripts use."""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from typing import TYPE_CHECKING

from attuner.importing.shell.values import shown

if TYPE_CHECKING:
    from attuner.importing.shell.run import Walker

SHELLS = {"bash", "sh", "zsh", "dash"}
SUBMITS = {"sbatch", "qsub", "bsub"}
"""Commands that take a script from their standard input."""
WRAPPERS = {
    *("exec", "nohup", "time", "env", "sudo", "nice", "setsid", "stdbuf", "timeout", "numactl", "command", "xargs"),
    *("srun", "mpirun", "mpiexec", "mpiexec.hydra", "jsrun", "docker", "podman", "apptainer", "singularity", "enroot", "uv"),
}


def run_inner(walker: Walker, words: list[str], env: dict[str, str], given: str) -> bool:
    """Follow the script that a command hands to a shell; False if it hands none."""
    first = base(words[0])
    if given and (first in SUBMITS or (first in SHELLS and all(w.startswith("-") for w in words[1:]))):
        _apart(walker, env, lambda: walker.string(given))
        return True
    if first not in SHELLS and first not in WRAPPERS:
        return False
    at = next((i for i, w in enumerate(words) if base(w) in SHELLS and (i == 0 or words[i - 1] not in ("--entrypoint",))), -1)
    if at < 0:
        return False
    options = []
    rest = words[at + 1 :]
    while rest and rest[0][:1] in ("-", "+") and len(rest[0]) > 1:
        options.append(rest.pop(0))
        if options[-1] in ("-o", "+o", "-O") and rest:
            rest.pop(0)
    if not rest:
        return False
    if any("c" in o.lstrip("-") and not o.startswith("--") for o in options):
        _apart(walker, env, lambda: walker.string(rest[0]), rest[2:])
        return True
    found = walker.read(shown(rest[0]), posixpath.dirname(walker.state.script))
    if found is None:
        walker.heard.tell("undecided", f"{walker.where()}: {shown(rest[0])[:120]} could not be read; what it starts is unknown")
        return False
    _apart(walker, env, lambda: walker.script(*found), rest[1:])
    return True


def _apart(walker: Walker, env: dict[str, str], follow: Callable[[], None], positional: list[str] | None = None) -> None:
    """Follow in a shell of its own: what it sets stays inside."""
    kept, walker.state = walker.state, walker.state.copy()
    walker.state.variables.update(env)
    walker.state.exported.update(env)
    walker.state.positional = walker.state.positional if positional is None else positional
    follow()
    walker.state, walker.stopped = kept, False


def base(word: str) -> str:
    """Return a command's name without its folder."""
    return word.rsplit("/", 1)[-1]
