from rdkit import Chem, RDLogger

from graphslice.chem.parse import rdkit_messages_blocked


def test_messages_are_blocked_until_the_last_of_several_threads_ends(capfd):
    """Which may have begun first."""
    RDLogger.EnableLog("rdApp.error")  # PyG's from_smiles disables it for the whole process
    first, second = rdkit_messages_blocked(), rdkit_messages_blocked()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert Chem.MolFromSmiles("C1CC") is None and capfd.readouterr().err == ""
    second.__exit__(None, None, None)
    assert Chem.MolFromSmiles("C1CC") is None and "unclosed ring" in capfd.readouterr().err
