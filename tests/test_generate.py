"""`generate` as its users meet it: batches, ends of texts, prompts of every form, failures.

Most tests use a model that counts (behind token i comes i + 1), so that what it has to say is known in advance.
"""

from __future__ import annotations

import copy
import gc
import io
import threading
import weakref
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import tiny
import torch
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

import ngram_ref as nr
from ngram_ref.engine.stopping import StopRules
from ngram_ref.engine.target import as_target

COUNT = list(range(tiny.VOCAB)) * 2


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    with tiny.one_thread():
        yield


@pytest.fixture(scope="module")
def counting() -> nr.Target:
    return nr.Target(tiny.counting_model())


def counted(prompt: Sequence[int], count: int) -> list[int]:
    return [(prompt[-1] + step) % tiny.VOCAB for step in range(1, count + 1)]


class Knowing(tiny.TrueTrees):
    """Drafts the true continuation of the counting model, whatever the prompt, and learns like any corpus."""

    def truth(self, ids: Sequence[int]) -> list[int]:
        return COUNT[ids[-1] + 1 :][:40]

    def learn(self) -> None:
        nr.NgramCorpus.learn(self)


def test_the_counting_model_counts(counting):
    assert tiny.hf_greedy(counting.model, [7, 3], 10) == counted([3], 10)


# Batches

EOS = [3, 20, 77]


@pytest.fixture(scope="module")
def ending_model():
    return tiny.build("llama", eos=EOS)


@pytest.fixture(scope="module")
def seven_prompts(ending_model) -> list[list[int]]:
    """Prompts whose texts have seven different lengths."""
    chosen: dict[int, list[int]] = {}
    for seed in range(200):
        prompt = tiny.random_ids(1 + seed % 9, seed)
        length = len(tiny.hf_greedy(ending_model, prompt, 40))
        if length > 1:
            chosen.setdefault(length, prompt)
        if len(chosen) == 7:
            break
    return list(chosen.values())


@pytest.mark.parametrize("n", [1, 8])
@pytest.mark.parametrize("max_batch_size", [1, 2, 3])
def test_results_stand_in_the_order_of_prompts(ending_model, seven_prompts, max_batch_size, n):
    alone = [tiny.hf_greedy(ending_model, prompt, 40) for prompt in seven_prompts]
    assert len({len(output) for output in alone}) == 7
    texts = [prompt + output for prompt, output in zip(seven_prompts, alone, strict=True)]
    results = nr.generate(
        ending_model,
        None,
        seven_prompts,
        max_new_tokens=40,
        corpus=tiny.RandomTrees(n, texts),
        max_batch_size=max_batch_size,
    )
    assert [result.prompt_token_ids for result in results] == seven_prompts
    assert [result.token_ids for result in results] == alone
    assert {result.finish_reason for result in results} <= {"eos", "length"}


class Seating(nr.NgramCorpus):
    """Notes who decodes in each step, by the first id of the prompt."""

    def __init__(self) -> None:
        super().__init__(nr.DraftConfig(num_draft_tokens=1))
        self.steps: list[set[int]] = []

    def draft(self, contexts, n=None, max_depth=None):
        self.steps.append({context.ids[0] for context in contexts})
        return super().draft(contexts, n, max_depth)


def test_a_free_row_is_taken_at_once():
    eos = 100
    lengths = [9, 2, 5, 1, 7, 3, 1]
    prompts = [[index, eos - length] for index, length in enumerate(lengths)]
    corpus = Seating()
    nr.generate(tiny.counting_model(eos=eos), None, prompts, corpus=corpus, max_batch_size=3)
    waiting, left, expected = list(range(7)), {}, []
    while waiting or left:
        while waiting and len(left) < 3:
            index = waiting.pop(0)
            left[index] = lengths[index]
        expected.append(set(left))
        left = {index: steps - 1 for index, steps in left.items() if steps > 1}
    assert corpus.steps == expected


# End-of-sequence ids


@pytest.mark.parametrize("eos", [13, [13], [13, 40], [40, 13], (13, 90)])
def test_every_end_of_sequence_id_stops_and_is_included(eos):
    model = tiny.counting_model()
    model.generation_config.eos_token_id = eos
    for prompt, expected in (([9], [10, 11, 12, 13]), ([12], [13]), ([13], counted([13], 10))):
        (result,) = nr.generate(model, None, prompt, max_new_tokens=10)
        assert result.token_ids == expected
        assert result.finish_reason == ("eos" if expected[-1] == 13 else "length")


def test_the_end_of_sequence_cuts_an_accepted_run():
    """The run goes on behind it; nothing of that is emitted, counted or learned."""
    model, corpus = tiny.counting_model(eos=13), Knowing(16)
    (result,) = nr.generate(model, None, [9], corpus=corpus, record_steps=True)
    assert result.token_ids == [10, 11, 12, 13]
    assert result.finish_reason == "eos"
    assert len(result.steps[0].accepted) == 8  # as the model accepted them
    assert result.steps[0].emitted == (10, 11, 12, 13)
    assert (result.num_steps, result.num_correct_drafts) == (1, 4)
    assert corpus.trie.find([10, 11, 12, 13]) is not None
    assert corpus.trie.find([14]) is None


def test_an_end_of_sequence_id_in_the_prompt_is_a_token_like_any_other():
    model = tiny.counting_model(eos=13)
    (result,) = nr.generate(model, None, [13, 20, 13, 20], max_new_tokens=6)
    assert result.token_ids == counted([20], 6)
    corpus = nr.NgramCorpus()
    nr.generate(model, None, [5, 13, 50, 13], max_new_tokens=2, corpus=corpus)
    assert corpus.trie.find([5, 13, 50, 13]) is not None  # the prompt is learned across it


def test_end_of_sequence_by_the_last_token_allowed():
    (result,) = nr.generate(tiny.counting_model(eos=13), None, [9], max_new_tokens=4)
    assert result.finish_reason == "eos"


# Stop strings

ALPHABET = ["a", "b", "ab", "ba", "", " ", "é", "😀", "a😀", "bé "]


def split_pieces(text: str, rng: np.random.Generator) -> dict[int, bytes | None]:
    """Cut a text into byte pieces for the ids 0, 1, 2, …; some are empty, some end inside a character."""
    data, pieces = text.encode(), {}
    for token in range(tiny.VOCAB):
        size = int(rng.choice([0, 1, 1, 2, 3, 5]))
        pieces[token], data = data[:size], data[size:]
    return pieces


def first_stop(tokenizer, token_ids: Sequence[int], stops: Sequence[str]) -> tuple[int, str] | None:
    """Brute force: the shortest prefix of the tokens whose text holds a stop string, and the text before that."""
    for size in range(1, len(token_ids) + 1):
        text = tokenizer.decode(token_ids[:size], skip_special_tokens=True)
        starts = [text.find(stop) for stop in stops if stop in text]
        if starts:
            return size, text[: min(starts)]
    return None


def assert_stops(result: nr.Result, tokenizer, plain: Sequence[int], stops: Sequence[str]) -> None:
    found = first_stop(tokenizer, plain, stops)
    size, text = found or (len(plain), tokenizer.decode(plain, skip_special_tokens=True))
    assert result.token_ids == list(plain[:size]), stops
    assert result.text == text, stops
    assert result.finish_reason == ("stop" if found else "length"), stops


@pytest.mark.parametrize("n", [1, 3, 16])
def test_stop_strings_against_brute_force(counting, n):
    """Across borders of tokens, inside accepted runs, with characters of several tokens and tokens without text."""
    rng = np.random.default_rng(n)
    text = "".join(rng.choice(ALPHABET, size=300))
    tokenizer = tiny.Pieces(split_pieces(text, rng))
    plain = counted([0], 60)
    whole = tokenizer.decode(plain, skip_special_tokens=True).rstrip("�")
    outcomes = set()
    for _ in range(60):
        stops = []
        for _ in range(int(rng.integers(1, 4))):
            start, size = int(rng.integers(0, len(whole))), int(rng.integers(1, 9))
            stops.append(whole[start : start + size] if rng.random() < 0.8 else "zz")
        stop = stops[0] if len(stops) == 1 else stops
        (result,) = nr.generate(counting, tokenizer, [0], max_new_tokens=60, stop=stop, corpus=Knowing(n))
        assert_stops(result, tokenizer, plain, stops)
        outcomes.add(result.finish_reason)
    assert outcomes == {"stop", "length"}


def letters() -> tiny.Pieces:
    """Ids 0, 1, 2, … spell "a", "b", "c", …, and again from the start."""
    return tiny.Pieces({token: bytes([97 + token % 26]) for token in range(tiny.VOCAB)})


def test_a_stop_string_completed_by_the_last_token_allowed(counting):
    for n in (1, 16):
        (result,) = nr.generate(counting, letters(), [0], max_new_tokens=4, stop="de", corpus=Knowing(n))
        assert (result.text, result.token_ids, result.finish_reason) == ("bc", [1, 2, 3, 4], "stop")


def test_the_prompt_completes_no_stop_string(counting):
    (result,) = nr.generate(counting, letters(), [0, 1], max_new_tokens=4, stop=["ab", "bc"])
    assert (result.text, result.finish_reason) == ("cdef", "length")


def test_a_special_token_is_no_text(counting):
    tokenizer = tiny.Pieces({**letters().pieces, 3: None})
    (result,) = nr.generate(counting, tokenizer, [0], max_new_tokens=8, stop="ce")
    assert (result.text, result.token_ids) == ("b", [1, 2, 3, 4])


def test_long_stop_strings_behind_many_tokens_without_text(counting):
    pieces = dict.fromkeys(range(tiny.VOCAB), b"") | {1: b"begin", 2: b" and ", 100: b"end"}
    (result,) = nr.generate(counting, tiny.Pieces(pieces), [0], max_new_tokens=120, stop="begin and end")
    assert (result.text, result.token_ids[-1], result.finish_reason) == ("", 100, "stop")


def byte_fallback_tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer of Llama 2's kind: what is no word is spelled in bytes, and one bad byte garbles its whole run."""
    vocab = {f"<0x{byte:02X}>": byte for byte in range(256)} | {"▁word": 256, "a": 257}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


@pytest.mark.parametrize("text", ["a👍a👍a👍a👎a", "👍👍👍👍👍👎👍", "word" * 3 + "日本語日本語日本語👎日本"])
def test_stop_strings_in_text_spelled_in_bytes(text):
    tokenizer = byte_fallback_tokenizer()
    token_ids = list(text.encode())
    assert tokenizer.decode(token_ids) == text
    for stop in ("👎", "👍👎", "語👎", "a👎a"):
        rules = StopRules(1000, None, frozenset(), (stop,), tokenizer)
        found = first_stop(tokenizer, token_ids, [stop])
        stopped = (size for size in range(1, len(token_ids) + 1) if rules.finish_at(token_ids[:size]) == "stop")
        assert next(stopped, None) == (found[0] if found else None), stop


# Lengths


def test_zero_and_one_new_tokens(counting):
    for prompts in ([7], [[7], [8, 9]]):
        for result in nr.generate(counting, letters(), prompts, max_new_tokens=0):
            assert (result.token_ids, result.text, result.finish_reason) == ([], "", "length")
            assert (result.num_steps, result.accept_length, result.accept_rate) == (0, 0.0, 0.0)
    (result,) = nr.generate(counting, None, [7], max_new_tokens=1, corpus=Knowing(16))
    assert (result.token_ids, result.num_steps, result.num_proposed_drafts) == ([8], 1, 0)


@pytest.mark.parametrize("name", ["gpt2", "opt", "llama"])
def test_the_context_ends(name):
    """Learned positions have no row behind the context: neither drafts nor pads may reach there."""
    model = tiny.build(name, **({"n_positions": 64} if name == "gpt2" else {"max_position_embeddings": 64}))
    prompts = [tiny.random_ids(size, seed=size) for size in (64, 63, 60, 5)]
    expected = [[], *(tiny.hf_greedy(model, prompt, 64 - len(prompt)) for prompt in prompts[1:])]
    texts = [prompt + output + [1] * 20 for prompt, output in zip(prompts, expected, strict=True)]
    for n, max_batch_size in ((1, 4), (16, 4), (16, 1)):
        corpus = tiny.TrueTrees(n, texts)
        results = nr.generate(model, None, prompts, max_new_tokens=100, corpus=corpus, max_batch_size=max_batch_size)
        assert [result.token_ids for result in results] == expected
        assert [result.finish_reason for result in results] == ["context"] * 4
    (result,) = nr.generate(model, None, prompts[2], max_new_tokens=4)
    assert (result.token_ids, result.finish_reason) == (expected[2], "length")


def test_the_last_step_proposes_no_more_than_can_be_emitted(counting):
    (result,) = nr.generate(counting, None, [0], max_new_tokens=10, corpus=Knowing(16), record_steps=True)
    assert [len(step.emitted) for step in result.steps] == [8, 2]
    depths = nr.DraftTree.from_parents(result.steps[1].tokens, result.steps[1].parents).depths
    assert depths.max() == 1  # one draft and the bonus


# Prompts


IDS = [65, 66, 67]
FORMS = {
    "list": IDS,
    "tuple": tuple(IDS),
    "range": range(65, 68),
    "numpy": np.array(IDS),
    "numpy int32": np.array(IDS, dtype=np.int32),
    "torch": torch.tensor(IDS),
    "torch int32": torch.tensor(IDS, dtype=torch.int32),
    "list of numpy integers": list(np.array(IDS)),
    "list of torch integers": list(torch.tensor(IDS)),
    "string": "ABC",
    "chat": [{"role": "user", "content": "AB"}, {"role": "assistant", "content": "C"}],
    "chat in a tuple": ({"role": "user", "content": "ABC"},),
}


@pytest.mark.parametrize("form", FORMS)
def test_prompts_of_every_form(counting, form):
    prompt = FORMS[form]
    single = nr.generate(counting, letters(), prompt, max_new_tokens=3)
    several = nr.generate(counting, letters(), [prompt, [1], prompt], max_new_tokens=3)
    assert [result.prompt_token_ids for result in single] == [IDS]
    assert [result.prompt_token_ids for result in several] == [IDS, [1], IDS]
    for result in (*single, several[0], several[2]):
        assert result.token_ids == [68, 69, 70]
        assert all(type(token) is int for token in result.token_ids + result.prompt_token_ids)


@pytest.mark.parametrize("rows", [np.array([IDS, IDS]), torch.tensor([IDS, IDS]), (IDS, "ABC"), ["ABC", IDS]])
def test_several_prompts_in_one_array_or_mixed(counting, rows):
    assert [result.prompt_token_ids for result in nr.generate(counting, letters(), rows, max_new_tokens=1)] == [IDS] * 2


def test_no_prompts_no_results(counting):
    assert nr.generate(counting, None, []) == []


def test_text_needs_a_tokenizer(counting):
    assert nr.generate(counting, None, [1], max_new_tokens=3)[0].text is None
    assert nr.generate(counting, letters(), [1], max_new_tokens=3)[0].text == "cde"


# What a result says


def test_step_records_tell_what_happened(ending_model, seven_prompts):
    texts = [prompt + tiny.hf_greedy(ending_model, prompt, 40) for prompt in seven_prompts]
    corpus = tiny.RandomTrees(8, texts)
    results = nr.generate(ending_model, None, seven_prompts, max_new_tokens=40, corpus=corpus, record_steps=True)
    for result in results:
        assert len(result.steps) == result.num_steps
        assert [token for step in result.steps for token in step.emitted] == result.token_ids
        for step in result.steps:
            assert_step_is_consistent(step, result)
        for step, following in pairwise(result.steps):
            assert following.seq_len == step.seq_len + len(step.emitted)
            assert following.tokens[0] == step.emitted[-1]
        assert result.steps[0].seq_len == len(result.prompt_token_ids) - 1
        assert result.steps[0].tokens[0] == result.prompt_token_ids[-1]
        proposed = sum(parent >= 0 for step in result.steps for parent in step.parents)
        assert result.num_proposed_drafts == proposed
        drafts = sum(min(len(step.accepted) - 1, len(step.emitted)) for step in result.steps)
        assert result.num_correct_drafts == drafts
    assert nr.generate(ending_model, None, seven_prompts[0], max_new_tokens=4)[0].steps is None


def assert_step_is_consistent(step: nr.StepRecord, result: nr.Result) -> None:
    assert len(step.tokens) == len(step.parents) == result.num_draft_tokens == 8
    nr.DraftTree.from_parents(step.tokens, step.parents).check()
    assert step.accepted[0] == 0
    assert [step.parents[node] for node in step.accepted[1:]] == list(step.accepted[:-1])
    run = [step.tokens[node] for node in step.accepted[1:]]
    assert list(step.emitted[: len(run)]) == run[: len(step.emitted)]
    assert 1 <= len(step.emitted) <= len(step.accepted)
    if len(step.emitted) < len(step.accepted):
        assert step is result.steps[-1]
    assert all(seconds >= 0 for seconds in step.times)


def test_accept_length_and_accept_rate(counting):
    """Seven depths of two siblings: 14 proposed, 7 correct and the bonus, in each full step."""
    (result,) = nr.generate(counting, None, [0], max_new_tokens=17, corpus=Knowing(16))
    assert (result.num_steps, result.num_correct_drafts, result.num_proposed_drafts) == (3, 14, 28)
    assert result.accept_length == 17 / 3
    assert result.accept_rate == 14 / 28
    assert replace(result, num_proposed_drafts=0).accept_rate == 0.0


# The corpus


def test_one_corpus_serves_all_prompts_of_a_call(counting):
    """What the first prompt said, the second is drafted; another call starts anew."""
    results = nr.generate(counting, None, [[3], [3]], max_new_tokens=30, max_batch_size=1)
    assert results[0].num_steps == 30
    assert results[1].num_steps < 10
    assert results[0].token_ids == results[1].token_ids
    assert nr.generate(counting, None, [3], max_new_tokens=30)[0].num_steps == 30


def test_an_own_corpus_is_kept_and_useful(counting):
    corpus = nr.NgramCorpus()
    first = nr.generate(counting, None, [3], max_new_tokens=30, corpus=corpus)[0]
    assert corpus.trie.find(first.token_ids[-5:]) is not None  # the last step's tokens too
    second = nr.generate(counting, None, [3], max_new_tokens=30, corpus=corpus)[0]
    assert (first.num_steps, second.token_ids) == (30, first.token_ids)
    assert second.num_steps < 10


def test_a_draft_config_beside_a_corpus(counting):
    corpus = nr.NgramCorpus(nr.DraftConfig(max_trie_depth=6))
    assert nr.generate(counting, None, [3], corpus=corpus)[0].num_draft_tokens == 12
    draft = nr.DraftConfig(num_draft_tokens=4, max_trie_depth=6)
    assert nr.generate(counting, None, [3], corpus=corpus, draft=draft)[0].num_draft_tokens == 4
    with pytest.raises(ValueError, match="draft and corpus differ in max_trie_depth, match_type"):
        nr.generate(counting, None, [3], corpus=corpus, draft=nr.DraftConfig(match_type="PROB"))


# Failures


def failing_at(target: nr.Target, monkeypatch, method: str, calls: Sequence[int], error: BaseException) -> None:
    """Make a method of a target fail at some of its calls, counted from 0."""
    original, count = getattr(target, method), iter(range(10**6))

    def failing(*args, **kwargs):
        if next(count) in calls:
            raise error
        return original(*args, **kwargs)

    monkeypatch.setattr(target, method, failing)


def test_a_failed_forward_ends_the_rows_in_it(counting, monkeypatch):
    """Rows 0 and 1 are in it; 2 and 3 wait. What was emitted before stays."""
    failing_at(counting, monkeypatch, "verify", [2], torch.OutOfMemoryError("no memory left"))
    draft = nr.DraftConfig(num_draft_tokens=1)
    prompts = [[10], [20], [30], [40]]
    results = nr.generate(counting, letters(), prompts, max_new_tokens=5, draft=draft, max_batch_size=2)
    for result, prompt in zip(results[:2], prompts, strict=False):
        assert result.token_ids == counted(prompt, 2)
        assert result.text == letters().decode(counted(prompt, 2), skip_special_tokens=True)
        assert (result.finish_reason, result.error) == ("error", "OutOfMemoryError: no memory left")
    for result, prompt in zip(results[2:], prompts[2:], strict=True):
        assert (result.token_ids, result.finish_reason, result.error) == (counted(prompt, 5), "length", None)


def test_a_failed_forward_spares_those_that_had_finished(counting, monkeypatch):
    failing_at(counting, monkeypatch, "verify", [3], ValueError("broken"))
    draft = nr.DraftConfig(num_draft_tokens=1)
    results = nr.generate(counting, None, [[148], [20]], max_new_tokens=3, draft=draft, max_batch_size=1)
    assert [result.finish_reason for result in results] == ["length", "error"]
    assert results[0].token_ids == [149, 150, 0]


@pytest.mark.parametrize("max_batch_size", [1, 3])
def test_a_failed_prefill_ends_one(counting, monkeypatch, max_batch_size):
    failing_at(counting, monkeypatch, "prefill", [1], RuntimeError("too long"))
    prompts = [[1, 2, 3], [4, 5, 6], [7, 8, 9], [10, 11]]
    results = nr.generate(counting, None, prompts, max_new_tokens=5, max_batch_size=max_batch_size)
    assert [result.finish_reason for result in results] == ["length", "error", "length", "length"]
    assert (results[1].token_ids, results[1].error) == ([], "RuntimeError: too long")
    for index in (0, 2, 3):
        assert results[index].token_ids == counted(prompts[index], 5)


class Undecodable(tiny.Pieces):
    """Cannot decode id 60."""

    def decode(self, ids, skip_special_tokens):
        if 60 in ids:
            raise KeyError(60)
        return super().decode(ids, skip_special_tokens)


@pytest.mark.parametrize("stop", [(), "never said"])
def test_text_that_cannot_be_decoded_ends_only_its_own_request(counting, stop):
    tokenizer = Undecodable(letters().pieces)
    results = nr.generate(counting, tokenizer, [[10], [55], [20]], max_new_tokens=8, stop=stop)
    assert [result.finish_reason for result in results] == ["length", "error", "length"]
    assert results[0].token_ids == counted([10], 8)
    assert "KeyError" in results[1].error


def test_an_interrupt_leaves_the_target_usable(monkeypatch):
    target, prompts = nr.Target(tiny.build("llama")), tiny.random_prompts(3)
    expected = [result.token_ids for result in nr.generate(target, None, prompts, max_new_tokens=10)]
    for method, call in (("verify", 0), ("verify", 4), ("prefill", 2), ("accept", 1)):
        with monkeypatch.context() as patch:
            failing_at(target, patch, method, [call], KeyboardInterrupt())
            with pytest.raises(KeyboardInterrupt):
                nr.generate(target, None, prompts, max_new_tokens=10)
        again = nr.generate(target, None, prompts, max_new_tokens=10)
        assert [result.token_ids for result in again] == expected


def test_a_second_thread_is_refused(counting, monkeypatch):
    verify, inside, go_on = counting.verify, threading.Event(), threading.Event()

    def waiting(inputs):
        inside.set()
        assert go_on.wait(30)
        return verify(inputs)

    monkeypatch.setattr(counting, "verify", waiting)
    results: list[nr.Result] = []
    thread = threading.Thread(target=lambda: results.extend(nr.generate(counting, None, [3], max_new_tokens=5)))
    thread.start()
    assert inside.wait(30)
    tree = nr.DraftTree.from_parents([3], [-1])
    other = nr.generate(nr.Target(counting.model), None, [3], max_new_tokens=2)[0]
    for work in (
        lambda: nr.generate(counting, None, [3]),
        lambda: counting.score_tree([3], tree),
        lambda: nr.audit(counting, other),
    ):
        with pytest.raises(RuntimeError, match="decoding already"):
            work()
    go_on.set()
    thread.join(30)
    assert results[0].token_ids == counted([3], 5)
    assert nr.generate(counting, None, [3], max_new_tokens=5)[0].token_ids == counted([3], 5)


# Targets


def test_a_target_is_used_again_with_other_sizes(ending_model, seven_prompts):
    target = nr.Target(ending_model)
    alone = [tiny.hf_greedy(ending_model, prompt, 40) for prompt in seven_prompts]
    for n, max_batch_size in ((16, 7), (1, 1), (8, 3), (32, 2)):
        draft = nr.DraftConfig(num_draft_tokens=n)
        results = nr.generate(
            target, None, seven_prompts, max_new_tokens=40, draft=draft, max_batch_size=max_batch_size
        )
        assert [result.token_ids for result in results] == alone


def test_a_model_keeps_one_target_as_long_as_it_lives():
    model = tiny.build("llama")
    nr.generate(model, None, [1], max_new_tokens=1)
    target = weakref.ref(as_target(model))
    nr.generate(model, None, [1], max_new_tokens=1)
    assert as_target(model) is target()
    assert as_target(target()) is target()
    del model
    gc.collect()
    assert target() is None


def test_a_used_model_can_be_copied_and_saved():
    model = tiny.build("llama")
    expected = nr.generate(model, None, [1, 2], max_new_tokens=8)[0].token_ids
    twin = copy.deepcopy(model)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for other in (twin, torch.load(file, weights_only=False)):
        assert nr.generate(other, None, [1, 2], max_new_tokens=8)[0].token_ids == expected
        assert as_target(other) is not as_target(model)
        assert as_target(other).model is other
    twin.lm_head.weight.zero_()
    assert nr.generate(twin, None, [1, 2], max_new_tokens=8)[0].token_ids == [0] * 8
    assert nr.generate(model, None, [1, 2], max_new_tokens=8)[0].token_ids == expected


def test_a_model_moved_to_another_dtype_gets_a_fresh_target():
    model = tiny.counting_model()
    nr.generate(model, None, [1], max_new_tokens=1)
    old = as_target(model)
    model.to(torch.float32)
    assert nr.generate(model, None, [1], max_new_tokens=9)[0].token_ids == counted([1], 9)
    assert as_target(model) is not old
    assert as_target(model).facts.dtype == torch.float32


# Bad arguments

GOOD = [1, 2]
BAD_ARGUMENTS = {
    "empty prompt": ({"prompts": [GOOD, []]}, ValueError, "prompt 1 is empty"),
    "empty string": ({"prompts": ["A", ""]}, ValueError, "prompt 1 is empty"),
    "empty chat": ({"prompts": [GOOD, [{"role": "user", "content": ""}]]}, ValueError, "prompt 1 is empty"),
    "prompt too long": ({"prompts": [GOOD, [1] * 257]}, ValueError, "prompt 1 has 257 tokens.*context 256"),
    "id too large": ({"prompts": [GOOD, [1, tiny.VOCAB]]}, ValueError, r"prompt 1: token id 151 .*\(0 to 150\)"),
    "negative id": ({"prompts": [GOOD, GOOD, [-1]]}, ValueError, "prompt 2: token id -1"),
    "float ids": ({"prompts": [GOOD, [1.0]]}, TypeError, "prompt 1 must be"),
    "boolean ids": ({"prompts": [GOOD, [True]]}, TypeError, "prompt 1 must be"),
    "boolean array": ({"prompts": np.array([True, False])}, TypeError, "prompt 0 must be"),
    "float tensor": ({"prompts": torch.ones(2, 2)}, TypeError, "prompt 0 must be"),
    "a number": ({"prompts": 5}, TypeError, "prompt 0 must be"),
    "a number in a tensor": ({"prompts": torch.tensor(5)}, TypeError, "prompt 0 must be"),
    "None": ({"prompts": [GOOD, None]}, TypeError, "prompt 1 must be"),
    "chat without a template": (
        {"prompts": [GOOD, [{"role": "user", "content": "A"}]], "tokenizer": byte_fallback_tokenizer()},
        ValueError,
        "prompt 1 is a chat that the tokenizer cannot render.*chat template",
    ),
    "one message": ({"prompts": {"role": "user", "content": "A"}}, TypeError, "prompt 0 must be"),
    "nested ids": ({"prompts": [[GOOD]]}, TypeError, "prompt 0 must be"),
    "text and no tokenizer": ({"prompts": [GOOD, "A"], "tokenizer": None}, ValueError, "prompt 1 is text.*tokenizer"),
    "negative length": ({"max_new_tokens": -1}, ValueError, "max_new_tokens must be at least 0, not -1"),
    "float length": ({"max_new_tokens": 5.0}, TypeError, "max_new_tokens must be an int, not 5.0"),
    "boolean length": ({"max_new_tokens": True}, TypeError, "max_new_tokens must be an int, not True"),
    "no length": ({"max_new_tokens": None}, TypeError, "max_new_tokens must be an int, not None"),
    "no batch": ({"max_batch_size": 0}, ValueError, "max_batch_size must be at least 1, not 0"),
    "float batch": ({"max_batch_size": 2.0}, TypeError, "max_batch_size must be an int"),
    "empty stop": ({"stop": ""}, ValueError, "stop holds an empty string"),
    "one empty stop": ({"stop": ["a", ""]}, ValueError, "stop holds an empty string"),
    "stop is no string": ({"stop": ["a", 5]}, TypeError, "stop must be a string or a sequence of strings, not 5"),
    "stop is a number": ({"stop": 5}, TypeError, "stop must be"),
    "stop is None": ({"stop": None}, TypeError, "stop must be"),
    "stop and no tokenizer": ({"stop": "a", "tokenizer": None}, ValueError, "stop needs a tokenizer"),
    "draft is no config": ({"draft": {"num_draft_tokens": 3}}, TypeError, "draft must be an nr.DraftConfig, not dict"),
    "corpus is no corpus": ({"corpus": [1, 2]}, TypeError, "corpus must be an nr.NgramCorpus, not list"),
    "model is no model": ({"model": "gpt2"}, TypeError, "model must be"),
    "model is a layer": ({"model": torch.nn.Linear(2, 2)}, TypeError, "model must be"),
}


@pytest.mark.parametrize("case", BAD_ARGUMENTS)
def test_bad_arguments_are_refused_before_any_work(counting, case):
    changes, error, message = BAD_ARGUMENTS[case]
    arguments = {"model": counting, "tokenizer": letters(), "prompts": [GOOD]} | changes
    forwards: list[int] = []
    hook = counting.model.model.embed_tokens.register_forward_hook(lambda *_: forwards.append(1))
    try:
        with pytest.raises(error, match=message):
            nr.generate(**arguments)
    finally:
        hook.remove()
    assert forwards == []
    assert nr.generate(counting, None, GOOD, max_new_tokens=2)[0].token_ids == [3, 4]  # nothing is left locked


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("num_draft_tokens", 0, ValueError),
        ("num_draft_tokens", 2.0, TypeError),
        ("num_draft_tokens", True, TypeError),
        ("max_trie_depth", 1, ValueError),
        ("min_bfs_breadth", 0, ValueError),
        ("max_bfs_breadth", 0, ValueError),
        ("capacity", 18, ValueError),
        ("match_type", "bfs", ValueError),
    ],
)
def test_bad_draft_configs(name, value, error):
    with pytest.raises(error, match=name):
        nr.DraftConfig(**{name: value})


# The default model


@pytest.fixture(scope="module")
def spoken(default_model) -> tuple[list[int], list[int]]:
    """A chat with text of several kinds, as ids, and the plain answer to it."""
    model, tokenizer = default_model
    question = "Count from one to ten in words, then write café, naïve and 😀."
    chat = [{"role": "user", "content": question}]
    prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
    return list(prompt), tiny.hf_greedy(model, prompt, 60)


@pytest.mark.model
def test_strings_and_chats_of_the_default_model(default_model, spoken):
    model, tokenizer = default_model
    question = "Count from one to ten in words, then write café, naïve and 😀."
    chat = [{"role": "user", "content": question}]
    results = nr.generate(model, tokenizer, [chat, "Once upon a time"], max_new_tokens=60)
    assert results[0].prompt_token_ids == spoken[0]
    assert results[0].token_ids == spoken[1]
    assert results[0].text == tokenizer.decode(spoken[1], skip_special_tokens=True)
    assert results[1].prompt_token_ids == tokenizer("Once upon a time").input_ids  # as it is, no template


@pytest.mark.model
def test_stop_strings_of_the_default_model(default_model, spoken):
    """The rules against brute force over the prefixes, for many cuts of a real text; then a few through the model."""
    model, tokenizer = default_model
    prompt, plain = spoken
    text = tokenizer.decode(plain, skip_special_tokens=True)
    rng = np.random.default_rng(0)
    cuts = [text[start : start + int(rng.integers(1, 12))] for start in rng.integers(0, len(text) - 1, size=60)]
    for stop in cuts:
        rules = StopRules(1000, None, frozenset(), (stop,), tokenizer)
        stopped = (size for size in range(1, len(plain) + 1) if rules.finish_at(plain[:size]) == "stop")
        found = first_stop(tokenizer, plain, [stop])
        assert next(stopped, None) == (found[0] if found else None), stop
    corpus = tiny.TrueTrees(16, [prompt + plain], vocab=1000)
    for stops in (cuts[:1], [text[50:54]], ["never said", text[30:33], text[80:90]]):
        (result,) = nr.generate(model, tokenizer, prompt, max_new_tokens=60, stop=stops, corpus=corpus)
        assert_stops(result, tokenizer, plain, stops)
