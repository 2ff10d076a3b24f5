"""DraftTree: what it derives from the mask, and what it refuses."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from itertools import product

import numpy as np
import pytest
from oracles import all_parent_vectors, brute_mask, brute_masks, brute_path, distinct_tokens, random_parents

from ngram_ref.core.tree import DraftTree, ancestor_mask, parents_from_mask

WORD_BORDERS = [1, 2, 8, 9, 63, 64, 65, 127, 128, 129, 130]  # a mask row is kept in bytes, then in words of 64 bits


def check_against_brute_force(batch: list[list[int]]) -> None:
    """Build the trees from parents and compare every derived array with what following the parents gives."""
    tokens = [distinct_tokens(np.random.default_rng(0), parents, 500) for parents in batch]
    tree = DraftTree.from_parents(tokens, batch)
    assert tree.tokens.tolist() == tokens
    assert np.array_equal(tree.mask, brute_masks(batch))
    assert tree.parents.tolist() == batch
    assert tree.depths.tolist() == [[len(brute_path(p, node)) - 1 for node in range(len(p))] for p in batch]
    assert tree.is_padding.tolist() == [[node > 0 and parent < 0 for node, parent in enumerate(p)] for p in batch]


@pytest.mark.parametrize("n", range(1, 7))
def test_every_small_tree_matches_brute_force(n: int) -> None:
    check_against_brute_force(list(all_parent_vectors(n)))


@pytest.mark.parametrize("n", [*range(7, 64, 8), *WORD_BORDERS])
def test_random_trees_match_brute_force(n: int) -> None:
    rng = np.random.default_rng(n)
    check_against_brute_force([random_parents(rng, n, int(rng.integers(n))) for _ in range(12)])


@pytest.mark.parametrize("n", WORD_BORDERS)
def test_parents_are_found_across_word_borders(n: int) -> None:
    chain = list(range(-1, n - 1))
    last_parents = [[*chain[:-1], parent] for parent in range(n - 1)]  # the last node under each of the others
    batch = [chain, [-1] + [0] * (n - 1), *last_parents]
    assert parents_from_mask(brute_masks(batch)).tolist() == batch


@pytest.mark.parametrize("n", WORD_BORDERS)
def test_the_mask_of_a_chain_is_the_causal_mask(n: int) -> None:
    tree = DraftTree.from_parents(np.arange(n), np.arange(n) - 1)
    assert np.array_equal(tree.mask[0], np.tri(n, dtype=bool))


@pytest.mark.parametrize("n", [1, 2, 3])
def test_of_all_boolean_matrices_exactly_the_masks_of_trees_pass(n: int) -> None:
    valid = {brute_mask(parents).tobytes() for parents in all_parent_vectors(n)}
    assert masks_that_pass(product([False, True], repeat=n * n), n) == valid


@pytest.mark.parametrize("n", [4, 5])
def test_of_all_unit_lower_triangular_matrices_exactly_the_masks_of_trees_pass(n: int) -> None:
    valid = {brute_mask(parents).tobytes() for parents in all_parent_vectors(n)}
    lower = np.tril_indices(n, -1)
    matrices = []
    for bits in product([False, True], repeat=len(lower[0])):
        matrix = np.eye(n, dtype=bool)
        matrix[lower] = bits
        matrices.append(matrix)
    assert masks_that_pass(matrices, n) == valid


def masks_that_pass(matrices: object, n: int) -> set[bytes]:
    """Collect the matrices that `check()` accepts; tokens are such that the masks alone decide."""
    passed = set()
    for values in matrices:
        mask = np.array(values, dtype=bool).reshape(1, n, n)
        alone = mask[0].sum(axis=1) == 1  # looks like a pad, which must carry token 0
        tokens = np.where(alone, 0, np.arange(n))[None].astype(np.int64)
        try:
            DraftTree(tokens, mask).check()
        except ValueError:
            continue
        passed.add(mask.tobytes())
    return passed


CHAIN = [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
STAR = [[1, 0, 0], [1, 1, 0], [1, 0, 1]]


@pytest.mark.parametrize(
    ("tokens", "mask", "message"),
    [
        pytest.param([5, 6, 7], [[1, 0, 0], [1, 1, 0], [0, 1, 1]], "not closed", id="child without the root"),
        pytest.param(
            [5, 6, 7, 8], [[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 1, 1, 1]], "not closed", id="diamond"
        ),
        pytest.param([5, 6, 7], [[1, 1, 0], [1, 1, 0], [1, 0, 1]], "not topological", id="sees a later node"),
        pytest.param([5, 6, 7], [[1, 0, 0], [1, 1, 1], [1, 0, 1]], "not topological", id="parent after child"),
        pytest.param([5, 6, 7], [[1, 0, 0], [1, 0, 0], [1, 0, 1]], "not topological", id="misses itself"),
        pytest.param([5, 6, 6], STAR, "siblings 1 and 2 both carry token 6", id="equal siblings"),
        pytest.param([5, 0, 0], STAR, "siblings 1 and 2 both carry token 0", id="upstream's pads"),
        pytest.param([5, 0, 6], [[1, 0, 0], [0, 1, 0], [1, 0, 1]], "padding must stand at the end", id="pad inside"),
        pytest.param([5, 0, 6], [[1, 0, 0], [0, 1, 0], [0, 1, 1]], "padding must stand at the end", id="two roots"),
        pytest.param([5, 6, 7], [[1, 0, 0], [1, 1, 0], [0, 0, 1]], "padding must carry token 0", id="pad with a token"),
        pytest.param([5, -1, 7], CHAIN, "must not be negative", id="negative token"),
        pytest.param([-3, 6, 7], CHAIN, "must not be negative", id="negative root token"),
    ],
)
def test_check_refuses(tokens: list[int], mask: list[list[int]], message: str) -> None:
    good = DraftTree.from_parents(np.arange(len(tokens)), [-1] + [0] * (len(tokens) - 1))
    both = DraftTree(np.stack([good.tokens[0], tokens]), np.stack([good.mask[0], np.array(mask, dtype=bool)]))
    with pytest.raises(ValueError, match=message):  # the fault stands in row 1: every row is looked at
        both.check()


@pytest.mark.parametrize(
    ("tokens", "mask", "error", "message"),
    [
        pytest.param(np.zeros((1, 3), np.int64), np.array([CHAIN]), TypeError, "mask must be a boolean", id="int mask"),
        pytest.param(np.zeros((1, 3), np.int64), [CHAIN], TypeError, "mask must be a boolean", id="list mask"),
        pytest.param(np.zeros((1, 3), np.int32), np.ones((1, 3, 3), bool), TypeError, "tokens must be", id="int32"),
        pytest.param([[0, 0, 0]], np.ones((1, 3, 3), bool), TypeError, "tokens must be", id="list tokens"),
        pytest.param(np.zeros((1, 3), np.int64), np.ones((1, 3, 4), bool), ValueError, "square", id="not square"),
        pytest.param(np.zeros((1, 3), np.int64), np.ones((3, 3), bool), ValueError, "square", id="no batch"),
        pytest.param(np.zeros((0, 3), np.int64), np.ones((0, 3, 3), bool), ValueError, "bs >= 1", id="no request"),
        pytest.param(np.zeros((1, 0), np.int64), np.ones((1, 0, 0), bool), ValueError, "n >= 1", id="no root"),
        pytest.param(np.zeros((1, 2), np.int64), np.ones((1, 3, 3), bool), ValueError, "differ", id="another n"),
        pytest.param(np.zeros((2, 3), np.int64), np.ones((1, 3, 3), bool), ValueError, "differ", id="another bs"),
        pytest.param(np.zeros(3, np.int64), np.ones((1, 3, 3), bool), ValueError, "differ", id="flat tokens"),
    ],
)
def test_construction_refuses(tokens: object, mask: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        DraftTree(tokens, mask)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("tokens", "parents", "message"),
    [
        pytest.param([5, 6, 7], [-1, 2, 0], "earlier node", id="parent after child"),
        pytest.param([5, 6, 7], [-1, 1, 0], "earlier node", id="its own parent"),
        pytest.param([5, 6, 7], [0, 0, 0], "earlier node", id="root with a parent"),
        pytest.param([5, 6, 7], [-1, 0, -2], "must be -1 or", id="below -1"),
        pytest.param([5, 6], [-1, 0, 0], "differ in shape", id="another n"),
        pytest.param([5, 6, 6], [-1, 0, 0], "siblings 1 and 2", id="equal siblings"),
        pytest.param([5, 0, 7], [-1, -1, 0], "at the end", id="pad inside"),
        pytest.param([5, 6, 7], [-1, 0, -1], "token 0", id="pad with a token"),
        pytest.param([5, 6, -7], [-1, 0, 0], "negative", id="negative token"),
        pytest.param([], [], "n >= 1", id="no root"),
    ],
)
def test_from_parents_refuses(tokens: list[int], parents: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DraftTree.from_parents(tokens, parents)


def test_from_parents_does_not_cut_fractions_off() -> None:
    with pytest.raises((TypeError, ValueError)):
        DraftTree.from_parents([5.9, 6.9], [-1.0, 0.4])


def test_equal_tokens_under_different_parents_are_no_fault() -> None:
    DraftTree.from_parents([[6, 6, 7, 7, 6], [6, 6, 7, 7, 6]], [[-1, 0, 0, 1, 1], [-1, 0, 1, 2, 3]]).check()


def test_a_real_node_may_carry_token_0_beside_pads() -> None:
    assert DraftTree.from_parents([0, 0, 0], [-1, 0, -1]).is_padding.tolist() == [[False, False, True]]


def test_from_sglang_takes_flat_integers_and_check_refuses_its_pads() -> None:
    mask = [[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 0, 1]]
    tree = DraftTree.from_sglang(np.array([7, 20, 0, 0, 8, 0, 0, 0], np.int32), np.array([mask, mask]).ravel(), bs=2)
    assert tree.tokens.tolist() == [[7, 20, 0, 0], [8, 0, 0, 0]]
    assert tree.tokens.dtype == np.int64
    assert tree.parents.tolist() == [[-1, 0, 0, 0]] * 2
    assert not tree.is_padding.any()
    with pytest.raises(ValueError, match="siblings 2 and 3"):
        tree.check()


@pytest.mark.parametrize(
    ("tokens", "mask", "bs"),
    [([7, 0, 0], [1] * 8, 2), ([7, 0], [1] * 3, 1), ([7, 0], [1] * 4, 0), ([], [], 1), ([7, 0], [1] * 4, -1)],
)
def test_from_sglang_refuses_sizes_that_do_not_fit(tokens: list[int], mask: list[int], bs: int) -> None:
    with pytest.raises(ValueError, match=f"bs={bs}"):
        DraftTree.from_sglang(tokens, mask, bs)


def test_arrays_of_any_layout_become_contiguous() -> None:
    batch = [random_parents(np.random.default_rng(seed), 9, 2) for seed in range(5)]
    masks = brute_masks(batch)
    for layout in (np.asfortranarray(masks), masks[:, ::-1][:, ::-1], np.repeat(masks, 2, axis=2)[:, :, ::2]):
        tree = DraftTree(np.asfortranarray(np.zeros((5, 9), np.int64)), layout)
        assert tree.mask.flags.c_contiguous
        assert tree.tokens.flags.c_contiguous
        assert tree.parents.tolist() == parents_from_mask(layout).tolist() == batch


def test_ancestor_mask_gives_each_request_its_own_tree() -> None:
    batch = [random_parents(np.random.default_rng(seed), 20, seed % 7) for seed in range(50)]
    assert np.array_equal(ancestor_mask(batch), brute_masks(batch))


def test_a_tree_is_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        DraftTree.from_parents([5], [-1]).tokens = np.zeros((1, 1), np.int64)  # type: ignore[misc]
