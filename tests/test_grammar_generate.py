"""Decoding under a grammar: the tokens of plain masked decoding, whatever is drafted, and ends in all their forms.

The oracle decodes one token at a time: a plain forward over the whole text, a mask by xgrammar's own calls, argmax.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any

import grammars
import jsonschema
import numpy as np
import pytest
import tiny
import torch
import xgrammar
from grammars import BEYOND, EOS, GRAMMARS, IN_LAST_WORD, NO_TEXT, TOKENIZER, TOY_VOCAB, Listed, encode, hand_made
from transformers import PreTrainedModel

import ngram_ref as nr
from ngram_ref.engine import generate as generate_module
from ngram_ref.engine import masking

MAX_NEW = 28
every_grammar = pytest.mark.parametrize("name", GRAMMARS)


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    with tiny.one_thread():
        yield


# The oracle


def masked_greedy(
    model: PreTrainedModel, matcher: Any, prompt: Sequence[int], max_new_tokens: int
) -> tuple[list[int], str]:
    """Decode plainly under a grammar: new ids, and how it ended."""
    new: list[int] = []
    while len(new) < max_new_tokens:
        logits = model(input_ids=torch.tensor([[*prompt, *new]])).logits[0, -1]
        allowed = torch.from_numpy(grammars.allowed_by(matcher, (len(logits) + 31) // 32)[: len(logits)])
        if not allowed.any():
            return new, "dead_end"
        new.append(int(logits.masked_fill(~allowed, float("-inf")).argmax()))
        assert matcher.accept_token(new[-1])
        if matcher.is_terminated():
            return new, "eos"
    return new, "length"


def free_greedy(model: PreTrainedModel, ids: Sequence[int], count: int) -> list[int]:
    """Decode plainly without a grammar, beyond any end."""
    new: list[int] = []
    for _ in range(count):
        new.append(int(model(input_ids=torch.tensor([[*ids, *new]])).logits[0, -1].argmax()))
    return new


MODELS = {"llama": {}, "gpt2": {"n_positions": tiny.CONTEXT}}


@cache
def model_named(name: str) -> PreTrainedModel:
    return grammars.toy_model(name, **MODELS[name])


@cache
def target_named(name: str) -> nr.Target:
    return nr.Target(model_named(name))


PROMPTS = [
    encode("Name: "),
    [60],
    [2, 60, 61, grammars.TOY_SIZE - 1],  # ends of sequence are tokens like any other in a prompt
    encode('{"a": [1, 20, true]}\n\n{"a'),
    [60, 200, 90, 61, 180, 77],
]


@cache
def plain(model: str, name: str) -> list[tuple[list[int], str]]:
    compiled = grammars.toy_compiled(name)
    return [masked_greedy(model_named(model), xgrammar.GrammarMatcher(compiled), prompt, MAX_NEW) for prompt in PROMPTS]


@cache
def true_texts(model: str, name: str) -> list[list[int]]:
    """Prompts with their true continuations; behind an end what the model would go on to say."""
    return [
        text + free_greedy(model_named(model), text, 5)
        for text in (prompt + new for prompt, (new, _) in zip(PROMPTS, plain(model, name), strict=True))
    ]


# Drafts


def knowing_corpus(n: int, texts: Sequence[Sequence[int]]) -> nr.NgramCorpus:
    """A real corpus that has read every text, some of them with a wrong token in the middle."""
    corpus = nr.NgramCorpus(nr.DraftConfig(num_draft_tokens=n))
    for index, text in enumerate(texts):
        middle = len(text) - MAX_NEW // 2
        corpus.insert([*text[:middle], 99, *text[middle + 1 :]] if index % 2 else text)
    return corpus


class Adversary(tiny.Scripted):
    """Along the true path, every trap at every node, each with true tokens behind it; ends too have drafts behind."""

    def grow(self, tree: tiny.Grown, truth: list[int]) -> None:
        path: list[int | None] = [0]
        for token in truth[: max(1, tree.room // 3)]:
            path.append(tree.add(path[-1], token))
        while tree.room and truth:
            before = tree.room
            depth = int(self.rng.integers(len(path)))
            parent = path[depth]
            for token in (int(self.rng.choice([*EOS, *NO_TEXT, *BEYOND, *IN_LAST_WORD])), *truth[depth : depth + 3]):
                parent = tree.add(parent, token)
            if tree.room == before and self.rng.random() < 0.1:
                break  # no room below the depth that is left


DRAFTS: dict[str, Callable[[int, list[list[int]]], nr.NgramCorpus]] = {
    "corpus": knowing_corpus,
    "random": lambda n, texts: tiny.RandomTrees(n, texts, seed=n, vocab=TOY_VOCAB + 60),
    "true": lambda n, texts: tiny.TrueTrees(n, texts, seed=n, vocab=TOY_VOCAB),
    "last": lambda n, texts: tiny.LastBranch(n, texts, seed=n, vocab=TOY_VOCAB),
    "adversary": lambda n, texts: Adversary(n, texts, seed=n),
}


def run(model: str, name: str, corpus: nr.NgramCorpus, **options: Any) -> list[nr.Result]:
    options = {"max_new_tokens": MAX_NEW, "grammar": GRAMMARS[name].grammar, **options}
    return nr.generate(target_named(model), TOKENIZER, PROMPTS, corpus=corpus, **options)


def test_the_oracle_gives_texts_of_many_kinds():
    """Else the tests below prove little."""
    outputs = [output for model in MODELS for name in GRAMMARS for output in plain(model, name)]
    assert Counter(reason for _, reason in outputs).keys() == {"eos", "length"}
    assert len({len(ids) for ids, reason in outputs if reason == "eos"}) >= 10
    assert {ids[-1] for ids, reason in outputs if reason == "eos"} == {*EOS}
    assert len({tuple(ids) for ids, _ in outputs}) >= 50


@pytest.mark.parametrize("drafts", DRAFTS)
@every_grammar
def test_equal_to_plain_masked_decoding(name, drafts):
    for model in MODELS:
        correct = 0
        for n, max_batch_size in ((1, 8), (3, 2), (8, 5), (24, 1), (24, 3)):
            results = run(model, name, DRAFTS[drafts](n, true_texts(model, name)), max_batch_size=max_batch_size)
            found = [(result.token_ids, result.finish_reason) for result in results]
            assert found == plain(model, name), (model, n)
            correct += sum(result.num_correct_drafts for result in results)
        assert correct >= 20  # trees were accepted, not just roots


@every_grammar
def test_finished_texts_are_valid(name):
    """By another authority than the engine."""
    for model in MODELS:
        results = run(model, name, knowing_corpus(12, true_texts(model, name)))
        for result in results:
            assert result.finish_reason in {"eos", "length"}
            assert result.finish_reason == "length" or GRAMMARS[name].is_valid(result.text), result.text


class Chain(tiny.Scripted):
    """One true chain, `first` drafts long in the first step and as long as it can be from then on."""

    first = 1000

    def grow(self, tree: tiny.Grown, truth: list[int]) -> None:
        parent: int | None = 0
        for token in truth[: self.first]:
            parent = tree.add(parent, token)
        self.first = 1000


@pytest.mark.parametrize("name", ["date", "numbers", "enum", "arithmetic"])
def test_the_grammar_may_end_at_any_place_of_an_accepted_run(name):
    """As a draft in front of others that the model would accept, as the last one, as the bonus, and in a later step."""
    ended = 0
    for prompt, text, (new, reason) in zip(PROMPTS, true_texts("llama", name), plain("llama", name), strict=True):
        if reason != "eos":
            continue
        ended += 1
        for first in range(len(new) + 5):
            corpus = Chain(len(new) + 6, [text])
            corpus.first = first
            (result,) = nr.generate(
                target_named("llama"),
                TOKENIZER,
                prompt,
                grammar=GRAMMARS[name].grammar,
                corpus=corpus,
                max_new_tokens=MAX_NEW + 10,
                record_steps=True,
            )
            assert (result.token_ids, result.finish_reason) == (new, "eos"), first
            assert result.num_steps == (1 if first + 1 >= len(new) else 2), first
            expected = min(first, len(new)) + max(0, len(new) - first - 1)
            assert result.num_correct_drafts == expected, first
            if first > len(new):  # the end had drafts behind it, and the model took them
                assert len(result.steps[0].accepted) > len(new) + 1
    assert ended


def test_nothing_behind_the_end_is_emitted_counted_or_learned():
    """The model would accept what is drafted behind the end, since its row is unmasked."""

    class Learning(Chain):
        def learn(self) -> None:
            nr.NgramCorpus.learn(self)

    index = next(index for index, (_, reason) in enumerate(plain("llama", "date")) if reason == "eos")
    new, text = plain("llama", "date")[index][0], true_texts("llama", "date")[index]
    beyond = text[len(PROMPTS[index]) + len(new) :]
    corpus = Learning(24, [text])
    options = {"grammar": GRAMMARS["date"].grammar, "corpus": corpus, "record_steps": True}
    (result,) = nr.generate(target_named("llama"), TOKENIZER, PROMPTS[index], **options)
    (step,) = result.steps
    assert [step.tokens[node] for node in step.accepted[1:]] == new + beyond
    assert (result.token_ids, list(step.emitted)) == (new, new)
    assert result.num_correct_drafts == len(new)
    assert corpus.trie.find(new) is not None
    assert corpus.trie.find([new[-1], beyond[0]]) is None


def test_the_length_may_end_first():
    for count in (0, 1, 3):
        results = run("llama", "person", knowing_corpus(12, true_texts("llama", "person")), max_new_tokens=count)
        for result, (new, _) in zip(results, plain("llama", "person"), strict=True):
            assert (result.token_ids, result.finish_reason) == (new[:count], "length")


def test_a_stop_string_ends_a_text_within_its_grammar():
    text = GRAMMARS["date"].texts[0]
    grammar = nr.regex(text)
    (result,) = nr.generate(target_named("llama"), TOKENIZER, [60], grammar=grammar, stop="-07")
    assert (result.text, result.finish_reason) == ("1969", "stop")


# States made by hand, over a model that counts: behind token i it says i + 1


@pytest.fixture(scope="module")
def counting() -> nr.Target:
    return nr.Target(tiny.counting_model(eos=[100]))


COUNTING_WIDTH = (tiny.VOCAB + 31) // 32


def listing(texts: Sequence[Sequence[int]], ending: Sequence[Sequence[int]] = ()) -> Any:
    return hand_made(lambda: Listed(texts, COUNTING_WIDTH, ending), tiny.VOCAB, [100])


class Knowing(tiny.TrueTrees):
    """Drafts what the counting model would say next, and learns like any corpus."""

    def truth(self, ids: Sequence[int]) -> list[int]:
        return [(ids[-1] + step) % tiny.VOCAB for step in range(1, 41)]

    def learn(self) -> None:
        nr.NgramCorpus.learn(self)


@pytest.mark.parametrize("n", [1, 2, 5, 7, 24])
def test_a_grammar_that_ends_without_a_stop_token(counting, n):
    corpus = Knowing(n)
    (result,) = nr.generate(counting, None, [9], grammar=listing([], [[10, 11, 12]]), corpus=corpus)
    assert (result.token_ids, result.finish_reason) == ([10, 11, 12], "grammar")
    assert result.num_correct_drafts <= 3
    assert corpus.trie.find([10, 11, 12]) is not None
    assert corpus.trie.find([12, 13]) is None


@pytest.mark.parametrize("n", [1, 2, 5, 7, 24])
def test_a_dead_end(counting, n):
    """There is no token to emit, and that is no error."""
    corpus = Knowing(n)
    (result,) = nr.generate(counting, None, [9], grammar=listing([[10, 11, 12]]), corpus=corpus)
    assert (result.token_ids, result.finish_reason, result.error) == ([10, 11, 12], "dead_end", None)
    assert corpus.trie.find([12, 13]) is None


def test_a_dead_end_at_once(counting):
    (result,) = nr.generate(counting, None, [9], grammar=listing([]), corpus=Knowing(8))
    assert (result.token_ids, result.finish_reason, result.num_steps) == ([], "dead_end", 1)


def test_a_dead_end_of_xgrammar():
    """A byte that no token spells."""
    grammar = nr.regex("ab\x04")
    for corpus in (None, Chain(8, [[60, *encode("ab"), 61, 62]])):
        (result,) = nr.generate(target_named("llama"), TOKENIZER, [60], grammar=grammar, corpus=corpus)
        assert (result.text, result.finish_reason) == ("ab", "dead_end")


def test_a_grammar_that_is_over_before_it_begins(counting):
    """It allows no token, so none may come, and none is needed."""
    (result,) = nr.generate(counting, None, [9], grammar=listing([], [[]]))
    assert (result.token_ids, result.finish_reason) == ([], "grammar")


def test_an_end_with_the_last_token_allowed(counting):
    for grammar, reason in (
        (listing([], [[10, 11, 12]]), "grammar"),
        (listing([[10, 11, 12]]), "length"),
        (listing([], [[10, 11, 100]]), "eos"),
    ):
        for n in (1, 12):
            results = nr.generate(counting, None, [9], grammar=grammar, corpus=Knowing(n), max_new_tokens=3)
            assert results[0].finish_reason == reason
            assert len(results[0].token_ids) == 3


def test_a_forced_detour(counting):
    """The model's own choice is forbidden: the best of what is allowed, and on from there."""
    grammar = listing([], [[10, 60, 61, 20, 100]])
    for n in (1, 12):
        (result,) = nr.generate(counting, None, [9], grammar=grammar, corpus=Knowing(n))
        assert (result.token_ids, result.finish_reason) == ([10, 60, 61, 20, 100], "eos")


# Batches


MIXED = [("date", 0), (None, 0), ("emoji", 0), ("json", 4), (None, 3), ("enum", 2), ("person", 1), ("arithmetic", 3)]
MIXED += [("numbers", 2)]


def mixed_outputs() -> list[list[int]]:
    outputs = []
    for name, index in MIXED:
        if name is None:
            new = free_greedy(model_named("llama"), PROMPTS[index], MAX_NEW)
            stops = [place for place, token in enumerate(new) if token in EOS]
            outputs.append(new[: stops[0] + 1] if stops else new)
        else:
            outputs.append(plain("llama", name)[index][0])
    return outputs


@pytest.mark.parametrize("n", [1, 12])
@pytest.mark.parametrize("max_batch_size", [1, 2, 4, 9])
def test_requests_with_and_without_grammar_join_and_leave(n, max_batch_size):
    outputs = mixed_outputs()
    assert len({len(output) for output in outputs}) >= 5
    prompts = [PROMPTS[index] for _, index in MIXED]
    results = nr.generate(
        target_named("llama"),
        TOKENIZER,
        prompts,
        grammar=[None if name is None else GRAMMARS[name].grammar for name, _ in MIXED],
        corpus=knowing_corpus(n, [[*prompt, *new] for prompt, new in zip(prompts, outputs, strict=True)]),
        max_new_tokens=MAX_NEW,
        max_batch_size=max_batch_size,
    )
    assert [result.token_ids for result in results] == outputs


def test_a_batch_without_grammar_is_never_walked(monkeypatch):
    """Nor does a request with one make later steps walk, once it is gone."""
    walks: list[int] = []
    fill = masking.fill_tree_bitmask_native
    monkeypatch.setattr(
        masking,
        "fill_tree_bitmask_native",
        lambda states, *rest: walks.append(sum(state is not None for state in states)) or fill(states, *rest),
    )
    target, draft = target_named("llama"), nr.DraftConfig(num_draft_tokens=1)
    for grammar in (None, [None, None]):
        nr.generate(target, TOKENIZER, PROMPTS[:2], grammar=grammar, max_new_tokens=5)
    assert walks == []
    many = [GRAMMARS["date"].grammar, None, nr.regex("ab")]
    options = {"draft": draft, "max_new_tokens": 25, "max_batch_size": 2}
    results = nr.generate(target, TOKENIZER, [[60], [61, 62], [63]], grammar=many, **options)
    num_steps = [result.num_steps for result in results]
    assert walks == [1] * (num_steps[0] + num_steps[2])
    assert sum(num_steps[::2]) < num_steps[1] == 25


def test_what_a_schema_leaves_unenforced_is_listed():
    gaps = nr.json_schema({"type": "array", "items": {"enum": [1, 2]}, "uniqueItems": True}, allow_unenforced=True)
    whole = GRAMMARS["numbers"].grammar
    results = nr.generate(
        target_named("llama"), TOKENIZER, [[60], [61], [62]], grammar=[gaps, None, whole], max_new_tokens=2
    )
    assert [gap.path for gap in gaps.unenforced] == ["#/uniqueItems"]
    assert [result.unenforced for result in results] == [gaps.unenforced, (), ()]


# A wrong mask is found


@pytest.mark.parametrize("step", [0, 2])
def test_a_token_that_the_grammar_refuses_ends_its_row_in_an_error_and_no_other(monkeypatch, step):
    """Row 1's mask is lost in one step: it says what it likes, and is caught."""
    fill, steps = masking.fill_bitmask, iter(range(1000))

    def poisoned(kept: Any, rows: Any, vocab_size: int) -> Any:
        bitmask = fill(kept, rows, vocab_size)
        if next(steps) == step:
            bitmask.view(len(rows), -1, bitmask.shape[1])[1] = -1
        return bitmask

    monkeypatch.setattr(generate_module, "fill_bitmask", poisoned)
    results = run("llama", "person", tiny.TrueTrees(1, vocab=TOY_VOCAB))
    assert [result.finish_reason == "error" for result in results] == [False, True, False, False, False]
    assert results[1].token_ids == plain("llama", "person")[1][0][:step]
    assert "RuntimeError: token" in results[1].error
    assert "the grammar refuses" in results[1].error
    for index in (0, 2, 3, 4):
        assert (results[index].token_ids, results[index].finish_reason) == plain("llama", "person")[index]


# The tree that is kept for the walk


def row(seq_len: int, state: Any = None) -> Any:
    return SimpleNamespace(seq_len=seq_len, state=state, job=SimpleNamespace(index=0))


TREES = nr.DraftTree.from_parents([[1, 60], [2, 61]], [[-1, 0], [-1, 0]])


def test_a_tree_is_kept_if_and_only_if_a_row_has_a_grammar():
    with_grammar, without = [row(5), row(6, Listed([[60]], 1))], [row(5), row(6)]
    assert masking.keep_grammar_tree(TREES, without) is None
    assert masking.fill_bitmask(None, without, 298) is None
    kept = masking.keep_grammar_tree(TREES, with_grammar)
    assert (kept.tree, kept.stamps) == (TREES, ((0, 5), (0, 6)))
    assert not masking.has_grammar([])


def test_a_bitmask_has_a_row_per_node_and_a_bit_per_logit():
    state = GRAMMARS["date"].grammar.compile(TOKENIZER, TOY_VOCAB, EOS).start()
    rows = [row(5), row(6, state)]
    bitmask = masking.fill_bitmask(masking.keep_grammar_tree(TREES, rows), rows, TOY_VOCAB)
    assert (bitmask.dtype, bitmask.shape, bitmask.is_contiguous()) == (torch.int32, (4, grammars.TOY_WIDTH), True)
    assert (bitmask[:2] == -1).all()
    expected = grammars.allowed_by(state, grammars.TOY_WIDTH)
    assert (np.unpackbits(bitmask[2].numpy().view(np.uint8), bitorder="little") == expected).all()


@pytest.mark.parametrize(
    ("kept_for", "rows_now", "message"),
    [
        ([row(5), row(6, 1)], [row(5), row(7, 1)], "stale"),
        ([row(5), row(6, 1)], [row(5, 1)], "stale"),
        ([row(5), row(6, 1)], [row(6, 1), row(5)], "stale"),
        ([row(5), row(6, 1)], [row(5), row(6)], "if, and only if"),
        ([row(5), row(6)], [row(5), row(6, 1)], "if, and only if"),
    ],
    ids=["next step", "a row left", "rows changed places", "superfluous", "missing"],
)
def test_a_tree_of_another_step_is_refused(kept_for, rows_now, message):
    with pytest.raises(RuntimeError, match=message):
        masking.fill_bitmask(masking.keep_grammar_tree(TREES, kept_for), rows_now, TOY_VOCAB)


def keeping_the_last(monkeypatch) -> None:
    """Make each step keep the tree of the step before; the first one its own."""
    keep, kept = masking.keep_grammar_tree, []

    def late(tree: nr.DraftTree, rows: Any) -> Any:
        kept.append(keep(tree, rows))
        return kept[max(0, len(kept) - 2)]

    monkeypatch.setattr(generate_module, "keep_grammar_tree", late)


def test_a_stale_tree_ends_the_rows_in_an_error(monkeypatch):
    keeping_the_last(monkeypatch)
    results = run("llama", "person", tiny.TrueTrees(4, vocab=TOY_VOCAB))
    for result, (new, _) in zip(results, plain("llama", "person"), strict=True):
        assert result.finish_reason == "error"
        assert "stale" in result.error
        assert result.token_ids == new[: len(result.token_ids)]


def test_a_tree_of_another_request_is_stale_too(monkeypatch):
    """The second request takes the first one's row, with as many tokens before it."""
    keeping_the_last(monkeypatch)
    target = target_named("llama")
    grammar = nr.regex("[0-9]")
    results = nr.generate(target, TOKENIZER, [[60, 61], [62, 63]], grammar=grammar, max_new_tokens=1, max_batch_size=1)
    assert [result.finish_reason for result in results] == ["length", "error"]
    assert "stale" in results[1].error


@pytest.mark.parametrize("has", [True, False], ids=["missing", "superfluous"])
def test_a_missing_or_superfluous_tree_ends_the_rows_in_an_error(monkeypatch, has):
    wrong = None if has else masking.GrammarTree(TREES, (0,))
    monkeypatch.setattr(generate_module, "keep_grammar_tree", lambda tree, rows: wrong)
    grammar = GRAMMARS["date"].grammar if has else None
    for result in nr.generate(target_named("llama"), TOKENIZER, [[60], [61]], grammar=grammar, max_new_tokens=5):
        assert (result.token_ids, result.finish_reason) == ([], "error")
        assert "RuntimeError: a grammar tree must be kept" in result.error


# The default model

SPOKEN = {"date": "The moon landing was on", "numbers": "Four numbers:", "person": "A user as JSON:"}
PROMPT_OF = {name: SPOKEN.get(name, "Write one:") for name in GRAMMARS}


@pytest.mark.model
@pytest.mark.parametrize("name", PROMPT_OF)
def test_equal_to_plain_masked_decoding_of_the_default_model(default_model, name):
    model, tokenizer = default_model
    compiler = grammars.byte_level_compiler(tokenizer, model.config.vocab_size, [2])
    prompt = tokenizer(PROMPT_OF[name]).input_ids
    matcher = xgrammar.GrammarMatcher(GRAMMARS[name].compile(compiler))
    with torch.no_grad():
        new, reason = masked_greedy(model, matcher, prompt, 20)
    true, rng = tiny.TrueTrees(12, [prompt + new], vocab=1000), tiny.RandomTrees(12, vocab=1000)
    for corpus in (None, true, rng, Adversary(24, [prompt + new])):
        (result,) = nr.generate(
            model, tokenizer, prompt, grammar=GRAMMARS[name].grammar, max_new_tokens=20, corpus=corpus
        )
        assert (result.token_ids, result.finish_reason) == (new, reason)
        assert result.text == tokenizer.decode(new, skip_special_tokens=True)
    assert reason == "length" or GRAMMARS[name].is_valid(result.text)


@pytest.mark.model
def test_many_outputs_of_the_default_model_parse(default_model):
    """Sixteen prompts side by side: JSON by a schema, judged by another library, and dates, judged by `re`."""
    model, tokenizer = default_model
    schema = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 20},
            "kind": {"enum": ["city", "river", "person"]},
            "size": {"type": "integer", "minimum": 0, "maximum": 9},
        },
        "required": ["name", "kind", "size"],
    }
    things = ("Berlin", "Rhine", "Ada", "Paris", "Nile", "Bob", "Rome", "Elbe")
    prompts = [f"{thing} as JSON: " for thing in things] + [f"{thing} was first seen on" for thing in things]
    date = nr.regex("[0-9]{4}-[0-9]{2}-[0-9]{2}")
    chosen = [nr.json_schema(schema)] * len(things) + [date] * len(things)
    results = nr.generate(model, tokenizer, prompts, grammar=chosen, max_new_tokens=48)
    assert {result.finish_reason for result in results} == {"eos"}
    for result in results[: len(things)]:
        jsonschema.validate(json.loads(result.text), schema)
    for result in results[len(things) :]:
        assert re.fullmatch("[0-9]{4}-[0-9]{2}-[0-9]{2}", result.text)
