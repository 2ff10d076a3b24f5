"""`python -m ngram_ref demo`: tasks on the default model, with and without n-gram trees, in one run."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any

import jsonschema
import torch

from ngram_ref.core.config import DraftConfig
from ngram_ref.engine.audit import audit
from ngram_ref.engine.batch import Result
from ngram_ref.engine.generate import generate
from ngram_ref.engine.stopping import stop_token_ids
from ngram_ref.engine.target import Target
from ngram_ref.grammar.compile import json_schema
from ngram_ref.lab.tasks import GRAMMAR_TASK, PEOPLE_SCHEMA, TASKS, Task
from ngram_ref.lab.viz.terminal import BRACKETS, Marks, tokens_terminal
from ngram_ref.lab.viz.tokens import StepTokens, token_texts

Print = Callable[[str], None]

WAYS = ("plain", "lookup", "trees")
_LOOKUP_TOKENS = 10  # what transformers' documentation uses for prompt_lookup_num_tokens

_LEGEND = f"""
plain: model.generate(do_sample=False); lookup: the same with prompt_lookup_num_tokens={_LOOKUP_TOKENS}; trees:
ngram_ref.generate. One run of each, prompt included; on a busy machine, run it again."""


@dataclass(frozen=True)
class Measured:
    """One way to decode a task.

    Attributes:
        token_ids: the new ids.
        seconds: what it took, prompt included.
    """

    token_ids: list[int]
    seconds: float

    @property
    def tokens_per_second(self) -> float:
        """New tokens per second."""
        return len(self.token_ids) / self.seconds


@dataclass(frozen=True)
class Timed:
    """A result and the seconds that it took."""

    result: Result
    seconds: float


@dataclass(frozen=True)
class TaskRun:
    """A task, decoded in all `WAYS`.

    Attributes:
        task: the task.
        measured: by way.
        result: of the trees, with its steps recorded.
    """

    task: Task
    measured: Mapping[str, Measured]
    result: Result


def run_demo(name: str, target: Target, tokenizer: Any, num_draft_tokens: int, show: Print, marks: Marks) -> None:
    """Decode the demo's tasks three ways and show what happened.

    Args:
        name: of the model, for the heading.
        target, tokenizer: the model.
        num_draft_tokens: nodes of each tree.
        show: prints a line.
        marks: how drafted tokens are marked.
    """
    device = target.facts.device
    place = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{torch.get_num_threads()} CPU threads"
    show(f"{name} in {str(target.facts.dtype).removeprefix('torch.')} on {place}, trees of {num_draft_tokens} nodes\n")
    decode_task(target, tokenizer, Task("warm-up", "Hello", 4), num_draft_tokens)  # the first forwards are slow
    runs = []
    for task in TASKS:
        runs.append(decode_task(target, tokenizer, task, num_draft_tokens))
        _show_run(runs[-1], target, tokenizer, show, marks)
    grammar_runs = decode_by_schema(target, tokenizer, GRAMMAR_TASK, num_draft_tokens)
    _show_grammar_runs(*grammar_runs, tokenizer, show, marks)
    for line in _table(runs):
        show(line)
    show(_LEGEND)
    show(verdict(runs))


def decode_task(target: Target, tokenizer: Any, task: Task, num_draft_tokens: int) -> TaskRun:
    """Decode one task by transformers' greedy loop, by its prompt lookup, and through n-gram trees."""
    ids = tokenizer.apply_chat_template(task.chat, add_generation_prompt=True, return_dict=False)
    prompt = torch.tensor([ids], device=target.facts.device)
    draft = DraftConfig(num_draft_tokens=num_draft_tokens)
    start = perf_counter()
    plain = _hugging_face(target.model, prompt, task.max_new_tokens)
    plain_end = perf_counter()
    lookup = _hugging_face(target.model, prompt, task.max_new_tokens, prompt_lookup_num_tokens=_LOOKUP_TOKENS)
    lookup_end = perf_counter()
    result = generate(target, tokenizer, ids, max_new_tokens=task.max_new_tokens, draft=draft, record_steps=True)[0]
    measured = {
        "plain": Measured(plain, plain_end - start),
        "lookup": Measured(lookup, lookup_end - plain_end),
        "trees": Measured(result.token_ids, perf_counter() - lookup_end),
    }
    return TaskRun(task, measured, result)


def decode_by_schema(target: Target, tokenizer: Any, task: Task, num_draft_tokens: int) -> tuple[Timed, Timed]:
    """Decode the grammar task one token at a time, and through trees: the same schema, the same tokens."""
    grammar = json_schema(PEOPLE_SCHEMA)
    grammar.compile(tokenizer, target.facts.vocab_size, stop_token_ids(target.model))  # not part of what is timed
    runs = []
    for n in (1, num_draft_tokens):
        draft, limit, start = DraftConfig(num_draft_tokens=n), task.max_new_tokens, perf_counter()
        results = generate(
            target, tokenizer, task.chat, max_new_tokens=limit, draft=draft, grammar=grammar, record_steps=True
        )
        runs.append(Timed(results[0], perf_counter() - start))
    return runs[0], runs[1]


def _hugging_face(model: Any, prompt: torch.Tensor, max_new_tokens: int, **options: Any) -> list[int]:
    """Decode greedily by `model.generate`; reading the ids waits for the device."""
    outputs = model.generate(
        prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=max_new_tokens, **options
    )
    new: list[int] = outputs[0, prompt.shape[1] :].tolist()
    return new


def origin_of_tokens(tokenizer: Any, result: Result) -> list[StepTokens]:
    """Tell, step by step, which tokens of a result were drafted and which the model added.

    Args:
        tokenizer: decodes.
        result: recorded with `record_steps=True`.
    """
    origins = []
    for step in result.steps or ():
        texts = token_texts(tokenizer, step.emitted)
        num_drafts = min(len(step.accepted) - 1, len(texts))
        bonus = texts[num_drafts] if num_drafts < len(texts) else None
        origins.append(StepTokens(texts[:num_drafts], bonus))
    return origins


def _show_run(run: TaskRun, target: Target, tokenizer: Any, show: Print, marks: Marks) -> None:
    """Print one task's output, its tokens marked by origin, and how it compares to plain decoding."""
    result = run.result
    show(f"== {run.task.name} == (drafted tokens {'in ⟦ ⟧' if marks is BRACKETS else 'green and underlined'})")
    show(f"-- prompt: {run.task.prompt.splitlines()[0]}")
    show(tokens_terminal(origin_of_tokens(tokenizer, result), marks))
    show(
        f"-- {len(result.token_ids)} tokens in {result.num_steps} verify forwards: accept length "
        f"{result.accept_length:.2f}; {result.num_correct_drafts} of {result.num_proposed_drafts} drafts correct; "
        f"ended by {result.finish_reason}"
    )
    plain = run.measured["plain"].token_ids
    if result.token_ids == plain:
        show("-- the same tokens as plain decoding\n")
        return
    pairs = enumerate(zip(result.token_ids, plain, strict=False))
    first = next((place for place, (one, other) in pairs if one != other), min(len(result.token_ids), len(plain)))
    show(f"-- other tokens than model.generate from token {first} on")
    show(f"-- replayed one token a forward: {audit(target, result)}\n")


def _validity(result: Result) -> str:
    """Say whether a text is what the schema asks for, by another library than the one that constrained it."""
    try:
        jsonschema.validate(json.loads(result.text or ""), PEOPLE_SCHEMA)
    except (ValueError, jsonschema.ValidationError) as error:
        return f"NOT valid ({error}; ended by {result.finish_reason})"
    return "valid by the schema"


def _show_grammar_runs(plain: Timed, trees: Timed, tokenizer: Any, show: Print, marks: Marks) -> None:
    """Print the grammar task's output, whether it is valid, and what the grammar walk took."""
    result = trees.result
    show(f"== {GRAMMAR_TASK.name} == (every node of a tree masked by the grammar)")
    show(f"-- prompt: {GRAMMAR_TASK.prompt.splitlines()[0]}")
    show(tokens_terminal(origin_of_tokens(tokenizer, result), marks))
    walk = 1e3 * median(step.times.walk for step in result.steps or ())
    forward = 1e3 * median(step.times.verify for step in result.steps or ())
    show(
        f"-- {_validity(result)}; {len(result.token_ids)} tokens in {result.num_steps} verify forwards: accept length "
        f"{result.accept_length:.2f}; a grammar walk takes {walk:.2f} ms, a verify forward {forward:.0f} ms"
    )
    same = "the same tokens as" if result.token_ids == plain.result.token_ids else "OTHER TOKENS THAN"
    fast, slow = len(result.token_ids) / trees.seconds, len(plain.result.token_ids) / plain.seconds
    show(
        f"-- {same} under the grammar one at a time; tokens per second: trees {fast:.1f}, one at a time {slow:.1f} "
        f"({fast / slow:.2f}x)\n"
    )


def verdict(runs: list[TaskRun]) -> str:
    """Say where n-gram trees lost in these runs, and why that happens.

    Args:
        runs: of the demo's tasks.
    """
    ways = {run.task.name: [run.measured[way].tokens_per_second for way in WAYS] for run in runs}
    lost = [name for name, (plain, lookup, trees) in ways.items() if trees < max(plain, lookup)]
    names = ", ".join(lost) or "no task"
    return (
        f"\nN-gram trees lost here on: {names}. They win where a text repeats its prompt or itself. On other texts\n"
        "there is little to look up: a verify forward emits little more than one token, and costs more than a plain\n"
        "one wherever a forward over a whole tree takes longer than one over a single token."
    )


def _table(runs: list[TaskRun]) -> list[str]:
    """Tabulate the runs."""
    lines = [
        f"{'':<14}{'accept':>7}{'verify':>10}{'new':>8}{'tokens per second':>28}{'speed-up over':>19}",
        f"{'':<14}{'length':>7}{'forwards':>10}{'tokens':>8}{'plain':>10}{'lookup':>9}{'trees':>9}{'plain':>10}{'lookup':>9}",
    ]
    for run in runs:
        plain, lookup, trees = (run.measured[way].tokens_per_second for way in WAYS)
        lines.append(
            f"{run.task.name:<14}{run.result.accept_length:>7.2f}{run.result.num_steps:>10}"
            f"{len(run.result.token_ids):>8}{plain:>10.1f}{lookup:>9.1f}{trees:>9.1f}"
            f"{trees / plain:>9.2f}x{trees / lookup:>8.2f}x"
        )
    return lines
