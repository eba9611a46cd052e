"""Judges the study's runs with the project's own looks and writes the tables: one line a run, one line a verdict, and the
confusion table. Nothing here decides anything: it calls the register, `forward_look` and `update_look`, and counts."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from attuner.config import load_register, load_tolerances
from attuner.core.campaign import Campaign, Cluster, Device, LauncherSpec, Prepare, ProposerSpec, StackSpec
from attuner.core.errors import Refused
from attuner.core.fingerprint import Fingerprint
from attuner.core.judgement import Decision, Finding, Verdict, worst
from attuner.core.recipe import Recipe, Workload
from attuner.core.run import Evidence, StepRecord
from attuner.policy.forward import forward_look, paper_gate
from attuner.policy.gate import config_look
from attuner.policy.update import update_look
from attuner.policy.zones import margin
from attuner.runner import files
from attuner.settings import load_settings
from attuner.stacks.mcore.stack import McoreStack
from attuner.steps.common import scope_of
from attuner.steps.looks import Check, Looks, settled, worth_a_check

from . import workload
from .plan import Case

LOOKS = ("config", "forward", "update")


def evidence(case: Case, work: Path) -> Evidence:
    """Read what a run left."""
    folder = work / "runs" / case.name
    known = StepRecord.model_fields
    steps = [
        StepRecord.model_validate({k: v for k, v in x.items() if k in known}) for x in files.read_jsonl(folder / files.STEPS)
    ]
    path = folder / files.FINGERPRINT
    seen = Fingerprint.model_validate(files.read_json(path)) if path.exists() else None
    return Evidence(label=case.name, recipe="", steps=steps, fingerprint=seen, precision=case.precision)


class FirstLook:
    """The first look, by the stack's own resolver and register."""

    def __init__(self) -> None:
        self._stack = McoreStack()
        self._rules = load_settings(project=".").rules_dir()
        self._register = load_register(self._rules, "mcore")
        self._known: dict[str, Any] = {}

    def judge(self, case: Case) -> Verdict:
        """Judge a case's arguments against its baseline's."""
        campaign = _frame(case)
        candidate = Recipe(stack="mcore", arguments=case.arguments())
        base = self._resolve(campaign, campaign.baseline)
        try:
            final = self._resolve(campaign, candidate)
        except Refused as error:
            finding = Finding(rule="layout", decision="refuse", reason=str(error))
            return Verdict(look="config", subject=case.name, recipe="", decision="refuse", findings=[finding])
        scope = scope_of(base, campaign)
        return config_look(self._register, base, final, subject=case.name, recipe="", tests=[], scope=scope)

    def _resolve(self, campaign: Campaign, recipe: Recipe) -> Any:
        key = f"{recipe.digest()} {campaign.workload.gpus}"
        if key not in self._known:
            self._known[key] = self._stack.resolve(recipe, campaign)
        return self._known[key]

    def close(self) -> None:
        """End the resolver."""
        self._stack.close()


def _frame(case: Case) -> Campaign:
    """Return the campaign in which a case is a candidate."""
    ranks = case.ranks
    work = Workload(
        model="study",
        dataset="python-stdlib",
        seq_len=workload.SEQ,
        global_batch=workload.GBS,
        precision=case.precision,
        seed=1234,
        steps=workload.STEPS,
        warmup_steps=2,
        gpus=ranks,
        hardware="cpu",
    )
    cluster = Cluster(name="study", devices=ranks, devices_per_node=ranks, device=Device(kind="cpu"))
    return Campaign(
        name="study",
        workload=work,
        baseline=Recipe(stack="mcore", arguments=case.baseline().arguments()),
        stack=StackSpec(name="mcore", version="0.16.1"),
        launcher=LauncherSpec(name="ray_jobs", cluster=cluster),
        proposer=ProposerSpec(name="scripted"),
        prepare=Prepare(checkpoint="the same one"),
        source_file="study",
    )


@dataclass
class Judged:
    """One candidate's verdicts."""

    case: Case
    verdicts: dict[str, Verdict]
    paper: Decision
    failed: str = ""
    check: Finding | None = None
    """What an fp32 check launch says, where it is all that is open: the study has the run in fp32 already."""

    def decision(self) -> tuple[Decision, str]:
        """Return what the gate says in the end, and which look refuses (or leaves it to a person)."""
        final = dict(self.verdicts)
        if self.check:
            final |= {look: settled(self.verdicts[look], self.check) for look in LOOKS[1:]}
        decision = worst([verdict.decision for verdict in final.values()])
        if decision == "admit":
            return decision, ""
        by = next(look for look in LOOKS if look in final and final[look].decision == decision)
        return decision, "check" if self.verdicts[by].decision != decision else by

    def worth_a_check(self) -> bool:
        """Tell whether a campaign would make a check launch for it."""
        return worth_a_check(self.findings())

    def line(self) -> dict[str, Any]:
        """Return its line of verdicts.csv."""
        case, found = self.case, self.telling()
        says = {look: self.verdicts[look].decision if look in self.verdicts else "" for look in LOOKS}
        decision, by = self.decision()
        numbers = {f"{look}_margin": _worst_margin(self.verdicts.get(look)) for look in LOOKS[1:]}
        return {
            "run": case.name,
            "kind": case.kind,
            "fault": case.fault,
            "variant": case.variant,
            "layout": case.layout,
            "lever": case.lever,
            "precision": case.precision,
            "batch": case.batch,
            **says,
            "check": self.check.decision if self.check else "",
            "failed": self.failed,
            "decision": decision,
            "decided_by": by,
            "rule": found.rule if found else "",
            "key": found.key if found else "",
            "before": found.before if found else "",
            "after": found.after if found else "",
            "deviation": number(found.deviation) if found else "",
            "limit": number(found.tolerance) if found else "",
            "outer": number(found.outer) if found else "",
            **numbers,
            "cause": found.cause if found else "",
            "paper": self.paper,
        }

    def findings(self) -> list[Finding]:
        """Return what the later looks found."""
        return [f for look in LOOKS[1:] if look in self.verdicts for f in self.verdicts[look].findings]

    def telling(self) -> Finding | None:
        """Return the finding that decides; for an admitted run, the one that came nearest to its limit."""
        decision, by = self.decision()
        if by and by != "check":
            return next(f for f in self.verdicts[by].findings if f.decision == decision)
        if by == "check":
            return next(f for f in self.findings() if f.check)
        measured = [f for f in self.findings() if f.deviation is not None]
        return max(measured, key=margin, default=None)


def _worst_margin(verdict: Verdict | None) -> str:
    """Return the largest part of its limit that any measured value of a look used."""
    found = [margin(f) for f in verdict.findings if f.deviation is not None] if verdict else []
    return number(max(found)) if found else ""


def number(value: float | None) -> str:
    """Return a number with three digits, or nothing."""
    return "" if value is None else f"{value:.3g}"


def judge_all(cases: Sequence[Case], work: Path) -> list[Judged]:
    """Judge every candidate among the cases whose baseline is there too."""
    limits = load_tolerances(load_settings(project=".").rules_dir(), "mcore")
    read = {case: evidence(case, work) for case in cases if case.kind == "baseline"}
    first, out = FirstLook(), []
    for case in cases:
        reference = [read[b] for r in (0, 1) if (b := case.baseline(r)) in read and b != case]
        if not reference or (case.kind == "baseline" and case.replicate == 0):
            continue
        mine = read.get(case) or evidence(case, work)
        verdicts = {"config": first.judge(case)}
        failed = "" if mine.steps and (work / "runs" / case.name / files.DONE).exists() else "the run failed"
        if not failed:
            verdicts["forward"] = forward_look(reference, mine, limits=limits, subject=case.name, recipe="")
            verdicts["update"] = update_look(reference, mine, limits=limits, subject=case.name, recipe="")
        paper = worst([verdicts["config"].decision, "refuse" if failed else paper_gate(reference, mine).decision])
        out.append(Judged(case, verdicts, paper, failed))
    first.close()
    known = {j.case: j for j in out}
    for judged in out:
        twin = known.get(replace(judged.case, precision="fp32"))
        if judged.case.precision != "fp32" and twin and not twin.failed and judged.worth_a_check():
            looks = Looks(twin.verdicts["forward"], twin.verdicts["update"])
            judged.check = Check(twin.case.baseline().name, twin.case.name, looks).said()
    return out
