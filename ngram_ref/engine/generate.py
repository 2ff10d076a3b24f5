"""`generate`: decode prompts through n-gram token trees."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from functools import partial
from itertools import pairwise
from numbers import Integral
from time import perf_counter
from typing import Any

from tqdm.auto import tqdm

from ngram_ref.core.config import DraftConfig
from ngram_ref.core.corpus import NgramCorpus
from ngram_ref.engine.batch import Job, Result, Row, StepTimes, failed_result
from ngram_ref.engine.kv_cache import bucket_length
from ngram_ref.engine.masking import fill_bitmask, keep_grammar_tree
from ngram_ref.engine.prompts import encode_prompts
from ngram_ref.engine.stopping import StopRules, stop_token_ids
from ngram_ref.engine.target import Target, as_target
from ngram_ref.grammar.compile import Grammar, GrammarChoice, fit_grammar
from ngram_ref.grammar.compiler import CompiledGrammar


def generate(
    model: Any,
    tokenizer: Any,
    prompts: Any,
    *,
    max_new_tokens: int = 128,
    draft: DraftConfig | None = None,
    corpus: NgramCorpus | None = None,
    grammar: GrammarChoice | Sequence[GrammarChoice] = None,
    stop: str | Sequence[str] = (),
    max_batch_size: int = 8,
    record_steps: bool = False,
) -> list[Result]:
    """Decode greedily, several tokens a forward; the tokens are those of plain greedy decoding.

    Args:
        model: a causal language model of `transformers`, or an `nr.Target` of one.
        tokenizer: its tokenizer; None if all prompts are token ids (results then have no text).
        prompts: one prompt or a sequence of them: a string, a list of chat messages, or a list of token ids.
        max_new_tokens: tokens to emit at most, per prompt.
        draft: how to draft; `DraftConfig()` by default, or the corpus's own config.
        corpus: a corpus to draft from and to teach; by default a new one, shared by the prompts of this call.
        grammar: what the new texts must follow (`nr.json_schema`, `nr.regex`, `nr.ebnf`, `nr.any_json`), one for all
            prompts or one per prompt, None for no grammar. A text ends where its grammar does.
        stop: strings that end a text; it is cut before them.
        max_batch_size: prompts that decode side by side; the others wait, and take a row as soon as one is free.
        record_steps: whether results keep a `StepRecord` per step.

    Returns:
        One `Result` per prompt, in their order. A request that fails while it decodes has `finish_reason` `"error"`;
        the others go on.

    Raises:
        TypeError, ValueError: an argument that cannot work, before any work is done; prompts are named by index.
        RuntimeError: the target, or the corpus, is in use in another thread.
    """
    if tokenizer is not None and not hasattr(tokenizer, "decode"):
        raise TypeError(f"tokenizer must be a tokenizer of transformers or None, not {type(tokenizer).__name__}")
    drafter, n = _choose_corpus(draft, corpus)
    _check_count("max_new_tokens", max_new_tokens, least=0)
    _check_count("max_batch_size", max_batch_size, least=1)
    stop_strings = _check_stop(stop, tokenizer)
    target = as_target(model)
    jobs = _make_jobs(target, tokenizer, prompts, max_new_tokens, stop_strings)
    jobs = _add_grammars(target, tokenizer, jobs, grammar)
    rows = min(max_batch_size, len(jobs))
    longest = max((len(job.prompt_ids) + job.rules.room for job in jobs), default=1)
    bar = tqdm(total=len(jobs), disable=len(jobs) <= max_batch_size, unit="prompt")
    with target.exclusive(), _exclusive(drafter), bar:
        target.cache.fit(rows, bucket_length(longest + n))
        results = _decode(target, drafter, n, deque(jobs), max_batch_size, record_steps, bar)
        drafter.learn()  # the last step's tokens, for a corpus that is kept
    return [results[index] for index in range(len(jobs))]


def _decode(
    target: Target,
    corpus: NgramCorpus,
    n: int,
    waiting: deque[Job],
    max_batch_size: int,
    record_steps: bool,
    bar: Any,
) -> dict[int, Result]:
    """Run steps until every job has a result."""
    rows: list[Row] = []
    results: dict[int, Result] = {}
    while waiting or rows:
        while waiting and len(rows) < max_batch_size:
            job = waiting.popleft()
            try:
                rows.append(Row(job, corpus.start(job.prompt_ids), record_steps))
            except Exception as error:
                results[job.index] = failed_result(job, n, error)
                continue
            _guarded(rows[-1:], partial(_prefill, target, len(rows) - 1, rows[-1]))
            _release_finished(target, rows, n, results, bar)
        if rows:
            _guarded(rows, partial(_step, target, corpus, n, rows))
            _release_finished(target, rows, n, results, bar)
    return results


def _exclusive(corpus: NgramCorpus) -> AbstractContextManager[None]:
    """Hold a corpus for one call, if it is one that can be held."""
    hold: Callable[[], AbstractContextManager[None]] = getattr(corpus, "exclusive", nullcontext)
    return hold()


def _guarded(rows: Sequence[Row], work: Callable[[], None]) -> None:
    """Run work for some rows; where it fails, those rows end with the error and no others."""
    try:
        work()
    except Exception as error:
        for row in rows:
            row.fail(error)


def _prefill(target: Target, place: int, row: Row) -> None:
    """Commit a prompt without its last token, the first root."""
    if row.finish_reason is None:
        target.cache.reserve(place + 1, bucket_length(len(row.job.prompt_ids)))
        target.prefill(place, row.job.prompt_ids[:-1])


def _step(target: Target, corpus: NgramCorpus, n: int, rows: Sequence[Row]) -> None:
    """Draft a tree per row, verify all of them in one forward, take what was accepted."""
    clock = [perf_counter()]
    tree = corpus.draft([row.text for row in rows], n, [row.max_depth for row in rows])
    clock.append(perf_counter())
    inputs = target.upload(tree, [row.seq_len for row in rows])
    grammar_tree_host = keep_grammar_tree(tree, rows)
    clock.append(perf_counter())
    logits = target.verify(inputs)
    clock.append(perf_counter())
    corpus.learn()  # the tokens of the step before: learning runs behind the forward, so it lags by one step
    clock.append(perf_counter())
    bitmask = fill_bitmask(grammar_tree_host, rows, target.facts.vocab_size)
    clock.append(perf_counter())
    accept_index, accept_length, tokens = (part.tolist() for part in target.accept(inputs, logits, bitmask))
    clock.append(perf_counter())
    times = StepTimes(*(end - start for start, end in pairwise(clock)))
    for place, row in enumerate(rows):
        if row.finish_reason is not None:  # its grammar walk failed
            continue
        accepted = [node for node in accept_index[place] if node >= 0]
        emitted = tokens[place][: accept_length[place]]
        _guarded([row], partial(row.take, tree, place, accepted, emitted, times))


def _release_finished(target: Target, rows: list[Row], n: int, results: dict[int, Result], bar: Any) -> None:
    """Hand in the results of finished rows and close the gaps, each with the last row."""
    for place in reversed(range(len(rows))):
        if rows[place].finish_reason is None:
            continue
        results[rows[place].job.index] = rows[place].result(n)
        bar.update()
        last = rows.pop()
        if place < len(rows):
            rows[place] = last
            target.cache.move_row(len(rows), place)


def _choose_corpus(draft: DraftConfig | None, corpus: NgramCorpus | None) -> tuple[NgramCorpus, int]:
    """Settle on a corpus and on n; a `draft` beside a corpus may differ in `num_draft_tokens` alone."""
    if draft is not None and not isinstance(draft, DraftConfig):
        raise TypeError(f"draft must be an nr.DraftConfig, not {type(draft).__name__}")
    if corpus is not None and not all(hasattr(corpus, name) for name in ("config", "start", "draft", "learn")):
        raise TypeError(f"corpus must be an nr.NgramCorpus, not {type(corpus).__name__}")
    if corpus is None:
        draft = draft or DraftConfig()
        return NgramCorpus(draft), draft.num_draft_tokens
    if draft is None:
        return corpus, corpus.config.num_draft_tokens
    own, asked = asdict(corpus.config), asdict(draft)
    differing = [name for name in own if name != "num_draft_tokens" and own[name] != asked[name]]
    if differing:
        raise ValueError(
            f"draft and corpus differ in {', '.join(differing)}: a corpus keeps the config it was made with; leave "
            "these out of draft, or make another corpus"
        )
    return corpus, draft.num_draft_tokens


def _check_count(name: str, value: Any, least: int) -> None:
    """Refuse what is no integer of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name} must be an int, not {value!r}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, not {value}")


def _check_stop(stop: str | Sequence[str], tokenizer: Any) -> tuple[str, ...]:
    """Check stop strings."""
    if not isinstance(stop, (str, Sequence)):
        raise TypeError(f"stop must be a string or a sequence of strings, not {stop!r}")
    strings = (stop,) if isinstance(stop, str) else tuple(stop)
    for string in strings:
        if not isinstance(string, str):
            raise TypeError(f"stop must be a string or a sequence of strings, not {string!r} among {strings!r}")
        if not string:
            raise ValueError("stop holds an empty string, which would end every text at once: leave it out")
    if strings and tokenizer is None:
        raise ValueError("stop needs a tokenizer to find strings in the text: pass one")
    return strings


def _add_grammars(
    target: Target, tokenizer: Any, jobs: list[Job], grammar: GrammarChoice | Sequence[GrammarChoice]
) -> list[Job]:
    """Compile the grammars and give each job its own."""
    many = [grammar] * len(jobs) if grammar is None or isinstance(grammar, (Grammar, CompiledGrammar)) else grammar
    if not isinstance(many, Sequence) or isinstance(many, str):
        raise TypeError(
            f"grammar must be made by nr.json_schema, nr.regex, nr.ebnf or nr.any_json, not {grammar!r:.80}"
        )
    if len(many) != len(jobs):
        raise ValueError(f"grammar has {len(many)} entries for {len(jobs)} prompts: give one each, or a single one")
    tokens = (tokenizer, target.facts.vocab_size, stop_token_ids(target.model))
    return [replace(job, grammar=fit_grammar(one, *tokens)) for job, one in zip(jobs, many, strict=True)]


def _make_jobs(
    target: Target, tokenizer: Any, prompts: Any, max_new_tokens: int, stop_strings: tuple[str, ...]
) -> list[Job]:
    """Encode and check all prompts."""
    facts = target.facts
    stop_ids = stop_token_ids(target.model)
    jobs = []
    for index, ids in enumerate(encode_prompts(tokenizer, prompts, facts.embedding_size, facts.context_length)):
        if facts.reach is not None and len(ids) + max_new_tokens > facts.reach.tokens:
            raise ValueError(
                f"prompt {index} asks for a context of {len(ids)} + {max_new_tokens} tokens, but the model "
                f"{facts.reach.reason}: lower max_new_tokens or shorten the prompt"
            )
        room = None if facts.context_length is None else facts.context_length - len(ids)
        jobs.append(Job(index, tuple(ids), StopRules(max_new_tokens, room, stop_ids, stop_strings, tokenizer)))
    return jobs
