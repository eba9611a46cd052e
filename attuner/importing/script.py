"""Imports a launch script: follows it without running anything, and reads the command line of the training it would start."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from attuner.core.errors import UserError
from attuner.core.private import is_secret
from attuner.importing.files import Beside, Source, sized
from attuner.importing.flags import Vocabulary, read_flags
from attuner.importing.launches import Launch, aside, launches
from attuner.importing.model import Imported, Kind, Notes
from attuner.importing.overrides import automodel_command, bridge_command
from attuner.importing.private import kept_arguments, kept_env
from attuner.importing.shell.heard import Heard
from attuner.importing.shell.run import Walker
from attuner.importing.shell.values import blanked, is_unknown, shown

_SBATCH = re.compile(r"^#SBATCH\s+(--nodes|-N|--gpus-per-node|--gres=gpu(?::\w+)?|--ntasks-per-node)[= :](\d+)", re.MULTILINE)


@dataclass(frozen=True)
class Asked:
    """What the caller of an import decides: variables of the script, and which of several launches (from 1)."""

    preset: dict[str, str]
    launch: int = 0


def from_script(source: Source, vocabulary: Mapping[str, Vocabulary], asked: Asked) -> Imported:
    """Return the recipe that a launch script would train.

    Raises:
        UserError: it can't be read as a shell script, or starts no training that attuner knows.
    """
    text, notes, heard, beside = sized(source), Notes(), Heard(), Beside(source)
    walker = Walker(beside, heard, asked.preset)
    try:
        walker.script(source.place, text)
    except RecursionError:
        raise UserError(f"{source.name}: commands inside each other without end; that is no launch script") from None
    for kind, line in heard.notes:
        told: Kind = "undecided" if kind == "undecided" else "default" if kind == "default" else "note"
        notes.add(told, shown(line))
    for name, held in walker.state.variables.items():
        if isinstance(held, str) and is_secret(name, held) and not is_unknown(held):
            notes.hide(held)
    aside(heard.started, notes)
    found = launches(heard.started)
    launch = _chosen(found, asked, source, heard, notes)
    if beside.read:
        notes.add("note", f"read beside it: {', '.join(beside.read)}")
    gpus = launch.per_node * launch.nodes or _sbatch(text)
    return from_launch(launch, source, "script", vocabulary, notes, beside=beside, gpus=gpus)


def from_launch(
    launch: Launch,
    source: Source,
    form: str,
    vocabulary: Mapping[str, Vocabulary],
    notes: Notes,
    *,
    beside: Beside,
    gpus: int,
) -> Imported:
    """Return the recipe of one launch."""
    for line in launch.notes:
        notes.add("undecided", shown(line))
    for doubt in launch.doubts:
        notes.add("undecided", f"the command rests on {doubt}, set where a branch was undecided")
    stack, env = launch.stack, {n: shown(v) for n, v in launch.env.items()}
    words = _told(launch, notes)
    if stack == "automodel":
        arguments, more = automodel_command(words, source, beside, notes)
        env = {**more, **env}
    elif stack == "bridge":
        arguments = bridge_command(words, notes)
    else:
        arguments = read_flags(words, vocabulary[stack], notes)
    variables = kept_env(env, notes)
    arguments = kept_arguments(arguments, notes)
    nodes, each = arguments.get("actor_num_nodes"), arguments.get("actor_num_gpus_per_node")
    if stack == "slime" and isinstance(nodes, int) and isinstance(each, int):
        gpus = nodes * each
    return Imported(
        source=source.name,
        format=form,
        stack=stack,
        entry=shown(launch.entry),
        arguments=arguments,
        env=variables,
        gpus=gpus,
        notices=notes.all(),
    )


def _chosen(found: list[Launch], asked: Asked, source: Source, heard: Heard, notes: Notes) -> Launch:
    if not found:
        ends = [t for k, t in heard.notes if k == "skipped"]
        why = f" ({ends[-1]}; --set VAR=VALUE gives what it waits for)" if ends else ""
        raise UserError(
            f"{source.name}: starts no training that attuner knows: no torchrun, python or `ray job submit` with the options of "
            f"Megatron-LM, slime, Megatron-Bridge or AutoModel{why}"
        )
    if asked.launch > len(found):
        raise UserError(f"--launch {asked.launch}: {source.name} starts {len(found)}")
    if len(found) > 1:
        places = ", ".join(launch.where for launch in found[:8])
        number = asked.launch or 1
        notes.add(
            "undecided", f"the script starts {len(found)} trainings ({places}): number {number} is taken; --launch N for another"
        )
    return found[(asked.launch or 1) - 1]


def _told(launch: Launch, notes: Notes) -> list[str]:
    """Return the words of a launch, without those that are nothing but an unknown variable."""
    words = []
    for index, word in enumerate(launch.words):
        after_option = index > 0 and launch.words[index - 1].startswith("--") and "=" not in launch.words[index - 1]
        if is_unknown(word) and not blanked(word) and not after_option:
            notes.add("undecided", f"{shown(word)}: nothing here sets it, it may add options; --set NAME='…', or NAME= for none")
        else:
            words.append(shown(word))
    return words


def _sbatch(text: str) -> int:
    sizes = {name.partition("=")[0].lstrip("-"): int(n) for name, n in _SBATCH.findall(text) if len(n) < 7}
    nodes = sizes.get("nodes", sizes.get("N", 0))
    return nodes * sizes.get("gpus-per-node", sizes.get("gres", sizes.get("ntasks-per-node", 0)))
