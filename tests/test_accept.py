"""Acceptance: the closed form over the mask against a walk down the lists of children."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from oracles import (
    all_parent_vectors,
    allows,
    brute_accept,
    brute_children,
    brute_links,
    brute_mask,
    brute_masks,
    distinct_tokens,
    padded,
    random_parents,
)
from torch._subclasses.fake_tensor import FakeTensorMode

from ngram_ref.core.accept import (
    AcceptResult,
    accept_by_links,
    accept_greedy,
    accept_targets,
    mask_logits,
    target_tokens,
)

Rows = list[list[int]]


def accept(targets: Rows, tokens: Rows, batch: Rows) -> AcceptResult:
    return accept_targets(torch.tensor(targets), torch.tensor(tokens), torch.from_numpy(brute_masks(batch)))


def check_against_walk(targets: Rows, tokens: Rows, batch: Rows) -> None:
    """Compare the closed form and the walk over the links with the walk over lists of children."""
    n = len(batch[0])
    expected = [brute_accept(*row) for row in zip(targets, tokens, batch, strict=True)]
    result = accept(targets, tokens, batch)
    assert result.accept_index.tolist() == [padded(path, n) for path, _ in expected]
    assert result.tokens.tolist() == [padded(emitted, n) for _, emitted in expected]
    assert result.accept_length.tolist() == [len(emitted) for _, emitted in expected]
    assert {array.dtype for array in result} == {torch.int64}
    links = [np.array(rows) for rows in zip(*(brute_links(parents) for parents in batch), strict=True)]
    assert accept_by_links(np.array(targets), np.array(tokens), *links) == [path for path, _ in expected]


def draw_targets(rng: np.random.Generator, tokens: list[int], parents: list[int], vocab_size: int) -> list[int]:
    """Draw target tokens: mostly the token of some child, else any token, or −1 for nothing allowed."""
    targets = [int(token) for token in rng.integers(-1, vocab_size, len(parents))]
    for node, children in enumerate(brute_children(parents)):
        if children and rng.random() < 0.8:
            targets[node] = tokens[int(rng.choice(children))]
    return targets


@pytest.mark.parametrize("vocab_size", [5, 6, 50, 2**62])
def test_closed_form_equals_the_walk_on_every_small_tree(vocab_size: int) -> None:
    rng = np.random.default_rng(0)
    for n in range(1, 7):
        batch = list(all_parent_vectors(n)) * 5
        drawn = [distinct_tokens(rng, parents, min(vocab_size, 50)) for parents in batch]
        # Large ids: the sums and comparisons must not go through a narrower type.
        tokens = [[token * (vocab_size // min(vocab_size, 50)) for token in row] for row in drawn]
        targets = [draw_targets(rng, row, p, vocab_size) for row, p in zip(tokens, batch, strict=True)]
        check_against_walk(targets, tokens, batch)


@pytest.mark.parametrize("n", [8, 12, 33, 64, 65, 130])
def test_closed_form_equals_the_walk_on_random_trees(n: int) -> None:
    rng = np.random.default_rng(n)
    batch = [random_parents(rng, n, int(rng.integers(n))) for _ in range(60)]
    tokens = [distinct_tokens(rng, parents, n) for parents in batch]
    check_against_walk([draw_targets(rng, row, p, n) for row, p in zip(tokens, batch, strict=True)], tokens, batch)


def test_a_fully_accepted_chain_of_the_trees_size() -> None:
    chain = list(range(-1, 6))
    check_against_walk([[1, 2, 3, 4, 5, 6, 7]], [[0, 1, 2, 3, 4, 5, 6]], [chain])


def test_pads_are_never_chosen_though_every_node_wants_token_0() -> None:
    result = accept([[0, 0, 0, 0]], [[0, 0, 0, 0]], [[-1, 0, -1, -1]])
    assert result.accept_index.tolist() == [[0, 1, -1, -1]]
    assert result.tokens.tolist() == [[0, 0, -1, -1]]


def test_an_illegal_target_chooses_no_child_whatever_the_child_carries() -> None:
    """Token −1 is no valid token; the target −1 still means "none" and never a match."""
    result = accept([[-1, 5]], [[3, -1]], [[-1, 0]])
    assert result.accept_index.tolist() == [[0, -1]]
    assert result.accept_length.tolist() == [0]


def test_a_dead_end_gives_no_bonus_and_counts_the_drafts_alone() -> None:
    result = accept([[5, -1, 9], [-1, 5, 9], [5, 6, -1]], [[3, 5, 6]] * 3, [[-1, 0, 1]] * 3)
    assert result.accept_index.tolist() == [[0, 1, -1], [0, -1, -1], [0, 1, 2]]
    assert result.tokens.tolist() == [[5, -1, -1], [-1, -1, -1], [5, 6, -1]]
    assert result.accept_length.tolist() == [1, 0, 2]


def test_length_counts_correct_drafts_plus_the_bonus_and_tokens_are_their_ids() -> None:
    rng = np.random.default_rng(1)
    batch = [random_parents(rng, 12, 2) for _ in range(50)]
    tokens = [distinct_tokens(rng, parents, 12) for parents in batch]
    targets = [[max(t, 0) for t in draw_targets(rng, *row, 12)] for row in zip(tokens, batch, strict=True)]
    result = accept(targets, tokens, batch)
    for b, (index, length) in enumerate(zip(result.accept_index.tolist(), result.accept_length.tolist(), strict=True)):
        path = [node for node in index if node >= 0]
        assert index == padded(path, 12)
        assert [batch[b][node] for node in path] == [-1, *path[:-1]]  # a path: each node is the next one's parent
        assert length == len(path) - 1 + 1
        assert result.tokens[b].tolist() == padded([*(tokens[b][node] for node in path[1:]), targets[b][path[-1]]], 12)


WORKED_TOKENS, WORKED_PARENTS = [7, 20, 10, 21, 11, 30], [-1, 0, 0, 1, 2, 2]


def one_hot(targets: Rows, vocab_size: int) -> torch.Tensor:
    return torch.nn.functional.one_hot(torch.tensor(targets), vocab_size).float()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_upstreams_worked_example(dtype: torch.dtype) -> None:
    logits = one_hot([[10, 1, 30, 1, 1, 99]], 100).to(dtype)
    result = accept_greedy(logits, torch.tensor([WORKED_TOKENS]), torch.from_numpy(brute_masks([WORKED_PARENTS])))
    assert result.accept_index.tolist() == [[0, 2, 5, -1, -1, -1]]
    assert result.accept_length.tolist() == [3]
    assert result.tokens.tolist() == [[10, 30, 99, -1, -1, -1]]


def test_a_bitmask_turns_the_worked_example_to_the_best_allowed_child() -> None:
    logits = one_hot([[10, 1, 30, 1, 1, 99]], 100)
    logits[0, 0, 20] = logits[0, 1, 21] = 0.5
    bitmask = torch.full((6, 4), -1, dtype=torch.int32)
    bitmask[0, 0] &= ~(1 << 10)
    bitmask[1, 0] = 1 << 21
    result = accept_greedy(
        logits, torch.tensor([WORKED_TOKENS]), torch.from_numpy(brute_masks([WORKED_PARENTS])), bitmask
    )
    assert result.tokens.tolist() == [[20, 21, 1, -1, -1, -1]]


def random_words(rng: np.random.Generator, rows: int, vocab_size: int) -> np.ndarray:
    """Draw bitmask rows from dense to sparse, some with nothing or only bit 31 set, bits behind V set at random."""
    words = (vocab_size + 31) // 32
    bits = rng.random((rows, 32 * words)) < rng.choice([0.0, 0.02, 0.5, 1.0], size=(rows, 1))
    bits[::5] = np.arange(32 * words) % 32 == 31
    bits[:, vocab_size:] = rng.random((rows, 32 * words - vocab_size)) < 0.5
    return np.packbits(bits, axis=1, bitorder="little").view("<i4")


@pytest.mark.parametrize("vocab_size", [1, 2, 31, 32, 33, 64, 100])
def test_target_tokens_equal_a_plain_loop_over_the_allowed_tokens(vocab_size: int) -> None:
    rng = np.random.default_rng(vocab_size)
    bs, n = 6, 7
    logits = rng.permuted(np.tile(np.arange(vocab_size), (bs, n, 1)), axis=2) - 50.0  # no ties; negative ones too
    words = random_words(rng, bs * n, vocab_size)
    expected = []
    for row, values in zip(words, logits.reshape(bs * n, vocab_size), strict=True):
        allowed = [token for token in range(vocab_size) if allows(row, token)]
        expected.append(max(allowed, key=lambda token, values=values: values[token], default=-1))
    assert (words < 0).any()
    assert -1 in expected
    targets = target_tokens(torch.from_numpy(logits), torch.from_numpy(words.copy()))
    assert targets.dtype == torch.int64
    assert targets.flatten().tolist() == expected


@pytest.mark.parametrize("vocab_size", [1, 31, 32, 33, 100])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_masking_asks_every_bit(vocab_size: int, dtype: torch.dtype) -> None:
    words = random_words(np.random.default_rng(vocab_size), 6, vocab_size)
    logits = torch.randn(2, 3, vocab_size, dtype=dtype, generator=torch.Generator().manual_seed(0))
    masked = mask_logits(logits, torch.from_numpy(words.copy())).reshape(6, vocab_size).tolist()
    for row, before, after in zip(words, logits.reshape(6, vocab_size).tolist(), masked, strict=True):
        assert after == [value if allows(row, v) else float("-inf") for v, value in enumerate(before)]


def test_without_a_bitmask_and_with_all_ones_the_target_is_the_argmax() -> None:
    logits = torch.randn(2, 3, 70, generator=torch.Generator().manual_seed(0))
    ones = torch.full((6, 3), -1, dtype=torch.int32)
    assert target_tokens(logits).tolist() == target_tokens(logits, ones).tolist() == logits.argmax(-1).tolist()


def test_among_tied_tokens_an_allowed_one_is_taken() -> None:
    bitmask = torch.tensor([[0b0110], [-1]], dtype=torch.int32)
    first, second = target_tokens(torch.zeros(1, 2, 4), bitmask)[0].tolist()
    assert first in (1, 2)
    assert second in (0, 1, 2, 3)


@pytest.mark.parametrize("value", [float("-inf"), torch.finfo(torch.float32).min, float("nan")])
def test_an_allowed_token_is_taken_even_if_its_logit_is_the_least(value: float) -> None:
    logits = torch.tensor([[[3.0, 2.0, value, 1.0]]])
    assert target_tokens(logits, torch.tensor([[0b0100]], dtype=torch.int32)).tolist() == [[2]]


def test_what_the_bitmask_forbids_never_matters() -> None:
    logits = torch.tensor([[[float("inf"), 1.0, 2.0, float("nan")]]])
    assert target_tokens(logits, torch.tensor([[0b0110]], dtype=torch.int32)).tolist() == [[2]]


def test_logits_are_left_as_they_are() -> None:
    logits = torch.randn(1, 2, 40)
    before = logits.clone()
    accept_greedy(logits, torch.zeros(1, 2, dtype=torch.int64), MASK[:, :2, :2], torch.zeros(2, 2, dtype=torch.int32))
    assert torch.equal(logits, before)


LOGITS, TOKENS = torch.zeros(1, 3, 40), torch.zeros(1, 3, dtype=torch.int64)
MASK = torch.from_numpy(brute_mask([-1, 0, 1]))[None]
BITS = torch.full((3, 2), -1, dtype=torch.int32)


@pytest.mark.parametrize(
    ("logits", "tokens", "mask", "bitmask", "error", "message"),
    [
        pytest.param(LOGITS.long(), TOKENS, MASK, BITS, TypeError, "floating point", id="integer logits"),
        pytest.param(LOGITS, TOKENS.int(), MASK, BITS, TypeError, "tokens int64", id="int32 tokens"),
        pytest.param(LOGITS, TOKENS, MASK.long(), BITS, TypeError, "mask bool", id="int64 mask"),
        pytest.param(LOGITS, TOKENS, MASK, BITS.long(), TypeError, "bitmask must be int32", id="int64 bitmask"),
        pytest.param(LOGITS, TOKENS, MASK, BITS.bool(), TypeError, "bitmask must be int32", id="bool bitmask"),
        pytest.param(LOGITS[0], TOKENS, MASK, BITS, ValueError, "do not fit", id="flat logits"),
        pytest.param(LOGITS[:, :2], TOKENS, MASK, BITS, ValueError, "do not fit", id="too few logits"),
        pytest.param(LOGITS, TOKENS[:, :2], MASK, BITS, ValueError, "do not fit", id="too few tokens"),
        pytest.param(LOGITS, TOKENS[0], MASK, BITS, ValueError, "do not fit", id="flat tokens"),
        pytest.param(LOGITS, TOKENS, MASK[:, :2], BITS, ValueError, "do not fit", id="mask not square"),
        pytest.param(LOGITS, TOKENS, MASK[0], BITS, ValueError, "do not fit", id="mask without a batch"),
        pytest.param(LOGITS, TOKENS, MASK, BITS[:2], ValueError, "bs \\* n", id="too few bitmask rows"),
        pytest.param(LOGITS, TOKENS, MASK, BITS[:, :1], ValueError, "V / 32", id="too few bitmask words"),
        pytest.param(LOGITS, TOKENS, MASK, BITS.repeat(1, 2), ValueError, "V / 32", id="too many bitmask words"),
        pytest.param(LOGITS, TOKENS, MASK, BITS[None], ValueError, "bs \\* n", id="bitmask with three axes"),
    ],
)
def test_refuses(
    logits: torch.Tensor,
    tokens: torch.Tensor,
    mask: torch.Tensor,
    bitmask: torch.Tensor,
    error: type[Exception],
    message: str,
) -> None:
    with pytest.raises(error, match=message):
        accept_greedy(logits, tokens, mask, bitmask)


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("with_bitmask", [False, True])
def test_nothing_is_read_back(device: str, with_bitmask: bool) -> None:
    """Fake tensors hold no values: `.item()`, `nonzero`, `if tensor:` and a mix of devices raise on them."""
    with FakeTensorMode():
        result = accept_greedy(
            torch.ones(3, 12, 100, device=device),
            torch.ones(3, 12, dtype=torch.int64, device=device),
            torch.ones(3, 12, 12, dtype=torch.bool, device=device),
            torch.ones(36, 4, dtype=torch.int32, device=device) if with_bitmask else None,
        )
    assert [tuple(array.shape) for array in result] == [(3, 12), (3,), (3, 12)]
    assert {(array.dtype, array.device.type) for array in result} == {(torch.int64, device)}


def random_step(seed: int, bs: int, n: int, vocab_size: int) -> tuple[Rows, Rows, Rows, torch.Tensor, torch.Tensor]:
    """Draw trees, and logits and a bitmask that make the drawn targets the best allowed tokens, or allow nothing."""
    rng = np.random.default_rng(seed)
    batch = [random_parents(rng, n, int(rng.integers(n))) for _ in range(bs)]
    tokens = [distinct_tokens(rng, parents, vocab_size) for parents in batch]
    targets = [draw_targets(rng, row, p, vocab_size) for row, p in zip(tokens, batch, strict=True)]
    flat = [target for row in targets for target in row]
    logits = rng.standard_normal((bs * n, vocab_size))
    bits = rng.random((bs * n, 32 * ((vocab_size + 31) // 32))) < 0.5
    for row, target in enumerate(flat):
        if target < 0:
            bits[row] = False
        else:
            logits[row, target], bits[row, target] = logits[row][bits[row, :vocab_size]].max(initial=0.0) + 1.0, True
    words = np.packbits(bits, axis=1, bitorder="little").view("<i4")
    return targets, tokens, batch, torch.from_numpy(logits).view(bs, n, -1), torch.from_numpy(words)


def check_step(run: Callable[..., AcceptResult], seed: int, device: str) -> None:
    targets, tokens, batch, logits, bitmask = random_step(seed, bs=16, n=24, vocab_size=96)
    arguments = [logits, torch.tensor(tokens), torch.from_numpy(brute_masks(batch)), bitmask]
    result = run(*(argument.to(device) for argument in arguments))
    expected = [brute_accept(*row) for row in zip(targets, tokens, batch, strict=True)]
    assert result.accept_index.tolist() == [padded(path, 24) for path, _ in expected]
    assert result.tokens.tolist() == [padded(emitted, 24) for _, emitted in expected]
    assert result.accept_length.tolist() == [len(emitted) for _, emitted in expected]


@pytest.mark.parametrize("seed", range(10))
def test_from_logits_and_bitmask_to_tokens(seed: int) -> None:
    check_step(accept_greedy, seed, "cpu")


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_accepts_without_a_sync_and_in_a_graph() -> None:
    static: list[torch.Tensor] = []
    graph = torch.cuda.CUDAGraph()

    def run_strictly(*arguments: torch.Tensor) -> AcceptResult:
        torch.cuda.set_sync_debug_mode("error")
        try:
            return accept_greedy(*arguments)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    def run_captured(*arguments: torch.Tensor) -> AcceptResult:
        for buffer, argument in zip(static, arguments, strict=True):
            buffer.copy_(argument)
        graph.replay()
        return captured

    _, tokens, batch, logits, bitmask = random_step(0, bs=16, n=24, vocab_size=96)
    static += [x.cuda() for x in (logits, torch.tensor(tokens), torch.from_numpy(brute_masks(batch)), bitmask)]
    accept_greedy(*static)  # warm up: the first call may allocate and load kernels
    with torch.cuda.graph(graph):
        captured = accept_greedy(*static)
    for seed in range(3):
        check_step(run_strictly, seed, "cuda")
        check_step(run_captured, seed, "cuda")
