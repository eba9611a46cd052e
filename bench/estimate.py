"""How wrong the estimate is: `python bench/estimate.py [--shared ../shared] [--only times,memory,tables]` prints markdown tables.

times: published step times of vTrain's A100 cluster, each model told by constants fitted on the other three, beside the plain
baseline of one efficiency and the pipeline's bubble. memory: published peaks, out-of-memory rows and rows that fitted.
tables: replay tables (from a simulator), learning only from a campaign's own trials; also perturbed, constants unchanged.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

from estimate_memory import EXCLUDED, Told, told_rows
from estimate_points import Judged, Row, constant_and_bubble, leave_one_out, read_points
from estimate_tables import PERTURBED, ROOT, greedy, judge, open_field

from attuner.estimate.learning import learn


def main() -> None:
    """Print the tables that were asked for."""
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("--shared", type=Path, default=ROOT.parent / "shared", help="folder with facts/ and replay/")
    flags.add_argument("--only", default="times,memory,tables,speed")
    asked = flags.parse_args()
    parts = asked.only.split(",")
    points = read_points(asked.shared / "facts" / "throughput_points.csv")
    if "times" in parts:
        print_times(points)
    if "memory" in parts:
        print_memory(told_rows(points))
    if "tables" in parts:
        print_tables()
    if "speed" in parts:
        print_speed()


def print_times(points: list[Row]) -> None:
    """Print the step times."""
    for title, across in (("tensor group inside a node", False), ("all points", True)):
        ours, plain = leave_one_out(points, across_nodes=across), constant_and_bubble(points, across_nodes=across)
        print(f"\n## Step times: vTrain's A100 points, {title}; constants fitted on the other three models\n")
        print(
            "| model | points | MAPE | Spearman | regret | plain: MAPE | Spearman | regret |\n|---|---|---|---|---|---|---|---|"
        )
        for a, b in zip(ours, plain, strict=True):
            print(f"| {a.model} | {a.num_points} | {_judged(a)} | {_judged(b)} |")
        print(f"| mean | | {_mean(ours)} | {_mean(plain)} |")


def _judged(j: Judged) -> str:
    return f"{j.mape:.1%} | {j.spearman:.2f} | {j.regret:.1%}"


def _mean(all_: list[Judged]) -> str:
    mean = [statistics.fmean(getattr(j, name) for j in all_) for name in ("mape", "spearman", "regret")]
    return f"{mean[0]:.1%} | {mean[1]:.2f} | {mean[2]:.1%}"


def print_memory(told: list[Told]) -> None:
    """Print the memory rows by model."""
    print("\n## Memory: published rows, public figures only\n")
    print("| model | rows | right side | measured | in the band | mean error | half width, mean (largest) |")
    print("|---|---|---|---|---|---|---|")
    for name in [*dict.fromkeys(t.model for t in told), ""]:
        rows = [t for t in told if not name or t.model == name]
        measured = [t for t in rows if t.measured_gib]
        errors = [abs(t.peak_gib / t.measured_gib - 1) for t in measured if t.measured_gib]
        widths = [t.high_gib / t.peak_gib - 1 for t in rows]
        failed = sum(not t.fits for t in rows)
        right = f"{sum(t.right_side() for t in rows)} of {len(rows)}" + (f" ({failed} out of memory)" if failed else "")
        covered = f"{sum(t.covered() for t in measured)} of {len(measured)}" if measured else "–"
        error = f"{statistics.fmean(errors):.1%}" if errors else "–"
        width = f"±{statistics.fmean(widths):.1%} (±{max(widths):.1%})"
        print(f"| {name or 'all'} | {len(rows)} | {right} | {len(measured)} | {covered} | {error} | {width} |")
    print("\nNot judged: " + "; ".join(f"{k}: {v}" for k, v in EXCLUDED.items()) + ".")


def print_tables() -> None:
    """Print the replay tables: before any launch, after the baseline, after a greedy search."""
    print("\n## Replay tables (from a simulator), learnt from the campaign's own trials\n")
    columns = ("table", "learnt", "oom told", "good held, for memory", "for gain", "memory in band", "Spearman", "regret", "MAPE")
    print(f"| {' | '.join(columns)} | step in band |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    searches = []
    for path in sorted((ROOT / "configs" / "replay").glob("*b200.yaml")):
        for label, factors in PERTURBED.items():
            field = open_field(path, factors)
            search = greedy(field)
            searches.append(f"| {path.stem} {label} | {search.launches} | {search.failed} | {search.regret:.1%} |")
            for n in dict.fromkeys((0, 1, min(4, len(search.path)))) if not label else (1,):
                r = judge(field, learn(field.shape, field.machine, search.path[:n]), n)
                print(
                    f"| {path.stem} {label} | {n} | {r.oom_told:.0%} | {r.ok_held:.1%} | {r.better_held:.1%} "
                    f"| {r.mem_covered:.0%} (±{r.mem_width:.0%})"
                    f" | {r.spearman:.2f} | {r.regret:.1%} | {r.mape:.0%} | {r.step_covered:.0%} (±{r.step_width:.0%}) |"
                )
    print("\nA search that always launches what is predicted to gain most and likely fits:\n")
    print("| table | launches | out of memory | its best, over the table's best |\n|---|---|---|---|")
    print("\n".join(searches))


def print_speed() -> None:
    """Print how long a prediction takes."""
    path = ROOT / "configs" / "replay" / "glm-4.5-128xb200.yaml"
    field = open_field(path)
    layouts = [la for la, _ in field.rows]
    learnt = learn(field.shape, field.machine, [])
    print("\n## Speed\n")
    for label in ("first time", "again"):
        start = time.perf_counter()
        for layout in layouts:
            learnt.estimate(field.model(), layout)
        print(f"{len(layouts)} layouts of GLM-4.5, {label}: {(time.perf_counter() - start) / len(layouts) * 1e3:.2f} ms each")


if __name__ == "__main__":
    main()
