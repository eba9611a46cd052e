"""Looks at pieces of a script's tree without walking them: what they set, whether they leave, how they were written."""

from __future__ import annotations

from attuner.importing.shell.nodes import (
    Assignment,
    Case,
    Chain,
    Condition,
    For,
    Group,
    If,
    Node,
    Not,
    Parameter,
    Pipe,
    Simple,
    Substitution,
    Text,
    While,
    Word,
)


def assigned(body: list[Node]) -> set[str]:
    """Return the variables that commands set, however deep."""
    found: set[str] = set()
    stack: list[object] = list(body)
    while stack:
        node = stack.pop()
        if isinstance(node, Assignment):
            found.add(node.name)
        elif isinstance(node, list | tuple):
            stack.extend(node)
        elif isinstance(node, For):
            found.update([node.name] if node.name else [])
            stack.append(node.body)
        elif isinstance(node, Simple):
            stack += [*node.assignments, *node.words]
        elif isinstance(node, If | While | Case | Group | Pipe | Chain | Not):
            stack += list(vars(node).values())
    return found


def leaves(body: list[Node]) -> bool:
    """Tell whether commands end the script."""
    last = body[-1] if body else None
    if isinstance(last, Group | Chain):
        return leaves(last.body if isinstance(last, Group) else last.commands)
    words = last.words if isinstance(last, Simple) else []
    return bool(words) and isinstance(words[0], Word) and words[0].bare() in ("exit", "return")


def source_of(condition: list[Node]) -> str:
    """Return a condition about as it was written."""

    def text(word: Word | Assignment) -> str:
        if isinstance(word, Assignment):
            return f"{word.name}=…"
        shapes = [
            p.text if isinstance(p, Text) else p.source if isinstance(p, Parameter | Substitution) else "$((…))"
            for p in word.parts
        ]
        return "".join(shapes)

    def one(node: Node) -> str:
        if isinstance(node, Not):
            return f"! {one(node.command)}"
        if isinstance(node, Chain):
            joints = ["", *(f" {j} " for j in node.joints)]
            return "".join(j + one(c) for j, c in zip(joints, node.commands, strict=True))
        if isinstance(node, Condition):
            return f"(( {text(node.arithmetic)} ))" if node.arithmetic is not None else f"[[ {' '.join(map(text, node.words))} ]]"
        return " ".join(map(text, node.words)) if isinstance(node, Simple) else type(node).__name__.lower()

    return "; ".join(map(one, condition))[:120]
