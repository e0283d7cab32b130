"""Write the tools of graphslice mcp, and the keys of their results, into docs/programs.md."""

from pathlib import Path
from typing import Any

from graphslice.serve.mcp import TOOLS, describe_tool
from marks import fill

PAGE = Path(__file__).parents[1] / "docs" / "programs.md"


def kind(schema: dict[str, Any]) -> str:
    """The type of a value in words."""
    if "anyOf" in schema:
        return " or ".join(map(kind, schema["anyOf"]))
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if schema["type"] == "array":
        return f"list of {kind(schema['items'])}"
    inside = schema.get("additionalProperties")
    return f"object of {kind(inside)}" if isinstance(inside, dict) else schema["type"]


def table(schema: dict[str, Any]) -> str:
    """A row for each key of an object."""
    lines = ["| key | type | meaning |", "|---|---|---|"]
    for name, value in schema["properties"].items():
        optional = "" if name in schema.get("required", ()) else ", may be absent"
        lines.append(f"| `{name}` | {kind(value)}{optional} | {value['description']} |")
    return "\n".join(lines)


def tools() -> str:
    """A section for each tool, and one for each object in their results."""
    parts, objects = [], {}
    for tool in map(describe_tool, TOOLS):
        result = dict(tool.output_schema)
        objects |= {result["title"]: result, **result.pop("$defs")}
        link = kind({"$ref": result["title"]})
        parts.append(f"### Tool {tool.name}\n\n{tool.description} Result: {link}.\n\n{table(tool.input_schema)}\n")
    parts += [f"### {name}\n\n{one['description']}\n\n{table(one)}\n" for name, one in objects.items()]
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(fill(PAGE.read_text(), lambda name: tools()))
