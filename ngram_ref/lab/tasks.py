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
