"""`audit`: was a result what plain decoding says, and where not, was it a near-tie?

In exact arithmetic speculative decoding changes nothing. On a device, a forward over n tokens rounds otherwise than a
forward over one, and where the two best tokens are nearly equal, rounding decides. An audit replays a result token by
token, twice: as plain decoding does, one token a forward; and in the *shape* of a verify forward, one real token and
n − 1 inert pads. The second is plain decoding too: where the two replays differ from each other, the shape did it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from ngram_ref.core.accept import mask_logits
from ngram_ref.core.tree import DraftTree
from ngram_ref.core.walk import GrammarState
from ngram_ref.engine.batch import Result
from ngram_ref.engine.kv_cache import bucket_length
from ngram_ref.engine.probe import ROUNDING
from ngram_ref.engine.target import Target, as_target

Verdict = Literal["equal", "near-tie", "error"]


@dataclass(frozen=True)
class TokenAudit:
    """One token of a result, judged behind the tokens before it.

    Attributes:
        token: the result's token.
        plain_token: what plain decoding takes there.
        same_shape_token: what plain decoding takes there in a forward of n rows.
        margin: how far plain decoding's best logit is above its second best.
        gap: how far it is above the logit of the result's token; 0.0 where they are equal.
        noise: the largest difference of a logit between the two replays at this token.
        verdict: `"equal"`, `"near-tie"` (the gap is within what a change of shape does to the logits there, as far as
            that is rounding), or `"error"`.
    """

    token: int
    plain_token: int
    same_shape_token: int
    margin: float
    gap: float
    noise: float
    verdict: Verdict


@dataclass(frozen=True)
class Audit:
    """An audited result.

    Attributes:
        tokens: one `TokenAudit` per token.
    """

    tokens: tuple[TokenAudit, ...]

    @property
    def shape_noise(self) -> float:
        """The largest difference of a logit between the two replays."""
        return max((token.noise for token in self.tokens), default=0.0)

    @property
    def near_ties(self) -> int:
        """Number of tokens that differ from plain decoding by a near-tie."""
        return sum(token.verdict == "near-tie" for token in self.tokens)

    @property
    def errors(self) -> int:
        """Number of tokens that differ from plain decoding and are no near-tie."""
        return sum(token.verdict == "error" for token in self.tokens)

    @property
    def control_flips(self) -> int:
        """Number of tokens at which the two plain replays differ from each other: what the shape alone does."""
        return sum(token.plain_token != token.same_shape_token for token in self.tokens)

    def __str__(self) -> str:
        differing = [
            f"  token {index}: {token.token}, plain {token.plain_token}, same shape {token.same_shape_token}, "
            f"gap {token.gap:.2g}: {token.verdict}"
            for index, token in enumerate(self.tokens)
            if token.verdict != "equal"
        ]
        head = (
            f"{len(self.tokens)} tokens: {self.near_ties} near-ties, {self.errors} errors; the shape alone flips "
            f"{self.control_flips} and moves logits by up to {self.shape_noise:.2g}"
        )
        return "\n".join([head, *differing])


def audit(target: Target | Any, result: Result) -> Audit:
    """Replay a result through plain decoding, in both shapes, and judge each of its tokens.

    Each token is judged behind the result's own tokens, so that one flip does not make all that follows differ. The
    replays are plain decoding at work, two forwards a token: it takes its time.

    Args:
        target: the `Target` (or the model) that made the result.
        result: a greedy result; one with a grammar is replayed under its grammar.

    Raises:
        RuntimeError: the target is decoding in another thread.
    """
    target = as_target(target)
    with target.exclusive():
        plain = list(_replay(target, result, n=1))
        same_shape = list(_replay(target, result, n=result.num_draft_tokens))
    rounding = ROUNDING.get(target.facts.dtype, 0.0)
    judged = (
        _judge(token, one, other, rounding)
        for token, one, other in zip(result.token_ids, plain, same_shape, strict=True)
    )
    return Audit(tuple(judged))


def _replay(target: Target, result: Result, n: int) -> Iterator[torch.Tensor]:
    """Feed a result's tokens one a forward, each the root of n nodes; yield logits `[V]`, float64 on the CPU."""
    text: Sequence[int] = result.prompt_token_ids + result.token_ids
    first = len(result.prompt_token_ids) - 1
    state = None if result.grammar is None else result.grammar.start()
    target.cache.reserve(1, bucket_length(len(text) + n))
    target.prefill(0, text[:first])
    for seq_len in range(first, len(text) - 1):
        root = DraftTree.from_parents([text[seq_len]] + [0] * (n - 1), [-1] * n)
        logits = target.verify(target.upload(root, [seq_len]))[:, :1].double().cpu()
        # The root is in its place already: there is nothing to commit.
        yield (logits if state is None else _masked(state, logits))[0, 0]
        if state is not None:
            state.accept_token(text[seq_len + 1])


def _masked(state: GrammarState, logits: torch.Tensor) -> torch.Tensor:
    """Mask logits `[1, 1, V]` by what a grammar allows next."""
    bitmask = torch.zeros(1, (logits.shape[-1] + 31) // 32, dtype=torch.int32)
    state.fill_next_token_bitmask(bitmask)
    return mask_logits(logits, bitmask)


def _judge(token: int, plain: torch.Tensor, same_shape: torch.Tensor, rounding: float) -> TokenAudit:
    """Judge one token by the logits that both replays have at its place."""
    finite = plain.isfinite() & same_shape.isfinite()
    noise = (plain - same_shape)[finite].abs().max().item()
    # Noise moves two logits against each other, hence twice. But what exceeds rounding is no noise: a verify forward
    # that is wrong in its shape must not excuse itself.
    tolerance = 2 * min(noise, rounding * plain[finite].abs().max().item())
    best, second = plain.topk(2).values.tolist()
    plain_token = int(plain.argmax())
    gap = best - plain[token].item()
    verdict: Verdict = "equal" if token == plain_token else "near-tie" if gap <= tolerance else "error"
    return TokenAudit(token, plain_token, int(same_shape.argmax()), best - second, gap, noise, verdict)
