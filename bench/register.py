"""How fast the first look is: `python bench/register.py` judges a made register and every shipped one.

Two figures: the look at 400 final values under 300 rules, when none, a few or all of them changed (processor time, median); and
`attuner rules check` over every stack, as a process of its own (wall and processor time).
"""

import argparse
import random
import resource
import statistics
import subprocess
import sys
import time
from typing import Any

from attuner.config import load_register
from attuner.core.recipe import EffectiveConfig
from attuner.policy.gate import config_look
from attuner.policy.register import Register, build_register
from attuner.settings import load_settings

KINDS = (("placement", "admit"), ("objective", "refuse"), ("bookkeeping", "admit"), ("defect", "refuse"))


def made(rules: int, arguments: int, *, seed: int = 1) -> Register:
    """Return a register of the real one's mixture: most rules plain, a third with conditions, a fifth defects, some prefixes."""
    draw = random.Random(seed)
    entries = []
    for i in range(rules):
        kind, decision = KINDS[3] if i % 5 == 0 else KINDS[i % 3]
        names = [f"argument_{(i * 7 + k) % arguments:03d}" for k in range(2)]
        condition: dict[str, Any] = {
            "all": [
                {"arg": f"argument_{draw.randrange(arguments):03d}", "ge": 2},
                {"any": [{"fact": "masks", "eq": "even"}, {"arg": f"argument_{draw.randrange(arguments):03d}", "ne": None}]},
            ]
        }
        entry: dict[str, Any] = {
            **{"id": f"BEN-RUL-{i:03d}", "kind": kind, "decision": decision},
            **{"covers": [*names, *([f"env:PREFIX_{i % 100:02d}_*"] if i % 10 == 0 else [])]},
            **{
                "reason": "made for a measurement, as long as a reason is",
                "source": ["bench/register.py"],
                "added": "2026-11-30",
            },
            **{"examples": [{"before": {names[0]: 1}, "expect": "silent"}] * 2},
        }
        if kind == "defect" or i % 3 == 0:
            entry["when"] = condition
        if kind == "defect":
            entry["scope"] = {"megatron-core": "<0.19.0"}
        entries.append(("made", entry))
    return build_register("made", entries)


def median_ms(register: Register, before: EffectiveConfig, after: EffectiveConfig, *, times: int) -> float:
    """Return the median time of one look, in milliseconds."""
    taken = []
    for _ in range(times):
        start = time.process_time()
        config_look(register, before, after, subject="h", recipe="r", tests=[], scope="s")
        taken.append((time.process_time() - start) * 1000)
    return statistics.median(taken)


def config(values: dict[str, Any]) -> EffectiveConfig:
    """Return final values of a version in which every defect is in force."""
    return EffectiveConfig(arguments=values, env={}, facts={"masks": "even"}, versions={"megatron_core": "0.16.1"})


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rules", type=int, default=300)
    parser.add_argument("--arguments", type=int, default=400)
    parser.add_argument("--times", type=int, default=50)
    asked = parser.parse_args()
    rules_dir = load_settings().rules_dir()
    registers = [made(asked.rules, asked.arguments)]
    registers += [load_register(rules_dir, p.name) for p in sorted(rules_dir.iterdir()) if p.is_dir()]
    for register in registers:
        named = sorted({c for r in register.rules for c in r.covers if ":" not in c and not c.endswith("*")})
        names = [f"argument_{i:03d}" for i in range(asked.arguments)] if register.stack == "made" else named[: asked.arguments]
        base = dict.fromkeys(names, 1)
        few, every = {**base, **dict.fromkeys(names[::40], 2)}, dict.fromkeys(names, 2)
        times = [median_ms(register, config(base), config(after), times=asked.times) for after in (base, few, every)]
        print(
            f"{register.stack:9} {len(register.rules):4} rules x {len(names):3} arguments: none changed {times[0]:5.2f} ms, "
            f"{len(names[::40])} changed {times[1]:5.2f} ms, all changed {times[2]:5.2f} ms"
        )
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-m", "attuner.cli.main", "rules", "check"], capture_output=True, check=False)
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(
        f"attuner rules check: {time.perf_counter() - start:.2f} s, of which processor {spent.ru_utime + spent.ru_stime:.2f} s, "
        f"exit {done.returncode}"
    )


if __name__ == "__main__":
    main()
