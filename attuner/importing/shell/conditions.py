"""Decides `[ … ]` and `[[ … ]]` from values alone: yes, no, or None where that can't be told (files, callers' variables)."""

from __future__ import annotations

import re
from collections.abc import Callable

from attuner.importing.shell.patterns import matches
from attuner.importing.shell.values import blanked, is_unknown

Answer = bool | None
_NUMBERS: dict[str, Callable[[int, int], bool]] = {
    "-eq": lambda a, b: a == b,
    "-ne": lambda a, b: a != b,
    "-lt": lambda a, b: a < b,
    "-le": lambda a, b: a <= b,
    "-gt": lambda a, b: a > b,
    "-ge": lambda a, b: a >= b,
}
_FILES = set(["-f", "-d", "-e", "-s", "-r", "-w", "-x", "-L", "-h", "-p", "-S", "-b", "-c", "-t", "-O", "-G", "-N"])
_BINARY = {*_NUMBERS, "=", "==", "!=", "=~", "<", ">", "-nt", "-ot", "-ef"}
MAX_WORDS = 200


class Test:
    """One test.

    Args:
        words: its expanded words, without the brackets.
        is_set: whether a variable is set, for -v.
        as_if_empty: take what is unknown as empty and files as missing: a guess, never None.
    """

    def __init__(self, words: list[str], is_set: Callable[[str], Answer], *, as_if_empty: bool = False) -> None:
        self._words = [blanked(w) for w in words] if as_if_empty else words
        self._at, self._guess, self._is_set = 0, as_if_empty, is_set

    def answer(self) -> Answer:
        """Return yes, no, or None."""
        if len(self._words) > MAX_WORDS:
            return self._untold()
        found = self._any()
        return found if self._at >= len(self._words) else self._untold()

    def _untold(self) -> Answer:
        return False if self._guess else None

    def _peek(self, ahead: int = 0) -> str:
        return self._words[self._at + ahead] if self._at + ahead < len(self._words) else ""

    def _any(self) -> Answer:
        answers = [self._all()]
        while self._peek() in ("||", "-o") and self._at < len(self._words):
            self._at += 1
            answers.append(self._all())
        return True if True in answers else None if None in answers else False

    def _all(self) -> Answer:
        answers = [self._one()]
        while self._peek() in ("&&", "-a") and self._at < len(self._words):
            self._at += 1
            answers.append(self._one())
        return False if False in answers else None if None in answers else True

    def _one(self) -> Answer:
        word = self._peek()
        if self._at >= len(self._words):
            return False
        if self._peek(1) in _BINARY and self._at + 2 < len(self._words):
            self._at += 3
            return self._compare(word, self._words[self._at - 2], self._words[self._at - 1])
        if word == "!":
            self._at += 1
            found = self._one()
            return None if found is None else not found
        if word == "(":
            self._at += 1
            found = self._any()
            self._at += 1
            return found
        if re.fullmatch(r"-[a-zA-Z]", word) and self._at + 1 < len(self._words):
            self._at += 2
            return self._unary(word, self._words[self._at - 1])
        self._at += 1
        return None if is_unknown(word) and not blanked(word) else bool(word)

    def _unary(self, op: str, value: str) -> Answer:
        if op in _FILES:
            return self._untold()
        if op in ("-n", "-z"):
            if is_unknown(value) and not blanked(value):
                return None
            return bool(value) == (op == "-n")
        return self._is_set(value) if op == "-v" else self._untold()

    def _expression(self, text: str, pattern: str) -> Answer:
        """Decide a regular expression that is a plain text with its anchors; others are not tried."""
        plain = pattern.removeprefix("^").removesuffix("$")
        if not re.fullmatch(r"[\w/:,=-]*", plain):
            return self._untold()
        begins, ends = pattern.startswith("^"), pattern.endswith("$")
        if begins and ends:
            return text == plain
        return text.startswith(plain) if begins else text.endswith(plain) if ends else plain in text

    def _compare(self, left: str, op: str, right: str) -> Answer:
        if is_unknown(left) or is_unknown(right):
            return None
        if op in _NUMBERS:
            try:
                return _NUMBERS[op](int(left or "0"), int(right or "0"))
            except ValueError:
                return self._untold()
        if op in ("=", "==", "!="):
            same = left == right or matches(right, left[:4096])
            return same == (op != "!=")
        if op == "=~":
            return self._expression(left, right)
        return {"<": left < right, ">": left > right}.get(op, self._untold())
