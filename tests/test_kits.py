"""The kits in every set-up of the default model, and in float64 on a tiny one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import grammars
import kits
import pytest
import tiny
from grammars import GRAMMARS, TOKENIZER, encode

import ngram_ref as nr
from ngram_ref.engine.target import as_target


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    with tiny.one_thread():
        yield


class Setup(kits.Kit):
    """Decodes in trees of n nodes, several prompts side by side; alone means one prompt, one node, one token a step."""

    n: int
    max_batch_size: int
    target: nr.Target
    tokenizer: Any
    plain: dict[Any, nr.Result]

    def run(self, prompts: Sequence[Any], **options: Any) -> list[nr.Result]:
        draft = nr.DraftConfig(num_draft_tokens=self.n)
        return nr.generate(
            self.target, self.tokenizer, prompts, draft=draft, max_batch_size=self.max_batch_size, **options
        )

    def alone(self, prompt: Any, **options: Any) -> nr.Result:
        key = repr((prompt, sorted(options.items())))
        if key not in self.plain:
            draft = nr.DraftConfig(num_draft_tokens=1)
            (self.plain[key],) = nr.generate(self.target, self.tokenizer, [prompt], draft=draft, **options)
        return self.plain[key]


@pytest.mark.model
class DefaultModel(Setup, kits.JsonKit, kits.RegexKit, kits.MixedKit):
    plain: dict[Any, nr.Result] = {}  # noqa: RUF012  (one for all set-ups, that each runs alone but once)

    @pytest.fixture(autouse=True)
    def prepared(self, default_model):
        model, self.tokenizer = default_model
        self.target = as_target(model)


class TestPlainOneByOne(DefaultModel):
    n, max_batch_size = 1, 1


class TestPlainSideBySide(DefaultModel):
    n, max_batch_size = 1, 8


class TestTreesOneByOne(DefaultModel):
    n, max_batch_size = 12, 1


class TestTreesSideBySide(DefaultModel):
    n, max_batch_size = 12, 8


# In float64 rounding decides nothing, so equality is exact; and other sizes cost little.


@cache
def tiny_target() -> nr.Target:
    return nr.Target(grammars.toy_model(seed=1))


@pytest.mark.parametrize("n", [1, 2, 12, 32])
@pytest.mark.parametrize("max_batch_size", [1, 3, 8, 40])
class TestTinyModel(Setup, kits.MixedKit):
    plain: dict[Any, nr.Result] = {}  # noqa: RUF012
    tokenizer = TOKENIZER
    max_new_tokens = 20

    @pytest.fixture(autouse=True)
    def prepared(self, n, max_batch_size):
        self.n, self.max_batch_size, self.target = n, max_batch_size, tiny_target()

    def requests(self) -> list[tuple[Any, Any]]:
        requests: list[tuple[Any, Any]] = []
        names = [*GRAMMARS] * 3
        for turn in range(10):
            prompt = encode(f"Request {turn % 7}: ")
            requests += [(prompt, None), ([60 + turn], None)]
            requests += [(prompt, GRAMMARS[names[2 * turn + step]].grammar) for step in (0, 1)]
        return requests
