"""The resolver's process: ended with its owner, pipes closed, safe to close twice."""

from __future__ import annotations

import gc
import warnings

from attuner.stacks.mcore.resolver import Resolver


def test_a_resolver_that_never_started_closes_twice() -> None:
    made = Resolver()
    made.close()
    made.close()


def test_a_closed_resolver_leaves_no_open_pipe() -> None:
    gc.collect()  # what other tests left is theirs
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        made = Resolver()
        made.start()
        made.close()
        del made
        gc.collect()
    assert [str(w.message) for w in said if w.category is ResourceWarning] == []
