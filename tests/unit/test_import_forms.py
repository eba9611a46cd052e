"""Every form that a recipe is published in: RayJob, argument dump, Megatron's, Bridge's and AutoModel's configurations."""

from __future__ import annotations

from pathlib import Path

import pytest

from attuner.core.errors import UserError
from tests.unit.importing import WHOLE, imported, listed

RAYJOB = """apiVersion: ray.io/v1
kind: RayJob
metadata: {name: glm}
spec:
  entrypoint: >-
    python3 train.py --actor-num-nodes ${NODES} --actor-num-gpus-per-node 8 --rollout-batch-size 4
    --tensor-model-parallel-size 8 --lr 1e-6
  runtimeEnvYAML: |
    working_dir: /opt/slime
    env_vars:
      CUDA_DEVICE_MAX_CONNECTIONS: "1"
      HF_TOKEN: hf_abcdefghijklmnopqrstuvwx
  rayClusterSpec:
    headGroupSpec:
      template:
        spec: {containers: [{name: head, image: "slime:latest", env: [{name: A, value: "1"}]}]}
    workerGroupSpecs:
    - groupName: workers
      replicas: 2
      template:
        spec:
          containers:
          - name: worker
            image: slime@sha256:IMAGE
            env:
            - {name: NODES, value: "2"}
            - {name: NCCL_DEBUG, value: INFO}
            - {name: WANDB_API_KEY, valueFrom: {secretKeyRef: {name: w, key: k}}}
            resources: {limits: {nvidia.com/gpu: 8}}
""".replace("IMAGE", "0" * 64)

RULE = "-" * 24
DUMP = f"""using world size: 64, data-parallel size: 8
{RULE} arguments {RULE}
  accumulate_allreduce_grads_in_fp32 .............. True
  attention_backend ............................... AttnBackend.flash
  add_bias_linear ................................. False
  data_path ....................................... ['/data/a', '0.5']
  iteration ....................................... 0
  kv_channels ..................................... None
  lr .............................................. 1e-06
  moe_router_topk ................................. 8
  num_layers ...................................... 92
  tensor_model_parallel_size ...................... 8
  world_size ...................................... 64
{RULE} end of arguments {RULE}
"""

TEST_YAML = """ENV_VARS: {CUDA_DEVICE_MAX_CONNECTIONS: 1}
MODEL_ARGS:
  --num-layers: 12
  --hidden-size: 512
  --lr: 1.0e-4
  --weight-decay: 1e-2
  --sequence-parallel: true
  --no-gradient-accumulation-fusion: true
  --bf16: false
  --recompute-modules: "[core_attn mlp]"
  --pipeline-model-parallel-layout: Et*2|(tt|)*5t|tmL
  --save: ${CHECKPOINT_SAVE_PATH}
TEST_TYPE: regular
"""

AUTOMODEL = """recipe: BenchmarkingRecipeForNextTokenPrediction
step_scheduler: {global_batch_size: 2048, local_batch_size: 4}
distributed: {strategy: fsdp2, tp_size: 1, ep_size: 32, pipeline: {layers_per_stage: 2}}
model:
  _target_: nemo_automodel.NeMoAutoModelForCausalLM.from_config
  trust_remote_code: true
optimizer: {_target_: torch.optim.Adam, betas: [0.9, 0.999], eps: 1e-8}
wandb: {project: x}
ci: {nodes: 32, env_vars: {PYTORCH_CUDA_ALLOC_CONF: "expandable_segments:True"}}
"""

BRIDGE = """_target_: megatron.bridge.training.config.ConfigContainer
model:
  _target_: megatron.bridge.models.llama.llama_provider.LlamaModelProvider
  num_layers: 80
  params_dtype: {_target_: torch.bfloat16, _call_: false}
  cuda_graph_scope: [attn, moe_router]
train: {_target_: megatron.bridge.training.config.TrainingConfig, global_batch_size: 128, micro_batch_size: 1}
env_vars: {NCCL_NVLS_ENABLE: 0}
"""

PRINTED = """recipe: llama31_405b_pretrain_config
# overrides
model.tensor_model_parallel_size=8
model.sequence_parallel: True
model.cuda_graph_scope=["attn", "moe_router"]
  optimizer.lr = 3e-4
model.tensor_model_parallel_size=4
model.pipeline_model_parallel_layout=None
some prose
"""


def test_a_rayjob_is_its_entrypoint_with_the_environment_of_runtime_and_containers(tmp_path: Path) -> None:
    found = imported(tmp_path, RAYJOB, "job.yaml")
    assert (found.stack, found.format, found.gpus) == ("slime", "rayjob", 16)
    assert found.arguments["actor_num_nodes"] == 2
    assert found.arguments["lr"] == 1e-6
    assert found.env == {"A": "1", "CUDA_DEVICE_MAX_CONNECTIONS": "1", "NCCL_DEBUG": "INFO", "NODES": "2"}
    assert found.of("secret") == ["environment HF_TOKEN"]
    assert any("WANDB_API_KEY of workers comes from secretKeyRef" in t for t in found.of("left_out"))
    notes = found.of("note")
    assert any("slime:latest; pinned by no digest" in t for t in notes)
    assert f"image of workers: slime@sha256:{'0' * 64}" in notes


def test_a_rayjob_that_runs_a_script_of_its_image_says_what_to_import(tmp_path: Path) -> None:
    text = "kind: RayJob\nspec: {entrypoint: bash /app/run.sh}\n"
    with pytest.raises(UserError, match="if it runs a script of the image, import that script"):
        imported(tmp_path, text, "job.yaml")


def test_a_dump_is_what_was_given_without_what_megatron_sets_itself(tmp_path: Path) -> None:
    found = imported(tmp_path, "noise\n" + DUMP + "more noise\n", "train.log")
    assert (found.stack, found.format, found.gpus) == ("megatron", "dump", 64)
    assert found.arguments == {
        **{"accumulate_allreduce_grads_in_fp32": True, "attention_backend": "flash", "add_bias_linear": False},
        **{"data_path": ["/data/a", "0.5"], "lr": 1e-6, "moe_router_topk": 8, "num_layers": 92},
        "tensor_model_parallel_size": 8,
    }
    assert found.of("to_set") == ["data_path = /data/a 0.5"]


def test_of_a_dump_only_options_of_the_checkout_are_carried(tmp_path: Path) -> None:
    found = imported(tmp_path, DUMP, "train.log", words={"megatron": WHOLE, "slime": WHOLE})
    assert set(found.arguments) == {"add_bias_linear", "data_path", "num_layers"}
    assert any("tensor_model_parallel_size" in t for t in found.of("left_out"))


def test_of_a_dump_defaults_and_what_follows_from_others_are_left_out(tmp_path: Path) -> None:
    lines = {
        **{"num_layers": "92", "encoder_num_layers": "92", "hidden_size": "None", "rollout_batch_size": "7"},
        **{"add_bias_linear": "True", "overlap_grad_reduce": "True", "data_path": "['a, b', '{x}', 0.5]"},
    }
    body = "".join(f"  {n} {'.' * (48 - len(n))} {v}\n" for n, v in lines.items())
    found = imported(
        tmp_path, f"{RULE} arguments {RULE}\n{body}{RULE} end of arguments {RULE}\n", "t.log", words={"megatron": WHOLE}
    )
    expected = {"num_layers": 92, "overlap_grad_reduce": True, "data_path": ["a, b", "{x}", 0.5], "rollout_batch_size": 7}
    assert found.arguments == expected


def test_a_printed_type_is_the_option_that_asks_for_it(tmp_path: Path) -> None:
    line = f"  exp_avg_dtype {'.' * 35} torch.bfloat16\n"
    found = imported(tmp_path, f"{RULE} arguments {RULE}\n{line}{RULE} end of arguments {RULE}\n", "t.log")
    assert found.arguments == {"exp_avg_dtype": "bf16"}


def test_megatrons_test_recipes_are_flags(tmp_path: Path) -> None:
    found = imported(tmp_path, TEST_YAML, "model_config.yaml")
    assert (found.stack, found.format) == ("megatron", "megatron-yaml")
    assert found.arguments == {
        **{"num_layers": 12, "hidden_size": 512, "lr": 1e-4, "weight_decay": 0.01, "sequence_parallel": True},
        **{"gradient_accumulation_fusion": False, "recompute_modules": ["core_attn", "mlp"]},
        "pipeline_model_parallel_layout": "Et*2|(tt|)*5t|tmL",
        "save": "${CHECKPOINT_SAVE_PATH}",
    }
    assert found.env == {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    assert "--bf16: false: not given" in found.of("note")


def test_megatrons_yaml_tree_is_one_namespace(tmp_path: Path) -> None:
    model = "num_layers: 24, num_moe_experts: 8, activation_func: swiglu, init_method: x, layernorm_epsilon: 1.e-5"
    text = f"language_model: {{{model}}}\n"
    found = imported(tmp_path, text + "model_parallel: {tensor_model_parallel_size: 2}\nseed: 7\nspec: null\n", "gpt.yaml")
    assert found.arguments == {
        **{"num_layers": 24, "num_experts": 8, "swiglu": True, "layernorm_epsilon": 1e-5},
        **{"tensor_model_parallel_size": 2, "seed": 7},
    }
    [text] = found.of("unknown")
    assert text.startswith("language_model.init_method = x: no option of that name")


def test_automodels_tree_is_dotted_and_its_lists_stay_lists(tmp_path: Path) -> None:
    found = imported(tmp_path, AUTOMODEL, "glm.yaml")
    assert (found.stack, found.format) == ("automodel", "automodel")
    assert found.arguments["distributed.pipeline.layers_per_stage"] == 2
    assert found.arguments["optimizer.betas"] == [0.9, 0.999]
    assert found.arguments["optimizer.eps"] == 1e-8
    assert found.arguments["model._target_"] == "nemo_automodel.NeMoAutoModelForCausalLM.from_config"
    assert found.env == {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    assert found.of("left_out") == ["sections that train nothing: ci, wandb"]


def test_automodels_command_reads_its_yaml_and_what_overrides_it(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "glm.yaml").write_text(AUTOMODEL)
    command = (
        "torchrun --nproc-per-node 8 --nnodes 2 -m nemo_automodel.cli.app conf/glm.yaml --step_scheduler.global_batch_size 512"
    )
    found = imported(tmp_path, command + " --distributed.tp_size=2\n")
    assert (found.stack, found.gpus) == ("automodel", 16)
    assert found.arguments["step_scheduler.global_batch_size"] == 512
    assert found.arguments["distributed.tp_size"] == 2
    assert any("512 wins over 2048" in t for t in found.of("overridden"))


def test_bridges_dump_is_dotted_without_the_classes_that_it_implies(tmp_path: Path) -> None:
    found = imported(tmp_path, BRIDGE, "config.yaml")
    assert found.stack == "bridge"
    assert found.arguments == {
        **{"model._target_": "megatron.bridge.models.llama.llama_provider.LlamaModelProvider", "model.num_layers": 80},
        **{"model.params_dtype": "torch.bfloat16", "model.cuda_graph_scope": ["attn", "moe_router"]},
        **{"train.global_batch_size": 128, "train.micro_batch_size": 1},
    }
    assert found.env == {"NCCL_NVLS_ENABLE": "0"}


def test_bridges_printed_overrides_are_read_line_by_line(tmp_path: Path) -> None:
    found = imported(tmp_path, PRINTED, "printed.txt")
    assert (found.stack, found.format) == ("bridge", "bridge")
    assert found.arguments == {
        **{"recipe": "llama31_405b_pretrain_config", "model.sequence_parallel": True, "optimizer.lr": 3e-4},
        **{"model.cuda_graph_scope": ["attn", "moe_router"], "model.tensor_model_parallel_size": 4},
        "model.pipeline_model_parallel_layout": None,
    }
    assert found.of("unparsed") == ["line 9: some prose"]
    assert len(found.of("overridden")) == 1


def test_bridges_command_is_a_recipe_with_overrides(tmp_path: Path) -> None:
    command = "CMD='uv run python scripts/training/run_recipe.py --recipe llama3_8b_pretrain_config --seed-all 1'\n"
    found = imported(tmp_path, command + 'CMD="$CMD model.seq_length=4096 train.train_iters=10"\nsrun bash -c "$CMD"\n')
    assert found.stack == "bridge"
    assert found.arguments == {"recipe": "llama3_8b_pretrain_config", "model.seq_length": 4096, "train.train_iters": 10}
    assert any("--seed-all 1" in t for t in found.of("unparsed"))


@pytest.mark.parametrize(
    ("name", "text", "what"),
    [
        ("r.yaml", "stack: megatron\narguments: {}\n", "is a recipe of attuner already"),
        ("r.yaml", "a: 1\n", "no recipe that attuner knows by its keys"),
        ("r.yaml", "- 1\n", "holds no recipe that attuner knows"),
        ("r.yaml", "kind: RayJob\nspec: {}\n", "spec.entrypoint: is missing"),
        ("r.yaml", "kind: RayJob\nspec: {}\n---\nkind: RayJob\n", "holds 2 RayJobs"),
        ("r.sh", "echo hello\n", "starts no training that attuner knows"),
        ("r.log", "----------- no dump\n", "holds no recipe that attuner knows"),
    ],
)
def test_what_holds_no_recipe_says_so_in_one_line(name: str, text: str, what: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as error:
        imported(tmp_path, text, name)
    assert what in str(error.value)
    assert str(error.value).startswith(name)
    assert "\n" not in str(error.value)


def test_the_form_can_be_named(tmp_path: Path) -> None:
    assert imported(tmp_path, "torchrun p.py --num-layers 4 --hidden-size 8\n", "x.yaml", form="script").stack == "megatron"
    with pytest.raises(UserError, match="holds no dump"):
        imported(tmp_path, "x", "x.log", form="dump", words=listed())
