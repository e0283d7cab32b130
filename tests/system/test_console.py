"""The progress of work on many molecules."""

import signal
import sys

import pytest
from rich.console import Console

from graphslice.system.console import molecule_progress


class _SendsWhenDeleted:
    """An object whose deletion receives a signal: Python prints and drops the exception of the handler."""

    def __del__(self):
        signal.raise_signal(signal.SIGTERM)


@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_signal_whose_exception_was_lost_stops_at_the_next_advance(terminal, tmp_path):
    before = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(143))
    try:
        own = signal.getsignal(signal.SIGTERM)
        with (tmp_path / "terminal").open("w") as file:
            console = Console(file=file, force_terminal=terminal)
            with pytest.raises(SystemExit, match="143"), molecule_progress("reading", 3, console) as advance:
                advance(1)
                _SendsWhenDeleted()
                advance(1)
        assert signal.getsignal(signal.SIGTERM) is own
    finally:
        signal.signal(signal.SIGTERM, before)
