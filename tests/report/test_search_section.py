import csv
from pathlib import Path
from types import SimpleNamespace

from graphslice.report.figures import Table, Text
from graphslice.report.sections import search_section

HEAD = ["trial", "state", "metric", "value", "seconds", "seeds", "mean", "chosen", "reason"]
OPTIONS = ["optimizer.peak_lr", "trainer.max_epochs", "trainer.loss", "model.dropout"]


def write(folder: Path, rows: list[list], metric: str = "mae") -> SimpleNamespace:
    """Rows: state, value, mean, chosen, then the values of the options."""
    with open(folder / "trials.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(HEAD + OPTIONS)
        for number, (state, value, mean, chosen, *options) in enumerate(rows):
            writer.writerow([number, state, metric, value, 1.5, 0, mean, chosen, "", *options])
    return SimpleNamespace(folder=folder)


TRIALS = [
    ["complete", 0.5, 0.6, "", 1e-3, "", "auto", 0.1],
    ["pruned", "", "", "", 2e-3, 5, "mse", 0.1],
    ["complete", 0.4, 0.3, "yes", 3e-3, 20, "mse", 0.1],
    ["failed", "", "", "", 9e-3, "", "mse", 0.1],
    ["complete", 0.7, "", "", 5e-4, 5, "auto", 0.1],
]


def parts(section, kind):
    return [part for part in section.parts if isinstance(part, kind)]


def test_run_without_trials_has_no_section(tmp_path):
    assert search_section(SimpleNamespace(folder=tmp_path)) is None


def test_trials_are_counted_by_state(tmp_path):
    (text,) = parts(search_section(write(tmp_path, TRIALS)), Text)
    assert text.text.startswith("5 trials, of which 3 were complete and 1 pruned.")


def test_selected_trial_is_first_in_the_table(tmp_path):
    (table,) = parts(search_section(write(tmp_path, TRIALS)), Table)
    assert [row[0] for row in table.rows] == ["2 (selected)", "0", "4"]
    assert table.rows[1][-4:] == ["0.001", "default", "auto", "0.1"]


def test_no_complete_trial(tmp_path):
    assert search_section(write(tmp_path, TRIALS[1:2])).parts == []
