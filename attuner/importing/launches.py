"""Recognises the training among the commands of a script: behind wrappers, torchrun and `ray job submit`, for which stack."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, replace

from attuner.importing.model import Notes
from attuner.importing.shell.heard import Started
from attuner.importing.shell.inner import WRAPPERS, base
from attuner.importing.shell.values import is_unknown, shown

MEGATRON_MARKS = {
    "num_layers",
    "tensor_model_parallel_size",
    "micro_batch_size",
    "hidden_size",
    "global_batch_size",
    "seq_length",
}
BRIDGE_ENTRIES = {"run_recipe.py", "run_script.py", "recipe_runner.py"}
_STARTER = re.compile(r"(python[\d.]*|torchrun|ft_launcher|ray|automodel|accelerate|deepspeed)$")
_TORCHRUN_FLAGS = {"--standalone", "--no-python", "--no_python", "--run-path", "--run_path", "--use-env", "--use_env"}
_RAY_FLAGS = {"--no-wait", "--verbose", "-v"}
_OVERRIDE = re.compile(r"\+{0,2}~?[A-Za-z_][\w-]*(\.[\w-]+)+=.*", re.DOTALL)
_ENDING = {"pkill", "killall", "kill", "fuser", "skill"}


@dataclass(frozen=True)
class Launch:
    """A training that a script would start.

    entry: the program, as named.
    words: its command line.
    per_node, nodes: processes; 0 where the command doesn't tell.
    """

    entry: str
    words: list[str]
    env: dict[str, str]
    where: str
    doubts: list[str]
    stack: str = ""
    per_node: int = 0
    nodes: int = 0
    notes: list[str] = field(default_factory=list)


def launches(started: list[Started]) -> list[Launch]:
    """Return the trainings among a script's commands, in order."""
    found = []
    for command in started:
        launch = _launch(command.words, dict(command.env), command.where, command.doubts, 0)
        if launch is not None and launch.stack:
            found.append(launch)
    return found


def aside(started: list[Started], notes: Notes) -> None:
    """Say which commands of a script are not carried over because they would end or start what belongs to others."""
    broad, ray = [], []
    for command in started:
        if command.words[0].startswith("-"):
            lost = f"{len(command.words)} words from {shown(command.words[0])} on do not reach any program"
            notes.add("unparsed", f"{command.where}: {lost}: a backslash is missing at the end of the line before")
    for command in started:
        words = [shown(w) for w in command.words]
        name = base(words[0])
        text = " ".join(words)
        if name in _ENDING or text.startswith("ray stop") or (name == "ssh" and re.search(r"\bpkill\b|ray stop", text)):
            broad.append(text[:60])
        elif text.startswith("ray start"):
            ray.append(text[:60])
        elif name == "rm" and any(w.startswith("-") and "r" in w for w in words):
            broad.append(text[:60])
    if broad:
        listed = "; ".join(dict.fromkeys(broad))
        notes.add("left_out", f"commands that end or delete by name, also what is others' on a shared node: {listed}")
    if ray:
        notes.add("left_out", f"the start of a Ray cluster: {'; '.join(dict.fromkeys(ray))}; the launcher has its own")


def _launch(words: list[str], env: dict[str, str], where: str, doubts: list[str], depth: int) -> Launch | None:
    """Return the training that these words start, None if they start none."""
    words = _behind_wrappers(words, env)
    if not words or depth > 4:
        return None
    name, rest = base(words[0]), words[1:]
    if name == "ray":
        return _ray(rest, env, where, doubts, depth)
    launch: Launch | None = Launch("", rest, env, where, doubts)
    if name in ("torchrun", "ft_launcher", "accelerate", "deepspeed"):
        launch = _torchrun(rest, env, where, doubts)
    elif name.startswith("python"):
        launch = _python(rest, env, where, doubts)
    elif name == "automodel":
        launch = Launch("automodel", rest, env, where, doubts)
    else:
        return None
    return None if launch is None else replace(launch, stack=_stack(launch))


def _behind_wrappers(words: list[str], env: dict[str, str]) -> list[str]:
    """Return the words from the program on that is really started; `env NAME=value` adds to the environment."""
    if _STARTER.match(base(words[0])):
        return words
    if base(words[0]) not in WRAPPERS and not _assigns(words[0]):
        return []
    for at, word in enumerate(words):
        if _STARTER.match(base(word)) and words[at - 1] != "--entrypoint":
            return words[at:]
        if _assigns(word) and (base(words[0]) == "env" or at == 0):
            name, _, value = word.partition("=")
            env[name] = value
    return []


def _assigns(word: str) -> bool:
    return bool(re.match(r"[A-Za-z_]\w*=", word))


def _ray(words: list[str], env: dict[str, str], where: str, doubts: list[str], depth: int) -> Launch | None:
    if words[:2] != ["job", "submit"]:
        return None
    notes: list[str] = []
    rest = words[2:]
    while rest and rest[0].startswith("-"):
        option = rest.pop(0)
        if option == "--":
            break
        name, equals, value = option.partition("=")
        if not equals and name not in _RAY_FLAGS and rest:
            value = rest.pop(0)
        if name == "--runtime-env-json":
            env.update(_runtime_env(value, notes))
        elif name == "--runtime-env":
            notes.append(f"the runtime environment is in a file of its own, {shown(value)}: its env_vars are not read")
    if len(rest) == 1 and " " in rest[0]:
        rest = rest[0].split()
    inner = _launch(rest, env, where, doubts, depth + 1) if rest else None
    return None if inner is None else replace(inner, notes=[*notes, *inner.notes])


def _runtime_env(text: str, notes: list[str]) -> dict[str, str]:
    try:
        data = json.loads(shown(text))
    except (ValueError, RecursionError):
        notes.append("the runtime environment is no JSON: its env_vars are not read")
        return {}
    variables = data.get("env_vars", {}) if isinstance(data, dict) else {}
    others = sorted(set(data) - {"env_vars"}) if isinstance(data, dict) else []
    if others:
        notes.append(f"of the runtime environment only env_vars are carried, not {', '.join(map(str, others))}")
    return {str(k): str(v) for k, v in variables.items()} if isinstance(variables, dict) else {}


def _torchrun(words: list[str], env: dict[str, str], where: str, doubts: list[str]) -> Launch | None:
    """Read torchrun's options up to the program."""
    rest, sizes = list(words), dict[str, str]()
    while rest and rest[0].startswith("-"):
        option = rest.pop(0)
        name, equals, value = option.partition("=")
        key = name.lstrip("-").replace("-", "_")
        if key in ("m", "module"):
            break
        if not equals and name not in _TORCHRUN_FLAGS and rest:
            value = rest.pop(0)
        sizes[key] = value
    if rest and base(rest[0]) in ("launch", "train") and base(words[0] if words else "") in ("launch", "train"):
        rest.pop(0)
    if rest and re.match(r"python[\d.]*$", base(rest[0])):
        rest = [w for i, w in enumerate(rest) if i and w != "-u"]
    if not rest:
        return None
    per_node, nodes = (sizes.get(k, "") for k in ("nproc_per_node", "nnodes"))
    return Launch(rest[0], rest[1:], env, where, doubts, per_node=_size(per_node), nodes=_size(nodes.split(":")[-1] or "1"))


def _size(text: str) -> int:
    return int(text) if text.isdigit() and len(text) < 7 else 0


def _python(words: list[str], env: dict[str, str], where: str, doubts: list[str]) -> Launch | None:
    rest = list(words)
    while rest and rest[0].startswith("-"):
        option = rest.pop(0)
        if option == "-m" and rest:
            module = rest.pop(0)
            if module in ("torch.distributed.launch", "torch.distributed.run"):
                return _torchrun(rest, env, where, doubts)
            return Launch(module, rest, env, where, doubts)
        if option in ("-c", "-"):
            return None
        if option in ("-X", "-W") and rest:
            rest.pop(0)
    return Launch(rest[0], rest[1:], env, where, doubts) if rest else None


def _stack(launch: Launch) -> str:
    """Return whose command line a launch is, '' if it is no training that attuner knows."""
    entry, name = launch.entry, base(launch.entry)
    flags = {w.partition("=")[0].lstrip("-").replace("-", "_") for w in launch.words if w.startswith("--")}
    if name in BRIDGE_ENTRIES or ("recipe" in flags and any(_OVERRIDE.fullmatch(w) for w in launch.words)):
        return "bridge"
    if (
        name == "automodel"
        or "automodel" in entry
        or (
            name in ("app.py", "train_ft.py", "pretrain.py", "benchmark.py", "finetune.py")
            and {"config", "c"} & {w.lstrip("-") for w in launch.words}
        )
    ):
        return "automodel"
    if "actor_num_nodes" in flags or (name in ("train.py", "train_async.py") and "rollout_batch_size" in flags):
        return "slime"
    if len(flags & MEGATRON_MARKS) >= 2:
        return "megatron"
    return "megatron" if name.startswith("pretrain_") and any(is_unknown(w) for w in launch.words) else ""
