"""What holds for every model, whatever it reads and however it answers."""

from collections.abc import Callable, Sequence

import numpy as np
from rdkit import Chem


def check_batch_independence(
    predict: Callable[[Sequence[str]], np.ndarray], molecules: Sequence[str], tolerance: float = 1e-5
) -> None:
    """A prediction depends on the molecule alone: neither on the batch, nor on the spelling.

    Args:
        predict: ``[R]`` numbers of R SMILES.
        molecules: of which most can be written in several ways.
        tolerance: of a difference, as a share of the deviation among the molecules.
    """
    together = predict(molecules)
    spread = together.std()
    assert spread > 0 and np.isfinite(together).all()
    alone = np.array([predict([smiles])[0] for smiles in molecules])
    assert np.abs(alone - together).max() < tolerance * spread
    other_company = predict([*molecules[::-1], "C" * 100])[-2::-1]
    assert np.abs(other_company - together).max() < tolerance * spread
    for seed in (1, 2):
        spelled = [Chem.MolToRandomSmilesVect(Chem.MolFromSmiles(smiles), 1, seed)[0] for smiles in molecules]
        assert sum(a != b for a, b in zip(spelled, molecules, strict=True)) > len(molecules) // 3
        assert np.abs(predict(spelled) - together).max() < tolerance * spread
