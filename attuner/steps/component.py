"""component: run old and new of a same-math swap side by side, outside any campaign, and put the outcome on record for all.

Tests made here stand under their own name in the ledger. Every campaign of this ledger sees them; one counts only at the same
shapes, precision, hardware and versions (`scope_of`).
"""

from __future__ import annotations

from attuner.core.base import Value
from attuner.core.campaign import Campaign
from attuner.core.errors import Refused
from attuner.core.events import History, attempt_key
from attuner.core.judgement import ComponentTest
from attuner.core.recipe import EffectiveConfig, Recipe
from attuner.core.run import Attempt
from attuner.ports import Kit
from attuner.steps.common import SHARED_TESTS as SHARED
from attuner.steps.common import put, scope_of, shared_tests
from attuner.steps.launch import follow, settle


def tested(kit: Kit, key: tuple[str, str, Value, Value], scope: str) -> ComponentTest | None:
    """Return the test of (component, argument, old, new) at this scope, if it is on record."""
    for test in reversed(shared_tests(kit)):
        if (test.component, test.argument, test.old, test.new, test.scope) == (*key, scope):
            return test
    return None


def component_alone(
    kit: Kit, campaign: Campaign, candidate: Recipe, effective: EffectiveConfig, *, swap: tuple[str, str, Value, Value]
) -> ComponentTest:
    """Run one test as a job of its own, charge it and record what it measured.

    Args:
        kit: adapters wired for `campaign`, whose id is SHARED_TESTS; the ledger's lease is held.
        campaign: workload and cluster that frame the recipe.
        candidate: the recipe with the change in it.
        effective: its final values; they give the scope.
        swap: component, argument, old and new value.

    Raises:
        Refused: the job did not come to its end; the line says why.
    """
    component, argument, old, new = swap
    scope = scope_of(effective, campaign)
    known = tested(kit, swap, scope)
    if known is not None:
        return known
    number = len(History(kit.ledger.history(SHARED)).all("attempt", Attempt)) + 1
    name = f"c{number:02d}"
    attempt = Attempt(
        launch_id=name,
        number=1,
        submission_id=f"{SHARED}-{name}-a1",
        folder=str(kit.folder / "runs" / f"{name}-a1"),
        submitted_at=kit.clock.now(),
    )
    put(kit, SHARED, "attempt", attempt_key(name, 1), attempt)
    asked = [component, argument, str(old), str(new)]
    inputs = {"rows": "", "first_row": 0, "steps": 2, "load": None, "save": None, "component": asked}
    job = kit.stack.command(candidate.changed({argument: old}), campaign, kind="check", profile_steps=0, inputs=inputs)
    attempt, state = follow(kit, SHARED, attempt, job)
    files = kit.launcher.files(attempt)
    put(kit, SHARED, "settled", attempt_key(name, 1), settle(files, attempt, gpus=job.gpus, state=state))
    result = kit.stack.read(files)
    if result.status != "ok":
        raise Refused(f"component test of {argument} {old}→{new}: {result.status} ({result.phase or 'start'}): {result.cause}")
    test = ComponentTest.model_validate(
        {
            **kit.stack.component(files),
            **{"component": component, "argument": argument, "old": old, "new": new},
            **{"scope": scope, "launch_id": f"{SHARED}/{name}"},
        }
    )
    put(kit, SHARED, "component", f"{component}:{argument}:{old}:{new}:{scope[:12]}", test)
    return test
