"""Files of lessons: read as people wrote them, drafts written, a person's word noted in place, and the record of audits.

A review is noted by adding lines to the entry; the rest of the file, its comments among them, stays as it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import yaml

from attuner.core.errors import UserError
from attuner.core.lesson import Lesson, LessonAudit, LessonKnown, LessonReview
from attuner.policy import lessons as policy
from attuner.yamlfile import documents, parse, read_yaml

AUDIT = "AUDIT.yaml"
"""Beside the lessons: what the last audit said of each."""
KNOWN = "KNOWN.yaml"
"""Beside the lessons: what a model, asked without them, knew of each."""
RECORDS = (AUDIT, KNOWN)
"""Files in a folder of lessons that hold none."""
HEAD_KNOWN = """\
# What a model knew of each lesson when it was asked without it (`attuner lessons audit --model NAME`). Advice to whoever curates:
# what it knows by itself need not be kept for it. Written by it; a lesson that claims something else by now counts as not asked.
"""
HEAD_AUDIT = """\
# What the last `attuner lessons audit` said of each lesson; those that are wrong, too broad or unsupported are not read.
# Written by it. A lesson that claims something else by now counts as not audited.
"""
HEAD_DRAFT = """\
# Lessons drafted from the ledger's records alone. Read each against its evidence, widen or reword it, then
#   attuner lessons review THIS_FILE --as NAME --accept ID   (or --reject ID --why TEXT)
# and move the file into configs/lessons/STACK/. Nothing here is read before that. See docs/lessons.md, Curating.
"""
NEW_STATUS = {"accepted": "tentative", "rejected": "rejected"}


def read_lessons(file: Path) -> list[Lesson]:
    """Return the lessons of one file.

    Raises:
        UserError: an entry is malformed, or an id stands twice; the line names file, lesson and key.
    """
    return _lessons(read_yaml(file), file)


def _lessons(entries: Any, file: Path) -> list[Lesson]:
    if not isinstance(entries, list):
        raise UserError(f"{file}: expected a list of lessons")
    found: dict[str, Lesson] = {}
    for entry in entries:
        name = entry.get("id", "?") if isinstance(entry, dict) else "?"
        lesson = parse(Lesson, entry, f"{file}: lesson {name}")
        if wrong := policy.problems(lesson):
            raise UserError(f"{file}: lesson {name}: {wrong[0]}")
        if lesson.id in found:
            raise UserError(f"{file}: lesson {name} stands twice; give one another id")
        found[lesson.id] = lesson
    return list(found.values())


def lesson_files(folder: Path) -> list[Path]:
    """Return every file of lessons in a folder and in its stacks' folders."""
    return [p for p in [*sorted(folder.glob("*.yaml")), *sorted(folder.glob("*/*.yaml"))] if p.name not in RECORDS]


def write_drafts(file: Path, drafts: Sequence[Lesson]) -> None:
    """Write drafts for a person to edit; never over a file that is there.

    Raises:
        UserError: the file is there, or can't be written.
    """
    if file.exists():
        raise UserError(f"{file}: is there already, perhaps with a person's edits; move it, or give another folder with -o")
    entries = [_plain(x) for x in drafts]
    _write(file, HEAD_DRAFT + _dump(entries))


def _plain(lesson: Lesson) -> dict[str, Any]:
    """Return a lesson without what it leaves at its default."""
    said = lesson.model_dump(mode="json", exclude_defaults=True)
    if lesson.claim is not None:
        said["claim"] = lesson.claim.model_dump(mode="json", exclude_defaults=True)
    return said


def as_yaml(lesson: Lesson) -> str:
    """Return one lesson as a person would write it."""
    return _dump([_plain(lesson)])


def _dump(entries: list[dict[str, Any]]) -> str:
    return str(yaml.safe_dump(entries, sort_keys=False, allow_unicode=True, width=120))


def load_audits(folder: Path) -> dict[str, LessonAudit]:
    """Return what the last audit said of each lesson, by id; empty if there was none.

    Raises:
        UserError: the record of audits is malformed.
    """
    file = folder / AUDIT
    if not file.is_file():
        return {}
    entries = read_yaml(file)
    if not isinstance(entries, list):
        raise UserError(f"{file}: expected a list of audits; remove the file and run `attuner lessons audit`")
    found = [parse(LessonAudit, x, f"{file}: {x.get('id', '?') if isinstance(x, dict) else '?'}") for x in entries]
    return {x.id: x for x in found}


def write_audits(folder: Path, audits: Iterable[LessonAudit]) -> Path:
    """Put audits on record beside the lessons and return the file.

    Raises:
        UserError: it can't be written.
    """
    file = folder / AUDIT
    entries = [x.model_dump(mode="json", exclude_defaults=True) for x in sorted(audits, key=lambda x: x.id)]
    _write(file, HEAD_AUDIT + _dump(entries))
    return file


def load_known(folder: Path) -> list[LessonKnown]:
    """Return what models knew of each lesson; empty if none was asked.

    Raises:
        UserError: the record is malformed.
    """
    file = folder / KNOWN
    entries = read_yaml(file) if file.is_file() else []
    if not isinstance(entries, list):
        raise UserError(f"{file}: expected a list of marks; remove the file and run `attuner lessons audit --model NAME`")
    return [parse(LessonKnown, x, f"{file}: {x.get('id', '?') if isinstance(x, dict) else '?'}") for x in entries]


def write_known(folder: Path, marks: Iterable[LessonKnown]) -> Path:
    """Put marks on record beside the lessons, in place of older ones of the same lesson and model, and return the file.

    Raises:
        UserError: the record that is there is malformed, or the file can't be written.
    """
    file = folder / KNOWN
    held = {(x.id, x.model): x for x in [*load_known(folder), *marks]}
    entries = [held[k].model_dump(mode="json", exclude_defaults=True) for k in sorted(held)]
    _write(file, HEAD_KNOWN + _dump(entries))
    return file


def _write(file: Path, text: str) -> None:
    """Replace a file as a whole, so that nobody reads half of it."""
    fresh = file.with_name(f".{file.name}.new")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        fresh.write_text(text, encoding="utf-8")
        fresh.replace(file)
    except OSError as error:
        raise UserError(
            f"{file}: can't be written: {error.strerror or error}; lessons are kept in a folder that can be written to"
        ) from None


# ---------------------------------------------------------------------------- a person's word


def note_reviews(file: Path, reviews: dict[str, LessonReview]) -> list[Lesson]:
    """Note who accepted or rejected which lessons of a file, and return these lessons as they are now.

    Args:
        file: a file of lessons.
        reviews: by lesson id.

    Raises:
        UserError: the file is malformed or written in a style that can't be added to; it is left as it was.
    """
    before = {x.id: x for x in read_lessons(file)}
    text = file.read_text(encoding="utf-8")
    for lesson_id, review in reviews.items():
        text = _noted(text, before[lesson_id], review, file)
    after = {x.id: x for x in _lessons(documents(text, file)[0], file)}
    for lesson_id, old in before.items():
        given = reviews.get(lesson_id)
        wanted = old if given is None else _reviewed(old, given)
        if after.get(lesson_id) != wanted:
            raise UserError(f"{file}: lesson {lesson_id}: can't be added to as it is written; write its keys one a line")
    _write(file, text)
    return [after[x] for x in reviews]


def _reviewed(lesson: Lesson, review: LessonReview) -> Lesson:
    """Return a lesson with a person's word; one that is confirmed already and accepted again stays so."""
    status = NEW_STATUS[review.decision]
    if review.decision == "accepted" and lesson.status == "confirmed":
        status = "confirmed"
    return lesson.model_copy(update={"status": status, "reviews": [*lesson.reviews, review]})


def _noted(text: str, lesson: Lesson, review: LessonReview, file: Path) -> str:
    """Return a file's text with one entry's status and reviews replaced, or added after the line of its id."""
    wanted = _reviewed(lesson, review)
    new = {"status": wanted.status, "reviews": [x.model_dump(mode="json", exclude_defaults=True) for x in wanted.reviews]}
    node: Any = yaml.compose(text, Loader=yaml.SafeLoader)
    entry = next(x for x in node.value if any(k.value == "id" and v.value == lesson.id for k, v in x.value))
    if entry.flow_style:
        raise UserError(f"{file}: lesson {lesson.id}: is written in braces; write its keys one a line")
    places = {k.value: (k, v) for k, v in entry.value}
    key, value = places["id"]
    line_end = text.find("\n", value.end_mark.index)
    line_end = len(text) if line_end < 0 else line_end
    edits: list[tuple[int, int, str]] = []
    for name, content in new.items():
        said = yaml.safe_dump(content, default_flow_style=True, allow_unicode=True, width=10**6).removesuffix("\n...\n").strip()
        if name in places:
            label, old = places[name]
            edits.append((text.index(":", label.end_mark.index) + 1, _end(old), f" {said}"))
        else:
            edits.append((line_end, line_end, f"\n{' ' * key.start_mark.column}{name}: {said}"))
    for start, end, said in sorted(edits, key=lambda e: -e[0]):
        text = text[:start] + said + text[end:]
    return text


def _end(node: Any) -> int:
    """Return where a node's own text ends: of one in block style, the comments after it are not part of it."""
    if isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        return _end(last[1] if isinstance(last, tuple) else last)
    return int(node.end_mark.index)
