"""Writes tests/long.txt from a run's own figures: which tests `make check` leaves to `make test`.

    pytest -m "not slow" -n 2 --dist loadfile --durations=0 | python tools/long_tests.py

The 280 longest are listed (or as many as are asked for): the rest takes about a third of the time. A test whose set-up is long is
listed with its whole file, for the next test there would wait for the same set-up.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

LINE = re.compile(r"^(\d+\.\d+)s (call|setup)\s+(\S+\.py)::(\S[^\[\n]*)")
HOUSE = "tests/test_house.py"
"""The house's laws belong to every check."""
HEAD = "# The longest tests that are not slow: `make check` leaves them out, `make test` runs them (tools/long_tests.py).\n"


def main() -> int:
    """Read durations from standard input and write the list."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 280
    told = [m for m in map(LINE.match, sys.stdin) if m and m[3] != HOUSE]
    found = sorted(told, key=lambda m: -float(m[1]))[:count]
    files = {m[3] for m in found if m[2] == "setup"}
    names = files | {f"{m[3]}::{m[4].strip()}" for m in found if m[3] not in files}
    Path(__file__).parent.parent.joinpath("tests", "long.txt").write_text(HEAD + "".join(f"{x}\n" for x in sorted(names)))
    print(f"{len(names)} entries", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
