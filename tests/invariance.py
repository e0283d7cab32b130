"""Checks of invariance that every model must pass."""

from collections.abc import Callable, Sequence

import numpy as np
from rdkit import Chem


def check_batch_independence(
    predict: Callable[[Sequence[str]], np.ndarray], molecules: Sequence[str], tolerance: float = 1e-5
) -> None:
    """Check that predictions depend neither on the batch nor on how the SMILES is written; tolerance in deviations."""
    expected = predict(molecules)
    std = expected.std()
    assert std > 0 and np.isfinite(expected).all()
    single = np.array([predict([smiles])[0] for smiles in molecules])
    assert np.abs(single - expected).max() < tolerance * std
    in_other_batch = predict([*molecules[::-1], "C" * 100])[-2::-1]
    assert np.abs(in_other_batch - expected).max() < tolerance * std
    for seed in (1, 2):
        rewritten = [Chem.MolToRandomSmilesVect(Chem.MolFromSmiles(smiles), 1, seed)[0] for smiles in molecules]
        assert sum(a != b for a, b in zip(rewritten, molecules, strict=True)) > len(molecules) // 3
        assert np.abs(predict(rewritten) - expected).max() < tolerance * std
