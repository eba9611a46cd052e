"""Step lines of other grammars: NeMo 1's progress bar, torchtitan, slime's dictionaries, verl, DeepSpeed's timer and
pipeline engine.

Each function returns what one line tells, or None if it is no training step (a validation line, another role's step).
Dictionaries are scanned for pairs of a key and a number; nothing is evaluated.
Source: slime backends/megatron_utils/model.py; torchtitan components/metrics.py; verl trainer/ppo/metric_utils.py; DeepSpeed
utils/timer.py and runtime/pipe/engine.py.
"""

from __future__ import annotations

import re

from attuner.logs import numbers
from attuner.logs.record import LogRecord

_BAR = re.compile(r"\| {0,12}(\d{1,12})/(\d{1,12}) \[[^\]|]{0,64}?[,<] {0,8}(\d{1,9}(?:\.\d{1,6})?)(it/s|s/it)")
_PAIR = re.compile(r"(?:^|[,\[] ?)([A-Za-z_][\w .]{0,63}?)=([-+\w.]{1,32})(?=[,\]])")
_TITAN = re.compile(r"(?<!validate )\bstep: {1,8}(\d{1,12}) {1,8}loss: {1,8}(\S{1,32})")
_TITAN_FIELDS = re.compile(r"\b(grad_norm|memory|tps|tflops|mfu): {1,8}([-+\w.,]{1,32})")
_SLIME = re.compile(r"(?<![\w-])step (\d{1,12}): \{(?=')")
_SLIME_PERF = re.compile(r"(?<![\w-])perf (\d{1,12}): \{(?=')")
_ITEM = re.compile(r"'([^'\\]{1,128})': (?:[A-Za-z_][\w.]{0,40}\()?([-+]?[\w.+-]{1,32})")
_VERL = re.compile(r"(?:^|\s)step:(\d{1,12}) - ")
_TIMER = re.compile(
    r"global_step=(\d{1,12}), RunningAvgSamplesPerSec=([\w.+-]{1,32}), CurrSamplesPerSec=([\w.+-]{1,32})"
    r"(?:, MemAllocated=([\d.]{1,16})GB)?(?:, MaxMemAllocated=([\d.]{1,16})GB)?"
)
_PIPE = re.compile(
    r"\bsteps: (\d{1,12}) loss: (\S{1,32}) (?:(\w{1,40}loss): (\S{1,32}) )?iter time \(s\): (\S{1,32}) samples/sec: (\S{1,32})"
)
_VERL_TRAINS = ("actor/", "critic/", "perf/", "timing_s/", "train/")
_LOSS_KEYS = ("pg_loss", "kl_loss", "entropy_loss", "vf_loss", "loss")
MAX_ITEMS = 400


def progress_bar(text: str) -> LogRecord | None:
    """Return what NeMo 1's bar tells. The bar's own counter is exact; what stands behind has three digits."""
    bar = _BAR.search(text)
    if bar is None:
        return None
    told = {m[1].strip(): m[2] for m in _PAIR.finditer(text, bar.end(), bar.end() + 4096)}
    loss = numbers.plain(told.get("reduced_train_loss", told.get("loss", "")))
    if loss is None:
        return None
    rate = float(bar[3])
    elapsed = None if not rate else rate * 1000.0 if bar[4] == "s/it" else 1000.0 / rate
    timing = numbers.plain(told.get("train_step_timing in s", ""))
    return LogRecord(
        int(bar[1]),
        "progress bar",
        total_iterations=int(bar[2]),
        consumed_samples=numbers.whole(numbers.plain(told.get("consumed_samples", ""))),
        elapsed_ms=timing * 1000.0 if timing is not None else elapsed,
        lm_loss=loss,
        approximate=("consumed_samples", "elapsed_ms", "lm_loss"),
    )


def torchtitan(text: str) -> LogRecord | None:
    """Return what a torchtitan line tells: `tps` is per device, memory the peak in GiB."""
    start = _TITAN.search(text)
    if start is None:
        return None
    told = {m[1]: m[2] for m in _TITAN_FIELDS.finditer(text, start.end(), start.end() + 512)}
    loss = numbers.plain(start[2])
    return LogRecord(
        int(start[1]),
        "torchtitan",
        lm_loss=loss,
        grad_norm=numbers.plain(told.get("grad_norm", "")),
        tokens_per_s_per_gpu=numbers.grouped(told.get("tps", "")),
        tflops_per_gpu=numbers.grouped(told.get("tflops", "")),
        peak_mem_gib=numbers.plain(told.get("memory", "").removesuffix("GiB")),
        whole=loss is not None and "tps" in told,
    )


def items(text: str, start: int) -> dict[str, float]:
    """Return the numbers of a printed dictionary by their keys."""
    found: dict[str, float] = {}
    for match in _ITEM.finditer(text, start):
        value = numbers.plain(match[2])
        if value is not None:
            found[match[1]] = value
        if len(found) >= MAX_ITEMS:
            break
    return found


def slime(text: str) -> LogRecord | None:
    """Return what slime's `step n: {…}` tells: optimizer steps, not rollouts; a loss may be negative."""
    start = _SLIME.search(text)
    if start is None:
        return None
    told = {k.removeprefix("train/"): v for k, v in items(text, start.end()).items()}
    if not told:
        return None
    aux = {k: v for k, v in told.items() if k.endswith("loss") and k != "loss"}
    return LogRecord(
        int(start[1]),
        "slime",
        lm_loss=told.get("loss"),
        aux_losses=aux,
        grad_norm=told.get("grad_norm"),
        learning_rate=next((v for k, v in told.items() if k.startswith("lr-pg_")), None),
        global_batch_size=numbers.whole(told.get("global_batch_size")),
        zero_based=True,
        whole=text.rstrip().endswith("}"),
    )


def slime_perf(text: str) -> LogRecord | None:
    """Return what slime's `perf n: {…}` tells of a rollout's training: time and FLOPs by slime's own formula.

    Its tokens per second are one data-parallel rank's, so they are left out.
    """
    start = _SLIME_PERF.search(text)
    if start is None:
        return None
    told = items(text, start.end())
    seconds = told.get("perf/actor_train_time")
    return LogRecord(
        int(start[1]),
        "slime perf",
        elapsed_ms=seconds * 1000.0 if seconds is not None else None,
        tflops_per_gpu=told.get("perf/actor_train_tflops"),
        zero_based=True,
        whole=text.rstrip().endswith("}"),
    )


def verl(text: str) -> LogRecord | None:
    """Return what a verl line tells. Three decimals: a learning rate is lost to them; `perf/throughput` is per device."""
    start = _VERL.search(text)
    if start is None:
        return None
    told: dict[str, float] = {}
    for part in text[start.end() :].split(" - ")[:MAX_ITEMS]:
        name, _, value = part.strip().rpartition(":")
        number = numbers.plain(value)
        if number is not None:
            told[name] = number
    if not any(k.startswith(_VERL_TRAINS) for k in told):
        return None
    oddities = [f"{k} {v:g} is above 1, which can't be" for k, v in told.items() if k.startswith("perf/mfu") and v > 1]
    rate = told.get("actor/lr")
    if rate is not None and rate < 0.0005:
        rate = None
        oddities.append("learning_rate: lost to rounding")
    seconds = told.get("perf/time_per_step", told.get("timing_s/step"))
    return LogRecord(
        int(start[1]),
        "verl",
        elapsed_ms=seconds * 1000.0 if seconds is not None else None,
        tokens_per_s_per_gpu=told.get("perf/throughput"),
        learning_rate=rate,
        grad_norm=told.get("actor/grad_norm"),
        aux_losses={k: v for k, v in told.items() if k.endswith(_LOSS_KEYS) and k.startswith(("actor/", "critic/"))},
        approximate=("grad_norm", "learning_rate", "aux_losses"),
        oddities=tuple(oddities),
    )


def deepspeed_timer(text: str) -> LogRecord | None:
    """Return what DeepSpeed's timer tells: samples per second of the last step; `micro_step` is no step."""
    match = _TIMER.search(text)
    if match is None:
        return None
    peak = numbers.plain(match[5] or "")
    return LogRecord(int(match[1]), "deepspeed", samples_per_s=numbers.plain(match[3]), peak_mem_gib=peak)


def deepspeed_pipe(text: str) -> LogRecord | None:
    """Return what DeepSpeed's pipeline engine tells."""
    match = _PIPE.search(text)
    if match is None:
        return None
    loss, aux, seconds = numbers.plain(match[2]), numbers.plain(match[4] or ""), numbers.plain(match[5])
    return LogRecord(
        int(match[1]),
        "deepspeed",
        elapsed_ms=seconds * 1000.0 if seconds is not None else None,
        lm_loss=loss,
        aux_losses={match[3]: aux} if match[3] and aux is not None else {},
        samples_per_s=numbers.plain(match[6]),
        whole=loss is not None,
    )
