"""From a command line to arguments: types, which flag wins, what nobody knows, what must not travel."""

from __future__ import annotations

from pathlib import Path

import pytest

from attuner.config import load_recipe
from attuner.importing.flags import read_flags
from attuner.importing.model import Notes
from attuner.importing.recipe_text import recipe_text
from tests.unit.importing import SLIME, WHOLE, imported, listed

RUN = "torchrun --nproc_per_node 8 --nnodes 4 pretrain_gpt.py --num-layers 4 --hidden-size 64 "
SUBMIT = "ray job submit -- python3 train.py --actor-num-nodes 4 --actor-num-gpus-per-node 8 --rollout-batch-size 8 "


def test_values_become_what_they_spell(tmp_path: Path) -> None:
    found = imported(tmp_path, RUN + "--lr 1e-4 --clip-grad 1.0 --seed 007 --split 99,1,0 --moe-layer-freq '[0]*1+[1]*3' --bf16")
    expected = {"lr": 1e-4, "clip_grad": 1.0, "seed": "007", "split": "99,1,0", "moe_layer_freq": "[0]*1+[1]*3", "bf16": True}
    assert {k: found.arguments[k] for k in expected} == expected
    assert found.arguments["num_layers"] == 4
    assert found.gpus == 32


def test_a_flag_that_turns_something_off_leaves_false_and_one_that_is_called_so_leaves_true(tmp_path: Path) -> None:
    found = imported(
        tmp_path, RUN + "--disable-bias-linear --no-position-embedding --no-load-optim --no-gradient-accumulation-fusion"
    )
    names = ("add_bias_linear", "add_position_embedding", "no_load_optim", "gradient_accumulation_fusion")
    assert [found.arguments[n] for n in names] == [False, False, True, False]


def test_the_last_of_two_wins_and_that_is_said(tmp_path: Path) -> None:
    flags = "--moe-token-dispatcher-type alltoall --seq-length 8 --moe-token-dispatcher-type flex --seq-length 8"
    found = imported(tmp_path, RUN + flags)
    assert found.arguments["moe_token_dispatcher_type"] == "flex"
    said = "--moe-token-dispatcher-type flex comes later than --moe-token-dispatcher-type alltoall and wins"
    assert found.of("overridden") == [said, "--seq-length: twice, with the same value"]


def test_an_option_takes_as_many_words_as_its_parser_does() -> None:
    notes = Notes()
    words = ["--num-layers", "4", "stray", "--data-path", "0.3", "a", "0.7", "b", "--disable-bias-linear", "stray2"]
    found = read_flags(words, WHOLE, notes)
    assert found == {"num_layers": 4, "data_path": ["0.3", "a", "0.7", "b"], "add_bias_linear": False}
    assert [n.text for n in notes.all() if n.kind == "unparsed"] == [
        "stray: belongs to no option (behind --num-layers)",
        "stray2: belongs to no option (behind --disable-bias-linear)",
    ]


def test_an_option_that_nobody_knows_is_kept_for_megatron_which_stops_at_it() -> None:
    notes = Notes()
    assert read_flags(["--overlap-grad-reduc"], WHOLE, notes) == {"overlap_grad_reduc": True}
    [text] = [n.text for n in notes.all()]
    assert "did you mean --overlap-grad-reduce?" in text
    assert "stops at an option" in text


def test_slimes_trap_is_named_an_unknown_option_has_no_effect_and_is_left_out() -> None:
    notes = Notes()
    assert read_flags(["--overlap-grad-reduc", "--sglang-ep-size", "4"], SLIME, notes) == {"sglang_ep_size": 4}
    [text] = [n.text for n in notes.all()]
    assert "slime ignores an option it doesn't know without a word" in text
    assert "did you mean --overlap-grad-reduce?" in text


def test_without_slimes_checkout_what_was_not_checked_is_counted(tmp_path: Path) -> None:
    found = imported(tmp_path, SUBMIT + "--use-tis --overlap-grad-reduc")
    [note] = [n for n in found.of("note") if "slime drops" in n]
    assert "5 options are not in the list" in note
    [unknown] = found.of("unknown")
    assert "--overlap-grad-reduc:" in unknown
    assert found.gpus == 32


def test_a_secret_is_neither_in_the_recipe_nor_in_what_is_said(tmp_path: Path) -> None:
    key = "0123456789abcdef0123456789abcdef01234567"
    text = f"""WANDB_KEY=${{WANDB_KEY:-{key}}}
export HF_TOKEN=hf_abcdefghijklmnopqrstuvwx
export MY_FLAG=sk-abcdefghijklmnopqrstuvwxyz012345
[ "$X" = {key} ] && export NCCL_DEBUG=INFO
torchrun pretrain_gpt.py {key} --num-layers 4 --hidden-size 64 --wandb-key $WANDB_KEY --input-key prompt --tensorboard-dir /{key}
"""
    found = imported(tmp_path, text)
    written = recipe_text(found) + found.model_dump_json()
    assert key not in written
    assert "hf_abcdef" not in written
    assert "sk-abcdef" not in written
    assert "wandb_key" not in found.arguments
    assert found.arguments["input_key"] == "prompt"
    assert sorted(found.of("secret")) == ["environment HF_TOKEN", "environment MY_FLAG", "tensorboard_dir", "wandb_key"]


def test_places_of_the_authors_machine_are_listed_and_kept(tmp_path: Path) -> None:
    found = imported(tmp_path, RUN + "--load /data/ck --data-path $DATA --tokenizer-model zai-org/GLM-4.7 --save out")
    assert found.of("to_set") == ["load = /data/ck", "data_path = ${DATA}", "save = out"]
    assert found.arguments["load"] == "/data/ck"


def test_a_value_that_cannot_be_told_stays_visible_so_that_nothing_trains_with_a_default(tmp_path: Path) -> None:
    found = imported(tmp_path, RUN + "--lr $LR $EXTRA --bf16")
    assert found.arguments["lr"] == "${LR}"
    assert [t.split(":")[0] for t in found.of("undecided")] == ["${EXTRA}", "lr = ${LR}"]
    assert found.arguments["bf16"] is True


def test_what_a_launcher_sets_and_what_belongs_to_the_authors_machine_is_left_out_and_said(tmp_path: Path) -> None:
    theirs = "export MASTER_ADDR=1.2.3.4 PYTHONPATH=/opt/Megatron-LM NCCL_SOCKET_IFNAME=eth0\n"
    found = imported(tmp_path, theirs + "export NCCL_NVLS_ENABLE=0 CUDA_DEVICE_MAX_CONNECTIONS=1\n" + RUN)
    assert found.env == {"CUDA_DEVICE_MAX_CONNECTIONS": "1", "NCCL_NVLS_ENABLE": "0"}
    assert any("PYTHONPATH=/opt/Megatron-LM" in t for t in found.of("left_out"))


def test_commands_that_end_others_jobs_are_named_as_not_carried_over(tmp_path: Path) -> None:
    found = imported(tmp_path, "pkill -9 python\nray stop --force\nray start --head\n" + SUBMIT)
    said = found.of("left_out")
    assert any("pkill -9 python; ray stop --force" in t for t in said)
    assert any("ray start --head" in t for t in said)


def test_words_after_a_missing_backslash_reach_no_program_and_that_is_said(tmp_path: Path) -> None:
    found = imported(tmp_path, SUBMIT + "\n   --bf16 --lr 1e-6")
    assert "bf16" not in found.arguments
    assert any("3 words from --bf16 on do not reach any program" in t for t in found.of("unparsed"))


@pytest.mark.parametrize(
    "launch",
    [
        "python -m torch.distributed.launch --nproc_per_node=8 --nnodes=4 pretrain_gpt.py",
        "python3 -u -m torch.distributed.run --nproc-per-node 8 --nnodes 4 --rdzv-backend c10d pretrain_gpt.py",
        "srun -l --container-image=x torchrun --nproc_per_node 8 --nnodes 4 pretrain_gpt.py",
        "nohup env A=1 torchrun --nproc_per_node=8 --nnodes=1:4 pretrain_gpt.py",
        "timeout 60 torchrun --standalone --nproc_per_node 8 --nnodes 4 pretrain_gpt.py",
        "exec torchrun --nproc_per_node 8 --nnodes 4 pretrain_gpt.py",
    ],
)
def test_the_training_is_found_behind_what_starts_it(launch: str, tmp_path: Path) -> None:
    found = imported(tmp_path, launch + " --num-layers 4 --hidden-size 64 2>&1 | tee log")
    assert (found.stack, found.entry, found.gpus) == ("megatron", "pretrain_gpt.py", 32)
    assert found.arguments == {"num_layers": 4, "hidden_size": 64}


def test_inside_a_quoted_command_too(tmp_path: Path) -> None:
    options = 'OPTS=" \\\n  --num-layers 4 \\\n  --hidden-size 64"\n'
    text = options + 'run_cmd="python -u pretrain_gpt.py ${OPTS}"\nsrun -l sh -c "${run_cmd}"\n'
    assert imported(tmp_path, text).arguments == {"num_layers": 4, "hidden_size": 64}
    assert imported(tmp_path, "sbatch <<EOF\n#!/bin/bash\n" + RUN + "\nEOF\n").arguments == {"num_layers": 4, "hidden_size": 64}


def test_of_several_trainings_one_is_taken_and_that_is_said(tmp_path: Path) -> None:
    text = "for tp in 1 2; do " + RUN + "--tensor-model-parallel-size $tp; done"
    assert imported(tmp_path, text).arguments["tensor_model_parallel_size"] == 1
    found = imported(tmp_path, text, launch=2)
    assert found.arguments["tensor_model_parallel_size"] == 2
    assert any("starts 2 trainings" in t for t in found.of("undecided"))


def test_the_runtime_environment_of_a_ray_job_is_the_recipes(tmp_path: Path) -> None:
    text = """J="{
  \\"env_vars\\": {\\"CUDA_DEVICE_MAX_CONNECTIONS\\": \\"1\\", \\"NCCL_NVLS_ENABLE\\": \\"${HAS:-1}\\"}, \\"pip\\": []
}"
ray job submit --address=http://127.0.0.1:8265 --runtime-env-json="$J" -- python3 train.py --actor-num-nodes 2 \\
  --actor-num-gpus-per-node 8 --rollout-batch-size 4"""
    found = imported(tmp_path, text)
    assert found.env == {"CUDA_DEVICE_MAX_CONNECTIONS": "1", "NCCL_NVLS_ENABLE": "1"}
    assert (found.stack, found.gpus) == ("slime", 16)
    assert any("only env_vars are carried, not pip" in t for t in found.of("undecided"))


def test_the_file_that_is_written_is_the_recipe_that_was_read(tmp_path: Path) -> None:
    found = imported(tmp_path, RUN + "--lr 1e-6 --data-path a b --split 99,1,0 --seed 1 --load /x")
    out = tmp_path / "recipe.yaml"
    out.write_text(recipe_text(found))
    assert load_recipe(out).arguments == found.arguments
    assert "# to be set here: load = /x" in out.read_text()


def test_the_lists_of_the_register_know_every_flag_once() -> None:
    words = listed()["megatron"]
    assert words.options["--tensor-model-parallel-size"].name == "tensor_model_parallel_size"
    assert words.options["--no-rope-fusion"].leaves is False
