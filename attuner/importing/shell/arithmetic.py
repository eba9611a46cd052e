"""The shell's whole-number arithmetic: `$(( a + b * 2 ))`, by precedence climbing; assignments change variables."""

from __future__ import annotations

import re
from collections.abc import Callable

from attuner.core.errors import UserError

_TOKEN = re.compile(
    r"\s*(0[xX][0-9a-fA-F]+|\d+|[A-Za-z_]\w*|\*\*|<<=|>>=|<<|>>|<=|>=|==|!=|&&|\|\||\+\+|--|[-+*/%&|^]=|[-+*/%<>&|^!~?:()=,])"
)
_LEVEL = {
    **{"||": 1, "&&": 2, "|": 3, "^": 4, "&": 5, "==": 6, "!=": 6, "<": 7, ">": 7, "<=": 7, ">=": 7},
    **{"<<": 8, ">>": 8, "+": 9, "-": 9, "*": 10, "/": 10, "%": 10, "**": 11},
}
_OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1),
    "%": lambda a, b: abs(a) % abs(b) * (1 if a >= 0 else -1),
    "**": lambda a, b: a**b,
    "<<": lambda a, b: a << b,
    ">>": lambda a, b: a >> b,
    "&": lambda a, b: a & b,
    "|": lambda a, b: a | b,
    "^": lambda a, b: a ^ b,
    "&&": lambda a, b: int(bool(a and b)),
    "||": lambda a, b: int(bool(a or b)),
    "==": lambda a, b: int(a == b),
    "!=": lambda a, b: int(a != b),
    "<": lambda a, b: int(a < b),
    ">": lambda a, b: int(a > b),
    "<=": lambda a, b: int(a <= b),
    ">=": lambda a, b: int(a >= b),
}
MAX_DEPTH = 40
MAX_CHARS = 4096
LIMIT = 2**63


class Untold(UserError):
    """The value can't be told: an unknown variable, a division by zero, no expression at all."""


class Arithmetic:
    """One expression.

    Args:
        text: the expression, with its `$` already expanded.
        value: what a variable holds; raises Untold.
        assign: called for an assignment.
    """

    def __init__(self, text: str, value: Callable[[str], int], assign: Callable[[str, int], None]) -> None:
        self._tokens: list[str] = []
        at = 0
        if len(text) > MAX_CHARS:
            raise Untold("an expression without end")
        while text[at:].strip():
            found = _TOKEN.match(text, at)
            if not found:
                raise Untold(text)
            self._tokens.append(found[1])
            at = found.end()
        self._at, self._depth = 0, 0
        self._value, self._assign, self._text = value, assign, text

    def result(self) -> int:
        """Return the value. Raises Untold."""
        if not self._tokens:
            return 0
        found = self._comma()
        if self._at < len(self._tokens):
            raise Untold(self._text)
        return found

    def _peek(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _next(self) -> str:
        token = self._peek()
        if not token:
            raise Untold(self._text)
        self._at += 1
        return token

    def _comma(self) -> int:
        found = self._ternary()
        while self._peek() == ",":
            self._at += 1
            found = self._ternary()
        return found

    def _ternary(self) -> int:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise Untold(self._text)
        following = self._tokens[self._at + 1] if self._at + 1 < len(self._tokens) else ""
        if self._peek().isidentifier() and following.endswith("=") and following not in ("==", "!=", "<=", ">="):
            found = self._assigned(following[:-1])
        else:
            found = self._binary(1)
            if self._peek() == "?":
                self._at += 1
                yes = self._ternary()
                if self._next() != ":":
                    raise Untold(self._text)
                no = self._ternary()
                found = yes if found else no
        self._depth -= 1
        return found

    def _assigned(self, op: str) -> int:
        name = self._next()
        self._at += 1
        value = self._ternary()
        value = self._apply(op, self._value(name), value) if op else value
        self._assign(name, value)
        return value

    def _binary(self, level: int) -> int:
        left = self._unary()
        while _LEVEL.get(self._peek(), 0) >= level:
            op = self._next()
            left = self._apply(op, left, self._binary(_LEVEL[op] + (op != "**")))
        return left

    def _unary(self) -> int:
        token = self._next()
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise Untold(self._text)
        try:
            if token in ("++", "--") and self._peek().isidentifier():
                name = self._next()
                value = self._value(name) + (1 if token == "++" else -1)
                self._assign(name, value)
                return value
            if token in ("+", "-", "!", "~"):
                value = self._unary()
                return {"+": value, "-": -value, "!": int(not value), "~": ~value}[token]
            if token == "(":
                value = self._comma()
                if self._next() != ")":
                    raise Untold(self._text)
                return value
            return self._atom(token)
        finally:
            self._depth -= 1

    def _atom(self, token: str) -> int:
        if token.isidentifier():
            value = self._value(token)
            if self._peek() in ("++", "--"):
                self._assign(token, value + (1 if self._next() == "++" else -1))
            return value
        try:
            octal = len(token) > 1 and token[0] == "0" and token.isdigit()
            return int(token, 8 if octal else 0)
        except ValueError:
            raise Untold(self._text) from None

    def _apply(self, op: str, a: int, b: int) -> int:
        if op in ("/", "%") and not b:
            raise Untold("division by zero")
        if (op == "**" and not 0 <= b <= 64) or (op in ("<<", ">>") and not 0 <= b < 64):
            raise Untold(self._text)
        found = _OPERATIONS[op](a, b)
        return (found + LIMIT) % (2 * LIMIT) - LIMIT
