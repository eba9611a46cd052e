"""`attuner data rows|masks|lengths|rollout`: fixed rows from text, loss masks, how long documents are, slime's rollouts."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from attuner.core.errors import UserError
from attuner.datatools.stream import Progress, Reading, Stream, open_stream
from attuner.datatools.tally import shown

_LABEL = 12


def rows(arguments: argparse.Namespace) -> int:
    """Make rows from sources and say what came of it."""
    from attuner.datatools.rows import Layout, make_rows

    layout = Layout(
        seq_len=arguments.seq_len,
        pack=arguments.pack,
        long=arguments.long,
        pad=arguments.pad,
        shuffle=arguments.shuffle,
        num_rows=arguments.num_rows,
        format=arguments.format,
    )
    out = Path(arguments.out)
    with _progress(quiet=arguments.json) as progress:
        about = make_rows(arguments.sources, out, _reading(arguments), layout, force=arguments.force, progress=progress)
    if arguments.json:
        print(json.dumps({"folder": str(out), **about}, indent=1, ensure_ascii=False))
        return 0
    counts, width = about["made"]["counts"], about["seq_len"] + 1
    _say("rows", f"{about['num_rows']:,} rows of {about['seq_len']:,} + 1 tokens, {about['dtype']}, in {out}")
    _say("sources", f"{about['made']['sources']['files']:,} files, {_size(counts['bytes'])}, {counts['documents']:,} documents")
    end = f", end token {about['eos']}" if "eos" in about else ", no end token"
    _say("tokenizer", f"{about['made']['tokenizer']['name']}, {about['vocab_size']:,} ids{end}")
    if layout.pack == "document":
        share = counts["padding"] / (about["num_rows"] * width)
        _say("padding", f"{counts['padding']:,} tokens, {share:.1%} of all; token {about['pad']}")
    for line in _left_out(counts, layout.long):
        _say("left out", line)
    _say("dataset", f"{out.name}@sha256:{about['sha256']}")
    if "megatron" in about:
        _say("megatron", f"dataset {out.name}@sha256:{about['megatron']['sha256']}")
        prefix = out / about["megatron"]["prefix"]
        if layout.format == "gpt":
            _say(
                "",
                f"--data-path {prefix} --split 100,0,0 --seq-length {about['seq_len']}: these rows, shuffled by its --seed",
            )
        else:
            _say("", f"{prefix}.bin, .idx: a sequence a row (GPTDataset would cut them anew: see --format gpt)")
    return 0


def _left_out(counts: dict[str, Any], long: str) -> list[str]:
    """Return what didn't become a row, a line each."""
    out = [f"{d['count']:,} {reason} (first: {d['first']})" for reason, d in counts["dropped"].items()]
    if counts["unfinished"]:
        out.append(f"{counts['unfinished']:,} tokens of a last row that is not full")
    if counts["long_documents"]:
        what = {"cut": "cut", "drop": "left out whole", "split": "split over several rows"}[long]
        out.append(f"{counts['cut']:,} tokens: {counts['long_documents']:,} documents longer than a row were {what}")
    if counts["stopped_at_num_rows"]:
        out.append("what follows the last row asked for (--num-rows)")
    return out


def masks(arguments: argparse.Namespace) -> int:
    """Write loss masks beside rows, and say what they mean for a campaign."""
    from attuner.datatools.masks import Keep, consequence, make_masks

    keep = Keep(
        no_padding=arguments.no_padding,
        no_document_ends=arguments.no_document_ends,
        after=arguments.after,
        until=arguments.until,
    )
    masked = make_masks(Path(arguments.rows), keep, force=arguments.force, tokenizer=arguments.tokenizer)
    if arguments.json:
        print(json.dumps({**asdict(masked), "loss_masks": masked.uniform, "consequence": consequence(masked)}, indent=1))
        return 0
    share = masked.loss_tokens / masked.num_labels
    _say("masks", f"{masked.loss_tokens:,} of {masked.num_labels:,} labels count ({share:.1%}), in {arguments.rows}")
    spread = f"{masked.fewest:,} in every row" if masked.fewest == masked.most else f"{masked.fewest:,} to {masked.most:,}"
    _say("a row", f"{spread} ({masked.num_rows:,} rows, mean {masked.loss_tokens / masked.num_rows:,.1f})")
    for line in consequence(masked):
        _say("so", line)
    _say("digest", f"sha256:{masked.sha256}")
    return 0


def lengths(arguments: argparse.Namespace) -> int:
    """Measure documents in tokens; print, and draw where asked."""
    from attuner.datatools.lengths import measure

    words = arguments.seq_len.split(",")
    if not all(w.strip().isdecimal() for w in words):
        raise UserError(f"--seq-len {arguments.seq_len}: numbers separated by commas")
    with _progress(quiet=arguments.json) as progress:
        stream = open_stream(arguments.sources, _reading(arguments), progress=progress)
        found = measure(stream, [int(w) for w in words])
    if arguments.html or arguments.svg:
        from attuner.report import lengths_page

        for path, make in ((arguments.html, lengths_page.page), (arguments.svg, lengths_page.picture)):
            if path:
                _write(Path(path), make(found, _title(stream)))
    if arguments.json:
        print(json.dumps({**found.data(), "counts": stream.tally.data()}, indent=1, ensure_ascii=False))
        return 0
    from attuner.report.lengths_text import lines

    print("\n".join(lines(found)))
    for reason, count in sorted(stream.tally.dropped.items()):
        _say("left out", f"{count:,} {reason} (first: {stream.tally.first[reason]})")
    for name, path in (("page", arguments.html), ("picture", arguments.svg)):
        if path:
            _say(name, path)
    return 0


def rollout(arguments: argparse.Namespace) -> int:
    """Write slime's debug rollout files from rows."""
    from attuner.datatools.rollout import TEMPLATE, Rollout, make_rollout

    wish = Rollout(
        steps=arguments.steps,
        rollout_batch_size=arguments.rollout_batch_size,
        samples_per_prompt=arguments.samples_per_prompt,
        first_row=arguments.first_row,
        first_rollout=arguments.first_rollout,
        rewards=arguments.rewards,
        trim=arguments.trim,
    )
    out = Path(arguments.out)
    told = make_rollout(Path(arguments.rows), out, wish, force=arguments.force)
    if arguments.json:
        print(json.dumps({"folder": str(out), **told}, indent=1))
        return 0
    size = wish.rollout_batch_size * wish.samples_per_prompt
    _say("rollouts", f"{wish.steps:,} files of {size:,} samples, {told['loss_tokens']:,} loss tokens, in {out}")
    _say("dataset", f"{out / TEMPLATE}@sha256:{told['sha256']}")
    if told["samples_without_loss"]:
        _say("note", f"{told['samples_without_loss']:,} samples have no loss token")
    if wish.samples_per_prompt == 1 and wish.rewards == "alternate":
        _say(
            "note",
            "one sample a prompt: advantages normalised within a prompt are all zero (GRPO); --loss-type sft_loss needs none",
        )
    _say(
        "slime",
        f"--load-debug-rollout-data '{out / TEMPLATE}' --num-rollout {wish.first_rollout + wish.steps} "
        f"--rollout-batch-size {wish.rollout_batch_size} --n-samples-per-prompt {wish.samples_per_prompt} "
        f"--global-batch-size {size}",
    )
    return 0


def _reading(arguments: argparse.Namespace) -> Reading:
    if arguments.max_document_mib < 1:
        raise UserError(f"--max-document-mib {arguments.max_document_mib}: at least 1")
    return Reading(
        tokenizer=arguments.tokenizer,
        allow_download=arguments.allow_download,
        key=arguments.key,
        kind=arguments.kind,
        eos=arguments.eos,
        vocab_size=arguments.vocab_size,
        max_document_bytes=arguments.max_document_mib << 20,
        strict=arguments.strict,
    )


def _title(stream: Stream) -> str:
    names = [shown(s.path) for s in stream.sources]
    return names[0] if len(names) == 1 else f"{len(names):,} files"


def _say(label: str, words: str) -> None:
    print(f"  {label:{_LABEL}}{words}")


def _size(num_bytes: int) -> str:
    if num_bytes < 1000:
        return f"{num_bytes} bytes"
    return f"{num_bytes / 1e9:,.2f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:,.2f} MB"


def _write(path: Path, text: str) -> None:
    from attuner.datatools.output import writing

    part = path.with_name(f".{path.name}.part")
    with writing(path):
        try:
            part.write_text(text, encoding="utf-8")
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)


@contextmanager
def _progress(*, quiet: bool) -> Iterator[Progress | None]:
    """Give what keeps one line on a terminal up to date; None elsewhere."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    begun, shown = time.monotonic(), [0.0]

    def show(done: int, total: int) -> None:
        now = time.monotonic()
        if now - shown[0] < 0.25:
            return
        shown[0] = now
        rate = done / max(now - begun, 1e-9)
        left = f", {max(total - done, 0) / rate:,.0f} s left" if done and now - begun > 2 else ""
        share = f"{min(done / total, 1):.0%}" if total else ""
        print(f"\r\x1b[K  reading     {share} of {_size(total)}, {rate / 1e6:,.0f} MB/s{left}", end="", file=sys.stderr)
        sys.stderr.flush()

    try:
        yield show
    finally:
        if shown[0]:
            print("\r\x1b[K", end="", file=sys.stderr)
