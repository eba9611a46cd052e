"""Errors of a recipe which no retry would mend. Standard library only: they are told apart before megatron is
imported."""


class ConfigError(ValueError):
    """A recipe's argument is unknown, of the wrong kind, or impossible here; the message is one line."""


class LayoutError(ConfigError):
    """A recipe's parallel layout doesn't divide; the message is one line with the formula and its numbers."""
