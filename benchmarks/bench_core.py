"""Time the host work of a step: links, drafting, learning; and the memory of the corpus.

    python benchmarks/bench_core.py --out benchmarks/results/core.json

Times are the smallest of several repeats: what the code needs when nothing disturbs it.
"""

from __future__ import annotations

import argparse
import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np

from ngram_ref.core.corpus import DraftConfig, NgramCorpus
from ngram_ref.core.links import derive_tree_links, derive_tree_links_vectorized
from ngram_ref.core.tree import ancestor_mask
from ngram_ref.lab.machine import describe_run
from ngram_ref.lab.timing import best_time

LINK_SHAPES = [(1, 12), (8, 32), (48, 64)]  # (bs, n)
CORPUS_SIZES = [1_000, 10_000, 100_000]  # tokens learned
NUM_DRAFT_TOKENS = 12
VOCAB_SIZE = 32_000


def random_masks(rng: np.random.Generator, bs: int, n: int) -> np.ndarray:
    """Draw full trees in which each node hangs below any earlier one."""
    return ancestor_mask([[-1, *(int(rng.integers(0, node)) for node in range(1, n))] for _ in range(bs)])


def make_text(rng: np.random.Generator, length: int) -> list[int]:
    """Make a text as models write them: Zipf-distributed words, and in half of the places a phrase said before."""
    text: list[int] = []
    while len(text) < length:
        if len(text) > 100 and rng.random() < 0.2:
            start, size = int(rng.integers(len(text) - 40)), int(rng.integers(5, 40))
            text += text[start : start + size]
        else:
            text += (rng.zipf(1.3, size=5) % VOCAB_SIZE).tolist()
    return text[:length]


def bench_links() -> list[dict[str, Any]]:
    """Time the scan against its vectorised twin."""
    rows = []
    for bs, n in LINK_SHAPES:
        masks = random_masks(np.random.default_rng(0), bs, n)
        scan = best_time(lambda masks=masks: derive_tree_links(masks), seconds=1.0) * 1e6
        vectorized = best_time(lambda masks=masks: derive_tree_links_vectorized(masks), seconds=1.0) * 1e6
        rows.append({"bs": bs, "n": n, "scan_us": scan, "vectorized_us": vectorized, "ratio": scan / vectorized})
    return rows


def bench_corpus(match_type: str, size: int) -> dict[str, Any]:
    """Time learning and drafting of one corpus, and weigh it."""
    text = make_text(np.random.default_rng(1), size + 1_000)
    learned, following = text[:size], text[size:]
    config = DraftConfig(num_draft_tokens=NUM_DRAFT_TOKENS, match_type=match_type, capacity=4_000_000)  # type: ignore[arg-type]

    def learn() -> NgramCorpus:
        corpus = NgramCorpus(config)
        corpus.insert(learned)
        return corpus

    learn_time = best_time(learn, seconds=0.0)
    tracemalloc.start()
    corpus = learn()
    memory = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    contexts = [text[:end] for end in range(size, size + len(following), 10)]
    drafting = best_time(lambda: [corpus.draft([context]) for context in contexts], seconds=0.5)
    batch = best_time(lambda: corpus.draft(contexts[:48]), seconds=0.5)
    real = np.mean([(~corpus.draft([context]).is_padding).sum() for context in contexts])
    return {
        "match_type": match_type,
        "learned_tokens": size,
        "nodes": len(corpus.trie),
        "learn_us_per_token": learn_time / size * 1e6,
        "bytes_per_node": memory / len(corpus.trie),
        "draft_us_per_request_bs1": drafting / len(contexts) * 1e6,
        "draft_us_per_request_bs48": batch / 48 * 1e6,
        "mean_real_nodes": float(real),
    }


def print_table(title: str, rows: list[dict[str, Any]]) -> None:
    """Print rows under their keys."""
    print(f"\n{title}\n" + "  ".join(rows[0]))
    for row in rows:
        cells = (f"{value:.1f}" if isinstance(value, float) else str(value) for value in row.values())
        print("  ".join(cell.rjust(len(key)) for key, cell in zip(row, cells, strict=True)))


def main() -> None:
    """Run everything, print it, and write it where `--out` says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, metavar="FILE.json", help="write the numbers there")
    out = parser.parse_args().out
    links = bench_links()
    print_table("links, microseconds per call", links)
    corpus = [bench_corpus(match_type, size) for match_type in ("BFS", "PROB") for size in CORPUS_SIZES]
    print_table(f"corpus, n = {NUM_DRAFT_TOKENS}", corpus)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps({"run": describe_run(), "links": links, "corpus": corpus}, indent=1) + "\n")


if __name__ == "__main__":
    main()
