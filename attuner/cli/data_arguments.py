"""The words of `attuner data`: its four acts and their options. Light: main builds it for every command."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

Add = Callable[..., argparse.ArgumentParser]
"""main's own way of adding a verb: (acts, name, text, "module:function", json=…)."""


def add_data(verbs: Any, add: Add, parser_class: type[argparse.ArgumentParser]) -> None:
    """Add `data` with its acts to the command line's verbs."""
    data = verbs.add_parser("data", help="rows to train on, loss masks, lengths of documents, rollouts for slime")
    acts = data.add_subparsers(dest="act", required=True, metavar="ACT", parser_class=parser_class)
    _rows(acts, add)
    _masks(acts, add)
    _lengths(acts, add)
    _rollout(acts, add)


def _rows(acts: Any, add: Add) -> None:
    rows = add(acts, "rows", "fixed-length rows from text, JSONL or Megatron .bin/.idx", "data:rows", json=True)
    _sources(rows)
    rows.add_argument("-o", "--out", required=True, metavar="DIR", help="new folder for the rows")
    rows.add_argument(
        "--seq-len", type=int, required=True, metavar="N", help="tokens of a row; one more is stored, the last label"
    )
    rows.add_argument(
        "--pack",
        choices=["concatenate", "document"],
        default="concatenate",
        help="documents end to end (default), or one a row, padded",
    )
    rows.add_argument(
        "--long",
        choices=["cut", "split", "drop"],
        default="cut",
        help="with --pack document: one longer than a row (default cut)",
    )
    rows.add_argument("--pad", default="auto", metavar="TOKEN", help="padding: an id or a token (default: the tokenizer's own)")
    rows.add_argument("--shuffle", type=int, default=None, metavar="SEED", help="shuffle the rows (default: the sources' order)")
    rows.add_argument("--num-rows", type=int, default=None, metavar="N", help="stop after N rows")
    rows.add_argument(
        "--format",
        choices=["rows", "megatron", "gpt"],
        default="rows",
        help="megatron: rows.bin/.idx, a sequence a row; gpt: stream.bin/.idx, of which --data-path cuts exactly these rows",
    )
    rows.add_argument("--force", action="store_true", help="replace rows that are there")


def _masks(acts: Any, add: Add) -> None:
    masks = add(acts, "masks", "which labels of rows count in the loss, and what that means", "data:masks", json=True)
    masks.add_argument("rows", metavar="ROWS", help="folder of rows")
    masks.add_argument("--no-padding", action="store_true", help="padding doesn't count")
    masks.add_argument(
        "--no-document-ends", action="store_true", help="what follows an end token doesn't count (--eod-mask-loss)"
    )
    masks.add_argument("--after", default="", metavar="MARK", help="only what follows this: text, or ids:1,2,3")
    masks.add_argument("--until", default="", metavar="MARK", help="with --after: up to and with this (default: the row's end)")
    masks.add_argument("--tokenizer", default="", metavar="FILE", help="for marks as text (default: the one in rows.json)")
    masks.add_argument("--force", action="store_true", help="replace masks that are there")


def _lengths(acts: Any, add: Add) -> None:
    lengths = add(
        acts, "lengths", "how long documents are, and what rows of several lengths make of them", "data:lengths", json=True
    )
    _sources(lengths)
    lengths.add_argument(
        "--seq-len", default="1024,2048,4096,8192", metavar="N,N", help="sequence lengths to try (default 1024,2048,4096,8192)"
    )
    lengths.add_argument("--html", default="", metavar="FILE", help="write a page with the pictures there")
    lengths.add_argument("--svg", default="", metavar="FILE", help="write the picture of the lengths there")


def _rollout(acts: Any, add: Add) -> None:
    rollout = add(acts, "rollout", "slime's debug rollout files from rows (--load-debug-rollout-data)", "data:rollout", json=True)
    rollout.add_argument("rows", metavar="ROWS", help="folder of rows")
    rollout.add_argument("-o", "--out", required=True, metavar="DIR", help="new folder for the files, one a step")
    rollout.add_argument("--steps", type=int, required=True, metavar="N", help="rollouts: one a training step")
    rollout.add_argument("--rollout-batch-size", type=int, required=True, metavar="N", help="prompts of a rollout")
    rollout.add_argument(
        "--samples-per-prompt",
        type=int,
        default=1,
        metavar="N",
        help="rows a prompt (default 1); times prompts: the global batch",
    )
    rollout.add_argument("--first-row", type=int, default=0, metavar="N")
    rollout.add_argument(
        "--first-rollout", type=int, default=0, metavar="N", help="number of the first file: one above the loaded checkpoint's"
    )
    rollout.add_argument(
        "--rewards",
        choices=["alternate", "zero"],
        default="alternate",
        help="1 and 0 in turn within a prompt (default), so that advantages aren't all zero; or 0",
    )
    rollout.add_argument("--trim", action="store_true", help="leave out what follows a row's last loss token")
    rollout.add_argument("--force", action="store_true", help="replace files that are there")


def _sources(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("sources", metavar="SOURCE", nargs="+", help="text or .jsonl files (.gz too), folders, NAME.bin/.idx")
    sub.add_argument("--tokenizer", default="bytes", metavar="FILE", help="bytes (default), a tokenizer.json, or its folder")
    sub.add_argument("--allow-download", action="store_true", help="--tokenizer may be a name on the Hugging Face hub")
    sub.add_argument("--key", default="text", help="JSONL: where the text is (default text)")
    sub.add_argument(
        "--kind", choices=["text", "jsonl", "megatron"], default="", help="what the sources are (default: told by their names)"
    )
    sub.add_argument(
        "--eos", default="auto", metavar="TOKEN", help="end of a document: an id, a token, or none (default: the tokenizer's own)"
    )
    sub.add_argument("--vocab-size", type=int, default=None, metavar="N", help="the model's; an id that isn't below is an error")
    sub.add_argument("--max-document-mib", type=int, default=64, metavar="N", help="longer ones are left out (default 64)")
    sub.add_argument("--strict", action="store_true", help="refuse instead of leaving out")
