import gzip
import io

import pytest
from rdkit import Chem
from rdkit.Chem import AllChem
from whole_tables import read_table

from graphslice.config import DataConfig
from graphslice.data.loaders import load_dataset
from graphslice.data.tables import count_rows, open_table
from graphslice.errors import InputError
from graphslice.pretraining.corpus import levels_of_lists

# With stereocentres, double bonds, charges, salts, an isotope, aromatic nitrogen, and hydrogen alone.
SMILES = ["C[C@H](N)C(=O)O", "F/C=C/F", "[Na+].CC(=O)[O-]", "[2H]OC", "c1cc[nH]c1", "C[N+](C)(C)C", "[H][H]", "OC1CC1"]
BENZENE = Chem.MolToMolBlock(Chem.MolFromSmiles("c1ccccc1"))
# A carbon with five bonds.
FIVE_BONDS = Chem.MolToMolBlock(Chem.MolFromSmiles("CC(C)(C)(C)C", sanitize=False), kekulize=False)


def record(block: str = BENZENE, **properties: str) -> str:
    return block + "".join(f">  <{name}>\n{value}\n\n" for name, value in properties.items()) + "$$$$\n"


def written(smiles: list[str], *, v3000: bool = False, conformers: bool = False) -> str:
    """SDF of molecules as RDKit writes it, with the property ``y``."""
    text = io.StringIO()
    with Chem.SDWriter(text) as writer:
        writer.SetForceV3000(v3000)
        for number, one in enumerate(smiles):
            mol = Chem.MolFromSmiles(one)
            if conformers:
                mol = Chem.AddHs(mol)
                AllChem.EmbedMolecule(mol, randomSeed=1)
            mol.SetProp("_Name", f"molecule {number}")
            mol.SetProp("y", str(number / 2))
            writer.write(mol)
    return text.getvalue()


@pytest.mark.parametrize("name", ["t.sdf", "T.SDF", "t.sdf.gz"])
@pytest.mark.parametrize("v3000", [False, True])
@pytest.mark.parametrize("conformers", [False, True])
def test_molecules_titles_and_properties_are_those_that_were_written(tmp_path, name, v3000, conformers):
    opener = gzip.open if name.endswith(".gz") else open
    with opener(tmp_path / name, "wt") as file:
        file.write(written(SMILES, v3000=v3000, conformers=conformers))
    columns, cells, reasons = read_table(tmp_path / name, 3)
    assert columns == ["smiles", "name", "y"] and not reasons
    assert [row[0] for row in cells] == [Chem.CanonSmiles(one) for one in SMILES]
    assert [row[1:] for row in cells] == [[f"molecule {n}", str(n / 2)] for n in range(len(SMILES))]


def test_properties_are_those_of_rdkit(tmp_path):
    text = record(**{"A b": "1", "two lines": "first\n>second", "<odd>": "x", "spaces": " 1 \n \nrest", "empty": ""})
    text += BENZENE + "> 25 <melting point> (7)\n>1000\n\n>  <A b>\r\n-2.5\r\n\r\n$$$$\n"
    (tmp_path / "t.sdf").write_text(text)
    columns, cells, reasons = read_table(tmp_path / "t.sdf")
    expected = [mol.GetPropsAsDict() for mol in Chem.ForwardSDMolSupplier(io.BytesIO(text.encode()))]
    names = dict.fromkeys(name for properties in expected for name in properties)
    assert columns == ["smiles", *names] and not reasons
    for row, mol in zip(cells, Chem.ForwardSDMolSupplier(io.BytesIO(text.encode())), strict=True):
        assert row[1:] == [mol.GetProp(name) if mol.HasProp(name) else "" for name in names]


def test_missing_properties_are_empty_and_no_titles_give_no_column(tmp_path):
    (tmp_path / "t.sdf").write_text(record(a="1") + record(b="2") + record())
    columns, cells, _ = read_table(tmp_path / "t.sdf", rows=1)
    assert columns == ["smiles", "a", "b"]
    assert cells == [["c1ccccc1", "1", ""], ["c1ccccc1", "", "2"], ["c1ccccc1", "", ""]]


def test_properties_called_smiles_or_name_are_kept_with_the_structure(tmp_path):
    (tmp_path / "t.sdf").write_text(record("title" + BENZENE, smiles="C", name="methane", SMILES="N"))
    columns, cells, _ = read_table(tmp_path / "t.sdf")
    assert columns == ["smiles", "name", "smiles_property", "name_property", "SMILES"]
    assert cells == [["c1ccccc1", "title", "C", "methane", "N"]]


def test_unreadable_records_keep_their_place_properties_and_a_reason(tmp_path):
    broken = BENZENE.replace("  6  6  0", "  9  6  0")
    text = record(y="0") + record(FIVE_BONDS, y="1") + record(broken, y="2") + "$$$$\n" + record("\n\n\nhello\n", y="4")
    (tmp_path / "t.sdf").write_text(text + record(y="5"))
    columns, cells, reasons = read_table(tmp_path / "t.sdf", 3)
    assert [row[columns.index("y")] for row in cells] == ["0", "1", "2", "", "4", "5"]
    assert [row[0] for row in cells] == ["c1ccccc1", "", "", "", "", "c1ccccc1"]
    assert reasons.keys() == {1, 2, 3, 4}
    assert reasons[1].startswith("record 2 of t.sdf: not a valid molecule: Explicit valence for atom")
    assert all(f"record {row + 1} of t.sdf: RDKit cannot read the structure" == reasons[row] for row in (2, 3, 4))


def test_every_cut_of_a_file_is_noticed_or_leaves_whole_structures(tmp_path):
    text = record(y="1") + record(y="23")
    first = len(record(y="1"))
    for end in range(first + 1, len(text), 7):
        (tmp_path / "t.sdf").write_text(text[:end])
        _, cells, reasons = read_table(tmp_path / "t.sdf")
        whole = "M  END" in text[first:end]
        assert [row[0] for row in cells][1:] == ([] if not text[first:end].strip() else ["c1ccccc1" if whole else ""])
        assert whole or len(reasons) == len(cells) - 1


def test_other_encodings_and_line_ends_are_read(tmp_path):
    text = record(BENZENE.replace("\n", "é\n", 1), größe="ä")
    for data in (text.encode(), text.encode("utf-16"), text.encode("latin-1"), text.replace("\n", "\r\n").encode()):
        (tmp_path / "t.sdf").write_bytes(data)
        with open_table(tmp_path / "t.sdf") as table:
            assert table.columns[:2] == ["smiles", "name"] and "größe" in table.columns[2]
            assert not next(table.chunks).faults


def test_labels_are_those_of_the_same_csv(tmp_path):
    (tmp_path / "t.sdf").write_text(written(SMILES) + record(FIVE_BONDS, y="9"))
    assert count_rows(tmp_path / "t.sdf") == len(SMILES) + 1
    dataset = load_dataset(DataConfig(dataset=str(tmp_path / "t.sdf")))
    assert dataset.target_names == ["y"]
    assert dataset.targets[:-1, 0].tolist() == [n / 2 for n in range(len(SMILES))]
    assert dataset.smiles[:-1] == [Chem.CanonSmiles(one) for one in SMILES]
    assert dataset.rejected.keys() == {len(SMILES)}


def test_labels_of_atoms_are_rejected(tmp_path):
    (tmp_path / "t.sdf").write_text(record(y="[1, 2, 3, 4, 5, 6]"))
    with pytest.raises(InputError, match="records of an SDF file have another"):
        load_dataset(DataConfig(dataset=str(tmp_path / "t.sdf"), level="atom"))
    with pytest.raises(InputError, match="records of an SDF file have another"):
        levels_of_lists([tmp_path / "t.sdf"], ["y"], None)


def test_structures_without_a_line_between_them_are_no_record(tmp_path):
    (tmp_path / "t.sdf").write_text(record(y="1").removesuffix("$$$$\n") + record(y="2") + record(y="3"))
    _, cells, malformed = read_table(tmp_path / "t.sdf")
    assert [row[0] for row in cells] == ["", "c1ccccc1"] and "it holds two structures" in malformed[0]


def test_brackets_of_polymers_and_r_groups_are_no_molecule(tmp_path):
    polymer = Chem.MolToMolBlock(Chem.MolFromSmiles("CCO |Sg:n:0,1::ht|"))
    labelled = Chem.MolToMolBlock(Chem.MolFromSmiles("CCN")).replace("M  END", "A    1\nR1\nM  END")
    assert "SRU" in polymer
    (tmp_path / "t.sdf").write_text(record(polymer) + record(labelled) + record())
    _, cells, malformed = read_table(tmp_path / "t.sdf")
    assert [row[0] for row in cells] == ["", "", "c1ccccc1"]
    assert "a polymer" in malformed[0] and "the label 'R1'" in malformed[1]


@pytest.mark.parametrize("v3000", [False, True])
def test_a_slow_record_costs_its_row(v3000, tmp_path, monkeypatch):
    monkeypatch.setattr("graphslice.chem.workers.ROW_SECONDS", 0.5)
    mol = Chem.MolFromSmiles("O%10" + "C1CCC(CC1)O" * 26 + "%10", sanitize=False)
    mol.UpdatePropertyCache(strict=False)
    Chem.FastFindRings(mol)
    slow = Chem.MolToMolBlock(mol, kekulize=False, includeStereo=False, forceV3000=v3000)
    adamantanes = Chem.MolToMolBlock(Chem.MolFromSmiles("C1C2CC3CC1CC(C2)C3." * 5 + "C"), forceV3000=v3000)
    (tmp_path / "t.sdf").write_text(record(slow, y="1") + record(adamantanes) + record())
    _, cells, malformed = read_table(tmp_path / "t.sdf")
    assert malformed == {0: "record 1 of t.sdf: RDKit took longer than 0.5 s"} and cells[0][-1] == "1"
    assert Chem.CanonSmiles(cells[1][0]) == Chem.CanonSmiles("C1C2CC3CC1CC(C2)C3." * 5 + "C")
