"""Compiling descriptions for a tokenizer, by xgrammar."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import torch
import xgrammar

from ngram_ref.core.walk import GrammarState
from ngram_ref.grammar.schema_check import Unenforced
from ngram_ref.grammar.token_table import TokenTable, token_table, without_control_characters

T = TypeVar("T")


class Description(Protocol):
    """What can be compiled; `compile.py` has the kinds that users make."""

    @property
    def source(self) -> str:
        """Its text."""
        ...

    @property
    def unenforced(self) -> tuple[Unenforced, ...]:
        """What the text demands and the compiled grammar would not enforce."""
        ...

    @property
    def holds_control_characters(self) -> bool:
        """Whether its texts may hold characters below U+0020, such as line breaks."""
        ...

    def compile_with(self, compiler: xgrammar.GrammarCompiler) -> xgrammar.CompiledGrammar:
        """Have xgrammar compile the description."""
        ...


@dataclass(frozen=True)
class CompiledGrammar:
    """A grammar for one tokenizer.

    Attributes:
        description: what it was compiled from.
        tokens: the tokens that it was compiled for.
        compiled: xgrammar's object.
    """

    description: Description
    tokens: TokenTable = field(repr=False)
    compiled: xgrammar.CompiledGrammar = field(repr=False)

    def start(self) -> GrammarState:
        """Begin a text: a state that has read nothing."""
        # Never `terminate_without_stop_token`: it ends `[0-9]+` after one digit.
        state: GrammarState = xgrammar.GrammarMatcher(self.compiled)
        return state


class TokenCompiler:
    """Compiles for one tokenizer, each description once; arguments as `token_table` takes them."""

    def __init__(self, tokenizer: Any, vocab_size: int, stop_token_ids: tuple[int, ...]) -> None:
        self._tokens = token_table(tokenizer, vocab_size, stop_token_ids)
        self._compilers: dict[bool, xgrammar.GrammarCompiler] = {}  # by whether texts may hold control characters
        self._compiled: dict[Description, CompiledGrammar] = {}

    def compile(self, description: Description) -> CompiledGrammar:
        """Compile a description, or give what it was compiled to before.

        Raises:
            ValueError: it cannot be compiled, or admits nothing.
        """
        if description not in self._compiled:
            compiler = self._compiler(description.holds_control_characters)
            compiled = refuse_errors("grammar", lambda: description.compile_with(compiler))
            grammar = CompiledGrammar(description, self._tokens, compiled)
            _refuse_nothing(grammar)
            self._compiled[description] = grammar
        return self._compiled[description]

    def _compiler(self, control_characters: bool) -> xgrammar.GrammarCompiler:
        """Make xgrammar's compiler when it is first needed: reading all tokens takes longer than most grammars."""
        if control_characters not in self._compilers:
            tokens = self._tokens if control_characters else without_control_characters(self._tokens)
            # One thread, since starting others takes longer than most grammars, too.
            self._compilers[control_characters] = xgrammar.GrammarCompiler(tokens.info, max_threads=1)
        return self._compilers[control_characters]


def _refuse_nothing(grammar: CompiledGrammar) -> None:
    """Refuse a grammar that allows no first token."""
    row = torch.zeros(1, (grammar.tokens.vocab_size + 31) // 32, dtype=torch.int32)
    grammar.start().fill_next_token_bitmask(row)
    if not row.any():
        raise ValueError(
            f"grammar {grammar.description.source!r:.80} admits nothing that this tokenizer can spell: loosen it"
        )


_RULE_COLUMN, _RULE_HEAD = re.compile(r"EBNF parser error at line 1, column (\d+)"), len("root ::= ")
_SOURCE_PREFIX = re.compile(r"^\[[\d:]+\] \S+: ")  # time and C++ source line, of no use to whom wrote the grammar


def refuse_errors(what: str, work: Callable[[], T]) -> T:
    """Run xgrammar; what it refuses becomes a ValueError with its own words on what and where.

    Args:
        what: names the thing that is refused, for the message.
        work: calls xgrammar.
    """
    try:
        return work()
    except RuntimeError as error:
        reason = _SOURCE_PREFIX.sub("", str(error)).strip()
        if what.startswith("regex"):  # some faults are found in the rule `root ::= …` that the pattern was made into
            reason = _RULE_COLUMN.sub(lambda found: f"near position {int(found[1]) - _RULE_HEAD}", reason)
        raise ValueError(f"{what} cannot be used: {reason}") from error
