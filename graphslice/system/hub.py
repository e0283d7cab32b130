"""Models on the Hugging Face Hub: ``hf://user/name@revision`` names one wherever a run directory is named.

Only files of known names and bounded sizes are downloaded, none of which runs code when it is read. The environment
variable ``HF_ENDPOINT`` selects another server than https://huggingface.co.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from graphslice.errors import InputError, optional_packages
from graphslice.system.console import remark

# Path() merges the two slashes into one.
_NAME = re.compile(r"hf:/{1,2}([\w.-]+/[\w.-]+)(?:@(\w(?:[\w/-]|\.(?!\.))*))?", re.ASCII)
# Files of a run directory that a prediction needs, and the scores; member-N are the models of an ensemble.
_FILE = re.compile(r"(member-[1-9][0-9]*/)?(config\.yaml|model\.safetensors)|calibration\.safetensors|metrics\.json")
_PATTERNS = ["config.yaml", "model.safetensors", "member-*", "calibration.safetensors", "metrics.json"]
# Largest number of files, and of bytes of all of them.
_MOST_FILES, _MOST_BYTES = 500, 4 << 30
# Least status of an error of the server, as opposed to one of the request.
_SERVER_ERROR = 500
# Folder of huggingface_hub's cache in which the files of a commit are.
_SNAPSHOT = re.compile(r"models--([^/\\]+?)--([^/\\]+)[/\\]snapshots[/\\]([0-9a-f]{40})")


def is_hub_model(path: str | Path | None) -> bool:
    """True if ``path`` names a model on the Hub."""
    return str(path).startswith("hf:/")


def local_path(path: str | Path) -> str | Path:
    """Return a path with ~ resolved, or the directory to which the model that it names on the Hub is downloaded."""
    if not is_hub_model(path):
        return Path(path).expanduser() if str(path).startswith("~") else path
    match = _NAME.fullmatch(str(path))
    if not match:
        raise InputError(f"{path} does not name a model on the Hub: write hf://user/name or hf://user/name@revision")
    return _download(match[1], match[2] or "main")


def pinned_name(folder: str | Path | None) -> str | None:
    """Return ``hf://user/name@commit`` of a downloaded model from a path in its directory; None for others."""
    match = _SNAPSHOT.search(str(folder))
    return match and f"hf://{match[1]}/{match[2]}@{match[3]}"


@cache  # so that all parts of a process read the same revision
def _download(repository: str, revision: str) -> Path:
    hub, endpoint = _huggingface_hub(), _endpoint()
    with _errors(f"hf://{repository}"):
        try:
            info = hub.HfApi(endpoint).model_info(repository, revision=revision, files_metadata=True)
            found = {file.rfilename: file.size for file in info.siblings if _FILE.fullmatch(file.rfilename)}
            if "config.yaml" not in found:
                raise InputError(f"hf://{repository} holds no model of GraphSlice, which has a config.yaml")
            if len(found) > _MOST_FILES or None in found.values() or sum(found.values()) > _MOST_BYTES:
                raise InputError(f"hf://{repository} is larger than a model of GraphSlice can be: not downloaded")
            settings: dict[str, Any] = {"revision": info.sha, "allow_patterns": list(found)}
            folder = Path(hub.snapshot_download(repository, endpoint=endpoint, **settings))
        except (hub.errors.HTTPError, ConnectionError) as error:  # no connection, HF_HUB_OFFLINE, or a server error
            if isinstance(error, hub.errors.HfHubHTTPError) and error.response.status_code < _SERVER_ERROR:
                raise
            settings = {"revision": revision, "allow_patterns": _PATTERNS, "local_files_only": True}
            folder = Path(hub.snapshot_download(repository, **settings))
    remark(f"model: {pinned_name(folder)}")
    return folder


def upload(folder: Path, repository: str, *, public: bool) -> str:
    """Upload the files of a directory as one commit, which removes files of a former model; return its name."""
    api = _huggingface_hub().HfApi(_endpoint())
    with _errors(f"hf://{repository}"):
        api.create_repo(repository, private=not public, exist_ok=True)
        commit = api.upload_folder(
            repo_id=repository,
            folder_path=folder,
            commit_message="Upload a model of GraphSlice",
            delete_patterns=_PATTERNS,
        )
    return f"hf://{repository}@{commit.oid}"


def _endpoint() -> str | None:
    return os.environ.get("HF_ENDPOINT") or None


def _huggingface_hub() -> Any:
    with optional_packages("a model of the Hub", "hub"):
        import huggingface_hub
        import huggingface_hub.errors
    return huggingface_hub


@contextmanager
def _errors(name: str) -> Iterator[None]:
    """Context manager that replaces the errors of huggingface_hub by an :class:`InputError`."""
    from huggingface_hub import errors

    try:
        yield
    except (errors.HfHubHTTPError, errors.LocalTokenNotFoundError, errors.HFValidationError) as error:
        raise InputError(f"no access to {name}: {' '.join(str(error).split())}") from None
    except (errors.HTTPError, errors.LocalEntryNotFoundError, ConnectionError):
        server = _endpoint() or "https://huggingface.co"
        raise InputError(f"cannot reach {server} for {name}") from None
