"""When a request ends: stop tokens, stop strings, the length asked for, the context."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

FinishReason = Literal["eos", "stop", "length", "context", "grammar", "dead_end", "error"]


@dataclass(frozen=True)
class StopRules:
    """The rules of one request.

    Attributes:
        max_new_tokens: as asked for.
        context_room: tokens that fit into the context behind the prompt; None for no limit.
        stop_token_ids: ids that end a text when they are emitted.
        stop_strings: texts that end it when they are complete.
        tokenizer: decodes for `stop_strings`; may be None without them.
    """

    max_new_tokens: int
    context_room: int | None
    stop_token_ids: frozenset[int]
    stop_strings: tuple[str, ...]
    tokenizer: Any

    @property
    def room(self) -> int:
        """How many tokens may be emitted at most."""
        return self.max_new_tokens if self.context_room is None else min(self.max_new_tokens, self.context_room)

    def finish_at(self, token_ids: Sequence[int]) -> FinishReason | None:
        """Say whether, and why, a text of new tokens ends with its last one. Ask after every token, in order."""
        if token_ids and token_ids[-1] in self.stop_token_ids:
            return "eos"
        if token_ids and self.stop_strings and self._completes_stop_string(token_ids):
            return "stop"
        if len(token_ids) >= self.max_new_tokens:
            return "length"
        return "context" if len(token_ids) >= self.room else None

    def decode(self, token_ids: Sequence[int]) -> str:
        """Decode new tokens; special tokens are no text."""
        text: str = self.tokenizer.decode(list(token_ids), skip_special_tokens=True)
        return text

    def cut(self, text: str) -> str:
        """Cut a text before the first stop string in it."""
        ends = [text.find(stop) for stop in self.stop_strings if stop in text]
        return text[: min(ends, default=len(text))]

    def _completes_stop_string(self, token_ids: Sequence[int]) -> bool:
        """Tell whether a stop string is complete with the last token.

        It then reaches into that token's text, and begins at most its own length before. So it is enough to decode a
        tail: one that grows until it holds that many characters before the last token (there are tokens without any
        text), all of them whole (a character may be spelled by several tokens, and a tail that begins inside one can
        garble what follows).
        """
        longest = max(map(len, self.stop_strings))
        size = longest + 8
        while size < len(token_ids):
            before = self.decode(token_ids[-size:-1])
            if len(before) >= longest + 4 and "\ufffd" not in before:
                break
            size += 1 + size // 4
        tail = self.decode(token_ids[-size:])
        return any(stop in tail for stop in self.stop_strings)


def stop_token_ids(model: Any) -> frozenset[int]:
    """Collect every end-of-sequence id of a model's generation config, which may name none, one or several."""
    eos = model.generation_config.eos_token_id
    ids = [] if eos is None else eos if isinstance(eos, (list, tuple)) else [eos]
    return frozenset(int(token) for token in ids)
