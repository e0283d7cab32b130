"""The progress of work on many molecules."""

import io
import signal
import sys

import pytest
from rich.console import Console

from graphslice.system.console import WorkProgress, divide, molecule_progress


def test_log_file_gets_a_line_a_minute_with_the_remaining_time(clock):
    clock(20)
    console = Console(file=io.StringIO(), width=200)
    with molecule_progress("predicting", 90_000, console) as advance:
        for _ in range(9):
            advance(10_000)
    # 10,000 molecules in 20 seconds, from the first look at the clock
    assert console.file.getvalue().splitlines() == [
        "predicting: 33%, 30,000 of 90,000, 500/s, 0:01:00 elapsed, 0:02:00 left",
        "predicting: 67%, 60,000 of 90,000, 500/s, 0:02:00 elapsed, 0:01:00 left",
        "predicting: 100%, 90,000 of 90,000, 500/s, 0:03:00 elapsed, 0:00:00 left",
    ]


def test_without_a_total_there_is_no_estimate(clock):
    clock(90)
    console = Console(file=io.StringIO(), width=200)
    with molecule_progress("reading", None, console) as advance:
        advance(900)
    assert console.file.getvalue() == "reading: 900, 10/s, 0:01:30 elapsed\n"


def test_estimate_of_continued_work_leaves_out_what_was_done_before(clock):
    clock(60)
    console = Console(file=io.StringIO(), width=200)
    with WorkProgress("training", console) as progress:
        progress.update(0.5, "")
        progress.update(0.75, "step 75")
    # a quarter of the work in two minutes
    assert console.file.getvalue() == "training: 75%, step 75, 0:02:00 elapsed, 0:02:00 left\n"


def test_the_fraction_of_parts_counts_the_whole_work_and_never_falls(clock):
    clock(60)
    console = Console(file=io.StringIO(), width=200)
    with WorkProgress("training", console) as progress:
        first, second = divide(progress.update, 1, 3)
        fit, check = divide(second, 2, 1)
        for report, done in ((first, 0.5), (first, 1.0), (fit, 0.5), (fit, 0.25), (check, 0.0), (check, 1.0)):
            report(done, "part")
    shares = [line.split()[1] for line in console.file.getvalue().splitlines()]
    assert shares == ["12%,", "25%,", "50%,", "50%,", "75%,", "100%,"]
    assert console.file.getvalue().splitlines()[2] == "training: 50%, part, 0:03:00 elapsed, 0:03:00 left"


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
