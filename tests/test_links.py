"""Links: the scan, its vectorised twin and the device version against lists of children."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
import torch
from oracles import (
    all_parent_vectors,
    brute_links,
    brute_mask,
    brute_masks,
    brute_path,
    parents_from_links,
    random_parents,
    sglang_pads,
)
from torch._subclasses.fake_tensor import FakeTensorMode

from ngram_ref.core.links import (
    TreeIndices,
    derive_tree_links,
    derive_tree_links_vectorized,
    device_parents,
    reconstruct_indices_from_tree_mask,
)
from ngram_ref.core.tree import BoolArray, DraftTree, IntArray

HostLinks = Callable[[BoolArray], tuple[IntArray, IntArray]]
both_hosts = pytest.mark.parametrize("derive", [derive_tree_links, derive_tree_links_vectorized])


def device_indices(masks: BoolArray, seq_lens: list[int] | None = None) -> TreeIndices:
    lengths = torch.tensor(seq_lens if seq_lens is not None else [0] * len(masks))
    return reconstruct_indices_from_tree_mask(torch.from_numpy(masks.copy()), lengths)


def check_all_agree(batch: list[list[int]]) -> None:
    """Compare all three functions, given the whole batch at once, with the lists of children of each tree."""
    masks = brute_masks(batch)
    expected = [[brute_links(parents)[which] for parents in batch] for which in (0, 1)]
    for derive in (derive_tree_links, derive_tree_links_vectorized):
        links = derive(masks)
        assert [array.tolist() for array in links] == expected
        assert {(array.dtype, array.shape) for array in links} == {(np.dtype(np.int64), masks.shape[:2])}
    indices = device_indices(masks)
    assert [indices.next_token.tolist(), indices.next_sibling.tolist()] == expected
    assert {array.dtype for array in indices} == {torch.int64}


@pytest.mark.parametrize("n", range(1, 7))
def test_all_agree_on_every_small_tree(n: int) -> None:
    batch = list(all_parent_vectors(n))
    check_all_agree(batch)
    check_all_agree([sglang_pads(parents) for parents in batch])


@pytest.mark.parametrize("n", [7, 8, 9, 12, 16, 31, 32, 33, 47, 63, 64])
def test_all_agree_on_random_trees(n: int) -> None:
    rng = np.random.default_rng(n)
    batch = [random_parents(rng, n, int(rng.integers(n))) for _ in range(200)]
    check_all_agree(batch)
    check_all_agree([sglang_pads(parents) for parents in batch])


@pytest.mark.parametrize("n", [65, 130])
def test_all_agree_beyond_one_machine_word(n: int) -> None:
    rng = np.random.default_rng(n)
    check_all_agree([random_parents(rng, n, int(rng.integers(3))) for _ in range(10)])


@pytest.mark.parametrize("bs", [1024, 1025])
def test_the_vectorised_sort_key_holds_large_batches(bs: int) -> None:  # 1024 * 64 keys just fit 16 bits
    rng = np.random.default_rng(bs)
    batch = [random_parents(rng, 64, int(rng.integers(2))) for _ in range(16)]
    masks = np.resize(brute_masks(batch), (bs, 64, 64))
    links = [brute_links(batch[b % 16]) for b in range(bs)]
    next_token, next_sibling = derive_tree_links_vectorized(masks)
    assert next_token.tolist() == [row for row, _ in links]
    assert next_sibling.tolist() == [row for _, row in links]


WORKED_MASK = [
    [1, 0, 0, 0, 0, 0],
    [1, 1, 0, 0, 0, 0],
    [1, 0, 1, 0, 0, 0],
    [1, 1, 0, 1, 0, 0],
    [1, 0, 1, 0, 1, 0],
    [1, 0, 1, 0, 0, 1],
]


def test_upstreams_worked_example() -> None:
    mask = np.array([WORKED_MASK], dtype=bool)
    indices = device_indices(mask, [10])
    assert indices.positions.tolist() == [[10, 11, 11, 12, 12, 12]]
    assert indices.retrieve_index.tolist() == [[0, 1, 2, 3, 4, 5]]
    for next_token, next_sibling in (derive_tree_links(mask), derive_tree_links_vectorized(mask), indices[2:]):
        assert next_token.tolist() == [[1, 3, 4, -1, -1, -1]]
        assert next_sibling.tolist() == [[-1, 2, -1, -1, 5, -1]]


def test_upstreams_kernel_test_vector() -> None:
    mask = np.array([[[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 1, 1]]], dtype=bool)
    indices = device_indices(mask, [12])
    assert [row.tolist() for row in indices] == [
        [[12, 13, 13, 14]],
        [[0, 1, 2, 3]],
        [[1, -1, 3, -1]],
        [[-1, 2, -1, -1]],
    ]
    assert [row.tolist() for row in derive_tree_links(mask)] == [[[1, -1, 3, -1]], [[-1, 2, -1, -1]]]


def test_upstreams_flat_arrays_give_links_with_pads_as_the_roots_children() -> None:
    star = DraftTree.from_sglang([7, 0, 0, 0], [1, 0, 0, 0, 1, 1, 0, 0, 1, 0, 1, 0, 1, 0, 0, 1], bs=1)
    assert [row.tolist() for row in derive_tree_links(star.mask)] == [[[1, -1, -1, -1]], [[-1, 2, 3, -1]]]


def test_parents_come_back_from_the_links() -> None:
    rng = np.random.default_rng(3)
    batch = [random_parents(rng, 24, int(rng.integers(24))) for _ in range(100)]
    masks = brute_masks(batch)
    for derive in (derive_tree_links, derive_tree_links_vectorized, lambda masks: device_indices(masks)[2:]):
        next_token, next_sibling = derive(masks)
        links = zip(next_token.tolist(), next_sibling.tolist(), strict=True)
        assert [parents_from_links(*row) for row in links] == batch


def test_positions_are_length_plus_depth_and_rows_are_numbered_through() -> None:
    rng = np.random.default_rng(4)
    batch = [random_parents(rng, 17, int(rng.integers(17))) for _ in range(20)]
    lengths = [int(length) for length in rng.integers(0, 2**40, 20)]
    indices = device_indices(brute_masks(batch), lengths)
    assert indices.positions.tolist() == [
        [length + len(brute_path(parents, node)) - 1 for node in range(17)]
        for length, parents in zip(lengths, batch, strict=True)
    ]
    assert indices.retrieve_index.flatten().tolist() == list(range(20 * 17))


def test_device_parents() -> None:
    batch = list(all_parent_vectors(6))
    assert device_parents(torch.from_numpy(brute_masks(batch))).tolist() == batch


@both_hosts
def test_hosts_take_any_memory_layout_and_leave_the_mask_alone(derive: HostLinks) -> None:
    masks = brute_masks([random_parents(np.random.default_rng(seed), 9, 2) for seed in range(5)])
    strided = np.repeat(masks, 2, axis=0)[::2]
    strided.flags.writeable = False
    assert [a.tolist() for a in derive(strided)] == [a.tolist() for a in derive(np.asfortranarray(masks))]
    assert np.array_equal(strided, masks)


def unclosed_masks(n: int) -> list[BoolArray]:
    """List the unit lower-triangular matrices of size n that are no tree's mask."""
    valid = {brute_mask(parents).tobytes() for parents in all_parent_vectors(n)}
    forest = {brute_mask([-1, *parents]).tobytes() for parents in product(*(range(-1, i) for i in range(1, n)))}
    lower, masks = np.tril_indices(n, -1), []
    for bits in product([False, True], repeat=len(lower[0])):
        mask = np.eye(n, dtype=bool)
        mask[lower] = bits
        if mask.tobytes() not in valid | forest:
            masks.append(mask)
    return masks


@both_hosts
def test_hosts_refuse_every_unclosed_mask(derive: HostLinks) -> None:
    good = brute_mask([-1, 0, 0, 1])
    masks = unclosed_masks(4)
    assert len(masks) > 30
    for mask in masks:
        with pytest.raises(ValueError, match=r"row 1, node \d must see its parent"):
            derive(np.stack([good, mask]))


def test_on_unclosed_masks_the_devices_rule_gives_another_answer_than_the_scan() -> None:
    # Node 3 sees 1 and 2, which are siblings. By its last ancestor it is a child of 2; yet it is 1's first descendant
    # too, and that is what the device takes for a first child.
    diamond = np.array([[[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 1, 1, 1]]], dtype=bool)
    assert device_indices(diamond).next_token.tolist() == [[1, 3, 3, -1]]
    last_ancestor_is_parent = [-1, 0, 0, 2]
    assert brute_links(last_ancestor_is_parent)[0] == [1, -1, 3, -1]


@both_hosts
@pytest.mark.parametrize(
    ("mask", "error", "message"),
    [
        pytest.param(np.ones((1, 1, 1), dtype=np.int64), TypeError, "boolean", id="int64"),
        pytest.param(np.ones((1, 1, 1), dtype=np.uint8), TypeError, "boolean", id="uint8"),
        pytest.param(torch.ones(1, 1, 1, dtype=torch.bool), TypeError, "boolean numpy array", id="tensor"),
        pytest.param([[[True]]], TypeError, "boolean numpy array", id="list"),
        pytest.param(np.ones((1, 2, 3), dtype=bool), ValueError, "square", id="not square"),
        pytest.param(np.ones((2, 2), dtype=bool), ValueError, "square", id="no batch"),
        pytest.param(np.ones((1, 1, 2, 2), dtype=bool), ValueError, "square", id="one axis too many"),
        pytest.param(np.ones((0, 2, 2), dtype=bool), ValueError, "bs >= 1", id="no request"),
        pytest.param(np.ones((1, 0, 0), dtype=bool), ValueError, "n >= 1", id="no root"),
        pytest.param(np.ones((1, 2, 2), dtype=bool), ValueError, "not topological", id="sees a later node"),
        pytest.param(np.zeros((1, 2, 2), dtype=bool), ValueError, "not topological", id="misses itself"),
    ],
)
def test_hosts_refuse(derive: HostLinks, mask: BoolArray, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        derive(mask)


BOOL = torch.ones(2, 3, 3, dtype=torch.bool)


@pytest.mark.parametrize(
    ("mask", "seq_lens", "error", "message"),
    [
        pytest.param(BOOL, torch.ones(2, dtype=torch.int32), TypeError, "seq_lens must be int64", id="int32 seq_lens"),
        pytest.param(BOOL, torch.ones(2), TypeError, "seq_lens must be int64", id="float seq_lens"),
        pytest.param(BOOL.long(), torch.ones(2).long(), TypeError, "bool", id="int64 mask"),
        pytest.param(BOOL.byte(), torch.ones(2).long(), TypeError, "bool", id="uint8 mask"),
        pytest.param(BOOL[0], torch.ones(2).long(), ValueError, "square", id="no batch"),
        pytest.param(BOOL[:, :2], torch.ones(2).long(), ValueError, "square", id="not square"),
        pytest.param(BOOL[:0], torch.ones(0).long(), ValueError, "square", id="no request"),
        pytest.param(BOOL, torch.ones(3).long(), ValueError, "seq_lens", id="another bs"),
        pytest.param(BOOL, torch.ones(2, 1).long(), ValueError, "seq_lens", id="seq_lens with two axes"),
        pytest.param(BOOL, torch.ones(2, device="meta").long(), ValueError, "meta", id="another device"),
        pytest.param(BOOL.to("meta"), torch.ones(2).long(), ValueError, "meta", id="seq_lens left on the host"),
    ],
)
def test_device_refuses(mask: torch.Tensor, seq_lens: torch.Tensor, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        reconstruct_indices_from_tree_mask(mask, seq_lens)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_the_device_version_reads_nothing_back(device: str) -> None:
    """Fake tensors hold no values: `.item()`, `nonzero`, `if tensor:` and a mix of devices raise on them."""
    with FakeTensorMode():
        mask = torch.ones(3, 12, 12, dtype=torch.bool, device=device)
        indices = reconstruct_indices_from_tree_mask(mask, torch.ones(3, dtype=torch.int64, device=device))
    assert {(tuple(array.shape), array.dtype, array.device.type) for array in indices} == {
        ((3, 12), torch.int64, device)
    }


@pytest.mark.parametrize(
    "leak", [lambda mask: mask.sum().item(), lambda mask: mask.nonzero(), lambda mask: bool(mask.any())]
)
def test_fake_tensors_would_show_a_read(leak: Callable[[torch.Tensor], object]) -> None:
    with FakeTensorMode(), pytest.raises(Exception, match=r"aten\._local_scalar_dense|aten\.nonzero"):
        leak(torch.ones(1, 2, 2, dtype=torch.bool))


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_agrees_without_a_sync_and_in_a_graph() -> None:
    rng = np.random.default_rng(5)
    batches = [[random_parents(rng, 64, int(rng.integers(64))) for _ in range(48)] for _ in range(3)]
    masks = [torch.from_numpy(brute_masks(batch)).cuda() for batch in batches]
    mask, seq_lens = masks[0].clone(), torch.arange(48, device="cuda")
    reconstruct_indices_from_tree_mask(mask, seq_lens)  # warm up: the first calls may allocate and load kernels
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = reconstruct_indices_from_tree_mask(mask, seq_lens)
    for batch, other in zip(batches, masks, strict=True):
        torch.cuda.set_sync_debug_mode("error")
        try:
            eager = reconstruct_indices_from_tree_mask(other, seq_lens)
            mask.copy_(other)
            graph.replay()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        links = [brute_links(parents) for parents in batch]
        depths = [[len(brute_path(parents, node)) - 1 for node in range(64)] for parents in batch]
        for indices in (eager, captured):
            assert indices.next_token.tolist() == [row for row, _ in links]
            assert indices.next_sibling.tolist() == [row for _, row in links]
            assert indices.positions.tolist() == [[b + depth for depth in row] for b, row in enumerate(depths)]
            assert indices.retrieve_index.flatten().tolist() == list(range(48 * 64))
