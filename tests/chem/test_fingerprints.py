import numpy as np
import pytest
from rdkit import Chem, DataStructs
from rdkit.Chem.rdFingerprintGenerator import GetMorganGenerator

from graphslice.chem.fingerprints import morgan_fingerprints
from graphslice.chem.molecule import MolArrays, read_smiles

EDGE_CASES = ["C", "[Na+].[Cl-]", "[H][H]", "CC.CC", "[13CH4]", "C1CC1", "[O-][N+](=O)c1ccccc1", "C#N", "F/C=C/F"]


@pytest.fixture(scope="module")
def molecules(demo_smiles) -> tuple[list[Chem.Mol], MolArrays]:
    texts = EDGE_CASES + demo_smiles[:300]
    return [Chem.MolFromSmiles(text) for text in texts], read_smiles(texts)[0]


def test_environments_match_rdkit(molecules):
    """With enough bits to avoid collisions, the number of bits and the Tanimoto similarities are the same."""
    mols, arrays = molecules
    few = slice(0, 30)
    fingerprints = morgan_fingerprints(arrays[few], bits=1 << 22)
    generator = GetMorganGenerator(radius=2, includeRedundantEnvironments=True)
    sparse = [generator.GetSparseFingerprint(mol) for mol in mols[few]]
    assert fingerprints.sum(1).tolist() == [len(fingerprint.GetOnBits()) for fingerprint in sparse]
    expected = np.array([[DataStructs.TanimotoSimilarity(a, b) for b in sparse] for a in sparse])
    sets = [set(np.flatnonzero(bits).tolist()) for bits in fingerprints]
    np.testing.assert_allclose([[len(a & b) / len(a | b) for b in sets] for a in sets], expected)
