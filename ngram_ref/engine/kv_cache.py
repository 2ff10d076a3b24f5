"""A KV cache with a draft window: a `transformers` cache whose rows have lengths of their own.

Row b of the cache holds the keys and values of request b's committed tokens in slots `0 … L - 1`. A verify forward
writes its n nodes into the *window*, slots `L … L + n - 1`, one slot per node. Of these only the accepted path is worth
keeping; `commit` moves it to the front of the window, in all layers at once. What stands behind it is garbage that the
next window overwrites and that no mask ever shows.

A slot is not a position: siblings share a position and need two slots. `transformers`' own caches append at their end
and can only be cropped there, which leaves the rejected branches in the middle.

Upstream: the KV mover in `sglang/srt/speculative/spec_utils.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin


@dataclass(frozen=True)
class LayerShape:
    """Shapes of one layer's cache, taken from a forward (configs name them too differently).

    Attributes:
        key, value: `(heads, head_dim)` of the keys and of the values.
    """

    key: tuple[int, int]
    value: tuple[int, int]


@dataclass(frozen=True)
class Window:
    """Where a forward writes and what it reads.

    Attributes:
        rows: int64 `[bs, 1]`, cache rows, consecutive.
        first_row: the first of them.
        slots: int64 `[bs, q]`, the slot that each query token is written to.
        length: how many slots of each row attention sees; the attention mask is as wide.
    """

    rows: torch.Tensor
    first_row: int
    slots: torch.Tensor
    length: int


class WindowedCache(Cache):
    """Keys and values of all layers; `open` a window before each forward, `commit` after it.

    Args:
        layers: shapes of each layer.
        dtype, device: of keys and values.

    Keys and values of equal shape share one tensor `[k, rows, slots, heads, head_dim]`, so that a commit is one gather
    and one scatter on most models.
    """

    def __init__(self, layers: Sequence[LayerShape], dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(layers=[_WindowedLayer(self, index) for index in range(len(layers))])
        shapes = [shape for layer in layers for shape in (layer.key, layer.value)]
        groups = list(dict.fromkeys(shapes))
        members: dict[tuple[int, int], int] = dict.fromkeys(groups, 0)
        self._places: list[tuple[int, int]] = []  # of key 0, value 0, key 1, …: (storage, index in it)
        for shape in shapes:
            self._places.append((groups.index(shape), members[shape]))
            members[shape] += 1
        self.storages = [torch.zeros((members[shape], 0, 0, *shape), dtype=dtype, device=device) for shape in groups]
        self.window: Window | None = None

    @property
    def num_rows(self) -> int:
        """Rows allocated."""
        return self.storages[0].shape[1]

    @property
    def num_slots(self) -> int:
        """Slots allocated per row."""
        return self.storages[0].shape[2]

    def reserve(self, num_rows: int, num_slots: int) -> None:
        """Make room for at least so many rows and slots; what is cached stays."""
        if num_rows <= self.num_rows and num_slots <= self.num_slots:
            return
        rows, slots = max(num_rows, self.num_rows), max(num_slots, self.num_slots)
        for index, old in enumerate(self.storages):
            grown = old.new_zeros((old.shape[0], rows, slots, *old.shape[3:]))
            grown[:, : old.shape[1], : old.shape[2]] = old
            self.storages[index] = grown

    def fit(self, num_rows: int, num_slots: int) -> None:
        """Prepare for a run of so many rows, each of at most so many slots; what is cached may be lost.

        Rows are allocated at once, since adding one copies the others; slots grow as texts do. Memory far beyond the
        run's need, left by longer texts or a larger batch, is given back.
        """
        if self.num_rows * self.num_slots > 4 * max(1, num_rows) * num_slots:
            self.storages = [old.new_zeros((old.shape[0], 0, 0, *old.shape[3:])) for old in self.storages]
        self.reserve(num_rows, self.num_slots)

    def open(self, first_row: int, slots: torch.Tensor, length: int) -> None:
        """Set the window of the next forward.

        Args:
            first_row: the batch stands in rows `first_row … first_row + bs - 1`.
            slots: int64 `[bs, q]`.
            length: slots of each row that attention sees, at most `num_slots`.
        """
        rows = torch.arange(first_row, first_row + len(slots), device=slots.device)[:, None]
        self.window = Window(rows, first_row, slots, length)

    def layer(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of a layer, each `[rows, slots, heads, head_dim]`, as views."""
        key_place, value_place = self._places[2 * index : 2 * index + 2]
        return self.storages[key_place[0]][key_place[1]], self.storages[value_place[0]][value_place[1]]

    def commit(self, seq_lens: torch.Tensor, accept_index: torch.Tensor) -> None:
        """Move the accepted path of rows `0 … bs - 1` to the front of their windows, in all layers.

        Args:
            seq_lens: int64 `[bs]`, committed tokens before this step: the windows' first slots.
            accept_index: int64 `[bs, n]`, accepted nodes along the path, −1 behind its end.
        """
        bs, n = accept_index.shape
        place = torch.arange(n, device=accept_index.device).expand(bs, n)
        target = seq_lens[:, None] + place
        # Behind the path's end a slot is moved onto itself, which keeps the shapes fixed without a synchronisation.
        source = seq_lens[:, None] + torch.where(accept_index >= 0, accept_index, place)
        rows = torch.arange(bs, device=accept_index.device)[:, None]
        for storage in self.storages:
            # The right side is gathered whole before anything is written: a path's slots may overlap its targets.
            storage[:, rows, target] = storage[:, rows, source]

    def clear_row(self, row: int) -> None:
        """Set a row to zero. Attention gives unseen slots the weight 0, but 0 times a NaN left there is NaN."""
        for storage in self.storages:
            storage[:, row] = 0

    def move_row(self, source: int, target: int) -> None:
        """Copy a row over another, to keep the rows of a shrinking batch consecutive."""
        for storage in self.storages:
            storage[:, target] = storage[:, source]


class _WindowedLayer(CacheLayerMixin):  # type: ignore[no-untyped-call]
    """One layer as `transformers` sees it: takes the new keys and values, hands back all that the mask covers."""

    is_sliding = False
    is_compileable = False

    def __init__(self, cache: WindowedCache, index: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._cache = cache
        self._index = index

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write `[bs, heads, q, head_dim]` states into the window; return `[bs, heads, length, head_dim]` views."""
        window = self._cache.window
        if window is None:
            raise RuntimeError("no window is open: call WindowedCache.open before the forward")
        seen = []
        for states, stored in zip((key_states, value_states), self._cache.layer(self._index), strict=True):
            stored[window.rows, window.slots] = states.transpose(1, 2)
            batch = stored[window.first_row : window.first_row + len(window.rows), : window.length]
            seen.append(batch.transpose(1, 2))
        return seen[0], seen[1]

    def lazy_initialization(self, *args: Any) -> None:
        """Nothing to do: storages are allocated by `WindowedCache.reserve`."""

    def get_seq_length(self) -> int:
        """Slots that attention sees; models ask only where no positions are passed, and they always are."""
        return 0 if self._cache.window is None else self._cache.window.length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Width and offset of a mask; models ask only where no 4-D mask is passed, and one always is."""
        return self.get_seq_length(), 0

    def get_max_length(self) -> int:
        """Slots allocated per row."""
        return self._cache.num_slots

    def get_max_cache_shape(self) -> int:
        """Slots allocated per row, by the name that transformers 5.23 uses."""
        return self._cache.num_slots


def bucket_length(length: int) -> int:
    """Round a length up to one of few: multiples of 64, and of a quarter of the next power of two for long ones.

    The time of a forward grows with the width of its mask, so the width follows the longest row; each width is a shape
    of its own to tune, compile or capture for, so there must not be many.

    >>> [bucket_length(length) for length in (1, 64, 65, 1000, 5000)]
    [64, 64, 128, 1024, 5120]
    """
    step = max(64, 1 << max(0, length.bit_length() - 3))
    return -(-length // step) * step
