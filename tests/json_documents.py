"""Check the documents of ``--json`` and of tools."""

import json
from typing import Any

#: Commands that print the document of a tool, by the name of the tool.
TOOL_OF = {"train": "train", "pretrain": "train", "predict": "predict", "evaluate": "evaluate"}


def parse(text: str) -> dict[str, Any]:
    """Parse a document, without the numbers that only Python reads, such as NaN."""

    def reject(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    return json.loads(text, parse_constant=reject)


def validate(document: dict[str, Any], tool: str) -> None:
    """Fail unless a document has the keys of the result of a tool."""
    import jsonschema

    from graphslice.serve.mcp import describe_tool

    jsonschema.validate(document, describe_tool(tool).output_schema, jsonschema.Draft202012Validator)


def document_of(command: str, text: str) -> dict[str, Any]:
    """Parse the document of a command; that of a tool has the keys that the tool states."""
    document = parse(text)
    if command in TOOL_OF:
        validate(document, TOOL_OF[command])
    return document
