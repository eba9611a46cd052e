"""Arguments to configs and facts, without process groups."""

import json
import subprocess
import sys
from typing import Any

import pytest

from .conftest import ARGUMENTS, ROOT

CASES: list[tuple[dict[str, Any], int, str, str]] = [
    ({"hiden_size": 3}, 1, "config", "unknown argument hiden_size: did you mean hidden_size?"),
    ({"micro_batchsize": 3}, 1, "config", "did you mean micro_batch_size?"),
    ({"finalize_model_grads_func": "f"}, 1, "config", "finalize_model_grads_func isn't data"),
    ({"num_layers": "4"}, 1, "config", "num_layers = '4' isn't int"),
    ({"sequence_parallel": 1}, 1, "config", "sequence_parallel = 1 isn't bool"),
    ({"recompute_granularity": "half"}, 1, "config", "'full' or 'selective'"),
    ({"params_dtype": "fp8"}, 1, "config", "params_dtype = 'fp8' isn't"),
    ({"masked_softmax_fusion": True}, 1, "config", "can't run on a CPU"),
    ({"moe_token_dispatcher_type": "flex"}, 1, "config", "can't run on a CPU"),
    ({"context_parallel_size": 2}, 2, "config", "context_parallel_size = 2 can't run on this trainer"),
    ({"lr_decay_style": "cosine"}, 1, "config", "needs lr_decay_steps"),
    ({"recompute_granularity": "full"}, 1, "config", "recompute_method must be"),
    (
        {"tensor_model_parallel_size": 2, "sequence_parallel": True, "pipeline_model_parallel_size": 2},
        2,
        "layout",
        "world size 2 does not divide by tp·pp·cp = 2·2·1 = 4",
    ),
    (
        {"micro_batch_size": 3, "global_batch_size": 16},
        2,
        "layout",
        "global_batch_size 16 does not divide by micro_batch_size·dp = 3·2 = 6",
    ),
    ({"expert_model_parallel_size": 8, "global_batch_size": 8}, 8, "layout", "num_moe_experts 4 does not divide by ep = 8"),
    ({"tensor_model_parallel_size": 2}, 2, "layout", "mixture of experts with tp = 2 needs sequence_parallel"),
    ({"pipeline_model_parallel_size": 3}, 3, "layout", "num_layers 4 does not divide by pp·vpp = 3·1 = 3"),
    ({"virtual_pipeline_model_parallel_size": 2}, 1, "layout", "needs pipeline_model_parallel_size above 1"),
    ({"tensor_model_parallel_size": 3, "sequence_parallel": True}, 3, "layout", "num_attention_heads (4)"),
]


@pytest.fixture(scope="module")
def ask() -> Any:
    """A running resolver; megatron's import and its warnings stay out of this process."""
    server = subprocess.Popen(
        [sys.executable, "-m", "attuner.runner.resolve_mcore"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=ROOT,
    )
    assert server.stdin is not None
    assert server.stdout is not None
    assert json.loads(server.stdout.readline())["ready"]

    def one(arguments: dict[str, Any], world_size: int = 1, kind: str = "cpu") -> dict[str, Any]:
        request = {"id": 7, "arguments": {**ARGUMENTS, **arguments}, "world_size": world_size, "device_kind": kind}
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(json.dumps(request) + "\n")
        server.stdin.flush()
        answer: dict[str, Any] = json.loads(server.stdout.readline())
        assert answer.pop("id") == 7
        return answer

    yield one
    server.stdin.close()
    server.wait(20)
    server.stdout.close()


@pytest.mark.parametrize(("arguments", "world", "kind", "words"), CASES)
def test_refusals_are_one_clear_line(ask: Any, arguments: dict[str, Any], world: int, kind: str, words: str) -> None:
    answer = ask(arguments, world)
    assert not answer["ok"]
    assert (answer["kind"], words in answer["error"]) == (kind, True), answer
    assert "\n" not in answer["error"]


def test_shared_fields_feed_every_object_and_keep_their_own_names(ask: Any) -> None:
    answer = ask({"bf16": True, "use_distributed_optimizer": True, "overlap_grad_reduce": True})
    arguments = answer["arguments"]
    for name in ("params_dtype", "optimizer.params_dtype", "pipeline_dtype"):
        assert arguments[name] == "bf16"
    assert arguments["use_distributed_optimizer"] is True
    assert arguments["optimizer.use_distributed_optimizer"] is True
    assert arguments["activation_func"] == "torch.nn.functional.silu"
    assert arguments["kv_channels"] == 16
    assert "0x" not in json.dumps(arguments)


def test_facts(ask: Any) -> None:
    pipeline = {"pipeline_model_parallel_size": 2, "virtual_pipeline_model_parallel_size": 2}
    answer = ask({**pipeline, "expert_model_parallel_size": 2, "global_batch_size": 16}, 4)
    assert answer["ok"], answer
    assert answer["facts"] == {
        "world_size": 4,
        "data_parallel_size": 2,
        "expert_data_parallel_size": 1,
        "expert_tensor_parallel_size": 1,
        "num_microbatches": 8,
        "rows_per_update": 16,
        "tokens_per_update": 1024,
        "layers_per_stage": [1, 1, 1, 1],
        "padded_vocab_size": 256,
    }
    uneven = {"pipeline_model_parallel_size": 2, "num_layers_in_last_pipeline_stage": 1}
    assert ask(uneven, 2)["facts"]["layers_per_stage"] == [3, 1]


def test_a_gpu_keeps_what_a_cpu_refuses(ask: Any) -> None:
    answer = ask({"masked_softmax_fusion": True, "hidden_dropout": 0.1}, kind="cuda")
    assert answer["ok"], answer
    assert answer["arguments"]["use_cpu_initialization"] is False
