"""Walks the tree of a script as a shell would, without running anything: assignments are made, branches chosen, sourced files
read, and every command that is no builtin is noted with its words and its environment."""

from __future__ import annotations

from collections.abc import Callable

from attuner.core.errors import UserError
from attuner.importing.shell.builtins import BUILTINS, output_of
from attuner.importing.shell.conditions import Answer, Test
from attuner.importing.shell.expand import Expander
from attuner.importing.shell.heard import Heard, Started
from attuner.importing.shell.inner import run_inner
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
    While,
    Word,
)
from attuner.importing.shell.parser import parse_script
from attuner.importing.shell.patterns import matches
from attuner.importing.shell.survey import assigned, leaves, source_of
from attuner.importing.shell.values import Held, State, bounded, is_unknown, shown, unknown

MAX_COMMANDS = 50_000
MAX_NESTED = 30
"""Scripts, functions and strings run inside each other."""

Read = Callable[[str, str], tuple[str, str] | None]
"""(path as the script names it, folder of the script) → (path in the root, text), None if there is no such file."""


class Walker:
    """One walk.

    Args:
        read: reads sourced files.
        heard: where commands and notes go.
        preset: variables that the caller of the script sets; they hold against the script's own assignments. A number is a
            positional parameter.
    """

    def __init__(self, read: Read, heard: Heard, preset: dict[str, str]) -> None:
        self.read, self.heard = read, heard
        self.preset = preset
        self.state = State(variables=dict(preset))
        self.place, self.line = "", 0
        self.stopped = self.returned = False
        self.capture: list[str] | None = None
        self.untold = False
        self.touched: set[str] = set()
        self._files: list[str] = []
        self._steps = self._nested = self._loops = 0
        self._guessed = False

    # ------------------------------------------------------------------ scripts

    def script(self, path: str, text: str) -> None:
        """Follow a script of this name."""
        if path in self._files:
            raise UserError(f"{self.where()}: {path.rsplit('/', 1)[-1]} sources itself; take the cycle out")
        before = (self.place, self.line, self.state.script, self.state.folder)
        self._files.append(path)
        self.place = path.rsplit("/", 1)[-1]
        self.state.script = path
        self.inside(parse_script(text, self.place))
        self.returned = False
        self._files.pop()
        self.place, self.line, self.state.script = before[:3]

    def string(self, text: str) -> None:
        """Follow a string that a shell would read: `bash -c`, eval."""
        self.inside(parse_script(text, self.place, line=self.line))

    def inside(self, body: list[Node]) -> None:
        """Walk commands one level deeper."""
        self._nested += 1
        if self._nested > MAX_NESTED:
            raise UserError(f"{self.where()}: more than {MAX_NESTED} scripts and functions inside each other")
        self.walk(body)
        self._nested -= 1

    def where(self) -> str:
        """Return the present place."""
        return f"{self.place}:{self.line}"

    def expander(self) -> Expander:
        """Return what expands words here."""
        return Expander(
            self.state,
            touched=self.touched,
            output=self.output,
            tell=lambda name, text: self.heard.tell("default", f"{name} {text}"),
            where=self.where,
        )

    # ------------------------------------------------------------------ nodes

    def walk(self, body: list[Node]) -> None:
        """Walk commands in order."""
        for node in body:
            if self.stopped or self.returned:
                return
            self._step(node)

    def _step(self, node: Node) -> None:
        self._steps += 1
        if self._steps > MAX_COMMANDS:
            raise UserError(f"{self.where()}: more than {MAX_COMMANDS} commands; that is no launch script")
        self.line = node.line
        if isinstance(node, Simple):
            self._simple(node)
        elif isinstance(node, If):
            self._if(node)
        elif isinstance(node, For):
            self._for(node)
        elif isinstance(node, Case):
            self._case(node)
        elif isinstance(node, While):
            self._skip(node.body, node.line, "a loop")
        elif isinstance(node, Function):
            self.state.functions[node.name] = node.body
        elif isinstance(node, Group):
            self._group(node)
        elif isinstance(node, Pipe):
            self._pipe(node)
        elif isinstance(node, Chain):
            self._chain(node)
        elif isinstance(node, Not):
            self._step(node.command)
        elif node.arithmetic is not None:
            self.expander().arithmetic(node.arithmetic)

    def _group(self, node: Group) -> None:
        if not node.apart:
            self.inside(node.body)
            return
        kept, self.state = self.state, self.state.copy()
        self.inside(node.body)
        self.state, self.stopped = kept, False

    def _pipe(self, node: Pipe) -> None:
        if self.capture is not None:
            self.untold = True
        for command in node.commands:
            self._group(Group([command], True, node.line))

    def _skip(self, body: list[Node], line: int, what: str) -> None:
        names = sorted(assigned(body))
        for name in names:
            self.state.variables[name] = unknown(name)
        sets = f"; {', '.join(names)} can't be told after it" if names else ""
        self.heard.tell("undecided", f"{self.place}:{line}: {what} is not followed{sets}")

    def _for(self, node: For) -> None:
        if node.header:
            self._count(node)
            return
        words = self.expander().words(node.words) if node.words is not None else self.state.positional
        if words is None or any(is_unknown(w) or set("*?{") & set(w) for w in words) or len(words) > 4096:
            self._skip(node.body, node.line, "a loop over what can't be told")
            return
        self._loops += 1
        for word in words:
            self.state.variables[node.name] = word
            self.walk(node.body)
        self._loops -= 1

    def _count(self, node: For) -> None:
        start, test, step = [*node.header, Word([]), Word([])][:3]
        expander = self.expander()
        told = expander.arithmetic(start)
        self._loops += 1
        for _ in range(4096):
            told = expander.arithmetic(test)
            if is_unknown(told) or told == "0" or self.stopped or self.returned:
                break
            self.walk(node.body)
            told = expander.arithmetic(step)
        self._loops -= 1
        if told != "0" and not self.stopped:
            self._skip(node.body, node.line, "a counting loop whose end can't be told")

    # ------------------------------------------------------------------ branches

    def decide(self, condition: list[Node], *, guess: bool = False) -> Answer:
        """Return whether a condition holds; `guess`: as if all that is unknown were empty."""
        answer: Answer = True
        for node in condition:
            answer = self._decide(node, guess)
        return answer

    def _decide(self, node: Node, guess: bool) -> Answer:
        self.line = node.line
        if isinstance(node, Not):
            found = self._decide(node.command, guess)
            return None if found is None else not found
        if isinstance(node, Chain):
            return self._joined(node, guess)
        if isinstance(node, Condition) and node.arithmetic is not None:
            value = self.expander().arithmetic(node.arithmetic)
            return (False if guess else None) if is_unknown(value) else value != "0"
        if isinstance(node, Condition):
            expander = self.expander()
            return self._test([expander.text(w) for w in node.words], guess)
        if isinstance(node, Simple):
            words = self.expander().words([w for w in node.words if isinstance(w, Word)])
            if words[:1] in (["["], ["test"]):
                return self._test(words[1:-1] if words[0] == "[" else words[1:], guess)
            if words[:1] in (["true"], [":"], ["false"]):
                return words[0] != "false"
            if not words:
                self._simple(node)
                return True
        return False if guess else None

    def _joined(self, node: Chain, guess: bool) -> Answer:
        answer = self._decide(node.commands[0], guess)
        for joint, command in zip(node.joints, node.commands[1:], strict=True):
            if answer is (joint == "||"):
                continue
            right = self._decide(command, guess)
            if joint == "&&":
                answer = right if answer else False if right is False else None
            else:
                answer = right if answer is False else True if right else None
        return answer

    def _test(self, words: list[str], guess: bool) -> Answer:
        def is_set(name: str) -> Answer:
            return True if name in self.state.variables else False if guess else None

        return Test(words, is_set, as_if_empty=guess).answer()

    def _if(self, node: If) -> None:
        clauses = [*node.clauses]
        for number, (condition, body) in enumerate(clauses):
            answer = self.decide(condition)
            if answer:
                self.walk(body)
                return
            if answer is None:
                others = [b for _, b in clauses[number + 1 :]] + [node.otherwise]
                self._guess(condition, body, others, node.line)
                return
        self.walk(node.otherwise)

    def _guess(self, condition: list[Node], body: list[Node], others: list[list[Node]], line: int) -> None:
        """Walk the branch that an empty environment would take, unless it only leaves; say so, and mark what it sets."""
        taken = bool(self.decide(condition, guess=True))
        other = others[0] if others else []
        chosen, rest = (body, other) if taken else (other, body)
        if leaves(chosen) and not leaves(rest):
            taken, chosen = not taken, rest
        names = sorted(set().union(*(assigned(b) for b in [body, *others])))
        branch = "the branch was taken" if taken else "its other branch was taken" if other else "the branch was passed over"
        place = f"{self.place}:{line}"
        sets = f"; it sets {', '.join(names)}" if names else ""
        self.heard.tell("undecided", f"{place}: could not tell whether `{source_of(condition)}` holds; {branch}{sets}")
        for name in names:
            self.state.doubtful[name] = place
        if self.capture is not None:
            self.touched.add(place)
        self.walk(chosen)
        self._guessed = taken

    def _case(self, node: Case) -> None:
        expander = self.expander()
        subject = expander.text(node.subject)
        if is_unknown(subject):
            body = [x for _, b in node.branches for x in b]
            self._skip(body, node.line, f"a case of {shown(subject)[:60]}, which can't be told,")
            return
        for patterns, body in node.branches:
            texts = [expander.text(p) for p in patterns]
            if any(matches(t, subject[:4096]) for t in texts):
                self.walk(body)
                return

    def _chain(self, node: Chain) -> None:
        answer = self._left(node.commands[0])
        for joint, command in zip(node.joints, node.commands[1:], strict=True):
            if self.stopped or self.returned:
                return
            if answer is None:
                self._guess(
                    [node.commands[0]], [command] if joint == "&&" else [], [[command] if joint == "||" else []], node.line
                )
                answer = self._guessed
            elif answer is (joint == "&&"):
                answer = self._left(command)

    def _left(self, node: Node) -> Answer:
        """Return whether a command succeeds: what is no test is walked and taken to."""
        words = node.words if isinstance(node, Simple) else []
        first = words[0].bare() if words and isinstance(words[0], Word) else ""
        if isinstance(node, Condition) or first in ("[", "test", "true", "false"):
            return self._decide(node, False)
        self._step(node)
        return True

    # ------------------------------------------------------------------ commands

    def assign(self, assignment: Assignment, expander: Expander) -> None:
        """Make one assignment."""
        name, value = assignment.name, assignment.value
        if name in self.preset:
            self.heard.tell("default", f"{name} is set at {self.where()} too: --set holds")
            return
        before = set(self.touched)
        self.touched.clear()
        held: Held = expander.words(value) if isinstance(value, list) else expander.text(value)
        old = self.state.variables.get(name)
        if assignment.index:
            held = self._indexed(old, expander.text(Word([])) if isinstance(held, list) else held, assignment.index)
        elif assignment.append and isinstance(held, list):
            held = [*(old if isinstance(old, list) else [old] if old else []), *held]
        elif assignment.append:
            base = old if isinstance(old, str) else unknown(name) if old is None else old[0] if old else ""
            held = bounded(base + held, self.where()) if isinstance(held, str) else held
        if isinstance(held, list) and sum(map(len, held)) > 1_000_000:
            raise UserError(f"{self.where()}: {name} grows beyond a million characters; that is no launch script")
        self.state.variables[name] = held
        if self.touched:
            first = sorted(self.touched)[0]
            self.state.doubtful[name] = self.state.doubtful.get(first, first)
        self.touched |= before

    def _indexed(self, old: Held | None, value: str, index: str) -> Held:
        items = list(old) if isinstance(old, list) else [old] if old else []
        if index.isdigit() and int(index) < 1000:
            items += [""] * (int(index) + 1 - len(items))
            items[int(index)] = value
            return items
        return [unknown(f"[{index}]")]

    def _simple(self, node: Simple) -> None:
        expander = self.expander()
        if not node.words:
            for assignment in node.assignments:
                self.assign(assignment, self.expander())
            return
        if self.capture is None:
            self.touched.clear()
        first = node.words[0].bare() if isinstance(node.words[0], Word) else None
        builtin = BUILTINS.get(first or "")
        if builtin is not None:
            builtin(self, node)
            return
        words = expander.words([w for w in node.words if isinstance(w, Word)])
        env = {a.name: expander.text(a.value) for a in node.assignments if isinstance(a.value, Word)}
        given = expander.text(node.given[-1]) if node.given else ""
        if not words:
            return
        if words[0] in self.state.functions:
            self._call(words, env)
            return
        if self.capture is not None:
            text = output_of(words, given, self.state)
            self.untold = self.untold or text is None
            self.capture.append(text or "")
            return
        if words[0] == "echo" or run_inner(self, words, env, given):
            return
        held = {n: v for n in sorted(self.state.exported) if isinstance(v := self.state.variables.get(n), str)}
        used = self.touched | (held.keys() & self.state.doubtful)
        doubts = sorted({f"{n} ({self.state.doubtful.get(n, 'a branch')})" for n in used})
        self.heard.started.append(Started(words, {**held, **env}, given, self.where(), doubts, self._loops > 0))

    def _call(self, words: list[str], env: dict[str, str]) -> None:
        positional, self.state.positional = self.state.positional, words[1:]
        self.state.variables.update(env)
        self.inside(self.state.functions[words[0]])
        self.state.positional, self.returned = positional, False

    def output(self, program: list[Node]) -> str | None:
        """Return what a substituted program prints, None if that can't be told."""
        kept = (self.state, self.capture, self.untold, self.line, self.stopped)
        self.state, self.capture, self.untold = self.state.copy(), [], False
        self.inside(program)
        text, told = "".join(self.capture), not self.untold
        self.state, self.capture, self.untold, self.line, self.stopped = kept
        return text if told else None
