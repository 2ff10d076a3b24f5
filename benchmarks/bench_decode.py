"""Decode the demo's tasks plainly, by prompt lookup and through n-gram trees, interleaved, in one run.

usage: python benchmarks/bench_decode.py [--repeats 5] [--num-draft-tokens 12] [--out benchmarks/decode_cpu.json]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import median
from typing import Any

import ngram_ref as nr
from ngram_ref.engine.batch import StepTimes
from ngram_ref.lab.demo import WAYS, decode_task
from ngram_ref.lab.machine import describe_run
from ngram_ref.lab.tasks import TASKS


def main() -> None:
    """Measure, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--num-draft-tokens", type=int, default=12)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    model, tokenizer = nr.load_model()
    target = nr.Target(model)
    decode_task(target, tokenizer, TASKS[0], options.num_draft_tokens)  # warm-up
    record = {"run": describe_run(model), "num_draft_tokens": options.num_draft_tokens, "tasks": []}
    for task in TASKS:
        # Interleaved: each repeat runs all ways, so that a slow minute of the machine touches all of them.
        runs = [decode_task(target, tokenizer, task, options.num_draft_tokens) for _ in range(options.repeats)]
        record["tasks"].append(_summarise(task.name, runs))
        _print_row(record["tasks"][-1])
    if options.out:
        options.out.write_text(json.dumps(record, indent=1) + "\n")


def _summarise(name: str, runs: list[Any]) -> dict[str, Any]:
    """Take medians over the repeats of one task."""
    rates = {way: median(run.measured[way].tokens_per_second for run in runs) for way in WAYS}
    result = runs[0].result
    steps = [step.times for run in runs for step in run.result.steps]
    milliseconds = {part: 1e3 * median(getattr(times, part) for times in steps) for part in StepTimes._fields}
    return {
        "task": name,
        "new_tokens": len(result.token_ids),
        "num_steps": result.num_steps,
        "accept_length": result.accept_length,
        "same_tokens": all(run.result.token_ids == run.measured["plain"].token_ids for run in runs),
        "tokens_per_second": rates,
        "trees_against_plain": rates["trees"] / rates["plain"],
        "trees_against_lookup": rates["trees"] / rates["lookup"],
        "step_milliseconds": milliseconds,
        "host_share": 1 - milliseconds["verify"] / sum(milliseconds.values()),
    }


def _print_row(row: dict[str, Any]) -> None:
    """Print one task's summary."""
    rates = "  ".join(f"{way} {rate:6.1f}" for way, rate in row["tokens_per_second"].items())
    print(
        f"{row['task']:<14} accept length {row['accept_length']:5.2f}  tokens/s: {rates}  "
        f"x{row['trees_against_plain']:.2f} plain  x{row['trees_against_lookup']:.2f} lookup  "
        f"outside the forward {100 * row['host_share']:.1f} %  same tokens: {row['same_tokens']}",
        flush=True,
    )


if __name__ == "__main__":
    main()
