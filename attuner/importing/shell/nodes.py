"""The tree of a shell script, as far as launch scripts need it."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Text:
    """Characters as they stand; quoted ones are never split into words."""

    text: str
    quoted: bool = False


@dataclass(frozen=True)
class Parameter:
    """`$name`, `${name[index]op…}`: what a variable holds, perhaps changed.

    op: (with `into` for / and //) '' or one of :- - := = :+ + :? ? # ## % %% / // : ^ ^^ , ,, length indirect.
    """

    name: str
    quoted: bool
    index: str = ""
    op: str = ""
    operand: Word | None = None
    source: str = ""
    into: Word | None = None


@dataclass(frozen=True)
class Substitution:
    """`$( … )` or backticks: what a command would print."""

    program: list[Node]
    quoted: bool
    source: str


@dataclass(frozen=True)
class Arithmetic:
    """`$(( … ))`."""

    expression: Word
    quoted: bool


Part = Text | Parameter | Substitution | Arithmetic


@dataclass(frozen=True)
class Word:
    """One word before it is expanded."""

    parts: list[Part]

    def literal(self) -> str | None:
        """Return the word if nothing in it needs expanding."""
        return "".join(p.text for p in self.parts if isinstance(p, Text)) if self.plain() else None

    def bare(self) -> str | None:
        """Return the word if nothing in it is quoted or expanded: such a word may be reserved."""
        return self.literal() if all(isinstance(p, Text) and not p.quoted for p in self.parts) else None

    def plain(self) -> bool:
        """Tell whether nothing in the word needs expanding."""
        return all(isinstance(p, Text) for p in self.parts)


@dataclass(frozen=True)
class Assignment:
    """`name=word`, `name+=word`, `name=( words )`, `name[index]=word`."""

    name: str
    value: Word | list[Word]
    index: str = ""
    append: bool = False


@dataclass(frozen=True)
class Simple:
    """A command with its assignments; `given` holds the text of a here-document or a here-string, once it has been read."""

    words: list[Word | Assignment]
    assignments: list[Assignment]
    line: int
    given: list[Word] = field(default_factory=list)


@dataclass(frozen=True)
class Condition:
    """`[[ … ]]` with its words, or `(( … ))` with its expression."""

    words: list[Word]
    line: int
    arithmetic: Word | None = None


@dataclass(frozen=True)
class If:
    """if, elif, else."""

    clauses: list[tuple[list[Node], list[Node]]]
    otherwise: list[Node]
    line: int


@dataclass(frozen=True)
class For:
    """`for name in words` (words None: the positional parameters), or `for (( start; test; step ))`."""

    name: str
    words: list[Word] | None
    header: list[Word]
    body: list[Node]
    line: int


@dataclass(frozen=True)
class While:
    """while or until: not followed."""

    body: list[Node]
    line: int


@dataclass(frozen=True)
class Case:
    """case … esac."""

    subject: Word
    branches: list[tuple[list[Word], list[Node]]]
    line: int


@dataclass(frozen=True)
class Group:
    """`{ … }`, or `( … )` whose variables stay inside."""

    body: list[Node]
    apart: bool
    line: int


@dataclass(frozen=True)
class Function:
    """A definition."""

    name: str
    body: list[Node]
    line: int


@dataclass(frozen=True)
class Pipe:
    """Commands joined by `|`."""

    commands: list[Node]
    line: int


@dataclass(frozen=True)
class Chain:
    """Commands joined by && and ||; `joints[i]` stands before `commands[i + 1]`."""

    commands: list[Node]
    joints: list[str] = field(default_factory=list)
    line: int = 0


@dataclass(frozen=True)
class Not:
    """`! command`."""

    command: Node
    line: int


Node = Simple | Condition | If | For | While | Case | Group | Function | Pipe | Chain | Not
