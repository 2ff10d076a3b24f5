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
ROUNDING = {torch.float64: 1e-4, torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 5e-2}
_PREFIX = 4  # tokens before the tree of the check
_PARENTS = [-1, 0, 0, 1, 2, 2, 3, 4, 5]  # a root with two branches, three paths of four nodes
_LENGTH = 1024  # slots that the check attends to: some models measure windows in slots, which a short cache would hide


@dataclass(frozen=True)
class Reach:
    """How long a text may get before the model computes it otherwise than a short one.

    Attributes:
        tokens: prompt and new tokens together.
        reason: what the model does beyond, to follow "the model".
    """

    tokens: int
    reason: str


@dataclass(frozen=True)
class ModelFacts:
    """What a target needs to know of its model.

    Attributes:
        vocab_size: V, the width of the model's logits.
        embedding_size: how many token ids can be embedded.
        context_length: the longest text, in tokens; None where the config names none.
        reach: how long a text may get; None where nothing but the context limits it.
        layers: shapes of the KV cache.
        dtype, device: of the model's weights.
        attention: the attention implementation, `"sdpa"` or `"eager"`.
        cache_argument: name of the cache argument of `forward`, which differs between versions.
    """

    vocab_size: int
    embedding_size: int
    context_length: int | None
    reach: Reach | None
    layers: tuple[LayerShape, ...]
    dtype: torch.dtype
    device: torch.device
    attention: str
    cache_argument: str

    @property
    def additive_mask(self) -> bool:
        """Whether attention takes its mask as 0 and −inf to add, instead of a boolean one."""
        return self.attention == "eager"


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
    refuse_training(model)
    outputs = _first_forward(model)
    cache = getattr(outputs, "cache", None) or getattr(outputs, "past_key_values", None)
    layers = tuple(_layer_shape(name, layer) for layer in getattr(cache, "layers", ()))
    if not layers:
        raise ValueError(f"{name} keeps no key-value cache of attention layers, so its text cannot be continued")
    return ModelFacts(
        vocab_size=outputs.logits.shape[-1],
        embedding_size=model.get_input_embeddings().weight.shape[0],
        context_length=getattr(config.get_text_config(), "max_position_embeddings", None),
        reach=_find_reach(config, cache),
        layers=layers,
        dtype=model.dtype,
        device=model.device,
        attention=config._attn_implementation,
        cache_argument="cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values",
    )


def refuse_training(model: Any) -> None:
    """Refuse a model in training mode.

    Raises:
        ValueError: it is.
    """
    if model.training:
        raise ValueError(
            f"{type(model).__name__} is in training mode, where dropout changes its tokens: call model.eval() first"
        )


def _find_reach(config: Any, cache: Any) -> Reach | None:
    """Find what limits a text beside the context: sliding windows, and rotary frequencies for long texts."""
    reaches = [
        Reach(
            layer.sliding_window, f"has layers that attend to the last {layer.sliding_window} only (a sliding window)"
        )
        for layer in cache.layers
        if isinstance(layer, DynamicSlidingWindowLayer)
    ]
    rope = getattr(config.get_text_config(), "rope_parameters", None) or {}
    for parameters in (rope, *rope.values()):  # of all layers, or by type of layer
        if isinstance(parameters, dict) and parameters.get("rope_type") == "longrope":
            tokens = parameters["original_max_position_embeddings"]
            reaches.append(Reach(tokens, f"has other rotary frequencies for texts beyond {tokens} tokens (longrope)"))
    return min(reaches, key=lambda reach: reach.tokens, default=None)


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
    model: Any, facts: ModelFacts, score_trees: Callable[[list[list[int]], DraftTree, int], torch.Tensor]
) -> None:
    """Verify two small trees in one forward and their paths in plain forwards, and compare.

    Args:
        model: the model.
        facts: its facts.
        score_trees: `Target.score_trees` of the target under test.

    Raises:
        ValueError: the forward over the tree fails, or the logits differ by more than rounding.
    """
    name, n = type(model).__name__, len(_PARENTS)
    # Distinct tokens, spread over the vocabulary; tiny vocabularies repeat some, which the comparison does not mind
    # as long as siblings differ.
    stride = max(1, facts.embedding_size // (n + _PREFIX))
    ids = [(1 + index * stride) % facts.embedding_size for index in range(n + _PREFIX)]
    prompt, tree = ids[: _PREFIX + 1], DraftTree.from_parents([ids[_PREFIX:]] * 2, [_PARENTS] * 2)
    try:
        # The second row stands behind a shorter prefix, and behind nothing that the first one sees.
        both = score_trees([prompt, prompt[2:]], tree, _LENGTH).double()
    except Exception as error:
        raise ValueError(f"{name} cannot verify a tree: its forward with a 4-D mask fails with {error!r}") from error
    leaves = range(n - 3, n)
    paths = torch.tensor([tree.mask[0, leaf].nonzero()[0].tolist() for leaf in leaves])
    differences = []
    for from_tree, prefix in zip(both, (prompt[:-1], prompt[2:-1]), strict=True):
        texts = torch.tensor([[*prefix, *(ids[_PREFIX + node] for node in path)] for path in paths])
        with torch.no_grad():
            plain = model(input_ids=texts.to(facts.device)).logits[:, len(prefix) :].double().cpu()
        differences.append((from_tree[paths] - plain).abs().max() / plain.abs().max().clamp(min=1e-30))
    difference = torch.stack(differences).max().item()
    if not difference <= ROUNDING.get(facts.dtype, 0.0):  # so that NaN is refused, too
        raise ValueError(
            f"{name} cannot verify a tree: logits of a tree and of its paths differ by {difference:.1e} of the largest "
            f"logit, {ROUNDING.get(facts.dtype, 0.0):.0e} being rounding in {facts.dtype}. The model ignores the "
            "attention mask, or takes positions from cache slots instead of position_ids (as ALiBi models do)"
        )
