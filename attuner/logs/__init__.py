"""What a run printed, read as data: training steps, memory, arguments, and what went wrong. Pure; the text is never trusted."""
