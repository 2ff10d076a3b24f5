"""What of a JSON schema xgrammar would let through: keywords that it drops without a word, found before compiling.

A grammar promises that no forbidden text comes out. xgrammar 0.2.9 keeps that for a part of JSON schema and drops the
rest, at most with a line on stderr. All said here was found by experiment, with `compile_json_schema(schema,
any_whitespace=False, strict_mode=True)`; the tests repeat each experiment with the installed xgrammar.

How it reads a schema object explains most: the first of `$ref`, `const`, `enum`, `anyOf`, `oneOf`, `allOf` decides
alone, and what stands beside it is dropped; else `type` decides; else `properties` and its like mean an object, `items`
and its like an array; else any value passes, whatever more is said.

What is merely stricter than the standard (declared order, closed objects, patterns that must match the whole string) is
not listed: what comes out is valid all the same. In doubt a keyword is listed.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any
from urllib.parse import unquote

from ngram_ref.grammar.schema_keywords import (
    HIDDEN_BY,
    LEADERS,
    NONE_IF_EMPTY,
    NONE_IF_OPEN,
    NONE_WITHOUT,
    READ,
    SCHEMA,
    SHAPE_OF,
    SILENT,
    SUBJECT,
    TYPES,
    fits,
    is_local,
    join,
    keyword_of,
    kinds_of,
    listed,
    number_gap,
    object_gap,
    parts,
    string_gap,
    types_allowed,
    types_read,
)


@dataclass(frozen=True)
class Unenforced:
    """A demand of a schema that the compiled grammar does not make.

    Attributes:
        keyword: such as `uniqueItems`.
        path: where it stands, as a JSON pointer such as `#/properties/tags/uniqueItems`.
        reason: what xgrammar does instead.

    >>> print(Unenforced("uniqueItems", "#/uniqueItems", "ignored"))
    #/uniqueItems: ignored
    """

    keyword: str
    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


def find_unenforced(schema: dict[str, Any] | bool) -> tuple[Unenforced, ...]:
    """List what xgrammar would not enforce, from the root on; an unused definition demands nothing.

    Args:
        schema: a JSON schema of draft 2020-12, as Python values.

    Raises:
        ValueError: no valid schema; the message names the place.

    >>> [gap.path for gap in find_unenforced({"type": "array", "items": {"type": "integer"}, "uniqueItems": True})]
    ['#/uniqueItems']
    """
    walk = _Walk(schema)
    walk.check(schema, "#")
    walk.visit(schema, "#")
    return tuple(walk.found)


def check_schema(
    schema: dict[str, Any] | bool, allow_unenforced: bool = False, compact: bool = True
) -> tuple[Unenforced, ...]:
    """Refuse a schema that xgrammar would enforce in part only.

    Args:
        schema: a JSON schema of draft 2020-12, as Python values.
        allow_unenforced: take such a schema all the same.
        compact: whether the JSON is to hold no whitespace, and so no token with a control character.

    Returns:
        What is not enforced; nothing unless `allow_unenforced`.

    Raises:
        ValueError: no valid schema, or something is unenforced and that is not allowed.

    >>> check_schema({"type": "string", "not": {"const": "no"}})
    Traceback (most recent call last):
    ValueError: xgrammar would not enforce all of this schema:
      #/not: ignored
    allow_unenforced=True accepts it and lists these places on the result.
    """
    found = find_unenforced(schema) + (() if compact else lengths_that_pass_controls(schema))
    if found and not allow_unenforced:
        places = "".join(f"  {gap}\n" for gap in found)
        cure = "allow_unenforced=True accepts it and lists these places on the result."
        raise ValueError(f"xgrammar would not enforce all of this schema:\n{places}{cure}")
    return found


def lengths_that_pass_controls(schema: Any, path: str = "#") -> tuple[Unenforced, ...]:
    """List bounded lengths of strings, for grammars whose tokens may hold control characters.

    xgrammar counts a string's characters, but takes raw controls (a tab, say) for some of them, which JSON forbids. In
    compact JSON no token with a control character is ever right, so there they are taken out (`token_table.py`).

    Args:
        schema: a valid JSON schema.
        path: of it.

    >>> [gap.path for gap in lengths_that_pass_controls({"items": {"type": "string", "maxLength": 3}})]
    ['#/items/maxLength']
    """
    items = schema.items() if isinstance(schema, dict) else enumerate(schema) if isinstance(schema, list) else ()
    found: list[Unenforced] = []
    for key, value in items:
        if key in ("minLength", "maxLength") and isinstance(value, int):
            found.append(Unenforced(str(key), join(path, str(key)), "raw control characters pass, which JSON forbids"))
        found.extend(lengths_that_pass_controls(value, join(path, str(key))))
    return tuple(found)


@dataclass
class _Walk:
    """A walk over one schema, which collects what it finds."""

    root: Any
    found: list[Unenforced] = field(default_factory=list)
    checked: set[str] = field(default_factory=set)
    visited: set[str] = field(default_factory=set)

    def check(self, schema: Any, path: str) -> None:
        """Raise ValueError unless this is a JSON schema, down to its leaves and the targets of its references."""
        if not isinstance(schema, dict | bool):
            raise ValueError(f"{path} must be {SCHEMA}, not {schema!r}")
        if isinstance(schema, bool) or path in self.checked:
            return
        self.checked.add(path)
        for keyword, value in schema.items():
            place = join(path, keyword)
            if not fits(SHAPE_OF.get(keyword, "anything"), value):
                raise ValueError(f"{place} must be {SHAPE_OF[keyword]}, not {value!r}")
            for part, where in parts(keyword, value, place):
                self.check(part, where)
            if keyword == "$ref" and is_local(value):
                self.check(*self.target(value, place))

    def target(self, ref: str, place: str = "#") -> tuple[Any, str]:
        """What a reference within the schema means, and its path."""
        here, pointer = self.root, unquote(ref)
        for token in pointer.split("/")[1:]:
            key = token.replace("~1", "/").replace("~0", "~")
            try:
                here = here[int(key)] if isinstance(here, list) else here[key]
            except (LookupError, ValueError, TypeError):
                raise ValueError(f"{place} refers to {ref}, which does not exist") from None
        return here, pointer

    def visit(self, schema: Any, path: str, assumed: str = "") -> None:
        """Collect from a schema and from all that xgrammar reads below; it takes `assumed` for a missing `type`."""
        if isinstance(schema, bool) or path in self.visited:
            return
        self.visited.add(path)  # here a cycle of references ends
        leader = next((keyword for keyword in LEADERS if keyword in schema), "")
        kinds = types_read(schema, assumed)
        read = (leader,) if leader else [keyword for kind in kinds for keyword in READ.get(kind, ())]
        for keyword, value in schema.items():
            place = join(path, keyword)
            reason = self.gap(schema, keyword) if keyword in read else self.dropped(schema, keyword, leader, kinds)
            if reason:
                self.found.append(Unenforced(keyword, place, reason))
            if keyword == "$ref" and not reason:
                self.visit(*self.target(value))
            if keyword in read and HIDDEN_BY.get(keyword) not in schema and not (keyword == "allOf" and reason):
                for part, where in parts(keyword, value, place):
                    self.visit(part, where, "string" if keyword == "propertyNames" else "")

    def gap(self, schema: dict[str, Any], keyword: str) -> str:
        """Why a keyword that xgrammar reads is not enforced in full; "" if it is."""
        value = schema[keyword]
        if keyword in LEADERS:
            return self.leader_gap(keyword, value)
        if keyword == "propertyNames":
            declared = schema.get("properties") or schema.get("patternProperties")
            strings = self.emitted(value, "string") <= {"string"}
            return "" if strings and not declared else "beside declared keys, or if no `string`, it lets keys through"
        find = {"integer": number_gap, "string": string_gap, "object": object_gap}.get(SUBJECT[keyword])
        return find(schema, keyword) if find else ""

    def leader_gap(self, keyword: str, value: Any) -> str:
        """The same for a keyword that decides alone."""
        if keyword == "$ref" and not is_local(value):
            return "only what begins with #/ is followed: any value passes"
        if keyword in ("const", "enum") and re.search(r"\d{19}", json.dumps(value)):
            return "integers beyond 64 bits are rounded"
        if keyword == "allOf" and len(value) > 1:
            return "two or more are all ignored: any value passes"
        if keyword == "oneOf" and not all(self.disjoint(*pair) for pair in combinations(value, 2)):
            return "read as `anyOf`: a value may fit more than one option"
        return ""

    def dropped(self, schema: dict[str, Any], keyword: str, leader: str, kinds: frozenset[str]) -> str:
        """Why a keyword that xgrammar does not read is missed; "" if it demands nothing of what comes out."""
        value = schema[keyword]
        if keyword not in SHAPE_OF:
            return "" if keyword in SILENT else "no known keyword: no effect"
        emitted = self.emitted(schema) if leader else kinds or TYPES
        empty = (keyword in NONE_IF_EMPTY and not value) or (keyword in NONE_IF_OPEN and value in (True, {}))
        if empty or keyword in SILENT or SUBJECT.get(keyword, "") not in ("", *emitted):
            return ""
        if keyword in NONE_WITHOUT and not NONE_WITHOUT[keyword] & schema.keys():
            return ""
        if keyword == "type" and (not leader or emitted <= kinds):
            return ""
        if leader:
            return f"ignored: `{leader}` beside it decides alone"
        return "ignored" if kinds else "ignored: without `type` any value passes"

    def emitted(self, schema: Any, assumed: str = "", followed: frozenset[str] = frozenset()) -> frozenset[str]:
        """The types that may come out for a schema; "number" stands for what is no integer."""
        if isinstance(schema, bool) or len(schema.get("allOf", ())) > 1:
            return TYPES
        if "$ref" in schema:
            ref = schema["$ref"]
            known = is_local(ref) and ref not in followed
            return self.emitted(self.target(ref)[0], "", followed | {ref}) if known else TYPES
        if listed(schema):
            return kinds_of(listed(schema))
        options = next((schema[keyword] for keyword in LEADERS[3:] if keyword in schema), ())
        if options:
            return frozenset().union(*(self.emitted(option, "", followed) for option in options))
        return types_read(schema, assumed) or TYPES

    def disjoint(self, left: Any, right: Any) -> bool:
        """Whether no value fits both, as far as values, types and tags show."""
        left, right = (
            self.target(side["$ref"])[0] if is_local(keyword_of(side, "$ref")) else side for side in (left, right)
        )
        if listed(left) and listed(right):
            return not any(value in listed(right) for value in listed(left))
        shared = types_allowed(left) & types_allowed(right)
        if shared != {"object"}:
            return not shared
        # One key that both restrict to values, and that is always there, keeps tagged unions apart.
        ours, theirs = (keyword_of(side, "properties") or {} for side in (left, right))
        tags = [key for key in keyword_of(left, "required") or () if key in ours and key in theirs]
        return any(listed(ours[k]) and listed(theirs[k]) and self.disjoint(ours[k], theirs[k]) for k in tags)
