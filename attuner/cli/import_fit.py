"""Fits an imported recipe to another number of devices: the smallest change that the arithmetic allows and the gate's first look
does not refuse. Without a checkout to resolve with, by arithmetic alone, and that is said."""

from __future__ import annotations

from attuner.cli.gate import framed, tests_on_record
from attuner.config import load_register
from attuner.core.base import Value
from attuner.core.campaign import Adaptation, Campaign, StackSpec
from attuner.core.errors import Refused, UserError
from attuner.core.judgement import Finding
from attuner.core.recipe import EffectiveConfig, Recipe
from attuner.importing.layout import Candidate, LayoutOf, devices
from attuner.importing.model import Imported
from attuner.policy.gate import config_look
from attuner.ports import Stack
from attuner.settings import Settings
from attuner.steps.common import scope_of

TRIED = 12
"""Layouts that the gate is asked about."""
ASKED_FOR = ("fact:world_size", "actor_num_nodes", "actor_num_gpus_per_node")
"""What differs because other devices were asked for: two speeds are not to be compared here."""


class Fitter:
    """Fits a recipe; close it afterwards.

    Args:
        found: the recipe as imported.
        gpus: devices to fit it to.
        stack: with the checkouts to resolve by.
        resolves: whether they are all there.
    """

    def __init__(self, found: Imported, gpus: int, settings: Settings, *, stack: StackSpec, resolves: bool) -> None:
        if gpus < 1:
            raise UserError(f"--gpus {gpus}: must be at least 1")
        self._found, self._gpus, self._settings, self._spec = found, gpus, settings, stack
        self._resolves = resolves
        self._adapter: Stack | None = None
        self._baseline: EffectiveConfig | None = None
        self._before = found.gpus
        self.said: list[str] = []
        self.refused: dict[str, str] = {}

    def close(self) -> None:
        """End the resolver."""
        if self._adapter is not None:
            self._adapter.close()

    def fit(self) -> tuple[Imported, list[Adaptation]]:
        """Return the recipe for these devices, and what was changed.

        Raises:
            Refused: no change of few arguments fits; with the formula.
        """
        found, gpus = self._found, self._gpus
        layout = LayoutOf(found.stack, found.arguments)
        if not layout.told:
            self.said.append("the recipe names its model and doesn't describe it: only the sizes that it states are checked")
        if not layout.batch:
            self.said.append("the recipe states no global batch: whether the devices share it evenly is not checked")
        if not found.gpus or layout.broken(found.gpus):
            self._before = layout.smallest() or gpus
            where = (
                f"asks for {found.gpus} devices, which its layout does not fit" if found.gpus else "names no number of devices"
            )
            self.said.append(f"the source {where}: compared with it on {self._before}, the fewest that its layout allows")
        counted = devices(found.stack, found.arguments, gpus)
        broken = layout.broken(gpus)
        for number, candidate in enumerate(layout.candidates(gpus)):
            if number >= TRIED:
                break
            arguments = {**found.arguments, **{n: to for n, (_, to) in counted.items()}, **candidate.arguments()}
            if refusal := self._refusal(arguments):
                self.refused[str(candidate)] = refusal
                self.said.append(f"refused: {candidate}: {refusal}")
                continue
            self.said.append(f"{gpus} devices: {candidate}")
            why = broken or next(iter(self.refused.values()), "")
            return self._adapted(arguments, candidate, counted, why)
        reasons = dict.fromkeys([*([broken] if broken else []), *self.refused.values()])
        raise Refused(
            f"{found.source}: no change of at most three sizes fits {gpus} devices ({len(self.refused)} layouts refused): "
            f"{'; '.join(list(reasons)[:3])}"
        )

    def _adapted(
        self, arguments: dict[str, Value], candidate: Candidate, counted: dict[str, tuple[Value, Value]], why: str
    ) -> tuple[Imported, list[Adaptation]]:
        changes = [Adaptation(change=f"{n}: {a} → {b}", why=why) for n, (a, b) in candidate.changes.items()]
        if self._found.gpus != self._gpus:
            before = f"{self._found.gpus} → " if self._found.gpus else ""
            named = "".join(f"; {n}: {a} → {b}" for n, (a, b) in counted.items())
            asked = "asked for with --gpus; the global batch stays"
            changes.insert(0, Adaptation(change=f"devices: {before}{self._gpus}{named}", why=asked))
        return self._found.model_copy(update={"arguments": arguments, "gpus": self._gpus}), changes

    def _refusal(self, arguments: dict[str, Value]) -> str:
        """Return why the gate's first look refuses these arguments, '' if it doesn't or can't be asked."""
        recipe = Recipe(stack=self._found.stack, arguments=arguments, env=self._found.env)
        if not self._resolves or not resolvable(recipe.stack):
            text = "by arithmetic alone: no checkout to resolve it by (--source), so the gate was not asked"
            self.said += [text] if text not in self.said else []
            return ""
        try:
            findings = self._findings(recipe)
        except Refused as error:
            return str(error)
        for decision in ("refuse", "review"):
            strict = [f for f in findings if f.decision == decision]
            shown = "; ".join(f"{f.rule} {f.key}: {f.reason}" for f in strict[:2])
            if strict and decision == "refuse":
                return shown
            if strict:
                self.said.append(f"the gate's first look leaves {len(strict)} values to review: {shown}")
                return ""
        self.said.append("the gate's first look admits it")
        return ""

    def _findings(self, recipe: Recipe) -> list[Finding]:
        """Return what the first look says against the recipe as imported. Raises Refused for what can't be built."""
        from attuner.wiring import stack_of

        campaign = self._frame(recipe, self._gpus)
        self._adapter = self._adapter or stack_of(campaign)
        if self._baseline is None:
            counted = devices(self._found.stack, self._found.arguments, self._before)
            arguments = {**self._found.arguments, **{n: to for n, (_, to) in counted.items()}}
            before = Recipe(stack=recipe.stack, arguments=arguments, env=self._found.env)
            first = self._frame(before, self._before)
            try:
                self._baseline = self._adapter.resolve(before, first)
            except Refused as error:
                raise UserError(f"{self._found.source}: as it is, on {first.workload.gpus} devices: {error}") from None
        final = self._adapter.resolve(recipe, campaign)
        verdict = config_look(
            load_register(self._settings.rules_dir(), campaign.stack.name),
            self._baseline,
            final,
            subject="candidate",
            recipe=recipe.digest(),
            tests=tests_on_record(self._settings),
            scope=scope_of(self._baseline, campaign),
        )
        return [f for f in verdict.findings if f.key not in ASKED_FOR]

    def _frame(self, recipe: Recipe, gpus: int) -> Campaign:
        frame = framed(recipe, self._found.source, gpus=gpus, device="cuda")
        return frame.model_copy(update={"stack": self._spec})


def resolvable(stack: str) -> bool:
    """Tell whether something here resolves recipes of a stack."""
    from attuner.wiring import STACKS

    return stack in STACKS
