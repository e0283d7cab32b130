"""Standard output of a command with ``--json``: one document, whatever happens."""

from __future__ import annotations

import json
from typing import IO, TYPE_CHECKING, Any

from graphslice.run_files import without_nan

if TYPE_CHECKING:
    import pyarrow as pa


class JsonOutput:
    """Writes the document of a command, or ``{"error": ...}``.

    Rows of a table are written as they come, one in a line, into the array ``rows``, so that memory does not grow with
    the table; the other keys follow. Unlike JSON lines, output that was cut off cannot be taken for a complete one. The
    document is ASCII, which every terminal and pipe can encode.

    Args:
        file: where to write.
    """

    def __init__(self, file: IO[str]) -> None:
        self.file = file
        self._has_rows = False

    def write(self, chunk: pa.Table) -> None:
        """Write rows of a table."""
        from graphslice.data.tables import plain_rows

        for row in plain_rows(chunk):
            self.file.write((",\n" if self._has_rows else '{"rows": [\n') + json.dumps(row, allow_nan=False))
            self._has_rows = True

    def finish(self, document: dict[str, Any]) -> None:
        """Write the document, after the rows if there are any."""
        text = json.dumps(without_nan(document), indent=None if self._has_rows else 2, allow_nan=False)
        self.file.write((f"\n], {text[1:]}" if self._has_rows else text) + "\n")
        self.file.flush()
