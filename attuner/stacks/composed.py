"""Stacks that are made of two: slime's arguments are resolved by the resolver of stack `megatron`, which neither imports."""

from __future__ import annotations

from attuner.stacks.megatron.stack import MegatronStack
from attuner.stacks.slime.stack import SlimeStack


def slime() -> SlimeStack:
    """Return stack `slime` with the resolver that reads Megatron's and slime's checkouts."""
    return SlimeStack(MegatronStack())
