"""How far triage gets: classes and ranks of a corpus, with all rules and, source by source, without those drawn from it.

`python bench/triage.py CORPUS.jsonl [--all]`, a file of {id, source, excerpt, expected_class, root_rank?}. Left out is counted
two ways. `only`: rules whose `source` names nothing but the case's source. `met`: also rules that were met nowhere but there
(`seen_on`), so that a rule grounded in a framework's source code does not count for the case that taught us to look there. The
frameworks' code names the words of most failures, so `only` is the optimistic figure. What was blind is in
tests/paper/failures_unseen.yaml (`first`).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from attuner.core.failure import UNDETERMINED, Failure
from attuner.failures import load_failures
from attuner.logs.signatures import Book
from attuner.logs.triage import triage

ROOT = Path(__file__).resolve().parents[1]
UNSEEN = ROOT / "tests" / "paper" / "failures_unseen.yaml"


@dataclass
class Tally:
    """How many of some cases came out right."""

    cases: int = 0
    right: int = 0
    family: int = 0
    """Right in what stands before the dot."""
    undetermined: int = 0
    """Not right, and nothing was claimed."""
    wrong: list[str] = field(default_factory=list)
    """Not right, and something else was claimed."""

    def add(self, name: str, wanted: str, rank: int | None, found: Failure) -> bool:
        """Count one case; return whether it came out right."""
        got = found.seen or found.kind
        right = got == wanted and rank in (None, found.rank)
        self.cases += 1
        self.right += right
        self.family += got.split(".")[0] == wanted.split(".")[0]
        if not right and found.kind == UNDETERMINED:
            self.undetermined += 1
        elif not right:
            self.wrong.append(f"{name}: {wanted} read as {got}")
        return right

    def said(self) -> str:
        """Return it as one line."""
        parts = [f"{self.right} of {self.cases} right ({self.right / max(self.cases, 1):.0%})", f"family {self.family}"]
        return ", ".join([*parts, f"undetermined {self.undetermined}", f"wrong with confidence {len(self.wrong)}"])


def drawn_from(book: Book, source: str, *, met: bool) -> list[str]:
    """Return the rules that are left out for a source."""
    gone = []
    for rule in book.rules:
        seen = {x.source for x in rule.seen_on}
        if set(rule.source) == {source} or (met and seen == {source}):
            gone.append(rule.id)
    return gone


def said_of(case: dict[str, Any], book: Book) -> Failure:
    """Return the diagnosis of one case."""
    return triage([(case["id"], case["excerpt"].encode())], book)


def main() -> int:
    """Measure and print."""
    options = argparse.ArgumentParser()
    options.add_argument("corpus", type=Path)
    options.add_argument("--all", action="store_true", help="print every source, right ones too")
    asked = options.parse_args()
    cases = [json.loads(line) for line in asked.corpus.read_text(encoding="utf-8").splitlines()]
    book, whole = load_failures(ROOT / "rules"), Tally()
    for case in cases:
        whole.add(case["id"], case["expected_class"], case.get("root_rank"), said_of(case, book))
    print(f"{len(book.rules)} rules. All of them: {whole.said()}")
    for way in ("only", "met"):
        total = Tally()
        by_source: dict[str, list[tuple[str, str, str, bool, int]]] = defaultdict(list)
        for case in cases:
            gone = drawn_from(book, case["source"], met=way == "met")
            found = said_of(case, book.without(gone))
            right = total.add(case["id"], case["expected_class"], case.get("root_rank"), found)
            by_source[case["source"]].append((case["id"], case["expected_class"], found.seen or found.kind, right, len(gone)))
        print(f"\nwithout the rules of its own source ({way}): {total.said()}")
        for source, rows in sorted(by_source.items()):
            for name, wanted, got, right, gone_count in rows:
                if asked.all or not right:
                    print(f"  {'right' if right else 'wrong':6} {name} {source[:60]:60} -{gone_count} rules  {wanted} → {got}")
    unseen = yaml.safe_load(UNSEEN.read_text(encoding="utf-8"))
    print()
    for number in sorted({x.get("round", 1) for x in unseen}):
        batch = [x for x in unseen if x.get("round", 1) == number]
        blind = sum(x["first"] in (x["kind"], f"undetermined ({x['kind']})") for x in batch)
        claimed = sum("undetermined" not in x["first"] and x["first"] != x["kind"] for x in batch)
        print(f"blind, round {number}: {blind} of {len(batch)} classes right when first read; wrong with confidence {claimed}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
