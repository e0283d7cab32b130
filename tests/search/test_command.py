import json

import pytest
from json_documents import document_of


@pytest.fixture(scope="module")
def tiny_yaml(tiny_config, demo_csv, tmp_path_factory):
    """File with the configuration of the fixture ``run_directory``."""
    path = tmp_path_factory.mktemp("config") / "tiny.yaml"
    path.write_text(tiny_config(demo_csv).to_yaml())
    return path


def command(tiny_yaml, out, mixers: str, budget: str) -> list[object]:
    return ["compare", "--config", tiny_yaml, "--mixers", mixers, "--seeds", 1, "--budget", budget, "--out", out]


@pytest.mark.usefixtures("in_this_process")
def test_run_matches_that_of_train(cli, tiny_yaml, run_directory, tmp_path):
    code, out, err = cli(*command(tiny_yaml, tmp_path / "c", "slice-max", "2epochs"))
    assert code == 0 and "| `slice-max` |" in out and "1 runs of 2epochs, 1 to do" in err
    code, out, err = cli(*command(tiny_yaml, tmp_path / "c", "slice-max", "2epochs"), "--json")
    assert code == 0 and [one["variant"] for one in document_of("compare", out)["runs"]] == ["slice-max"]
    found, expected = (
        json.loads((folder / "metrics.json").read_text())["test"]["mae"]
        for folder in (tmp_path / "c" / "slice-max" / "seed-0", run_directory)
    )
    assert found == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--trainer.max_minutes=3"], "--budget sets the length"),
        (["--trainer.devices", 2], "--jobs sets the number of parallel runs"),
        (["--ensemble", 3], "single networks are compared"),
    ],
)
def test_fixed_options_are_rejected(words, reason, cli, tiny_yaml, tmp_path):
    code, _, err = cli(*command(tiny_yaml, tmp_path / "c", "slice-max", "1steps"), *words)
    assert code == 2 and reason in err and "leave out --" in err and not (tmp_path / "c").exists()


@pytest.mark.usefixtures("in_this_process")
def test_interrupt_is_followed_by_how_to_continue(cli, tiny_yaml, tmp_path, monkeypatch):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("graphslice.training.train_run.run", interrupted)
    code, _, err = cli(*command(tiny_yaml, tmp_path / "c", "slice-max,map-only", "9steps"))
    assert code == 130 and "run the same command to continue" in err and "Traceback" not in err
