"""Shell patterns (`*`, `?`, `[a-z]`), matched in time that grows with text × pattern: no pattern of a script can hang us."""

from __future__ import annotations

STAR = "*"
SHORT = 512
"""Longest text that is cut or replaced by a pattern with wildcards."""


def tokens(pattern: str) -> list[str | tuple[bool, str]]:
    """Return a pattern as characters, STAR, and (wanted, characters) for `?` (no characters, unwanted) and classes."""
    found: list[str | tuple[bool, str]] = []
    at = 0
    while at < len(pattern):
        char = pattern[at]
        end = pattern.find("]", at + 2) if char == "[" else -1
        if end > 0:
            body = pattern[at + 1 : end]
            wanted = body[:1] not in ("!", "^")
            found.append((wanted, _members(body if wanted else body[1:])))
            at = end
        elif char == "?":
            found.append((False, ""))
        elif char == STAR:
            found.append(STAR)
        else:
            found.append("\\*" if char == "\\" and pattern[at + 1 : at + 2] == STAR else char)
        at += 1
    return found


def _members(body: str) -> str:
    out, at = [], 0
    while at < len(body):
        if body[at + 1 : at + 2] == "-" and at + 2 < len(body) and ord(body[at]) <= ord(body[at + 2]) < 0x250:
            out += [chr(c) for c in range(ord(body[at]), ord(body[at + 2]) + 1)]
            at += 3
        else:
            out.append(body[at])
            at += 1
    return "".join(out)


def _fits(token: str | tuple[bool, str], char: str) -> bool:
    return token == char if isinstance(token, str) else (char in token[1]) == token[0]


def matches(pattern: str, text: str) -> bool:
    """Tell whether a pattern matches all of a text."""
    wanted = tokens(pattern)
    at = place = 0
    star, back = -1, 0
    while at < len(text):
        if place < len(wanted) and wanted[place] != STAR and _fits(wanted[place], text[at]):
            at, place = at + 1, place + 1
        elif place < len(wanted) and wanted[place] == STAR:
            star, back = place, at
            place += 1
        elif star >= 0:
            back += 1
            at, place = back, star + 1
        else:
            return False
    return all(token == STAR for token in wanted[place:])


def wild(pattern: str) -> bool:
    """Tell whether a pattern has wildcards."""
    return any(c in pattern for c in "*?[")


def trimmed(value: str, pattern: str, op: str) -> str | None:
    """Return the value without the shortest or longest match at its begin (# ##) or end (% %%); None if it is too long to try."""
    if not wild(pattern):
        return value.removeprefix(pattern) if op[0] == "#" else value.removesuffix(pattern)
    if len(value) > SHORT:
        return None
    cuts = range(len(value) + 1) if op in ("#", "%%") else range(len(value), -1, -1)
    for at in cuts:
        part, rest = (value[:at], value[at:]) if op[0] == "#" else (value[at:], value[:at])
        if matches(pattern, part):
            return rest
    return value


def replaced(value: str, pattern: str, into: str, *, every: bool) -> str | None:
    """Return the value with the first or every match replaced; None if it is too long to try."""
    if not pattern:
        return value
    if not wild(pattern):
        return value.replace(pattern, into, -1 if every else 1)
    if len(value) > SHORT // 4:
        return None
    out, at = "", 0
    while at < len(value):
        end = next((e for e in range(len(value), at, -1) if matches(pattern, value[at:e])), at)
        if end == at:
            out, at = out + value[at], at + 1
            continue
        out, at = out + into, end
        if not every:
            break
    return out + value[at:]
