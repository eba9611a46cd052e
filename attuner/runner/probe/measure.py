"""Reads a step's numbers off this rank's pieces, a bounded chunk at a time: gradients and weights before the optimizer's
step, what clipping and the update did after it. Nothing is changed, and nothing of full size is allocated but a copy on the
host of what the step overwrites."""

import dataclasses
from typing import Any

import torch

from .columns import CODES, DTYPES, FLOATS, KINDS, QUANTIZED
from .numbers import bits_hash, chunks, projection
from .piece import Piece
from .slots import Slot

_COLUMN = {name: i for i, name in enumerate(FLOATS)}
_CODE = {name: i for i, name in enumerate(CODES)}


def dtype_name(dtype: torch.dtype) -> str:
    """Return a dtype's name as the census writes it."""
    return str(dtype).removeprefix("torch.")


def dtype_code(dtype: torch.dtype) -> int:
    """Return 1 + the dtype's place in DTYPES."""
    name = dtype_name(dtype)
    return 1 + DTYPES.index(name if name in DTYPES else "other")


def quantized(parameter: Any) -> bool:
    """Say whether a parameter's data are a tensor of another kind, such as Transformer Engine's Float8Tensor."""
    return type(parameter.data) is not torch.Tensor


@dataclasses.dataclass
class Rule:
    """The optimizer that the run declares, as far as its first direction can be computed again."""

    kind: str
    betas: tuple[float, float] = (0.0, 0.0)
    eps: float = 0.0
    decoupled_decay: bool = True

    def explainable(self) -> str:
        """Return why its update can't be explained, or nothing."""
        if self.kind not in ("adam", "sgd"):
            return f"the direction of {self.kind} isn't computed here"
        if self.kind == "adam" and not self.decoupled_decay:
            return "weight decay goes through Adam's states (decoupled_weight_decay is off)"
        return ""

    def states(self) -> tuple[str, ...]:
        """Return the names of the states that its direction depends on."""
        return ("exp_avg", "exp_avg_sq") if self.kind == "adam" else ("momentum_buffer",)

    def direction(self, gradient: Any, states: list[Any], steps: int, options: dict[str, Any]) -> Any:
        """Return what the optimizer multiplies by the learning rate, in float64, weight decay left out.

        states: before the step, None where there were none. steps: taken before.
        """
        if self.kind == "sgd":
            momentum = float(options.get("momentum") or 0.0)
            return gradient if states[0] is None else gradient + momentum * states[0]
        first, second = self.betas
        mean, square = (1.0 - first) * gradient, (1.0 - second) * gradient * gradient
        if states[0] is not None and states[1] is not None:
            mean, square = mean + first * states[0], square + second * states[1]
        corrected = (square / (1.0 - second ** (steps + 1))).sqrt() + self.eps
        return mean / (1.0 - first ** (steps + 1)) / corrected


class Numbers:
    """What one step's pieces measured: floats (pieces, FLOATS) float64, hashes (pieces, 2: gradient, weights) and codes
    (pieces, CODES) int64, on the pieces' device."""

    def __init__(self, pieces: list[Piece], device: Any) -> None:
        count = len(pieces)
        self.floats = torch.zeros(count, len(FLOATS), dtype=torch.float64, device=device)
        self.hashes = torch.zeros(count, 2, dtype=torch.int64, device=device)
        self.codes = torch.zeros(count, len(CODES), dtype=torch.int64, device=device)

    def read_before(self, index: int, piece: Piece, slot: Slot | None, loss_scale: float) -> None:
        """Take the reduced, unclipped gradient of this rank's range, and the weights that the forward used."""
        row, places, gradient = self.floats[index], piece.places(), piece.parameter.main_grad.detach().view(-1)
        for lo, hi, keys in chunks(places, piece.lo, piece.hi):
            values = gradient[lo:hi].double() / loss_scale
            row[_COLUMN["grad_2"]] += values @ values
            row[_COLUMN["grad_p"]] += projection(values, keys)
            row[_COLUMN["zeros"]] += (values == 0).sum()
            self.hashes[index, 0] += bits_hash(gradient[lo:hi], keys)
        if piece.hi > piece.lo:
            self._code(index, "grad_buffer", gradient)
        if quantized(piece.parameter):
            self.codes[index, _CODE["param"]] = QUANTIZED
            return
        weights = piece.parameter.detach().reshape(-1)
        self._code(index, "param", weights)
        for lo, hi, keys in chunks(places, 0, weights.numel()):
            values = weights[lo:hi].double()
            row[_COLUMN["weight_2"]] += values @ values
            row[_COLUMN["weight_p"]] += projection(values, keys)
            self.hashes[index, 1] += bits_hash(weights[lo:hi], keys)
        main = slot.main() if slot and piece.hi > piece.lo else None
        if main is None or main.data_ptr() == weights[piece.lo :].data_ptr():
            return
        for lo, hi, _keys in chunks(places, piece.lo, piece.hi):
            own = main[lo - piece.lo : hi - piece.lo].to(weights.device).to(weights.dtype)
            row[_COLUMN["stale"]] += (weights[lo:hi] != own).sum()

    def read_after(self, index: int, piece: Piece, slot: Slot, before: "Kept", rule: Rule) -> None:
        """Take what clipping left of the gradient, and the update against what was kept from before the step."""
        main, gradient = slot.main(), slot.gradient()
        if main is None or gradient is None or before.weights is None:
            self.unseen(index)
            return
        for name, tensor in (("main_grad", gradient), ("main_param", main), *((n, slot.state(n)) for n in KINDS[-2:])):
            if tensor is not None:
                self._code(index, name, tensor)
        self.codes[index, _CODE["group"]] = 1 + slot.group
        explain, options, device = not rule.explainable(), slot.options(), piece.parameter.device
        for lo, hi, keys in chunks(piece.places(), piece.lo, piece.hi):
            part = slice(lo - piece.lo, hi - piece.lo)
            clipped = gradient[part].to(device).double()
            old = before.weights[part].to(device).double()
            update = main[part].to(device).double() - old
            row = {"clipped_2": clipped @ clipped, "update_2": update @ update, "update_p": projection(update, keys)}
            if explain:
                states = [None if state is None else state[part].to(device).double() for state in before.states]
                direction = rule.direction(clipped, states, before.steps, options)
                row |= {"us": update @ direction, "uw": update @ old, "ss": direction @ direction}
                row |= {"sw": direction @ old, "ww": old @ old}
            for name, value in row.items():
                self.floats[index, _COLUMN[name]] += value

    def unseen(self, index: int) -> None:
        """Say that this piece's update couldn't be read."""
        self.codes[index, _CODE["unseen"]] = 1

    def _code(self, index: int, kind: str, tensor: Any) -> None:
        self.codes[index, _CODE[kind]] = dtype_code(tensor.dtype)


@dataclasses.dataclass
class Kept:
    """Copies on the host of what an optimizer step overwrites."""

    weights: Any | None
    states: list[Any | None]
    steps: int


def keep(slot: Slot, rule: Rule) -> Kept:
    """Copy this rank's main weights, and the optimizer's states if it has any, to the host."""
    names = rule.states() if not rule.explainable() else ()
    return Kept(_host(slot.main()), [_host(slot.state(name)) for name in names], slot.steps())


def _host(tensor: Any | None) -> Any | None:
    return None if tensor is None else torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu").copy_(tensor)
