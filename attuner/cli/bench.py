"""`attuner bench TABLE...`: proposers against each other on replay tables, or with `--local FILE` on its cluster."""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from attuner.core.errors import UserError
from attuner.settings import Settings, load_settings

if TYPE_CHECKING:
    from attuner.bench.arms import Arm
    from attuner.bench.outcome import Outcome
    from attuner.bench.play import Protocol


def bench(arguments: argparse.Namespace) -> int:
    """Run every arm everywhere, print the comparison, and write it as a page and CSV files."""
    from attuner.bench.arms import arm

    settings = load_settings(project=arguments.project)
    arms = [arm(name) for name in dict.fromkeys(n.strip() for n in arguments.arms.split(",") if n.strip())]
    out = Path(arguments.out) if arguments.out else settings.home / "bench"
    if arguments.local:
        found, failed, protocol, sources = _local(arguments, arms, settings, out)
    else:
        found, failed, protocol, sources = _tables(arguments, arms, settings)
    found += [o for file in arguments.add for o in _added(Path(file))]
    names = [*(a.name for a in arms), *(o.arm for o in found)]
    order = {name: i for i, name in reversed(list(enumerate(names)))}
    found.sort(key=lambda o: (o.table, order[o.arm], o.seed))
    _tell(arguments, found, arms, protocol, sources, out)
    for line in failed:
        print(f"attuner: {line}", file=sys.stderr)
    return 1 if failed else 0


ADDED = "Played earlier; the budget and its protocol were those of that bench."
Found = tuple[list["Outcome"], list[str], list[str], dict[str, str]]


def _tables(arguments: argparse.Namespace, arms: list[Arm], settings: Settings) -> Found:
    from attuner.bench.play import Entry, Protocol
    from attuner.bench.runner import play_all
    from attuner.tables import load_table, perturbed

    protocol = Protocol(
        launches=arguments.launches, all_in=arguments.all_in, early_stop=arguments.early_stop, perturb=_factors(arguments.perturb)
    )
    if not arguments.tables and not arguments.add:
        raise UserError("bench: name a table of configs/replay/, or --local FILE")
    tables = [_table(name, settings) for name in arguments.tables]
    sources = {(t := perturbed(load_table(p), **protocol.perturb)).name: t.about.source for p in tables}
    seeds = range(arguments.first_seed, arguments.first_seed + arguments.seeds)
    # seeds first: if it is cut off, every arm has been played as often
    entries = [Entry(t, a, s, protocol) for s, t, a in itertools.product(seeds, tables, arms)]
    progress = _Progress(len(entries), quiet=arguments.quiet or arguments.json)
    found, failed = play_all(
        entries, rules=settings.rules_dir(), configs=settings.configs_dir(), jobs=arguments.jobs, told=progress.told
    )
    return found, failed, _said(protocol) if entries else [ADDED], sources


def _said(protocol: Protocol) -> list[str]:
    """Return what was the same for every arm."""
    paid = (
        "Calibration (5 launches) and re-measurement (3 pairs) are paid from the same budget."
        if protocol.all_in
        else "Calibration (5 launches) and re-measurement (3 pairs) come on top, and are in the device-hours charged."
    )
    said = [
        f"The search may spend {protocol.launches} baseline launches, rounded up to 10 device-hours. {paid}",
        "Every arm pays for failures, and by the same rules; a launch needs 1.5 of itself left to start; refusals are free.",
        "Replayed on a virtual clock with seeded noise (σ 0.7% of a launch's throughput): nothing was trained, nothing ships.",
        f"Early stop is {'on' if protocol.early_stop else 'off'}.",
    ]
    changed = ", ".join(f"{k} × {v:g}" for k, v in sorted(protocol.perturb.items()))
    return [*said, f"The tables are those of another machine: {changed}."] if changed else said


def _local(arguments: argparse.Namespace, arms: list[Arm], settings: Settings, out: Path) -> Found:
    from attuner.bench.local import rounds, run_all
    from attuner.bench.table import as_csv

    if arguments.tables:
        raise UserError("bench: --local FILE runs real campaigns, a table is played: name one or the other")
    file = Path(arguments.local)
    if not file.is_file():
        raise UserError(f"--local {file}: no such campaign file")
    turns = list(rounds(arms, arguments.seeds, first=arguments.first_seed))
    progress, done = _Progress(len(turns), quiet=arguments.quiet or arguments.json), []
    out.mkdir(parents=True, exist_ok=True)

    def told(outcome: Outcome | str) -> None:
        progress.told(outcome)
        if not isinstance(outcome, str):
            done.append(outcome)
            (out / "campaigns.csv").write_text(as_csv(done), encoding="utf-8")  # hours of work: kept as they come

    found, failed = run_all(file, turns, settings, gpu_hours=arguments.gpu_hours, told=told)
    said = [
        f"Real campaigns of {file.name}, one after the other on the same devices; arms in turn, every round in the other order.",
        "Every campaign has the same device-hours, calibration, checks, failures and re-measurement included.",
    ]
    return found, failed, said, {}


def _tell(
    arguments: argparse.Namespace, found: list[Outcome], arms: list[Arm], protocol: list[str], sources: dict[str, str], out: Path
) -> None:
    from attuner.bench.page import page
    from attuner.bench.stats import tests, text
    from attuner.bench.table import as_csv, lines
    from attuner.bench.table import text as table_text

    rows = lines(found)
    against = arguments.against or (arms[0].name if arms else "")
    tested = tests(found, against) if found else []
    out.mkdir(parents=True, exist_ok=True)
    (out / "campaigns.csv").write_text(as_csv(found), encoding="utf-8")
    (out / "figures.csv").write_text(as_csv(rows), encoding="utf-8")
    (out / "tests.csv").write_text(as_csv(tested), encoding="utf-8")
    title = f"Compared: {', '.join(dict.fromkeys(o.arm for o in found))}"
    (out / "bench.html").write_text(page(title, protocol, found, tested, sources), encoding="utf-8")
    if arguments.json:
        body = {"figures": [r.data() for r in rows], "tests": [t.data() for t in tested], "folder": str(out)}
        print(json.dumps(body, indent=1))
        return
    print(table_text(rows))
    for table, source in sources.items():
        print(f"figures of {table}: {source}")
    if tested:
        print(text(tested))
    print(f"{out / 'bench.html'}")


class _Progress:
    """Says on stderr how far it is."""

    def __init__(self, total: int, *, quiet: bool) -> None:
        self._total, self._quiet, self._done = total, quiet or not sys.stderr.isatty(), 0

    def told(self, _outcome: object) -> None:
        """Count one campaign."""
        self._done += 1
        if not self._quiet:
            print(f"\r  {self._done} of {self._total} campaigns", end="\n" if self._done == self._total else "", file=sys.stderr)


def _added(file: Path) -> list[Outcome]:
    from attuner.bench.table import read_csv

    try:
        return read_csv(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"--add {file}: not a campaigns.csv of a bench: {' '.join(str(error).split())[:160]}") from None


def _factors(given: list[str]) -> dict[str, float]:
    found = {}
    for text in given:
        name, _, value = text.partition("=")
        try:
            found[name] = float(value)
        except ValueError:
            raise UserError(f"--perturb {text}: is NAME=FACTOR, e.g. inter_node_comm=2") from None
    return found


def _table(name: str, settings: Settings) -> Path:
    """Return the description of a table: the file itself, the one beside a rows file, or one in configs/replay/ of that name."""
    path = Path(name)
    known = settings.configs_dir() / "replay"
    stem = path.stem if path.suffix in (".csv", ".yaml") else path.name
    found = next((p for p in (path.with_name(f"{stem}.yaml"), known / f"{stem}.yaml") if p.is_file()), None)
    if found is None:
        raise UserError(f"{name}: no such table: no description {stem}.yaml beside it or in {known}")
    return found
