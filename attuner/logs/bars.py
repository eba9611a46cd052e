"""Step lines whose fields stand between bars, `name: value |`: Megatron-LM of every age, Megatron-DeepSpeed, Primus,
Megatron-Bridge, NeMo 2, nanotron and AutoModel.

A Megatron line is whole when its last counter is there; only then does a missing loss say anything. Values that aren't numbers
to their last character are not read: half a number is worse than none.
Source: Megatron-LM training.py:training_log 2020 to 2026; Megatron-Bridge train_utils.py; NeMo AutoModel recipes/llm/train_ft.py.
"""

from __future__ import annotations

import math
import re
from typing import Any

from attuner.logs import numbers
from attuner.logs.record import LogRecord

_MEGATRON = re.compile(r"iteration\s{1,12}(\d{1,12}) ?/ {0,12}(\d{1,12}) ?\|")
NEMO = re.compile(r"Training epoch \d{1,9}, iteration (\d{1,12})/(\d{1,12}) \|")
NANOTRON = re.compile(r"\biteration: (\d{1,12}) / (\d{1,12}) \|")
AUTOMODEL = re.compile(r"(?<![\w\]] )\bstep (\d{1,12}) \| epoch \d{1,9} \|")
AUTOMODEL_BENCHMARK = re.compile(r"\bRank (\d{1,7}) \| Iteration (\d{1,12}) \| num_label_tokens=")
END = "number of nan iterations"
"""The last field of a whole Megatron line, in every version since 2021."""
SKIPPED = "number of skipped iterations"
COUNTS = frozenset(
    ("consumed_samples", "global_batch_size", "seq_length", "skipped_iterations", "nan_iterations", "num_label_tokens")
)
NAMES = {
    "consumed samples": "consumed_samples",
    "consumed_samples": "consumed_samples",
    "elapsed time per iteration (ms)": "elapsed_ms",
    "elapsed_time_per_iteration_ms": "elapsed_ms",
    "train_step_timing in s": "elapsed_s",
    "throughput per GPU (TFLOP/s/GPU)": "tflops_per_gpu",
    "throughput (TFLOP/s/GPU)": "tflops_per_gpu",
    "compute per GPU (TFLOP/s/GPU)": "tflops_per_gpu",
    "TFLOPs": "tflops_per_gpu",
    "model_tflops_per_gpu": "tflops_per_gpu",
    "tokens per gpu per second (tgs)": "tokens_per_s_per_gpu",
    "tokens/s/GPU inst/harmonic mean": "tokens_per_s_per_gpu",
    "tokens per GPU (tokens/s/GPU)": "tokens_per_s_per_gpu",
    "tokens/s/GPU": "tokens_per_s_per_gpu",
    "tokens_per_sec_per_gpu": "tokens_per_s_per_gpu",
    "tokens_per_sec": "tokens_per_s",
    "samples per second": "samples_per_s",
    "learning rate": "learning_rate",
    "lr": "learning_rate",
    "global batch size": "global_batch_size",
    "global_batch_size": "global_batch_size",
    "actual seqlen": "seq_length",
    "lm loss": "lm_loss",
    "lm_loss": "lm_loss",
    "reduced_train_loss": "lm_loss",
    "grad norm": "grad_norm",
    "grad_norm": "grad_norm",
    "loss scale": "loss_scale",
    SKIPPED: "skipped_iterations",
    END: "nan_iterations",
    "max_memory_allocated": "peak_mem_bytes",
    "num_label_tokens": "num_label_tokens",
}
_BEHIND_END = ("samples per second", "tokens per gpu per second (tgs)", "TFLOPs")
_SECOND_NUMBERS = ("tflops_per_gpu", "tokens_per_s_per_gpu")


class Fields:
    """The fields of one line: numbers by our names, other losses by theirs, and the names of those that can't be read."""

    __slots__ = ("aux", "bad", "commas", "values")

    def __init__(self, text: str, *, cut: bool = False) -> None:
        """Read them. Args: text: what follows the start of the line; cut: its last field may be half of one."""
        self.values: dict[str, float] = {}
        self.aux: dict[str, float] = {}
        self.bad: list[str] = []
        parts = text.split("|")
        last = parts.pop()
        if last.strip() and not cut:
            parts.append(last)
        pairs = [_pair(p) for p in parts]
        if last.strip() and cut:
            name = _pair(last)[0]
            self.bad.append(NAMES.get(name, name))
        self.commas = "," in text and any(numbers.has_comma(value) for _, value in pairs)
        read = numbers.german if self.commas else numbers.plain
        for name, value in pairs:
            ours = NAMES.get(name)
            if ours is None and (name[-4:] != "loss" or name.startswith(("val", "test", "eval"))):
                continue
            number = read(value)
            if number is None and ours in _SECOND_NUMBERS:
                number = numbers.first(value)
            if number is None and (number := numbers.suffixed(value)) is None:
                self.bad.append(ours or name)
            elif ours is not None:
                self.values.setdefault(ours, number)
            else:
                self.aux[name] = number


def starts(text: str) -> list[re.Match[str]]:
    """Return where Megatron's step lines start in a line of text; NeMo's have a comma before the word."""
    found, at = [], text.find("iteration")
    while at >= 0:
        match = _MEGATRON.match(text, at)
        if match is not None and not text[at - 1 : at].isalnum() and text[max(at - 2, 0) : at] != ", ":
            found.append(match)
        at = text.find("iteration", at + 9)
    return found


def _pair(part: str) -> tuple[str, str]:
    part = part.strip()
    name, colon, value = part.partition(":")
    if colon:
        return name.rstrip(), value.strip()
    words = part.rsplit(None, 1)
    return (words[0], words[1]) if len(words) == 2 else (part, "")


def megatron(iteration: int, total: int, rest: str) -> LogRecord | None:
    """Return what a Megatron line tells; None where nothing of it can be read. `whole` is False where its end is missing."""
    end = rest.find(END)
    closed = rest.find("|", end) if end >= 0 else -1
    if closed >= 0:
        rest = rest[: closed + 1] + _after(rest[closed + 1 :])
    elif end >= 0 and (tail := re.match(r"number of nan iterations: {1,12}\d{1,12} {0,4}$", rest[end:])) is not None:
        rest, closed = rest + "|", len(rest) + tail.end()
    fields = Fields(rest, cut=closed < 0)
    if not fields.values:
        return None
    # the log of 2020 ends with its losses and has no counters at all
    old = SKIPPED not in rest and "consumed samples" not in rest and "lm_loss" in fields.values and rest.rstrip().endswith("|")
    record = _record("megatron", iteration, fields)
    record.total_iterations = total
    record.whole = (closed >= 0 or old) and not fields.bad
    if record.whole and record.lm_loss is None and not _only_skipped(record):
        record.lm_loss = math.nan
    return record


def _after(rest: str) -> str:
    """Return the fields that Megatron-DeepSpeed prints behind the counters; anything else is another line without a break."""
    kept = []
    for part in rest.split("|")[:-1]:
        if _pair(part)[0] not in _BEHIND_END:
            break
        kept.append(f"{part}|")
    return "".join(kept)


def _only_skipped(record: LogRecord) -> bool:
    """Tell whether no update was made: nothing has a loss then, and that is no fault."""
    return bool(record.skipped_iterations) and not record.nan_iterations


def _record(grammar: str, iteration: int, fields: Fields) -> LogRecord:
    values: dict[str, Any] = dict(fields.values)
    if "elapsed_s" in values:
        values["elapsed_ms"] = values.pop("elapsed_s") * 1000.0
    if "peak_mem_bytes" in values:
        values["peak_mem_gib"] = values.pop("peak_mem_bytes") / 2**30
    for name in COUNTS & values.keys():
        values[name] = numbers.whole(values[name])
    oddities = tuple(f"{name}: can't be read" for name in fields.bad)
    return LogRecord(
        iteration, grammar, aux_losses=fields.aux, locale=fields.commas, whole=not fields.bad, oddities=oddities, **values
    )


def nemo(iteration: int, total: int, rest: str, *, cut: bool) -> LogRecord:
    """Return what a line of NeMo 2 tells; its first step is 0."""
    record = _record("nemo", iteration, Fields(rest, cut=cut))
    record.total_iterations, record.zero_based = total, True
    return record


def nanotron(iteration: int, total: int, rest: str, *, cut: bool) -> LogRecord:
    """Return what a line of nanotron tells: three digits of everything."""
    fields = Fields(rest, cut=cut)
    record = _record("nanotron", iteration, fields)
    record.total_iterations = total
    record.approximate = tuple(sorted(fields.values.keys() - {"global_batch_size", "learning_rate"}))
    return record


_TPS = re.compile(r"\| tps (\d{1,15}(?:\.\d{1,6})?)(?:\((\d{1,15}(?:\.\d{1,6})?)/gpu\))?")
_MEM = re.compile(r"\| mem (\d{1,9}(?:\.\d{1,6})?) GiB")


def automodel(step: int, rest: str, *, cut: bool) -> LogRecord:
    """Return what a training line of NeMo AutoModel tells; `mem` is the peak since the step before."""
    fields = Fields(rest, cut=cut)
    fields.values.update({"lm_loss": loss} if (loss := fields.aux.pop("loss", None)) is not None else {})
    record = _record("automodel", step, fields)
    record.zero_based = True
    if tps := _TPS.search(rest):
        record.tokens_per_s = float(tps[1])
        record.tokens_per_s_per_gpu = float(tps[2]) if tps[2] else None
    if mem := _MEM.search(rest):
        record.peak_mem_gib = float(mem[1])
    return record


_BENCHMARK = re.compile(r"num_label_tokens=(\d{1,15}) \| Max Memory Allocated: (\d{1,9}\.\d{1,6}) GB \| loss=(\S{1,32})")


def automodel_benchmark(step: int, rank: int, rest: str) -> LogRecord | None:
    """Return what AutoModel's benchmark recipe says of an iteration; it says times at the end only. Its GB are 2**30 bytes."""
    match = _BENCHMARK.search(rest)
    if match is None:
        return None
    loss = numbers.plain(match[3])
    record = LogRecord(step, "automodel", lm_loss=loss, peak_mem_gib=float(match[2]), num_label_tokens=float(match[1]), rank=rank)
    record.zero_based, record.whole = True, loss is not None
    return record
