"""The keywords of JSON schema as xgrammar 0.2.9 reads them, one schema object at a time; `schema_check.py` walks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any


def _words(*texts: str) -> tuple[str, ...]:
    return tuple(word for text in texts for word in text.split())


SCHEMA = "a schema (an object, true or false)"
# What a keyword's value must be.
_SHAPES: dict[str, tuple[Any, tuple[str, ...]]] = {
    SCHEMA: (
        dict | bool,
        _words(
            "not if then else items unevaluatedItems contains additionalProperties unevaluatedProperties",
            "propertyNames contentSchema",
        ),
    ),
    "a list of schemas": (list, _words("anyOf oneOf allOf prefixItems")),
    "an object of schemas": (dict, _words("properties patternProperties dependentSchemas $defs definitions")),
    "a string": (str, _words("$ref $dynamicRef pattern format contentEncoding contentMediaType")),
    "a number": (int | float, _words("minimum maximum exclusiveMinimum exclusiveMaximum")),
    "a number above 0": (int | float, ("multipleOf",)),
    "an integer of at least 0": (
        int,
        tuple(f"{end}{of}" for end in ("min", "max") for of in ("Length", "Items", "Contains", "Properties")),
    ),
    "true or false": (bool, ("uniqueItems",)),
    "a list of strings": (list, ("required",)),
    "a list of values": (list, ("enum",)),
    "one or more of the seven types": (str | list, ("type",)),
    "anything": (object, _words("const dependentRequired dependencies")),
}
SHAPE_OF = {keyword: shape for shape, (_, keywords) in _SHAPES.items() for keyword in keywords}
# They demand nothing. `discriminator` is OpenAPI's hint beside `oneOf`, which pydantic writes.
SILENT = _words(
    "title description default examples deprecated readOnly writeOnly $comment $schema $id $anchor $dynamicAnchor",
    "$vocabulary $defs definitions discriminator then else",
)
# These demand nothing when they are empty, and these nothing when they allow everything.
NONE_IF_EMPTY = _words(
    "uniqueItems minLength minItems minProperties required properties patternProperties dependentSchemas",
    "dependentRequired dependencies",
)
NONE_IF_OPEN = _words("items unevaluatedItems additionalProperties unevaluatedProperties propertyNames")
# These demand nothing without one of those.
NONE_WITHOUT = {"if": {"then", "else"}, "minContains": {"contains"}, "maxContains": {"contains"}}

LEADERS = ("$ref", "const", "enum", "anyOf", "oneOf", "allOf")
# What is read beside each type; the first three mean an object or an array even where there is no `type`.
READ = {
    "object": _words(
        "properties additionalProperties unevaluatedProperties patternProperties propertyNames required minProperties",
        "maxProperties",
    ),
    "array": _words("prefixItems items unevaluatedItems minItems maxItems"),
    "string": _words("pattern format minLength maxLength"),
    "integer": _words("minimum maximum exclusiveMinimum exclusiveMaximum multipleOf"),
}
# What never is, though it is about that type.
_UNREAD = {
    "object": _words("dependentSchemas dependentRequired dependencies"),
    "array": _words("uniqueItems contains minContains maxContains"),
    "string": _words("contentEncoding contentMediaType contentSchema"),
}
SUBJECT = {keyword: kind for table in (READ, _UNREAD) for kind, keywords in table.items() for keyword in keywords}
HIDDEN_BY = {"unevaluatedProperties": "additionalProperties", "unevaluatedItems": "items"}
_KINDS: dict[type, set[str]] = {bool: {"boolean"}, int: {"integer"}, float: {"number", "integer"}, str: {"string"}}
_KINDS |= {list: {"array"}, dict: {"object"}, type(None): {"null"}}
TYPES = frozenset().union(*_KINDS.values())

_EXACT_FORMATS = _words("email duration uuid uri uri-reference uri-template json-pointer relative-json-pointer")
_LOOSE_FORMATS = {
    "date": "2023-02-30 passes",
    "time": "12:00:60Z passes",
    "date-time": "2023-02-30T12:00:00Z passes",
    "ipv4": "01.2.3.4 passes",
    "ipv6": "1::01.2.3.4 passes",
    "hostname": "labels of more than 63 characters pass",
}
# The parts of a pattern that xgrammar keeps. A class may name quotes and controls only to exclude them.
_KEPT = re.compile(
    r"""(?P<repeat>\{\d+(?:,\d*)?\}) | (?P<group>\(\?:) | \\[dDwWsS!#-/:-@\[\]^`{-~]
    | \[\^ (?: \\[dDwWsSnrtfv!-/:-@\[-^`{-~] | [^\]\\-] | -(?!\\[dDwWsS]) )+ \]
    | \[(?!\^) (?: \\[dDwWsS!#-/:-@\[\]^`{-~] | [^\]\\"\x00-\x1f-] | -(?!\\[dDwWsS]) )+ \]""",
    re.VERBOSE,
)
# What else must not hold: anchors inside, other groups and escapes, quotes, controls, possessive quantifiers.
_LOST = re.compile(r'(?<=.)\^|\$(?=.)|\(\?|[\\"\[\]{}\x00-\x1f]|[*+?]\+', re.DOTALL)
# Long ones and those beyond ASCII go a slower way, on which "any" and "any but" let quotes and controls through. Long
# begins at some 8,000 copies of ".", and with fewer copies of classes and groups.
_SLOW = re.compile(
    r"""[^\x00-\x7f] | (?<!\.)\{[\d,]*\d{4} | \{[\d,]*(?:[5-9]\d{3}|\d{5})
    | \)\{[\d,]*\d\d | \)\{.*\)\{ | \d{3}.*\)\{""",
    re.VERBOSE,
)
_WIDE = re.compile(r"(?<!\\)\.|\\[DWSs]|\[\^")


def number_gap(schema: dict[str, Any], keyword: str) -> str:
    """Why a keyword about numbers is not enforced in full; "" if it is."""
    value, fractional = schema[keyword], "number" in types_read(schema)
    if keyword != "multipleOf":
        return "rounded to a float" if fractional and abs(value) > 2**53 else ""
    if fractional or value > 1024 or value != int(value):
        return "ignored but for integers and whole numbers up to 1024"
    low, high = ([schema[k] for k in (f"m{end}", f"exclusiveM{end}") if k in schema] for end in ("inimum", "aximum"))
    narrow = min(high) - max(low) < 10_000 if low and high else not (low or high)
    return "" if narrow else "ignored beside bounds, unless there are two, less than 10,000 apart"


def string_gap(schema: dict[str, Any], keyword: str) -> str:
    """Why a keyword about strings is not enforced in full; "" if it is."""
    value, shape = schema[keyword], schema.get("format")
    if keyword == "format":
        loose = f"only its shape is checked: {_LOOSE_FORMATS.get(value)}"
        return "" if value in _EXACT_FORMATS else loose if value in _LOOSE_FORMATS else "no format that is checked"
    if keyword == "minLength" and value == 0:
        return ""
    if shape in _EXACT_FORMATS or shape in _LOOSE_FORMATS:
        return "ignored: `format` beside it decides alone"
    if keyword == "pattern":
        return _pattern_gap(value)
    if "pattern" in schema:
        return "ignored: `pattern` beside it decides alone"
    return ""  # but see `lengths_that_pass_controls`


def object_gap(schema: dict[str, Any], keyword: str) -> str:
    """Why a keyword about objects is not enforced in full; "" if it is."""
    value, names, patterns = schema[keyword], schema.get("properties", {}), schema.get("patternProperties", {})
    extra = schema.get("additionalProperties", schema.get("unevaluatedProperties", False))
    if keyword == "required":
        missing = ", ".join(name for name in value if name not in names)
        return f"only declared properties can be required, not {missing}" if missing else ""
    if keyword == "minProperties":
        free = patterns or extra is not False or "propertyNames" in schema
        return "a key that comes twice counts twice" if value > 1 and free else ""
    if keyword == "patternProperties":
        overlap = len(value) > 1 or (names and extra is not False)
        if gaps := [gap for gap in map(_pattern_gap, value) if gap]:
            return gaps[0]
        overlap = overlap or any(re.search(pattern, name) for pattern in value for name in names)
        return "a key that another rule fits as well may follow that one alone" if overlap and value else ""
    if keyword in READ["object"][1:3] and HIDDEN_BY.get(keyword) not in schema:
        if extra is False:
            lax = "propertyNames" in schema and not names and not patterns
            return "`propertyNames` beside it lets keys through" if lax else ""
        clash = any(rule not in (True, {}, extra) for rule in names.values())
        return "a declared key spelled otherwise (\\u0061 for a) passes as an additional one" if clash else ""
    return ""


def _pattern_gap(pattern: str) -> str:
    """Why a string that xgrammar makes for a pattern may not match it, or be no JSON; "" if it always does."""
    try:
        re.compile(pattern)
    except re.error as error:
        return f"no regular expression that could be checked: {error}"
    bare = _KEPT.sub(lambda part: "(" if part["group"] else "*" if part["repeat"] else "x", pattern)
    if _LOST.search(bare):
        return "lookaround, anchors inside, quotes and rare escapes are dropped or read otherwise"
    if _SLOW.search(pattern) and _WIDE.search(pattern):
        return "long or beyond ASCII, it lets quotes and control characters through for . and [^…]"
    # Three bugs of its automata: `b|b{1,2}` matches "bbb", `(ab*)?` matches "b", and `(…){2,}` may begin in the middle.
    if "|" in bare and re.search(r"\{\d+,", pattern):
        return "{m,n} in a pattern with | lets more through: use `anyOf` with a pattern for each"
    while group := re.search(r"\(([^()]*)\)(\?)?", bare):
        loops = re.search(r"[*+]", group[1])
        if loops and group[2]:
            return "(…)? around a repetition lets the repeated part through alone: write (…){0,1}"
        bare = bare[: group.start()] + ("x*" if loops else "x") + bare[group.end() :]
    return "(…){n,} lets other strings through: write (…){n}(…)*" if re.search(r"(?<!\\)\)\{\d+,\}", pattern) else ""


def types_read(schema: dict[str, Any], assumed: str = "") -> frozenset[str]:
    """The types by which xgrammar reads a schema that has no leader; none: any value passes."""
    declared = (
        schema.get("type", assumed)
        or [kind for kind in ("object", "array") if any(keyword in schema for keyword in READ[kind][:3])][:1]
    )
    kinds = frozenset([declared] if isinstance(declared, str) else declared)
    return kinds | {"integer"} if "number" in kinds else kinds


def types_allowed(schema: Any) -> frozenset[str]:
    """The types that the standard allows for a schema, or more."""
    if listed(schema):
        return kinds_of(listed(schema))
    return types_read(schema) if keyword_of(schema, "type") else TYPES


def listed(schema: Any) -> list[Any]:
    """The values that a schema lists; none if it lists none."""
    return [schema["const"]] if isinstance(schema, dict) and "const" in schema else keyword_of(schema, "enum") or []


def kinds_of(values: list[Any]) -> frozenset[str]:
    """The types of some values."""
    return frozenset().union(*(_KINDS[type(value)] for value in values))


def keyword_of(schema: Any, keyword: str) -> Any:
    """What a schema says under a keyword, if anything."""
    return schema.get(keyword) if isinstance(schema, dict) else None


def is_local(ref: Any) -> bool:
    """Whether a reference points into the schema by a JSON pointer."""
    return isinstance(ref, str) and (ref == "#" or ref.startswith("#/"))


def join(path: str, key: str) -> str:
    """The JSON pointer one step further."""
    return f"{path}/" + key.replace("~", "~0").replace("/", "~1")


def parts(keyword: str, value: Any, place: str) -> Iterator[tuple[Any, str]]:
    """The schemas directly inside a keyword, with their paths."""
    shape = SHAPE_OF.get(keyword)
    if shape == SCHEMA:
        yield value, place
    elif shape == "a list of schemas":
        yield from ((part, f"{place}/{index}") for index, part in enumerate(value))
    elif shape == "an object of schemas":
        yield from ((part, join(place, name)) for name, part in value.items())


def fits(shape: str, value: Any) -> bool:
    """Whether a keyword's value is what it must be."""
    form = _SHAPES[shape][0]
    # In Python a bool is an int; in JSON it is none.
    if not isinstance(value, form) or (isinstance(value, bool) and form in (int, int | float)):
        return False
    if shape == "one or more of the seven types":
        kinds = [value] if isinstance(value, str) else value
        return kinds != [] and all(isinstance(kind, str) and kind in TYPES for kind in kinds)
    if shape == "a list of strings":
        return all(isinstance(name, str) for name in value)
    floor = {"a number above 0": value != 0, "an integer of at least 0": True}
    return bool(value >= 0 and floor[shape]) if shape in floor else form is not list or value != []
