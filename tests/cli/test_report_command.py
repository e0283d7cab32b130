"""``graphslice report``, and the report at the end of ``graphslice train``."""

import json
import shlex

import graphslice.report.write


def test_train_notes_its_command_and_writes_a_report(cli, demo_csv, tiny_flags, tmp_path):
    folder = tmp_path / "a run's"
    arguments = ["train", "--dataset", demo_csv, "--out", folder, *tiny_flags]
    code, out, err = cli(*arguments)
    assert code == 0 and f"report: {folder / 'report.html'}\n" in out and "test MAE" in out and "test MAE" not in err
    start = json.loads((folder / "start.json").read_text())
    assert shlex.split(start["command"]) == ["graphslice", *map(str, arguments)] and start["version"]
    page = (folder / "report.html").read_text()
    assert "a run&#39;&#34;&#39;&#34;&#39;s" in page and "Command (click to select)" in page
    (folder / "report.html").unlink()
    code, out, err = cli("report", folder)
    assert (code, out.strip()) == (0, str(folder / "report.html"))
    assert (folder / "report.html").read_text() == page
    # A run that goes on keeps the command that began it, and has its report again.
    (folder / "metrics.json").unlink()
    assert cli("train", "--resume", folder)[0] == 0
    assert json.loads((folder / "start.json").read_text()) == start


def test_a_report_that_fails_fails_no_training(cli, demo_csv, tiny_flags, tmp_path, monkeypatch):
    def broken(run):
        raise ZeroDivisionError("a\nfault")

    monkeypatch.setattr(graphslice.report.write, "page", broken)
    code, _, err = cli("train", "--dataset", demo_csv, "--out", tmp_path / "run", *tiny_flags)
    message = "warning: report not written: ZeroDivisionError: a fault; retry with: graphslice report"
    assert code == 0 and message in err and "Traceback" not in err
    assert err.splitlines()[-1] == f"next: graphslice predict {tmp_path / 'run'} molecules.csv"
    assert (tmp_path / "run" / "metrics.json").exists() and not (tmp_path / "run" / "report.html").exists()
