"""Check the documents of ``--json`` and of tools."""

from __future__ import annotations

import json
from typing import Any

import jsonschema

from graphslice.documents import DOCUMENTS, schema


def parse(text: str) -> dict[str, Any]:
    """Parse a document, without the numbers that only Python reads, such as NaN."""

    def reject(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    return json.loads(text, parse_constant=reject)


def validate(document: dict[str, Any], keys: dict[str, Any]) -> None:
    """Fail unless a document has the stated keys."""
    jsonschema.validate(document, schema(keys), jsonschema.Draft202012Validator)


def document_of(command: str, text: str) -> dict[str, Any]:
    """Parse the document of a command; it has the keys that :data:`DOCUMENTS` states."""
    document = parse(text)
    validate(document, DOCUMENTS[command])
    return document
