"""Time the grammar side of a step: the three walks, compiling, an expensive grammar, masking on the device side.

usage: python benchmarks/bench_grammar.py [--out benchmarks/grammar_cpu.json]

Host times are the smallest of several repeats: what the code needs when nothing disturbs it. They are taken with one
torch thread, since a second one helps no walk, and clearing the bitmask (from 22 rows of 1,536 words on) would wait for
it. Those of the model are medians, with all threads.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import torch

import ngram_ref as nr
from ngram_ref.core.accept import target_tokens
from ngram_ref.core.links import derive_tree_links_vectorized
from ngram_ref.core.walk import fill_tree_bitmask, fill_tree_bitmask_recursive
from ngram_ref.grammar.compiler import CompiledGrammar
from ngram_ref.grammar.native_walk import fill_tree_bitmask_native
from ngram_ref.lab.machine import describe_run
from ngram_ref.lab.tasks import RECORD, RECORD_SCHEMA
from ngram_ref.lab.timing import best_time


def _engine_alone(states: Any, tree: nr.DraftTree, next_token: Any, next_sibling: Any, bitmask: torch.Tensor) -> None:
    """Call xgrammar's walk and nothing else: rows of refused and last nodes are zero, others may be left out."""
    n = tree.tokens.shape[1]
    for b, state in enumerate(states):
        rows = bitmask[b * n : (b + 1) * n]
        state.traverse_draft_tree(next_token[b], next_sibling[b], tree.tokens[b], rows)


WALKS = {
    "engine": _engine_alone,
    "native": fill_tree_bitmask_native,
    "lean": fill_tree_bitmask,
    "recursive": fill_tree_bitmask_recursive,
}
SIZES = (8, 16, 32, 64)
PLACES = 6  # trees per size, at as many places of the text


WORDS = "([a-zA-Z]+[ ,.]+)*[a-zA-Z]+"  # nearly every token crosses the border of the repeated group
WORDS_CHEAP = "[a-zA-Z]([a-zA-Z ,.]*[a-zA-Z])?"  # the same texts


class Model(NamedTuple):
    """The default model and what grammars need of it."""

    target: nr.Target
    tokenizer: Any
    vocab_size: int
    stop_token_ids: tuple[int, ...]

    @property
    def words(self) -> int:
        """Give W, the int32 words of a bitmask row."""
        return (self.vocab_size + 31) // 32

    def compile(self, grammar: Any) -> CompiledGrammar:
        """Compile a description for the model."""
        compiled: CompiledGrammar = grammar.compile(self.tokenizer, self.vocab_size, self.stop_token_ids)
        return compiled


def main() -> None:
    """Measure, print, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    loaded, tokenizer = nr.load_model(device="cpu", dtype="float32")
    target = nr.Target(loaded)
    model = Model(target, tokenizer, target.facts.vocab_size, (loaded.generation_config.eos_token_id,))
    record = {"run": describe_run(loaded), "mask": bench_mask(model)}
    torch.set_num_threads(1)
    record |= {
        "walks": bench_walks(model),
        "step": bench_step(model),
        "compile": bench_compile(model),
        "words": bench_words(model),
    }
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(record, indent=1) + "\n")


# Trees


def allowed_ids(state: Any, words: int) -> np.ndarray:
    """List the ids that a state allows."""
    row = torch.zeros(1, words, dtype=torch.int32)
    state.fill_next_token_bitmask(row, 0)
    return np.flatnonzero(np.unpackbits(row.numpy().view(np.uint8), bitorder="little"))


def draw_tree(rng: np.random.Generator, state: Any, truth: Sequence[int], n: int, is_chain: bool, words: int) -> Any:
    """Draw a tree of legal tokens: the true continuation, and off it whatever is legal; at most n nodes."""
    tokens, parents, states, depths = [0], [-1], [state], [0]
    for _ in range(20 * n):
        if len(tokens) == n:
            break
        parent = len(tokens) - 1 if is_chain else int(rng.integers(max(0, len(tokens) - 4), len(tokens)))
        legal = allowed_ids(states[parent], words) if not states[parent].is_terminated() else []
        if len(legal) == 0:
            if is_chain:
                break
            continue
        depth = depths[parent]
        follows = depth < len(truth) and truth[depth] in legal
        token = truth[depth] if follows and (is_chain or rng.random() < 0.5) else int(rng.choice(legal))
        if (token, parent) in zip(tokens, parents, strict=True):
            continue
        behind = states[parent].fork()
        behind.accept_token(token)
        tokens.append(token)
        parents.append(parent)
        states.append(behind)
        depths.append(depth + 1)
    return tokens + [0] * (n - len(tokens)), parents + [-1] * (n - len(parents))


def trees_along(model: Model, grammar: CompiledGrammar, text: str, n: int, is_chain: bool) -> list[tuple[Any, Any]]:
    """Draw trees at several places of a text, each with the state that stands there."""
    rng, ids = np.random.default_rng(n), model.tokenizer(text).input_ids
    drawn = []
    for place in np.linspace(0, len(ids) // 2, PLACES).astype(int).tolist():
        state = grammar.start()
        for token in ids[:place]:
            if not state.accept_token(token):
                raise RuntimeError(f"{text!r} is no text of its grammar")
        drawn.append((state, draw_tree(rng, state, ids[place:], n, is_chain, model.words)))
    return drawn


# Measurements


def bench_walks(model: Model) -> list[dict[str, Any]]:
    """Time the three walks, without links and without allocating the bitmask."""
    schema, anything = model.compile(nr.json_schema(RECORD_SCHEMA)), model.compile(nr.any_json())
    text = json.dumps(RECORD)
    rows = []
    for name, grammar in (("schema", schema), ("any JSON", anything)):
        for shape in ("chain", "bushy"):
            rows += [
                {"grammar": name, "shape": shape, **_time_walks(model, grammar, text, n, shape == "chain")}
                for n in SIZES
            ]
    for row in rows:
        times = "".join(f"   {name} {row[f'{name}_us']:6.1f} us" for name in WALKS)
        ratios = ", ".join(f"{name} x{row[f'{name}_ratio']:.1f}" for name in WALKS if name != "native")
        print(
            f"{row['grammar']:<9} {row['shape']:<6} {row['nodes']:4.1f} nodes{times}   against native: {ratios}",
            flush=True,
        )
    return rows


def _time_walks(model: Model, grammar: CompiledGrammar, text: str, n: int, is_chain: bool) -> dict[str, Any]:
    """Time the walks over trees of one size: means over the trees of the best times."""
    bitmask = torch.empty(n, model.words, dtype=torch.int32)
    times: dict[str, list[float]] = {name: [] for name in WALKS}
    nodes = []
    for state, (tokens, parents) in trees_along(model, grammar, text, n, is_chain):
        tree = nr.DraftTree.from_parents([tokens], [parents])
        links = derive_tree_links_vectorized(tree.mask)
        nodes.append(1 + sum(parent >= 0 for parent in parents))
        for name, walk in WALKS.items():
            call = lambda walk=walk, state=state, tree=tree, links=links: walk([state], tree, *links, bitmask)  # noqa: E731
            times[name].append(best_time(call))
    means = {name: 1e6 * float(np.mean(values)) for name, values in times.items()}
    ratios = {f"{name}_ratio": means[name] / means["native"] for name in ("engine", "lean", "recursive")}
    return {"n": n, "nodes": float(np.mean(nodes)), **{f"{name}_us": mean for name, mean in means.items()}, **ratios}


def bench_step(model: Model, bs: int = 8, n: int = 16) -> dict[str, Any]:
    """Time the whole host side of a grammar step: links, walk and fill of a new bitmask; the target is 1 ms."""
    drawn = trees_along(model, model.compile(nr.json_schema(RECORD_SCHEMA)), json.dumps(RECORD), n, is_chain=False)
    drawn = [drawn[index % len(drawn)] for index in range(bs)]
    states = [state.fork() for state, _ in drawn]
    tree = nr.DraftTree.from_parents([tokens for _, (tokens, _) in drawn], [parents for _, (_, parents) in drawn])

    def step(walk: Any) -> None:
        bitmask = torch.empty(bs * n, model.words, dtype=torch.int32)
        walk(states, tree, *derive_tree_links_vectorized(tree.mask), bitmask)

    times = {f"{name}_us": 1e6 * best_time(lambda walk=walk: step(walk), 0.3) for name, walk in WALKS.items()}
    links = 1e6 * best_time(lambda: derive_tree_links_vectorized(tree.mask), 0.1)
    print(f"step of {bs} x {n} nodes: links {links:.0f} us, with walk and fill ", end="")
    print(", ".join(f"{name} {times[f'{name}_us']:.0f} us" for name in WALKS), flush=True)
    return {"bs": bs, "n": n, "links_us": links, **times}


def bench_compile(model: Model) -> list[dict[str, Any]]:
    """Time compiling: with a new tokenizer (its tokens are read once), for a known one, and again."""
    grammars = {
        "three digits": nr.regex("[0-9]{3}"),
        "schema": nr.json_schema(RECORD_SCHEMA),
        "any JSON": nr.any_json(),
        "words": nr.regex(WORDS),
    }
    rows = []
    for name, grammar in grammars.items():
        fresh = model._replace(tokenizer=deepcopy(model.tokenizer))
        start = perf_counter()
        fresh.compile(grammar)
        with_tokens = perf_counter() - start
        fresh = model._replace(tokenizer=deepcopy(model.tokenizer))
        fresh.compile(nr.regex("warm"))
        start = perf_counter()
        fresh.compile(grammar)
        first = perf_counter() - start
        cached = best_time(lambda fresh=fresh, grammar=grammar: fresh.compile(grammar))
        rows.append(
            {
                "grammar": name,
                "new_tokenizer_ms": 1e3 * with_tokens,
                "first_ms": 1e3 * first,
                "cached_us": 1e6 * cached,
                "start_us": 1e6 * best_time(fresh.compile(grammar).start),
            }
        )
        print(
            f"compile {name:<12} new tokenizer {1e3 * with_tokens:6.1f} ms   first {1e3 * first:6.1f} ms   "
            f"cached {1e6 * cached:5.1f} us   new state {rows[-1]['start_us']:.1f} us",
            flush=True,
        )
    return rows


def bench_words(model: Model) -> dict[str, float]:
    """Time a row of an innocent grammar that is expensive, and of a cheap one that allows the same texts."""
    ids = model.tokenizer("The quick brown fox, the lazy dog").input_ids
    row = torch.zeros(1, model.words, dtype=torch.int32)
    result = {}
    for name, pattern in (("words", WORDS), ("words_cheap", WORDS_CHEAP)):
        state, times = model.compile(nr.regex(pattern)).start(), []
        for token in ids:
            state.accept_token(token)
            times.append(best_time(lambda state=state: state.fill_next_token_bitmask(row, 0)))
        result[f"{name}_us"] = 1e6 * median(times)
    result["ratio"] = result["words_us"] / result["words_cheap_us"]
    print(
        f"a row of {WORDS}: {result['words_us']:.0f} us, of {WORDS_CHEAP}: {result['words_cheap_us']:.1f} us "
        f"(x{result['ratio']:.0f})",
        flush=True,
    )
    return result


def bench_mask(model: Model, n: int = 16, repeats: int = 15) -> dict[str, float]:
    """Time target tokens with and without a bitmask beside the verify forward of one tree, in float32 on this CPU."""
    (state, (tokens, parents)), *_ = trees_along(
        model, model.compile(nr.json_schema(RECORD_SCHEMA)), json.dumps(RECORD), n, False
    )
    tokens[0] = 198
    tree = nr.DraftTree.from_parents([tokens], [parents])
    bitmask = torch.empty(n, model.words, dtype=torch.int32)
    fill_tree_bitmask([state], tree, *derive_tree_links_vectorized(tree.mask), bitmask)
    prompt = model.tokenizer("Write a record as JSON. " * 8).input_ids
    inputs = model.target.upload(tree, [len(prompt)])
    with model.target.exclusive():
        model.target.prefill(0, prompt)
        logits = model.target.verify(inputs)
        times: dict[str, list[float]] = {"forward": [], "masked": [], "plain": []}
        for _ in range(repeats):  # interleaved, so that a slow moment touches all of them
            for name, call in (
                ("forward", lambda: model.target.verify(inputs)),
                ("masked", lambda: target_tokens(logits, bitmask)),
                ("plain", lambda: target_tokens(logits)),
            ):
                start = perf_counter()
                call()
                times[name].append(perf_counter() - start)
    result = {f"{name}_ms": 1e3 * median(values) for name, values in times.items()}
    result |= {"n": n, "share_of_forward": (result["masked_ms"] - result["plain_ms"]) / result["forward_ms"]}
    print(
        f"target tokens at n={n}: plain {result['plain_ms']:.2f} ms, masked {result['masked_ms']:.2f} ms; forward "
        f"{result['forward_ms']:.1f} ms: masking adds {100 * result['share_of_forward']:.1f} %",
        flush=True,
    )
    return result


if __name__ == "__main__":
    main()
