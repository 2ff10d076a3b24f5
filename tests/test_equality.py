"""Greedy output is that of plain decoding, token for token, on models that differ in kind.

The oracle is `model.generate(do_sample=False)` of transformers, in float64; for the KV cache it is the cache of one
plain forward over the same text.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from statistics import mean, median

import pytest
import tiny
import torch

import ngram_ref as nr
from ngram_ref.engine import target as target_module

MAX_NEW = 24
PROMPTS = tiny.random_prompts(20)


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    with tiny.one_thread():
        yield


@cache
def plain_outputs(name: str) -> list[list[int]]:
    return [tiny.hf_greedy(tiny.shared(name), prompt, MAX_NEW) for prompt in PROMPTS]


@cache
def plain_cache(name: str, text: tuple[int, ...]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Keys and values of a plain forward over a text, per layer `[tokens, heads, head_dim]`."""
    outputs = tiny.shared(name)(input_ids=torch.tensor([text]), use_cache=True)
    cache = getattr(outputs, "cache", None) or outputs.past_key_values
    return [(layer.keys[0].transpose(0, 1), layer.values[0].transpose(0, 1)) for layer in cache.layers]


def true_texts(name: str) -> list[list[int]]:
    return [prompt + output for prompt, output in zip(PROMPTS, plain_outputs(name), strict=True)]


def knowing_corpus(name: str, n: int) -> nr.NgramCorpus:
    """A real corpus that has read every second text, and every text with a wrong word in the middle."""
    corpus = nr.NgramCorpus(nr.DraftConfig(num_draft_tokens=n))
    for index, text in enumerate(true_texts(name)):
        middle = len(text) - MAX_NEW // 2
        corpus.insert(text if index % 2 else [*text[:middle], tiny.VOCAB - 1, *text[middle + 1 :]])
    return corpus


def scripted(kind: type[tiny.Scripted]):
    return lambda name, n: kind(n, true_texts(name), seed=n)


CORPORA = {
    "corpus": knowing_corpus,
    "random": scripted(tiny.RandomTrees),
    "true": scripted(tiny.TrueTrees),
    "last": scripted(tiny.LastBranch),
}


@pytest.mark.parametrize("name", tiny.ARCHITECTURES)
def test_outputs_are_diverse(name):
    """Else the tests below prove little."""
    outputs = plain_outputs(name)
    assert len({token for output in outputs for token in output}) >= 40
    assert median(len(set(output)) for output in outputs) >= 8


@pytest.mark.parametrize("drafts", CORPORA)
@pytest.mark.parametrize("name", tiny.ARCHITECTURES)
def test_equal_to_plain_decoding(name, drafts):
    target = nr.Target(tiny.shared(name))
    for n, max_batch_size in ((1, 8), (2, 5), (8, 6), (16, 3), (16, 1)):
        corpus = CORPORA[drafts](name, n)
        results = nr.generate(
            target, None, PROMPTS, max_new_tokens=MAX_NEW, corpus=corpus, max_batch_size=max_batch_size
        )
        assert [result.token_ids for result in results] == plain_outputs(name), f"n={n}, batch {max_batch_size}"
        assert {result.finish_reason for result in results} == {"length"}
        if n == 16:  # drafts were accepted, so that there was something to go wrong
            assert mean(result.accept_length for result in results) > 1.5


@pytest.mark.parametrize("name", tiny.ARCHITECTURES)
def test_equal_where_texts_end_at_different_steps(name):
    """Mixed batches: some prompts stop at a token of theirs that is declared an end of sequence."""
    model = tiny.build(name, eos=sorted({output[5 + index] for index, output in enumerate(plain_outputs(name)[:6])}))
    expected = [tiny.hf_greedy(model, prompt, MAX_NEW) for prompt in PROMPTS]
    assert len({len(output) for output in expected}) > 3
    for n, max_batch_size, drafts in ((8, 4, "corpus"), (16, 7, "true"), (8, 20, "random")):
        results = nr.generate(
            model, None, PROMPTS, max_new_tokens=MAX_NEW, corpus=CORPORA[drafts](name, n), max_batch_size=max_batch_size
        )
        assert [result.token_ids for result in results] == expected, drafts


@pytest.mark.parametrize("name", ["llama", "gpt2", "gpt_bigcode-eager", "gemma2-eager", "deepseek_v3"])
def test_long_prompts_in_chunks(name, monkeypatch):
    """Prompts over several chunks and over the first bucket of 64 slots, one of them a chunk to the token."""
    prompts = [tiny.random_ids(size, seed=size) for size in (2, 8, 9, 17, 200)]
    expected = [tiny.hf_greedy(tiny.shared(name), prompt, MAX_NEW) for prompt in prompts]
    for chunk in (1, 7, 8, 64):
        monkeypatch.setattr(target_module, "PREFILL_CHUNK", chunk)
        results = nr.generate(tiny.shared(name), None, prompts, max_new_tokens=MAX_NEW, max_batch_size=3)
        assert [result.token_ids for result in results] == expected, chunk


@pytest.mark.parametrize("name", tiny.ARCHITECTURES)
def test_growing_across_buckets(name):
    """The cache grows while rows decode, and rows of one batch stand in different buckets."""
    prompts = [tiny.random_ids(size, seed=size) for size in (3, 55, 20)]
    expected = [tiny.hf_greedy(tiny.shared(name), prompt, 90) for prompt in prompts]
    texts = [prompt + output for prompt, output in zip(prompts, expected, strict=True)]
    results = nr.generate(tiny.build(name), None, prompts, max_new_tokens=90, corpus=tiny.TrueTrees(8, texts))
    assert [result.token_ids for result in results] == expected


class Watched(tiny.Scripted):
    """Compares every row of the cache with a plain forward whenever a draft is asked for."""

    def __init__(self, inner: tiny.Scripted, name: str, target: nr.Target) -> None:
        super().__init__(inner.config.num_draft_tokens, inner.texts)
        self.inner, self.name, self.target = inner, name, target
        self.compared = 0

    def draft(self, contexts, n=None, max_depth=None):
        for row, context in enumerate(contexts):
            assert_row_holds(self.target, self.name, row, context.ids[:-1])
            self.compared += 1
        return self.inner.draft(contexts, n, max_depth)


def assert_row_holds(target: nr.Target, name: str, row: int, ids: Sequence[int]) -> None:
    """Assert that a row of the cache begins with the keys and values of a text."""
    if not ids:
        return
    for index, plain in enumerate(plain_cache(name, tuple(ids))):
        for ours, theirs in zip(target.cache.layer(index), plain, strict=True):
            # Some models compute norms and rotations in float32 whatever their weights are.
            torch.testing.assert_close(ours[row, : len(ids)], theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", tiny.ARCHITECTURES)
def test_committed_cache_is_that_of_plain_decoding(name):
    """After every step, of every row, through acceptance, moved rows and rows that follow others."""
    target = nr.Target(tiny.shared(name))
    for kind in (tiny.RandomTrees, tiny.LastBranch):
        corpus = Watched(kind(8, true_texts(name)), name, target)
        nr.generate(target, None, PROMPTS[::3], max_new_tokens=10, corpus=corpus, max_batch_size=3)
        assert corpus.compared > 10


def test_cache_after_the_last_step():
    target = nr.Target(tiny.shared("llama"))
    texts = true_texts("llama")
    (result,) = nr.generate(target, None, PROMPTS[7], max_new_tokens=MAX_NEW, corpus=tiny.TrueTrees(16, texts))
    assert result.num_steps < MAX_NEW / 4
    assert_row_holds(target, "llama", 0, texts[7][:-1])


def test_one_draft_token_is_plain_decoding():
    results = nr.generate(
        tiny.shared("llama"), None, PROMPTS, max_new_tokens=MAX_NEW, draft=nr.DraftConfig(num_draft_tokens=1)
    )
    assert [result.num_steps for result in results] == [MAX_NEW] * len(PROMPTS)
    assert {result.num_proposed_drafts for result in results} == {0}


def test_true_trees_are_accepted_as_a_whole():
    """Seven depths with two siblings each, and the bonus: eight tokens a step."""
    texts = true_texts("llama")
    results = nr.generate(tiny.shared("llama"), None, PROMPTS, max_new_tokens=MAX_NEW, corpus=tiny.TrueTrees(16, texts))
    assert {result.accept_length for result in results} == {8.0}
