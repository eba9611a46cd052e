"""A whole campaign as a ledger holds it, for the report's tests: `campaign_events`.

Two CPU devices, a run out of memory, a hang, a lost machine, a refusal before launch and one after it, a component
test, and a value that waits for a person. The figures are invented.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from attuner.core.base import Record
from attuner.core.campaign import (
    Budget,
    Campaign,
    Cluster,
    Device,
    GateSpec,
    LauncherSpec,
    ProposerSpec,
    StackSpec,
)
from attuner.core.events import Event
from attuner.core.judgement import (
    Calibration,
    ComponentTest,
    Decision,
    Finding,
    Remeasurement,
    Score,
    Shipment,
    Verdict,
)
from attuner.core.recipe import EffectiveConfig, Recipe, Workload, differences
from attuner.core.run import Attempt, Launch, RankStep, Settlement, StepBreakdown, StepRecord, Trial
from attuner.core.search import Hypothesis, Stop

CAMPAIGN_ID = "quickstart-7f3a"
BORN = 1_796_000_000.0  # 2026-11-29, UTC
TOKENS, GPUS, LOSS = 4096, 2, 6.271789
BASE = {
    "tensor_model_parallel_size": 2,
    "expert_model_parallel_size": 1,
    "sequence_parallel": True,
    "micro_batch_size": 1,
    "recompute_granularity": "full",
    "optimizer_cpu_offload": True,
    "attention_backend": "local",
    "grad_reduce_in_bf16": False,
    "lr": 1e-05,
}
RULES = {
    "tensor_model_parallel_size": ("MCORE-PLC-001", "where tensors lie, not what is computed from them"),
    "expert_model_parallel_size": ("MCORE-PLC-004", "where experts lie, not what is computed from them"),
    "sequence_parallel": ("MCORE-PLC-002", "follows tensor parallelism: has no meaning at size 1"),
    "micro_batch_size": ("MCORE-PLC-011", "the global batch and its rows stay the same; loss is summed per token"),
    "recompute_granularity": ("MCORE-PLC-020", "activations are computed again instead of kept: the same numbers"),
    "attention_backend": ("MCORE-SAM-003", "fused attention computes the same function; component test passed (l10)"),
    "fact:data_parallel_size": ("MCORE-BKK-001", "follows from the layout"),
}


@dataclass
class Book:
    """Writes events the way the steps do, on a clock of its own."""

    campaign: Campaign
    events: list[Event] = field(default_factory=list)
    now: float = BORN

    def put(self, kind: str, key: str, record: Record | dict[str, Any]) -> None:
        data = record.data() if isinstance(record, Record) else record
        n = len(self.events) + 1
        self.events.append(
            Event(
                seq=n,
                campaign_id=CAMPAIGN_ID,
                n=n,
                kind=kind,
                key=key,
                at=self.now,
                fence=1,
                record=data,
                prev=f"{n - 1:064x}",
                hash=f"{n:064x}",
            )
        )

    def recipe(self, arguments: dict[str, Any], env: dict[str, str] | None = None) -> Recipe:
        made = self.campaign.baseline.changed(arguments, env)
        self.put("recipe", made.digest(), made)
        self.put("effective", made.digest(), effective(made))
        return made

    def run(
        self,
        launch_id: str,
        kind: str,
        recipe: Recipe,
        *,
        speed: float = 0.0,
        seconds: float = 40.0,
        status: str = "ok",
        cause: str = "",
        phase: str = "",
        hypothesis: str = "",
        purpose: str = "",
        loss: float = LOSS,
        attempts: int = 1,
    ) -> None:
        decided = {"id": launch_id, "kind": kind, "recipe": recipe.digest(), "hypothesis": hypothesis}
        limits = {"purpose": purpose or kind, "reserve_gpu_hours": 0.04, "time_limit_s": 160.0}
        self.put("launch", launch_id, Launch.model_validate({**decided, **limits}))
        for number in range(1, attempts + 1):
            self._attempt(launch_id, number, seconds, lost=number < attempts)
        step_s = TOKENS / speed / GPUS if speed else 0.0
        steps = [
            StepRecord(
                step=n,
                kind="warmup" if n < 2 else "scored",
                t=n * step_s,
                step_s=step_s,
                lm_loss=loss - 0.01 * n,
                loss_tokens=3600,
                tokens=TOKENS,
                peak_mem_gib=2.5,
            )
            for n in range(8 if speed else 0)
        ]
        ended = {"launch_id": launch_id, "attempt": attempts, "status": status, "cause": cause, "phase": phase}
        charge = attempts * seconds * GPUS / 3600
        self.put("trial", launch_id, Trial.model_validate({**ended, "steps": steps, "gpu_hours": charge, "gpus": GPUS}))

    def _attempt(self, launch_id: str, number: int, seconds: float, *, lost: bool) -> None:
        key = f"{launch_id}#{number}"
        folder = f"/runs/{launch_id}-a{number}"
        name = f"{CAMPAIGN_ID}-{launch_id}-a{number}"
        self.put(
            "attempt",
            key,
            Attempt(launch_id=launch_id, number=number, submission_id=name, folder=folder, submitted_at=self.now),
        )
        begun = self.now + 2
        self.now += seconds + 5
        self.put(
            "settled",
            key,
            Settlement(
                launch_id=launch_id,
                attempt=number,
                gpus=GPUS,
                allocated_at=begun,
                released_at=begun + seconds,
                gpu_hours=seconds * GPUS / 3600,
                how="last_heartbeat" if lost else "released",
                lost=lost,
            ),
        )

    def suppose(self, hid: str, title: str, recipe: Recipe, gain: float, error: float, **more: Any) -> Verdict:
        said = {"id": hid, "parent": more.pop("parent", "l01"), "group": "layout", "title": title}
        why = {"bottleneck": "exposed_comm:all_reduce", "mechanism": "fewer bytes cross the boundary"}
        self.put(
            "hypothesis",
            hid,
            Hypothesis.model_validate({**said, **why, "predicted_gain": gain, "predicted_error": error}),
        )
        findings = more.get("findings") or findings_for(self.campaign.baseline, recipe)
        order: list[Decision] = ["admit", "review", "refuse"]
        worst = max((f.decision for f in findings), key=order.index)
        verdict = Verdict(look="config", subject=hid, recipe=recipe.digest(), decision=worst, findings=findings)
        self.put("verdict", hid, verdict)
        return verdict

    def looked(self, launch_id: str, recipe: Recipe, *, attempt: int = 1, loss: float = LOSS + 4e-7) -> None:
        off = abs(loss - LOSS) / LOSS
        decision: Decision = "admit" if off <= 0.05 else "refuse"
        reason = f"deviation {off:.2e}, limit 0.05"
        limits: dict[str, Any] = {"deviation": off, "tolerance": 0.05, "outer": 0.05}
        found = [
            Finding(rule="COM-TOL-001", decision=decision, key="step-0 loss", before=LOSS, after=loss, reason=reason, **limits),
            Finding(rule="forward-look", decision="admit", key="finite losses", reason="all 8 losses are finite"),
        ]
        key = f"{launch_id}#{attempt}"
        self.put(
            "verdict",
            key,
            Verdict(look="forward", subject=key, recipe=recipe.digest(), decision=decision, findings=found),
        )

    def scored(self, launch_id: str, speed: float, leader: float, *, leads: bool, **more: Any) -> None:
        base = {"launch_id": launch_id, "attempt": 1, "valid": True, "decision": "admit", "tokens_per_s_per_gpu": speed}
        gains = {"gain": speed / leader - 1, "gain_over_baseline": speed / 1160 - 1, "new_leader": leads}
        self.put("score", launch_id, Score.model_validate({**base, "step_s": TOKENS / speed / GPUS, **gains, **more}))


def effective(recipe: Recipe) -> EffectiveConfig:
    facts: dict[str, Any] = {"data_parallel_size": GPUS // int(str(recipe.arguments["tensor_model_parallel_size"]))}
    versions = {"megatron-core": "0.16.1", "torch": "2.13.0+cpu"}
    return EffectiveConfig(arguments=recipe.arguments, env=recipe.env, facts=facts, versions=versions)


def findings_for(baseline: Recipe, recipe: Recipe) -> list[Finding]:
    out = []
    for c in differences(effective(baseline), effective(recipe)):
        rule, reason = RULES.get(c.key, ("uncovered", "no rule covers this final value: a person must review it"))
        decision: Decision = "review" if rule == "uncovered" else "admit"
        source = ["Megatron-LM arguments.validate_args, core 0.16.1"] if decision == "admit" else []
        out.append(Finding(rule=rule, decision=decision, key=c.key, before=c.before, after=c.after, reason=reason, source=source))
    return out


def split(launch_id: str, step_s: float, compute: float, host: float, comm: dict[str, float]) -> StepBreakdown:
    exposed = {k: v * step_s for k, v in comm.items()}
    rest = 1 - compute - host - sum(comm.values())
    return StepBreakdown(
        launch_id=launch_id,
        rank_steps=[
            RankStep(
                rank=r,
                step=9,
                step_s=step_s,
                compute_s=compute * step_s,
                exposed_comm_s=sum(exposed.values()),
                host_s=host * step_s,
                idle_s=rest * step_s,
                comm_by_kind=exposed,
            )
            for r in range(GPUS)
        ],
    )


def campaign_events(**workload: Any) -> list[Event]:
    """Return the events of a whole campaign that ships +234%."""
    work = {
        "model": "moe-4l-256h-8e",
        "dataset": "tiny-text@sha256:4f1c9a",
        "seq_len": 256,
        "global_batch": 16,
        "precision": "fp32",
        "seed": 1234,
        "steps": 8,
        "warmup_steps": 2,
        "gpus": GPUS,
        "hardware": "cpu (2 × 1 thread)",
    }
    cluster = Cluster(name="laptop", devices=2, devices_per_node=2, device=Device(kind="cpu", mem_gib=3.0))
    campaign = Campaign(
        id=CAMPAIGN_ID,
        name="quickstart",
        workload=Workload.model_validate({**work, **workload}),
        baseline=Recipe.model_validate({"stack": "mcore", "arguments": BASE, "env": {"OMP_NUM_THREADS": "1"}}),
        stack=StackSpec(name="mcore", version="0.16.1"),
        launcher=LauncherSpec(name="local", cluster=cluster),
        proposer=ProposerSpec(name="catalog"),
        budget=Budget(gpu_hours=0.75),
        gate=GateSpec(review="report_only"),
        register_lock="b5f1" * 16,
        source_file="configs/campaigns/quickstart.yaml",
    )
    book = Book(campaign)
    book.put("campaign", CAMPAIGN_ID, campaign)
    book.put("note", "1", {"text": "budget.gpu_hours given; noise.floor not given: 0.03 taken"})
    base = book.recipe({})
    for n, speed in enumerate((1149, 1171, 1160, 1152, 1168), start=1):
        book.run(f"l{n:02d}", "calibrate", base, speed=speed, seconds=58, purpose=f"baseline run {n}")
    runs = [f"l{n:02d}" for n in range(1, 6)]
    rounds = {"launches": runs, "mean": 1160.0, "sigma": 0.012, "band": 0.036, "busy": False}
    book.put(
        "calibration",
        "1",
        Calibration.model_validate({"round": 1, **rounds, "launch_gpu_hours": 0.032, "step0_loss": LOSS}),
    )
    book.put("breakdown", "l05", split("l05", 3.62, 0.35, 0.12, {"all_reduce": 0.37, "all_gather": 0.08, "broadcast": 0.04}))
    _search(book)
    return book.events


def _tried(book: Book, hid: str, lid: str, title: str, r: Recipe, *, said: float, error: float, was: float, now: float) -> None:
    book.suppose(hid, title, r, said, error)
    book.run(lid, "search", r, speed=now, seconds=26 + 20 * 1160 / now, hypothesis=hid)
    book.looked(lid, r)
    book.scored(lid, now, was, leads=now > was * 1.036)


def _search(book: Book) -> None:
    ep = {"tensor_model_parallel_size": 1, "expert_model_parallel_size": 2, "sequence_parallel": False}
    _tried(book, "h01", "l06", "layout tp2 → ep2", book.recipe(ep), said=0.70, error=0.20, was=1160, now=1930)
    bf16 = book.recipe({**ep, "grad_reduce_in_bf16": True})
    why = "it also turns off fp32 accumulation: gradients are summed in bf16"
    key = "grad_reduce_in_bf16"
    no = Finding(rule="MCORE-OBJ-041", decision="refuse", key=key, before=False, after=True, reason=why)
    book.suppose("h02", "gradients reduced in bf16", bf16, 0.10, 0.05, findings=[no])
    free = {**ep, "recompute_granularity": None}
    _tried(book, "h03", "l07", "recompute full → none", book.recipe(free), said=0.25, error=0.08, was=1930, now=2480)
    big = book.recipe({**free, "micro_batch_size": 8})
    book.suppose("h04", "micro batch 1 → 8", big, 0.20, 0.15)
    cause = "out of memory: 3.00 GiB limit, activations of 8 rows"
    book.run("l08", "search", big, seconds=9, status="oom", cause=cause, phase="forward", hypothesis="h04")
    more = {**free, "micro_batch_size": 4}
    _tried(book, "h05", "l09", "micro batch 1 → 4", book.recipe(more), said=0.20, error=0.15, was=2480, now=3290)
    book.run("l10", "check", book.recipe(more), seconds=6, purpose="component attention")
    test = {"component": "attention", "argument": "attention_backend", "old": "local", "new": "sdpa", "scope": "77ab"}
    errors = {"forward_error_old": 3.1e-7, "forward_error_new": 2.9e-7, "backward_error_old": 8.8e-7}
    done = {"passed": True, "dtype": "fp32", "tolerance_forward": 2e-6, "tolerance_backward": 2e-6}
    done |= {"backward_error_new": 9.4e-7, "launch_id": "l10"}
    passed = {**test, **errors, **done, "why": "no worse than 2 × the old error"}
    book.put("component", "attention", ComponentTest.model_validate(passed))
    _late_search(book, {**more, "attention_backend": "sdpa"})


def _late_search(book: Book, fused: dict[str, Any]) -> None:
    sdpa = book.recipe(fused)
    _tried(book, "h06", "l11", "attention local → sdpa", sdpa, said=0.12, error=0.06, was=3290, now=3520)
    overlap = book.recipe({**fused, "overlap_param_gather": True})
    book.suppose("h07", "gather parameters while computing", overlap, 0.06, 0.04)
    stuck = "no step for 120 s; both ranks wait in all_gather"
    book.run("l12", "search", overlap, seconds=150, status="hang", cause=stuck, phase="step 3", hypothesis="h07")
    wrong = book.recipe({**fused, "moe_shared_expert_overlap": True})
    book.suppose("h08", "overlap the shared expert", wrong, 0.08, 0.05)
    book.run("l13", "search", wrong, speed=3700, seconds=33, hypothesis="h08", loss=6.62)
    book.looked("l13", wrong, loss=6.62)
    book.scored("l13", 3700, 3520, leads=False, decision="refuse")
    final = book.recipe({**fused, "optimizer_cpu_offload": False})
    _tried(book, "h09", "l14", "optimizer stays on the device", final, said=0.10, error=0.05, was=3520, now=3880)
    book.put("breakdown", "l14", split("l14", 1.12, 0.71, 0.15, {"all_to_all": 0.11, "all_reduce": 0.02}))
    bucket = book.recipe({**final.arguments, "bucket_size": 160})
    _tried(book, "h10", "l15", "bucket 40 M → 160 M", bucket, said=0.02, error=0.02, was=3880, now=3905)
    lost = book.recipe({**final.arguments, "num_workers": 2})
    book.suppose("h11", "two loader workers", lost, 0.02, 0.02)
    gone = "allocation lost twice: node left the cluster"
    book.run("l16", "search", lost, seconds=20, status="infrastructure", cause=gone, hypothesis="h11", attempts=2)
    book.put("stop", "final", Stop(reason="nothing left is predicted to clear the band (best: +1.1% ±1.5%)"))
    _finish(book, final)


def _finish(book: Book, final: Recipe) -> None:
    base = book.campaign.baseline
    speeds = ((1161, 3866), (1154, 3879), (1159, 3865))
    for n, (old, new) in enumerate(speeds):
        book.run(f"l{17 + 2 * n}", "remeasure", base, speed=old, seconds=58, purpose=f"baseline, pair {n + 1}")
        book.run(f"l{18 + 2 * n}", "remeasure", final, speed=new, seconds=32, purpose=f"leader, pair {n + 1}")
        book.looked(f"l{18 + 2 * n}", final)
    means = {"leader": "l14", "baseline_mean": 1158.0, "leader_mean": 3870.0, "gain": 3870 / 1158 - 1, "band": 0.036}
    runs = {"baseline_launches": ["l17", "l19", "l21"], "leader_launches": ["l18", "l20", "l22"]}
    ended = {"decision": "admit", "kept_baseline": False, "reason": "gain above the band in fresh launches"}
    book.put("remeasurement", "final", Remeasurement.model_validate({**means, **runs, **ended}))
    review = "review  uncovered  optimizer_cpu_offload True → False  no rule covers this final value"
    shipped = {"launch_id": "l14", "recipe": final.digest(), "gain": 3870 / 1158 - 1, "kept_baseline": False}
    rest = {"reason": "remeasured gain above the band", "folder": "out/quickstart-7f3a", "open_reviews": [review]}
    book.put("shipment", "final", Shipment.model_validate({**shipped, **rest}))
