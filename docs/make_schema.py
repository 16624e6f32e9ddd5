"""Writes docs/configuration.schema.json, for editors that complete keys: `python docs/make_configuration.py`.

Invariants: what the schema refuses, launch.py refuses; what it takes may still be refused, by rules between
fields. An environment variable may stand for any value.
"""

import json
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from pydantic import BaseModel  # noqa: E402

from controller.config.models import Config, Section  # noqa: E402
from controller.config.pluggable import BUILT_IN  # noqa: E402
from controller.config.yaml_file import WORDS  # noqa: E402
from protocol.rewards.kinds import KINDS  # noqa: E402

FILE = "configuration.schema.json"
VARIABLE = {"type": "string", "pattern": r"\$\{"}
Node = dict[str, Any]


def render() -> str:
    """The whole file as text."""
    schema = Config.model_json_schema()
    definitions: Node = schema["$defs"]
    _open(Config, schema, definitions, "")
    for kind in KINDS.values():
        _open(kind.options, definitions[kind.options.__name__], definitions, "")
    for section in schema["properties"].values():  # `run:` with nothing below it
        if "$ref" in section:
            section["anyOf"] = [{"$ref": section.pop("$ref")}, {"type": "null"}]
    head = {"$schema": "http://json-schema.org/draft-07/schema#", "title": "StaleFlow"}
    return json.dumps(head | _plain(schema), indent=1, ensure_ascii=False) + "\n"


def _open(model: type[BaseModel], node: Node, definitions: Node, prefix: str) -> None:
    """Let variables in, and name what is built in, below one section."""
    for name, field in model.model_fields.items():
        kind, entry = field.annotation, node["properties"][name]
        if isinstance(kind, type) and issubclass(kind, Section):
            entry.pop("default", None)
            _open(kind, definitions[kind.__name__], definitions, f"{prefix}{name}.")
        else:
            node["properties"][name] = _opened(entry, BUILT_IN.get(f"{prefix}{name}", ()))


def _opened(entry: Node, names: Collection[str]) -> Node:
    said = {key: entry.pop(key) for key in ("description", "default", "title") if key in entry}
    branches = entry.pop("anyOf", [entry] if entry else [])
    kinds = {branch.get("type") for branch in branches}
    if names:
        branches = [{"enum": list(names)}, *branches]
    if "boolean" in kinds:
        branches = [*branches, {"enum": list(WORDS)}]
    is_any_text = any(branch == {"type": "string"} for branch in branches)
    branches = branches if is_any_text else [*branches, VARIABLE]
    return said | (branches[0] if len(branches) == 1 else {"anyOf": branches})


def _plain(node: Any) -> Any:
    """Without the titles that pydantic makes of names, and with descriptions in one line."""
    if isinstance(node, list):
        return [_plain(one) for one in node]
    if not isinstance(node, dict):
        return node
    is_name = isinstance(node.get("title"), str) and ("type" in node or "anyOf" in node or "$ref" in node)
    kept = {key: _plain(value) for key, value in node.items() if not (is_name and key == "title")}
    if isinstance(kept.get("description"), str):
        kept["description"] = " ".join(kept["description"].split())
    return kept


if __name__ == "__main__":
    (ROOT / "docs" / FILE).write_text(render(), encoding="utf-8")
