"""The demo's tasks. Their prompts were fixed before anything was measured on them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_CODE = """class Inventory:
    def __init__(self):
        self.items = {}

    def add_item(self, name, quantity):
        if name in self.items:
            self.items[name] += quantity
        else:
            self.items[name] = quantity

    def remove_item(self, name, quantity):
        if name not in self.items:
            raise KeyError(name)
        self.items[name] -= quantity

    def count(self):
        return sum(self.items.values())
"""

_PEOPLE = (
    "Anna Schmidt, 34, lives in Berlin and works as a baker. Her brother Jonas Schmidt, 29, lives in Hamburg and works "
    "as a nurse. Their friend Maria Lopez, 41, lives in Madrid and works as a teacher."
)


@dataclass(frozen=True)
class Task:
    """A prompt with a name.

    Attributes:
        name: for headings.
        prompt: what the user says, as one chat message.
        max_new_tokens: tokens to emit at most.
    """

    name: str
    prompt: str
    max_new_tokens: int

    @property
    def chat(self) -> list[dict[str, str]]:
        """The prompt as a list of chat messages."""
        return [{"role": "user", "content": self.prompt}]


TASKS = (
    Task("edit code", f"Rename the method count to total. Print the whole class again:\n\n```python\n{_CODE}```", 160),
    Task(
        "extract JSON",
        "List the people in this text as a JSON array of objects with the keys name, age, city and job. Answer with "
        f"JSON only.\n\n{_PEOPLE}",
        128,
    ),
    Task("open chat", "Tell me a short story about a lighthouse keeper who learns to play the violin.", 128),
)

PEOPLE_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "people": {
            "type": "array",
            "minItems": 1,
            "maxItems": 5,
            "items": {
                "type": "object",
                "properties": {
                    "name": {"type": "string", "maxLength": 40},
                    "age": {"type": "integer", "minimum": 0, "maximum": 120},
                    "city": {"type": "string", "maxLength": 40},
                    "job": {"type": "string", "maxLength": 40},
                },
                "required": ["name", "age", "city", "job"],
            },
        }
    },
    "required": ["people"],
}

GRAMMAR_TASK = Task("JSON by schema", f"List the people in this text as JSON, compact.\n\n{_PEOPLE}", 200)


def _text(pattern: str) -> dict[str, str]:
    return {"type": "string", "pattern": pattern}


# Ten fields of all kinds, nested, every text bounded: for tests and benchmarks of grammars.
_FIELDS: dict[str, Any] = {
    "id": {"type": "integer", "minimum": 1, "maximum": 9999},
    "name": _text("^[A-Za-z ]{1,12}$"),
    "active": {"type": "boolean"},
    "role": {"enum": ["admin", "user", "guest"]},
    "score": {"type": "number"},
    "tags": {"type": "array", "items": _text("^[a-z]{1,6}$"), "minItems": 1, "maxItems": 3},
    "address": {
        "type": "object",
        "properties": {"street": _text("^[A-Za-z0-9 ]{1,16}$"), "zip": _text("^[0-9]{5}$")},
        "required": ["street", "zip"],
        "additionalProperties": False,
    },
    "phone": _text("^[0-9]{3}-[0-9]{4}$"),
    "manager": {"anyOf": [{"type": "null"}, _text("^[a-z]{1,8}$")]},
    "size": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 9}, "minItems": 2, "maxItems": 2},
}
RECORD_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": _FIELDS,
    "required": [*_FIELDS],
    "additionalProperties": False,
}
RECORD: dict[str, Any] = {
    "id": 17,
    "name": "Anna Schmidt",
    "active": True,
    "role": "admin",
    "score": 2.5,
    "tags": ["new", "vip"],
    "address": {"street": "12 Mill Lane", "zip": "10115"},
    "phone": "555-0199",
    "manager": None,
    "size": [3, 7],
}
