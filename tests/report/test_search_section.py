from types import SimpleNamespace

from graphslice.report.figures import Table, Text
from graphslice.report.sections import search_section


def test_run_without_trials_has_no_section(tmp_path):
    assert search_section(SimpleNamespace(folder=tmp_path)) is None


def test_trials_are_counted_by_state_and_the_selected_one_is_first(tmp_path):
    (tmp_path / "trials.csv").write_text(
        "trial,state,metric,value,seconds,seeds,mean,chosen,reason,optimizer.peak_lr,trainer.max_epochs,trainer.loss\n"
        "0,complete,mae,0.5,1.5,0,0.6,,,0.001,,auto\n"
        "1,pruned,mae,,1.5,0,,,,0.002,5,mse\n"
        "2,complete,mae,0.4,1.5,0,0.3,yes,,0.003,20,mse\n"
        "3,failed,mae,,1.5,0,,,,0.009,,mse\n"
        "4,complete,mae,0.7,1.5,0,,,,0.0005,5,auto\n"
    )
    parts = search_section(SimpleNamespace(folder=tmp_path)).parts
    (text,) = (part for part in parts if isinstance(part, Text))
    (table,) = (part for part in parts if isinstance(part, Table))
    assert text.text.startswith("5 trials, of which 3 were complete and 1 pruned.")
    assert [row[0] for row in table.rows] == ["2 (selected)", "0", "4"]
    assert table.rows[1][-3:] == ["0.001", "default", "auto"]
