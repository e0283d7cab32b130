"""Handlers of signals: Ctrl-C and SIGTERM."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def signals_handled(handler: Callable[[int, Any], Any], numbers: Iterable[int]) -> Iterator[None]:
    """Context manager with another handler of some signals; no effect except in the main thread, which handles them."""
    if threading.current_thread() is not threading.main_thread():
        numbers = ()
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, signal.SIG_DFL if previous is None else previous)


@contextmanager
def interrupts_deferred() -> Iterator[None]:
    """Context manager that raises KeyboardInterrupt at its end if Ctrl-C was pressed within it."""
    stopped: list[int] = []
    with signals_handled(lambda number, _: stopped.append(number), [signal.SIGINT] if interrupts_are_handled() else []):
        yield
    if stopped:
        raise KeyboardInterrupt


def interrupts_are_handled() -> bool:
    """True if Ctrl-C raises KeyboardInterrupt; shells ignore it in programs in the background."""
    return signal.getsignal(signal.SIGINT) is signal.default_int_handler
