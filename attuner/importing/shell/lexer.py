"""Reads the words of a shell script: quotes, expansions, here-documents. The commands around them are the parser's."""

from __future__ import annotations

import bisect
import re

from attuner.core.errors import UserError
from attuner.importing.shell.nodes import Arithmetic, Node, Parameter, Part, Substitution, Text, Word

MARK, MARK_END = "\ue000", "\ue001"
"""Enclose what is unknown (`values`); no script holds these characters."""
MAX_DEPTH = 40
"""Expansions inside expansions; deeper ones are refused, not read."""
MAX_EXPRESSION = 4096
"""Characters of one arithmetic expression."""
META = " \t\n;&|<>()"
_NAME = re.compile(r"[A-Za-z_]\w*|[0-9]|[@*#?$!-]")
_BRACED = re.compile(r"[A-Za-z_]\w*|[0-9]+|[@*#?$!-]")
_OPS = re.compile(r":[-=+?]|##|%%|//|\^\^|,,|[-=+?#%/:^,@]")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"'}


class Lexer:
    """A position in a script, with what reads words from there.

    Args:
        text: the script.
        name: how messages call it.
        line: number of its first line.
        depth: how deep it lies in expansions.
    """

    def __init__(self, text: str, name: str, *, line: int = 1, depth: int = 0) -> None:
        self.text, self.name, self.at, self.depth = text, name, 0, depth
        self._first = line
        self._ends = [i for i, c in enumerate(text) if c == "\n"]
        self._pending: list[tuple[str, bool, bool, list[Word]]] = []

    def line(self, at: int | None = None) -> int:
        """Return the number of a position's line."""
        return self._first + bisect.bisect_left(self._ends, self.at if at is None else at)

    def fail(self, what: str, at: int | None = None) -> UserError:
        """Return the error that ends the reading."""
        return UserError(f"{self.name}:{self.line(at)}: {what}")

    def peek(self, length: int = 1) -> str:
        """Return the next characters."""
        return self.text[self.at : self.at + length]

    def deeper(self) -> None:
        """Enter an expansion; `shallower` leaves it. Raises UserError when that is too deep."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self.fail(f"more than {MAX_DEPTH} expansions inside each other; that is no launch script")

    def shallower(self) -> None:
        """Leave an expansion."""
        self.depth -= 1

    # ------------------------------------------------------------------ space and here-documents

    def skip_space(self) -> None:
        """Skip blanks, continued lines and comments on this line."""
        while self.at < len(self.text):
            if self.text[self.at] in " \t\r":
                self.at += 1
            elif self.text.startswith("\\\n", self.at):
                self.at += 2
            elif self.text[self.at] == "#":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            else:
                return

    def skip_lines(self) -> None:
        """Skip blanks, comments and ends of lines."""
        self.skip_space()
        while self.peek() == "\n":
            self.newline()
            self.skip_space()

    def newline(self) -> None:
        """Pass the end of a line, and the here-documents that begin behind it."""
        self.at += 1
        pending, self._pending = self._pending, []
        for end, literal, tabs, into in pending:
            into.append(self._here(end, literal=literal, tabs=tabs))

    def here(self, into: list[Word]) -> None:
        """Read what stands behind `<<`; the text is put into `into` once the line has ended."""
        tabs = self.peek() == "-"
        self.at += tabs
        self.skip_space()
        word = self.word()
        literal = any(isinstance(p, Text) and p.quoted for p in word.parts)
        self._pending.append((word.literal() or "", literal, tabs, into))

    def _here(self, end: str, *, literal: bool, tabs: bool) -> Word:
        start, lines = self.line(), []
        while self.at < len(self.text):
            stop = self.text.find("\n", self.at)
            stop = len(self.text) if stop < 0 else stop
            line = self.text[self.at : stop]
            self.at = stop + 1
            line = line.lstrip("\t") if tabs else line
            if line.rstrip("\r") == end:
                break
            lines.append(line)
        else:
            raise self.fail(f"here-document {end} is never closed", len(self.text))
        text = "".join(f"{x}\n" for x in lines)
        if literal:
            return Word([Text(text, True)])
        inner = self.sub(text, start)
        return Word(inner.double_quoted(until=""))

    def sub(self, text: str, line: int) -> Lexer:
        """Return a reader of a piece of this script."""
        return type(self)(text, self.name, line=line, depth=self.depth)

    # ------------------------------------------------------------------ words

    def word(self, *, stop: str = META, pattern: bool = False) -> Word:
        """Read one word up to a character of `stop`; `pattern` takes brackets and bars as they are."""
        parts: list[Part] = []
        plain: list[str] = []

        def flush() -> None:
            if plain:
                parts.append(Text("".join(plain)))
                plain.clear()

        while self.at < len(self.text) and not (self.text[self.at] in stop and not (pattern and self.text[self.at] in "()|<>")):
            char = self.text[self.at]
            if char == MARK:
                plain.append(self._marked())
            elif char == "\\":
                if self.peek(2) != "\\\n":
                    flush()
                    parts.append(Text(self.text[self.at + 1 : self.at + 2], True))
                self.at += 2
            elif char == "'":
                flush()
                parts.append(Text(self._single(), True))
            elif char == '"':
                flush()
                self.at += 1
                parts += self.double_quoted() or [Text("", True)]
            elif char == "$" and self.peek(2) in ("$'", '$"'):
                flush()
                self.at += 1
                parts += [Text(self._ansi(), True)] if self.peek() == "'" else []
            elif char in "$`":
                flush()
                parts.append(self.expansion(quoted=False))
            else:
                plain.append(char)
                self.at += 1
        flush()
        return Word(parts)

    def _marked(self) -> str:
        """Pass the mark of an unknown part, in a string that a shell would read once more."""
        end = self.text.find(MARK_END, self.at)
        start, self.at = self.at, len(self.text) if end < 0 else end + 1
        return self.text[start : self.at]

    def _single(self) -> str:
        start = self.at + 1
        end = self.text.find("'", start)
        if end < 0:
            raise self.fail("a single quote is never closed")
        self.at = end + 1
        return self.text[start:end]

    def _ansi(self) -> str:
        start, out = self.at, []
        self.at += 1
        while self.peek() not in ("'", ""):
            char = self.peek()
            self.at += 1
            if char == "\\":
                char = _ESCAPES.get(self.peek(), "\\" + self.peek())
                self.at += 1
            out.append(char)
        if not self.peek():
            raise self.fail("a quote is never closed", start)
        self.at += 1
        return "".join(out)

    def double_quoted(self, *, until: str = '"') -> list[Part]:
        """Read the inside of double quotes, of a here-document (`until` '') or of an expression."""
        start, parts, plain = self.at, list[Part](), list[str]()

        def flush() -> None:
            if plain:
                parts.append(Text("".join(plain), True))
                plain.clear()

        while self.at < len(self.text) and self.peek() != (until or None):
            char = self.text[self.at]
            if char == MARK:
                plain.append(self._marked())
            elif char == "\\" and self.peek(2)[1:] in ("$", "`", '"', "\\", "\n"):
                plain.append("" if self.peek(2) == "\\\n" else self.peek(2)[1:])
                self.at += 2
            elif char in "$`":
                flush()
                parts.append(self.expansion(quoted=True))
            else:
                plain.append(char)
                self.at += 1
        if until and self.peek() != until:
            raise self.fail("a double quote is never closed", start)
        self.at += 1
        flush()
        return parts or [Text("", True)]

    def expansion(self, *, quoted: bool) -> Part:
        """Read what begins with `$` or a backtick; a lone dollar is text."""
        self.deeper()
        try:
            if self.peek() == "`":
                return self._backticks(quoted)
            if self.peek(3) == "$((" and (found := self._arithmetic(quoted)):
                return found
            if self.peek(2) == "$(":
                start = self.at
                self.at += 2
                program = self.program()
                return Substitution(program, quoted, self.text[start : self.at])
            if self.peek(2) == "${":
                return self._braced(quoted)
            name = _NAME.match(self.text, self.at + 1)
            if not name:
                self.at += 1
                return Text("$", quoted)
            self.at = name.end()
            return Parameter(name[0], quoted, source=f"${name[0]}")
        finally:
            self.shallower()

    def program(self) -> list[Node]:
        """Read commands up to the closing bracket; the parser's."""
        raise NotImplementedError

    def whole(self) -> list[Node]:
        """Read commands up to the end; the parser's."""
        raise NotImplementedError

    def _backticks(self, quoted: bool) -> Substitution:
        start, end = self.at, self.at + 1
        while end < len(self.text) and self.text[end] != "`":
            end += 2 if self.text[end] == "\\" else 1
        if end >= len(self.text):
            raise self.fail("a backtick is never closed")
        inside = re.sub(r"\\([$`\\])", r"\1", self.text[start + 1 : end])
        self.at = end + 1
        return Substitution(self.sub(inside, self.line(start)).whole(), quoted, self.text[start : self.at])

    def _arithmetic(self, quoted: bool) -> Arithmetic | None:
        """Read `$(( … ))`; None if it is a subshell inside a substitution after all."""
        end = self.matching(self.at + 3, closing="))")
        if end < 0:
            return None
        inner = self.sub(self.text[self.at + 3 : end], self.line())
        self.at = end + 2
        return Arithmetic(Word(inner.double_quoted(until="")), quoted)

    def matching(self, at: int, *, closing: str) -> int:
        """Return where the brackets opened before `at` close, -1 if they don't."""
        depth, stop = 0, min(len(self.text), at + MAX_EXPRESSION)
        while at < stop:
            if depth == 0 and self.text.startswith(closing, at):
                return at
            depth += {"(": 1, ")": -1}.get(self.text[at], 0)
            if depth < 0:
                return -1
            at += 1
        return -1

    def _braced(self, quoted: bool) -> Part:
        start = self.at
        self.at += 2
        op = ""
        if self.peek() in ("#", "!") and self.peek(2)[1:] not in ("}", ":", "-"):
            op = "length" if self.peek() == "#" else "indirect"
            self.at += 1
        name = _BRACED.match(self.text, self.at)
        if not name:
            raise self.fail("an expansion that is none of the shell's", start)
        self.at = name.end()
        index = ""
        if self.peek() == "[":
            close = self.text.find("]", self.at)
            if close < 0:
                raise self.fail("an index is never closed", start)
            index, self.at = self.text[self.at + 1 : close], close + 1
        operand = into = None
        if self.peek() != "}" and (found := _OPS.match(self.text, self.at)):
            op, self.at = found[0], found.end()
            operand = self.word(stop="/}" if op in ("/", "//") else "}")
            if op in ("/", "//") and self.peek() == "/":
                self.at += 1
                into = self.word(stop="}")
        if self.peek() != "}":
            raise self.fail("an expansion is never closed", start)
        self.at += 1
        return Parameter(name[0], quoted, index, op, operand, self.text[start : self.at], into)
