"""``graphslice import-checkpoint``."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentParser, Namespace

from graphslice.errors import check_known
from graphslice.system.console import remark

MODULE = "graphslice.originals"
EXAMPLES = "checkpoint.pt -o runs/imported", "graphormer.ckpt -o runs/imported --target gap"


def add_arguments(parser: ArgumentParser, arguments: list[str]) -> None:
    parser.add_argument(
        "file",
        metavar="FILE",
        help="checkpoint of Graphormer v1, Sliceformer or fairseq's Graphormer, Hugging Face folder, or name of a "
        "published checkpoint (an unknown name lists them)",
    )
    parser.add_argument("-o", "--out", metavar="FOLDER", required=True, help="run directory")
    parser.add_argument(
        "--mixer", help="mixer of the checkpoint (default: softmax if recognised, slice-released for Sliceformer)"
    )
    target = "name of the predicted column (default: homolumogap)"
    parser.add_argument("--target", metavar="COLUMN", default="homolumogap", help=target)
    parser.add_argument(
        "--atom-rows",
        help="fairseq, or huggingface for a model fine-tuned with Hugging Face's collator (default: fairseq)",
    )
    parser.add_argument("--cache", metavar="FOLDER", help="folder of downloads (default: the user's cache)")


def run(options: Namespace, arguments: list[str]) -> dict[str, Any]:
    """Write a run directory and print what was converted; raise InputError for unusable input."""
    from graphslice.originals import import_checkpoint
    from graphslice.originals.reading import PUBLISHED, download
    from graphslice.runs.checkpoint import write_run_directory
    from graphslice.system.machine import default_cache

    path = Path(options.file)
    if not path.exists():
        check_known("file or published checkpoint", options.file, PUBLISHED)
        cache = Path(options.cache) if options.cache else default_cache()
        path = download(options.file, cache / "checkpoints", partial(print, file=sys.stderr))
    checkpoint = import_checkpoint(path, mixer=options.mixer, target=options.target, atom_rows=options.atom_rows)
    write_run_directory(checkpoint, Path(options.out))
    config = checkpoint.config.model
    print(f"{options.out}: {config.mixer}, {config.layers} layers, {config.dim} channels, {config.heads} heads")
    for note in checkpoint.extra["notes"]:
        remark(note)
    architecture = {name: getattr(config, name) for name in ("mixer", "layers", "dim", "heads")}
    return {"folder": options.out, **architecture, "notes": checkpoint.extra["notes"]}
