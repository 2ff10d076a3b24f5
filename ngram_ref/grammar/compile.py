"""Grammars as users describe them.

A description (`json_schema`, `regex`, `ebnf`, `any_json`) is text, checked when it is made and compiled once per
tokenizer.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import xgrammar

from ngram_ref.grammar.compiler import CompiledGrammar, TokenCompiler, refuse_errors
from ngram_ref.grammar.regex_traps import misplaced_anchor, misread_piece
from ngram_ref.grammar.schema_check import Unenforced, check_schema
from ngram_ref.kept import kept_with

_COMPACT: dict[str, Any] = {
    "any_whitespace": False,
    "indent": None,
    "separators": None,
    "max_whitespace_cnt": None,
}


@dataclass(frozen=True)
class Grammar(ABC):
    """A grammar's description, independent of any tokenizer.

    Attributes:
        source: its text.
        unenforced: what the text demands and the compiled grammar would not enforce.
    """

    source: str
    unenforced: tuple[Unenforced, ...] = field(default=(), kw_only=True)

    def compile(self, tokenizer: Any, vocab_size: int, stop_token_ids: Iterable[int]) -> CompiledGrammar:
        """Compile for a tokenizer; the result is kept with it.

        Args:
            tokenizer: of `transformers`, or an `xgrammar.TokenizerInfo`.
            vocab_size: V, the width of the model's logits. Ids beyond the tokenizer's are never allowed.
            stop_token_ids: ids that may end a text, every end-of-sequence id of the model's generation config.

        Raises:
            ValueError: no stop token, or the grammar admits nothing.
        """
        stops = tuple(sorted(stop_token_ids))
        key = ("grammar compiler", vocab_size, stops)
        compiler = kept_with(tokenizer, key, lambda: TokenCompiler(tokenizer, vocab_size, stops))
        return compiler.compile(self)

    @property
    def holds_control_characters(self) -> bool:
        """Whether its texts may hold characters below U+0020, such as line breaks."""
        return True

    @abstractmethod
    def compile_with(self, compiler: xgrammar.GrammarCompiler) -> xgrammar.CompiledGrammar:
        """Have xgrammar compile the description."""


@dataclass(frozen=True)
class JsonSchema(Grammar):
    """See `json_schema`; `options` are xgrammar's."""

    options: tuple[tuple[str, Any], ...] = ()

    @property
    def holds_control_characters(self) -> bool:
        """Only where whitespace is laid out: within strings they are escaped."""
        return dict(self.options) != _COMPACT

    def compile_with(self, compiler: xgrammar.GrammarCompiler) -> xgrammar.CompiledGrammar:
        """Compile the schema."""
        return compiler.compile_json_schema(self.source, **dict(self.options))


@dataclass(frozen=True)
class Regex(Grammar):
    """See `regex`."""

    def compile_with(self, compiler: xgrammar.GrammarCompiler) -> xgrammar.CompiledGrammar:
        """Compile the pattern."""
        return compiler.compile_regex(self.source)


@dataclass(frozen=True)
class Ebnf(Grammar):
    """See `ebnf`."""

    def compile_with(self, compiler: xgrammar.GrammarCompiler) -> xgrammar.CompiledGrammar:
        """Compile the rules."""
        return compiler.compile_grammar(self.source)


@dataclass(frozen=True)
class AnyJson(Grammar):
    """See `any_json`."""

    def compile_with(self, compiler: xgrammar.GrammarCompiler) -> xgrammar.CompiledGrammar:
        """Compile xgrammar's own JSON grammar."""
        return compiler.compile_builtin_json_grammar()


GrammarChoice: TypeAlias = Grammar | CompiledGrammar | None


def fit_grammar(
    grammar: GrammarChoice, tokenizer: Any, vocab_size: int, stop_token_ids: Iterable[int]
) -> CompiledGrammar | None:
    """Compile a grammar for a model's tokens, or check that it was compiled for them.

    Args:
        grammar: a description, a compiled grammar, or None.
        tokenizer: of `transformers`; may be None for a compiled grammar.
        vocab_size, stop_token_ids: of the model, as `Grammar.compile` takes them.

    Raises:
        TypeError: no grammar.
        ValueError: no tokenizer, no stop token, a grammar that admits nothing, or one compiled for other tokens.
    """
    if grammar is None:
        return None
    if isinstance(grammar, CompiledGrammar):
        grammar.tokens.check(tokenizer, vocab_size, tuple(sorted(stop_token_ids)))
        return grammar
    if not isinstance(grammar, Grammar):
        raise TypeError(
            f"grammar must be made by nr.json_schema, nr.regex, nr.ebnf or nr.any_json, not {grammar!r:.80}"
        )
    if tokenizer is None:
        raise ValueError("grammar needs a tokenizer to know what its tokens spell: pass one, or a compiled grammar")
    return grammar.compile(tokenizer, vocab_size, stop_token_ids)


def json_schema(
    schema: dict[str, Any] | bool | str,
    *,
    any_whitespace: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    max_whitespace_cnt: int | None = None,
    allow_unenforced: bool = False,
) -> Grammar:
    """Describe JSON by a schema.

    Args:
        schema: a JSON schema, as Python values or as JSON text. Properties come in the order declared; objects and
            arrays are closed where the schema does not say (the standard has them open).
        any_whitespace: allow whitespace between tokens; without, the compact form that costs the fewest tokens.
        indent, separators, max_whitespace_cnt: as xgrammar takes them.
        allow_unenforced: take a schema with keywords that xgrammar ignores; they are listed in `Grammar.unenforced`
            and on each result, since output may break them.

    Raises:
        ValueError: no valid schema, one that admits nothing, or one with keywords that would be ignored.

    >>> json_schema({"type": "array", "items": {"type": "integer"}, "maxItems": 3}).unenforced
    ()
    """
    parsed = _parse_json(schema)
    options: dict[str, Any] = {
        "any_whitespace": any_whitespace,
        "indent": indent,
        "separators": None if separators is None else tuple(separators),
        "max_whitespace_cnt": max_whitespace_cnt,
    }
    try:
        source = json.dumps(parsed, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"JSON schema holds what JSON cannot: {error}") from error
    unenforced = check_schema(parsed, allow_unenforced, compact=options == _COMPACT)
    refuse_errors("JSON schema", lambda: xgrammar.Grammar.from_json_schema(source, **options))
    return JsonSchema(source, tuple(options.items()), unenforced=unenforced)


def regex(pattern: str) -> Grammar:
    """Describe texts by a regular expression that matches them as a whole.

    Args:
        pattern: a regular expression in xgrammar's dialect, without lookaround, backreferences and flags.

    Raises:
        TypeError: not a string.
        ValueError: not a regular expression, with the position; a feature that is not supported; an empty pattern.

    >>> regex("[0-9")
    Traceback (most recent call last):
    ValueError: regex '[0-9' cannot be used: Regex parsing error at position 5: Unclosed '['
    """
    _check_text("pattern", pattern)
    place = misplaced_anchor(pattern)
    if place is not None:
        raise ValueError(
            f"regex {pattern!r} cannot be used: at position {place + 1}, an anchor stands where nothing can match"
        )
    place = misread_piece(pattern)
    if place is not None:
        raise ValueError(
            f"regex {pattern!r} cannot be used: at position {place + 1}, an escape that is not supported, or a class "
            "that begins with ]"
        )
    refuse_errors(f"regex {pattern!r}", lambda: xgrammar.Grammar.from_regex(pattern))
    return Regex(pattern)


def ebnf(text: str) -> Grammar:
    """Describe texts by EBNF rules (the dialect of GBNF), of which `root` is the first.

    Args:
        text: rules such as `root ::= "yes" | "no"`.

    Raises:
        TypeError: not a string.
        ValueError: no valid grammar, with line and column; no rule `root`; empty.

    >>> ebnf('root ::= "yes" | "no"').source
    'root ::= "yes" | "no"'
    """
    _check_text("EBNF grammar", text)
    refuse_errors("EBNF grammar", lambda: xgrammar.Grammar.from_ebnf(text))
    return Ebnf(text)


def any_json() -> Grammar:
    """Describe any JSON object or array, whitespace included.

    >>> any_json().unenforced
    ()
    """
    return AnyJson("any JSON")


def _parse_json(schema: Any) -> Any:
    """Take a schema as Python values."""
    if not isinstance(schema, str):
        return schema
    try:
        return json.loads(schema)
    except json.JSONDecodeError as error:
        raise ValueError(f"JSON schema is no JSON: {error}") from error


def _check_text(name: str, text: Any) -> None:
    """Refuse what is no text, or empty."""
    if not isinstance(text, str):
        raise TypeError(f"{name} must be a string, not {type(text).__name__}")
    if not text.strip():
        raise ValueError(f"{name} is empty: it would allow no text at all")
