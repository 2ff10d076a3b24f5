"""Timing a call that takes microseconds."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter


def best_time(call: Callable[[], object], seconds: float = 0.05, least_repeats: int = 3) -> float:
    """Repeat a call and take its shortest time: what it needs when nothing disturbs it.

    Args:
        call: what to time.
        seconds: how long to go on.
        least_repeats: how often at least.

    Returns:
        Seconds.

    >>> best_time(lambda: None, seconds=0.001) < 0.001
    True
    """
    best, stop, repeats = float("inf"), perf_counter() + seconds, 0
    while repeats < least_repeats or perf_counter() < stop:
        start = perf_counter()
        call()
        best, repeats = min(best, perf_counter() - start), repeats + 1
    return best
