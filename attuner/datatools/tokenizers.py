"""Text to tokens: one token a byte, or a Hugging Face tokenizer from a local file when the library is installed.

Nothing is fetched unless a name on the hub is given and downloading is allowed; code that a model brings is never run.
"""

from __future__ import annotations

import hashlib
import importlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from attuner.core.errors import UserError

Tokens = npt.NDArray[Any]
BYTES = "bytes"
BYTE_EOS, BYTE_PAD, BYTE_SPECIALS = 256, 257, 2
"""The byte tokenizer's ids above the 256 bytes: end of a document, padding."""


class Tokenizer(Protocol):
    """What turns documents into token ids."""

    vocab_size: int
    """Number of ids: every id is below it."""
    eos: int | None
    """Its own end-of-document token, where it names one."""
    pad: int | None
    pieces: bool
    """Whether the tokens of a document are those of its pieces, in order."""

    def encode(self, texts: list[bytes]) -> list[Tokens | None]:
        """Return the tokens of each text; None for one that is no UTF-8 where that is needed."""

    def id_of(self, token: str) -> int | None:
        """Return the id of a token that is written as in the vocabulary."""

    def about(self) -> dict[str, Any]:
        """Return what it is, with the digest of its file."""


class Bytes:
    """One token a byte; ids 256 and 257 are end of document and padding."""

    vocab_size = 256 + BYTE_SPECIALS
    eos: int | None = BYTE_EOS
    pad: int | None = BYTE_PAD
    pieces = True

    def encode(self, texts: list[bytes]) -> list[Tokens | None]:
        """See Tokenizer."""
        return [np.frombuffer(text, np.uint8) for text in texts]

    def id_of(self, token: str) -> int | None:
        """See Tokenizer; only a single byte is a token."""
        raw = token.encode()
        return raw[0] if len(raw) == 1 else None

    def about(self) -> dict[str, Any]:
        """See Tokenizer."""
        return {"name": BYTES, "eos": BYTE_EOS, "pad": BYTE_PAD}


@dataclass
class HuggingFace:
    """A tokenizer of the `tokenizers` or `transformers` library."""

    name: str
    library: str
    version: str
    sha256: str
    _inner: Any
    _ids: dict[str, int]
    eos: int | None = None
    pad: int | None = None
    pieces: bool = False
    vocab_size: int = field(init=False)

    def __post_init__(self) -> None:
        """Take the vocabulary from its largest id: ids may have gaps."""
        self.vocab_size = max(self._ids.values(), default=-1) + 1

    def encode(self, texts: list[bytes]) -> list[Tokens | None]:
        """See Tokenizer."""
        words: list[str] = []
        good: list[bool] = []
        for raw in texts:
            try:
                words.append(raw.decode("utf-8"))
                good.append(True)
            except UnicodeDecodeError:
                good.append(False)
        if self.library == "tokenizers":
            # the fast one leaves out the places in the text
            encode = getattr(self._inner, "encode_batch_fast", self._inner.encode_batch)
            ids = iter([e.ids for e in encode(words, add_special_tokens=False)])
        else:
            ids = iter(self._inner(words, add_special_tokens=False)["input_ids"] if words else [])
        return [np.asarray(next(ids), np.int64) if ok else None for ok in good]

    def id_of(self, token: str) -> int | None:
        """See Tokenizer."""
        return self._ids.get(token)

    def about(self) -> dict[str, Any]:
        """See Tokenizer."""
        return {"name": self.name, "library": f"{self.library} {self.version}", "sha256": self.sha256}


def load(name: str, *, allow_download: bool = False) -> Tokenizer:
    """Return the tokenizer `name`: `bytes`, a tokenizer.json, a folder that has one (or other files of a model's
    tokenizer), or, with `allow_download`, a name on the hub.

    Raises:
        UserError: no such file, it can't be read, or the library isn't installed.
    """
    if name == BYTES:
        return Bytes()
    path = Path(name)
    if path.is_dir():
        return _from_file(path / "tokenizer.json", name) if (path / "tokenizer.json").is_file() else _from_folder(path)
    if path.is_file():
        return _from_file(path, name)
    if not allow_download:
        raise UserError(
            f"--tokenizer {name}: no such file or folder; `bytes` needs none, --allow-download takes a name from the hub"
        )
    library = _library("tokenizers")
    with _one_line(name):
        inner = library.Tokenizer.from_pretrained(name)
    sha256 = hashlib.sha256(inner.to_str().encode()).hexdigest()
    return HuggingFace(name, "tokenizers", library.__version__, sha256, inner, inner.get_vocab(with_added_tokens=True))


def _from_file(path: Path, name: str) -> Tokenizer:
    library = _library("tokenizers")
    with _one_line(str(path)):
        raw = path.read_bytes()
        inner = library.Tokenizer.from_str(raw.decode("utf-8"))
    ids = inner.get_vocab(with_added_tokens=True)
    inner.no_truncation()
    inner.no_padding()
    told = _told(path.with_name("tokenizer_config.json"))
    sha256 = hashlib.sha256(raw).hexdigest()
    eos, pad = (ids.get(told.get(key, "")) for key in ("eos_token", "pad_token"))
    return HuggingFace(name, "tokenizers", library.__version__, sha256, inner, ids, eos=eos, pad=pad)


def _from_folder(path: Path) -> Tokenizer:
    library = _library("transformers")
    with _one_line(str(path)):
        inner = library.AutoTokenizer.from_pretrained(str(path), local_files_only=True, trust_remote_code=False)
    digest = hashlib.sha256()
    for file in sorted(p for p in path.iterdir() if p.is_file() and not p.name.endswith((".safetensors", ".bin", ".pt"))):
        digest.update(f"{file.name}\0".encode() + hashlib.sha256(file.read_bytes()).digest())
    ids, eos, pad = dict(inner.get_vocab()), inner.eos_token_id, inner.pad_token_id
    return HuggingFace(str(path), "transformers", library.__version__, digest.hexdigest(), inner, ids, eos=eos, pad=pad)


def _told(path: Path) -> dict[str, str]:
    """Return the special tokens that the file beside a tokenizer.json names; they stand as text or as {content: text}."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(found, dict):
        return {}
    named = {k: v.get("content") if isinstance(v, dict) else v for k, v in found.items() if k in ("eos_token", "pad_token")}
    return {k: v for k, v in named.items() if isinstance(v, str)}


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise UserError(f"--tokenizer: this needs the library `{name}`: pip install {name}; `bytes` needs none") from None


@contextmanager
def _one_line(name: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # noqa: BLE001 - the libraries raise plain Exception for a bad file and a lost network alike
        raise UserError(f"--tokenizer {name}: no tokenizer ({' '.join(str(error).split())[:200]})") from None
