"""Makes the tree of a shell script: lists, pipes, if, for, case, functions, tests. Source: POSIX shell grammar, bash manual."""

from __future__ import annotations

import re

from attuner.importing.shell.lexer import META, Lexer
from attuner.importing.shell.nodes import (
    Assignment,
    Case,
    Chain,
    Condition,
    For,
    Function,
    Group,
    If,
    Node,
    Not,
    Pipe,
    Simple,
    Text,
    While,
    Word,
)

_ASSIGN = re.compile(r"([A-Za-z_]\w*)(?:\[([^\]\n]*)\])?(\+?)=")
_FUNCTION = re.compile(r"(?:function[ \t]+([\w.:-]+)(?:[ \t]*\([ \t]*\))?|([A-Za-z_][\w.:-]*)[ \t]*\([ \t]*\))[ \t\r\n]*(?=[{(])")
_REDIRECT = re.compile(r"\d*(<<<|<<|&>>|&>|>>|>&|<&|>\||<>|>|<)")
_RESERVED = re.compile(r"[a-z!{}\[]+(?=[\s;&|()]|$)")
DECLARING = {"export", "declare", "typeset", "local", "readonly"}
ENDS = {"then", "else", "elif", "fi", "do", "done", "esac", "}", "in"}


def parse_script(text: str, name: str, *, line: int = 1) -> list[Node]:
    """Return the tree of a script.

    Args:
        text: the script.
        name: how messages call it.
        line: number of its first line.

    Raises:
        UserError: it is no shell script; with file and line.
    """
    return Parser(text, name, line=line).whole()


class Parser(Lexer):
    """Reads commands."""

    def whole(self) -> list[Node]:
        """Read all of the text."""
        body = self.body()
        if self.at < len(self.text):
            raise self.fail(f"{self.peek()!r} where a command should begin")
        return body

    def program(self) -> list[Node]:
        """Read a substitution up to its bracket."""
        body = self.body()
        self.expect(")")
        return body

    def body(self) -> list[Node]:
        """Read commands until something that can't begin one."""
        found: list[Node] = []
        while True:
            self.skip_lines()
            while self.peek() in (";", "&") and self.peek(2) not in (";;", ";&"):
                self.at += 1
                self.skip_lines()
            if not self.peek() or self.peek() in ")" or self.peek(2) in (";;", ";&") or self.reserved() in ENDS:
                return found
            found.append(self.chain())

    def reserved(self) -> str:
        """Return the reserved word that stands here, '' if there is none."""
        found = _RESERVED.match(self.text, self.at)
        return found[0] if found else ""

    def expect(self, word: str) -> None:
        """Pass a word that must stand here."""
        self.skip_lines()
        if not self.text.startswith(word, self.at):
            shown = self.peek(12).split("\n")[0]
            raise self.fail(f"{word!r} is missing" + (f", found {shown!r}" if shown else ""))
        self.at += len(word)

    def chain(self) -> Node:
        """Read commands joined by && and ||."""
        line, commands, joints = self.line(), [self.pipe()], list[str]()
        while True:
            self.skip_space()
            if self.peek(2) not in ("&&", "||"):
                break
            joints.append(self.peek(2))
            self.at += 2
            self.skip_lines()
            commands.append(self.pipe())
        return Chain(commands, joints, line) if joints else commands[0]

    def pipe(self) -> Node:
        """Read commands joined by |."""
        line, commands = self.line(), [self.command()]
        while True:
            self.skip_space()
            if self.peek() != "|" or self.peek(2) == "||":
                break
            self.at += 2 if self.peek(2) == "|&" else 1
            self.skip_lines()
            commands.append(self.command())
        return Pipe(commands, line) if len(commands) > 1 else commands[0]

    def command(self) -> Node:
        """Read one command of any kind."""
        self.deeper()
        try:
            self.skip_space()
            found = self._compound()
            return found if found is not None else self.simple()
        finally:
            self.shallower()

    def _compound(self) -> Node | None:
        line, word = self.line(), self.reserved()
        readers = {"if": self._if, "for": self._for, "select": self._for, "while": self._while, "until": self._while}
        node: Node | None = None
        if word in readers:
            self.at += len(word)
            node = readers[word](line)
        elif word == "case":
            self.at += 4
            node = self._case(line)
        elif word == "!":
            self.at += 1
            return Not(self.command(), line)
        elif word == "{":
            self.at += 1
            body = self.body()
            self.expect("}")
            node = Group(body, False, line)
        elif word == "[[":
            node = self._test(line)
        elif self.peek(2) == "((" and (end := self.matching(self.at + 2, closing="))")) >= 0:
            node = Condition([], line, self._expression(end))
        elif self.peek() == "(":
            self.at += 1
            node = Group(self.program(), True, line)
        elif found := _FUNCTION.match(self.text, self.at):
            self.at = found.end()
            return Function(found[1] or found[2], [self.command()], line)
        if node is not None:
            self._redirects()
        return node

    def _expression(self, end: int) -> Word:
        inner = self.sub(self.text[self.at + 2 : end], self.line())
        self.at = end + 2
        return Word(inner.double_quoted(until=""))

    def _redirects(self, given: list[Word] | None = None) -> None:
        """Pass redirections; the text that a here-document gives will be in `given` once its line has ended."""
        given = [] if given is None else given
        while True:
            self.skip_space()
            found = _REDIRECT.match(self.text, self.at)
            if not found or self.text.startswith(("<(", ">("), self.at):
                return
            self.at = found.end()
            if found[1] == "<<":
                self.here(given)
                continue
            self.skip_space()
            word = self.word()
            if found[1] == "<<<":
                given.append(word)

    def _if(self, line: int) -> Node:
        clauses = []
        while True:
            condition = self.body()
            self.expect("then")
            clauses.append((condition, self.body()))
            word = self.reserved()
            if word != "elif":
                break
            self.at += 4
        otherwise: list[Node] = []
        if word == "else":
            self.at += 4
            otherwise = self.body()
        self.expect("fi")
        return If(clauses, otherwise, line)

    def _for(self, line: int) -> Node:
        self.skip_space()
        name, words, header = "", None, list[Word]()
        if self.peek(2) == "((":
            end = self.matching(self.at + 2, closing="))")
            if end < 0:
                raise self.fail("a loop's header is never closed")
            pieces = self.text[self.at + 2 : end].split(";")
            header = [Word(self.sub(x, line).double_quoted(until="")) for x in pieces]
            self.at = end + 2
        else:
            name = self.word(stop=META).bare() or ""
            self.skip_lines()
            if self.reserved() == "in":
                self.at += 2
                words = []
                self.skip_space()
                while self.peek() not in ("\n", ";", ""):
                    words.append(self._argument())
                    self.skip_space()
        self.skip_lines()
        if self.peek() == ";":
            self.at += 1
        self.expect("do")
        body = self.body()
        self.expect("done")
        return For(name, words, header, body, line)

    def _while(self, line: int) -> Node:
        self.body()
        self.expect("do")
        body = self.body()
        self.expect("done")
        return While(body, line)

    def _case(self, line: int) -> Node:
        self.skip_space()
        subject = self.word()
        self.expect("in")
        branches = []
        while True:
            self.skip_lines()
            if self.reserved() == "esac" or not self.peek():
                break
            self.at += self.peek() == "("
            patterns = []
            while True:
                self.skip_space()
                patterns.append(self.word())
                self.skip_space()
                if self.peek() != "|":
                    break
                self.at += 1
            self.expect(")")
            branches.append((patterns, self.body()))
            self.skip_lines()
            for end in (";;&", ";;", ";&"):
                if self.text.startswith(end, self.at):
                    self.at += len(end)
                    break
        self.expect("esac")
        return Case(subject, branches, line)

    def _test(self, line: int) -> Node:
        self.at += 2
        words: list[Word] = []
        while True:
            self.skip_lines()
            if self.reserved_end():
                self.at += 2
                return Condition(words, line)
            if not self.peek():
                raise self.fail("'[[' is never closed")
            regex = bool(words) and words[-1].bare() == "=~"
            joint = next((x for x in ("&&", "||", "(", ")", "<", ">") if self.text.startswith(x, self.at)), "")
            if joint and not regex:
                self.at += len(joint)
                words.append(Word([Text(joint)]))
            else:
                words.append(self._argument(pattern=regex))

    def reserved_end(self) -> bool:
        """Tell whether `]]` stands here."""
        return self.peek(2) == "]]" and self.peek(3)[2:] in ("", *META)

    def _argument(self, *, pattern: bool = False) -> Word:
        """Read a word that must make headway."""
        start = self.at
        if self.text.startswith(("<(", ">("), self.at):
            end = self.matching(self.at + 2, closing=")")
            if end < 0:
                raise self.fail("a bracket is never closed")
            self.at = end + 1
            return Word([Text(self.text[start : self.at], True)])
        word = self.word(pattern=pattern)
        if self.at == start:
            raise self.fail(f"{self.peek()!r} where a word should stand")
        return word

    def simple(self) -> Simple:
        """Read a plain command with its assignments and redirections."""
        line, start = self.line(), self.at
        assignments: list[Assignment] = []
        words: list[Word | Assignment] = []
        given: list[Word] = []
        while True:
            self._redirects(given)
            self.skip_space()
            if self.peek() in META and not self.text.startswith(("<(", ">("), self.at):
                break
            first = words[0] if words else None
            declares = isinstance(first, Word) and first.bare() in DECLARING
            found = _ASSIGN.match(self.text, self.at) if not words or declares else None
            if not found:
                words.append(self._argument())
            elif words:
                words.append(self._assignment(found))
            else:
                assignments.append(self._assignment(found))
        if self.at == start:
            raise self.fail(f"{self.peek()!r} where a command should begin")
        return Simple(words, assignments, line, given)

    def _assignment(self, found: re.Match[str]) -> Assignment:
        self.at = found.end()
        name, index, append = found[1], found[2] or "", bool(found[3])
        if self.peek() != "(":
            return Assignment(name, self.word(), index, append)
        self.at += 1
        words: list[Word] = []
        while True:
            self.skip_lines()
            if self.peek() == ")":
                self.at += 1
                return Assignment(name, words, index, append)
            if not self.peek():
                raise self.fail(f"the list of {name} is never closed")
            words.append(self._argument())
