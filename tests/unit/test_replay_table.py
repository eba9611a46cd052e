"""A replay table is read whole or refused with its line; its charges are the README's; another machine changes what it should."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
from lab import ROOT
from paper_cluster import FORMULA, table

from attuner.core.errors import UserError
from attuner.tables import PARTS, load_table, model_arguments, perturbed
from attuner.tables.perturb import crossing

HEAD = "tp,pp,vp,ep,etp,mbs,recompute,dp,num_microbatches,outcome,step_time_s,tokens_per_s_per_gpu,peak_mem_gib,fwd_compute_s"
OK = "2,1,1,1,1,1,full,2,4,ok,2.0,1.0,10.0,2.0"
ABOUT = """
source: made for a test
kind: formula
model: m
hardware: h
gpus: 4
global_batch: 8
seq_len: 16
startup_s: 10
baseline: {tensor_model_parallel_size: 2, pipeline_model_parallel_size: 1, expert_model_parallel_size: 1,
  expert_tensor_parallel_size: 1, micro_batch_size: 1, recompute_granularity: full}
"""


def written(folder: Path, *lines: str, head: str = HEAD, about: str = ABOUT) -> Path:
    (folder / "t.csv").write_text("\n".join([head, *lines]) + "\n")
    (folder / "t.yaml").write_text(about)
    return folder / "t.yaml"


def test_columns_before_outcome_are_arguments_by_the_frameworks_names(tmp_path: Path) -> None:
    found = load_table(written(tmp_path, OK, "1,1,1,1,1,1,none,4,2,oom,,,99.0,"))
    assert found.axes[0] == "tensor_model_parallel_size"
    row = found.find({**found.about.baseline, "tensor_model_parallel_size": 1, "recompute_granularity": None})
    assert row is not None
    assert (row.outcome, row.peak_mem_gib) == ("oom", 99.0)
    assert found.start().step_s == 2.0
    assert found.find({"tensor_model_parallel_size": 8}) is None


def test_any_argument_may_be_a_column_its_values_are_json(tmp_path: Path) -> None:
    head = "attention,bucket_size,outcome,step_time_s"
    about = ABOUT.split("baseline")[0] + 'baseline: {attention: "local", bucket_size: null}'
    found = load_table(written(tmp_path, '"""local""",null,ok,1.0', '"""sdpa""",1000,ok,0.5', head=head, about=about))
    assert found.space() == {"attention": ["local", "sdpa"], "bucket_size": [None, 1000]}
    assert found.best().arguments == {"attention": "sdpa", "bucket_size": 1000}


def test_a_launch_is_charged_as_the_readme_says(tmp_path: Path) -> None:
    found = load_table(written(tmp_path, OK, "1,1,1,1,1,1,none,4,2,oom,,,99.0,"))
    oom = next(r for r in found.rows.values() if r.outcome == "oom")
    assert found.gpu_hours(found.start()) == pytest.approx(4 * (10 + 20 * 2.0) / 3600)
    assert found.gpu_hours(oom) == pytest.approx(4 * (10 + 60) / 3600)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["2,1,1,1,1,1,full,2,4,maybe,2.0,,,"], r"t\.csv:2: outcome 'maybe' is none of"),
        ([OK, OK], r"t\.csv:3: these arguments stand in an earlier row"),
        (["2,1,1,1,1,1,full,2,4,ok,0,,,"], r"t\.csv:2: an ok row needs a step_time_s above 0"),
        (["2,1,1,1,1,1,full,2,4,ok,fast,,,"], r"t\.csv:2: could not convert"),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, lines: list[str], said: str) -> None:
    with pytest.raises(UserError, match=said):
        load_table(written(tmp_path, *lines))


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no column `outcome`"):
        load_table(written(tmp_path, "1", head="tp"))
    with pytest.raises(UserError, match=r"no description nothing\.yaml beside it"):
        load_table(tmp_path / "nothing.csv")
    (tmp_path / "t.csv").unlink()
    with pytest.raises(UserError, match=r"t\.csv: no such file"):
        load_table(tmp_path / "t.yaml")
    with pytest.raises(UserError, match="baseline: it is not a row that ends well"):
        load_table(written(tmp_path, OK.replace("2,1", "1,1", 1))).start()


def test_a_models_shape_reads_as_arguments() -> None:
    shape = {"model_type": "moe", "layer_num": 4, "intermediate_size": 8, "expert_num": 2, "topk": 1, "dense_layers": 1}
    found = model_arguments(shape)
    assert found["moe_layer_freq"] == [0, 1, 1, 1]
    assert (found["num_experts"], found["moe_ffn_hidden_size"]) == (2, 8)
    assert model_arguments({**shape, "dense_layers": 0})["moe_layer_freq"] == 1
    with pytest.raises(UserError, match="model: wings: unknown key"):
        model_arguments({**shape, "wings": 2})


def test_the_formula_table_is_what_its_script_writes() -> None:
    made = runpy.run_path(str(ROOT / "bench" / "formula_table.py"))["rows"]()
    found = table()
    assert len(made) == len(found.rows)
    assert {r["outcome"] for r in made} == {"ok", "oom"}
    steps = sorted(float(str(r["step_time_s"])) for r in made if r["outcome"] == "ok")
    assert steps == sorted(r.step_s for r in found.rows.values() if r.outcome == "ok")


def test_parts_of_a_row_add_up_to_its_step() -> None:
    for row in table().rows.values():
        if row.outcome == "ok":
            assert sum(row.parts.values()) == pytest.approx(row.step_s, abs=2e-5)


def test_another_machine_changes_the_parts_that_it_should() -> None:
    old = table()
    slow, fast = perturbed(old, inter_node_comm=2.0), perturbed(old, compute=1.15)
    key = old.key(old.about.baseline)
    before, net, cpu = old.rows[key], slow.rows[key], fast.rows[key]
    assert crossing(old.about, before.arguments) == ["pp_comm_exposed_s"]  # 8 devices a stage: only stages lie on two nodes
    assert net.parts["pp_comm_exposed_s"] == pytest.approx(2 * before.parts["pp_comm_exposed_s"])
    assert net.parts["tp_ep_comm_exposed_s"] == before.parts["tp_ep_comm_exposed_s"]
    assert cpu.parts["fwd_compute_s"] == pytest.approx(before.parts["fwd_compute_s"] / 1.15)
    assert cpu.parts["bubble_s"] < before.parts["bubble_s"]
    for row in (net, cpu):
        assert row.step_s - sum(row.parts[p] for p in PARTS) == pytest.approx(before.step_s - sum(before.parts.values()))
    assert {r.outcome for r in slow.rows.values()} == {"ok", "oom"}
    assert slow.name != old.name
    assert slow.digest != old.digest
    assert perturbed(old, compute=1.0) is old


def test_communication_crosses_nodes_where_the_groups_do() -> None:
    about, base = table().about, dict(table().about.baseline)
    wide = {**base, "pipeline_model_parallel_size": 1, "expert_model_parallel_size": 16}
    assert crossing(about, wide) == ["dp_comm_exposed_s", "tp_ep_comm_exposed_s"]
    assert crossing(about, {**wide, "expert_model_parallel_size": 8}) == ["dp_comm_exposed_s"]
    assert crossing(about.model_copy(update={"gpus": 8}), {**wide, "expert_model_parallel_size": 8}) == []


def test_a_perturbation_that_means_nothing_is_refused() -> None:
    with pytest.raises(UserError, match="perturbation weather: unknown"):
        perturbed(table(), weather=2.0)
    with pytest.raises(UserError, match="a factor is above 0"):
        perturbed(table(), compute=0.0)


OUTSIDE = sorted((ROOT / "configs" / "replay").glob("*xb200.yaml"))


@pytest.mark.parametrize("path", OUTSIDE, ids=lambda p: p.stem)
def test_the_simulators_tables_start_and_end_where_their_readme_says(path: Path) -> None:
    rows = (path.parent / next(x.split()[1] for x in path.read_text().splitlines() if x.startswith("rows:"))).resolve()
    if not rows.is_file():
        pytest.skip(f"{rows.name} lies outside this checkout and is not there")
    found = load_table(path)
    known = {"glm-4.5": (830, 2056), "minimax-m2": (2095, 4237), "mixtral-8x7b": (6522, 6522), "llama3-70b": (940, 1461)}
    assert (round(found.speed(found.start())), round(found.speed(found.best()))) == known[found.about.model]


def test_the_formula_tables_description_lies_beside_its_rows() -> None:
    assert load_table(FORMULA.with_suffix(".csv")).digest == table().digest
