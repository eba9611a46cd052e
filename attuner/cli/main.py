"""The command `attuner`: parse, call, print.

Heavy imports stay inside the verbs, so that the gate and the rules answer at once.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from attuner import __version__
from attuner.cli.data_arguments import add_data
from attuner.cli.import_arguments import add_import, add_recipe_check
from attuner.cli.people_arguments import add_people
from attuner.core.errors import AttunerError

Verb = Callable[[argparse.Namespace], int]


class _Parser(argparse.ArgumentParser):
    """argparse whose errors are one line that names the mending."""

    def error(self, message: str) -> None:  # type: ignore[override]
        self.exit(2, f"attuner: {message}; see `{self.prog} --help`\n")


def parser() -> argparse.ArgumentParser:
    """Return the command line's parser."""
    top = _Parser(prog="attuner", description="Tunes LLM training recipes unattended; ships what still trains the same model.")
    top.add_argument("--version", action="version", version=f"attuner {__version__}")
    top.add_argument("--project", default="", metavar="DIR", help="checkout with flows/, rules/, configs/ (default: here)")
    verbs = top.add_subparsers(dest="verb", required=True, metavar="VERB", parser_class=_Parser)
    _campaign_verbs(verbs)
    _reading_verbs(verbs)
    _gate_verbs(verbs)
    add_people(verbs, _add)
    _lesson_verbs(verbs)
    _profile_verb(verbs)
    _triage_verb(verbs)
    _bench_verb(verbs)
    add_data(verbs, _add, _Parser)
    _cluster_verbs(verbs)
    return top


def _add(verbs: argparse._SubParsersAction[_Parser], name: str, text: str, verb: str, *, json: bool = False) -> _Parser:
    sub = verbs.add_parser(name, help=text, description=text)
    sub.set_defaults(call=verb)
    if json:
        sub.add_argument("--json", action="store_true", help="print JSON")
    return sub


def _campaign_verbs(verbs: argparse._SubParsersAction[_Parser]) -> None:
    run = _add(verbs, "run", "run a whole campaign", "run:run")
    run.add_argument("file", metavar="FILE", help="campaign file")
    run.add_argument("--quiet", action="store_true", help="print the last five lines only")
    resume = _add(verbs, "resume", "go on with a campaign that was cut off", "run:resume")
    resume.add_argument("campaign", metavar="CAMPAIGN", help="campaign id, or the start of it")
    resume.add_argument("--quiet", action="store_true", help="print the last five lines only")
    check = _add(verbs, "check", "validate a campaign file and show cost and verdict; spends nothing", "check:check", json=True)
    check.add_argument("file", metavar="FILE", help="campaign file, or a recipe file alone")
    add_recipe_check(check)
    about = "a baseline recipe from a launch script, manifest, log or configuration file; runs nothing"
    add_import(_add(verbs, "import", about, "imports:import_recipe", json=True))
    about = "memory per stage and step time of a recipe, from public figures; spends nothing"
    guess = _add(verbs, "estimate", about, "estimate:estimate", json=True)
    guess.add_argument("file", metavar="RECIPE|CAMPAIGN", help="recipe file, or a campaign file")
    guess.add_argument("--cluster", default="", metavar="FILE", help="cluster file with figures (default: the campaign's)")
    guess.add_argument("--gpus", type=int, default=0, help="devices (default: the campaign's, else the cluster's)")
    guess.add_argument("--global-batch", type=int, default=0, metavar="N", help="rows per update")
    guess.add_argument("--seq-len", type=int, default=0, metavar="N", help="tokens of a row")
    guess.add_argument("--precision", default="", choices=["", "bf16", "fp16", "fp32"], help="default: the recipe's")


def _reading_verbs(verbs: argparse._SubParsersAction[_Parser]) -> None:
    status = _add(verbs, "status", "what happened: one line a campaign, or one campaign's launches", "read:status", json=True)
    status.add_argument("campaign", metavar="CAMPAIGN", nargs="?", default="", help="campaign id, or the start of it")
    report = _add(verbs, "report", "write a campaign's report.md and report.html again", "read:report", json=True)
    report.add_argument("campaign", metavar="CAMPAIGN", help="campaign id, or the start of it")
    board = _add(verbs, "board", "one line per campaign: what was shipped, gain, cost", "board:board", json=True)
    board.add_argument("--html", default="", metavar="DIR", help="write a static site there: recipes, reports, comparison")
    board.add_argument("--prices", default="", metavar="FILE", help="price table for the site (default: the project's)")
    doctor = _add(verbs, "doctor", "is this installation fit to run unattended, and what to mend", "doctor:doctor", json=True)
    doctor.add_argument("--mend", action="store_true", help="make missing Prefect automations, free slots of dead runs")
    doctor.add_argument("file", nargs="*", help="campaign or cluster files: look at their clusters too")
    spend = _add(verbs, "spend", "where device-hours and dollars went: all campaigns, or one", "spend:spend", json=True)
    spend.add_argument("campaign", metavar="CAMPAIGN", nargs="?", default="", help="campaign id, or the start of it")
    spend.add_argument("--by", default="", choices=["", "campaign", "purpose", "outcome", "launcher", "hardware"], help="sum by")
    spend.add_argument("--prices", default="", metavar="FILE", help="price table (default: configs/device_prices.yaml)")
    every = _add(verbs, "settings", "everything that can be set, one line each", "settings:show", json=True)
    every.add_argument("word", metavar="WORD", nargs="?", default="", help="only those with this in key or text")
    every.add_argument("--markdown", action="store_true", help="print the page docs/settings.md")
    ledger = verbs.add_parser("ledger", help="verify or export the ledger")
    acts = ledger.add_subparsers(dest="act", required=True, metavar="ACT", parser_class=_Parser)
    verify = _add(acts, "verify", "find any edited, missing or reordered row, and a lost tail", "read:ledger_verify", json=True)
    verify.add_argument("campaign", metavar="CAMPAIGN", nargs="?", default="", help="one campaign only")
    export = _add(
        acts,
        "export",
        "write a snapshot for plain SQL (.duckdb, .parquet, .csv, .json), or one campaign as a replay table (CAMPAIGN TABLE.csv)",
        "read:ledger_export",
        json=True,
    )
    export.add_argument(
        "target", metavar="[CAMPAIGN] TARGET", nargs="+", help="file to write; before it the campaign, for a table"
    )


def _profile_verb(verbs: argparse._SubParsersAction[_Parser]) -> None:
    profile = _add(verbs, "profile", "where each step of a profiler trace went", "profile:profile", json=True)
    profile.add_argument("traces", metavar="TRACE", nargs="+", help="Kineto trace (.json, .json.gz), one a rank, or their folder")
    profile.add_argument("--html", default="", metavar="FILE", help="write the picture there")
    profile.add_argument("--top", type=int, default=8, help="longest kernels to list (default 8)")


def _triage_verb(verbs: argparse._SubParsersAction[_Parser]) -> None:
    triage = _add(verbs, "triage", "what failed first in a run's logs, and what to change next", "triage:triage", json=True)
    triage.add_argument("logs", metavar="LOG", nargs="+", help="logs of one run: files (.gz too), folders, or - for a pipe")
    triage.add_argument("--stack", default="", help="whose rules and levers (default: those of all)")


def _gate_verbs(verbs: argparse._SubParsersAction[_Parser]) -> None:
    gate = _add(verbs, "gate", "does this change what is trained? exit 0 admit, 3 review, 4 refuse", "gate:gate", json=True)
    gate.add_argument("base", metavar="BASE", help="baseline: a recipe file, or a campaign file; with --runs a run")
    gate.add_argument("candidate", metavar="CANDIDATE", help="candidate recipe file; with --runs a run")
    gate.add_argument("--runs", action="store_true", help="judge two finished runs: their folders, or Megatron logs")
    gate.add_argument(
        "--source",
        default="",
        metavar="DIR",
        help="megatron: checkout of the job's commit (default: stack.source, ATTUNER_MEGATRON_SRC)",
    )
    gate.add_argument("--stack", default="", help="with --runs: whose rules and tolerances (default: the runs' own)")
    gate.add_argument("--gpus", type=int, default=0, help="devices (default: the campaign's, else 1)")
    gate.add_argument("--device", choices=["cpu", "cuda"], default="", help="device kind (default: the campaign's, else cpu)")
    component = _add(
        verbs,
        "component-test",
        "run old and new of a same-math swap side by side, as a small job",
        "component:component_test",
        json=True,
    )
    component.add_argument("file", metavar="FILE", help="recipe file, or a campaign file (its cluster is used)")
    component.add_argument("change", metavar="KEY=VALUE", nargs="+", help="the swap, e.g. attention_implementation=sdpa")
    component.add_argument("--gpus", type=int, default=0, help="devices (default: the campaign's, else 1)")
    component.add_argument(
        "--device", choices=["cpu", "cuda"], default="", help="device kind (default: the campaign's, else cpu)"
    )
    rules = verbs.add_parser("rules", help="the register: check, list, explain, lock")
    acts = rules.add_subparsers(dest="act", required=True, metavar="ACT", parser_class=_Parser)
    for name, text in (("check", "evaluate every rule's examples and the lock"), ("list", "list the rules")):
        sub = _add(acts, name, text, f"rules:{name}_rules", json=True)
        sub.add_argument("--stack", default="", help="one stack only")
    explain = _add(acts, "explain", "what the register says of one argument", "rules:explain", json=True)
    explain.add_argument("argument", metavar="ARG", help="final argument, its flag, env:NAME or fact:NAME")
    explain.add_argument("--stack", default="", help="one stack only")
    levers = _add(acts, "levers", "the lever catalog", "levers:levers", json=True)
    levers.add_argument("--stack", default="", help="one stack only")
    levers.add_argument("--markdown", action="store_true", help="print the page docs/levers.md, of all stacks")
    _add(acts, "lock", "write rules/LOCK after a change of rules/ or attuner/policy", "rules:lock")


def _bench_verb(verbs: argparse._SubParsersAction[_Parser]) -> None:
    bench = _add(verbs, "bench", "compare proposers on replay tables, or on a real cluster", "bench:bench", json=True)
    bench.add_argument("tables", metavar="TABLE", nargs="*", help="replay tables: descriptions, or names in configs/replay/")
    bench.add_argument("--arms", default="catalog,tpe,random", metavar="A,B", help="proposers; NAME+prefilter, NAME-hold")
    bench.add_argument("--seeds", type=int, default=5, help="campaigns per table and arm (default 5)")
    bench.add_argument("--first-seed", type=int, default=0)
    bench.add_argument("--launches", type=int, default=30, help="search budget, in baseline launches (default 30)")
    bench.add_argument("--all-in", action="store_true", help="calibration and re-measurement are paid from the same budget")
    bench.add_argument("--early-stop", action="store_true", help="end trials that are surely slower than the leader")
    bench.add_argument("--perturb", action="append", default=[], metavar="NAME=F", help="inter_node_comm=2, compute=0.85")
    bench.add_argument("--jobs", type=int, default=1, help="processes (default 1)")
    bench.add_argument("--local", default="", metavar="FILE", help="run real campaigns of this file instead, arms in turn")
    bench.add_argument("--gpu-hours", type=float, default=None, help="with --local: device-hours of each (default: the file's)")
    bench.add_argument("--against", default="", metavar="ARM", help="arm that is tested against the others (default: the first)")
    bench.add_argument(
        "--add", action="append", default=[], metavar="CSV", help="campaigns.csv of an earlier bench, to show beside"
    )
    bench.add_argument("--out", default="", metavar="DIR", help="folder of bench.html and the CSV files (default: out/bench)")
    bench.add_argument("--quiet", action="store_true", help="no progress")


def _cluster_verbs(verbs: argparse._SubParsersAction[_Parser]) -> None:
    cluster = verbs.add_parser("cluster", help="look at a cluster before anything is paid for")
    acts = cluster.add_subparsers(dest="act", required=True, metavar="ACT", parser_class=_Parser)
    about = "rights, versions, image, storage, network, devices; exit 1 if something is to be mended; spends nothing"
    look = _add(acts, "doctor", about, "cluster:doctor", json=True)
    look.add_argument("file", metavar="FILE", help="campaign file, or a cluster file")


def _lesson_verbs(verbs: argparse._SubParsersAction[_Parser]) -> None:
    lessons = verbs.add_parser("lessons", help="what was learnt so far, with scope and source")
    acts = lessons.add_subparsers(dest="act", required=True, metavar="ACT", parser_class=_Parser)
    listed = _add(acts, "list", "list the lessons that proposers read", "lessons:list_lessons", json=True)
    listed.add_argument("--stack", default="", help="one stack only")
    listed.add_argument("--model", default="", help="those that may hold for a model's name, or for `dense` or `moe`")
    listed.add_argument("--lever", default="", metavar="GROUP", help="those that speak of a lever group")
    about = "draft lessons from what campaigns tried, for a person to review; ledger facts alone"
    drafted = _add(acts, "export", about, "lessons_write:export", json=True)
    drafted.add_argument("campaign", metavar="CAMPAIGN", nargs="?", default="", help="those that rest on one campaign as well")
    drafted.add_argument("-o", dest="out", default="", metavar="DIR", help="folder (default: ATTUNER_HOME/lessons)")
    review = _add(acts, "review", "say which drafts are accepted or rejected, by whom and why", "lessons_write:review", json=True)
    review.add_argument("files", metavar="FILE", nargs="+", help="files of lessons")
    review.add_argument("--as", dest="name", default="", metavar="NAME", help="who reviews")
    review.add_argument("--accept", nargs="+", action="extend", default=[], metavar="ID", help="lessons that may be read")
    review.add_argument("--reject", nargs="+", action="extend", default=[], metavar="ID", help="lessons that may not")
    review.add_argument("--why", default="", metavar="TEXT", help="reason; a rejection needs one")
    about = "check every lesson against all campaigns' records, and put on record which of them stand"
    audit = _add(acts, "audit", about, "lessons_write:audit", json=True)
    audit.add_argument("files", metavar="FILE", nargs="*", help="drafts to check as well, beside those in ATTUNER_HOME/lessons")
    audit.add_argument("--look", action="store_true", help="only look: put nothing on record")
    about = "ask this model what it knows of each lesson, without showing it any, and mark those worth keeping"
    audit.add_argument("--model", default="", metavar="NAME", help=about)
    audit.add_argument("--max-usd", type=float, default=5.0, metavar="X", help="dollars the model may cost (default 5)")
    audit.add_argument("--answers", type=int, default=3, metavar="N", help="answers to each question (default 3)")
    audit.add_argument("--again", action="store_true", help="ask also about lessons that the model was asked about before")
    audit.add_argument("--base-url", default="", metavar="URL", help="another server that speaks the Messages API")


def _asked(words: list[str]) -> list[str]:
    """Return the words of `rules explain --some-flag` with that flag as what is asked about: it is no option of ours."""
    at = next((i for i in range(len(words) - 1) if words[i : i + 2] == ["rules", "explain"]), None)
    if at is None:
        return words
    head, rest = words[: at + 2], words[at + 2 :]
    ours = ("--json", "--stack", "--help")
    flag = next((w for w in rest if w.startswith("--") and w.split("=")[0] not in (*ours, "--")), "")
    return [*head, *(w for w in rest if w != flag), "--", flag] if flag else words


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; errors are one line on stderr."""
    arguments = parser().parse_args(_asked(list(sys.argv[1:] if argv is None else argv)))
    module, function = arguments.call.split(":")
    try:
        verb: Verb = getattr(__import__(f"attuner.cli.{module}", fromlist=[function]), function)
        return verb(arguments)
    except AttunerError as error:
        print(f"attuner: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:  # `attuner ... | head`
        sys.stderr.close()
        return 0
    except KeyboardInterrupt:
        print("attuner: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
