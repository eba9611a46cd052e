"""What must not travel with a recipe: secrets, addresses and folders of the author's machine, what a launcher sets itself."""

from __future__ import annotations

import re

from attuner.core.base import Scalar, Value
from attuner.core.private import is_secret, mask
from attuner.importing.model import Imported, Notes, one_line
from attuner.importing.shell.values import ROOT

_SECRET_FLAG = re.compile(r"(?i)(wandb_key|api_key|apikey|secret|password|passwd|(hf|hub|auth|access|github|bearer)_token)$")
_LAUNCHER = re.compile(
    r"MASTER_(ADDR|PORT)|WORLD_SIZE|(NODE_|LOCAL_|GROUP_)?RANK|LOCAL_WORLD_SIZE|NNODES|SLURM_.*|RAY_.*|CUDA_VISIBLE_DEVICES|HOSTFILE"
)
_MACHINE = re.compile(
    r"(?i)(no_proxy|https?_proxy|all_proxy|.*_SOCKET_IFNAME|NCCL_IB_HCA|PATH|PYTHONPATH|LD_LIBRARY_PATH|HOME|.*_HOME|.*_CACHE(_DIR)?"
    r"|.*_DIR|.*_PATH|VIRTUAL_ENV|CONDA_.*|TMPDIR|WKDIR|CONTAINER_.*)"
)
_SAFE_KEYS = re.compile(r"^(input|label|metadata|tool|multimodal|reward|eval)\w*_key$")
PATHS = {
    *("load", "save", "data_path", "train_data_path", "valid_data_path", "test_data_path", "per_split_data_args_path"),
    *("data_args_path", "data_cache_path", "tokenizer_model", "vocab_file", "merge_file", "tensorboard_dir", "wandb_save_dir"),
    *("hf_checkpoint", "ref_load", "critic_load", "critic_save", "prompt_data", "eval_prompt_data", "pretrained_checkpoint"),
}
HUB = {"tokenizer_model", "hf_checkpoint"}
"""Arguments whose value may be a name on a hub of models, `organisation/name`."""
HERE = "${SCRIPT_ROOT}"
"""Stands in a recipe for the folder that the script lies under."""


def is_path(name: str, value: Value) -> bool:
    """Tell whether a value names a place of the author's machine."""
    words = [str(v) for v in (value if isinstance(value, list) else [value])]
    if any(re.match(r"(/|~|\.{1,2}/|[a-z0-9]+://)", w) and len(w) > 1 for w in words):
        return True
    leaf = name.rsplit(".", 1)[-1]
    if leaf in HUB and all(re.fullmatch(r"[\w.-]+/[\w.-]+", w) for w in words):
        return False
    return leaf in PATHS and (leaf not in HUB or any("/" in w or "${" in w for w in words))


def kept_env(env: dict[str, str], notes: Notes) -> dict[str, str]:
    """Return the variables that belong to a recipe, and say which do not."""
    found: dict[str, str] = {}
    machine, launcher = [], []
    for name, value in env.items():
        if is_secret(name, value) or notes.hides(value):
            notes.add("secret", f"environment {name}")
            notes.hide(value)
        elif _LAUNCHER.fullmatch(name):
            launcher.append(name)
        elif _MACHINE.fullmatch(name):
            machine.append(f"{name}={value}" if len(value) < 60 else name)
        else:
            found[name] = value
            if "${" in value or "$(" in value:
                notes.add("undecided", f"environment {name} = {value}: set it here, or take it out")
    if launcher:
        notes.add("left_out", f"environment that a launcher sets: {', '.join(launcher)}")
    if machine:
        notes.add("left_out", f"environment of the author's machine, to be set here if needed: {', '.join(machine)}")
    return found


def kept_arguments(arguments: dict[str, Value], notes: Notes) -> dict[str, Value]:
    """Return the arguments without secrets, and list those that name places of the author's machine or can't be told."""
    found: dict[str, Value] = {}
    for name, value in arguments.items():
        leaf = name.rsplit(".", 1)[-1]
        words = [str(v) for v in (value if isinstance(value, list) else [value])]
        named = _SECRET_FLAG.search(leaf) and not _SAFE_KEYS.match(leaf)
        if named or any(mask(w) != w or notes.hides(w) for w in words):
            notes.add("secret", name)
            for word in words:
                notes.hide(word)
            continue
        found[name] = value
        if is_path(name, value):
            notes.add("to_set", f"{name} = {' '.join(words)}")
        elif any("${" in w or "$(" in w for w in words):
            notes.add(
                "undecided", f"{name} = {' '.join(words)}: nothing in the source sets it; --set NAME=VALUE, or write it here"
            )
    return found


def without_secrets(found: Imported) -> Imported:
    """Return an import in which nothing that looks like a secret is left, in no notice either."""
    masked = [n.model_copy(update={"text": mask(n.text).replace(ROOT, HERE)}) for n in found.notices]
    arguments = {n: [_rooted(x) for x in v] if isinstance(v, list) else _rooted(v) for n, v in found.arguments.items()}
    env = {n: v.replace(ROOT, HERE) for n, v in found.env.items()}
    entry = one_line(mask(found.entry).replace(ROOT + "/", ""))[:200]
    return found.model_copy(update={"notices": masked, "entry": entry, "arguments": arguments, "env": env})


def _rooted(value: Scalar) -> Scalar:
    return value.replace(ROOT, HERE) if isinstance(value, str) else value
