"""What fails ends its own request; what is shared is held by one thread; memory follows the call, not the past."""

from __future__ import annotations

import threading

import grammars
import pytest
import tiny

import ngram_ref as nr


class FailingStart(nr.NgramCorpus):
    """Cannot begin a prompt that starts with 3."""

    def start(self, prompt_ids):
        if prompt_ids[0] == 3:
            raise RuntimeError("no such text")
        return super().start(prompt_ids)


def test_a_prompt_that_cannot_begin_ends_alone():
    results = nr.generate(tiny.counting_model(), None, [[1], [3], [5]], max_new_tokens=3, corpus=FailingStart())
    assert [result.finish_reason for result in results] == ["length", "error", "length"]
    assert "no such text" in results[1].error
    assert results[2].token_ids == [6, 7, 8]


def test_a_grammar_walk_that_fails_ends_its_own_request(monkeypatch):
    model = tiny.build("llama", vocab_size=grammars.TOY_VOCAB, eos=list(grammars.EOS))
    grammar, prompt = nr.regex("[0-9]{3}"), grammars.encode("abc")
    compiled = grammar.compile(grammars.TOKENIZER, grammars.TOY_VOCAB, grammars.EOS)
    alone = nr.generate(model, grammars.TOKENIZER, [prompt] * 3, grammar=[grammar, None, grammar], max_new_tokens=6)
    start, started = type(compiled).start, []

    class Failing:
        """A state whose walk breaks off."""

        def __init__(self, state):
            self.state = state

        def __getattr__(self, name):
            return getattr(self.state, name)

        def fill_next_token_bitmask(self, *args):
            raise RuntimeError("the engine broke")

    def start_first_failing(self):
        started.append(self)
        return Failing(start(self)) if len(started) == 1 else start(self)

    monkeypatch.setattr(type(compiled), "start", start_first_failing)
    results = nr.generate(model, grammars.TOKENIZER, [prompt] * 3, grammar=[grammar, None, grammar], max_new_tokens=6)
    assert "the engine broke" in results[0].error
    assert [result.token_ids for result in results[1:]] == [result.token_ids for result in alone[1:]]


def test_a_corpus_in_use_is_refused_in_another_thread():
    corpus, model = nr.NgramCorpus(), tiny.counting_model()
    with corpus.exclusive():
        outcome: list[Exception] = []

        def decode():
            try:
                nr.generate(model, None, [1], max_new_tokens=2, corpus=corpus)
            except RuntimeError as error:
                outcome.append(error)

        thread = threading.Thread(target=decode)
        thread.start()
        thread.join()
    assert "NgramCorpus is in use" in str(outcome[0])
    assert nr.generate(model, None, [1], max_new_tokens=2, corpus=corpus)[0].token_ids == [2, 3]


def test_rows_are_allocated_once(monkeypatch):
    """Adding rows one by one would copy the others each time."""
    target = nr.Target(tiny.build("llama"))
    sizes = []
    reserve = type(target.cache).reserve

    def noting(self, num_rows, num_slots):
        reserve(self, num_rows, num_slots)
        sizes.append(self.num_rows)

    monkeypatch.setattr(type(target.cache), "reserve", noting)
    nr.generate(target, None, [[token] for token in range(1, 33)], max_new_tokens=1, max_batch_size=32)
    assert set(sizes) == {32}


def test_memory_of_a_long_text_is_given_back():
    model = tiny.build("llama", max_position_embeddings=4096)
    target = nr.Target(model)
    nr.generate(target, None, tiny.random_ids(3000), max_new_tokens=1)
    nr.generate(target, None, [[token] for token in range(1, 9)], max_new_tokens=4)
    assert target.cache.num_rows == 8
    assert target.cache.num_slots <= 128


def test_resized_embeddings_are_noticed():
    model = tiny.build("llama")
    nr.generate(model, None, [1, 2], max_new_tokens=2)
    model.resize_token_embeddings(tiny.VOCAB + 20)
    assert nr.generate(model, None, [1, tiny.VOCAB + 5], max_new_tokens=2)[0].error is None
    model.resize_token_embeddings(100)
    with pytest.raises(ValueError, match="prompt 0: token id 120"):
        nr.generate(model, None, [1, 120], max_new_tokens=2)
