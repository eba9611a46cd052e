"""From a profiler trace (bytes) to where each step went: pure accounting on intervals, no I/O, no clock."""
