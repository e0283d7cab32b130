"""GraphBatch rejects inconsistent tensors, which compiled code would read out of bounds."""

import dataclasses

import pytest
import torch

from graphslice import smiles_to_graph
from graphslice.batch import GraphBatch
from graphslice.data.batches import collate


@pytest.fixture(scope="module")
def batch() -> GraphBatch:
    return collate([smiles_to_graph(smiles) for smiles in ("c1ccccc1O", "C", "[Na+].[Cl-]")])


def test_collated_batches_pass_the_checks(batch):
    assert vars(GraphBatch(**vars(batch))) == vars(batch)
    GraphBatch(**vars(collate([smiles_to_graph("C")])))
    GraphBatch(**vars(collate([])))


@pytest.mark.parametrize(
    ("name", "index", "value"),
    [
        ("atoms", (0, 0, 0), 119), ("atoms", (2, 1, 8), 2), ("atoms", (0, 0, 1), -1), ("degrees", (0, 0), -1),
        ("lengths", 1, 8), ("lengths", 1, -1), ("path_types", (0, 1, 2), 10_000), ("path_types", (0, 1, 2), -2),
        ("path_distances", 1, 511), ("path_distances", 1, -1), ("path_ptr", -1, 10_000), ("path_ptr", 0, 1),
        ("path_ptr", -2, -3), ("path_codes", 0, -1), ("path_codes", 0, 509 * 60),
    ],
)  # fmt: skip
def test_out_of_range_values_are_rejected(name, index, value, batch):
    changed = getattr(batch, name).clone()
    changed = changed.long() if value < 0 else changed
    changed[index] = value
    with pytest.raises(ValueError, match=f"^{name} of the batch"):
        dataclasses.replace(batch, **{name: changed})


def test_decreasing_offsets_are_rejected(batch):
    changed = batch.path_ptr.clone()
    changed[3] = changed[-1]
    with pytest.raises(ValueError, match="never decrease"):
        dataclasses.replace(batch, path_ptr=changed)


def test_inconsistent_shapes_are_rejected(batch):
    for name in ("atoms", "degrees", "lengths", "path_types", "path_distances", "path_ptr", "path_codes"):
        with pytest.raises(ValueError, match="has the shape"):
            dataclasses.replace(batch, **{name: getattr(batch, name)[:-1]})


def test_lengths_of_another_dtype_are_rejected(batch):
    """Compiled code reads them by their address."""
    with pytest.raises(ValueError, match=r"lengths of the batch has the dtype torch\.int32, not torch\.int64"):
        dataclasses.replace(batch, lengths=batch.lengths.int())


@pytest.mark.parametrize(("name", "shape"), [("targets", (7, 1)), ("rows", (9,))])
def test_labels_of_another_number_of_molecules_are_rejected(name, shape, batch):
    with pytest.raises(ValueError, match=rf"^{name} of the batch has the shape \[{shape[0]}.*\], not \[3"):
        dataclasses.replace(batch, **{name: torch.zeros(shape)})


def test_tensors_on_another_device_are_not_checked(batch):
    moved = batch.to("meta")
    assert dataclasses.replace(moved, lengths=moved.lengths[:1]).lengths.shape == (1,)


def test_descriptors_of_another_shape_or_dtype_are_rejected(batch):
    dataclasses.replace(batch, descriptors=torch.full((3, 4), torch.nan))
    for descriptors, message in (
        (torch.zeros(2, 4), "^descriptors .* has the shape"),
        (torch.ones(3, 4).double(), "64"),
    ):
        with pytest.raises(ValueError, match=message):
            dataclasses.replace(batch, descriptors=descriptors)
