import numpy as np

from graphslice.chem.fingerprints import morgan_fingerprints
from graphslice.chem.hashes import hash_molecules, hash_scaffolds
from graphslice.chem.molecule import read_smiles
from graphslice.data import featurize as keys_module
from graphslice.data.featurize import fingerprint_rows, molecule_arrays, molecule_keys, scaffold_keys
from graphslice.data.store import GraphStore


def test_keys_of_store_rows_match_molecules(demo_smiles, monkeypatch):
    """Any rows in any order, in several chunks and threads."""
    texts = [*demo_smiles[:150], "oops", "C", "c1ccccc1" * 9]
    arrays, *_ = read_smiles(texts)
    store = GraphStore.from_arrays(arrays)
    rows = np.array([152, 3, 151, 3, *range(100, 150)])
    for chunk in (7, 4096):
        monkeypatch.setattr(keys_module, "_CHUNK_ROWS", chunk)
        keys, expected = molecule_keys(store, rows), hash_molecules(arrays)
        assert keys.identity.tolist() == expected.identity[rows].tolist()
        assert keys.family.tolist() == expected.family[rows].tolist()
        assert scaffold_keys(store, rows).tolist() == hash_scaffolds(arrays)[rows].tolist()
        assert np.array_equal(fingerprint_rows(store, rows), morgan_fingerprints(arrays)[rows])
    molecule = molecule_arrays(store, rows[:1]).graph(0)
    assert np.array_equal(molecule.atoms, arrays.graph(152).atoms)
    assert np.array_equal(molecule.bonds, arrays.graph(152).bonds)
