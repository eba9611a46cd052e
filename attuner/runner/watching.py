"""Follows the ranks of a run to their end: progress, hang, time limit, a lost node, contact lost to storage."""

import re
import time
from pathlib import Path
from typing import Any

from . import files, stopping
from .heart import FENCE_S, Heart
from .nodes import AnyNode, NodeLost, dead

TICK_S = 0.1
LOOK_AT_RAY_S = 2.0
MIRROR_S = 1.0
LINE_BYTES = 1 << 20


class Progress:
    """What a run has done so far: lines of its steps file, or matching lines of its log where it writes none."""

    def __init__(self, job: dict[str, Any], run_dir: Path) -> None:
        self._run_dir, self._steps = run_dir, run_dir / files.STEPS
        self._pattern = re.compile(job["step_pattern"].encode()) if job.get("step_pattern") else None
        self._offset, self._rest, self._matched = 0, b"", 0
        saved = job.get("save")
        self._beside = [run_dir / files.TRACES, *([Path(saved)] if saved else [])]

    def mark(self) -> tuple[int, int, int, int]:
        """Return something that changes with every step, and with a checkpoint or a trace in the making: that is no hang."""
        grown = self._steps.stat().st_size if self._steps.exists() else 0
        found = [p.stat().st_size for folder in self._beside if folder.is_dir() for p in folder.iterdir() if p.is_file()]
        return grown, self.logged(), len(found), sum(found)

    def logged(self) -> int:
        """Return how many lines of the log say that a step is done."""
        path = self._run_dir / files.LOG
        if self._pattern is None or not path.exists():
            return 0
        with path.open("rb") as log:
            log.seek(self._offset)
            while piece := log.read(LINE_BYTES):
                self._offset += len(piece)
                *lines, self._rest = (self._rest + piece).replace(b"\r", b"\n").split(b"\n")
                self._rest = self._rest[-LINE_BYTES:]
                self._matched += sum(1 for line in lines if self._pattern.search(line))
        return self._matched

    def steps(self) -> int:
        """Return the steps done."""
        return max(len(files.read_jsonl(self._steps)), self._matched)


class Mirror:
    """Brings the files of a node that doesn't see the driver's folder into it."""

    def __init__(self, node: AnyNode, run_dir: Path) -> None:
        self._node, self._run_dir = node, run_dir
        self._seen: dict[str, str] = {}
        self._last = 0.0

    def pull(self, *, all_of_it: bool = False) -> None:
        """Copy what changed. Raises NodeLost."""
        if not all_of_it and time.monotonic() - self._last < MIRROR_S:
            return
        while True:
            found = self._node.answer(self._node.ask("changed", str(self._run_dir), self._seen), 120.0)
            for name, (tag, content) in found.items():
                if name in (files.STAMPS, files.HEARTBEAT):
                    continue
                path = self._run_dir / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
                self._seen[name] = tag
            self._last = time.monotonic()
            if not all_of_it or not found:
                return


def watch(
    job: dict[str, Any], run_dir: Path, nodes: list[AnyNode], heart: Heart, *, since: float, mirror: Mirror | None = None
) -> tuple[str, str]:
    """Follow the ranks to their end; return outcome and detail.

    Args:
        since: when the devices were allocated (unix seconds): the time limit counts from there.

    Raises:
        NodeLost: a node went away.
    """
    progress = Progress(job, run_dir)
    moved = time.time()
    looked, last = time.monotonic(), (0, 0, 0, 0)
    while True:
        stopping.check()
        now = time.time()
        if mirror is not None:
            mirror.pull()
        mark = progress.mark()
        if mark != last:
            last, moved = mark, now
        codes = [node.poll(mark[:2] != (0, 0)) for node in nodes]
        if any(codes):
            _all_there(nodes, float(job.get("node_silent_s") or 0) or None)
            return "failed", f"exit codes {codes}" if len(codes) > 1 else f"exit code {codes[0]}"
        if all(code == 0 for code in codes):
            return "ok", ""
        if time.monotonic() - looked > LOOK_AT_RAY_S:
            looked = time.monotonic()
            for gone in dead([node.id for node in nodes]):
                raise NodeLost(gone, "Ray says that it is dead")
        if heart.silent_s() > FENCE_S:
            return "infrastructure", f"no heartbeat could be written for {FENCE_S:g} s: {heart.trouble}"[:300]
        if now - moved > job["hang_s"]:
            return "hang", f"no step for {job['hang_s']:g} s; {progress.steps()} steps done"
        if now - since > job["time_limit_s"]:
            return "time_limit", f"still running {job['time_limit_s']:g} s after allocation"
        time.sleep(TICK_S)


def _all_there(nodes: list[AnyNode], limit_s: float | None = None) -> None:
    """After a failure, hear every node once more: ranks fail for a node that went away. Raises NodeLost."""
    for gone in dead([node.id for node in nodes]):
        raise NodeLost(gone, "Ray says that it is dead")
    for node in nodes:
        if node.remote:
            node.answer(node.ask("poll"), limit_s or 40.0)
    for gone in dead([node.id for node in nodes]):
        raise NodeLost(gone, "Ray says that it is dead")


def cause(run_dir: Path, outcome: str, detail: str) -> tuple[str, str, str]:
    """Return (outcome, phase, detail) of failed ranks, from what they wrote; out of memory explains the others' crashes."""
    if outcome != "failed":
        return outcome, "", detail
    found = [files.read_json(p) for p in sorted(run_dir.glob("failure.rank*.json"))]
    found.sort(key=lambda f: ({"oom": 0, "config": 1}.get(f["kind"], 2), float(f.get("t", 0))))
    if not found:
        tails = [_last_line(p) for p in (run_dir / files.LOG, *sorted(run_dir.glob(f"node*.{files.LOG}")))]
        return "crash", "", f"{detail}; {next((t for t in tails if t), '')}"[:300]
    kind = found[0]["kind"] if found[0]["kind"] in ("oom", "config") else "crash"
    return kind, str(found[0].get("phase", "")), str(found[0].get("message", detail))[:300]


def _last_line(path: Path) -> str:
    """Return what a log ends with: torchrun's root cause where a signal ended a rank, else the last line that holds a word."""
    if not path.exists():
        return ""
    with path.open("rb") as log:
        log.seek(max(path.stat().st_size - 65536, 0))
        lines = [x.strip() for x in log.read().decode(errors="replace").splitlines()]
    spoken = [x for x in lines if any(c.isalnum() for c in x)]
    roots = [n for n, x in enumerate(spoken) if x.startswith("Root Cause")]
    told = dict(x.split(":", 1) for x in spoken[roots[-1] :] if ":" in x) if roots else {}
    found = {name.strip(): value.strip() for name, value in told.items()}
    if found.get("traceback", "").startswith("Signal"):
        return f"rank {found.get('rank', '?').split()[0]}: {found['traceback']}"
    return spoken[-1] if spoken else ""
