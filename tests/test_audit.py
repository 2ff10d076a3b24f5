"""`audit`: right results have no differences, wrong ones an error at the place, and ties are told from errors."""

from __future__ import annotations

from dataclasses import replace

import grammars
import pytest
import tiny
import torch

import ngram_ref as nr
from ngram_ref.engine import target as target_module
from ngram_ref.engine.audit import Audit
from ngram_ref.lab import tasks


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    with tiny.one_thread():
        yield


def with_token(result: nr.Result, place: int, token: int) -> nr.Result:
    token_ids = list(result.token_ids)
    token_ids[place] = token
    return replace(result, token_ids=token_ids)


def plain_logits(model, result: nr.Result) -> torch.Tensor:
    """Logits `[tokens, V]` behind the result's own tokens, of one plain forward."""
    text = result.prompt_token_ids + result.token_ids
    return model(input_ids=torch.tensor([text])).logits[0, len(result.prompt_token_ids) - 1 : -1]


@pytest.mark.parametrize("name", ["llama", "gpt2", "gpt_bigcode-eager", "deepseek_v3"])
def test_right_results_have_no_differences(name):
    model, prompts = tiny.shared(name), tiny.random_prompts(3, seed=4)
    for result in nr.generate(model, None, prompts, max_new_tokens=20):
        audit = nr.audit(model, result)
        assert [token.verdict for token in audit.tokens] == ["equal"] * 20
        assert [token.token for token in audit.tokens] == result.token_ids
        assert (audit.near_ties, audit.errors, audit.control_flips) == (0, 0, 0)
        assert 0 <= audit.shape_noise < 1e-3


def test_margins_and_gaps_are_those_of_plain_logits():
    model = tiny.shared("llama")
    (result,) = nr.generate(model, None, [5, 6, 7], max_new_tokens=12)
    result = with_token(result, 4, (result.token_ids[4] + 1) % tiny.VOCAB)
    for token, logits in zip(nr.audit(model, result).tokens, plain_logits(model, result), strict=True):
        best, second = logits.topk(2).values.tolist()
        assert token.plain_token == token.same_shape_token == logits.argmax()
        assert token.margin == pytest.approx(best - second, abs=1e-4)
        assert token.gap == pytest.approx(best - logits[token.token].item(), abs=1e-4)


@pytest.mark.parametrize("place", [0, 7, 15])
def test_an_altered_token_is_an_error_at_its_place(place):
    """What follows is judged behind the altered token: as wrong as plain decoding finds it there, no more."""
    model = tiny.shared("llama")
    (result,) = nr.generate(model, None, [5, 6, 7], max_new_tokens=16)
    right = result.token_ids[place]
    altered = with_token(result, place, (right + 1) % tiny.VOCAB)
    audit = nr.audit(model, altered)
    plain = plain_logits(model, altered).argmax(dim=-1).tolist()
    expected = ["equal" if token == best else "error" for token, best in zip(altered.token_ids, plain, strict=True)]
    assert [token.verdict for token in audit.tokens] == expected
    assert expected[: place + 1] == ["equal"] * place + ["error"]
    assert audit.tokens[place].plain_token == right
    assert audit.errors == expected.count("error")


def test_one_flip_does_not_make_all_that_follows_differ():
    """The counting model looks at the last token alone."""
    model = tiny.counting_model()
    (result,) = nr.generate(model, None, [5], max_new_tokens=10)
    altered = replace(result, token_ids=[6, 7, 20, 21, 22, 23])
    verdicts = [token.verdict for token in nr.audit(model, altered).tokens]
    assert verdicts == ["equal", "equal", "error", "equal", "equal", "equal"]


@pytest.mark.parametrize(("noise", "verdict"), [(0.55, "near-tie"), (0.45, "error"), (1.5, "near-tie")])
def test_a_near_tie_is_a_gap_within_twice_the_noise_of_the_shape(noise, verdict, monkeypatch):
    """Token 100 comes a millionth behind token 6; the forward of n rows moves it up by some part of that."""
    model = tiny.counting_model()
    model.lm_head.weight[100] = model.lm_head.weight[6] * (1 - 1e-6)
    target = nr.Target(model)
    (result,) = nr.generate(target, None, [5], max_new_tokens=3)
    gap = 1e-6 * model(input_ids=torch.tensor([[5]])).logits.max().item()
    verify = target.verify

    def noisy(inputs):
        logits = verify(inputs)
        logits[..., 100] += noise * gap * (inputs.tokens.shape[1] > 1)
        return logits

    monkeypatch.setattr(target, "verify", noisy)
    audit = nr.audit(target, with_token(result, 0, 100))
    assert audit.shape_noise == pytest.approx(noise * gap, rel=1e-3)
    first = audit.tokens[0]
    assert (first.token, first.plain_token, first.verdict) == (100, 6, verdict)
    assert first.gap == pytest.approx(gap, rel=1e-3)
    assert first.same_shape_token == (100 if noise > 1 else 6)
    assert audit.control_flips == (noise > 1)
    assert (audit.near_ties, audit.errors) == ((1, 1) if verdict == "near-tie" else (0, 2))  # 7 behind 100 is wrong


def test_the_summary():
    model = tiny.counting_model()
    (result,) = nr.generate(model, None, [5], max_new_tokens=4)
    assert str(nr.audit(model, result)).startswith("4 tokens: 0 near-ties, 0 errors; the shape alone flips 0")
    lines = str(nr.audit(model, with_token(result, 3, 50))).splitlines()
    assert lines[0].startswith("4 tokens: 0 near-ties, 1 errors;")
    assert len(lines) == 2
    assert lines[1].startswith("  token 3: 50, plain 9, same shape 9, gap ")
    assert lines[1].endswith(": error")


def test_nothing_to_audit():
    model = tiny.counting_model()
    (result,) = nr.generate(model, None, [5], max_new_tokens=0)
    audit = nr.audit(model, result)
    assert (audit, audit.shape_noise) == (Audit(tokens=()), 0.0)


def test_an_audit_needs_no_records_and_leaves_the_target_as_it_was():
    target = nr.Target(tiny.shared("llama"))
    (result,) = nr.generate(target, None, [5, 6], max_new_tokens=10)
    nr.audit(target, result)
    assert nr.generate(target, None, [5, 6], max_new_tokens=10)[0].token_ids == result.token_ids


@pytest.mark.parametrize("name", ["llama", "qwen2", "gpt_neox", "gpt2", "opt", "starcoder2"])
def test_bfloat16_differs_by_near_ties_only(name, record_property):
    """Eight bits of mantissa: shapes do flip tokens, and every flip is one of rounding."""
    model, prompts = tiny.build(name).to(torch.bfloat16), tiny.random_prompts(8, seed=2)
    texts = [prompt + tiny.hf_greedy(model, prompt, 30) for prompt in prompts]
    near_ties = 0
    results = nr.generate(model, None, prompts, max_new_tokens=30, corpus=tiny.RandomTrees(16, texts), max_batch_size=1)
    for result in results:
        audit = nr.audit(model, result)
        assert audit.errors == 0, audit
        near_ties += audit.near_ties
    record_property("near_ties", near_ties)
    print(f"{name} in bfloat16: {near_ties} near-ties in {sum(len(result.token_ids) for result in results)} tokens")


# The default model

CODE = """def total(items):
    result = 0
    for item in items:
        if item.price > 0:
            result += item.price * item.count
    return result
"""
RECORD = "Ada Lovelace, born 1815 in London, wrote about the Analytical Engine."
TASKS = {task.name: task.chat for task in tasks.TASKS}


@pytest.mark.model
@pytest.mark.parametrize("task", TASKS)
def test_tasks_of_the_default_model_equal_plain_decoding(default_model, task, record_property):
    """In float32, where a difference would have to be a near-tie. None is expected."""
    model, tokenizer = default_model
    (result,) = nr.generate(model, tokenizer, TASKS[task], max_new_tokens=64)
    plain = tiny.hf_greedy(model, result.prompt_token_ids, 64)
    differences = 0
    if result.token_ids != plain:
        audit = nr.audit(model, result)
        assert audit.errors == 0, audit
        differences = audit.near_ties
    record_property("near_ties", differences)
    print(f"{task}: {differences} near-ties in {len(plain)} tokens, accept length {result.accept_length:.2f}")
    assert result.finish_reason in ("length", "eos")


@pytest.mark.model
def test_audit_of_the_default_model(default_model):
    model, tokenizer = default_model
    (result,) = nr.generate(model, tokenizer, "The first ten primes are 2, 3, 5,", max_new_tokens=8)
    audit = nr.audit(model, result)
    assert (audit.near_ties, audit.errors, len(audit.tokens)) == (0, 0, len(result.token_ids))
    last = len(result.token_ids) - 1
    altered = nr.audit(model, with_token(result, last, (result.token_ids[last] + 1000) % 49152))
    assert [index for index, token in enumerate(altered.tokens) if token.verdict != "equal"] == [last]
    assert altered.tokens[last].verdict == "error"


def test_a_wrong_verify_forward_does_not_excuse_itself(monkeypatch):
    """The noise of a change of shape is what rounding does, not what a fault in that shape does."""
    mask_of = target_module.tree_attention_mask

    def losing_the_prefix(mask, seq_lens, length):
        visible = mask_of(mask, seq_lens, length)
        if mask.shape[1] > 1 and int(seq_lens.min()) > 8:
            visible[:, :, :6] = False
        return visible

    model = tiny.build("llama").float()
    nr.Target(model)
    monkeypatch.setattr(target_module, "tree_attention_mask", losing_the_prefix)
    (result,) = nr.generate(model, None, tiny.random_ids(12), max_new_tokens=20)
    assert nr.audit(model, result).errors > 0


def test_a_result_with_a_grammar_is_audited_under_it():
    model = tiny.build("llama", vocab_size=grammars.TOY_VOCAB, eos=list(grammars.EOS))
    prompt, grammar = grammars.encode("abc"), nr.regex("[0-9]{3}")
    (result,) = nr.generate(model, grammars.TOKENIZER, prompt, grammar=grammar, max_new_tokens=8)
    audit = nr.audit(model, result)
    assert (audit.errors, audit.near_ties, len(audit.tokens)) == (0, 0, len(result.token_ids))
