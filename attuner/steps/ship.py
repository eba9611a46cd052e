"""ship: write the recipe that won, with its report, and put it on the board; without admitting looks the baseline ships."""

from __future__ import annotations

from pathlib import Path

from attuner.config import REPLAY
from attuner.core.errors import Refused
from attuner.core.events import History
from attuner.core.judgement import Note, Shipment, Verdict
from attuner.policy import leader, people
from attuner.ports import Kit
from attuner.report import html, markdown
from attuner.report.details import Context
from attuner.report.facts import gather
from attuner.report.recipe_yaml import recipe_yaml
from attuner.steps.common import check_lock, past, put
from attuner.steps.context import context_of
from attuner.steps.remeasure import UNAFFORDABLE


def ship(kit: Kit, campaign_id: str) -> Shipment:
    """Record what ships and write recipe.yaml, report.md and report.html into the campaign's folder.

    Raises:
        Refused: the re-measurement of an existing leader is missing.
        RegisterChanged: rules/ or the judging code moved since birth.
    """
    history = past(kit, campaign_id)
    known = history.shipment()
    if known is None:
        check_lock(kit, history.campaign())
        known = on_paper(decide_shipment(history, kit.folder), history)
        put(kit, campaign_id, "shipment", "final", known)
    write_files(kit, campaign_id)
    return known


def decide_shipment(history: History, folder: Path) -> Shipment:
    """Return what ships. Pure: a recipe other than the baseline needs admitting looks from score and from remeasure."""
    campaign, again, best = history.campaign(), history.remeasurement(), leader.shippable(history)
    waits = leader.waiting(history)
    keep = Shipment(
        launch_id=_first_calibration(history),
        recipe=campaign.baseline.digest(),
        gain=0.0,
        kept_baseline=True,
        reason="no launch beat the baseline by more than the band",
        folder=str(folder),
        open_reviews=[
            x for s in history.scores() if s in waits or s.new_leader for x in leader.open_reviews(history, s.launch_id)
        ],
    )
    end = people.cancelled(history)
    if end is not None:
        return keep.model_copy(update={"reason": f"cancelled by {end.by}" + (f": {end.why}" if end.why else "")})
    if best is None:
        if waits or any(s.new_leader for s in history.scores()):
            return keep.model_copy(
                update={"reason": f"what beat the baseline waits for a person's review (gate.review: {campaign.gate.review})"}
            )
        return keep
    unaffordable = history.find("note", UNAFFORDABLE, Note)
    if again is None and unaffordable is not None:
        return keep.model_copy(update={"reason": unaffordable.text})
    if again is None:
        raise Refused(f"{campaign.id}: {best.launch_id} leads but was not re-measured; run remeasure first")
    if again.kept_baseline or again.leader != best.launch_id or again.decision == "refuse":
        return keep.model_copy(update={"reason": again.reason or "the re-measured launch is not the leader"})
    launch = history.launch(best.launch_id)
    if launch is None or people.decided(history, best.launch_id, best.decision) != "admit":
        return keep.model_copy(update={"reason": f"the looks at {best.launch_id} do not admit it"})
    unlooked = _without_looks(history, [best.launch_id, *again.leader_launches])
    if unlooked:
        return keep.model_copy(update={"reason": unlooked})
    return Shipment(
        launch_id=best.launch_id,
        recipe=launch.recipe,
        gain=again.gain,
        kept_baseline=False,
        reason="admitted by every look, and faster by more than the band when re-measured",
        folder=str(folder),
        open_reviews=leader.open_reviews(history, best.launch_id),
    )


def on_paper(shipment: Shipment, history: History) -> Shipment:
    """Return the shipment, marked as not to be shipped where it was found on a replayed table."""
    campaign = history.campaign()
    if campaign.stack.name != REPLAY:
        return shipment
    table = Path(campaign.launcher.table).name
    why = f"replayed from {table}: nothing was trained, and the second and the third look were not available"
    return shipment.model_copy(update={"on_paper": why})


def _without_looks(history: History, launches: list[str]) -> str:
    """Return which launch lacks an admitting second or third look, or ''."""
    for launch_id in launches:
        trial = history.trial(launch_id)
        found: dict[str, Verdict] = {v.look: v for v in history.looks(launch_id, trial.attempt)} if trial else {}
        for look, name in (("forward", "second"), ("update", "third")):
            if not people.stands(history, found.get(look)):
                said = found[look].decision if look in found else "not on record"
                return f"the {name} look at {launch_id} is {said}: nothing ships without it"
    return ""


def _first_calibration(history: History) -> str:
    calibration = history.calibration()
    return calibration.launches[0] if calibration else ""


def recipe_name(shipment: Shipment) -> str:
    """Return the name of the file that holds the recipe: one found on paper must not pass for one that ships."""
    return "not-shippable.recipe.yaml" if shipment.on_paper else "recipe.yaml"


def write_files(kit: Kit, campaign_id: str) -> None:
    """Write recipe.yaml, report.md and report.html; writing them again changes nothing on record."""
    history = past(kit, campaign_id)
    shipment = history.shipment()
    recipe = history.recipe(shipment.recipe) if shipment else history.campaign().baseline
    kit.folder.mkdir(parents=True, exist_ok=True)
    if shipment:
        head = f"# shipped by attuner campaign {campaign_id}, recipe {recipe.digest()[:12]}\n"
        if shipment.on_paper:
            head = f"# NOT SHIPPABLE: {shipment.on_paper}\n# attuner campaign {campaign_id}, recipe {recipe.digest()[:12]}\n"
        (kit.folder / recipe_name(shipment)).write_text(head + recipe_yaml(recipe), encoding="utf-8")
    write_report(history, kit.folder, context_of(history, kit.rules_dir, kit.prices_file))


def write_report(history: History, folder: Path, context: Context | None = None) -> list[Path]:
    """Write report.md and report.html from what is on record; return their paths."""
    facts = gather(history.events, context)
    paths = [folder / "report.md", folder / "report.html"]
    for path, text in zip(paths, (markdown.render(facts), html.render(facts)), strict=True):
        path.write_text(text, encoding="utf-8")
    return paths
