"""How to draft: the parameters of a corpus and of its trees, checked."""

from __future__ import annotations

from dataclasses import dataclass

from ngram_ref.core.trie import MatchType


@dataclass(frozen=True)
class DraftConfig:
    """How to draft; names and most defaults are upstream's (`speculative_ngram_*`).

    Attributes:
        num_draft_tokens: nodes of a tree, the root included; 1 is plain decoding.
        max_trie_depth: the longest n-gram kept, in tokens.
        min_bfs_breadth, max_bfs_breadth: children followed below the longest and below the shortest match (`"BFS"`);
            `"PROB"` follows at most `max_bfs_breadth`.
        match_type: `"BFS"` for the most recent continuations, `"PROB"` for the most frequent.
        capacity: the largest number of trie nodes. (Upstream's flag says 10,000,000, its class 1,000,000.)
        learn_prompt: whether the prompt is learned. (Upstream learns generated text alone.)

    Raises:
        TypeError, ValueError: a value that cannot work, by name.

    >>> DraftConfig(num_draft_tokens=0)
    Traceback (most recent call last):
    ValueError: num_draft_tokens must be at least 1 (1 is plain decoding), not 0
    """

    num_draft_tokens: int = 12
    max_trie_depth: int = 18
    min_bfs_breadth: int = 1
    max_bfs_breadth: int = 10
    match_type: MatchType = "BFS"
    capacity: int = 1_000_000
    learn_prompt: bool = True

    def __post_init__(self) -> None:
        for name in ("num_draft_tokens", "max_trie_depth", "min_bfs_breadth", "max_bfs_breadth", "capacity"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"{name} must be an int, not {value!r}")
        if self.num_draft_tokens < 1:
            raise ValueError(f"num_draft_tokens must be at least 1 (1 is plain decoding), not {self.num_draft_tokens}")
        if self.max_trie_depth < 2:
            raise ValueError(f"max_trie_depth must be at least 2 (a match and what follows), not {self.max_trie_depth}")
        if self.min_bfs_breadth < 1:
            raise ValueError(f"min_bfs_breadth must be at least 1, not {self.min_bfs_breadth}")
        if self.max_bfs_breadth < self.min_bfs_breadth:
            raise ValueError(
                f"max_bfs_breadth must be at least min_bfs_breadth = {self.min_bfs_breadth}, not {self.max_bfs_breadth}"
            )
        if self.capacity <= self.max_trie_depth:
            raise ValueError(
                f"capacity must exceed max_trie_depth = {self.max_trie_depth} (one n-gram and the root), "
                f"not {self.capacity}"
            )
        if not isinstance(self.learn_prompt, bool):
            raise TypeError(f"learn_prompt must be True or False, not {self.learn_prompt!r}")
        if self.match_type not in ("BFS", "PROB"):
            raise ValueError(f'match_type must be "BFS" (recency) or "PROB" (frequency), not {self.match_type!r}')
