"""What a soak does, drawn from a seed alone: campaign i's shape and the faults that befall it. Pure."""

from __future__ import annotations

import copy
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

REPLAY_FAULTS = {
    "kill flow": 40,
    "end flow": 12,  # SIGTERM: the flow stops its job, settles and goes
    "cancel": 8,
    "kill worker": 10,
    "kill server": 10,
    "kill flow and worker": 7,
    "kill flow and server": 5,
    "second run": 5,
    "freeze, second run": 3,  # the first is alive and silent while a second one is started
}
REAL_FAULTS = {
    "kill flow": 26,
    "end flow": 8,
    "interrupt flow": 6,  # Ctrl-C
    "kill head": 14,
    "kill raylet": 10,
    "kill driver": 12,
    "kill rank": 12,
    "stop rank": 4,  # SIGSTOP: it hangs
    "kill flow and head": 8,
}
RUN_FAULTS = ("kill driver", "kill rank", "stop rank")
"""Faults that need a launch under way."""
MENDS = ("retry", "new run")
REPLAY_EVENTS, REAL_EVENTS = 110, 110
"""About how many events a campaign has."""


@dataclass(frozen=True)
class Fault:
    """One fault: due once the campaign has `after` events, `delay_s` later; 0 events: while its process starts."""

    kind: str
    after: int
    delay_s: float
    down_s: float
    mend: str


@dataclass(frozen=True)
class Case:
    """One campaign of a soak."""

    part: str
    i: int
    name: str
    shape: str
    body: dict[str, Any]
    faults: list[Fault] = field(default_factory=list)


def replay_case(i: int, *, seed: int, configs: Path, base: dict[str, dict[str, Any]]) -> Case:
    """Return replay campaign i. `base`: the campaign files of configs/campaigns, by name."""
    chance = random.Random(f"soak {seed} replay {i}")
    table = chance.choices(["formula", "quickstart"], [3, 1])[0]
    proposer = chance.choice(["catalog", "tpe", "random"]) if table == "formula" else "scripted"
    body = copy.deepcopy(base["replay-formula" if table == "formula" else "replay-quickstart"])
    name = f"soak-a{i:03d}"
    body["name"] = name
    body["launcher"]["seed"] = chance.randrange(1_000_000)
    body["launcher"]["table"] = str(configs / body["launcher"]["table"])
    body["launcher"]["cluster"] = str(configs / body["launcher"]["cluster"])
    if table == "formula":
        body["proposer"] = {
            **body["proposer"],
            "name": proposer,
            **({} if proposer == "catalog" else {"seed": i, "prefilter": True}),
        }
        budget, expected = chance.choice(
            [("auto", 660), (62, 660), (52, 660), (49, 660), (40, 400), (30, 300), (26, 300), (40, 660)]
        )
    else:
        moves = body["proposer"]["script"]
        body["proposer"]["script"] = moves[: chance.randrange(1, len(moves) + 1)]
        budget, expected = chance.choice([(0.4, 20), (0.2, 20), (0.19, 20), (0.1, 10), (0.05, 5), (0.1, 20)])
    body["budget"] = {"gpu_hours": budget}
    body["launch"]["expected_s"] = expected
    early = chance.random() < 0.7
    body["early_stop"] = {"enabled": early}
    shape = f"{table}, {proposer}, budget {budget}, expected {expected} s, early stop {'on' if early else 'off'}"
    faults = draw(chance, REPLAY_FAULTS, number=chance.choices([0, 1, 2, 3], [1, 8, 4, 2])[0], events=REPLAY_EVENTS)
    return Case("replay", i, name, shape, body, faults)


def real_case(i: int, *, seed: int, configs: Path, base: dict[str, dict[str, Any]]) -> Case:
    """Return real campaign i: the quickstart's model, data and cluster, in fewer steps, with one to three moves."""
    chance = random.Random(f"soak {seed} real {i}")
    body = copy.deepcopy(base["quickstart"])
    name = f"soak-b{i:03d}"
    moves: list[dict[str, Any]] = copy.deepcopy(base["replay-quickstart"]["proposer"]["script"][:3])
    count = chance.choice([1, 1, 2, 3])
    body |= {"name": name, "baseline": str(configs / body["baseline"])}
    body["workload"] = {**body["workload"], "steps": 6, "warmup_steps": 2}
    body["launcher"]["cluster"] = str(configs / body["launcher"]["cluster"])
    body["proposer"] = {"name": "scripted", "script": moves[:count]}
    budget = chance.choice([2.0, 2.0, 1.0, 0.4])
    body["budget"] = {"gpu_hours": budget}
    # faults' own restarts disturb the machine: a wide `busy` and a low bar, so that leaders are re-measured and shipped
    body["noise"] = {"calibration_runs": 5, "floor": 0.03, "sigmas": 0.5, "busy_sigma": 0.9, "max_step_spread": 30.0}
    body["launch"] = {"expected_s": 15, "max_s": 180, "hang_s": 45, "profile_steps": 1}
    body["prepare"] = {**body["prepare"], "steps": 6}
    shape = f"{count} move{'s' if count > 1 else ''}, budget {budget}"
    faults = draw(chance, REAL_FAULTS, number=chance.choices([1, 2, 3], [5, 5, 2])[0], events=REAL_EVENTS)
    return Case("real", i, name, shape, body, faults)


def draw(chance: random.Random, kinds: dict[str, int], *, number: int, events: int) -> list[Fault]:
    """Return faults in the order in which they fall due: some while a process starts, the others right after any event."""
    found = []
    for _ in range(number):
        kind = chance.choices(list(kinds), list(kinds.values()))[0]
        starting = chance.random() < 0.12
        after = 0 if starting else chance.randrange(1, events)
        at_once = chance.random()
        delay_s = 0.0 if at_once < 0.4 else chance.uniform(0, 0.15) if at_once < 0.75 else chance.uniform(0, 2.5)
        if starting:
            delay_s = chance.uniform(0, 8)
        if "second run" in kind:
            after = max(after, 3)  # there is a campaign to run a second time
        found.append(Fault(kind, after, delay_s, chance.uniform(0.5, 9), chance.choice(MENDS)))
    return sorted(found, key=lambda f: f.after)
