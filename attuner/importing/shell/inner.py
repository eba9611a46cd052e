"""Follows a script inside a command: `srun … bash -c "…"`, `bash run.sh`, behind the wrappers that launch scripts use."""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING

from attuner.importing.shell.values import shown

if TYPE_CHECKING:
    from attuner.importing.shell.run import Walker

SHELLS = {"bash", "sh", "zsh", "dash"}
WRAPPERS = {
    *("exec", "nohup", "time", "env", "sudo", "nice", "setsid", "stdbuf", "timeout", "numactl", "command", "xargs"),
    *("srun", "mpirun", "mpiexec", "mpiexec.hydra", "jsrun", "docker", "podman", "apptainer", "singularity", "enroot", "uv"),
}


def run_inner(walker: Walker, words: list[str], env: dict[str, str]) -> bool:
    """Follow the script that a command hands to a shell; False if it hands none."""
    first = base(words[0])
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
    kept, walker.state = walker.state, walker.state.copy()
    walker.state.variables.update(env)
    walker.state.exported.update(env)
    followed = True
    if any("c" in o.lstrip("-") and not o.startswith("--") for o in options):
        walker.state.positional = rest[2:]
        walker.string(rest[0])
    else:
        found = walker.read(shown(rest[0]), posixpath.dirname(walker.state.script))
        followed = found is not None
        if found is None:
            walker.heard.tell("undecided", f"{walker.where()}: {shown(rest[0])} could not be read; what it starts is unknown")
        else:
            walker.state.positional = rest[1:]
            walker.script(*found)
    walker.state, walker.stopped = kept, False
    return followed


def base(word: str) -> str:
    """Return a command's name without its folder."""
    return word.rsplit("/", 1)[-1]
