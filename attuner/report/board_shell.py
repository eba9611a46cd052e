"""The frame of the board's pages: head, content policy, style."""

from __future__ import annotations

import base64
import hashlib

from attuner.report.board_style import board_css
from attuner.report.svg import esc


def shell(title: str, body: str, *, script_digest: str = "", wide: bool = True) -> str:
    """Return a whole page around a body that is safe HTML already; only the style and a script of this digest may act."""
    style = board_css()
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    script = f"; script-src 'sha256-{script_digest}'" if script_digest else ""
    policy = f"default-src 'none'; style-src 'sha256-{digest}'{script}; base-uri 'none'; form-action 'none'"
    main = '<main class="wide">' if wide else "<main>"
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<meta name="referrer" content="no-referrer">\n'
        f"<title>{esc(title)}</title>\n<style>{style}</style>\n</head>\n<body>\n{main}\n{body}\n</main>\n</body>\n</html>\n"
    )


def code(text: str) -> str:
    """Return text that stands inside `pre`: its lines and indents stay, everything else is escaped."""
    return "\n".join(_line(line) for line in text.split("\n"))


def _line(line: str) -> str:
    bare = line.lstrip(" ")  # `esc` joins white space
    return " " * (len(line) - len(bare)) + esc(bare, limit=4000)
