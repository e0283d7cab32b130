"""``graphslice fingerprint``: learned embeddings of molecules (not Morgan fingerprints)."""

from __future__ import annotations

from typing import Any

from jsonargparse import ArgumentParser, Namespace

from graphslice.cli.options import (
    MOLECULE_FILES,
    TABLE_FILES,
    add_device,
    add_model,
    add_molecules,
    add_output_file,
    add_workers,
    file_progress,
    load_model,
    molecule_source,
    output_file,
    report_rows,
)

MODULE = "graphslice.inference.files"
EXAMPLES = "runs/my molecules.csv -o embeddings.npy", "small CCO c1ccccc1"


def add_arguments(parser: ArgumentParser, arguments: list[str]) -> None:
    add_model(parser)
    add_molecules(parser, f"{MOLECULE_FILES}, folder of these, or SMILES")
    add_output_file(parser, f".npy (the matrix only), {TABLE_FILES} (default: standard output)")
    add_device(parser)
    add_workers(parser)


def run(options: Namespace, arguments: list[str]) -> dict[str, Any]:
    """Write the embeddings of molecules; raise InputError for unusable input."""
    from graphslice.inference.files import embed_file

    predictor, source = load_model(options), molecule_source(options.molecules)
    with file_progress("embedding", source) as advance:
        report = embed_file(
            predictor,
            source,
            output_file(options),
            smiles_column=options.smiles_column,
            workers=options.workers,
            overwrite=options.overwrite,
            progress=advance,
        )
    return report_rows(options, report, "are not valid molecules and have no embedding")
