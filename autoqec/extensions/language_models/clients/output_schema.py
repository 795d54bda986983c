"""JSON schemas of structured outputs in the subset that providers accept."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel


def strict_schema(output: type[BaseModel]) -> dict[str, Any]:
    """Return the schema for strict structured outputs: closed objects, all properties required, no bounds."""
    import anthropic

    def close(node: Any) -> Any:
        if isinstance(node, list):
            return [close(item) for item in node]
        if not isinstance(node, dict):
            return node
        node = {name: close(value) for name, value in node.items()}
        if isinstance(node.get("properties"), dict) and node.get("type") == "object":
            node["required"] = list(node["properties"])
        return node

    schema: dict[str, Any] = close(anthropic.transform_schema(output))
    return schema
