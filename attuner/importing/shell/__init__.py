"""Follows a shell script without running it: what would its variables hold, and which commands would it start.

`parser` makes a tree of the text, `run` walks it. No library does both: bashlex reads no arrays and no arithmetic, and a bare
syntax tree says nothing of values. What can't be told is marked in the value itself (`values.unknown`)."""
