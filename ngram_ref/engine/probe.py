"""What a model is, found out by asking it: shapes of its cache, its vocabulary, and whether it can verify a tree.

Two forwards over a handful of tokens. Configs name their sizes differently, and some models ignore a 4-D mask or derive
positions from cache slots (ALiBi); no config says so. A model that gives a tree other logits than its paths would
decode wrong text without a word, so it is refused.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from ngram_ref.core.tree import DraftTree
from ngram_ref.engine.kv_cache import LayerShape

# The largest difference of logits, relative to the largest logit, that a change of shapes may cause by rounding. Wide
# for float64, since many models compute softmax and norms in float32 all the same.
_ROUNDING = {torch.float64: 1e-4, torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 5e-2}
_PREFIX = 4  # tokens before the tree of the check
_PARENTS = [-1, 0, 0, 1, 2, 2, 3, 4, 5]  # a root with two branches, three paths of four nodes


@dataclass(frozen=True)
class ModelFacts:
    """What a target needs to know of its model.

    Attributes:
        vocab_size: V, the width of the model's logits.
        embedding_size: how many token ids can be embedded.
        context_length: the longest text, in tokens; None where the config names none.
        sliding_window: tokens that the narrowest layer attends to; None where all layers see everything.
        layers: shapes of the KV cache.
        dtype, device: of the model's weights.
        attention: the attention implementation, `"sdpa"` or `"eager"`.
        cache_argument: name of the cache argument of `forward`, which differs between versions.
    """

    vocab_size: int
    embedding_size: int
    context_length: int | None
    sliding_window: int | None
    layers: tuple[LayerShape, ...]
    dtype: torch.dtype
    device: torch.device
    attention: str
    cache_argument: str

    @property
    def additive_mask(self) -> bool:
        """Whether attention takes its mask as 0 and −inf to add, instead of a boolean one."""
        return self.attention == "eager"

    def still_hold(self, model: Any) -> bool:
        """Whether the model is still where and what it was when it was probed."""
        current = (model.dtype, model.device, model.config._attn_implementation)
        return current == (self.dtype, self.device, self.attention)


def probe_model(model: Any) -> ModelFacts:
    """Look at a model and run it once.

    Raises:
        ValueError: it is an encoder–decoder, does not run on sdpa or eager attention, has layers that are not
            attention with a key–value cache, or its forward fails.
    """
    config = model.config
    name = type(model).__name__
    if getattr(config, "is_encoder_decoder", False):
        raise ValueError(f"{name} is an encoder-decoder; a draft tree needs a decoder-only causal language model")
    if config._attn_implementation not in ("sdpa", "eager"):
        raise ValueError(
            f"{name} runs on {config._attn_implementation!r} attention, which takes no tree mask: load it with "
            'attn_implementation="sdpa" (or "eager")'
        )
    if model.training:
        raise ValueError(f"{name} is in training mode, where dropout changes its tokens: call model.eval() first")
    outputs = _first_forward(model)
    cache = getattr(outputs, "cache", None) or outputs.past_key_values
    layers = tuple(_layer_shape(name, layer) for layer in getattr(cache, "layers", ()))
    if not layers:
        raise ValueError(f"{name} keeps no key-value cache of attention layers, so its text cannot be continued")
    windows = [layer.sliding_window for layer in cache.layers if isinstance(layer, DynamicSlidingWindowLayer)]
    return ModelFacts(
        vocab_size=outputs.logits.shape[-1],
        embedding_size=model.get_input_embeddings().weight.shape[0],
        context_length=getattr(config.get_text_config(), "max_position_embeddings", None),
        sliding_window=min(windows, default=None),
        layers=layers,
        dtype=model.dtype,
        device=model.device,
        attention=config._attn_implementation,
        cache_argument="cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values",
    )


@torch.no_grad()
def _first_forward(model: Any) -> Any:
    """Run the model plainly, to see its cache and logits."""
    try:
        return model(input_ids=torch.tensor([[0, 1, 0]], device=model.device), use_cache=True)
    except Exception as error:
        raise ValueError(f"{type(model).__name__} cannot be used: its forward fails with {error!r}") from error


def _layer_shape(model_name: str, layer: Any) -> LayerShape:
    """Read the shapes of one layer's cache, or refuse the model."""
    # By exact type: subclasses hold recurrent states or index keys beside the keys and values.
    if type(layer) not in (DynamicLayer, DynamicSlidingWindowLayer) or layer.keys is None:
        raise ValueError(
            f"{model_name} has a layer with a {type(layer).__name__}: recurrent, hybrid and sparse layers cannot "
            "verify a tree (what a rejected branch leaves in them cannot be taken back)"
        )
    return LayerShape((layer.keys.shape[1], layer.keys.shape[3]), (layer.values.shape[1], layer.values.shape[3]))


def check_tree_logits(
    model: Any, facts: ModelFacts, score_tree: Callable[[list[int], DraftTree], torch.Tensor]
) -> None:
    """Verify a small tree in one forward and its paths in plain forwards, and compare.

    Args:
        model: the model.
        facts: its facts.
        score_tree: `Target.score_tree` of the target under test.

    Raises:
        ValueError: the forward over the tree fails, or the logits differ by more than rounding.
    """
    name, n = type(model).__name__, len(_PARENTS)
    # Distinct tokens, spread over the vocabulary; tiny vocabularies repeat some, which the comparison does not mind
    # as long as siblings differ.
    stride = max(1, facts.embedding_size // (n + _PREFIX))
    ids = [(1 + index * stride) % facts.embedding_size for index in range(n + _PREFIX)]
    prompt, tree = ids[: _PREFIX + 1], DraftTree.from_parents([ids[_PREFIX:]], [_PARENTS])
    try:
        from_tree = score_tree(prompt, tree).double()
    except Exception as error:
        raise ValueError(f"{name} cannot verify a tree: its forward with a 4-D mask fails with {error!r}") from error
    leaves = range(n - 3, n)
    paths = [[int(node) for node in tree.mask[0, leaf].nonzero()[0]] for leaf in leaves]
    texts = torch.tensor([[*prompt[:-1], *(ids[_PREFIX + node] for node in path)] for path in paths])
    with torch.no_grad():
        logits = model(input_ids=texts.to(facts.device)).logits[:, _PREFIX:].double().cpu()
    plain = torch.empty_like(from_tree)
    plain[torch.tensor(paths)] = logits
    difference = ((from_tree - plain).abs().max() / plain.abs().max().clamp(min=1e-30)).item()
    if not difference <= _ROUNDING.get(facts.dtype, 0.0):
        raise ValueError(
            f"{name} cannot verify a tree: logits of a tree and of its paths differ by {difference:.1e} of the largest "
            f"logit, {_ROUNDING.get(facts.dtype, 0.0):.0e} being rounding in {facts.dtype}. The model ignores the "
            "attention mask, or takes positions from cache slots instead of position_ids (as ALiBi models do)"
        )
