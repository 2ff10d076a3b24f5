"""Descriptions of grammars: what they refuse, what becomes of them for a tokenizer, which of them fit a model."""

from __future__ import annotations

import copy
import dataclasses
import math
import pickle
import re
from collections.abc import Callable, Sequence
from typing import Any

import grammars
import numpy as np
import numpy.typing as npt
import pytest
import tiny
import xgrammar
from grammars import EOS, GRAMMARS, TOKENIZER, TOY_SIZE, TOY_VOCAB, encode
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

import ngram_ref as nr
from ngram_ref.grammar.compile import Grammar, fit_grammar

every_grammar = pytest.mark.parametrize("name", GRAMMARS)


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    with tiny.one_thread():
        yield


def allowed_behind(compiled: Any, tokens: Sequence[int] = (), vocab_size: int = TOY_VOCAB) -> npt.NDArray[np.int64]:
    """List the ids that a compiled grammar allows behind a text."""
    state = compiled.start()
    for token in tokens:
        assert state.accept_token(token)
    return np.flatnonzero(grammars.allowed_by(state, (vocab_size + 31) // 32)[:vocab_size])


# Descriptions


def descriptions() -> list[Grammar]:
    """Make one of each kind, anew."""
    schema = {"type": "array", "items": {"type": "integer"}}
    return [nr.regex("[0-9]+"), nr.ebnf('root ::= "a"'), nr.any_json(), nr.json_schema(schema)]


def test_descriptions_are_frozen_and_equal_by_what_they_say():
    assert descriptions() == descriptions()
    assert len({*descriptions(), *descriptions()}) == 4
    for grammar in descriptions():
        with pytest.raises(dataclasses.FrozenInstanceError):
            grammar.source = "other"
    assert nr.regex("a") != nr.regex("b")
    assert nr.regex("a") != nr.ebnf("root ::= a\na ::= []")
    assert len({nr.json_schema({"enum": [1]}), nr.json_schema({"enum": [1]}, any_whitespace=True)}) == 2


def test_a_schema_may_come_as_json_text_and_is_the_same():
    assert nr.json_schema('{"enum": ["é", 1]}') == nr.json_schema({"enum": ["é", 1]})


@pytest.mark.parametrize(
    "options",
    [
        {"any_whitespace": True},
        {"any_whitespace": True, "max_whitespace_cnt": 2},
        {"indent": 2},
        {"separators": (",", ":")},
        {"separators": [",", ":"]},
    ],
    ids=str,
)
def test_every_option_of_a_schema_compiles(options):
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    compiled = nr.json_schema(schema, **options).compile(TOKENIZER, TOY_VOCAB, EOS)
    assert len(allowed_behind(compiled))


def test_separators_are_those_asked_for():
    grammar = nr.json_schema({"type": "array", "items": {"enum": [1]}}, separators=(";", ":"))
    compiled = grammar.compile(TOKENIZER, TOY_VOCAB, EOS)
    assert ord(";") in [grammars.TOY_PIECES[token][0] for token in allowed_behind(compiled, encode("[1")) if token > 2]


# Compiling


@every_grammar
def test_a_description_is_compiled_once_per_tokenizer(name):
    grammar = GRAMMARS[name].grammar
    first = grammar.compile(TOKENIZER, TOY_VOCAB, EOS)
    assert grammar.compile(TOKENIZER, TOY_VOCAB, EOS) is first
    assert copy.copy(grammar).compile(TOKENIZER, TOY_VOCAB, list(EOS)[::-1]) is first
    assert fit_grammar(grammar, TOKENIZER, TOY_VOCAB, frozenset(EOS)) is first
    other = grammars.toy_tokenizer()
    assert grammar.compile(other, TOY_VOCAB, EOS) is not first
    assert grammar.compile(TOKENIZER, TOY_VOCAB, EOS[:1]) is not first
    assert grammar.compile(TOKENIZER, TOY_VOCAB + 1, EOS) is not first


def test_compiling_is_called_once(monkeypatch):
    calls: list[str] = []
    compile_regex = xgrammar.GrammarCompiler.compile_regex
    monkeypatch.setattr(
        xgrammar.GrammarCompiler,
        "compile_regex",
        lambda self, source: calls.append(source) or compile_regex(self, source),
    )
    tokenizer, model = grammars.toy_tokenizer(), grammars.toy_model()
    for _ in range(2):
        nr.generate(model, tokenizer, [[5], [6]], grammar=nr.regex("[0-9]{2}"), max_new_tokens=4)
    assert calls == ["[0-9]{2}"]


def test_each_start_is_a_text_of_its_own():
    compiled = nr.regex("ab").compile(TOKENIZER, TOY_VOCAB, EOS)
    first, second = compiled.start(), compiled.start()
    assert first.accept_token(encode("a")[0])
    assert second.accept_token(encode("a")[0])
    assert not second.accept_token(encode("a")[0])


@every_grammar
def test_rows_are_those_of_a_matcher_of_the_spelled_out_vocabulary(name):
    """Along each text, and at its end: the reference has no tokenizer, only bytes."""
    compiled = GRAMMARS[name].grammar.compile(TOKENIZER, TOY_VOCAB, EOS)
    for text in GRAMMARS[name].texts:
        state, reference = compiled.start(), xgrammar.GrammarMatcher(grammars.toy_compiled(name))
        for token in [*encode(text), EOS[1]]:
            rows = [grammars.allowed_by(one, grammars.TOY_WIDTH)[:TOY_VOCAB] for one in (state, reference)]
            assert (rows[0] == rows[1]).all()
            assert not rows[0][[0, 1, *range(TOY_SIZE, TOY_VOCAB)]].any()
            assert state.accept_token(token)
            assert reference.accept_token(token)
        assert state.is_terminated()


@every_grammar
def test_each_end_of_sequence_id_ends_a_complete_text_and_is_no_text(name):
    compiled = GRAMMARS[name].grammar.compile(TOKENIZER, TOY_VOCAB, EOS)
    for text in GRAMMARS[name].texts:
        for stop in EOS:
            state = compiled.start()
            assert not state.accept_token(stop)
            assert all(state.accept_token(token) for token in encode(text))
            assert state.is_completed()
            assert {*EOS} <= {*allowed_behind(compiled, encode(text))}
            assert state.accept_token(stop)
            assert state.is_terminated()


def test_an_end_of_sequence_id_that_spells_something_is_no_text():
    """A model may end texts with an ordinary token: it cannot be both."""
    (letter,) = encode("a")
    compiled = nr.regex("[a-c]{2,3}").compile(TOKENIZER, TOY_VOCAB, [letter])
    assert letter not in allowed_behind(compiled)
    assert letter in allowed_behind(compiled, encode("bb"))


def test_a_regex_that_no_token_spells_admits_nothing():
    with pytest.raises(ValueError, match="admits nothing that this tokenizer can spell"):
        nr.regex("\x04").compile(TOKENIZER, TOY_VOCAB, EOS)


@pytest.mark.parametrize("text", ["root ::= root", 'root ::= root "a"', 'root ::= "\x04" root'])
def test_rules_that_never_begin_admit_nothing(text):
    with pytest.raises(ValueError, match="admits nothing"):
        nr.ebnf(text).compile(TOKENIZER, TOY_VOCAB, EOS)


def test_a_grammar_of_the_empty_text_only_allows_the_end():
    assert {*allowed_behind(nr.regex("a{0}").compile(TOKENIZER, TOY_VOCAB, EOS))} == {*EOS}


def test_no_end_of_sequence_id():
    with pytest.raises(ValueError, match=r"no end-of-sequence id.*generation_config\.eos_token_id"):
        nr.any_json().compile(TOKENIZER, TOY_VOCAB, ())


def test_a_tokenizer_info_of_xgrammar_may_stand_for_a_tokenizer():
    info = xgrammar.TokenizerInfo(grammars.TOY_PIECES, xgrammar.VocabType.RAW, stop_token_ids=[2])
    compiled = GRAMMARS["json"].grammar.compile(info, TOY_VOCAB, EOS)
    expected = GRAMMARS["json"].grammar.compile(TOKENIZER, TOY_VOCAB, EOS)
    for text in ("", '["😀'):
        assert (allowed_behind(compiled, encode(text)) == allowed_behind(expected, encode(text))).all()
    compiled.tokens.check(TOKENIZER, TOY_VOCAB, EOS)


def test_a_tokenizer_that_falls_back_to_bytes():
    vocab = {f"<0x{byte:02X}>": byte for byte in range(256)} | {"▁no": 256, "no": 257, "</s>": 258}
    core = Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True))
    core.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="</s>")
    compiled = nr.regex("( no|👎)+").compile(tokenizer, 300, [258])
    assert {*allowed_behind(compiled, vocab_size=300)} == {256, ord(" "), 0xF0}
    assert {*allowed_behind(compiled, "👎".encode(), vocab_size=300)} == {256, ord(" "), 0xF0, 258}
    assert {*allowed_behind(compiled, [ord(" ")], vocab_size=300)} == {257, ord("n")}


# A used tokenizer can be copied


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda tokenizer: pickle.loads(pickle.dumps(tokenizer))])
def test_a_used_tokenizer_can_be_copied(duplicate):
    tokenizer = grammars.toy_tokenizer()
    first = nr.any_json().compile(tokenizer, TOY_VOCAB, EOS)
    twin = duplicate(tokenizer)
    assert twin("[19]")["input_ids"] == encode("[19]")
    second = nr.any_json().compile(twin, TOY_VOCAB, EOS)
    assert second is not first
    assert (allowed_behind(first) == allowed_behind(second)).all()
    first.tokens.check(twin, TOY_VOCAB, EOS)  # they spell the same


def test_a_used_tokenizer_can_be_saved(tmp_path):
    tokenizer = grammars.toy_tokenizer()
    nr.any_json().compile(tokenizer, TOY_VOCAB, EOS)
    tokenizer.save_pretrained(tmp_path)
    again = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    assert again("[19]")["input_ids"] == encode("[19]")


# Descriptions that are refused, by what and where

REFUSED_SCHEMAS: dict[str, tuple[Any, str]] = {
    "no JSON": ("{", "JSON schema is no JSON.*line 1 column 2"),
    "no text": ("", "JSON schema is no JSON.*line 1 column 1"),
    "a number": (5, "# must be a schema.*5"),
    "None": (None, "# must be a schema.*None"),
    "a list": ([], r"# must be a schema.*\[\]"),
    "a number as JSON": ("5", "# must be a schema.*5"),
    "unknown type": ({"items": {"type": "objekt"}}, "#/items/type .*'objekt'"),
    "properties in a list": ({"type": "object", "properties": ["a"]}, "#/properties "),
    "a property that is no schema": ({"type": "object", "properties": {"a": 5}}, "#/properties/a .*5"),
    "a bound that is text": ({"type": "integer", "minimum": "5"}, "#/minimum .*'5'"),
    "empty enum": ({"enum": []}, "#/enum"),
    "no such reference": ({"$ref": "#/$defs/x"}, r"#/\$ref .*#/\$defs/x"),
    "not a number": ({"enum": [math.nan]}, "JSON"),
    "false": (False, "cannot accept any value"),
    "minimum over maximum": ({"type": "integer", "minimum": 5, "maximum": 3}, "minimum.*maximum"),
    "minItems over maxItems": ({"type": "array", "minItems": 3, "maxItems": 1}, "minItems.*maxItems"),
    "broken pattern": ({"properties": {"a": {"type": "string", "pattern": "["}}}, "#/properties/a/pattern"),
    "unenforced": ({"properties": {"a": {"type": "array", "uniqueItems": True}}}, "#/properties/a/uniqueItems"),
    "not": ({"type": "integer", "not": {"const": 1}}, "#/not"),
}


@pytest.mark.parametrize("case", REFUSED_SCHEMAS)
def test_schemas_that_are_refused(case):
    schema, message = REFUSED_SCHEMAS[case]
    with pytest.raises(ValueError, match=message):
        nr.json_schema(schema)


def test_a_schema_of_values_that_json_has_not_is_named():
    with pytest.raises((TypeError, ValueError), match=r"(?i)schema"):
        nr.json_schema({"enum": [{1, 2}]})


REFUSED_REGEXES: dict[Any, str] = {
    "[0-9": "position 5.*Unclosed",
    "(a": "position 3.*not closed",
    "a)": "position 2.*Unmatched",
    "[]": "position 2.*Empty character class",
    "a++": "position 3.*modifiers",
    "a\\": "position 2.*not finished",
    "ab(?=c)": "position 5.*Lookahead",
    "ab(?<!c)": "position.*(?i:lookbehind)",
    r"a\b": "position 2.*Word boundary",
    r"(a)\1": "position 4.*Backreference",
    "(?i)a": "position 3.*flag",
    r"a\p{L}": "position 2.*not supported",
    "a{,3}": "position 3.*repetition",
    "": "empty",
    "  \n": "empty",
}


@pytest.mark.parametrize("pattern", REFUSED_REGEXES)
def test_regexes_that_are_refused_by_position(pattern):
    with pytest.raises(ValueError, match=f"(?s){REFUSED_REGEXES[pattern]}") as caught:
        nr.regex(pattern)
    assert repr(pattern) in str(caught.value) or not pattern.strip()


@pytest.mark.parametrize("pattern", ["*a", "a{3,1}", "[z-a]"])
def test_positions_lie_within_the_pattern(pattern):
    """xgrammar finds these only after it has rewritten the pattern, and counts in what it made of it."""
    with pytest.raises(ValueError, match="regex") as caught:
        nr.regex(pattern)
    assert all(
        int(number) <= len(pattern) + 1 for number in re.findall(r"(?:position|column) (\d+)", str(caught.value))
    )


@pytest.mark.parametrize("pattern", ["^a$b", "a^b"])
def test_anchors_in_the_middle_are_refused(pattern):
    """They match nothing. xgrammar drops them with a line on stderr, and would emit what the pattern forbids."""
    with pytest.raises(ValueError, match="regex"):
        nr.regex(pattern)


@pytest.mark.parametrize("pattern", ["^ab$", "^(a|b)$", "a??", "(?:a|)b", "(a{2}){3}", "[^a]", "\\$\\^", "[$^]"])
def test_regexes_that_are_taken(pattern):
    re.compile(pattern)
    nr.regex(pattern).compile(TOKENIZER, TOY_VOCAB, EOS)


REFUSED_RULES: dict[str, str] = {
    "": "empty",
    " \n\t": "empty",
    'start ::= "a"': '"root" is not found',
    'root ::= "a': "line 1, column 12",
    'root ::=\n  "a" ]': "line 2, column 7",
    'root ::= "a"\nb ::= c': 'line 2, column 7.*"c" is not defined',
    "root ::= [a": "line 1, column 12",
    "root ::= ( [a]": "line 1, column 15",
}


@pytest.mark.parametrize("text", REFUSED_RULES)
def test_rules_that_are_refused_by_line_and_column(text):
    with pytest.raises(ValueError, match=f"EBNF grammar.*{REFUSED_RULES[text]}"):
        nr.ebnf(text)


@pytest.mark.parametrize("make", [nr.regex, nr.ebnf])
@pytest.mark.parametrize("value", [None, 5, b"a", ["a"], re.compile("a")], ids=str)
def test_what_is_no_text_is_refused(make, value):
    with pytest.raises(TypeError, match=f"must be a string, not {type(value).__name__}"):
        make(value)


@pytest.mark.parametrize("make", [lambda: nr.regex("(("), lambda: nr.ebnf("root"), lambda: nr.json_schema(False)])
def test_errors_are_free_of_where_xgrammar_was_built(make: Callable[[], Grammar]):
    with pytest.raises(ValueError) as caught:
        make()
    assert not re.search(r"\.cc|\.h:|\d\d:\d\d:\d\d", str(caught.value)), caught.value


# What `generate` refuses, before it runs the model


@pytest.fixture(scope="module")
def target() -> nr.Target:
    return nr.Target(grammars.toy_model())


def compiled_for(vocab_size: int = TOY_VOCAB, stops: Sequence[int] = EOS) -> Any:
    return nr.any_json().compile(TOKENIZER, vocab_size, stops)


def compiled_for_other_tokens() -> Any:
    """As many tokens, of which two spell each other's text."""
    pieces = grammars.TOY_PIECES.copy()
    pieces[60], pieces[61] = pieces[61], pieces[60]
    info = xgrammar.TokenizerInfo(pieces, xgrammar.VocabType.RAW, stop_token_ids=[2])
    return nr.any_json().compile(info, TOY_VOCAB, EOS)


OTHER = "compiled for another tokenizer, vocabulary size or set of stop tokens"
MADE_BY = "grammar must be made by nr.json_schema, nr.regex, nr.ebnf or nr.any_json"
REFUSED_ARGUMENTS: dict[str, tuple[Callable[[], dict[str, Any]], type[Exception], str]] = {
    "another vocabulary size": (lambda: {"grammar": compiled_for(vocab_size=TOY_VOCAB + 1)}, ValueError, OTHER),
    "other stop tokens": (lambda: {"grammar": compiled_for(stops=EOS[:1])}, ValueError, OTHER),
    "other tokens": (lambda: {"grammar": compiled_for_other_tokens()}, ValueError, OTHER),
    "one of a list": (lambda: {"grammar": [None, nr.any_json(), compiled_for(TOY_VOCAB + 9)]}, ValueError, OTHER),
    "too few": (lambda: {"grammar": [nr.any_json()] * 2}, ValueError, "2 entries for 3 prompts"),
    "too many": (lambda: {"grammar": [None] * 4}, ValueError, "4 entries for 3 prompts"),
    "none at all": (lambda: {"grammar": []}, ValueError, "0 entries for 3 prompts"),
    "text": (lambda: {"grammar": "[0-9]+"}, TypeError, MADE_BY),
    "text in a list": (lambda: {"grammar": [None, "abc", None]}, TypeError, MADE_BY),
    "a schema": (lambda: {"grammar": {"type": "object"}}, TypeError, MADE_BY),
    "a number": (lambda: {"grammar": 5}, TypeError, MADE_BY),
    "a compiled grammar of xgrammar": (lambda: {"grammar": grammars.toy_compiled("json")}, TypeError, MADE_BY),
    "no tokenizer": (lambda: {"grammar": nr.any_json(), "tokenizer": None}, ValueError, "grammar needs a tokenizer"),
    "nothing to spell": (lambda: {"grammar": nr.regex("\x04")}, ValueError, "admits nothing"),
}


@pytest.mark.parametrize("case", REFUSED_ARGUMENTS)
def test_grammars_that_do_not_fit_are_refused_before_any_work(target, case):
    make, error, message = REFUSED_ARGUMENTS[case]
    arguments = {"tokenizer": TOKENIZER, "prompts": [[5], [6, 7], [8]]} | make()
    forwards: list[int] = []
    hook = target.model.model.embed_tokens.register_forward_hook(lambda *_: forwards.append(1))
    try:
        with pytest.raises(error, match=message):
            nr.generate(target, **arguments)
    finally:
        hook.remove()
    assert forwards == []
    assert nr.generate(target, None, [5], max_new_tokens=2)[0].finish_reason == "length"  # nothing is left locked


def test_a_model_without_an_end_of_sequence_id_is_refused():
    model = tiny.build("llama", vocab_size=TOY_VOCAB)
    with pytest.raises(ValueError, match="generation config names no end-of-sequence id"):
        nr.generate(model, TOKENIZER, [5], grammar=nr.any_json())
    assert nr.generate(model, TOKENIZER, [5], grammar=[None], max_new_tokens=1)[0].finish_reason == "length"


def test_a_compiled_grammar_needs_no_tokenizer(target):
    plain = nr.generate(target, TOKENIZER, [5], grammar=GRAMMARS["date"].grammar, max_new_tokens=20)
    compiled = GRAMMARS["date"].grammar.compile(TOKENIZER, TOY_VOCAB, EOS)
    for tokenizer in (None, TOKENIZER, grammars.toy_tokenizer()):
        (result,) = nr.generate(target, tokenizer, [5], grammar=compiled, max_new_tokens=20)
        assert result.token_ids == plain[0].token_ids
        assert (result.text is None) == (tokenizer is None)


def test_grammars_come_alone_or_one_per_prompt(target):
    date, phone = GRAMMARS["date"], GRAMMARS["phone"]
    for many in ([date.grammar, None, phone.grammar], (date.grammar, None, phone.grammar)):
        results = nr.generate(target, TOKENIZER, [[5], [6], [7]], grammar=many, max_new_tokens=30)
        assert date.is_valid(results[0].text)
        assert phone.is_valid(results[2].text)
        free = nr.generate(target, TOKENIZER, [6], max_new_tokens=30)
        assert results[1].token_ids == free[0].token_ids
    for result in nr.generate(target, TOKENIZER, [[5], [6]], grammar=date.grammar, max_new_tokens=30):
        assert date.is_valid(result.text)
    assert nr.generate(target, TOKENIZER, [], grammar=date.grammar) == []


# The default model's tokenizer


@pytest.fixture(scope="module")
def vocabulary(default_model) -> tuple[Any, int]:
    model, tokenizer = default_model
    return tokenizer, model.config.vocab_size


@pytest.mark.model
def test_special_tokens_of_the_default_model_are_never_text(vocabulary):
    """xgrammar's own reading of this tokenizer takes `<|endoftext|>` for text."""
    tokenizer, size = vocabulary
    assert tokenizer.all_special_tokens
    special = {0, 1, *range(3, 17)}
    naive = xgrammar.GrammarCompiler(xgrammar.TokenizerInfo.from_huggingface(tokenizer, vocab_size=size))
    string = tokenizer('["abc').input_ids
    for grammar, compiled, tokens in (
        (nr.any_json(), naive.compile_builtin_json_grammar(), string),
        (nr.regex("[^0-9]{1,30}"), naive.compile_regex("[^0-9]{1,30}"), []),
    ):
        matcher = xgrammar.GrammarMatcher(compiled)
        assert all(matcher.accept_token(token) for token in tokens)
        assert grammars.allowed_by(matcher, size // 32)[list(special)].any()
        allowed = allowed_behind(grammar.compile(tokenizer, size, [2]), tokens, size)
        assert len(allowed) > 40_000
        assert not special & {*allowed.tolist()}


@pytest.mark.model
def test_rows_of_the_default_model_are_those_of_the_spelled_out_vocabulary(vocabulary):
    """With a model whose logits are wider than the tokenizer too: the padded ids are never allowed."""
    tokenizer, size = vocabulary
    for vocab_size, stops in ((size, [2]), (size + 100, [2, 0])):
        reference = grammars.byte_level_compiler(tokenizer, vocab_size, stops)
        for name in ("json", "person", "emoji"):
            text = tokenizer(GRAMMARS[name].texts[0]).input_ids
            compiled = GRAMMARS[name].grammar.compile(tokenizer, vocab_size, stops)
            matcher = xgrammar.GrammarMatcher(GRAMMARS[name].compile(reference))
            for place in range(len(text) + 1):
                allowed = allowed_behind(compiled, text[:place], vocab_size)
                expected = grammars.allowed_by(matcher, (vocab_size + 31) // 32)[:vocab_size]
                assert (allowed == np.flatnonzero(expected)).all(), (name, place)
                assert allowed.max() < size
                assert place == len(text) or matcher.accept_token(text[place])
            assert {*stops} <= {*allowed.tolist()}


@pytest.mark.model
def test_a_used_tokenizer_of_the_default_model_can_be_copied(vocabulary):
    tokenizer, size = vocabulary
    first = nr.regex("[0-9]+").compile(tokenizer, size, [2])
    second = nr.regex("[0-9]+").compile(copy.deepcopy(tokenizer), size, [2])
    assert first is not second
    assert first.tokens.fingerprint == second.tokens.fingerprint


@pytest.mark.model
def test_bytes_that_the_default_model_cannot_spell(vocabulary):
    tokenizer, size = vocabulary
    with pytest.raises(ValueError, match="admits nothing"):
        nr.regex("\x06+").compile(tokenizer, size, [2])


@pytest.mark.parametrize("pattern", [r"\A\d", r"a\Qb", "[^]a]", r"x\e"])
def test_what_xgrammar_would_misread_is_refused_by_position(pattern):
    with pytest.raises(ValueError, match="at position"):
        nr.regex(pattern)


@pytest.mark.parametrize("stop", [-1, 100_000])
def test_a_stop_token_outside_the_vocabulary_is_refused(stop):
    with pytest.raises(ValueError, match="outside its vocabulary"):
        nr.regex("[a-z]{2}").compile(TOKENIZER, TOY_VOCAB, [stop])
