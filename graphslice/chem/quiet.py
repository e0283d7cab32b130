"""RDKit without its messages, whose content the reasons for invalid molecules repeat."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rdkit import rdBase

# The block of each open context; all share one, which ends with the last. No lock, which a fork could leave locked.
_open: list[rdBase.BlockLogs] = []


@contextmanager
def rdkit_messages_blocked() -> Iterator[None]:
    """Block the messages of RDKit until the last such context of all threads ends."""
    _open.append((_open[:1] or [rdBase.BlockLogs()])[0])
    try:
        yield
    finally:
        _open.pop()
