"""Kits: what every way of decoding under a grammar must hold to, in the manner of upstream's regex and JSON kits.

A kit is a mixin. A test class adds a set-up to it: `run`, which decodes prompts in that set-up, and `alone`, which
decodes one of them by the plainest way there is. Each kit then runs the same in every set-up.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import jsonschema
import pytest

import ngram_ref as nr

Prompt = Any


def chat(text: str) -> list[dict[str, str]]:
    """Say one thing to a chat model."""
    return [{"role": "user", "content": text}]


class Kit:
    """What a kit asks of its set-up."""

    def run(self, prompts: Sequence[Prompt], **options: Any) -> list[nr.Result]:
        """Decode prompts; `options` are those of `nr.generate` that a set-up does not choose."""
        raise NotImplementedError

    def alone(self, prompt: Prompt, **options: Any) -> nr.Result:
        """Decode one prompt, plainly."""
        raise NotImplementedError


CAPITAL: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": r"^\w+$"},
        "population": {"type": "integer", "maximum": 99999999},
    },
    "required": ["name", "population"],
    "additionalProperties": False,
}
LIST: dict[str, Any] = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {"city": {"type": "string", "pattern": "^[A-Z][a-z]{2,8}$"}, "large": {"type": "boolean"}},
        "required": ["city", "large"],
        "additionalProperties": False,
    },
    "minItems": 2,
    "maxItems": 2,
}
CAPITAL_PROMPT = chat("Give me the name and the population of the capital of France as JSON.")
LIST_PROMPT = chat("List two cities as JSON.")


class JsonKit(Kit):
    """JSON by a schema: it parses, has the types asked for, is valid, and is what plain decoding gives."""

    def test_json_by_schema(self):
        prompts, schemas = [CAPITAL_PROMPT, LIST_PROMPT], [CAPITAL, LIST]
        grammars = [nr.json_schema(schema) for schema in schemas]
        results = self.run(prompts, grammar=grammars, max_new_tokens=40)
        for result, schema in zip(results, schemas, strict=True):
            assert result.finish_reason == "eos", result
            jsonschema.validate(json.loads(result.text), schema)
        capital, cities = (json.loads(result.text) for result in results)
        assert isinstance(capital["name"], str)
        assert type(capital["population"]) is int
        assert [type(city["large"]) for city in cities] == [bool, bool]
        for result, prompt, grammar in zip(results, prompts, grammars, strict=True):
            assert_same(result, self.alone(prompt, grammar=grammar, max_new_tokens=40))

    @pytest.mark.parametrize("schema", [{"type": "objekt"}, '{"type": "object"', False], ids=["type", "cut", "nothing"])
    def test_an_invalid_schema_is_refused(self, schema):
        with pytest.raises(ValueError, match=r"schema|Schema|type"):
            self.run([CAPITAL_PROMPT], grammar=nr.json_schema(schema), max_new_tokens=4)


REGEXES = {
    "email": (r"[a-z0-9_]{2,12}@(example|mail)\.(com|org)", "My email is"),
    "greeting": (r"(Hello|Hi|Hey)( there)?, [A-Z][a-z]{1,8}[.!]", "Dear Anna,\n"),
    "three digits": (r"[0-9]{3}", "Three digits:"),
    "phone": (r"\+1 \([0-9]{3}\) [0-9]{3}-[0-9]{4}", "Call me at"),
}


class RegexKit(Kit):
    """Texts that a regex matches as a whole, and that are what plain decoding gives."""

    def test_regexes(self):
        prompts = [prompt for _, prompt in REGEXES.values()]
        grammars = [nr.regex(pattern) for pattern, _ in REGEXES.values()]
        results = self.run(prompts, grammar=grammars, max_new_tokens=24)
        for result, prompt, grammar in zip(results, prompts, grammars, strict=True):
            assert result.finish_reason == "eos", result
            assert re.fullmatch(grammar.source, result.text), result.text
            assert_same(result, self.alone(prompt, grammar=grammar, max_new_tokens=24))


class MixedKit(Kit):
    """Forty requests, every second pair of them under a grammar; each gives what it gives alone."""

    max_new_tokens = 10

    def requests(self) -> list[tuple[Prompt, Any]]:
        """List ten times two prompts without grammar and two with one, each time others."""
        free = ["Yes or no?", "One, two, three,", "2 + 2 ="]
        digits = {"type": "integer", "minimum": 0, "maximum": 9}
        bound = [
            ("Is water wet?", nr.regex("yes|no|maybe")),
            ("As JSON:", nr.json_schema({"enum": [{"a": 1}, {"b": [True]}]})),
            ("Three digits:", nr.regex("[0-9]{3}")),
            ("Numbers:", nr.json_schema({"type": "array", "items": digits, "minItems": 2, "maxItems": 3})),
            ("A sum:", nr.ebnf('root ::= [0-9] (" + " [0-9]){1,3}')),
        ]
        requests: list[tuple[Prompt, Any]] = []
        for turn in range(10):
            requests += [(free[turn % 3], None), (free[(turn + 1) % 3], None)]
            requests += [bound[turn % 5], bound[(turn + 2) % 5]]
        return requests

    def test_forty_mixed_requests(self):
        prompts, grammars = zip(*self.requests(), strict=True)
        results = self.run(list(prompts), grammar=list(grammars), max_new_tokens=self.max_new_tokens)
        assert len(results) == 40
        for result, prompt, grammar in zip(results, prompts, grammars, strict=True):
            assert_same(result, self.alone(prompt, grammar=grammar, max_new_tokens=self.max_new_tokens))
        assert len({len(result.token_ids) for result in results}) >= 5  # they leave at different steps
        assert {result.finish_reason for result in results} == {"eos", "length"}


def assert_same(result: nr.Result, other: nr.Result) -> None:
    """Compare what two results say."""
    assert (result.token_ids, result.text, result.finish_reason) == (other.token_ids, other.text, other.finish_reason)
