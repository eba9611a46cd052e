"""What the importer's tests share: a small list of options, and an import of a text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attuner.config import load_arguments
from attuner.importing.flags import Vocabulary
from attuner.importing.model import Imported
from attuner.importing.reading import read_source
from attuner.importing.script import Asked

RULES = Path(__file__).resolve().parents[2] / "rules"
SAID = "the list rules/megatron/arguments.txt"
ENTRY = [
    {"name": "num_layers", "options": ["--num-layers"], "default": "None", "takes": "value"},
    {"name": "hidden_size", "options": ["--hidden-size"], "default": "None", "takes": "value"},
    {"name": "add_bias_linear", "options": ["--disable-bias-linear"], "default": "True", "takes": "flag"},
    {"name": "overlap_grad_reduce", "options": ["--overlap-grad-reduce"], "default": "False", "takes": "flag"},
    {"name": "data_path", "options": ["--data-path"], "default": "None", "takes": "values"},
    {"name": "actor_num_nodes", "options": ["--actor-num-nodes"], "default": "1", "takes": "value"},
    {"name": "actor_num_gpus_per_node", "options": ["--actor-num-gpus-per-node"], "default": "8", "takes": "value"},
    {"name": "rollout_batch_size", "options": ["--rollout-batch-size"], "default": "None", "takes": "value"},
]
WHOLE = Vocabulary.of_catalogue(ENTRY, "the checkout")
SLIME = Vocabulary.of_catalogue(ENTRY, "the checkout", ignores=True, apart=("--sglang-",))


def listed() -> dict[str, Vocabulary]:
    """Return the options as the lists in rules/ know them."""
    megatron = Vocabulary.of_list(load_arguments(RULES, "megatron"), SAID)
    slime = Vocabulary.of_list(load_arguments(RULES, "megatron"), SAID, whole=False, ignores=True, apart=("--sglang-",))
    return {"megatron": megatron, "slime": slime}


def imported(tmp_path: Path, text: str, name: str = "job.sh", **more: Any) -> Imported:
    """Write a text and import it; keyword arguments in capitals are variables of the caller."""
    file = tmp_path / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    preset = {n: str(v) for n, v in more.items() if n.isupper()}
    options = {n: v for n, v in more.items() if not n.isupper() and n not in ("launch", "words")}
    words = more.get("words") or listed()
    return read_source(file, words, asked=Asked(preset, more.get("launch", 0)), **options)
