"""Laws of the second and third look in a campaign: both are on record before anything leads, checks decide what lies between."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lab import BASE, ID, MICRO, ROOT, Lab, PowerCut, begin, campaign, play, search, workload
from looks import Data, fingerprint, reclip, scale
from test_steps_crash import end_of

from attuner.core.errors import Transient, UserError
from attuner.core.events import History
from attuner.core.fingerprint import Fingerprint
from attuner.core.run import Attempt, Trial
from attuner.launchers.replay import Replay, Row
from attuner.policy.leader import open_reviews
from attuner.ports import JobState, RunFiles, RunResult
from attuner.runner import files as run_files
from attuner.stacks.mcore.stack import McoreStack
from attuner.steps.remeasure import plan_remeasure
from attuner.steps.ship import decide_shipment

FASTER = Row(match={"micro_batch_size": 4}, step_s=0.5)
REST = Row(step_s=1.0, jitter=0.005)
REQUIRED = {"probe": "required"}
BF16: dict[str, Any] = {
    "workload": workload(precision="bf16", warmup_steps=2).data(),
    "baseline": {"stack": "mcore", "arguments": {**BASE, "bf16": True}},
}
Seen = Callable[[str, dict[str, Any], Data], Data | None]


def healthy(launch_id: str, arguments: dict[str, Any], data: Data) -> Data | None:
    return data


class Probed(Lab):
    """A lab whose runs leave a fingerprint: a healthy one, as `seen` changes it for a launch and its arguments."""

    seen: Seen = staticmethod(healthy)

    def __post_init__(self) -> None:
        super().__post_init__()
        (self.rules / "mcore" / "tolerances.yaml").write_text((ROOT / "rules" / "mcore" / "tolerances.yaml").read_text())
        told = type(self).seen

        class Watched(type(self.stack)):  # type: ignore[misc]
            def read(self, files: RunFiles) -> RunResult:
                found: RunResult = super().read(files)
                job = run_files.read_json(Path(files.folder) / run_files.JOB)
                arguments = job["arguments"]
                precision = "bf16" if arguments.get("bf16") else "fp32"
                data = told(job["launch_id"], arguments, fingerprint(precision))
                if data is None or not found.steps:
                    return found
                return found.model_copy(update={"fingerprint": Fingerprint.model_validate(data), "unseen": ""})

        self.stack = Watched(self.replay)


def probed(tmp_path: Path, seen: Seen = healthy, *rows: Row, **more: Any) -> Probed:
    kind = type("Told", (Probed,), {"seen": staticmethod(seen)})
    made: Probed = kind(tmp_path, [*rows, FASTER, REST], **more)
    return made


def candidates(spoil: Callable[[Data], object], *, only: str = "") -> Seen:
    """Spoil what the faster candidate leaves; with `only`, in that precision alone."""

    def seen(launch_id: str, arguments: dict[str, Any], data: Data) -> Data | None:
        if arguments["micro_batch_size"] == 4 and only in ("", data["precision"]):
            spoil(data)
        return data

    return seen


def unreduced(data: Data) -> None:
    data["steps"][0]["grad_replicas"] = ["qkv"]


def router(share: float) -> Callable[[Data], None]:
    def spoil(data: Data) -> None:
        scale(data, 1 + share, "router")
        reclip(data)

    return spoil


def trial_of(history: History, launch_id: str) -> Trial:
    found = history.trial(launch_id)
    assert found is not None
    return found


# ------------------------------------------------------------------------------------------------- both looks, always


def test_every_scored_launch_has_both_looks_on_record_before_its_score(tmp_path: Path) -> None:
    made = probed(tmp_path)
    shipment = play(made.kit(), campaign(MICRO, gate=REQUIRED))
    assert not shipment.kept_baseline
    order = [(e.kind, e.key) for e in made.history().events]
    for score in made.history().scores():
        key = f"{score.launch_id}#{score.attempt}"
        looks = made.history().looks(score.launch_id, score.attempt)
        assert [(v.look, v.decision) for v in looks] == [("forward", "admit"), ("update", "admit")]
        at = order.index(("score", score.launch_id))
        assert order.index(("verdict", key)) < order.index(("verdict", f"{key}:update")) < at


def test_a_trial_keeps_what_the_probe_saw(tmp_path: Path) -> None:
    made = probed(tmp_path)
    begin(made.kit(), campaign(gate=REQUIRED))
    assert trial_of(made.history(), "l01").fingerprint == Fingerprint.model_validate(fingerprint())


def test_a_refusal_of_the_third_look_never_leads_however_fast(tmp_path: Path) -> None:
    made = probed(tmp_path, candidates(unreduced))
    shipment = play(made.kit(), campaign(MICRO, gate=REQUIRED))
    found = made.history().scores()[-1]
    assert (found.valid, found.decision, found.new_leader) == (True, "refuse", False)
    assert [v.decision for v in made.history().looks("l06", 1)] == ["admit", "refuse"]
    assert shipment.kept_baseline


def test_a_run_that_the_probe_left_nothing_of_is_for_a_person_and_never_leads(tmp_path: Path) -> None:
    made = probed(tmp_path, lambda name, given, data: None if given["micro_batch_size"] == 4 else data)
    shipment = play(made.kit(), campaign(MICRO, gate=REQUIRED))
    assert made.history().scores()[-1].decision == "review"
    assert shipment.kept_baseline
    assert any("third look" in line for line in open_reviews(made.history(), "l06"))


def test_a_leader_that_fails_the_third_look_when_it_is_measured_again_does_not_ship(tmp_path: Path) -> None:
    def seen(launch_id: str, arguments: dict[str, Any], data: Data) -> Data | None:
        if launch_id > "l06" and arguments["micro_batch_size"] == 4:
            unreduced(data)
        return data

    made = probed(tmp_path, seen)
    shipment = play(made.kit(), campaign(MICRO, gate=REQUIRED))
    assert made.history().scores()[5].new_leader
    assert shipment.kept_baseline
    assert "gradient replicas" in shipment.reason


@pytest.mark.parametrize(("key", "name"), [("l06#1", "second"), ("l06#1:update", "third")])
def test_nothing_ships_without_its_looks_on_record(tmp_path: Path, key: str, name: str) -> None:
    made = probed(tmp_path)
    play(made.kit(), campaign(MICRO, gate=REQUIRED))
    events = [e for e in made.history().events if (e.kind, e.key) != ("verdict", key)]
    shipment = decide_shipment(History(events), tmp_path)
    assert shipment.kept_baseline
    assert f"the {name} look at l06 is not on record" in shipment.reason


def test_a_replayed_table_without_gradients_says_that_it_was_not_looked_at(tmp_path: Path) -> None:
    made = Lab(tmp_path, [FASTER, REST])
    assert not play(made.kit(), campaign(MICRO)).kept_baseline
    found = made.history().looks("l06", 1)[1]
    assert found.decision == "admit"
    assert "not looked: a replayed table holds no gradients" in found.findings[0].reason


# ------------------------------------------------------------------------------------------------- the baseline itself


def test_a_defect_that_the_baseline_carries_is_its_own_review_and_the_campaign_goes_on(tmp_path: Path) -> None:
    def carried(launch_id: str, arguments: dict[str, Any], data: Data) -> Data:
        unreduced(data)
        return data

    made = probed(tmp_path, carried)
    shipment = play(made.kit(), campaign(MICRO, gate=REQUIRED))
    assert [s.decision for s in made.history().scores()][:6] == ["review"] * 5 + ["admit"]
    assert not shipment.kept_baseline


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda d: (scale(d, 0.0), reclip(d)), "the gradient is zero"),
        (lambda d: d.update(not_finite=["step0.qkv.grad_norm"]), "not finite: step0.qkv.grad_norm"),
        (lambda d: d.update(steps=[]), "the probe saw no step"),
    ],
)
def test_a_baseline_that_is_worthless_to_compare_with_ends_the_campaign_at_once(
    tmp_path: Path, spoil: Callable[[Data], object], words: str
) -> None:
    def seen(launch_id: str, arguments: dict[str, Any], data: Data) -> Data:
        spoil(data)
        return data

    made = probed(tmp_path, seen)
    with pytest.raises(UserError, match=words):
        begin(made.kit(), campaign(gate=REQUIRED))


def test_a_baseline_that_does_not_repeat_itself_is_no_baseline(tmp_path: Path) -> None:
    def seen(launch_id: str, arguments: dict[str, Any], data: Data) -> Data:
        if launch_id == "l03":
            data["steps"][0]["batch"].update(inputs="other", labels="other")
        return data

    made = probed(tmp_path, seen)
    with pytest.raises(UserError, match=r"baseline: l03: .*batch token ids of step 0.*the data order moved"):
        begin(made.kit(), campaign(gate=REQUIRED))


# ------------------------------------------------------------------------------------------------- check launches


def bf16(**gate: Any) -> Any:
    return campaign(MICRO, **BF16, gate={**REQUIRED, **gate})


def test_a_check_launch_in_fp32_admits_what_bf16_left_open(tmp_path: Path) -> None:
    made = probed(tmp_path, candidates(router(0.06), only="bf16"))
    shipment = play(made.kit(), bf16())
    history = made.history()
    checks = [x for x in history.launches() if x.kind == "check"]
    assert [(x.id, x.purpose[:14], x.steps) for x in checks] == [("l07", "fp32 check of ", 3), ("l08", "fp32 check of ", 3)]
    assert [history.recipe(x.recipe).arguments.get("bf16") for x in checks] == [None, None]
    assert [len([s for s in trial_of(history, x.id).steps if s.kind != "profiled"]) for x in checks] == [3, 3]
    assert all(history.charge(x.id) > 0 for x in checks)
    decided = {f.key: f for f in history.looks("l06", 1)[1].findings}["gradient norm router"]
    assert decided.decision == "admit"
    assert "check launch l08 against l07" in decided.reason
    assert [v.decision for v in history.looks("l08", 1)] == ["admit", "admit"]
    assert not shipment.kept_baseline  # and the leader's launches of the re-measurement need no check of their own


def test_a_check_launch_refuses_what_fp32_shows_to_be_no_rounding(tmp_path: Path) -> None:
    made = probed(tmp_path, candidates(router(0.06)))
    shipment = play(made.kit(), bf16())
    found = {f.key: f for f in made.history().looks("l06", 1)[1].findings}["gradient norm router"]
    assert found.decision == "refuse"
    assert "both in fp32: gradient norm router" in found.reason
    assert "auxiliary loss" in found.cause
    assert shipment.kept_baseline


def test_in_fp32_beyond_the_limit_is_refused_although_it_is_within_the_outer_one(tmp_path: Path) -> None:
    def seen(launch_id: str, arguments: dict[str, Any], data: Data) -> Data:
        if arguments["micro_batch_size"] == 4:
            router(0.06 if data["precision"] == "bf16" else 5e-5)(data)
        return data

    made = probed(tmp_path, seen)
    play(made.kit(), bf16())
    assert made.history().scores()[5].decision == "refuse"


def test_the_baselines_check_is_made_once_and_a_recipes_too(tmp_path: Path) -> None:
    again = {"group": "recompute", "arguments": {"recompute_granularity": None}, "parent": "l01"}

    def seen(launch_id: str, arguments: dict[str, Any], data: Data) -> Data:
        if data["precision"] == "bf16" and arguments != {**BASE, "bf16": True}:
            router(0.06)(data)
        return data

    made = probed(tmp_path, seen)
    play(made.kit(), campaign(MICRO, again, **BF16, gate=REQUIRED))
    purposes = [x.purpose for x in made.history().launches() if x.kind == "check"]
    assert len(purposes) == len(set(purposes)) == 3


@pytest.mark.parametrize(
    ("gate", "rows", "words"),
    [
        ({"checks": "manual"}, (), "gate.checks is manual"),
        (
            {},
            (Row(match={"bf16": None, "micro_batch_size": 4}, outcome="oom", detail="no room"),),
            "failed (oom: no room)",
        ),
    ],
    ids=["manual", "it fails"],
)
def test_without_a_check_launch_it_stays_for_a_person(
    tmp_path: Path, gate: dict[str, Any], rows: tuple[Row, ...], words: str
) -> None:
    made = probed(tmp_path, candidates(router(0.06), only="bf16"), *rows)
    kit = made.kit()
    begin(kit, bf16(**gate))
    search(kit)
    found = made.history().scores()[5]
    assert (found.decision, found.new_leader) == ("review", False)
    decided = {f.key: f for f in made.history().looks("l06", 1)[1].findings}["gradient norm router"]
    assert words in decided.reason
    assert plan_remeasure(kit, ID) == []


def test_without_budget_for_a_check_launch_it_stays_for_a_person(tmp_path: Path) -> None:
    least = 11 * 1.5 * 2 * 10 / 3600 + 1e-9
    others = [{"group": "open", "arguments": {"bucket_size": n}, "parent": "l01"} for n in (1, 2)]
    made = probed(tmp_path, candidates(router(0.06), only="bf16"))
    kit = made.kit()
    begin(kit, campaign(*others, {**MICRO, "parent": "l01"}, **BF16, gate=REQUIRED, budget={"gpu_hours": least}))
    search(kit)
    assert [x.kind for x in made.history().launches()].count("check") == 0
    decided = {f.key: f for f in made.history().looks("l08", 1)[1].findings}["gradient norm router"]
    assert decided.decision == "review"
    assert "no check launch: budget" in decided.reason


def test_a_check_is_not_paid_for_where_it_could_not_admit(tmp_path: Path) -> None:
    def both(data: Data) -> None:
        router(0.06)(data)
        unreduced(data)

    made = probed(tmp_path, candidates(both, only="bf16"))
    play(made.kit(), bf16())
    assert [x.kind for x in made.history().launches()].count("check") == 0


def test_in_fp32_there_is_no_higher_precision_to_ask(tmp_path: Path) -> None:
    made = probed(tmp_path, candidates(router(5e-5)))
    play(made.kit(), campaign(MICRO, gate=REQUIRED))
    assert made.history().scores()[5].decision == "review"
    assert [x.kind for x in made.history().launches()].count("check") == 0


class Cut(Replay):
    """Contact is lost once, while the baseline's check runs."""

    cut = False

    def poll(self, attempt: Attempt) -> JobState:
        if attempt.launch_id == "l07" and not self.cut:
            self.cut = True
            raise Transient("contact lost")
        return super().poll(attempt)


def test_a_check_that_lost_contact_is_run_once_when_the_score_is_asked_again(tmp_path: Path) -> None:
    made = probed(tmp_path, candidates(router(0.06), only="bf16"))
    cut = Cut(made.table, made.clock)
    made.stack.replay = cut
    kit = made.kit(launcher=cut)
    begin(kit, bf16())
    with pytest.raises(Transient):
        search(kit)
    assert made.history().looks("l06", 1) == []
    play(made.kit(launcher=cut), bf16())
    assert made.history().scores()[5].decision == "admit"
    assert cut.submitted.count(f"{ID}-l07-a1") == 1


@pytest.mark.slow  # eight seconds: a campaign for every record
def test_a_crash_anywhere_between_a_run_and_its_score_pays_for_no_check_twice(tmp_path: Path) -> None:
    whole = probed(tmp_path / "whole", candidates(router(0.06), only="bf16"))
    play(whole.kit(), bf16())
    names = [(e.kind, e.key) for e in whole.history().events]
    for lives in range(names.index(("trial", "l06")), names.index(("score", "l06")) + 2):
        made = probed(tmp_path / str(lives), candidates(router(0.06), only="bf16"))
        with pytest.raises(PowerCut):
            play(made.kit(lives=lives), bf16())
        play(made.kit(), bf16())
        assert end_of(made.history()) == end_of(whole.history()), names[lives]
        assert made.replay.submitted == whole.replay.submitted, names[lives]


# ------------------------------------------------------------------------------------------------- the stack


def test_a_twin_in_fp32_names_no_low_precision_and_keeps_the_rest() -> None:
    stack, recipe = McoreStack(), campaign().baseline
    assert stack.in_fp32(recipe) is None
    low = recipe.changed({"bf16": True, "params_dtype": "bf16", "pipeline_dtype": "bf16", "grad_reduce_in_fp32": True})
    twin = stack.in_fp32(low)
    assert twin is not None
    assert twin.arguments == {**recipe.arguments, "grad_reduce_in_fp32": True}
    sharded = low.changed({"optimizer_cpu_offload": True, "use_distributed_optimizer": True})
    assert stack.in_fp32(sharded) is None


@pytest.mark.parametrize("text", ["{", "[]", '{"format": 1}', '{"format": 2}'])
def test_a_damaged_fingerprint_is_no_fingerprint_and_says_why(tmp_path: Path, text: str) -> None:
    files = RunFiles.model_validate({"folder": str(tmp_path), "stamp": {"outcome": "ok"}})
    assert "left no fingerprint.json" in McoreStack().read(files).unseen
    (tmp_path / run_files.FINGERPRINT).write_text(text)
    found = McoreStack().read(files)
    assert found.fingerprint is None
    assert "fingerprint.json can't be read" in found.unseen
