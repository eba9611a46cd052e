"""The words of `attuner import`, and of `attuner check` for a recipe alone. Light: main builds it for every command."""

from __future__ import annotations

import argparse

FORMATS = ("script", "rayjob", "dump", "megatron-yaml", "bridge", "automodel")


def add_import(sub: argparse.ArgumentParser) -> None:
    """Add the options of `attuner import`."""
    sub.add_argument("file", metavar="SOURCE", help="launch script, RayJob manifest, log with an argument dump, or configuration")
    sub.add_argument("-o", "--out", required=True, metavar="FILE", help="recipe file to write")
    sub.add_argument("--force", action="store_true", help="write over an existing file")
    sub.add_argument("--format", default="", choices=["", *FORMATS], help="what the source is (default: told by its content)")
    sub.add_argument("--set", action="append", default=[], metavar="VAR=VALUE", help="variable that the script's caller sets")
    sub.add_argument("--root", default="", metavar="DIR", help="folder that files named by the source must lie in")
    sub.add_argument("--launch", type=int, default=0, metavar="N", help="which training, if the script starts several")
    sub.add_argument("--source", default="", metavar="DIR", help="checkout of Megatron-LM (default: ATTUNER_MEGATRON_SRC)")
    sub.add_argument("--slime-source", default="", metavar="DIR", help="checkout of slime (default: ATTUNER_SLIME_SRC)")
    sub.add_argument("--gpus", type=int, default=0, metavar="N", help="fit the layout to N devices, with the smallest change")
    sub.add_argument("--published", type=float, default=None, metavar="VALUE", help="figure that its authors report")
    sub.add_argument("--published-source", default="", metavar="TEXT", help="where they report it")
    sub.add_argument("--published-unit", default="", metavar="UNIT", help="default: tokens/s/GPU")


def add_recipe_check(sub: argparse.ArgumentParser) -> None:
    """Add what `attuner check` must be told where a campaign does not say it."""
    sub.add_argument("--gpus", type=int, default=0, metavar="N", help="of a recipe alone: devices")
    sub.add_argument("--cluster", default="", metavar="FILE", help="of a recipe alone: cluster file, for the estimate")
    sub.add_argument("--source", default="", metavar="DIR", help="of a recipe alone: checkout (default: ATTUNER_MEGATRON_SRC)")
