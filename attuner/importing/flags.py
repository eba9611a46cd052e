"""From the words of a command line to a recipe's arguments, by a framework's list of options: what each means, which one wins,
which one nobody knows."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from attuner.core.base import Scalar, Value
from attuner.importing.model import NUMBER, Notes, plain

_OFF = re.compile(r"--(no|disable)-|-no-")


@dataclass(frozen=True)
class Option:
    """One option: the argument it sets; whether it takes values ('' is not known); what it leaves if it takes none."""

    name: str
    takes: str = ""
    leaves: bool = True


@dataclass(frozen=True)
class Vocabulary:
    """The options of a framework.

    said: where they are from.
    whole: every option is in it; one that isn't is unknown to the framework.
    ignores: the framework drops unknown options without a word.
    """

    options: dict[str, Option]
    said: str
    whole: bool = True
    ignores: bool = False
    apart: tuple[str, ...] = ()
    names: frozenset[str] = field(default=frozenset())
    defaults: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of_catalogue(cls, entries: Iterable[dict[str, Any]], said: str, **more: Any) -> Vocabulary:
        """Return the options of a checkout's own parser: entries with name, options, default, takes."""
        options, defaults = {}, {}
        for entry in entries:
            defaults[entry["name"]] = str(entry["default"])
            for option in entry["options"]:
                leaves = _leaves(option, entry["name"], str(entry["default"]), len(entry["options"]))
                options[option] = Option(entry["name"], entry["takes"], leaves)
        return cls(options, said, names=frozenset(o.name for o in options.values()), defaults=defaults, **more)

    @classmethod
    def of_list(cls, flags: dict[str, list[str]], said: str, **more: Any) -> Vocabulary:
        """Return the options of a list of arguments with their flags, which doesn't say what takes values."""
        options = {f: Option(name, "", _leaves(f, name, "", 0)) for name, all_flags in flags.items() for f in all_flags}
        return cls(options, said, names=frozenset(flags), **more)


def _leaves(option: str, name: str, default: str, how_many: int) -> bool:
    """Return what a flag without a value leaves in its argument."""
    if default in ("True", "False") and how_many == 1:
        return default == "False"
    spelled = option.lstrip("-").replace("-", "_")
    if spelled == name:
        return True
    return not _OFF.search(option) and not (spelled.startswith("enable_") and name.startswith("disable_"))


@dataclass
class _Given:
    option: str
    words: list[str]
    glued: bool = False

    def shown(self) -> str:
        return " ".join([self.option, *self.words])


def read_flags(words: list[str], vocabulary: Vocabulary, notes: Notes) -> dict[str, Value]:
    """Return the arguments that the words of a command line set; the last one of each wins, and that is said."""
    arguments: dict[str, Value] = {}
    given: dict[str, _Given] = {}
    unchecked: list[str] = []
    for one in _options(words, vocabulary, notes):
        option = vocabulary.options.get(one.option)
        name = option.name if option else one.option.lstrip("-").replace("-", "_")
        if option is None and not one.option.startswith(vocabulary.apart or "\0"):
            if vocabulary.ignores and not vocabulary.whole:
                unchecked.append(one.option)
            if _unknown(one, vocabulary, notes):
                continue
        value = _value(one, option, name)
        if name in given:
            before = given[name]
            same = arguments[name] == value
            how = "twice, with the same value" if same else f"{one.shown()} comes later than {before.shown()} and wins"
            notes.add("overridden", f"{one.option}: {how}" if same else how)
            arguments.pop(name)
        given[name], arguments[name] = one, value
    if unchecked:
        text = f"{len(unchecked)} options are not in {vocabulary.said}, so presumably slime's own: {', '.join(unchecked)}"
        trap = (
            "slime drops an option it doesn't know without a word, a misspelled one too: give its checkout to have them checked"
        )
        notes.add("note", f"{trap}; {text}")
    return arguments


def _options(words: list[str], vocabulary: Vocabulary, notes: Notes) -> list[_Given]:
    """Return each option with the words that belong to it; what belongs to none is said."""
    found: list[_Given] = []
    room = 0
    for word in words:
        if re.match(r"--?[A-Za-z]", word) and not NUMBER.fullmatch(word):
            name, equals, value = word.partition("=")
            option = vocabulary.options.get(name)
            found.append(_Given(name, [value] if equals else [], bool(equals)))
            takes = option.takes if option else ""
            room = 0 if equals or takes == "flag" else 1 if takes == "value" else len(words)
        elif room:
            found[-1].words.append(word)
            room -= 1
        else:
            notes.add("unparsed", f"{word}: belongs to no option" + (f" (behind {found[-1].option})" if found else ""))
    return found


def _unknown(one: _Given, vocabulary: Vocabulary, notes: Notes) -> bool:
    """Say that an option is unknown; tell whether it has no effect, so that it is left out."""
    near = difflib.get_close_matches(one.option, vocabulary.options, n=1, cutoff=0.8 if vocabulary.whole else 0.92)
    hint = f"; did you mean {near[0]}?" if near else ""
    if vocabulary.whole and vocabulary.ignores:
        text = f"{one.shown()}: slime ignores an option it doesn't know without a word, so this has no effect and is left out"
        notes.add("unknown", text + hint)
        return True
    if vocabulary.ignores and not near:
        return False
    if vocabulary.ignores:
        text = f"{one.shown()}: not in {vocabulary.said}; slime would ignore a misspelled option without a word"
        notes.add("unknown", text + hint)
        return False
    notes.add("unknown", f"{one.shown()}: not in {vocabulary.said}{hint}; Megatron-LM stops at an option it doesn't know")
    return False


def _value(one: _Given, option: Option | None, name: str) -> Value:
    if not one.words:
        takes_values = option is not None and option.takes == "values"
        return [] if takes_values else option.leaves if option is not None else True
    values: list[Scalar] = [_scalar(word, name) for word in one.words]
    return values[0] if len(values) == 1 else values


def _scalar(word: str, name: str) -> Scalar:
    value = plain(word, name)
    return value if not isinstance(value, list) else word
