"""Grammars with texts of theirs, a toy tokenizer with the tiny models that fit it, and grammar states made by hand.

Everything here goes past `ngram_ref.grammar`: grammars are compiled by xgrammar's own calls, token bytes are spelled
out again, texts are judged by `re`, `jsonschema` and Python's parser. So it can serve as an oracle.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import jsonschema
import numpy as np
import numpy.typing as npt
import tiny
import torch
import xgrammar
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedModel, PreTrainedTokenizerFast

import ngram_ref as nr
from ngram_ref.core.walk import GrammarState
from ngram_ref.grammar.compile import Grammar
from ngram_ref.grammar.compiler import CompiledGrammar
from ngram_ref.grammar.token_table import TokenTable
from ngram_ref.lab.tasks import RECORD, RECORD_SCHEMA


@dataclass(frozen=True)
class Sample:
    """A grammar and what is known of it from elsewhere.

    Attributes:
        grammar: the description under test.
        texts: complete texts of it.
        compile: the same by xgrammar's own calls.
        is_valid: whether a text is one of it, asked of another authority.
    """

    grammar: Grammar
    texts: tuple[str, ...]
    compile: Callable[[xgrammar.GrammarCompiler], xgrammar.CompiledGrammar]
    is_valid: Callable[[str], bool]


def _regex(pattern: str, *texts: str) -> Sample:
    return Sample(
        nr.regex(pattern),
        texts,
        lambda compiler: compiler.compile_regex(pattern),
        lambda text: re.fullmatch(pattern, text) is not None,
    )


def _schema(schema: dict[str, Any], *values: Any) -> Sample:
    compact = {"any_whitespace": False, "strict_mode": True}
    return Sample(
        nr.json_schema(schema),
        tuple(json.dumps(value, ensure_ascii=False) for value in values),  # xgrammar's form without any_whitespace
        lambda compiler: compiler.compile_json_schema(json.dumps(schema, ensure_ascii=False), **compact),
        lambda text: fits_schema(text, schema),
    )


def fits_schema(text: str, schema: dict[str, Any]) -> bool:
    """Tell whether a text is JSON and valid by a schema."""
    try:
        jsonschema.validate(json.loads(text), schema)
    except (json.JSONDecodeError, jsonschema.ValidationError):
        return False
    return True


def _is_json(text: str) -> bool:
    return fits_schema(text, {})


def _is_arithmetic(text: str) -> bool:
    """Ask Python's parser, which reads these expressions alike."""
    try:
        ast.parse(text, mode="eval")
    except SyntaxError:
        return False
    return re.fullmatch(r"[-+*/()0-9 ]+", text) is not None


ARITHMETIC = """root ::= term (" " [-+] " " term)*
term ::= factor (" " [*/] " " factor)*
factor ::= number | "(" root ")"
number ::= "0" | [1-9] [0-9]*
"""


PERSON, _ANNA = RECORD_SCHEMA, RECORD
_JONAS = _ANNA | {"id": 2020, "name": "Jo", "role": "guest", "score": -1e3, "tags": ["a"], "manager": "anna"}

GRAMMARS: dict[str, Sample] = {
    "ipv4": _regex(
        r"((25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])\.){3}(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])",
        "192.168.1.12",
        "0.0.0.0",
        "255.249.99.202",
    ),
    "date": _regex(r"(19|20)[0-9]{2}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])", "1969-07-20", "2024-12-31"),
    "phone": _regex(
        r"(\+[1-9][0-9]{0,2} )?(\([0-9]{3}\) |[0-9]{3}-)[0-9]{3}-[0-9]{4}", "+49 (030) 555-0199", "202-555-0192"
    ),
    "emoji": _regex(r"([😀-😃é]+ )*(日本|naïve|👍🏽)[😀-😃]?", "é😀 日本", "😁😂 é 👍🏽😃", "naïve"),
    "person": _schema(PERSON, _ANNA, _JONAS),
    "numbers": _schema(
        {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 250}, "minItems": 2, "maxItems": 4},
        [1, 20],
        [202, 192, 0, 19],
    ),
    "enum": _schema({"enum": ["café", "cafés", "naïve", "日本語", "日本", "😀 ok"]}, "café", "日本語", "日本", "😀 ok"),
    "json": Sample(
        nr.any_json(),
        ('{"a": [1, 20, true], "é": {"b": null}}', '["😀", "\\u00e9", -1.5e3, {}]', "[ ]"),
        lambda compiler: compiler.compile_builtin_json_grammar(),
        _is_json,
    ),
    "arithmetic": Sample(
        nr.ebnf(ARITHMETIC),
        ("1 + 2 * 3", "(20 - 19) / (4 + 0) * 192", "7"),
        lambda compiler: compiler.compile_grammar(ARITHMETIC),
        _is_arithmetic,
    ),
}
REGEXES = ("ipv4", "date", "phone", "emoji")  # of which `re` and the small matcher know the language too


# The toy tokenizer: bytes and a few longer pieces, special tokens at both ends, and a byte that no token spells.

MISSING_BYTE = b"\x04"
_PIECES = ['{"', '": "', '", "', '"]', "192", "202", ", ", "é", "日本", "😀", "true", " + ", "-0"]


def _byte_letters() -> dict[int, str]:
    """Give each byte the letter by which byte-level tokenizers write it."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + place) for place, byte in enumerate(others)}


_LETTERS = _byte_letters()
_SPECIAL = ["<pad>", "<start>", "<end>"]


def _toy_vocabulary() -> list[bytes]:
    """List the bytes of each id; special tokens have none."""
    found = dict.fromkeys(bytes([byte]) for byte in range(256) if bytes([byte]) != MISSING_BYTE)
    for piece in map(str.encode, _PIECES):
        found |= dict.fromkeys(piece[:size] for size in range(2, len(piece) + 1))
    return [*[b""] * len(_SPECIAL), *found, b""]


_TOY_BYTES = _toy_vocabulary()
TOY_SIZE = len(_TOY_BYTES)
TOY_VOCAB = TOY_SIZE + 11  # the model's logits are wider than the tokenizer, and no multiple of 32
TOY_WIDTH = (TOY_VOCAB + 31) // 32
TOY_PIECES = _TOY_BYTES + [b""] * (TOY_VOCAB - TOY_SIZE)  # the bytes of each id; none for what is no text
EOS = (2, TOY_SIZE - 1)
# Ids that no grammar allows: special ones, those of the padded vocabulary, those that have a bit in the last word of a
# row and no logit, those behind it (some of which are the id of a letter in their lower half).
NO_TEXT = (0, 1, TOY_SIZE, TOY_VOCAB - 1)
IN_LAST_WORD = (TOY_VOCAB, 32 * TOY_WIDTH - 1)
BEYOND = (32 * TOY_WIDTH, 32 * TOY_WIDTH + 60, 2**31, 2**31 + 60, 2**32 - 1, 2**32 + 60)


def toy_tokenizer() -> PreTrainedTokenizerFast:
    """Make a tokenizer of the toy vocabulary; each call makes another one."""
    spelled = ["".join(_LETTERS[byte] for byte in piece) for piece in _TOY_BYTES]
    vocab = {piece: token for token, piece in enumerate(spelled) if piece}
    merges = [(piece[:-1], piece[-1]) for piece in spelled if len(piece) > 1]
    core = Tokenizer(models.BPE(vocab=vocab | {name: token for token, name in enumerate(_SPECIAL)}, merges=merges))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    names = dict(zip(("pad_token", "bos_token", "eos_token"), _SPECIAL, strict=True))
    return PreTrainedTokenizerFast(tokenizer_object=core, additional_special_tokens=["<stop>"], **names)


TOKENIZER = toy_tokenizer()


def encode(text: str) -> list[int]:
    """Encode a text with the toy tokenizer."""
    return list(TOKENIZER(text)["input_ids"])


def toy_model(name: str = "llama", seed: int = 0, **overrides: Any) -> PreTrainedModel:
    """Build a tiny float64 model for the toy tokenizer, with both end-of-sequence ids."""
    return tiny.build(name, seed=seed, eos=list(EOS), **{"vocab_size": TOY_VOCAB, **overrides})


# References: xgrammar by its own calls


def _compiler(pieces: list[bytes], stops: Sequence[int]) -> xgrammar.GrammarCompiler:
    info = xgrammar.TokenizerInfo(
        pieces, xgrammar.VocabType.RAW, vocab_size=len(pieces), stop_token_ids=list(stops), add_prefix_space=False
    )
    return xgrammar.GrammarCompiler(info, max_threads=1)


@cache
def toy_compiler() -> xgrammar.GrammarCompiler:
    """Give xgrammar's compiler for the toy vocabulary."""
    return _compiler(TOY_PIECES, EOS)


@cache
def toy_compiled(name: str) -> xgrammar.CompiledGrammar:
    """Compile one of the `GRAMMARS` for the toy vocabulary."""
    return GRAMMARS[name].compile(toy_compiler())


def byte_level_vocabulary(tokenizer: Any, vocab_size: int) -> list[bytes]:
    """List the bytes of each id of a byte-level tokenizer; special tokens have none."""
    bytes_of = {letter: byte for byte, letter in _LETTERS.items()}
    pieces = [b""] * vocab_size
    for piece, token in tokenizer.get_vocab().items():
        if token not in tokenizer.all_special_ids and not tokenizer.added_tokens_decoder.get(token):
            pieces[token] = bytes(bytes_of[letter] for letter in piece)
    return pieces


def byte_level_compiler(tokenizer: Any, vocab_size: int, stops: Sequence[int]) -> xgrammar.GrammarCompiler:
    """Make xgrammar's compiler for a byte-level tokenizer, such as the default model's."""
    return _compiler(byte_level_vocabulary(tokenizer, vocab_size), stops)


def allowed_by(state: GrammarState, width: int) -> npt.NDArray[np.bool_]:
    """Ask a state which tokens it allows: bool `[32 * width]`. Bits behind the vocabulary's end mean nothing."""
    row = torch.zeros(1, width, dtype=torch.int32)
    state.fill_next_token_bitmask(row, 0)
    return np.unpackbits(row.numpy().view(np.uint8), bitorder="little").astype(bool)


# States made by hand


class Listed:
    """A state that allows the listed token sequences and all they begin with.

    Behind a whole sequence it is terminated, if that is one of `ending`; else it is in a dead end.
    """

    def __init__(self, texts: Iterable[Sequence[int]], width: int, ending: Iterable[Sequence[int]] = ()) -> None:
        self.ending = {tuple(text) for text in ending}
        self.texts = {tuple(text) for text in texts} | self.ending
        self.width = width
        self.read: list[int] = []

    def following(self) -> list[int]:
        size = len(self.read)
        return [text[size] for text in self.texts if len(text) > size and text[:size] == tuple(self.read)]

    def accept_token(self, token_id: int) -> bool:
        if self.is_terminated() or token_id not in self.following():
            return False
        self.read.append(token_id)
        return True

    def rollback(self, num_tokens: int = 1) -> None:
        if not 0 <= num_tokens <= len(self.read):
            raise RuntimeError(f"cannot roll back {num_tokens} of {len(self.read)} tokens")
        del self.read[len(self.read) - num_tokens :]

    def fill_next_token_bitmask(self, bitmask: torch.Tensor, index: int = 0) -> None:
        if self.is_terminated():
            raise RuntimeError("terminated")
        bits = np.zeros(32 * self.width, dtype=np.uint8)
        bits[self.following()] = 1
        bitmask[index] = torch.from_numpy(np.packbits(bits, bitorder="little").view(np.int32))

    def is_terminated(self) -> bool:
        return tuple(self.read) in self.ending

    def is_completed(self) -> bool:
        return self.is_terminated()

    def fork(self) -> Listed:
        copy = type(self)(self.texts, self.width, self.ending)
        copy.read = self.read.copy()
        return copy


@dataclass(frozen=True)
class HandMade(CompiledGrammar):
    """A grammar whose states are made by a function."""

    make: Callable[[], Any] = Listed

    def start(self) -> GrammarState:
        state: GrammarState = self.make()
        return state


def hand_made(make: Callable[[], Any], vocab_size: int, stops: Iterable[int] = ()) -> HandMade:
    """Make a grammar for a model of any vocabulary, without a tokenizer."""
    tokens = TokenTable(vocab_size, tuple(sorted(stops)), None, "made by hand")  # type: ignore[arg-type]
    return HandMade(nr.regex("made by hand"), tokens, None, make)
