"""Base models with all of their trees."""

from collections.abc import Iterator

import pytest

from graphslice.stacking import trees as fit_trees

TREES = {name: getattr(fit_trees, name) for name in ("_FEWEST_TREES", "_MOST_TREES", "_BOOSTING_TREES")}


@pytest.fixture(scope="module", autouse=True)
def all_trees() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, number in TREES.items():
            patch.setattr(fit_trees, name, number)
        yield
