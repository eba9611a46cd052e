"""attuner tunes LLM training recipes unattended and ships a faster one with the evidence that it trains the same model."""

__version__ = "0.1.0"
