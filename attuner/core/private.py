"""What must not get into a record, a page or a message: names that hold a secret, and text that looks like one.

Names of shells and headers (`WANDB_KEY=…`, `x-api-key: …`) and names in code (`"accessToken": "…"`) are read alike, word by
word. Ordinary words that look similar stay: tokens of a tokenizer, columns of a data set, counts, paths, digests.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

MASK = "(secret)"
_SURE = (
    r"password|passwd|passphrase|secret|(^|_)(api|access|private|storage|account|wandb|comet|signing|encryption)_?key"
    r"|(^|_)(auth|access|session|security|refresh|bearer|hf|hub|github|gitlab|wandb|slack|bot|api)_token|amz_(signature|credential)"
    r"|(^|_)access_signature|secret_(access_)?key|secret_key_b64"
)
"""Ends of names that hold a secret wherever they stand, in small letters too."""
_ENV = r"(^|_)(key|token|pat|credentials?|webhook(_url)?|connection_string|(db|user|admin|smtp|redis|proxy|registry)_pass)"
"""Ends of names that hold one as a variable of the environment; `key=value` in a sentence does not."""
_SECRET_NAME = re.compile(rf"({_SURE})$")
_SECRET_ENV = re.compile(rf"({_SURE}|{_ENV})$|^aws_(secret|session)")
_ORDINARY = re.compile(
    r"(^|_)((input|label|metadata|tool|multimodal|reward|eval|sort|cache|primary|foreign|query|metric)_key"
    r"|(bos|eos|eod|pad|unk|mask|sep|cls|stop|image|video|audio|special|prefix|middle|suffix|max|per|num)_token)$"
)
"""Names of data columns, of a tokenizer's tokens, of counts."""
_NAMED = re.compile(
    r"(?<![A-Za-z0-9_])(?P<flag>--)?(?P<name>[A-Za-z](?:[\w-]|\.(?=[A-Za-z])){0,120}+)"
    r"(?P<sep>\\{0,3}[\"']? {0,3}[=:] {0,3}(?P<quote>\\{0,3}[\"'])?| {1,3}\.{3,60} {1,3}|(?(flag) {1,3}(?!-)|(?!)))"
)
"""A name and what stands between it and its value: in a shell, a header, JSON, Megatron's list of arguments, or after a flag."""
_BARE = re.compile(r"[^\s\"']{1,400}")
_PROSE = re.compile(r"(?:is|isn't|was|not|no|unset|missing|looks|None|none|null)(?![\w.+/=-])")
"""What a message says of a name, where its value would stand: `HF_TOKEN: is not set`."""
_QUOTED = re.compile(r"[^\n]{1,400}?(?=\\{0,3}[\"'])")
_TEXT = re.compile(
    r"\bhf_[A-Za-z0-9]{16,}|\bsk-[A-Za-z0-9_-]{16,}|\bgh[pousr]_[A-Za-z0-9]{20,}|\bgithub_pat_\w{20,}|\bglpat-[\w-]{16,}"
    r"|\bA[KS]IA[A-Z0-9]{16}\b|\bnvapi-[\w-]{16,}|\bxox[abeoprs]-[\w-]{10,}|\bxapp-[\w-]{10,}|\bAIza[\w-]{35}\b"
    r"|(?<=://)[^/\s:@]{0,200}:[^/\s@]{1,200}(?=@)|(?:(?<=http://)|(?<=https://))[^/\s:@?#\"']{1,200}(?=@)"
    r"|\beyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]*"
    r"|-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----(?:[^-]|-(?!-)){0,8000}(?:-----END [A-Z ]{0,40}PRIVATE KEY-----)?"
)
_AFTER = re.compile(
    r"(?i)(https?://(?:hooks\.slack(?:-gov)?\.com|[\w.-]{1,100}\.webhook\.office\.com|outlook\.office(?:365)?\.com/webhook"
    r"|(?:[\w-]{1,40}\.)?discord(?:app)?\.com/api/webhooks|hooks\.zapier\.com|hook\.[\w.-]{1,40}\.make\.com"
    r"|open\.(?:feishu\.cn|larksuite\.com)/open-apis/bot|api\.telegram\.org|[^\s\"'/]{1,200}/(?:web)?hooks?(?=/[a-z0-9]{20}))/"
    r"|[?&](?:access_|api_)?(?:key|token|sig|signature)=|\bauthorization\\{0,3}[\"']? {0,3}[:=] {0,3}(?:\\{0,3}[\"'])?"
    r"(?:(?:bearer|basic|token|digest|negotiate) {1,3}|(?=[^\s\"']{16})))[^\s\"'<>&]{1,1000}"
)
"""What comes after a webhook's host, a signed address's key, or a header's `Authorization:`."""


def mask(text: str) -> str:
    """Return text without anything that looks like a secret."""
    return _named(_AFTER.sub(lambda m: m[1] + MASK, _TEXT.sub(MASK, text)))


def is_secret(name: str, value: str) -> bool:
    """Tell whether a variable of this name, or its value, is a secret."""
    return _holds(_SECRET_ENV, name) or mask(value) != value


def masked(value: Any) -> Any:
    """Return data (text, lists, mappings) without anything that looks like a secret."""
    if isinstance(value, str):
        return mask(value)
    if isinstance(value, list):
        return [masked(x) for x in value]
    return {k: masked(v) for k, v in value.items()} if isinstance(value, Mapping) else value


def secret_in(data: Any, *, env: bool = False) -> str:
    """Return the place (`baseline.env.X`) of the first value in a record's data that looks like a secret; '' if none does."""
    if isinstance(data, str):
        return "" if mask(data) == data else "."
    if isinstance(data, list):
        words = [x for x in data if isinstance(x, str)]
        if mask(" ".join(words)) != " ".join(words):  # a flag and its value may be two words
            return "."
        return next((f".{n}{at}".removesuffix(".") for n, x in enumerate(data) if (at := secret_in(x))), "")
    for name, value in data.items() if isinstance(data, Mapping) else ():
        known = isinstance(value, str) and value and _holds(_SECRET_ENV if env else _SECRET_NAME, str(name))
        at = "." if known else secret_in(value, env=name == "env")
        if at:
            return f".{name}{at}".removesuffix(".")
    return ""


def _holds(names: re.Pattern[str], name: str) -> bool:
    # accessToken, access-token and ACCESS_TOKEN are one name
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    plain = re.sub(r"\W", "_", words).lower()
    return bool(names.search(plain)) and not _ORDINARY.search(plain)


def _named(text: str) -> str:
    parts, done, at = [], 0, 0
    while (found := _NAMED.search(text, at)) is not None:
        at, name = found.end(), found["name"]
        loud = name.isupper() and name != "KEY"
        if not _holds(_SECRET_ENV if loud else _SECRET_NAME, name) and not (found["flag"] and name == "token"):
            continue
        if _PROSE.match(text, at) is not None:
            continue
        value = (_QUOTED.match(text, at) if found["quote"] else None) or _BARE.match(text, at)
        if value is not None:
            parts += [text[done:at], MASK]
            done = at = value.end()
    return "".join([*parts, text[done:]])
