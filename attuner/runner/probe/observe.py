"""What one rank observes of one step: the rows as they come, then, around the optimizer's step, gradients, weights and the
update. Local to the rank: no collective happens here."""

from typing import Any

import torch

from . import slots
from .batch import BatchWatch
from .measure import Kept, Numbers, Rule, keep
from .replicas import Group


class Observation:
    """One step of one rank. `before_update` and `after_update` stand around `optimizer.step`."""

    def __init__(self, groups: list[Group], optimizer: Any, rule: Rule, device: Any) -> None:
        self.batch = BatchWatch(device)
        self.numbers: list[Numbers] = []
        self.options: list[dict[str, Any]] = []
        self.used_norm: float | None = None
        self.updated = True
        self.updates = 0
        self._groups, self._optimizer, self._rule, self._device = groups, optimizer, rule, device
        self._slots: dict[Any, slots.Slot] = {}
        self._kept: dict[Any, Kept] = {}

    @torch.no_grad()
    def before_update(self) -> None:
        """Read reduced gradients and the weights in use, and keep what the step will overwrite."""
        self.updates += 1
        if self.updates > 1:
            raise RuntimeError("the optimizer took several steps in one training step")
        self.options = slots.groups(self._optimizer)
        self._slots = slots.slots(self._optimizer)
        scale = float(self._optimizer.get_loss_scale())
        for group in self._groups:
            numbers = Numbers(group.pieces, self._device)
            for index, piece in enumerate(group.pieces):
                slot = self._slots.get(piece.parameter)
                numbers.read_before(index, piece, slot, scale)
                if slot is not None and piece.hi > piece.lo:
                    self._kept[piece.parameter] = keep(slot, self._rule)
            self.numbers.append(numbers)

    @torch.no_grad()
    def after_update(self, result: Any) -> None:
        """Read the clipped gradients and the update.

        result: what megatron's optimizer.step returned: (success, gradient norm, zeros).
        """
        if isinstance(result, tuple) and len(result) > 1:
            self.updated = result[0] is not False
            self.used_norm = None if result[1] is None else float(result[1])
        for group, numbers in zip(self._groups, self.numbers, strict=True):
            for index, piece in enumerate(group.pieces):
                slot, kept = self._slots.get(piece.parameter), self._kept.pop(piece.parameter, None)
                if slot is not None and kept is not None:
                    numbers.read_after(index, piece, slot, kept, self._rule)
                elif piece.hi > piece.lo:
                    numbers.unseen(index)
        self._slots = {}
