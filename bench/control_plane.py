"""What a campaign spent outside its launches: `python bench/control_plane.py [CAMPAIGN]` reads the ledger of ATTUNER_HOME.

A launch counts from its submission to its settlement (queueing and Ray's own start of the job included); the rest is the
control plane: gate, profile, score, the ledger, Prefect. The start of a local Ray is part of the first submission and is
shown beside it, and so is what came before birth (interpreter, Prefect's server) when --total-s says the command's time.
"""

import argparse

from attuner.core.events import History
from attuner.core.run import Attempt, Settlement
from attuner.settings import load_settings
from attuner.wiring import open_ledger


def main() -> None:
    """Print the split."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("campaign", nargs="?", default="")
    parser.add_argument("--total-s", type=float, default=0.0, help="wall time of the whole command, seconds")
    arguments = parser.parse_args()
    ledger = open_ledger(load_settings())
    name = ledger.find(arguments.campaign) if arguments.campaign else ledger.campaigns()[-1]
    events = ledger.history(name)
    history = History(events)
    whole = events[-1].at - events[0].at
    starts: dict[str, float] = {}
    inside = ray_start = allocated = 0.0
    for event in events:
        if event.kind == "attempt":
            record = Attempt.model_validate(event.record)
            if event.key not in starts:
                starts[event.key] = event.at
            elif not ray_start and record.address:
                ray_start = event.at - starts[event.key]
        elif event.kind == "settled":
            charge = Settlement.model_validate(event.record)
            inside += event.at - starts[event.key]
            allocated += charge.gpu_hours * 3600 / charge.gpus
    outside = whole - inside
    print(f"{name}: {len(history.launches())} launches, birth to last record {whole:.1f} s")
    print(f"  inside launches   {inside:7.1f} s ({inside / whole:.1%}), of these devices held {allocated:.1f} s")
    print(f"  outside launches  {outside:7.1f} s ({outside / whole:.1%})")
    print(f"  first submission  {ray_start:7.1f} s (start of the local Ray, counted inside)")
    if arguments.total_s:
        before = arguments.total_s - whole
        print(f"  before and after  {before:7.1f} s (interpreter, Prefect server, end of Ray)")


if __name__ == "__main__":
    main()
