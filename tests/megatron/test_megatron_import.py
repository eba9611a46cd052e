"""An imported recipe against the frameworks' own parsers: options by a checkout, another number of devices through the gate, and
what differs from defaults. Needs ATTUNER_MEGATRON_SRC (and ATTUNER_SLIME_SRC with slime's Megatron-LM); skips without."""

from __future__ import annotations

from pathlib import Path

import pytest

from attuner.cli.imports import Vocabularies
from attuner.cli.main import main
from attuner.config import load_recipe_file
from attuner.core.recipe import Recipe, differences
from attuner.importing.reading import read_source
from attuner.settings import load_settings
from attuner.stacks.megatron.stack import MegatronStack
from tests.megatron.megatron_bench import ROOT, SLIME, SOURCE, frame, needs_checkout, needs_slime

MOE = """export CUDA_DEVICE_MAX_CONNECTIONS=1
MODEL=(--num-layers 8 --hidden-size 256 --num-attention-heads 8 --seq-length 256 --max-position-embeddings 256 --num-experts 8
  --moe-router-topk 2 --moe-router-load-balancing-type none --disable-bias-linear --normalization RMSNorm --swiglu
  --position-embedding-type rope --hidden-dropout 0 --attention-dropout 0)
TRAIN=(--mock-data --tokenizer-type NullTokenizer --vocab-size 511 --micro-batch-size 1 --global-batch-size 32 --lr 1e-4
  --train-iters 10 --bf16 --clip-grad 0 --load /ck --seed 1234 --moe-token-dispatcher-type allgather)
torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py ${MODEL[@]} ${TRAIN[@]} --pipeline-model-parallel-size 4 \\
  --expert-model-parallel-size 4 --use-distributed-optimizer --moe-token-dispatcher-type alltoall --attention-backend flash
"""
SLIME_RUN = """ray job submit -- python3 train.py --actor-num-nodes 1 --actor-num-gpus-per-node 8 --num-layers 4 \\
  --hidden-size 64 --rollout-batch-size 8 --num-rollout 4 --debug-train-only --load-debug-rollout-data /rows \\
  --sglang-mem-fraction-static 0.7 --overlap-grad-reduc --rollout-stop-token-ids 1 2 --use-tis
"""
pytestmark = [needs_checkout, pytest.mark.slow]


def attuner(*words: str | Path) -> int:
    return main(["--project", str(ROOT), *map(str, words)])


@pytest.fixture
def script(tmp_path: Path) -> Path:
    file = tmp_path / "train.sh"
    file.write_text(MOE)
    return file


def test_fewer_devices_go_through_the_gate_and_are_what_check_then_resolves(
    script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "recipe.yaml"
    assert attuner("import", script, "-o", out, "--source", SOURCE, "--gpus", "8") == 0
    said = capsys.readouterr().out
    assert "the gate's first look" in said
    assert "by arithmetic alone" not in said
    file = load_recipe_file(out)
    assert 8 % (int(file.arguments["pipeline_model_parallel_size"]) * int(file.arguments["expert_model_parallel_size"])) == 0
    assert file.arguments["global_batch_size"] == 32
    assert file.arguments["moe_token_dispatcher_type"] == "alltoall"
    assert attuner("check", out, "--source", SOURCE, "--gpus", "8", "--cluster", "clusters/h100.yaml") == 0
    told = capsys.readouterr().out
    assert "resolves on 8 devices" in told
    given = told.split("  given")[1].split("  derived")[0]
    assert "num_experts 8" in given
    assert "micro_batch_size" in given
    assert "seed" not in given  # 1234 is the default
    assert "memory" in told


def test_a_layout_that_cannot_be_resolved_is_refused_with_megatrons_formula(
    script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "recipe.yaml"
    assert attuner("import", script, "-o", out, "--source", SOURCE) == 0
    assert attuner("check", out, "--source", SOURCE, "--gpus", "12") == 4
    assert "on 12 devices" in capsys.readouterr().err


def test_the_dump_of_a_run_resolves_to_what_the_run_had(script: Path, tmp_path: Path) -> None:
    words = Vocabularies(load_settings(project=str(ROOT)), source=SOURCE)
    first = read_source(script, words)
    stack = MegatronStack()
    try:
        recipe = Recipe(stack="megatron", arguments=first.arguments, env=first.env)
        final = stack.resolve(recipe, frame(recipe, 16))
        rule = "-" * 24
        shown = {n: f"torch.{v}" if v == "float32" else v for n, v in final.arguments.items() if "." not in n}
        body = "".join(f"  {n} {'.' * max(1, 48 - len(n))} {v}\n" for n, v in sorted(shown.items()))
        log = tmp_path / "train.log"
        log.write_text(f"{rule} arguments {rule}\n{body}{rule} end of arguments {rule}\n")
        found = read_source(log, words)
        again = Recipe(stack="megatron", arguments=found.arguments, env=first.env)
        assert differences(final, stack.resolve(again, frame(again, 16))) == []
    finally:
        stack.close()
    assert len(found.arguments) < 80


@needs_slime
def test_slimes_own_parsers_decide_which_option_has_no_effect(tmp_path: Path) -> None:
    file = tmp_path / "run.sh"
    file.write_text(SLIME_RUN)
    found = read_source(file, Vocabularies(load_settings(project=str(ROOT)), source=SOURCE, slime_source=SLIME))
    assert found.stack == "slime"
    assert found.arguments["debug_train_only"] is True
    assert found.arguments["load_debug_rollout_data"] == "/rows"
    assert found.arguments["sglang_mem_fraction_static"] == 0.7
    assert found.arguments["rollout_stop_token_ids"] == [1, 2]
    assert found.arguments["use_tis"] is True
    [text] = found.of("unknown")
    assert text.startswith("--overlap-grad-reduc: slime ignores an option it doesn't know")
    assert "did you mean --overlap-grad-reduce?" in text
