"""Tiny models with random weights, and corpora that draft by a script: material for tests, no tests.

The models are float64, so that rounding decides nothing, and drawn wide (`initializer_range=0.5`): as transformers
initialises them by default they repeat one token for ever, and equality with that proves little.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

import ngram_ref as nr
from ngram_ref.core.corpus import CorpusRequest

VOCAB = 151
CONTEXT = 256

_GPT2_SIZES = {"n_embd": 48, "n_layer": 2, "n_head": 4, "n_positions": CONTEXT}
_SIZES = {
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": CONTEXT,
}
_GQA = {**_SIZES, "num_key_value_heads": 2}
_MLA = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 12}
_MOE = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_group": 1, "topk_group": 1}
# A soft cap of 30, its default, presses such wide logits into ties.
_GEMMA2 = {"head_dim": 12, "sliding_window": CONTEXT, "final_logit_softcapping": 1000.0, "tie_word_embeddings": False}

# Name -> (model type, config). They differ in how positions reach attention, in the heads of keys and values, in
# biases, tied heads, norms and scales; those that end in "-eager" take an additive mask.
ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", _GQA),
    "llama-eager": ("llama", {**_GQA, "attn_implementation": "eager", "tie_word_embeddings": True}),
    "qwen2": ("qwen2", {**_GQA, "num_key_value_heads": 1}),
    "qwen3": ("qwen3", {**_GQA, "head_dim": 16, "num_key_value_heads": 4}),
    "phi": ("phi", {**_SIZES, "partial_rotary_factor": 0.5}),
    "gpt_neox": ("gpt_neox", _SIZES),
    "glm": ("glm", {**_GQA, "head_dim": 12, "attention_bias": True}),
    "gpt2": ("gpt2", _GPT2_SIZES),
    "gpt2-eager": ("gpt2", {**_GPT2_SIZES, "attn_implementation": "eager", "tie_word_embeddings": False}),
    "opt": ("opt", {**_SIZES, "ffn_dim": 64, "word_embed_proj_dim": 48, "init_std": 0.5}),
    "gpt_bigcode": ("gpt_bigcode", {**_GPT2_SIZES, "multi_query": True}),
    "gpt_bigcode-eager": ("gpt_bigcode", {**_GPT2_SIZES, "multi_query": True, "attn_implementation": "eager"}),
    "gemma": ("gemma", {**_SIZES, "num_key_value_heads": 1, "head_dim": 16}),
    "gemma2-eager": ("gemma2", {**_GQA, **_GEMMA2, "attn_implementation": "eager"}),
    "cohere": ("cohere", _GQA),
    "granite": ("granite", {**_GQA, "embedding_multiplier": 2.0, "logits_scaling": 2.0, "residual_multiplier": 0.5}),
    "olmo2": ("olmo2", _GQA),
    "starcoder2": ("starcoder2", {**_GQA, "sliding_window": None}),
    "falcon": ("falcon", {**_SIZES, "multi_query": True, "alibi": False, "tie_word_embeddings": False}),
    "smollm3": ("smollm3", {**_GQA, "no_rope_layers": [1, 0]}),
    "deepseek_v3": ("deepseek_v3", {**_SIZES, **_MLA, **_MOE, "num_key_value_heads": 4, "first_k_dense_replace": 1}),
}


def build(name: str, *, seed: int = 0, eos: int | list[int] | None = None, **overrides: Any) -> PreTrainedModel:
    """Build a model of one of the `ARCHITECTURES`; `overrides` change its config."""
    model_type, config = ARCHITECTURES[name]
    return build_from(model_type, seed=seed, eos=eos, **{**config, **overrides})


def build_from(
    model_type: str,
    *,
    seed: int = 0,
    eos: int | list[int] | None = None,
    attn_implementation: str = "sdpa",
    **config: Any,
) -> PreTrainedModel:
    """Build a float64 model of any type that `transformers` knows."""
    ids = {"pad_token_id": 0, "bos_token_id": None, "eos_token_id": None}
    made = CONFIG_MAPPING[model_type](**{"vocab_size": VOCAB, "initializer_range": 0.5, **ids, **config})
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(
        made,
        dtype=torch.float64,
        attn_implementation=attn_implementation,
        experts_implementation="eager",  # the grouped kernels take no float64
    )
    model.generation_config.eos_token_id = eos
    return model.eval().requires_grad_(False)


@cache
def shared(name: str) -> PreTrainedModel:
    """Give one model of a name to all tests that only look at it."""
    return build(name)


def counting_model(*, eos: int | list[int] | None = None) -> PreTrainedModel:
    """Build a Llama that counts: behind token i it says i + 1, and 0 behind the last id."""
    sizes = {"hidden_size": VOCAB + 1, "num_attention_heads": 4, "num_key_value_heads": 4, "num_hidden_layers": 1}
    model = build_from("llama", eos=eos, **sizes, intermediate_size=8, max_position_embeddings=CONTEXT)
    layer = model.model.layers[0]
    layer.self_attn.o_proj.weight.zero_()
    layer.mlp.down_proj.weight.zero_()
    identity = torch.eye(VOCAB, VOCAB + 1, dtype=torch.float64)
    model.model.embed_tokens.weight.copy_(identity)
    model.lm_head.weight.copy_(identity.roll(1, dims=0))
    return model


@contextmanager
def one_thread() -> Iterator[None]:
    """Run torch on one thread: on tensors this small a second one costs more than it brings."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def hf_greedy(model: PreTrainedModel, prompt: Sequence[int], max_new_tokens: int) -> list[int]:
    """Decode greedily with `model.generate`: the oracle. Returns the new ids."""
    ids = torch.tensor([list(prompt)])
    output = model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=max_new_tokens, pad_token_id=0
    )
    return output[0, len(prompt) :].tolist()


def random_ids(length: int, seed: int = 0) -> list[int]:
    """Draw token ids."""
    return np.random.default_rng(seed).integers(0, VOCAB, size=length).tolist()


def random_prompts(count: int, seed: int = 0, longest: int = 24) -> list[list[int]]:
    """Draw prompts of lengths 1, 2, 3, … up to `longest`, then of random lengths."""
    rng = np.random.default_rng(seed)
    lengths = [*range(1, min(count, longest // 2) + 1)]
    lengths += rng.integers(1, longest, size=count - len(lengths), endpoint=True).tolist()
    return [rng.integers(0, VOCAB, size=length).tolist() for length in lengths]


class Pieces:
    """A tokenizer of which decoding can be told in advance: id i stands for the bytes `pieces[i]`, None for no text.

    Encoding takes a character for the id of its code point.
    """

    def __init__(self, pieces: dict[int, bytes | None]) -> None:
        self.pieces = pieces

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": [ord(character) for character in text]}

    def apply_chat_template(self, messages: Any, add_generation_prompt: bool, return_dict: bool) -> list[int]:
        assert add_generation_prompt
        assert not return_dict
        return [ord(character) for message in messages for character in message["content"]]

    def decode(self, ids: Sequence[int], skip_special_tokens: bool) -> str:
        assert skip_special_tokens
        return b"".join(self.pieces.get(token) or b"" for token in ids).decode(errors="replace")


# Corpora that draft by a script. They keep to the contract of `NgramCorpus.draft`, and know the texts to come.


class Scripted(nr.NgramCorpus):
    """A corpus whose trees a subclass makes, one context at a time; it learns nothing.

    Args:
        texts: prompts with their true continuations.
        vocab: ids are drawn below it.
    """

    def __init__(self, n: int, texts: Iterable[Sequence[int]] = (), seed: int = 0, vocab: int = VOCAB) -> None:
        super().__init__(nr.DraftConfig(num_draft_tokens=n, learn_prompt=False))
        self.texts = [list(text) for text in texts]
        self.rng = np.random.default_rng(seed)
        self.vocab = vocab

    def learn(self) -> None:
        self._queue.clear()

    def draft(
        self,
        contexts: Sequence[CorpusRequest | Sequence[int]],
        n: int | None = None,
        max_depth: Sequence[int] | None = None,
    ) -> nr.DraftTree:
        n = self.config.num_draft_tokens if n is None else n
        tokens, parents = [], []
        for row, context in enumerate(contexts):
            ids = context.ids if isinstance(context, CorpusRequest) else list(context)
            grown = Grown(ids[-1], n, n - 1 if max_depth is None else max_depth[row])
            self.grow(grown, self.truth(ids))
            tokens.append(grown.tokens + [0] * (n - len(grown.tokens)))
            parents.append(grown.parents + [-1] * (n - len(grown.parents)))
        tree = nr.DraftTree.from_parents(tokens, parents)
        tree.check()
        return tree

    def truth(self, ids: Sequence[int]) -> list[int]:
        """Find what follows a text."""
        size = len(ids)
        return next((text[size:] for text in self.texts if text[:size] == list(ids)), [])

    def grow(self, tree: Grown, truth: list[int]) -> None:
        raise NotImplementedError

    def wrong(self, right: int) -> int:
        """Draw a token that is not `right`."""
        return (right + int(self.rng.integers(1, self.vocab))) % self.vocab


class Grown:
    """A tree in the making; `add` ignores what does not fit."""

    def __init__(self, root: int, n: int, max_depth: int) -> None:
        self.n, self.max_depth = n, max_depth
        self.tokens, self.parents, self.depths = [root], [-1], [0]

    @property
    def room(self) -> int:
        return self.n - len(self.tokens)

    def add(self, parent: int | None, token: int) -> int | None:
        """Add a child and return its number; None where there is no room, or a sibling has the token."""
        if parent is None or self.room == 0 or self.depths[parent] == self.max_depth:
            return None
        if (parent, token) in zip(self.parents, self.tokens, strict=True):
            return None
        self.tokens.append(token)
        self.parents.append(parent)
        self.depths.append(self.depths[parent] + 1)
        return len(self.tokens) - 1


class RandomTrees(Scripted):
    """Random valid trees in no particular order; half of the nodes on the true path carry the true token."""

    def grow(self, tree: Grown, truth: list[int]) -> None:
        true_path = {0}
        for _ in range(int(self.rng.integers(0, tree.n))):
            parent = int(self.rng.integers(0, len(tree.tokens)))
            depth = tree.depths[parent]
            is_true = parent in true_path and depth < len(truth) and self.rng.random() < 0.5
            node = tree.add(parent, truth[depth] if is_true else int(self.rng.integers(0, self.vocab)))
            if is_true and node is not None:
                true_path.add(node)


class TrueTrees(Scripted):
    """The true continuation at every depth, each time together with a wrong sibling, which comes first or last."""

    def grow(self, tree: Grown, truth: list[int]) -> None:
        parent: int | None = 0
        for depth in range(min(len(truth), max(1, tree.room // 2))):
            siblings = [truth[depth], self.wrong(truth[depth])]
            nodes = [tree.add(parent, token) for token in siblings[:: self.rng.choice([-1, 1])]]
            parent = next((node for node in nodes if node is not None and tree.tokens[node] == truth[depth]), None)


class LastBranch(Scripted):
    """The true continuation in the last branch only, behind branches that repeat it below a wrong first token."""

    def grow(self, tree: Grown, truth: list[int]) -> None:
        length = max(1, tree.room // 3)
        path = truth[: min(length, tree.room)]
        if not path:
            return
        while tree.room >= 2 * len(path):
            before = tree.room
            self._branch(tree, [self.wrong(path[0]), *path[1:]])
            if tree.room == before:
                break  # the wrong token was there already, or no depth is left
        self._branch(tree, path)

    @staticmethod
    def _branch(tree: Grown, path: Sequence[int]) -> None:
        parent: int | None = 0
        for token in path:
            parent = tree.add(parent, token)
