"""Every campaign file here loads, and the four ready ones are the ATTUNE paper's (arXiv 2610.17528) where it says what it ran.

Figures of the tables below are typed from its appendix. What it doesn't say is the public recipe's, and stands under `public`.
With a checkout of slime's pin of Megatron-LM in ATTUNER_MEGATRON_SRC the baselines are resolved by it too.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from lab import ROOT

from attuner.cli.check import costs
from attuner.cli.estimate import told
from attuner.config import load_campaign, load_recipe_file, load_register
from attuner.core.campaign import Campaign
from attuner.core.errors import UserError
from attuner.estimate.model import Estimate
from attuner.estimate.reading import read
from attuner.policy.gate import config_look
from attuner.policy.register import carried_defects
from attuner.settings import load_settings
from attuner.stacks.megatron.data import freeze, prefixes
from attuner.stacks.megatron.stack import MegatronStack
from attuner.steps.birth import resolve_baseline

CONFIGS = ROOT / "configs"
FILES = sorted((CONFIGS / "campaigns").glob("*.yaml"))
PIN = "0.16.0rc0"
SOURCE = os.environ.get("ATTUNER_MEGATRON_SRC", "")


def is_pin() -> bool:
    told_by = Path(SOURCE) / "megatron" / "core" / "package_info.py"
    return bool(SOURCE) and told_by.is_file() and "PRE_RELEASE = 'rc0'" in told_by.read_text().replace('"', "'")


needs_pin = pytest.mark.skipif(not is_pin(), reason=f"no checkout of Megatron-LM {PIN} (1dcf0da): set ATTUNER_MEGATRON_SRC")


@dataclass(frozen=True)
class Ready:
    """What the paper says of one campaign, and what its public recipe does."""

    file: str
    recipe: str
    model: str
    gpus: int
    hardware: str
    seq_len: int
    rows: int
    mean: float
    launch_gpu_hours: float
    budget: int
    batch: int
    paper: dict[str, Any]
    public: dict[str, Any]
    defects: set[str]
    stages: list[int]
    num_microbatches: int
    vocabulary: int
    experts: dict[str, int] = field(default_factory=dict)


def sizes(tp: int, pp: int, **more: Any) -> dict[str, Any]:
    return {"tensor_model_parallel_size": tp, "pipeline_model_parallel_size": pp, "sequence_parallel": True, **more}


READY = [
    Ready(
        file="llama3.1-405b",
        recipe="llama3.1-405b",
        **{"model": "llama-3.1-405b", "gpus": 128, "hardware": "B200"},  # tables A3, D1
        **{"seq_len": 8192, "rows": 6400},  # A1
        **{"mean": 399.36, "launch_gpu_hours": 61.38, "budget": 1850},  # D1
        batch=64,
        paper={"calculate_per_token_loss": True, "padded_vocab_size": 128256, "lr": 3e-4 / 30, "min_lr": 3e-5 / 30}
        | {"overlap_grad_reduce": True, "overlap_param_gather": True, "tp_comm_overlap": True}
        | {"tp_comm_bootstrap_backend": "gloo"},  # A2
        public=sizes(4, 8, context_parallel_size=2, num_virtual_stages_per_pipeline_rank=8, micro_batch_size=1),
        defects={"MEG-DEF-044", "MEG-DEF-059"},
        stages=[1, *[2] * 62, 1],
        num_microbatches=32,
        vocabulary=128256,
    ),
    Ready(
        file="mixtral-8x22b",
        recipe="mixtral-8x22b",
        **{"model": "mixtral-8x22b", "gpus": 128, "hardware": "H100"},
        **{"seq_len": 4096, "rows": 64000},
        **{"mean": 1091.69, "launch_gpu_hours": 24.57, "budget": 740},
        batch=256,
        paper={"rotary_base": 1000000, "recompute_granularity": "selective", "recompute_modules": ["moe_act"]}
        | {"tp_comm_bootstrap_backend": "gloo"},
        public=sizes(2, 8, expert_model_parallel_size=8, num_virtual_stages_per_pipeline_rank=7, micro_batch_size=1),
        defects={"MEG-DEF-001", "MEG-DEF-059"},
        stages=[1] * 56,
        num_microbatches=32,
        vocabulary=32000,
    ),
    Ready(
        file="glm4.5",
        recipe="glm4.5-attune",
        **{"model": "glm-4.5", "gpus": 128, "hardware": "B200"},
        **{"seq_len": 4096, "rows": 225280},
        **{"mean": 728.19, "launch_gpu_hours": 62.58, "budget": 1880},
        batch=2048,
        paper=sizes(
            2, 8, expert_model_parallel_size=16, decoder_first_pipeline_num_layers=10, decoder_last_pipeline_num_layers=10
        )
        | {"recompute_granularity": "selective", "moe_shared_expert_overlap": True, "moe_token_dispatcher_type": "alltoall"}
        | {"overlap_grad_reduce": True, "overlap_param_gather": True},  # D2, F1: what the launches changed from
        public={"expert_tensor_parallel_size": 1, "micro_batch_size": 1, "moe_aux_loss_coeff": 0.001},
        defects={"MEG-DEF-001"},
        stages=[10, *[12] * 6, 10],
        num_microbatches=256,
        vocabulary=151552,
    ),
    Ready(
        file="minimax-m2",
        recipe="minimax-m2",
        **{"model": "minimax-m2", "gpus": 64, "hardware": "B200"},
        **{"seq_len": 8192, "rows": 28160},
        **{"mean": 893.18, "launch_gpu_hours": 17.58, "budget": 530},
        batch=256,
        paper=sizes(2, 2, expert_model_parallel_size=8, expert_tensor_parallel_size=1, context_parallel_size=1)
        | {"recompute_method": "uniform", "optimizer_cpu_offload": True, "micro_batch_size": 1},  # A2, D3
        public={"recompute_granularity": "full", "recompute_num_layers": 1, "overlap_cpu_optimizer_d2h_h2d": True}
        | {"spec": ["slime_plugins.models.minimax_m2", "get_minimax_m2_layer_spec"]},
        defects={"MEG-DEF-001"},
        stages=[31, 31],
        num_microbatches=16,
        vocabulary=200064,
    ),
]
ready = pytest.mark.parametrize("want", READY, ids=[x.file for x in READY])


def loaded(want: Ready) -> Campaign:
    return load_campaign(CONFIGS / "campaigns" / f"{want.file}.yaml", configs=CONFIGS)


def estimated(campaign: Campaign) -> Estimate:
    shape, layout = read(campaign.baseline.arguments, workload=campaign.workload, stack="megatron")
    return told(shape, layout, campaign.launcher.cluster)


@pytest.mark.parametrize("file", FILES, ids=[f.stem for f in FILES])
def test_every_campaign_file_loads(file: Path) -> None:
    assert load_campaign(file, configs=CONFIGS).name


@ready
def test_a_ready_campaign_has_the_papers_figures(want: Ready) -> None:
    campaign = loaded(want)
    work, arguments = campaign.workload, campaign.baseline.arguments
    assert (work.model, work.gpus, work.hardware, work.seq_len) == (want.model, want.gpus, want.hardware, want.seq_len)
    assert (work.global_batch, work.precision) == (want.batch, "bf16")
    for name, value in want.paper.items():
        assert arguments.get(name) == (pytest.approx(value) if isinstance(value, float) else value), name
    assert {k: arguments.get(k) for k in want.public} == want.public
    assert (campaign.stack.version, campaign.stack.commit, campaign.stack.torch) == (PIN, "1dcf0da", "2.11.0")
    assert (campaign.noise.calibration_runs, campaign.noise.floor, campaign.noise.sigmas) == (5, 0.03, 3.0)


@ready
def test_its_first_guess_of_a_launch_gives_the_papers_budget(want: Ready) -> None:
    cost = costs(loaded(want))
    assert cost["launch_gpu_hours"] == pytest.approx(want.launch_gpu_hours, rel=0.001)
    assert str(cost["budget"]).startswith(f"{want.budget} device-hours (auto")


@ready
def test_its_rows_last_for_a_profiled_launch_and_megatron_asks_for_all_of_them_once(want: Ready) -> None:
    campaign = loaded(want)
    work, arguments = campaign.workload, campaign.baseline.arguments
    assert (work.steps + campaign.launch.profile_steps) * work.global_batch <= want.rows
    assert want.rows % work.global_batch == 0
    samples = arguments.get("train_samples") or arguments["train_iters"] * work.global_batch
    assert samples == want.rows, "asked for more, GPTDataset begins anew, one token further on"
    assert arguments["split"] == "100,0,0"
    assert [Path(p).name for p in prefixes(arguments)] == ["stream"]


@ready
def test_it_says_that_it_was_not_run_and_what_was_changed_from_which_recipe(want: Ready) -> None:
    file = load_recipe_file(CONFIGS / "recipes" / "megatron" / f"{want.recipe}.yaml")
    assert len(file.adaptations) >= 4
    for part in (CONFIGS / "campaigns" / f"{want.file}.yaml", CONFIGS / "recipes" / "megatron" / f"{want.recipe}.yaml"):
        assert "Not run here: no GPU" in part.read_text()
    assert (file.published is not None) == (want.file == "mixtral-8x22b"), "no other figure is stated for these devices"
    assert loaded(want).published == file.published


@ready
def test_no_benchmarks_liberty_is_in_a_baseline(want: Ready) -> None:
    arguments, env = loaded(want).baseline.arguments, loaded(want).baseline.env
    assert arguments.get("accumulate_allreduce_grads_in_fp32", True) is True
    assert arguments.get("cross_entropy_fusion_impl", "native") == "native"
    assert arguments.get("check_for_nan_in_loss_and_grad", True) is True
    assert not arguments.get("moe_router_fusion")
    assert "TORCH_NCCL_AVOID_RECORD_STREAMS" not in env


@ready
def test_the_page_shows_todays_estimate_beside_the_papers_baseline(want: Ready) -> None:
    said, page = estimated(loaded(want)), (ROOT / "docs" / "campaigns.md").read_text()
    row = next(line for line in page.splitlines() if line.startswith(f"| `{want.file}`") and f"{want.mean:,.2f}" in line)
    work = loaded(want).workload
    speeds = [work.tokens_per_step() / work.gpus / s for s in (said.step_s, said.step_high_s, said.step_low_s)]
    for value in (*speeds, said.peak_mem_gib, said.mem_low_gib, said.mem_high_gib):
        assert f"{value:,.0f}" in row, f"{value:,.0f} is not in: {row}"
    for rule in want.defects:
        assert rule in row


def test_llamas_newer_public_layout_is_one_that_the_estimate_says_does_not_fit() -> None:
    campaign = loaded(READY[0])
    newer = {"pipeline_model_parallel_size": 16, "context_parallel_size": 1, "global_batch_size": 768}
    moved = campaign.model_copy(update={"baseline": campaign.baseline.changed(newer)})
    limit = campaign.launcher.cluster.device.mem_gib
    assert limit is not None
    assert estimated(moved).mem_low_gib > limit
    assert estimated(campaign).mem_low_gib < limit


@pytest.fixture(scope="module")
def stack() -> Iterator[MegatronStack]:
    made = MegatronStack()
    yield made
    made.close()


@needs_pin
@ready
def test_megatron_itself_resolves_the_baseline_to_the_papers_layout(want: Ready, stack: MegatronStack) -> None:
    campaign = loaded(want)
    campaign = campaign.model_copy(update={"stack": load_settings().sourced(campaign.stack)})
    final = resolve_baseline(stack, campaign)
    assert final.facts["layers_per_stage"] == want.stages
    assert final.facts["num_microbatches"] == want.num_microbatches
    assert final.facts["padded_vocab_size"] == want.vocabulary
    assert final.facts["rows_per_update"] == want.batch
    assert final.facts["initial_weights"] == "checkpoint"
    assert final.facts["unparsed_arguments"] == []
    assert final.facts["loss_masks"] == "even"
    register = load_register(ROOT / "rules", "megatron")
    assert {rule.id for rule in carried_defects(register, final)} == want.defects


TP1 = {"tensor_model_parallel_size": 1, "sequence_parallel": False}
ENDS = ("decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers")
CHANGES: list[tuple[str, dict[str, Any], str, str]] = [
    # table B1, and what trains something else
    ("mixtral-8x22b", {"moe_router_fusion": True}, "refuse", "MEG-DEF-011"),
    ("mixtral-8x22b", {"gradient_accumulation_fusion": False}, "refuse", "MEG-DEF-033"),
    ("mixtral-8x22b", {"expert_model_parallel_size": 1, "expert_tensor_parallel_size": 8}, "refuse", "MEG-DEF-004"),
    ("mixtral-8x22b", {"global_batch_size": 128}, "refuse", "MEG-OBJ-058"),
    ("llama3.1-405b", {"grad_reduce_in_bf16": True}, "refuse", "MEG-OBJ-114"),
    ("llama3.1-405b", {"calculate_per_token_loss": False}, "refuse", "MEG-OBJ-061"),
    # tables D2, D3: what was shipped, where this commit's clip norm allows it
    (
        "glm4.5",
        {"pipeline_model_parallel_size": 16, "expert_model_parallel_size": 8, ENDS[0]: 4, ENDS[1]: 4},
        "review",
        "MEG-CND-041",
    ),
    ("glm4.5", TP1, "refuse", "MEG-DEF-001"),
    ("minimax-m2", TP1, "refuse", "MEG-DEF-001"),
    (
        "minimax-m2",
        {"pipeline_model_parallel_size": 8, ENDS[0]: 7, ENDS[1]: 7, "micro_batch_size": 4, "optimizer_cpu_offload": False},
        "admit",
        "MEG-CND-082",
    ),
]


@needs_pin
@pytest.mark.parametrize(("file", "change", "decision", "rule"), CHANGES)
def test_the_register_decides_the_papers_changes_on_these_baselines(
    stack: MegatronStack, file: str, change: dict[str, Any], decision: str, rule: str
) -> None:
    campaign = loaded(next(x for x in READY if x.file == file))
    campaign = campaign.model_copy(update={"stack": load_settings().sourced(campaign.stack)})
    before, after = stack.resolve(campaign.baseline, campaign), stack.resolve(campaign.baseline.changed(change), campaign)
    register = load_register(ROOT / "rules", "megatron")
    verdict = config_look(register, before, after, subject="h01", recipe="r", tests=[], scope="")
    assert verdict.decision == decision, [f.line() for f in verdict.findings]
    assert rule in {f.rule for f in verdict.findings if f.decision == decision}


@needs_pin
def test_a_data_set_without_its_digest_is_one_line_that_says_what_to_fill_in(stack: MegatronStack) -> None:
    campaign = loaded(READY[0])
    campaign = campaign.model_copy(update={"stack": load_settings().sourced(campaign.stack)})
    final = resolve_baseline(stack, campaign)
    with pytest.raises(UserError, match=r"stream\.bin: not seen from here; state gutenberg-llama3\.1@sha256:…"):
        freeze(campaign, final)
    stated = campaign.workload.model_copy(update={"dataset": "gutenberg-llama3.1@sha256:" + "0" * 64})
    assert freeze(campaign.model_copy(update={"workload": stated}), final) == stated.dataset
