"""Download of published checkpoints by name."""

from __future__ import annotations

import hashlib
import os
import urllib.error
from collections.abc import Callable
from pathlib import Path

import torch

from graphslice.errors import InputError

_HUB = "https://huggingface.co/clefourrier/{}/resolve/main/pytorch_model.bin"
_MICROSOFT = "https://ml2md.blob.core.windows.net/graphormer-ckpts/"


#: Published checkpoints by their names in Microsoft's repository: URLs of the same weights, tried in order. Its host
#: returned HTTP 409 for some time, so the copies with which Hugging Face's port is tested come first.
PUBLISHED = {
    "pcqm4mv1_graphormer_base": (_HUB.format("graphormer-base-pcqm4mv1"), _MICROSOFT + "checkpoint_best_pcqm4mv1.pt"),
    "pcqm4mv2_graphormer_base": (_HUB.format("graphormer-base-pcqm4mv2"), _MICROSOFT + "checkpoint_best_pcqm4mv2.pt"),
    "pcqm4mv1_graphormer_base_for_molhiv": (_MICROSOFT + "checkpoint_base_preln_pcqm4mv1_for_hiv.pt",),
}


def download(name: str, folder: Path, say: Callable[[str], None]) -> Path:
    """Return the file of a published checkpoint, downloading it if it is not in the folder.

    Its SHA-256 is stored in a file next to it, and checked on later calls.

    Args:
        name: key of :data:`PUBLISHED`.
        folder: download folder.
        say: called with progress messages.

    Raises:
        InputError: if all downloads fail, or the file has changed since it was downloaded.
    """
    path = folder / f"{name}.pt"
    note = path.with_suffix(".sha256")
    if path.is_file():
        if not note.is_file() or note.read_text().split()[:1] != [_sha256(path)]:
            raise InputError(f"{path} has changed since it was downloaded: remove it and run the command again")
        say(f"{name}: using {path}, downloaded before")
        return path
    folder.mkdir(parents=True, exist_ok=True)
    failures, partial = [], path.with_suffix(".part")
    for address in PUBLISHED[name]:
        say(f"{name}: downloading {address}")
        try:
            torch.hub.download_url_to_file(address, str(partial), progress=os.isatty(2))
        except (urllib.error.URLError, OSError, ValueError, RuntimeError) as error:
            failures.append(f"{address} ({getattr(error, 'reason', None) or error})")
            continue
        note.write_text(f"{_sha256(partial)}  {path.name}\n{address}\n")
        partial.replace(path)  # last: a file without its note is rejected
        return path
    raise InputError(
        f"cannot download {name} from {' or '.join(failures)}; without a network, download one of these files on "
        "another machine and run graphslice import-checkpoint FILE"
    )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
