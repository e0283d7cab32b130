import pytest

from graphslice.config import RunConfig
from graphslice.errors import InputError
from graphslice.search.study import LogRange, search_space, with_values
from graphslice.tasks import Task, regression_tasks

TASKS = regression_tasks(["y"])


@pytest.fixture
def scratch(tiny_config) -> RunConfig:
    return tiny_config(trainer={"max_epochs": None})


def test_every_choice_begins_with_the_default(scratch):
    space = search_space(scratch, TASKS, 30)
    for name, values in space.items():
        default = scratch.options()[name]
        if isinstance(values, LogRange):
            assert values.low == default / 4 and values.high == default * 4
        else:
            assert values[0] == default and len(set(values)) == len(values) > 1


def test_epochs_are_half_and_double_the_default(scratch):
    assert search_space(scratch, TASKS, 31)["trainer.max_epochs"] == (None, 16, 62)


def test_length_set_by_the_user_is_kept(tiny_config):
    for limit in ({"max_epochs": 3}, {"max_steps": 30}, {"max_minutes": 1.0}):
        config = tiny_config(trainer={"max_epochs": None, **limit})
        assert "trainer.max_epochs" not in search_space(config, TASKS, 30)


def test_architecture_is_searched_from_scratch_only(scratch):
    fine_tuned = RunConfig.from_dict(scratch.to_dict() | {"init_from": "small"})
    assert {"model.layers", "model.dim"} <= set(search_space(scratch, TASKS, 30))
    space = search_space(fine_tuned, TASKS, 30)
    assert not {"model.layers", "model.dim", "model.mixer"} & set(space)
    assert space["optimizer.layer_lr_decay"] == (1.0, 0.7)


def test_loss_is_searched_for_regression_only(scratch):
    classes = [Task("y", "binary", ("0", "1"))]
    assert search_space(scratch, TASKS, 30)["trainer.loss"] == ("auto", "huber", "mse")
    assert "trainer.loss" not in search_space(scratch, classes, 30)
    chosen = RunConfig.from_dict(scratch.to_dict() | {"trainer": {"loss": "mse"}})
    assert "trainer.loss" not in search_space(chosen, TASKS, 30)


def test_widths_are_multiples_of_the_heads(tiny_config):
    config = tiny_config(model={"dim": 96, "heads": 12}, trainer={"max_epochs": 1})
    assert search_space(config, TASKS, 30).get("model.dim", (96,)) == (96,)


def test_mixers_of_a_fine_tuned_model_raise(scratch):
    assert search_space(scratch, TASKS, 30, ["csp"])["model.mixer"] == ("slice-max", "csp")
    fine_tuned = RunConfig.from_dict(scratch.to_dict() | {"init_from": "small"})
    with pytest.raises(InputError, match=r"--mixers needs training from scratch.*init_from none"):
        search_space(fine_tuned, TASKS, 30, ["csp"])


def test_values_change_only_their_options(scratch):
    config = with_values(scratch, {"optimizer.peak_lr": 0.5, "trainer.max_epochs": 7})
    assert (config.optimizer.peak_lr, config.trainer.max_epochs) == (0.5, 7)
    before = scratch.options()
    assert with_values(config, {name: before[name] for name in ("optimizer.peak_lr", "trainer.max_epochs")}) == scratch


def test_width_scales_the_feed_forward_network(tiny_config):
    config = with_values(tiny_config(model={"ffn_dim": 8}), {"model.dim": 64})
    assert (config.model.dim, config.model.ffn_dim) == (64, 32)


def test_another_mixer_has_its_default_settings(tiny_config):
    config = tiny_config(model={"mixer": "csp", "mixer_settings": {"groups": 2}})
    assert with_values(config, {"model.mixer": "csp"}).model.mixer_settings == {"groups": 2}
    assert with_values(config, {"model.mixer": "softmax"}).model.mixer_settings is None
