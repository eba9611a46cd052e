"""From a recipe's arguments to the words of a command line, by the parser's own actions, and what a command line says of
itself: options given twice, options that nobody knows. A recipe names an argument by its destination in Megatron's namespace
(`layernorm_epsilon`) or by its option (`norm-epsilon`); `null` leaves it to its default. Standard library only."""

import argparse
import difflib
import enum
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .errors import ConfigError

ARGV = "argv"
"""Key of a recipe whose value is a list of words that are appended as they are."""


class Vocabulary:
    """What a parser understands."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self._by_dest: dict[str, list[argparse.Action]] = {}
        self._by_option: dict[str, argparse.Action] = {}
        self._spelled: dict[str, str] = {}
        for action in parser._actions:
            if action.dest == "help":
                continue
            self._by_dest.setdefault(action.dest, []).append(action)
            for option in action.option_strings:
                self._by_option[option] = action
                self._spelled.setdefault(_key(option), option)

    def dests(self) -> set[str]:
        """Return the destinations of all options."""
        return set(self._by_dest)

    def words(self, arguments: Mapping[str, Any], *, strict: bool = True) -> list[str]:
        """Return the command line of a recipe's arguments.

        strict: an unknown name is an error; else it is passed on, for a parser that ignores what it doesn't know.
        Raises: ConfigError for a name or a value that no option can express.
        """
        found: list[str] = []
        for name, value in arguments.items():
            if name != ARGV:
                found += self._words(name, value, strict=strict)
        raw = arguments.get(ARGV) or []
        if not isinstance(raw, list):
            raise ConfigError(f"{ARGV} = {raw!r}: must be a list of words")
        return found + [_text(ARGV, word) for word in raw]

    def _words(self, name: str, value: Any, *, strict: bool) -> list[str]:
        if value is None:
            return []
        key = _key(name)
        if key in self._by_dest:
            return self._of_dest(name, self._by_dest[key], value)
        option = self._spelled.get(key)
        if option is not None:
            return self._of_option(name, option, value)
        if strict:
            near = difflib.get_close_matches(key, [*self._by_dest, *self._spelled], n=1, cutoff=0.0)
            raise ConfigError(f"unknown argument {name}: did you mean {near[0]}?")
        shown = "--" + key.replace("_", "-")
        if isinstance(value, bool):
            return [shown] if value else []
        return [shown, *(_text(name, item) for item in (value if isinstance(value, list) else [value]))]

    def _of_dest(self, name: str, actions: Sequence[argparse.Action], value: Any) -> list[str]:
        """Return the option that leaves `value` in the namespace; none where that is the default anyway."""
        flags = [action for action in actions if action.nargs == 0]
        if not flags:
            return _valued(name, actions[0].option_strings[0], actions[0], value)
        if not isinstance(value, bool):
            raise ConfigError(f"{name} = {value!r}: must be true, false or null")
        for action in flags:
            if isinstance(action, argparse.BooleanOptionalAction):
                return [next(o for o in action.option_strings if o.startswith("--no-") != value)]
            if action.const == value:
                return [action.option_strings[0]]
        if actions[0].default == value:
            return []
        raise ConfigError(f"{name} = {value}: no option sets that; {flags[0].option_strings[0]} sets {flags[0].const}")

    def _of_option(self, name: str, option: str, value: Any) -> list[str]:
        """Return an option as named; a flag is given or not."""
        action = self._by_option[option]
        if action.nargs != 0:
            return _valued(name, option, action, value)
        if not isinstance(value, bool):
            raise ConfigError(f"{name} = {value!r}: {option} takes no value; write true or false")
        return [option] if value else []

    def given(self, words: Sequence[str]) -> Iterator[str]:
        """Yield the destination of every option in a command line, in order."""
        for word in words:
            action = self._by_option.get(word.partition("=")[0])
            if action is not None:
                yield action.dest

    def without(self, words: Sequence[str], dests: set[str]) -> list[str]:
        """Return a command line without the options that set one of `dests`, and without their values."""
        kept, dropping = [], False
        for word in words:
            action = self._by_option.get(word.partition("=")[0])
            if action is not None or (word.startswith("--") and not _number(word)):
                dropping = action is not None and action.dest in dests
            if not dropping:
                kept.append(word)
        return kept

    def duplicated(self, words: Sequence[str]) -> list[str]:
        """Return the destinations that are set more than once; the last one wins."""
        seen = list(self.given(words))
        return sorted({dest for dest in seen if seen.count(dest) > 1})

    def catalogue(self) -> list[dict[str, Any]]:
        """Return every argument: destination, options, default as text, and whether it takes values."""
        return [
            {
                "name": dest,
                "options": [option for action in actions for option in action.option_strings],
                "default": str(actions[0].default),
                "takes": "flag" if actions[0].nargs == 0 else "values" if actions[0].nargs else "value",
            }
            for dest, actions in sorted(self._by_dest.items())
        ]


def _key(name: str) -> str:
    return name.lstrip("-").replace("-", "_")


def _valued(name: str, option: str, action: argparse.Action, value: Any) -> list[str]:
    """Return an option with its value or values."""
    several = action.nargs is not None
    if isinstance(value, list) and not several:
        if len(value) == 1:
            value = value[0]
        elif action.type in (None, int, float, str):
            raise ConfigError(f"{name} = {value!r}: takes one value")
        else:  # a pattern with a reader of its own, such as moe_layer_freq
            value = "[" + ",".join(_text(name, item) for item in value) + "]"
    if isinstance(value, bool):
        if action.type is not bool:
            raise ConfigError(f"{name} = {str(value).lower()}: takes a value")
        return [f"{option}={'1' if value else ''}"]  # argparse calls bool(), which takes any word for true
    words = [_text(name, item) for item in (value if isinstance(value, list) else [value])]
    named = [choice.name for choice in action.choices or () if isinstance(choice, enum.Enum)]
    if named and not set(words) <= set(named):  # argparse would let the enum's KeyError through
        raise ConfigError(f"{name} = {value!r}: must be one of {', '.join(named)}")
    if not any(word.startswith("-") and not _number(word) for word in words):
        return [option, *words]
    if several:
        raise ConfigError(f"{name}: {words} starts with a dash: an option would be seen in it")
    return [f"{option}={words[0]}"]


def _text(name: str, value: Any) -> str:
    """Return one value as a word."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ConfigError(f"{name}: {value!r} can't be a word of a command line")
    return value if isinstance(value, str) else repr(value)


def _number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


class Unknown:
    """Watches argparse: errors become ConfigErrors, and the words that no option took are kept.

    `parse_known_args` throws them away in slime, and its parser is made out of reach.
    """

    def __init__(self) -> None:
        self.words: list[str] = []

    def watch(self) -> None:
        """Begin; this process parses one command line and ends."""
        parse = argparse.ArgumentParser.parse_known_args

        def error(parser: argparse.ArgumentParser, message: str) -> Any:
            raise ConfigError(f"Megatron's parser: {message}")

        def parse_known_args(parser: Any, *args: Any, **kwargs: Any) -> Any:
            namespace, rest = parse(parser, *args, **kwargs)
            self.words = list(rest)
            return namespace, rest

        argparse.ArgumentParser.error = error  # type: ignore[method-assign, assignment]
        argparse.ArgumentParser.parse_known_args = parse_known_args  # type: ignore[assignment]
