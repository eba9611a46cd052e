"""What must not get into a record, a page or a message: names that hold a secret, and text that looks like one."""

from __future__ import annotations

import re

MASK = "(secret)"
_NAME = re.compile(r"(?i)(^|_)(api_?key|key|token|secret|password|passwd|pat|credentials?)$|^AWS_(SECRET|SESSION)")
_TEXT = re.compile(
    r"\bhf_[A-Za-z0-9]{16,}|\bsk-[A-Za-z0-9_-]{16,}|\bgh[pousr]_[A-Za-z0-9]{20,}|\bgithub_pat_\w{20,}|\bglpat-[\w-]{16,}"
    r"|\bAKIA[A-Z0-9]{16}\b|\bnvapi-[\w-]{16,}|\bxox[bp]-[\w-]{10,}|(?<=://)[^/\s:@]{1,200}:[^/\s@]{1,200}(?=@)"
    r"|\beyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]*"
)
_GIVEN = re.compile(
    r"((?:\b(?:[A-Z0-9]{1,40}_){0,6}(?:API_?KEY|TOKEN|SECRET|PASSWORD)|(?i:\b\w{0,40}(?:api_?key|password|passwd|secret|auth_token)))"
    r"[\"']? {0,3}[=:] {0,3}[\"']?|(?i:\bauthorization: {0,3}bearer) {1,3})[^\s\"']{1,400}"
)
"""`WANDB_API_KEY=…` as a shell, an environment dump or a header says it."""


def mask(text: str) -> str:
    """Return text without anything that looks like a secret."""
    return _GIVEN.sub(lambda m: m[1] + MASK, _TEXT.sub(MASK, text))


def is_secret(name: str, value: str) -> bool:
    """Tell whether a variable of this name, or its value, is a secret."""
    return bool(_NAME.search(name) or _TEXT.search(value))
