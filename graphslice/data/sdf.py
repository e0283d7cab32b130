"""SDF files: one row for each record, with its title and its properties as columns."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from rdkit import Chem

from graphslice.chem.parse import MoleculeError, mol_to_smiles, parse_failure
from graphslice.chem.quiet import rdkit_messages_blocked
from graphslice.data.text_tables import TextRows, decode_text, encode_text, open_text

# Columns of the structure and of the title. A property of the same name becomes the column NAME_property.
_SMILES, _TITLE = "smiles", "name"
# A property: "> <NAME>", with other texts before and behind the name, and lines up to an empty one.
_PROPERTY = re.compile(r"^>[^<\n]*<(.*)>.*\n((?:.+\n?)*)", re.MULTILINE)
_BLOCK = 1 << 20


def read_sdf(path: Path, rows: int, stack: ExitStack) -> tuple[list[str], Iterator[TextRows], int]:
    """Read the names of the columns, the rows in chunks, and the number of rows.

    The columns are ``smiles``, ``name`` if any record has a title, and the properties of all records. A record whose
    structure cannot be read is a malformed row with its properties.
    """
    with rdkit_messages_blocked():
        supplier = Chem.SDMolSupplier(_unpack(path, stack))
    properties: dict[str, str] = {}
    has_titles = False
    for number in range(len(supplier)):
        title, found = _texts(supplier.GetItemText(number))
        properties |= found
        has_titles |= bool(title)
    first = [_SMILES, _TITLE] if has_titles else [_SMILES]
    columns = first + [f"{name}_property" if name in first else name for name in properties]

    def chunks() -> Iterator[TextRows]:
        for start in range(0, len(supplier), rows):
            part: list[list[str]] = []
            faults: dict[int, str] = {}
            for number in range(start, min(start + rows, len(supplier))):
                title, values = _texts(supplier.GetItemText(number))
                try:
                    smiles = _smiles(supplier, number)
                except MoleculeError as reason:
                    smiles, faults[len(part)] = "", f"record {number + 1} of {path.name}: {reason}"
                part.append([smiles, title][: len(first)] + [values.get(name, "") for name in properties])
            yield part, faults

    return columns, chunks(), len(supplier)


def _unpack(path: Path, stack: ExitStack) -> str:
    """Write a temporary copy as RDKit reads it, unpacked and in UTF-8, and return its path."""
    copy = Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))) / "copy.sdf"
    with copy.open("w", encoding="utf-8", newline="") as file:
        text = open_text(path, stack)
        while block := text.read(_BLOCK):
            file.write(decode_text(encode_text(block)))
        file.write("\n")  # RDKit does not open an empty file
    return str(copy)


def _texts(record: str) -> tuple[str, dict[str, str]]:
    """Return the title and the properties of a record by name; of two equal names, the last one."""
    record = record.replace("\r\n", "\n").rstrip().removesuffix("$$$$")
    _, end, behind = record.partition("M  END")
    found = _PROPERTY.findall(behind if end else record)
    return record.partition("\n")[0].strip(), {name: value.removesuffix("\n") for name, value in found}


def _smiles(supplier: Chem.SDMolSupplier, number: int) -> str:
    """Return the SMILES of a record; raise :class:`MoleculeError` if it has none."""
    with rdkit_messages_blocked():
        mol, text = supplier[number], supplier.GetItemText(number)
        if text.count("\nM  END") > 1:
            raise MoleculeError("it holds two structures: the line $$$$ between them is missing")
        if mol is None:
            unsanitized = Chem.MolFromMolBlock(text, sanitize=False)
            raise MoleculeError(parse_failure(unsanitized, "RDKit cannot read the structure"))
    return mol_to_smiles(mol)
