"""SDF files as streams of rows: one molecule per record, its title and its properties as columns.

RDKit reads the structures. Its ForwardSDMolSupplier loses the properties of a record that it cannot read, and the
record itself after an empty one, so that later molecules would get other numbers.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rdkit import Chem

from graphslice.chem.parse import MoleculeError, mol_to_smiles, parse_failure, reject_dense
from graphslice.chem.quiet import rdkit_messages_blocked
from graphslice.data.text_tables import LONGEST, TextRow
from graphslice.errors import InputError

# Columns of the structure and of the title. A property of the same name becomes the column NAME_property.
_SMILES, _TITLE = "smiles", "name"
# Line that begins a property: "> <NAME>", with other texts before and behind the name.
_PROPERTY = re.compile(r">[^<]*<(.*)>")
# Mol blocks with fewer characters have too few bonds to take RDKit long.
_LONG_BLOCK = 20_000


@dataclass
class SdfSummary:
    """Contents of an SDF file.

    Attributes:
        properties: names of the properties of all records, in the order in which they appear first.
        has_titles: true if any record has a title.
        records: number of records.
    """

    properties: list[str]
    has_titles: bool
    records: int

    @property
    def columns(self) -> list[str]:
        """Names of the columns: ``smiles``, ``name`` if there are titles, and the properties."""
        first = [_SMILES, _TITLE] if self.has_titles else [_SMILES]
        return first + [f"{name}_property" if name in first else name for name in self.properties]


@dataclass
class _Record:
    """One record: its number and its first line, both from 1; its lines; and whether ``$$$$`` ends it."""

    number: int
    first_line: int
    lines: list[str]
    is_closed: bool = True

    @property
    def block(self) -> list[str]:
        """Lines of the structure: up to ``M  END``, else up to the first property."""
        ends = (i for i, line in enumerate(self.lines) if line.startswith("M  END"))
        begins = (i for i, line in enumerate(self.lines[4:], 4) if line.startswith(">"))
        return self.lines[: next(ends, next(begins, len(self.lines)) - 1) + 1]

    def properties(self) -> dict[str, str]:
        """Return the properties by name. A value ends with an empty line; the last of two equal names counts."""
        lines = iter(self.lines[len(self.block) :])
        return {
            _property_name(line): "\n".join(itertools.takewhile(bool, lines)) for line in lines if line.startswith(">")
        }


def _property_name(line: str) -> str:
    match = _PROPERTY.match(line)
    return match[1] if match else line[1:].strip()


def summarize_sdf(lines: Iterable[str], path: Path) -> SdfSummary:
    """Read the names of all properties of the lines of an SDF file; raises InputError if a record is too long."""
    names: dict[str, None] = {}
    has_titles, count = False, 0
    for record in _records(lines, path):
        names |= dict.fromkeys(record.properties())
        has_titles |= bool(record.lines and record.lines[0].strip())
        count += 1
    return SdfSummary(list(names), has_titles, count)


def read_sdf(lines: Iterable[str], path: Path, summary: SdfSummary) -> Iterator[TextRow]:
    """Read the lines of an SDF file. A record whose structure cannot be read is a malformed row with its properties."""
    for record in _records(lines, path):
        try:
            smiles, fault = _smiles(record, alone=summary.records == 1), None
        except MoleculeError as reason:
            smiles, fault = "", f"record {record.number} of {path.name} (line {record.first_line}): {reason}"
        title = [record.lines[0].strip() if record.lines else ""] if summary.has_titles else []
        properties = record.properties()
        yield [smiles, *title, *(properties.get(name, "") for name in summary.properties)], fault


def _records(lines: Iterable[str], path: Path) -> Iterator[_Record]:
    record, size = _Record(1, 1, []), 0
    for number, line in enumerate(lines, 1):
        if line.startswith("$$$$"):
            yield record
            record, size = _Record(record.number + 1, number + 1, []), 0
            continue
        record.lines.append(line.rstrip("\r\n"))
        size += len(line)
        if size > LONGEST:
            raise InputError(
                f"{path}: record {record.number} (line {record.first_line}) has more than {LONGEST:,} characters, the "
                "limit of a record, which ends with the line $$$$"
            )
    if any(map(str.strip, record.lines)):
        record.is_closed = False
        yield record


def _smiles(record: _Record, alone: bool) -> str:
    """Return the SMILES of a record, ``alone`` in its file or not; raise :class:`MoleculeError` if it has none."""
    if not any(map(str.strip, record.lines)):
        raise MoleculeError("the record is empty")
    if sum(line.startswith("M  END") for line in record.lines) > 1:
        raise MoleculeError("it holds two structures: the line $$$$ between them is missing")
    block = record.block
    is_mol_file = alone and block == record.lines and block[-1].startswith("M  END")
    if not record.is_closed and not is_mol_file:
        raise MoleculeError("the file ends in the middle of this record, before its line $$$$")
    text = "\n".join(block).encode("ascii", "replace").decode() + "\n"
    with rdkit_messages_blocked():
        if len(text) > _LONG_BLOCK and (mol := Chem.MolFromMolBlock(text, sanitize=False)) is not None:
            reject_dense(mol)
        mol = Chem.MolFromMolBlock(text)
        if mol is None:
            unsanitized = Chem.MolFromMolBlock(text, sanitize=False)
            raise MoleculeError(parse_failure(unsanitized, "RDKit cannot read the structure"))
    return mol_to_smiles(mol)
