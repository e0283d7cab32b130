"""Model cards: metadata, use and targets."""

from dataclasses import replace

import pytest
import yaml

from graphslice.inference.predictor import load
from graphslice.report.model_card import model_card


@pytest.mark.parametrize(
    ("repository", "loaded", "comment"),
    [("gap", 'gs.load("gap")', False), ("me/gap", 'gs.load("hf://me/gap")', True)],
)
def test_use_is_that_of_a_packaged_model_or_of_the_hub(repository, loaded, comment):
    card = model_card(load("gap", "cpu"), {}, repository, "mit")
    assert loaded in card and ("graphslice[hub]" in card) == comment
    assert "\n# gap\n" in card and "| gap | regression | eV | none |" in card
    assert yaml.safe_load(card.split("---\n")[1])["license"] == "mit"


def test_many_targets_are_counted():
    model = load("gap", "cpu")
    model.tasks = [replace(model.tasks[0], name=f"t{i}") for i in range(43)]
    card = model_card(model, {}, "gap", "mit")
    assert "| t39 |" in card and "| t40 |" not in card and "and 3 further targets." in card
