"""Published checkpoints by name: where they lie, and how they are fetched."""

from __future__ import annotations

import hashlib
import os
import urllib.error
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from graphslice.errors import InputError

_HUB = "https://huggingface.co/clefourrier/{}/resolve/main/pytorch_model.bin"
_MICROSOFT = "https://ml2md.blob.core.windows.net/graphormer-ckpts/"


@dataclass(frozen=True)
class Published:
    """A checkpoint that its authors, or those who ported it, published.

    Attributes:
        addresses: of the same weights, tried in order.
        megabytes: of the first file, as its host lists it; None where it does not.
        target: what it predicts.
        about: what it was trained on, and with which result.
    """

    addresses: tuple[str, ...]
    megabytes: int | None
    target: str
    about: str


#: Names as Microsoft's repository gives them. Its own host has refused downloads for some time (HTTP 409), so the
#: copies that Hugging Face's port is tested with come first.
PUBLISHED = {
    "pcqm4mv1_graphormer_base": Published(
        (_HUB.format("graphormer-base-pcqm4mv1"), _MICROSOFT + "checkpoint_best_pcqm4mv1.pt"),
        191,
        "homolumogap",
        "PCQM4M, 12 layers of 768 channels",
    ),
    "pcqm4mv2_graphormer_base": Published(
        (_HUB.format("graphormer-base-pcqm4mv2"), _MICROSOFT + "checkpoint_best_pcqm4mv2.pt"),
        191,
        "homolumogap",
        "PCQM4Mv2, 12 layers of 768 channels, validation MAE 0.0864 eV as reported",
    ),
    "pcqm4mv1_graphormer_base_for_molhiv": Published(
        (_MICROSOFT + "checkpoint_base_preln_pcqm4mv1_for_hiv.pt",),
        None,
        "homolumogap",
        "PCQM4M, pre-norm: where the original's fine-tuning on ogbg-molhiv starts",
    ),
}


def download(name: str, folder: Path, say: Callable[[str], None]) -> Path:
    """The file of a published checkpoint, downloaded when it is not in the folder yet.

    Its SHA-256 is noted beside it, and compared whenever it is used again.

    Args:
        name: of :data:`PUBLISHED`.
        folder: that keeps the files.
        say: called with what is done.

    Raises:
        InputError: if no address answers, or the file has changed since it was downloaded.
    """
    published = PUBLISHED[name]
    path = folder / f"{name}.pt"
    note = path.with_suffix(".sha256")
    if path.is_file():
        if not note.is_file() or note.read_text().split()[:1] != [_sha256(path)]:
            raise InputError(f"{path} has changed since it was downloaded: remove it and call again")
        say(f"{name}: {path} from before")
        return path
    folder.mkdir(parents=True, exist_ok=True)
    refusals = []
    for address in published.addresses:
        size = f" ({published.megabytes} MB)" if published.megabytes and address == published.addresses[0] else ""
        say(f"{name}: downloading {address}{size}")
        try:
            torch.hub.download_url_to_file(address, str(path), progress=os.isatty(2))
        except (urllib.error.URLError, OSError, ValueError, RuntimeError) as error:
            refusals.append(f"{address} ({getattr(error, 'reason', None) or error})")
            continue
        note.write_text(f"{_sha256(path)}  {path.name}\n{address}\n")
        return path
    raise InputError(
        f"cannot download {name}: no answer from {' or '.join(refusals)}; without a network, fetch one of these "
        "files on another machine and call graphslice import-checkpoint FILE"
    )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
