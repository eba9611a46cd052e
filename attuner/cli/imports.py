"""`attuner import SOURCE -o recipe.yaml`: a baseline recipe from what others wrote; what could not be told is said, nothing runs.
`--gpus N` fits it to another number of devices with the smallest change that the gate lets through."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from attuner.cli.gate import framed
from attuner.cli.import_fit import Fitter
from attuner.config import load_arguments, load_recipe
from attuner.core.campaign import Adaptation, Published, StackSpec
from attuner.core.errors import UserError
from attuner.core.recipe import Recipe
from attuner.importing.flags import Vocabulary
from attuner.importing.model import TITLES, Imported
from attuner.importing.options import options_in
from attuner.importing.reading import read_source
from attuner.importing.recipe_text import recipe_text
from attuner.importing.script import Asked
from attuner.settings import Settings, load_settings

SHOWN = 12
"""Notices of one kind that are printed; the file and --json have all that matter."""
APART = ("--sglang-", "--router-")
"""Options that slime hands to a parser of the rollout engine's own."""


def import_recipe(arguments: argparse.Namespace) -> int:
    """Read the source, fit it to the devices asked for, write the recipe and say how it was understood."""
    settings = load_settings(project=arguments.project)
    out = Path(arguments.out)
    if out.exists() and not arguments.force:
        raise UserError(f"{out}: exists; --force writes over it")
    published = _published(arguments)
    asked = Asked(_preset(arguments.set), arguments.launch)
    vocabularies = Vocabularies(settings, source=arguments.source, slime_source=arguments.slime_source)
    found = read_source(Path(arguments.file), vocabularies, form=arguments.format, root=arguments.root, asked=asked)
    adaptations: list[Adaptation] = []
    said: list[str] = []
    if arguments.gpus:
        fitter = Fitter(
            found, arguments.gpus, settings, stack=vocabularies.spec(found.stack), resolves=vocabularies.resolves(found.stack)
        )
        try:
            found, adaptations = fitter.fit()
        finally:
            fitter.close()
        said = fitter.said
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(recipe_text(found, published=published, adaptations=adaptations), encoding="utf-8")
    load_recipe(out)
    if arguments.json:
        body = {**found.data(), "adaptations": [a.data() for a in adaptations], "layout": said, "file": str(out)}
        print(json.dumps(body, indent=1, ensure_ascii=False))
        return 0
    _print(found, out, adaptations, said, arguments.gpus)
    return 0


def _preset(given: list[str]) -> dict[str, str]:
    found = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not (name.isidentifier() or name.isdigit()):
            raise UserError(f"--set {text}: write NAME=VALUE, or 1=VALUE for the script's first argument")
        found[name] = value
    return found


def _published(arguments: argparse.Namespace) -> Published | None:
    value, source = arguments.published, arguments.published_source
    if value is None and not source:
        return None
    if value is None or not source:
        raise UserError("--published VALUE and --published-source TEXT go together: a figure without its source is none")
    if not value > 0 or value == float("inf"):
        raise UserError(f"--published {value}: must be a positive figure")
    return Published(value=value, source=source, **({"unit": arguments.published_unit} if arguments.published_unit else {}))


def _print(found: Imported, out: Path, adaptations: list[Adaptation], said: list[str], gpus: int) -> None:
    size = f", {gpus or found.gpus} devices" if gpus or found.gpus else ""
    counts = f"{len(found.arguments)} arguments, {len(found.env)} variables{size}"
    print(f"{found.source} → {out}: {found.stack} ({found.format}), {counts}")
    for kind, title in TITLES.items():
        texts = found.of(kind)
        for text in texts[:SHOWN]:
            print(f"  {title:20} {text}")
        if len(texts) > SHOWN:
            print(f"  {title:20} {len(texts) - SHOWN} more (--json)")
    for line in said:
        print(f"  {'layout':20} {line}")
    for adaptation in adaptations:
        print(f"  {'adapted':20} {adaptation.change}: {adaptation.why}")
    print(f"  {'next':20} attuner check {out}{f' --gpus {gpus or found.gpus}' if gpus or found.gpus else ''}")


class Vocabularies(Mapping[str, Vocabulary]):
    """The options of Megatron-LM and of slime: a checkout's own where there is one, else the list in rules/.

    source: checkout of the recipe's own stack; '' is what the environment names.
    """

    def __init__(self, settings: Settings, *, source: str = "", slime_source: str = "") -> None:
        self.settings, self._source, self._slime_source = settings, source, slime_source
        self._made: dict[str, Vocabulary] = {}

    def spec(self, name: str) -> StackSpec:
        """Return a stack with the checkouts that its recipes are resolved by."""
        slime = self._slime_source if name in ("megatron", "slime") else ""
        return self.settings.sourced(StackSpec(name=name, version="?", slime_source=slime), source=self._source)

    def resolves(self, name: str) -> bool:
        """Tell whether what a stack's recipes are resolved by is named; AutoModel's declared defaults ride along."""
        spec = self.spec(name)
        return name == "automodel" or bool(spec.source and (name != "slime" or spec.slime_source))

    def __getitem__(self, name: str) -> Vocabulary:
        if name not in ("megatron", "slime"):
            raise KeyError(name)
        if name not in self._made:
            self._made[name] = self._make(name)
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(("megatron", "slime"))

    def __len__(self) -> int:
        return 2

    def _make(self, name: str) -> Vocabulary:
        ignores, apart = name == "slime", APART if name == "slime" else ()
        if not self.resolves(name):
            rules = self.settings.rules_dir()
            listed = load_arguments(rules, "megatron")
            own = load_arguments(rules, name) if name == "slime" else {}
            said = f"the list rules/{name if own else 'megatron'}/arguments.txt"
            return Vocabulary.of_list({**listed, **own}, said, whole=bool(own) or not ignores, ignores=ignores, apart=apart)
        from attuner.wiring import stack_of

        spec = self.spec(name)
        frame = framed(Recipe(stack=name), "--source", gpus=1, device="").model_copy(update={"stack": spec})
        stack = stack_of(frame)
        try:
            catalogue = stack.known_arguments(frame)  # type: ignore[attr-defined]
        finally:
            stack.close()
        if name == "slime":
            known = {option for entry in catalogue for option in entry["options"]}
            catalogue = [*catalogue, *(e for e in _parsed_apart(Path(spec.slime_source)) if not known & set(e["options"]))]
        return Vocabulary.of_catalogue(catalogue, f"the checkout's {len(catalogue)} arguments", ignores=ignores, apart=apart)


def _parsed_apart(checkout: Path) -> list[dict[str, Any]]:
    """Return the options in slime's own argument files, also those that it reads before its main parser."""
    files = sorted((checkout / "slime").rglob("*arguments*.py"))
    return [entry for file in files[:64] for entry in options_in(file.read_text(encoding="utf-8", errors="replace"))]
