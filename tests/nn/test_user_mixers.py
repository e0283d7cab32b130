"""Mixers outside the package: import of their files, and the check before training."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from graphslice import InputError
from graphslice.config import ModelConfig
from graphslice.inference.program_cache import save_program
from graphslice.nn import GraphTransformer
from graphslice.nn.mixers import MIXERS, Mixer, check_user_mixer, is_user_mixer, register
from graphslice.nn.mixers.user_mixers import VARIABLE, import_user_mixers

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/reference/mixers.md").read_text(encoding="utf-8")
EXAMPLE = re.search(r"## A mixer of your own.*?```python\n(.*?)```", PAGE, re.DOTALL)[1]


@pytest.fixture(autouse=True)
def _registry(monkeypatch):
    monkeypatch.setattr("graphslice.nn.mixers.base.MIXERS", MIXERS)
    before = dict(MIXERS)
    yield
    MIXERS.clear()
    MIXERS.update(before)


def own(mix, name="own", **attributes):
    """Register a mixer of a linear layer and this function."""

    def init(self, dim, heads, **settings):
        Mixer.__init__(self, dim, heads, **settings)
        self.value = torch.nn.Linear(dim, dim)

    members = {"__init__": init, "mix": mix, "__module__": __name__, "reads": ("attn_weights",), **attributes}
    return register(name)(type("Own", (Mixer,), members))


@pytest.mark.parametrize(
    ("mix", "message"),
    [
        (lambda self, x, _: x.mean(1, keepdim=True), r"mixer own returns \[3, 1, 8\] for x of shape \[3, 7, 8\]"),
        (lambda self, x, _: x - x.mean(0, keepdim=True), "depends on its batch"),
        (lambda self, x, _: x + x.mean(1, keepdim=True), "depends on its batch: it must mask the padding"),
        (lambda self, x, context: x / context.mask[..., None], "numbers that are not finite, if only in the padding"),
        (lambda self, x, _: x / "a", r"the mixer own of .*test_user_mixers\.py fails: TypeError: .* \(line \d+\)$"),
    ],
)
def test_wrong_mixer_is_rejected_before_training(mix, message):
    own(mix)
    with pytest.raises(InputError, match=message):
        check_user_mixer("own", 8, 2)


def test_right_mixer_passes_and_leaves_the_random_state_alone():
    own(lambda self, x, context: context.aggregate(self.value(x), self.active_dropout).cummax(dim=1).values)
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    check_user_mixer("own", 8, 2)
    assert torch.rand(1) == expected


def test_training_rejects_a_wrong_mixer(cli, demo_csv, tmp_path):
    own(lambda self, x, _: x - x.mean(0, keepdim=True))
    code, _, err = cli("train", "--dataset", demo_csv, "--model.mixer", "own", "--out", tmp_path / "run")
    assert code == 2 and "must not mix molecules" in err and not (tmp_path / "run").exists()


def test_name_of_a_packaged_mixer_is_taken():
    with pytest.raises(ValueError, match="softmax is a mixer of GraphSlice: register Own under another name"):
        own(lambda self, x, _: x, "softmax")
    assert not is_user_mixer("softmax")


def test_files_of_the_variable_are_imported(monkeypatch, tmp_path):
    (tmp_path / "one.py").write_text(EXAMPLE)
    (tmp_path / "two.py").write_text(EXAMPLE.replace("running-max", "other-max"))
    monkeypatch.setenv(VARIABLE, f"{tmp_path / 'one.py'}:{tmp_path / 'two.py'}")
    import_user_mixers()
    assert is_user_mixer("running-max") and is_user_mixer("other-max")
    assert MIXERS["running-max"](8, 2, gain=2.0).gain == 2.0


def test_missing_and_other_files_are_named(monkeypatch, tmp_path):
    (tmp_path / "text.txt").touch()
    for name, problem in (("nothing.py", "no file of GRAPHSLICE_MIXERS at"), ("text.txt", "is not a Python file")):
        monkeypatch.setenv(VARIABLE, str(tmp_path / name))
        with pytest.raises(InputError, match=problem):
            import_user_mixers()


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("class Own(:", r"SyntaxError: .*line 1"),
        ("import torch\n\nmissing\n", r"NameError: name 'missing' is not defined \(line 3\)"),
    ],
)
def test_file_with_an_error_is_named_with_the_line(source, reason, monkeypatch, tmp_path):
    (tmp_path / "own.py").write_text(source)
    monkeypatch.setenv(VARIABLE, str(tmp_path / "own.py"))
    with pytest.raises(InputError, match=rf"own\.py, which cannot be imported: {reason}"):
        import_user_mixers()


def test_mixer_of_a_file_trains_and_predicts(cli, tiny_config, demo_csv, monkeypatch, tmp_path):
    """On the command line, with the example of the documentation; without the file the message names the variable."""
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(EXAMPLE)
    config = tiny_config(demo_csv, model={"mixer": "running-max"}, trainer={"max_epochs": 1})
    Path("c.yaml").write_text(config.to_yaml())
    monkeypatch.setenv(VARIABLE, "own.py")
    import_user_mixers()
    assert cli("train", "--config", "c.yaml", "--out", "run")[0] == 0
    del MIXERS["running-max"]
    code, _, err = cli("predict", "run", "CCO")
    assert code == 2 and err.endswith(
        "the model has the mixer 'running-max': set GRAPHSLICE_MIXERS to the file that registers it\n"
    )
    import_user_mixers()
    assert cli("predict", "run", "CCO")[0] == 0


@pytest.mark.slow
def test_example_passes_the_tests_of_the_package(tmp_path, monkeypatch):
    """As CONTRIBUTING.md says: ``pytest -k running-max``, in a process that imports its file."""
    (tmp_path / "own.py").write_text(EXAMPLE)
    monkeypatch.setenv(VARIABLE, str(tmp_path / "own.py"))
    command = [sys.executable, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", "-k", "running-max"]
    command.append("tests/nn/test_mixers.py")
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert done.stdout.split()[0].count(".") == 3, done.stdout


def test_no_program_of_it_is_kept(tmp_path, monkeypatch):
    """Its code may change, while the configuration stays the same."""
    own(lambda self, x, context: context.aggregate(self.value(x)))
    monkeypatch.setenv("GRAPHSLICE_CACHE", str(tmp_path))
    for mixer, kept in (("own", 0), ("slice-max", 1)):
        config = ModelConfig(mixer=mixer, layers=1, dim=64, heads=8)
        save_program(config, GraphTransformer(config).eval())
        assert len(list(tmp_path.rglob("*.pickle"))) == kept
