"""`attuner settings`: one line for everything that can be set: environment variables, and every key of files that people write.

Made from the records that read these files, so that it can't go stale; `--markdown` prints docs/settings.md.
"""

from __future__ import annotations

import argparse
import json
import types
import typing
from collections.abc import Iterator
from typing import Any, Literal

import annotated_types
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from attuner.config import AT_BIRTH, RecipeFile
from attuner.core.base import Record
from attuner.core.campaign import Campaign, Cluster
from attuner.settings import INHERITED, KNOWN
from attuner.watchfile import WatchList
from attuner.wiring import CLAUDE_ALSO, CLAUDE_KEY

MARKS = {
    "ATTUNER_RAY_ID": "mark on the processes of a local Ray: whose it is; set by attuner",
    "ATTUNER_SERVES": "mark on what a run starts beside itself, by which it is found again; set by attuner",
    "ATTUNER_IMAGE_DIGEST": "set in a container image: its digest, which runs put on record",
}
OTHERS = {
    CLAUDE_KEY: "key of the Messages API; for proposer claude and `attuner lessons audit --model`; on no record",
    " ".join(CLAUDE_ALSO): "how this machine reaches the network; passed on to the process that talks to a model",
    "PREFECT_API_URL": "Prefect server; without it `attuner run` starts one of its own for the run (docs/prefect.md)",
    "KUBECONFIG": "way to a Kubernetes cluster, where the cluster file names none (launcher kuberay)",
    "AWS_*": "credentials of the storage, where `storage` is s3://…, as boto3 reads them; on no record",
}
ALSO = {
    "campaign:workload.model": "name of the model, for rules, lessons and reports",
    "campaign:workload.seq_len": "tokens of a row",
    "campaign:workload.precision": "bf16, fp16 or fp32",
    "campaign:workload.seed": "of rows, weights and routing",
    "campaign:workload.warmup_steps": "first steps of a launch, without a score; at least 2, where the probe looks",
    "campaign:workload.hardware": "name of the device, for rules, lessons and prices",
    "recipe:stack": "the framework that it is written for",
    "recipe:arguments": "arguments by the framework's own names",
    "recipe:env": "environment variables of the run; no secrets",
    "recipe:published": "what its authors report of it",
    "recipe:adaptations": "what was changed to run it here",
    "watch:recipes.enabled": "false: left alone, unless it is named by `only`",
}
"""Words for keys of records that judge (a description there would move the lock of the rules), and of files by place."""
ELSEWHERE = {
    "baseline": "a recipe: a file (recipes/…), or its keys inline",
    "launcher.cluster": "a cluster: a file (clusters/…), or its keys inline",
}
"""Records of a campaign file that may be files of their own; their keys stand in their own section."""
WORDS = {
    str: "text",
    int: "whole number",
    float: "number",
    bool: "true or false",
    type(None): "none",
    object: "anything",
    Any: "anything",
}
MAX_DEFAULT = 60


class Setting(Record):
    """One thing that can be set."""

    section: str
    key: str
    kind: str = ""
    default: str = ""
    what: str


def settings() -> list[Setting]:
    """Return every setting, in the order of the page."""
    env = [
        Setting(section="environment", key=k, what=v) for k, v in {**KNOWN, **{k: MARKS[k] for k in INHERITED}, **OTHERS}.items()
    ]
    files: list[tuple[str, type[BaseModel]]] = [
        ("campaign", Campaign),
        ("recipe", RecipeFile),
        ("cluster", Cluster),
        ("watch", WatchList),
    ]
    return [*env, *(x for section, model in files for x in _keys(section, model))]


def _keys(section: str, model: type[BaseModel], prefix: str = "") -> Iterator[Setting]:
    for name, field in model.model_fields.items():
        key = f"{prefix}{name}"
        if section == "campaign" and key in AT_BIRTH:
            continue
        inner = _records(field.annotation)
        if section == "campaign" and key in ELSEWHERE:
            yield Setting(section=section, key=key, kind="file or keys", default=_default(field), what=ELSEWHERE[key])
            continue
        what = field.description or ALSO.get(f"{section}:{key}", "") or (_first_line(inner[0]) if inner else "")
        yield Setting(section=section, key=key, kind=_kind(field, inner), default="" if inner else _default(field), what=what)
        for record in inner:
            yield from _keys(section, record, f"{key}.{'NAME.' if _origin(field.annotation) is dict else ''}")


def _origin(annotation: Any) -> Any:
    return typing.get_origin(annotation)


def _parts(annotation: Any) -> tuple[Any, ...]:
    """Return what a union or an annotated type is made of."""
    if _origin(annotation) is typing.Annotated:
        return _parts(typing.get_args(annotation)[0])
    if _origin(annotation) in (typing.Union, types.UnionType):
        return tuple(p for a in typing.get_args(annotation) for p in _parts(a))
    return (annotation,)


def _records(annotation: Any) -> list[type[BaseModel]]:
    """Return the records that a value of this type holds."""
    found = []
    for part in _parts(annotation):
        if isinstance(part, type) and issubclass(part, BaseModel):
            found.append(part)
        elif _origin(part) in (list, dict):
            found += _records(typing.get_args(part)[-1])
    return found


def _first_line(record: type[BaseModel]) -> str:
    """Return the first sentence of a record's docstring."""
    words = " ".join((record.__doc__ or "").split())
    return words.partition(". ")[0].rstrip(".")


def _kind(field: FieldInfo, inner: list[type[BaseModel]]) -> str:
    if inner:
        shape = {list: "list of keys", dict: "keys by name"}
        return next((shape[_origin(p)] for p in _parts(field.annotation) if _origin(p) in shape), "keys")
    limits = [said for m in field.metadata if (said := _limit(m))]
    return ", ".join([_words(field.annotation), *limits])


def _words(annotation: Any) -> str:
    said = []
    for part in _parts(annotation):
        origin, inside = _origin(part), typing.get_args(part)
        if origin is Literal:
            said += [str(x) if x != "" else "''" for x in inside]
        elif origin is list:
            said.append(f"list of {_words(inside[0])}")
        elif origin is dict:
            said.append(f"{_words(inside[1])} by name")
        else:
            said.append(WORDS.get(part, getattr(part, "__name__", str(part))))
    told = list(dict.fromkeys(said))
    scalar = {"true or false", "whole number", "number", "text", "none"}
    return "value" if scalar <= {*told} else " or ".join(x for x in told if x != "none" or len(told) == 1)


def _limit(metadata: Any) -> str:
    marks = (
        (annotated_types.Gt, "gt", ">"),
        (annotated_types.Ge, "ge", "≥"),
        (annotated_types.Lt, "lt", "<"),
        (annotated_types.Le, "le", "≤"),
    )
    return next((f"{sign} {getattr(metadata, name):g}" for kind, name, sign in marks if isinstance(metadata, kind)), "")


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    plain = value.model_dump(mode="json") if isinstance(value, BaseModel) else value
    if plain in ("", None, [], {}):
        return ""
    return json.dumps(plain, ensure_ascii=False)[:MAX_DEFAULT].strip('"')


HEADS = {
    "environment": "Environment variables",
    "campaign": "Campaign file (`configs/campaigns/*.yaml`, docs/campaigns.md)",
    "recipe": "Recipe file (`configs/recipes/STACK/*.yaml`)",
    "cluster": "Cluster file (`configs/clusters/*.yaml`, docs/ray.md, docs/kubernetes.md)",
    "watch": "`configs/watch.yaml` (docs/nightly.md)",
}


def page() -> str:
    """Return docs/settings.md."""
    parts = [
        "# Every setting, one line each",
        "Written by `attuner settings --markdown > docs/settings.md`; a test compares the two. A key that isn't here is an\n"
        "error where it is written. Options of a command: `attuner VERB --help`.",
    ]
    found = settings()
    for section, head in HEADS.items():
        own = [x for x in found if x.section == section]
        parts.append(f"## {head}")
        if section == "environment":
            rows = ["| variable | what |", "|---|---|", *(f"| `{x.key}` | {_cell(x.what)} |" for x in own)]
        else:
            rows = ["| key | value | default | what |", "|---|---|---|---|", *(_row(x) for x in own)]
        parts.append("\n".join(rows))
    return "\n\n".join(parts) + "\n"


def _row(x: Setting) -> str:
    default = x.default if x.default in ("", "required") else f"`{_cell(x.default)}`"
    return f"| `{x.key}` | {_cell(x.kind)} | {default} | {_cell(x.what)} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def show(arguments: argparse.Namespace) -> int:
    """Print the settings whose key, section or words hold what is asked for."""
    if arguments.markdown:
        print(page(), end="")
        return 0
    asked = arguments.word.lower()
    found = [x for x in settings() if asked in f"{x.section} {x.key} {x.what}".lower()]
    if arguments.json:
        print(json.dumps([x.data() for x in found], indent=1, ensure_ascii=False))
        return 0
    for x in found:
        value = ", ".join(v for v in (x.kind, f"default {x.default}" if x.default not in ("", "required") else x.default) if v)
        print(f"{x.section:11} {x.key}\n            {x.what}" + (f" ({value})" if value else ""))
    print(f"{len(found)} settings")
    return 0
