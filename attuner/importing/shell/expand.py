"""Expands words: variables with their operators, arithmetic, command output, splitting. Unknown parts stay marked."""

from __future__ import annotations

from collections.abc import Callable

from attuner.core.errors import UserError
from attuner.importing.shell.arithmetic import Arithmetic as Expression
from attuner.importing.shell.arithmetic import Untold
from attuner.importing.shell.nodes import Arithmetic, Node, Parameter, Part, Substitution, Text, Word
from attuner.importing.shell.patterns import replaced, trimmed
from attuner.importing.shell.values import MAX_WORDS, Held, State, bounded, is_unknown, shown, split, unknown


class Expander:
    """Expands words in a state.

    Args:
        state: variables; `:=` and arithmetic change them.
        touched: takes the doubtful variables that are used.
        output: returns what a substituted program prints, None if that can't be told.
        tell: takes what a default was taken for: name, text.
        where: returns the place for messages.
    """

    def __init__(
        self,
        state: State,
        *,
        touched: set[str],
        output: Callable[[list[Node]], str | None],
        tell: Callable[[str, str], None],
        where: Callable[[], str],
    ) -> None:
        self.state = state
        self._touched = touched
        self._output, self._tell, self._where = output, tell, where

    def words(self, words: list[Word]) -> list[str]:
        """Return the fields that these words become."""
        found = [field for word in words for field in self.fields(word)]
        if len(found) > MAX_WORDS:
            raise UserError(f"{self._where()}: more than {MAX_WORDS} words; that is no launch script")
        return found

    def text(self, word: Word) -> str:
        """Return a word as one text, as the right side of an assignment is read."""
        return bounded("".join(self._joined(part) for part in word.parts), self._where())

    def fields(self, word: Word) -> list[str]:
        """Return the fields that one word becomes."""
        done: list[str] = []
        current: str | None = None
        for part in word.parts:
            pieces, before, after = self._pieces(part)
            if before and current is not None:
                done.append(current)
                current = None
            for number, piece in enumerate(pieces):
                if number and current is not None:
                    done.append(current)
                    current = None
                current = bounded((current or "") + piece, self._where())
            if after and current is not None:
                done.append(current)
                current = None
        return done if current is None else [*done, current]

    def _pieces(self, part: Part) -> tuple[list[str], bool, bool]:
        """Return the fields of one part, and whether a new field begins before it and after it."""
        if isinstance(part, Text):
            return [part.text], False, False
        if isinstance(part, Parameter) and self._is_all(part) and not (part.quoted and "*" in (part.index, part.name)):
            found = self._list(part)
            return (found if part.quoted else [w for x in found for w in split(x)]), False, False
        value = self._joined(part)
        if part.quoted:
            return [value], False, False
        return split(value), value[:1].isspace(), value[-1:].isspace()

    def _joined(self, part: Part) -> str:
        if isinstance(part, Text):
            return part.text
        if isinstance(part, Arithmetic):
            return self.arithmetic(part.expression)
        if isinstance(part, Substitution):
            found = self._output(part.program)
            return unknown(part.source) if found is None else found.rstrip("\n")
        if self._is_all(part):
            star = part.index == "*" or part.name == "*"
            held = self.state.variables.get("IFS", " ")
            return (held[:1] if star and isinstance(held, str) else " ").join(self._list(part))
        return self._parameter(part)

    @staticmethod
    def _is_all(part: Part) -> bool:
        return isinstance(part, Parameter) and part.op != "length" and (part.index in ("@", "*") or part.name in ("@", "*"))

    # ------------------------------------------------------------------ variables

    def _list(self, part: Parameter) -> list[str]:
        if part.name in ("@", "*"):
            held: Held | None = self.state.positional if self.state.positional is not None else [unknown("@")]
        else:
            held = self._held(part.name)
        found = [] if held is None else held if isinstance(held, list) else [held]
        if part.op in (":-", "-", ":+", "+") and part.operand is not None:
            use = bool(found) == (part.op in (":+", "+"))
            return self.fields(part.operand) if use else found if part.op in (":-", "-") else []
        if part.op == ":" and part.operand is not None:
            start, _, size = self.text(part.operand).partition(":")
            try:
                return found[int(start) :][: int(size) if size else None]
            except ValueError:
                return [unknown(part.source)]
        if held is None and part.name not in ("@", "*"):
            self._tell(part.name, "is never set here: taken as an empty list")
        return found

    def _held(self, name: str) -> Held | None:
        if name in self.state.doubtful:
            self._touched.add(name)
        return self.state.variables.get(name)

    def _value(self, part: Parameter) -> str | None:
        """Return what `$name` or `${name[index]}` holds; None if nothing here sets it."""
        name = part.name
        if name.isdigit():
            return self._positional(int(name))
        if name == "#":
            return str(len(self.state.positional)) if self.state.positional is not None else None
        if name in ("?", "!", "-", "$"):
            return "0" if name == "?" else None
        if name == "BASH_SOURCE":
            return self.state.script
        if name == "PWD" and name not in self.state.variables:
            return self.state.folder or None
        held = self._held(name)
        if not isinstance(held, list):
            return held
        try:
            return held[int(self.arithmetic(Word([Text(part.index or "0")])))]
        except (ValueError, IndexError):
            return "" if held else None

    def _positional(self, number: int) -> str | None:
        if number == 0:
            return self.state.script
        held = self.state.variables.get(str(number))
        if isinstance(held, str):
            return held
        given = self.state.positional
        return None if given is None else given[number - 1] if number <= len(given) else ""

    def _parameter(self, part: Parameter) -> str:
        if part.op == "length":
            held = self._list(part) if part.index in ("@", "*") else self._value(part)
            return unknown(part.source) if held is None or any(map(is_unknown, held)) else str(len(held))
        value = self._value(part)
        if part.op == "indirect":
            target = None if value is None or is_unknown(value) else self._held(value)
            return target if isinstance(target, str) else unknown(part.source)
        if part.op in (":-", "-", ":=", "=", ":+", "+", ":?", "?"):
            return self._default(part, value)
        if value is None:
            return unknown(part.name)
        if not part.op:
            return value
        return unknown(part.source) if is_unknown(value) else self._changed(part, value)

    def _default(self, part: Parameter, value: str | None) -> str:
        operand = self.text(part.operand) if part.operand is not None else ""
        missing = value is None or (part.op.startswith(":") and not value)
        if part.op in (":+", "+"):
            return "" if missing else operand
        if part.op in (":?", "?"):
            return unknown(part.name) if value is None else value
        if not missing:
            return value or ""
        if value is None and operand and not part.name.isdigit():
            self._tell(part.name, f"is not set here: its default {shown(operand)} is taken")
        if value is None and not operand:  # `${X:-}` only keeps the shell quiet: the caller may well set it
            return unknown(part.name)
        if part.op in (":=", "="):
            self.state.variables[part.name] = operand
        return operand

    def _changed(self, part: Parameter, value: str) -> str:
        operand = self.text(part.operand) if part.operand is not None else ""
        if part.op in ("^", "^^"):
            return value.upper() if part.op == "^^" else value[:1].upper() + value[1:]
        if part.op in (",", ",,"):
            return value.lower() if part.op == ",," else value[:1].lower() + value[1:]
        if part.op == ":":
            start, _, size = operand.partition(":")
            try:
                cut = value[int(start) :]
                return cut[: int(size)] if size else cut
            except ValueError:
                return unknown(part.source)
        if is_unknown(operand) or part.op == "@":
            return unknown(part.source)
        if part.op in ("/", "//"):
            into = self.text(part.into) if part.into is not None else ""
            found = replaced(value, operand, into, every=part.op == "//")
        else:
            found = trimmed(value, operand, part.op)
        return unknown(part.source) if found is None else found

    # ------------------------------------------------------------------ numbers

    def arithmetic(self, expression: Word) -> str:
        """Return the value of an expression as text, marked unknown if it can't be told."""
        text = self.text(expression)
        try:
            return unknown(f"$(({text}))") if is_unknown(text) else str(Expression(text, self._number, self._set).result())
        except (Untold, RecursionError):
            return unknown(f"$(({text}))")

    def _number(self, name: str) -> int:
        held = self._held(name)
        value = held if isinstance(held, str) else held[0] if held else None
        if value is None or is_unknown(value):
            raise Untold(name)
        try:
            return int(value or "0", 0)
        except ValueError:
            raise Untold(name) from None

    def _set(self, name: str, value: int) -> None:
        self.state.variables[name] = str(value)
