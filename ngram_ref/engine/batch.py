"""Requests on their way through a batch, and what comes out of them.

A `Job` is a checked prompt that waits, a `Row` one that decodes, a `Result` what the caller gets. Row b of a batch
stands in row b of the KV cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ngram_ref.core.corpus import CorpusRequest
from ngram_ref.core.tree import DraftTree
from ngram_ref.engine.stopping import FinishReason, StopRules
from ngram_ref.grammar.compiler import CompiledGrammar
from ngram_ref.grammar.schema_check import Unenforced


@dataclass(frozen=True)
class Job:
    """A prompt that waits for its turn.

    Attributes:
        index: its place among the prompts of the call.
        prompt_ids: at least one token id.
        rules: when to stop.
        grammar: what the new text must follow; None for anything.
    """

    index: int
    prompt_ids: tuple[int, ...]
    rules: StopRules
    grammar: CompiledGrammar | None = None


class StepTimes(NamedTuple):
    """Host times of one step in seconds; on a CUDA device a launch, not the work it starts."""

    draft: float
    upload: float
    verify: float
    learn: float
    walk: float
    accept: float


@dataclass(frozen=True)
class StepRecord:
    """One request's part in one step.

    Attributes:
        tokens, parents: its tree, padding included, as `DraftTree` numbers the nodes.
        seq_len: tokens committed before the step, the root excluded: the root's position.
        accepted: accepted nodes, the root first, as the model accepted them.
        emitted: the tokens kept of that: correct drafts, then the bonus token; shorter where the text ended.
        times: of the whole step, shared by all rows of the batch.
    """

    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    seq_len: int
    accepted: tuple[int, ...]
    emitted: tuple[int, ...]
    times: StepTimes


@dataclass(frozen=True)
class Result:
    """What became of one prompt.

    Attributes:
        text: the new text, cut before a stop string; None without a tokenizer, or where that cannot decode it.
        token_ids: the new ids only; an end-of-sequence id or the token that completes a stop string is the last one.
        prompt_token_ids: the prompt as it was decoded from.
        finish_reason: `"eos"` (a stop token was emitted), `"stop"` (a stop string), `"length"`, `"context"`,
            `"grammar"` (it ended without a stop token), `"dead_end"` (it allows no token), `"error"`.
        num_steps: verify forwards that this request took part in.
        num_correct_drafts: drafted tokens that were emitted.
        num_proposed_drafts: drafted nodes, without roots and padding.
        num_draft_tokens: n, the nodes of each tree.
        grammar: what the text had to follow; None for anything.
        error: what went wrong, where `finish_reason` is `"error"`.
        steps: one `StepRecord` per step, with `record_steps=True`.
    """

    text: str | None
    token_ids: list[int]
    prompt_token_ids: list[int]
    finish_reason: FinishReason
    num_steps: int
    num_correct_drafts: int
    num_proposed_drafts: int
    num_draft_tokens: int
    grammar: CompiledGrammar | None = field(default=None, repr=False)
    error: str | None = None
    steps: tuple[StepRecord, ...] | None = None

    @property
    def unenforced(self) -> tuple[Unenforced, ...]:
        """Keywords of the request's JSON schema that its text may break (see `nr.json_schema`)."""
        return () if self.grammar is None else self.grammar.description.unenforced

    @property
    def accept_length(self) -> float:
        """New tokens per step, bonus tokens included: 1.0 is plain decoding. 0.0 if there was no step."""
        return len(self.token_ids) / self.num_steps if self.num_steps else 0.0

    @property
    def accept_rate(self) -> float:
        """Correct drafts per proposed draft. 0.0 if nothing was proposed."""
        return self.num_correct_drafts / self.num_proposed_drafts if self.num_proposed_drafts else 0.0


def failed_result(job: Job, num_draft_tokens: int, error: Exception) -> Result:
    """Make the result of a prompt that could not begin."""
    return Result(
        text=None,
        token_ids=[],
        prompt_token_ids=list(job.prompt_ids),
        finish_reason="error",
        num_steps=0,
        num_correct_drafts=0,
        num_proposed_drafts=0,
        num_draft_tokens=num_draft_tokens,
        grammar=job.grammar,
        error=f"{type(error).__name__}: {error}",
    )


class Row:
    """A request while it decodes.

    Args:
        job: the prompt.
        text: the same request as the corpus follows it.
        record_steps: whether to keep a `StepRecord` per step.

    Attributes:
        token_ids: the new tokens so far.
        state: the grammar's, behind those tokens; None without a grammar.
        finish_reason: None while the request decodes.
    """

    def __init__(self, job: Job, text: CorpusRequest, record_steps: bool) -> None:
        self.job = job
        self.text = text
        self.token_ids: list[int] = []
        self.state = None if job.grammar is None else job.grammar.start()
        self.finish_reason = self._reason_to_end()  # nothing to do where there is no room
        self._error: str | None = None
        self._num_steps = self._num_correct = self._num_proposed = 0
        self._steps: list[StepRecord] | None = [] if record_steps else None

    @property
    def seq_len(self) -> int:
        """Tokens committed in the cache: all but the last one, which is the root."""
        return len(self.job.prompt_ids) + len(self.token_ids) - 1

    @property
    def max_depth(self) -> int:
        """Largest depth of a draft: accepted as a whole, it leaves room for the bonus token."""
        return self.job.rules.room - len(self.token_ids) - 1

    def take(self, tree: DraftTree, row: int, accepted: Sequence[int], tokens: Sequence[int], times: StepTimes) -> None:
        """Take the outcome of a step, up to where the text ends.

        Args:
            tree: the batch's tree.
            row: this request's row in it.
            accepted: accepted nodes, the root first.
            tokens: the correct drafts and the bonus token.
            times: of the step.
        """
        emitted: list[int] = []
        parents = tree.parents[row]
        self._num_steps += 1
        self._num_proposed += int((parents >= 0).sum())
        for token in tokens:
            self._read(token)
            emitted.append(token)
            if self.finish_reason is not None:
                break
        if len(tokens) < len(accepted) and self.finish_reason is None:
            self.finish_reason = "dead_end"  # the last accepted node has no target token: nothing is allowed there
        self.text.extend(emitted)
        self._num_correct += min(len(accepted) - 1, len(emitted))
        if self._steps is not None:
            nodes = tuple(tree.tokens[row].tolist()), tuple(parents.tolist())
            seq_len = self.seq_len - len(emitted)
            self._steps.append(StepRecord(*nodes, seq_len, tuple(accepted), tuple(emitted), times))

    def _read(self, token: int) -> None:
        """Take one token; say whether the text ends with it."""
        # Checked always: a token outside the grammar means that a mask was wrong, and the text must not go on.
        if self.state is not None and not self.state.accept_token(token):
            raise RuntimeError(f"token {token} was emitted, but the grammar refuses it behind {self.token_ids}")
        self.token_ids.append(token)
        self.finish_reason = self._reason_to_end()

    def _reason_to_end(self) -> FinishReason | None:
        """Say why the text ends with its last token, None where it goes on."""
        reason = self.job.rules.finish_at(self.token_ids)
        if self.state is not None and self.state.is_terminated() and reason not in ("eos", "stop"):
            return "grammar"
        return reason

    def fail(self, error: BaseException) -> None:
        """End the request with an error; what it emitted stays."""
        self.finish_reason = "error"
        self._error = f"{type(error).__name__}: {error}"

    def _text(self) -> str | None:
        """Decode the new text; a tokenizer that cannot ends this request with an error, not the whole call."""
        rules = self.job.rules
        if rules.tokenizer is None:
            return None
        try:
            return rules.cut(rules.decode(self.token_ids))
        except Exception as error:
            self.fail(error)
            return None

    def result(self, num_draft_tokens: int) -> Result:
        """Sum up. The request must have finished."""
        if self.finish_reason is None:
            raise RuntimeError("the request has not finished")
        text = self._text()  # first, since it may fail and change the reason
        return Result(
            text=text,
            token_ids=self.token_ids,
            prompt_token_ids=list(self.job.prompt_ids),
            finish_reason=self.finish_reason,
            num_steps=self._num_steps,
            num_correct_drafts=self._num_correct,
            num_proposed_drafts=self._num_proposed,
            num_draft_tokens=num_draft_tokens,
            grammar=self.job.grammar,
            error=self._error,
            steps=None if self._steps is None else tuple(self._steps),
        )
