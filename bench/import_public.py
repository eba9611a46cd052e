"""What `attuner import` makes of public recipes, as a table: `python bench/import_public.py --slime REPO --megatron REPO …`.

Each REPO is a git repository (bare or not); its HEAD is unpacked into a temporary folder, read, and never executed. Bridge's
performance recipes are Python functions: their assignments of constants are printed as `a.b=c` lines without running them, as a
person would paste them, and that print is imported. A checkout to resolve by (--megatron-source, --slime-megatron with
--slime-source) gives the resolver's verdict.
"""

from __future__ import annotations

import argparse
import ast
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from attuner.cli.gate import framed
from attuner.cli.imports import Vocabularies
from attuner.core.base import Record
from attuner.core.errors import AttunerError
from attuner.core.recipe import Recipe
from attuner.importing.model import Imported
from attuner.importing.reading import read_source
from attuner.importing.script import Asked
from attuner.settings import Settings, load_settings
from attuner.wiring import stack_of


@dataclass(frozen=True)
class Public:
    """One public recipe.

    repo: which repository.
    path: file in it; behind a colon the function of a Python file.
    preset: variables that a user of the script would set.
    gpus: devices, where the file doesn't say.
    """

    repo: str
    path: str
    preset: tuple[tuple[str, str], ...] = ()
    gpus: int = 0


PERF = "src/megatron/bridge/perf_recipes"
RECIPES = [
    Public("slime", "scripts/run-glm4.7-355B-A32B.sh"),
    Public("slime", "scripts/run-glm4.7-30B-A3B.sh"),
    Public("slime", "scripts/run-minimax-m2.sh"),
    Public("slime", "scripts/run-qwen3-235B-A22B.sh"),
    Public("slime", "scripts/run-deepseek-r1.sh"),
    Public("slime", "scripts/run-kimi-k2-Instruct.sh"),
    Public("slime", "scripts/run-qwen3-4B-base-sft.sh"),
    Public("slime", "scripts/low_precision/run-qwen3-30B-A3B-int4.sh"),
    Public("megatron", "examples/mixtral/train_mixtral_8x7b_distributed.sh", (("SLURM_NNODES", "4"),)),
    Public("megatron", "examples/llama/train_llama3_8b_h100_fp8.sh"),
    Public("megatron", "examples/gpt3/train_gpt3_175b_distributed.sh", gpus=128),
    Public("megatron", "examples/gptoss/02_train.sh", gpus=64),
    Public("megatron", "examples/megatron_fsdp/sbatch_mfsdp_deepseek_v3.sh", gpus=512),
    Public(
        "megatron", "tests/functional_tests/test_cases/mixtral/mixtral_8x22b_tp2pp8ep8vpp1_release/model_config.yaml", gpus=128
    ),
    Public("megatron", "tests/functional_tests/test_cases/gpt/gpt3_15b_8t_release/model_config.yaml", gpus=64),
    Public("megatron", "tests/functional_tests/test_cases/gpt/gpt3_mcore_te_tp2_pp2_cp2/model_config.yaml", gpus=8),
    Public("bridge", "examples/models/gpt_oss/slurm_pretrain.sh", (("CONTAINER_IMAGE", "nemo.sqsh"),)),
    Public("bridge", "examples/distillation/llama/conf/llama32_3b-1b_distill_override_example.yaml"),
    Public("bridge", f"{PERF}/qwen/h100/qwen3_moe.py:qwen3_30b_a3b_pretrain_16gpu_h100_fp8cs_config", gpus=16),
    Public("bridge", f"{PERF}/llama/h100/llama31.py:llama31_405b_pretrain_1024gpu_h100_bf16_config", gpus=1024),
    Public("bridge", f"{PERF}/deepseek/h100/deepseek_v3.py:deepseek_v3_pretrain_1024gpu_h100_bf16_config", gpus=1024),
    Public("automodel", "examples/llm_benchmark/glm/glm_4.7_te_deepep.yaml", gpus=256),
    Public("automodel", "examples/llm_benchmark/minimax/minimax_m2.5_te_deepep.yaml", gpus=64),
    Public("automodel", "examples/llm_benchmark/deepseek/deepseek_v3_te_deepep.yaml", gpus=256),
    Public("automodel", "examples/llm_benchmark/llama3_3/custom_llama3_1_70b_pretrain_benchmark_8nodes.yaml", gpus=64),
]


class Row(Record):
    """One row of the table."""

    source: str
    form: str
    stack: str
    arguments: int
    env: int
    gpus: int
    unparsed: int
    undecided: int
    overridden: int
    unknown: int
    verdict: str


class Repository:
    """HEAD of a git repository, unpacked."""

    def __init__(self, name: str, git: Path, into: Path) -> None:
        self.name, self.folder = name, into / name
        self.commit = _git(git, "rev-parse", "HEAD").strip()
        self.folder.mkdir()
        tops = sorted({p.path.split("/")[0] for p in RECIPES if p.repo == name})
        paths = [PERF if top == "src" else top for top in tops]
        archive = into / f"{name}.tar"
        subprocess.run(["git", "-C", git, "archive", "-o", archive, "HEAD", "--", *paths], check=True)
        subprocess.run(["tar", "-x", "-f", archive, "-C", self.folder], check=True)


def _git(git: Path, *words: str) -> str:
    return subprocess.run(["git", "-C", git, *words], check=True, capture_output=True, text=True).stdout


def printed(file: Path, function: str) -> str:
    """Return the constants that a Bridge recipe function assigns, as `a.b=c` lines; nothing of it is run."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    found = next((n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == function), None)
    if found is None:
        names = [n.name for n in tree.body if isinstance(n, ast.FunctionDef)]
        raise SystemExit(f"{file}: no function {function}; it has {', '.join(names)}")
    lines = [f"recipe: {function}"]
    for node in found.body:
        if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Attribute):
            continue
        target = ast.unparse(node.targets[0])
        try:
            value = ast.literal_eval(node.value)
        except ValueError:
            continue
        if not isinstance(value, dict):
            lines.append(f"{target.removeprefix('cfg.')}={value}")
    return "\n".join(lines) + "\n"


def row(public: Public, repository: Repository, settings: Settings, words: Vocabularies) -> Row:
    """Import one recipe and resolve it where that is possible."""
    path, _, function = public.path.partition(":")
    file = repository.folder / path
    if function:
        text = printed(file, function)
        file = file.parent / f"{function}.txt"
        file.write_text(text, encoding="utf-8")
    shown = public.path.replace(PERF, "…/perf_recipes")
    try:
        found = read_source(file, words, root=str(repository.folder), asked=Asked(dict(public.preset)))
    except AttunerError as error:
        return Row(
            **{
                "source": f"{repository.name} {shown}",
                "form": "",
                "stack": "",
                "arguments": 0,
                "env": 0,
                "gpus": 0,
                "unparsed": 0,
            },
            **{"undecided": 0, "overridden": 0, "unknown": 0, "verdict": f"not imported: {error}"},
        )
    gpus = public.gpus or found.gpus
    return Row(
        source=f"{repository.name} {shown}",
        form=found.format + (" (printed)" if function else ""),
        stack=found.stack,
        arguments=len(found.arguments),
        env=len(found.env),
        gpus=gpus,
        unparsed=len(found.of("unparsed")),
        undecided=len(found.of("undecided")),
        overridden=len(found.of("overridden")),
        unknown=len(found.of("unknown")),
        verdict=verdict(found, gpus, words),
    )


def verdict(found: Imported, gpus: int, words: Vocabularies) -> str:
    """Return what the resolver says of a recipe on so many devices."""
    if not words.resolves(found.stack):
        return "no resolver here"
    recipe = Recipe(stack=found.stack, arguments=found.arguments, env=found.env)
    frame = framed(recipe, found.source, gpus=gpus, device="cuda")
    campaign = frame.model_copy(update={"stack": words.spec(recipe.stack)})
    stack = stack_of(campaign)
    try:
        final = stack.resolve(recipe, campaign)
    except AttunerError as error:
        return f"refused: {' '.join(str(error).split())[:180]}"
    finally:
        stack.close()
    facts = final.facts
    return f"resolves: dp {facts.get('data_parallel_size')}, {facts.get('num_microbatches')} micro-batches"


def main() -> None:
    """Print the table as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("slime", "megatron", "bridge", "automodel"):
        parser.add_argument(f"--{name}", type=Path, default=None, metavar="REPO")
    parser.add_argument(
        "--megatron-source", default="", metavar="DIR", help="checkout that Megatron-LM's recipes are resolved by"
    )
    parser.add_argument("--slime-megatron", default="", metavar="DIR", help="checkout of Megatron-LM that slime uses")
    parser.add_argument("--slime-source", default="", metavar="DIR", help="checkout of slime")
    parser.add_argument("--only", default="", help="paths that hold this text")
    asked = parser.parse_args()
    settings = load_settings()
    plain = Vocabularies(settings, source=asked.megatron_source)
    slime = Vocabularies(settings, source=asked.slime_megatron, slime_source=asked.slime_source)
    none = Vocabularies(settings)
    names = list(Row.model_fields)
    with tempfile.TemporaryDirectory() as folder:
        given = {n: p for n in ("slime", "megatron", "bridge", "automodel") if (p := getattr(asked, n)) is not None}
        repositories = {name: Repository(name, git, Path(folder)) for name, git in given.items()}
        for repository in repositories.values():
            print(f"- {repository.name}: commit {repository.commit}")
        print(f"\n| {' | '.join(names)} |\n|{'---|' * len(names)}")
        for public in RECIPES:
            if public.repo not in repositories or asked.only not in public.path:
                continue
            words = {"slime": slime, "megatron": plain}.get(public.repo, none)
            made = row(public, repositories[public.repo], settings, words)
            print(f"| {' | '.join(str(getattr(made, n)).replace('|', '/') for n in names)} |", flush=True)


if __name__ == "__main__":
    main()
