"""Notes the dtypes that the run really computes in, whatever its configuration says: of router logits, logits and
activations. It hooks modules from outside and unhooks them completely."""

from collections.abc import Callable
from typing import Any

import torch

from .measure import dtype_name
from .piece import unwrapped


class Census:
    """Hooks on a model's chunks that note dtypes in `found`."""

    def __init__(self) -> None:
        self.found: set[str] = set()
        self._undo: list[Callable[[], None]] = []

    def attach(self, chunks: list[Any]) -> None:
        """Hook layers, output layer and routers. Undo with `detach`."""
        for chunk in chunks:
            core = unwrapped(chunk)
            for name, module in core.named_modules():
                if name.split(".")[-1].isdigit() and isinstance(getattr(module, "layer_number", None), int):
                    self._watch(module, "activation")
                elif name == "output_layer":
                    self._watch(module, "logits")
                elif name.endswith("router") and callable(getattr(module, "gating", None)):
                    self._wrap(module, "gating", "router_logits")

    def detach(self) -> None:
        """Remove every hook."""
        while self._undo:
            self._undo.pop()()

    def _watch(self, module: Any, what: str) -> None:
        def hook(_module: Any, _args: Any, output: Any) -> None:
            self._note(what, output)

        self._undo.append(module.register_forward_hook(hook).remove)

    def _wrap(self, owner: Any, name: str, what: str) -> None:
        inner = getattr(owner, name)

        def noting(*args: Any, **kwargs: Any) -> Any:
            output = inner(*args, **kwargs)
            self._note(what, output)
            return output

        self._undo.append(replace(owner, name, noting))

    def _note(self, what: str, output: Any) -> None:
        first = output[0] if isinstance(output, tuple) and output else output
        if isinstance(first, torch.Tensor):
            self.found.add(f"{what} {dtype_name(first.dtype)}")


def replace(owner: Any, name: str, substitute: Any) -> Callable[[], None]:
    """Set an attribute on one object alone; returns what puts the object back exactly as it was.

    If somebody else has wrapped the substitute meanwhile, it stays: it then only calls what it replaced.
    """
    before = vars(owner)
    had, old = name in before, before.get(name)
    # object.__setattr__ on purpose: torch modules file some attributes away
    object.__setattr__(owner, name, substitute)

    def undo() -> None:
        if vars(owner).get(name) is not substitute:
            return
        if had:
            object.__setattr__(owner, name, old)
        else:
            object.__delattr__(owner, name)

    return undo
