"""The builtins that change what variables hold, and the few commands whose output can be told without running them."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from attuner.importing.shell.nodes import Assignment, Simple, Word
from attuner.importing.shell.values import State, is_unknown, shown, unknown

if TYPE_CHECKING:
    from attuner.importing.shell.run import Walker

Builtin = Callable[["Walker", Simple], None]
_FORMAT = re.compile(r"%(%|-?0?\d*[sdi])")


def _plain(walker: Walker, node: Simple) -> list[str]:
    """Return the expanded words behind the builtin's name."""
    return walker.expander().words([w for w in node.words[1:] if isinstance(w, Word)])


def _declare(walker: Walker, node: Simple) -> None:
    names = []
    exports = isinstance(node.words[0], Word) and node.words[0].bare() == "export"
    for word in node.words[1:]:
        if isinstance(word, Assignment):
            walker.assign(word, walker.expander())
            names.append(word.name)
            continue
        for text in walker.expander().fields(word):
            name, equals, value = text.partition("=")
            if text.startswith("-"):
                exports = exports or "x" in text
            elif equals and name.isidentifier():  # the assignment is only seen after expansion
                walker.state.variables[name] = value
                names.append(name)
            else:
                names.append(text)
    walker.state.exported.update(names if exports else [])


def _unset(walker: Walker, node: Simple) -> None:
    for name in _plain(walker, node):
        walker.state.variables.pop(name, None)
        walker.state.exported.discard(name)


def _set(walker: Walker, node: Simple) -> None:
    words = _plain(walker, node)
    if "--" in words:
        walker.state.positional = words[words.index("--") + 1 :]


def _shift(walker: Walker, node: Simple) -> None:
    words = _plain(walker, node)
    count = int(words[0]) if words and words[0].isdigit() else 1
    if walker.state.positional is not None:
        walker.state.positional = walker.state.positional[count:]


def _source(walker: Walker, node: Simple) -> None:
    words = _plain(walker, node)
    if not words:
        return
    found = walker.read(shown(words[0]), posixpath.dirname(walker.state.script))
    if found is None:
        walker.heard.tell("undecided", f"{walker.where()}: {shown(words[0])[:120]} could not be read; what it sets is unknown")
        return
    positional = walker.state.positional
    walker.state.positional = words[1:] or positional
    walker.script(*found)
    walker.state.positional = positional


def _cd(walker: Walker, node: Simple) -> None:
    words = [w for w in _plain(walker, node) if w != "--"]
    if words:
        walker.state.folder = posixpath.normpath(posixpath.join(walker.state.folder, words[0]))


def _exit(walker: Walker, node: Simple) -> None:
    walker.heard.tell(
        "skipped", f"{walker.where()}: the script would end here: exit {' '.join(map(shown, _plain(walker, node)))}"
    )
    walker.stopped = True


def _return(walker: Walker, node: Simple) -> None:
    walker.returned = True


def _eval(walker: Walker, node: Simple) -> None:
    walker.string(" ".join(_plain(walker, node)))


def _read(walker: Walker, node: Simple) -> None:
    names = [w for w in _plain(walker, node) if not w.startswith("-")]
    given = walker.expander().text(node.given[-1]) if node.given else None
    ifs = next((walker.expander().text(a.value) for a in node.assignments if a.name == "IFS" and isinstance(a.value, Word)), " ")
    if given is None or is_unknown(given):
        walker.state.variables.update({name: unknown(name) for name in names})
        return
    parts = given.split("\n")[0].split(None if not ifs.strip() else ifs[0], max(0, len(names) - 1))
    walker.state.variables.update({name: parts[i] if i < len(parts) else "" for i, name in enumerate(names)})


def _printf(walker: Walker, node: Simple) -> None:
    words = _plain(walker, node)
    into = words[1] if words[:1] == ["-v"] and len(words) > 2 else ""
    text = formatted(words[2:] if into else words)
    if into:
        walker.state.variables[into] = unknown(into) if text is None else text
    elif walker.capture is not None:
        walker.untold = walker.untold or text is None
        walker.capture.append(text or "")


def _words_only(walker: Walker, node: Simple) -> None:
    _plain(walker, node)  # `: ${X:=1}` sets X


def _let(walker: Walker, node: Simple) -> None:
    for word in node.words[1:]:
        if isinstance(word, Word):
            walker.expander().arithmetic(word)


BUILTINS: dict[str, Builtin] = {
    **dict.fromkeys(("export", "declare", "typeset", "local", "readonly"), _declare),
    **dict.fromkeys(("source", "."), _source),
    **dict.fromkeys(("cd", "pushd"), _cd),
    **dict.fromkeys((":", "true", "false", "trap", "wait", "sleep", "shopt", "ulimit", "umask", "popd", "mkdir"), _words_only),
    **dict.fromkeys(("read", "mapfile", "readarray"), _read),
    "unset": _unset,
    "set": _set,
    "shift": _shift,
    "exit": _exit,
    "return": _return,
    "eval": _eval,
    "printf": _printf,
    "let": _let,
}


def formatted(words: list[str]) -> str | None:
    """Return what printf would print, None if that can't be told."""
    if not words:
        return ""
    pattern, values = words[0], words[1:]
    slots = sum(m[1] != "%" for m in _FORMAT.finditer(pattern))
    if any(is_unknown(w) for w in words) and slots == 0:
        return None
    out: list[str] = []
    rest = list(values)
    for _ in range(max(1, -(-len(values) // slots) if slots else 1)):

        def slot(found: re.Match[str]) -> str:
            if found[1] == "%":
                return "%"
            value = rest.pop(0) if rest else ""
            if found[1][-1] == "s" or is_unknown(value):
                return value
            try:
                width = found[1][:-1][:4]
                return f"%{width}d" % int(value or "0")
            except ValueError:
                return unknown("printf")

        out.append(_FORMAT.sub(slot, pattern.replace("\\n", "\n").replace("\\t", "\t")))
    return "".join(out)


def output_of(words: list[str], given: str, state: State) -> str | None:
    """Return what a command prints, None if that can't be told without running it."""
    name, rest = words[0].rsplit("/", 1)[-1], [w for w in words[1:] if w != "--"]
    if name == "echo":
        while rest and re.fullmatch(r"-[neE]+", rest[0]):
            rest = rest[1:]
        return " ".join(rest) + "\n"
    if name == "cat":
        return given if not rest or rest == ["-"] else None
    if name == "pwd":
        return (state.folder or unknown("PWD")) + "\n"
    if name in ("dirname", "basename") and len(rest) in (1, 2):
        path = rest[0].rstrip("/") or "/"
        if name == "dirname":
            return (posixpath.dirname(path) or ".") + "\n"
        base = posixpath.basename(path)
        return base.removesuffix(rest[1] if len(rest) == 2 else "") + "\n"
    paths = [w for w in rest if not w.startswith("-")]
    if name in ("realpath", "readlink") and len(paths) == 1:
        return posixpath.normpath(posixpath.join(state.folder, paths[0])) + "\n"
    if name == "seq" and rest and all(re.fullmatch(r"-?\d{1,5}", w) for w in rest):
        first, step, last = {1: ("1", "1", rest[0]), 2: (rest[0], "1", rest[-1]), 3: (*rest, "")[:3]}.get(
            len(rest), ("1", "0", "0")
        )
        up = int(step)
        return "".join(f"{i}\n" for i in range(int(first), int(last) + (1 if up > 0 else -1), up)) if up else None
    return None
