"""What `schema_check` says of a schema is what the installed xgrammar does with it, keyword by keyword."""

from __future__ import annotations

import copy
import json
import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import xgrammar
from jsonschema import Draft202012Validator

from ngram_ref.grammar.schema_check import Unenforced, check_schema, find_unenforced

INT, STR = {"type": "integer"}, {"type": "string"}
NOTHING = object()  # fits a schema that contradicts itself
END = 256


@dataclass(frozen=True)
class Text:
    """JSON text as it is, for what Python values cannot say: keys that come twice, raw control characters."""

    text: str


class Grammars:
    """xgrammar over a vocabulary of single bytes."""

    def __init__(self) -> None:
        vocabulary = [bytes([byte]) for byte in range(256)] + [b"</s>"]
        tokens = xgrammar.TokenizerInfo(vocabulary, vocab_size=257, stop_token_ids=[END])
        self.compiler = xgrammar.GrammarCompiler(tokens, max_threads=1, cache_enabled=False)

    def compile(self, schema: Any) -> xgrammar.CompiledGrammar:
        return self.compiler.compile_json_schema(json.dumps(schema), any_whitespace=False, strict_mode=True)

    def accepts(self, grammar: xgrammar.CompiledGrammar, instance: Any) -> bool:
        matcher = xgrammar.GrammarMatcher(grammar)
        return matcher.accept_string(text_of(instance)) and matcher.is_completed()

    def sample(self, grammar: xgrammar.CompiledGrammar, rng: random.Random, longest: int = 150) -> bytes | None:
        """One random text of the grammar; None if it grew too long."""
        matcher, row, text = xgrammar.GrammarMatcher(grammar), xgrammar.allocate_token_bitmask(1, 257), bytearray()
        while len(text) < longest:
            matcher.fill_next_token_bitmask(row)
            allowed = np.flatnonzero(np.unpackbits(row.numpy().view(np.uint8), bitorder="little")[:257]).tolist()
            if END in allowed and (len(allowed) == 1 or rng.random() < 0.5):
                return bytes(text)
            possible = [byte for byte in allowed if byte != END]
            closing = [byte for byte in possible if byte in b'"]},']
            common = [byte for byte in possible if 32 <= byte < 127] or possible
            byte = rng.choice(closing if closing and rng.random() < 0.4 else common)
            assert matcher.accept_token(byte)
            text.append(byte)
        return None


def text_of(instance: Any) -> str:
    return instance.text if isinstance(instance, Text) else json.dumps(instance, ensure_ascii=False)


def is_valid(schema: Any, instance: Any) -> bool:
    try:
        value = json.loads(text_of(instance))
    except json.JSONDecodeError:
        return False
    return Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER).is_valid(value)


@pytest.fixture(scope="module")
def grammars() -> Grammars:
    return Grammars()


def obj(**keywords: Any) -> dict[str, Any]:
    return {"type": "object", **keywords}


def arr(**keywords: Any) -> dict[str, Any]:
    return {"type": "array", **keywords}


def string(**keywords: Any) -> dict[str, Any]:
    return {"type": "string", **keywords}


def pattern(text: str) -> dict[str, Any]:
    return string(pattern=text)


AB = {"a": INT, "b": INT}
PAIR = [obj(properties={"k": {"const": tag}, "v": kind}, required=["k", "v"]) for tag, kind in (("a", INT), ("b", STR))]
THREES = {"const": 3}

# What is enforced: a schema, what fits it, what breaks this keyword alone.
ENFORCED: dict[str, tuple[Any, Any, Any]] = {
    "type": (INT, 1, "a"),
    "type list": ({"type": ["string", "null"]}, None, 1),
    "type list with a keyword of one": ({"type": ["integer", "null"], "minimum": 2}, 2, 1),
    "properties without type": ({"properties": AB}, {"a": 1}, {"a": "x"}),
    "items without type": ({"items": INT}, [1], ["x"]),
    "required": (obj(properties=AB, required=["a"]), {"a": 1}, {"b": 1}),
    "additionalProperties false": (obj(properties=AB, additionalProperties=False), {"a": 1}, {"c": 1}),
    "additionalProperties alone": (obj(additionalProperties=INT), {"c": 1}, {"c": "x"}),
    "additionalProperties like all declared": (obj(properties=AB, additionalProperties=INT), {"c": 1}, {"c": "x"}),
    "unevaluatedProperties": (obj(unevaluatedProperties=INT), {"c": 1}, {"c": "x"}),
    "unevaluatedProperties false": (obj(properties=AB, unevaluatedProperties=False), {"a": 1}, {"c": 1}),
    "patternProperties alone": (obj(patternProperties={"^x.*$": INT}), {"xy": 1}, {"xy": "x"}),
    "patternProperties beside others": (obj(properties=AB, patternProperties={"^x.*$": INT}), {"xy": 1}, {"xy": "x"}),
    "propertyNames": (obj(propertyNames={"pattern": "^a+$"}), {"aa": 1}, {"b": 1}),
    "propertyNames by enum": (obj(propertyNames={"enum": ["p", "q"]}), {"q": 1}, {"b": 1}),
    "minProperties, closed": (obj(properties=AB, minProperties=2), {"a": 1, "b": 1}, {"a": 1}),
    "minProperties 1": (obj(additionalProperties=INT, minProperties=1), {"a": 1}, {}),
    "maxProperties": (obj(properties=AB, maxProperties=1), {"a": 1}, {"a": 1, "b": 1}),
    "maxProperties, open": (obj(additionalProperties=INT, maxProperties=1), {"c": 1}, {"c": 1, "d": 1}),
    "items": (arr(items=INT), [1], ["a"]),
    "items false": (arr(prefixItems=[INT], items=False), [1], [1, 2]),
    "prefixItems": (arr(prefixItems=[INT, STR]), [1, "a"], [1, 2]),
    "unevaluatedItems": (arr(unevaluatedItems=INT), [1], ["a"]),
    "minItems": (arr(items=INT, minItems=2), [1, 2], [1]),
    "minItems beyond prefixItems": (arr(prefixItems=[STR], items=INT, minItems=2), ["a", 1], ["a"]),
    "maxItems": (arr(items=INT, maxItems=1), [1], [1, 2]),
    "minimum": ({"type": "integer", "minimum": 12}, 12, 11),
    "maximum": ({"type": "integer", "maximum": 12}, 12, 13),
    "exclusiveMinimum": ({"type": "integer", "exclusiveMinimum": 12}, 13, 12),
    "exclusiveMaximum": ({"type": "integer", "exclusiveMaximum": 12}, 11, 12),
    "minimum of numbers": ({"type": "number", "minimum": 1.5}, 1.5, 1.4),
    "exclusiveMaximum of numbers": ({"type": "number", "exclusiveMaximum": 1.5}, 1.4, 1.5),
    "multipleOf": ({"type": "integer", "multipleOf": 7}, 14, 15),
    "multipleOf between bounds": ({"type": "integer", "multipleOf": 7, "minimum": 0, "maximum": 99}, 14, 15),
    "pattern": (pattern("^[a-z]{2}$"), "ab", "a1"),
    "pattern that excludes quotes": (pattern('^[^"\\\\]+$'), "ab", Text('"a"b"')),
    "pattern, any character": (pattern("^.{1,3}$"), "ab", Text('"\t"')),
    "pattern, 4999 of any": (pattern("^.{0,4999}$"), "ab", Text('"""')),
    "pattern, 999 of a class": (pattern("^[^a\\s]{0,999}$"), "bc", Text('"""')),
    "pattern, repeated groups": (pattern("^([^,]{1,5},){2,3}$"), "a,b,", Text('"a,",,"')),
    "pattern beyond ASCII": (pattern("^[é]+$"), "é", "e"),
    "pattern, optional group": (pattern("^a(b)?$"), "ab", "b"),
    "pattern, {0,1} around a repetition": (pattern("^c(ab*){0,1}$"), "cab", "cb"),
    "pattern, alternatives": (pattern("^(ab|c+)$"), "cc", "abc"),
    "pattern beside an unknown type's keyword": ({"type": ["string", "integer"], "pattern": "^a$"}, "a", "b"),
    "format uuid": (string(format="uuid"), "123e4567-e89b-12d3-a456-426614174000", "x"),
    "format email": (string(format="email"), "a@b.cd", "x"),
    "format duration": (string(format="duration"), "P1D", "x"),
    "const": ({"const": "a"}, "a", "b"),
    "enum": ({"enum": ["a", 1]}, 1, 2),
    "enum with a type that fits": ({"type": "string", "enum": ["a"]}, "a", "b"),
    "anyOf": ({"anyOf": [INT, STR]}, 1, None),
    "anyOf with a type that fits": ({"type": "object", "anyOf": PAIR}, {"k": "a", "v": 1}, {"k": "a", "v": "x"}),
    "oneOf by type": ({"oneOf": [INT, STR]}, 1, None),
    "oneOf by value": ({"oneOf": [{"const": 1}, {"enum": [2, 3]}]}, 2, 4),
    "oneOf by tag": ({"oneOf": PAIR}, {"k": "a", "v": 1}, {"k": "a", "v": "x"}),
    "allOf of one": ({"allOf": [{"type": "integer", "minimum": 3}]}, 3, 2),
    "$ref": ({"$ref": "#/$defs/a~1b", "$defs": {"a/b": INT}}, 1, "a"),
    "$ref with a type that fits": ({"$ref": "#/$defs/n", "type": "integer", "$defs": {"n": INT}}, 1, "a"),
    "false inside": (arr(items=False), [], [1]),
}

# What is not: the place that is reported too. The last instance gets through though it breaks the schema.
IGNORED: dict[str, tuple[Any, Any, Any, str]] = {
    "not": (string(**{"not": {"const": "a"}}), "b", "a", "#/not"),
    "if, then": ({**INT, "if": {"minimum": 5}, "then": {"minimum": 9}}, 9, 7, "#/if"),
    "if, else": ({**INT, "if": {"minimum": 5}, "else": {"maximum": 3}}, 3, 4, "#/if"),
    "allOf of two": ({"allOf": [INT, {"maximum": 9}]}, 9, 10, "#/allOf"),
    "oneOf that overlaps": ({"oneOf": [{**INT, "minimum": 0}, {**INT, "maximum": 5}]}, 9, 3, "#/oneOf"),
    "oneOf, integer and number": ({"oneOf": [INT, {"type": "number"}]}, 1.5, 1, "#/oneOf"),
    "oneOf without types": ({"oneOf": [{"properties": AB}, STR]}, {"a": 1}, "a", "#/oneOf"),
    "beside $ref": ({"$ref": "#/$defs/s", "pattern": "^a$", "$defs": {"s": STR}}, "a", "b", "#/pattern"),
    "type beside $ref": ({"$ref": "#/$defs/s", "type": "null", "$defs": {"s": STR}}, NOTHING, "b", "#/type"),
    "$ref to an anchor": ({"$ref": "#s", "$defs": {"s": {**STR, "$anchor": "s"}}}, "a", 1, "#/$ref"),
    "$dynamicRef": ({"$dynamicRef": "#s", "$defs": {"s": {**STR, "$dynamicAnchor": "s"}}}, "a", 1, "#/$dynamicRef"),
    "beside const": ({"const": "a", "pattern": "^b$"}, NOTHING, "a", "#/pattern"),
    "beside enum": ({"enum": [1, 20], "maximum": 5}, 1, 20, "#/maximum"),
    "type beside enum": ({"type": "string", "enum": ["a", 1]}, "a", 1, "#/type"),
    "beside anyOf": ({"anyOf": [STR, INT], "pattern": "^a$"}, "a", "b", "#/pattern"),
    "required beside anyOf": (obj(anyOf=[obj(properties=AB)], required=["a"]), {"a": 1}, {}, "#/required"),
    "properties beside anyOf": ({"anyOf": [obj()], "properties": AB}, {"a": 1}, {"a": "x"}, "#/properties"),
    "oneOf beside anyOf": ({"anyOf": [STR, INT], "oneOf": [INT]}, 1, "a", "#/oneOf"),
    "beside allOf": ({"allOf": [INT], "minimum": 3}, 3, 2, "#/minimum"),
    "minimum without type": ({"minimum": 3}, 3, 2, "#/minimum"),
    "pattern without type": ({"pattern": "^a$"}, "a", "b", "#/pattern"),
    "required without type": ({"required": ["a"]}, {"a": 1}, {"b": 1}, "#/required"),
    "patternProperties without type": (
        {"patternProperties": {"^x$": INT}},
        {"x": 1},
        {"x": "a"},
        "#/patternProperties",
    ),
    "minItems without type": ({"minItems": 2}, [1, 2], [1], "#/minItems"),
    "uniqueItems": (arr(items=INT, uniqueItems=True), [1, 2], [1, 1], "#/uniqueItems"),
    "contains": (arr(items=INT, contains=THREES), [3], [1], "#/contains"),
    "minContains": (arr(items=INT, contains=THREES, minContains=2), [3, 3], [3, 1], "#/minContains"),
    "maxContains": (arr(items=INT, contains=THREES, maxContains=1), [3], [3, 3], "#/maxContains"),
    "required, undeclared, closed": (obj(properties=AB, required=["c"]), {"c": 1}, {"a": 1}, "#/required"),
    "required, undeclared, open": (obj(additionalProperties=INT, required=["c"]), {"c": 1}, {"a": 1}, "#/required"),
    "dependentRequired": (
        obj(properties=AB, dependentRequired={"a": ["b"]}),
        {"b": 1},
        {"a": 1},
        "#/dependentRequired",
    ),
    "dependentSchemas": (
        obj(properties=AB, dependentSchemas={"a": {"required": ["b"]}}),
        {"b": 1},
        {"a": 1},
        "#/dependentSchemas",
    ),
    "open beside properties": (
        obj(properties=AB, additionalProperties=True),
        {"c": "x"},
        Text('{"\\u0061": "x"}'),
        "#/additionalProperties",
    ),
    "unevaluated beside properties": (
        obj(properties=AB, unevaluatedProperties=STR),
        {"c": "x"},
        Text('{"\\u0061": "x"}'),
        "#/unevaluatedProperties",
    ),
    "patternProperties that overlap": (
        obj(patternProperties={"^x.*$": INT, "^xy.*$": STR}),
        {"x": 1},
        {"xy": 1},
        "#/patternProperties",
    ),
    "patternProperties and a declared key": (
        obj(properties={"xk": INT}, patternProperties={"^x.*$": STR}),
        {"xy": "a"},
        {"xk": 1},
        "#/patternProperties",
    ),
    "patternProperties and other keys": (
        obj(properties={"k": STR}, patternProperties={"^x.*$": INT}, additionalProperties=STR),
        {"xy": 1},
        {"k": "a", "xy": "a"},
        "#/patternProperties",
    ),
    "patternProperties with lookahead": (
        obj(patternProperties={"^(?!a).*$": INT}, additionalProperties=False),
        {"b": 1},
        {"a": 1},
        "#/patternProperties",
    ),
    "propertyNames beside properties": (
        obj(properties=AB, propertyNames={"pattern": "^b$"}),
        {"b": 1},
        {"a": 1},
        "#/propertyNames",
    ),
    "propertyNames beside patternProperties": (
        obj(patternProperties={"^x+$": INT}, propertyNames={"pattern": "^x$"}),
        {"x": 1},
        {"xx": 1},
        "#/propertyNames",
    ),
    "propertyNames of any type": (obj(propertyNames={"anyOf": [{}]}), {"a": 1}, Text("{1: 2}"), "#/propertyNames"),
    "closed beside propertyNames": (
        obj(propertyNames={"pattern": "^a$"}, additionalProperties=False),
        {},
        {"a": 1},
        "#/additionalProperties",
    ),
    "minProperties, open": (
        obj(additionalProperties=INT, minProperties=2),
        {"a": 1, "b": 1},
        Text('{"a": 1, "a": 1}'),
        "#/minProperties",
    ),
    "multipleOf of numbers": ({"type": "number", "multipleOf": 0.5}, 1.5, 1.4, "#/multipleOf"),
    "multipleOf with one bound": ({**INT, "multipleOf": 2, "minimum": 0}, 2, 3, "#/multipleOf"),
    "multipleOf in a wide range": ({**INT, "multipleOf": 7, "minimum": 0, "maximum": 10000}, 7, 8, "#/multipleOf"),
    "multipleOf beyond 1024": ({**INT, "multipleOf": 1025}, 1025, 1026, "#/multipleOf"),
    "multipleOf in fractions": ({**INT, "multipleOf": 1.5}, 3, 4, "#/multipleOf"),
    "bounds beyond floats": ({"type": "number", "minimum": 2**53 + 1}, 2**53 + 2, 2**53, "#/minimum"),
    "const beyond 64 bits": (
        {"const": 12345678901234567890},
        12345678901234567890,
        Text("1.2345678901234567e+19"),
        "#/const",
    ),
    "minLength beside pattern": (string(pattern="^a*$", minLength=2), "aa", "a", "#/minLength"),
    "maxLength beside format": (
        string(format="duration", maxLength=3),
        "P1D",
        "P10D",
        "#/maxLength",
    ),
    "pattern beside format": (string(format="duration", pattern="^P2D$"), "P2D", "P1D", "#/pattern"),
    "format, unknown": (string(format="idn-email"), "a@b.c", "a", "#/format"),
    "format date": (string(format="date"), "2023-02-28", "2023-02-30", "#/format"),
    "format time": (string(format="time"), "12:00:00Z", "12:00:60Z", "#/format"),
    "format date-time": (string(format="date-time"), "2023-02-28T12:00:00Z", "2023-02-30T12:00:00Z", "#/format"),
    "format ipv4": (string(format="ipv4"), "1.2.3.4", "01.2.3.4", "#/format"),
    "format ipv6": (string(format="ipv6"), "1::1.2.3.4", "1::01.2.3.4", "#/format"),
    "format hostname": (string(format="hostname"), "a.b", "a" * 64, "#/format"),
    "pattern with lookahead": (pattern("^(?!x)[a-z]$"), "y", "x", "#/pattern"),
    "pattern, anchor inside": (pattern("a$b|c"), "c", "ab", "#/pattern"),
    "pattern with a quote": (pattern('^a"$'), Text('"a\\""'), Text('"a""'), "#/pattern"),
    "pattern with a control": (pattern("^a\\t$"), Text('"a\\t"'), Text('"a\t"'), "#/pattern"),
    "pattern, wide beyond ASCII": (pattern("^é.$"), "éa", Text('"é""'), "#/pattern"),
    "pattern, long": (pattern("^.{1,12000}$"), "a", Text('"""'), "#/pattern"),
    "pattern, optional repetition": (pattern("^c(ab*)?$"), "cab", "cb", "#/pattern"),
    "pattern, alternatives and counts": (pattern("^(b|b{1,2})$"), "bb", "bbb", "#/pattern"),
    "pattern, open repetition": (pattern("^(aa+|c){1,}$"), "aac", "cca", "#/pattern"),
}

# Stricter than the standard: xgrammar refuses this instance, though it fits. Not reported: no output breaks anything.
STRICTER: dict[str, tuple[Any, Any]] = {
    "closed objects": (obj(properties=AB), {"c": 1}),
    "closed arrays": (arr(prefixItems=[INT]), [1, 2]),
    "order": (obj(properties=AB), {"b": 1, "a": 1}),
    "properties mean an object": ({"properties": AB}, 3),
    "patterns match the whole string": (pattern("a"), "bab"),
    "escapes beside a pattern": (pattern("^.$"), Text('"\\u0061"')),
    "exponents beside bounds": ({"type": "number", "minimum": 1}, Text("1e3")),
}

# Demands that are none, or that are about other types than come out.
IDLE: list[Any] = [
    True,
    {},
    {"title": "t", "description": "d", "default": 1, "examples": [], "$comment": "c", "$id": "x", "deprecated": True},
    {"type": "integer", "minLength": 3, "required": ["a"], "uniqueItems": True},
    {"enum": ["a"], "maximum": 3},
    arr(items=INT, uniqueItems=False, minItems=0, minContains=2),
    {"required": [], "minProperties": 0, "minLength": 0},
    {"if": INT},
    {"then": STR},
    obj(properties=AB, required=[], dependentRequired={}, patternProperties={}),
    {"$defs": {"unused": {"not": INT, "typo": 1}}, **INT},
    arr(items=INT, unevaluatedItems={"not": INT}),
    obj(additionalProperties=INT, unevaluatedProperties={"not": INT}),
    string(minLength=0),
]

# Ignored by xgrammar, though jsonschema does not check it either.
UNCHECKED = {
    "contentEncoding": string(contentEncoding="base64"),
    "contentMediaType": string(contentMediaType="application/json"),
    "contentSchema": string(contentMediaType="application/json", contentSchema=INT),
    "dependencies": obj(properties=AB, dependencies={"a": ["b"]}),
    "additionalItems": arr(items=INT, additionalItems=False),
    "uniqeItems": arr(items=INT, uniqeItems=True),
    "nullable": string(nullable=False),
}

# xgrammar refuses these aloud; they are listed as well, with a better message.
REFUSED = ["(?<=a)b", "^(a)\\1$", "\\bfoo\\b", "\\p{L}+"]


def paths(schema: Any) -> list[str]:
    return [gap.path for gap in find_unenforced(schema)]


@pytest.mark.parametrize("name", ENFORCED)
def test_what_is_enforced_is_not_reported(grammars, name):
    schema, good, bad = ENFORCED[name]
    assert is_valid(schema, good)
    assert not is_valid(schema, bad)
    grammar = grammars.compile(schema)
    assert grammars.accepts(grammar, good)
    assert not grammars.accepts(grammar, bad), "xgrammar enforces less than it did"
    assert paths(schema) == []


@pytest.mark.parametrize("name", IGNORED)
def test_what_is_ignored_is_reported(grammars, name):
    schema, good, bad, path = IGNORED[name]
    assert good is NOTHING or is_valid(schema, good)
    assert not is_valid(schema, bad)
    assert path in paths(schema)
    grammar = grammars.compile(schema)
    assert grammars.accepts(grammar, bad), "xgrammar enforces more than it did: report less"


@pytest.mark.parametrize("name", STRICTER)
def test_what_is_merely_stricter_is_not_reported(grammars, name):
    schema, good = STRICTER[name]
    assert is_valid(schema, good)
    assert not grammars.accepts(grammars.compile(schema), good)
    assert paths(schema) == []


@pytest.mark.parametrize("schema", IDLE, ids=str)
def test_what_demands_nothing_is_not_reported(schema):
    assert paths(schema) == []


@pytest.mark.parametrize("keyword", UNCHECKED)
def test_what_no_validator_checks_is_reported(grammars, keyword):
    schema = UNCHECKED[keyword]
    assert f"#/{keyword}" in paths(schema)
    instance = {"string": "no base64", "array": [1, 1], "object": {"a": 1}}[schema["type"]]
    assert grammars.accepts(grammars.compile(schema), instance)


@pytest.mark.parametrize("text", REFUSED)
def test_patterns_that_xgrammar_refuses_are_reported_too(grammars, text):
    assert paths(pattern(text)) == ["#/pattern"]
    with pytest.raises(RuntimeError):
        grammars.compile(pattern(text))


def test_paths_lead_to_the_keyword():
    unique = arr(items=INT, uniqueItems=True)
    schema = obj(
        properties={
            "a/b~c": unique,
            "list": arr(prefixItems=[INT, unique]),
            "either": {"anyOf": [INT, {"allOf": [{"$ref": "#/$defs/u"}]}]},
            "typed": {"type": ["array", "null"], "items": {"enum": [1], "not": INT}},
        },
        **{"$defs": {"u": unique}},
    )
    assert paths(schema) == [
        "#/properties/a~1b~0c/uniqueItems",
        "#/properties/list/prefixItems/1/uniqueItems",
        "#/$defs/u/uniqueItems",
        "#/properties/typed/items/not",
    ]


def test_nothing_is_sought_below_what_is_ignored():
    inner = arr(items=INT, uniqueItems=True)
    assert paths({"allOf": [inner, inner]}) == ["#/allOf"]
    assert paths({"not": inner}) == ["#/not"]
    assert paths({"const": 1, "anyOf": [inner]}) == ["#/anyOf"]


def test_cycles_end():
    node = obj(properties={"next": {"$ref": "#/$defs/node"}, "v": {**INT, "not": {"const": 1}}}, required=["v"])
    schema = {"$ref": "#/$defs/node", "$defs": {"node": node}}
    assert paths(schema) == ["#/$defs/node/properties/v/not"]
    assert paths(arr(items={"$ref": "#"})) == []
    assert paths({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}) == []
    assert paths({"type": "object", "anyOf": [{"$ref": "#"}, obj()]}) == ["#/type"]


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        (None, "#"),
        ([], "#"),
        ("{}", "#"),
        ({"type": "strnig"}, "#/type"),
        ({"type": []}, "#/type"),
        ({"type": [["string"]]}, "#/type"),
        ({"properties": []}, "#/properties"),
        ({"properties": {"a": 3}}, "#/properties/a"),
        ({"items": [INT]}, "#/items"),
        ({"anyOf": []}, "#/anyOf"),
        ({"anyOf": [INT, {"enum": []}]}, "#/anyOf/1/enum"),
        ({"required": "a"}, "#/required"),
        ({"required": [1]}, "#/required"),
        ({"minLength": "3"}, "#/minLength"),
        ({"minLength": -1}, "#/minLength"),
        ({"minLength": True}, "#/minLength"),
        ({"minimum": "3"}, "#/minimum"),
        ({"multipleOf": 0}, "#/multipleOf"),
        ({"uniqueItems": 1}, "#/uniqueItems"),
        ({"pattern": 3}, "#/pattern"),
        ({"$ref": "#/$defs/none"}, "#/$ref"),
        ({"$defs": {"a": {"not": 3}}}, "#/$defs/a/not"),
        ({"$ref": "#/x/1", "x": [INT, {"items": 3}]}, "#/x/1/items"),
        ({"$ref": "#/x/2", "x": [INT]}, "#/$ref"),
    ],
    ids=str,
)
def test_invalid_schemas_are_refused_with_the_place(schema, place):
    with pytest.raises(ValueError) as caught:
        find_unenforced(schema)
    assert str(caught.value).startswith(f"{place} ")
    with pytest.raises(ValueError):
        check_schema(schema, allow_unenforced=True)


def test_check_schema_names_every_place_and_the_cure():
    schema = obj(properties={"a": arr(items=INT, uniqueItems=True), "b": string(format="date")})
    with pytest.raises(ValueError) as caught:
        check_schema(schema)
    for part in ("#/properties/a/uniqueItems", "#/properties/b/format", "allow_unenforced=True"):
        assert part in str(caught.value)
    allowed = check_schema(schema, allow_unenforced=True)
    assert allowed == find_unenforced(schema)
    assert allowed[0] == Unenforced("uniqueItems", "#/properties/a/uniqueItems", "ignored")
    assert str(allowed[0]) == "#/properties/a/uniqueItems: ignored"
    assert check_schema(obj(properties=AB)) == ()


PATTERNS = [
    "^[a-z]{1,3}$",
    "^a(-[0-9]){0,2}$",
    "^(yes|no)$",
    "^\\d{2}:\\d{2}$",
    '^[^"\\\\]*$',
    "^.{2,5}$",
    "x*(y[^z])*",
]


def random_schema(rng: random.Random, depth: int = 0) -> Any:
    """A schema that xgrammar should enforce in full."""
    simple = ["integer", "number", "string", "boolean", "enum", "const"]
    kind = rng.choice(simple if depth > 2 else [*simple, "array", "tuple", "object", "object", "map", "anyOf", "oneOf"])
    inner = [random_schema(rng, depth + 1) for _ in range(rng.randint(1, 3))] if kind not in simple else []
    low = rng.randint(-50, 50)
    bounds = {rng.choice(["minimum", "exclusiveMinimum"]): low, rng.choice(["maximum", "exclusiveMaximum"]): low + 9}
    names = rng.sample(["a", "b", "a/b", "é", "long name", ""], len(inner))
    count = rng.randint(0, 2)
    return {
        "integer": {"type": "integer", **rng.choice([{}, bounds, {**bounds, "multipleOf": 3}, {"multipleOf": 7}])},
        "number": {"type": "number", **rng.choice([{}, bounds, {"minimum": low / 8}, {"exclusiveMaximum": low / 8}])},
        "string": string(**rng.choice([{}, {"pattern": rng.choice(PATTERNS)}, {"format": "uuid"}])),
        "boolean": {"type": rng.choice(["boolean", ["boolean", "null"]])},
        "enum": {"enum": rng.sample([1, "a", None, True, 2.5, [1], {"a": 1}, 'é/"\\'], 3)},
        "const": {"const": rng.choice([0, "b", False, {}, -7])},
        "array": arr(items=(inner or [INT])[0], minItems=count, maxItems=count + rng.randint(0, 2)),
        "tuple": arr(prefixItems=inner, items=rng.choice([INT, False]), minItems=min(count, len(inner))),
        "object": obj(
            properties=dict(zip(names, inner, strict=True)),
            required=rng.sample(names, min(count, len(names))),
            minProperties=min(count, len(names)),
            maxProperties=max(len(names), 1),
        ),
        "map": obj(additionalProperties=(inner or [INT])[0], maxProperties=count + 1),
        "anyOf": {"anyOf": inner},
        "oneOf": {"oneOf": [{"type": "boolean"}, arr(items=(inner or [INT])[0]), {"enum": ["x", "y"]}]},
    }[kind]


def mutate(rng: random.Random, value: Any) -> Any:
    """Change one place of an instance."""
    if isinstance(value, dict) and value and rng.random() < 0.8:
        key = rng.choice(list(value))
        changed = dict(value)
        action = rng.randrange(3)
        if action == 0:
            del changed[key]
        elif action == 1:
            changed[key] = mutate(rng, value[key])
        else:
            changed["zz"] = 1
        return changed
    if isinstance(value, list) and value and rng.random() < 0.8:
        index = rng.randrange(len(value))
        return rng.choice([value[:index], value + value[-1:], [*value[:index], mutate(rng, value[index])]])
    if isinstance(value, int | float) and not isinstance(value, bool) and rng.random() < 0.6:
        return value + rng.choice([-10, -1, 1, 10, 0.5])
    if isinstance(value, str) and rng.random() < 0.6:
        return rng.choice([value[1:], value + "a", value[::-1], value.upper()])
    return rng.choice([None, True, 0, -3, 1.5, "", "a", [], {}])


def test_random_schemas_of_the_enforced_part_hold(grammars):
    """Neither sampled texts nor mutated instances get through that jsonschema rejects."""
    rng = random.Random(0)
    sampled = rejected = 0
    for _ in range(150):
        schema = random_schema(rng)
        assert paths(schema) == [], schema
        grammar = grammars.compile(copy.deepcopy(schema))
        valid = Draft202012Validator(schema).is_valid
        for _ in range(6):
            text = grammars.sample(grammar, rng)
            if text is None:
                continue
            instance = json.loads(text.decode(errors="replace"))
            sampled += 1
            assert valid(instance), (schema, text)
            for _ in range(5):
                mutant = mutate(rng, instance)
                if not valid(mutant):
                    rejected += 1
                    assert not grammars.accepts(grammar, mutant), (schema, mutant)
    assert sampled > 500
    assert rejected > 1000


def test_lengths_let_controls_through_unless_their_tokens_are_taken_out(grammars):
    """Why compact JSON is compiled without tokens that hold control characters, and other JSON reports lengths."""
    schema = {"type": "array", "items": {"type": "string", "maxLength": 3}}
    assert grammars.accepts(grammars.compile(schema), Text('["\t"]'))
    assert check_schema(schema) == ()
    with pytest.raises(ValueError, match="#/items/maxLength: raw control characters"):
        check_schema(schema, compact=False)
