import pytest
from rdkit import Chem

from graphslice.chem.parse import MoleculeError, parent_smiles, standardize_all
from graphslice.config import GraphConfig
from graphslice.data.featurize import parse


@pytest.mark.parametrize(
    ("smiles", "parent"),
    [
        ("CC(=O)[O-].[Na+]", "CC(=O)O"),
        ("[Na+].[Na+].[O-]C(=O)c1ccc(cc1)C([O-])=O", "OC(=O)c1ccc(cc1)C(O)=O"),
        ("C[NH3+].[Cl-]", "CN"),
        ("CN.OS(=O)(=O)O", "CN"),  # organic, though smaller
        ("C[C@H]([NH3+])C(=O)[O-]", "C[C@H](N)C(=O)O"),
        ("OC(=O)/C=C\\C(=O)O.CCN", "OC(=O)/C=C\\C(=O)O"),
        ("C[N+](C)(C)C.[Cl-]", "C[N+](C)(C)C"),
        ("CCO.O.O", "CCO"),
        ("[Zn+2].CC(=O)[O-]", "CC(=O)O"),
        ("[Ag+].CC(=O)[O-]", "CC(=O)O"),
        ("CC[O-] |atomProp:0.p.v|", "CCO"),
        ("[Na+].c1cc[cH-]c1", "C1=CCC=C1"),
        ("c1ccc[cH+]cc1.[Cl-]", "C1=CC=CCC=C1"),
        ("[Li+].[CH-]1C=Cc2ccccc12", "C1=Cc2ccccc2C1"),
        ("[Na+].[n-]1cccc1", "c1cc[nH]c1"),
    ],
)
def test_parent_is_the_largest_organic_fragment_without_charges(smiles, parent):
    found = parent_smiles(smiles, 512)
    assert Chem.CanonSmiles(found) == Chem.CanonSmiles(parent)
    assert parent_smiles(found, 512) == found


@pytest.mark.parametrize(
    "smiles",
    ["OCC", "C[N+](C)(C)CC(=O)[O-]", "O=[N+]([O-])c1ccccc1", "[NH3][Pt]([NH3])(Cl)Cl", "[13CH4]", "N#N", "CC(=O)O[Na]"],
)
def test_molecule_that_is_its_own_parent_is_returned_as_written(smiles):
    assert parent_smiles(smiles, 512) == smiles


def test_invalid_molecules_keep_their_reasons():
    smiles = ["CC.O", "C[N", "C[N+", "C(C.C", "", None, "*.CC", "C.C C"]
    assert standardize_all(smiles, "none", 512) == (smiles, {})
    found, faults = standardize_all(smiles, "parent", 512)
    assert found == ["CC", "C[N", "", "", "", None, "", ""]
    assert faults == {
        2: "not a valid SMILES: syntax error at character 4",
        3: "not a valid SMILES: extra open parentheses at character 2",
        6: "a wildcard atom (*) has no element",
        7: "text after a space: 'C'; give the SMILES alone",
    }
    with pytest.raises(MoleculeError, match="13 atoms, more than the limit of 12"):
        parent_smiles("CCCCCCCCCCCC.O", 12)


def test_molecule_that_rdkit_cannot_standardize_is_invalid(monkeypatch):
    """It is not predicted as it is written, as it would be rejected in training."""
    from rdkit.Chem.MolStandardize import rdMolStandardize

    def fail(*arguments, **options):
        raise RuntimeError("boom")

    monkeypatch.setattr(rdMolStandardize, "FragmentParent", fail)
    arrays, reasons, *_ = parse(["CCN.Cl", "CC"], GraphConfig(standardize="parent"))
    assert reasons == ["RDKit cannot standardize it: boom", None] and arrays.atom_ptr.tolist() == [0, 0, 2]


@pytest.mark.parametrize(
    ("smiles", "metal"), [("N.N.Cl[Pt]Cl", "Pt"), ("[Fe+2].c1cc[cH-]c1.c1cc[cH-]c1", "Fe"), ("[Gd+3].CC(=O)[O-]", "Gd")]
)
def test_complex_written_in_fragments_has_no_parent(smiles, metal):
    with pytest.raises(MoleculeError, match=f"^its parent compound would lack {metal}"):
        parent_smiles(smiles, 512)
