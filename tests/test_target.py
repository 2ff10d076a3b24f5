"""The target: which models it takes, what its cache keeps, and that a tree's logits are those of its paths.

A model that a tree would decode wrongly must be refused, by name and with a reason; there is no third way.
"""

from __future__ import annotations

import numpy as np
import pytest
import tiny
import torch
from transformers import PreTrainedModel, T5Config, T5ForConditionalGeneration

import ngram_ref as nr
from ngram_ref.engine import target as target_module
from ngram_ref.engine.kv_cache import LayerShape, WindowedCache, bucket_length
from ngram_ref.engine.target import tree_attention_mask

SIZES = {"hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
GQA = {**SIZES, "num_key_value_heads": 2}
LINEAR_HEADS = {f"linear_{name}": 8 for name in ("key_head_dim", "value_head_dim")}
LINEAR_HEADS |= {"linear_num_key_heads": 2, "linear_num_value_heads": 4}
EXPERTS = {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 32}

EVERY_SECOND_LAYER = {"attn_layer_period": 2, "attn_layer_offset": 1}


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    with tiny.one_thread():
        yield


# Models that cannot be verified as a tree

REFUSED = {
    "ALiBi (MPT)": ("mpt", {"d_model": 48, "n_layers": 2, "n_heads": 4}, "MptForCausalLM.*cache slots"),
    "ALiBi (Bloom)": ("bloom", {"hidden_size": 48, "n_layer": 2, "n_head": 4}, "BloomForCausalLM.*4-D mask"),
    "ALiBi (Falcon)": ("falcon", {**SIZES, "alibi": True}, "FalconForCausalLM.*4-D mask"),
    "recurrent (Mamba)": ("mamba", {"hidden_size": 48, "num_hidden_layers": 2, "state_size": 8}, "recurrent"),
    "recurrent (RWKV)": ("rwkv", {"hidden_size": 48, "num_hidden_layers": 2}, "RwkvForCausalLM.*no key-value cache"),
    "no cache at all (GPT-1)": ("openai-gpt", {"n_embd": 48, "n_layer": 2, "n_head": 4}, "no key-value cache"),
    "convolutions (LFM2)": ("lfm2", {**GQA, "layer_types": ["conv", "full_attention"]}, "hybrid"),
    "hybrid (Jamba)": ("jamba", {**GQA, **EXPERTS, **EVERY_SECOND_LAYER, "use_mamba_kernels": False}, "hybrid"),
    "hybrid (Qwen3-Next)": (
        "qwen3_next",
        {**GQA, **LINEAR_HEADS, **EXPERTS, "head_dim": 12, "layer_types": ["linear_attention", "full_attention"]},
        "hybrid",
    ),
    "encoder (BERT)": ("bert", {**SIZES, "is_decoder": False}, "no key-value cache"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_refused(kind):
    model_type, config, reason = REFUSED[kind]
    implementation = "sdpa" if model_type in ("lfm2", "qwen3_next", "jamba", "falcon", "bert") else "eager"
    model = tiny.build_from(model_type, attn_implementation=implementation, **config)
    with pytest.raises(ValueError, match=reason):
        nr.Target(model)
    with pytest.raises(ValueError, match=reason):
        nr.generate(model, None, [1, 2])


def test_encoder_decoder_is_refused():
    sizes = {"d_model": 48, "d_kv": 12, "d_ff": 64, "num_layers": 2, "num_heads": 4}
    model = T5ForConditionalGeneration(T5Config(vocab_size=tiny.VOCAB, **sizes)).eval()
    with pytest.raises(ValueError, match="T5ForConditionalGeneration is an encoder-decoder"):
        nr.Target(model)


def test_training_mode_is_refused():
    with pytest.raises(ValueError, match=r"model\.eval\(\)"):
        nr.Target(tiny.build("llama").train())


def test_training_mode_is_refused_after_a_first_use():
    """Dropout would change the tokens just as well."""
    model = tiny.build("gpt2")
    nr.generate(model, None, [1, 2], max_new_tokens=2)
    model.train()
    with pytest.raises(ValueError, match=r"model\.eval\(\)"):
        nr.generate(model, None, [1, 2], max_new_tokens=2)


def test_other_attention_implementations_are_refused():
    with pytest.raises(ValueError, match=r"flex_attention.*attn_implementation=\"sdpa\""):
        nr.Target(tiny.build("llama", attn_implementation="flex_attention"))


def patched(model: PreTrainedModel, change) -> PreTrainedModel:
    """Have `change` edit the arguments of every forward that comes with a 4-D mask."""
    forward = model.forward

    def changed(*args, **kwargs):
        mask = kwargs.get("attention_mask")
        return forward(*args, **(change(kwargs) if mask is not None and mask.ndim == 4 else kwargs))

    # The signature stays: the target looks at it.
    changed.__wrapped__ = forward
    model.forward = changed
    return model


def ignore_branches(kwargs):
    """A causal mask over the cache's slots, in place of the tree's."""
    mask = kwargs["attention_mask"]
    return kwargs | {"attention_mask": mask | mask.roll(1, dims=2) if mask.shape[2] > 1 else mask}


def take_slots_as_positions(kwargs):
    positions = kwargs["position_ids"]
    return kwargs | {"position_ids": positions[:, :1] + torch.arange(positions.shape[1])}


@pytest.mark.parametrize("change", [ignore_branches, take_slots_as_positions])
def test_silently_wrong_models_are_refused(change):
    with pytest.raises(ValueError, match="logits of a tree and of its paths differ"):
        nr.Target(patched(tiny.build("llama"), change))
    assert nr.Target(patched(tiny.build("llama"), lambda kwargs: kwargs))


def fail(kwargs):
    raise NotImplementedError("no such masks here")


def test_failing_forwards_are_named():
    with pytest.raises(ValueError, match=r"LlamaForCausalLM cannot verify a tree.*no such masks here"):
        nr.Target(patched(tiny.build("llama"), fail))
    model = tiny.build("llama")
    model.model.embed_tokens = torch.nn.Embedding(1, 48)
    with pytest.raises(ValueError, match="LlamaForCausalLM cannot be used: its forward fails with IndexError"):
        nr.Target(model)


def test_nan_logits_are_refused():
    model = tiny.build("llama")
    model.lm_head.weight[5] = float("nan")
    with pytest.raises(ValueError, match="differ by nan"):
        nr.Target(model)


# Models that are right up to some length only


def refused_or_equal(model: PreTrainedModel, prompt: list[int], max_new_tokens: int) -> None:
    """Assert that a model is refused (as such, or for this prompt), or decodes as `model.generate` does."""
    expected = tiny.hf_greedy(model, prompt, max_new_tokens)
    corpus = tiny.TrueTrees(8, [prompt + expected])
    try:
        (result,) = nr.generate(model, None, prompt, max_new_tokens=max_new_tokens, corpus=corpus)
    except ValueError:
        return
    assert result.token_ids == expected


@pytest.mark.parametrize("prompt_length", [1, 6, 15])
def test_sliding_window_up_to_its_length(prompt_length):
    model = tiny.build_from("mistral", **GQA, sliding_window=16)
    prompt = tiny.random_ids(prompt_length)
    room = 16 - prompt_length
    expected = tiny.hf_greedy(model, prompt, room)
    corpus = tiny.TrueTrees(8, [prompt + expected])
    (result,) = nr.generate(model, None, prompt, max_new_tokens=room, corpus=corpus)
    assert result.token_ids == expected
    message = rf"prompt 0 asks for a context of {prompt_length} \+ {room + 1} tokens.*last 16 only.*sliding window"
    with pytest.raises(ValueError, match=message):
        nr.generate(model, None, prompt, max_new_tokens=room + 1)


@pytest.mark.parametrize("window", [48, 256])
def test_local_attention_inside_the_model(window):
    """GPT-Neo keeps its window in a buffer of its own, cut by the number of slots: no layer of the cache tells."""
    sizes = {"hidden_size": 48, "num_layers": 2, "num_heads": 4, "intermediate_size": 64}
    layers = {"attention_types": [[["global", "local"], 1]], "window_size": window, "max_position_embeddings": 512}
    model = tiny.build_from("gpt_neo", attn_implementation="eager", **sizes, **layers)
    for prompt_length in (10, window - 30, window - 10, window + 50):
        refused_or_equal(model, tiny.random_ids(prompt_length), max_new_tokens=20)


def longrope(original: int = 64) -> PreTrainedModel:
    """Phi-3 with two sets of rotary frequencies, for texts up to and beyond `original` tokens."""
    rope = {"rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0] * 6, "long_factor": [4.0] * 6}
    config = {"rope_parameters": rope | {"original_max_position_embeddings": original}}
    config |= {"original_max_position_embeddings": original, "max_position_embeddings": 256}
    return tiny.build_from("phi3", **GQA, **config)


def test_rotary_frequencies_that_change_while_decoding():
    """`model.generate` computes the whole cache again when a text outgrows the first set."""
    for prompt_length in (10, 50, 63, 64, 65):
        refused_or_equal(longrope(), tiny.random_ids(prompt_length), max_new_tokens=20)


def test_rotary_frequencies_that_change_within_a_prompt(monkeypatch):
    monkeypatch.setattr(target_module, "PREFILL_CHUNK", 32)
    refused_or_equal(longrope(), tiny.random_ids(100), max_new_tokens=20)


def test_accepted_models_decode_batches():
    """A model that reshapes keys with `view` takes what the cache hands out for one row, and fails for several."""
    model = tiny.build_from(
        "gpt_neox_japanese", attn_implementation="eager", **{**SIZES, "intermediate_multiple_size": 2}
    )
    prompts = [[1, 2, 3], [4, 5]]
    expected = [tiny.hf_greedy(model, prompt, 8) for prompt in prompts]
    try:
        target = nr.Target(model)
    except ValueError:
        return
    assert [result.token_ids for result in nr.generate(target, None, prompts, max_new_tokens=8)] == expected


# Logits of a tree

TREES = {
    "chain": [-1, 0, 1, 2, 3],
    "star": [-1, 0, 0, 0, 0],
    "two interleaved branches": [-1, 0, 0, 1, 2, 3, 4, 5, 6],
    "padded": [-1, 0, 0, 2, 3, -1, -1, -1],
    "root alone": [-1],
}


def draw_tokens(parents: list[int], root: int, seed: int = 0) -> list[int]:
    """Distinct tokens for the nodes, 0 for pads."""
    drawn = np.random.default_rng(seed).permutation(np.arange(1, tiny.VOCAB)).tolist()
    return [root, *(0 if parent < 0 else drawn[node] for node, parent in enumerate(parents) if node)]


def path_logits(model: PreTrainedModel, prompt: list[int], tokens: list[int], parents: list[int], node: int):
    """Plain forward over the prompt and the path to a node."""
    path: list[int] = []
    while node > 0:
        path, node = [tokens[node], *path], parents[node]
    return model(input_ids=torch.tensor([prompt + path])).logits[0, -1]


@pytest.mark.parametrize("shape", TREES)
@pytest.mark.parametrize("name", tiny.ARCHITECTURES)
def test_score_tree_gives_the_logits_of_plain_forwards(name, shape):
    model, parents = tiny.shared(name), TREES[shape]
    target = nr.Target(model)
    for prompt in (tiny.random_ids(1), tiny.random_ids(60)):
        tokens = draw_tokens(parents, root=prompt[-1])
        scored = target.score_tree(prompt, nr.DraftTree.from_parents(tokens, parents))
        assert scored.shape == (len(parents), tiny.VOCAB)
        for node, parent in enumerate(parents):
            if node == 0 or parent >= 0:
                plain = path_logits(model, prompt, tokens, parents, node)
                torch.testing.assert_close(scored[node], plain, rtol=1e-4, atol=1e-4 * plain.abs().max().item())


def test_score_tree_refuses_what_is_no_tree_behind_the_prompt():
    target = nr.Target(tiny.shared("llama"))
    for prompt, tokens in (([1, 2], [3, 4]), ([], [3, 4]), ([1, 2], [[2, 4], [2, 5]])):
        parents = [[-1, 0]] * 2 if isinstance(tokens[0], list) else [-1, 0]
        with pytest.raises(ValueError, match="single tree whose root is the last of prompt_ids"):
            target.score_tree(prompt, nr.DraftTree.from_parents(tokens, parents))


def test_score_tree_changes_nothing_for_later_calls():
    target = nr.Target(tiny.shared("llama"))
    before = nr.generate(target, None, [5, 6, 7], max_new_tokens=8)[0].token_ids
    target.score_tree([5, 6, 9], nr.DraftTree.from_parents([9, 1], [-1, 0]))
    assert nr.generate(target, None, [5, 6, 7], max_new_tokens=8)[0].token_ids == before


def test_drafted_ids_beyond_the_vocabulary_are_never_accepted():
    """Nor do they fail the forward: a corpus may have read another tokenizer's texts."""
    model, prompt = tiny.shared("llama"), [5, 6, 7]
    expected = tiny.hf_greedy(model, prompt, 8)
    corpus = nr.NgramCorpus(nr.DraftConfig(num_draft_tokens=8))
    corpus.insert([5, 6, 7, tiny.VOCAB, tiny.VOCAB + 1, 10**6])
    (result,) = nr.generate(model, None, prompt, max_new_tokens=8, corpus=corpus)
    assert result.token_ids == expected
    assert result.num_proposed_drafts > 0


# What a forward sees


@pytest.mark.parametrize("name", ["llama", "llama-eager", "gpt2", "gpt_bigcode", "deepseek_v3"])
def test_stale_slots_never_show(name):
    """Whatever stands behind the committed tokens and in the slots of others, a row's logits stay the same."""
    target = nr.Target(tiny.shared(name))
    prompts = [tiny.random_ids(3), tiny.random_ids(50, seed=1)]
    parents = [[-1, 0, 0, 1, 2, -1], [-1, 0, 1, 0, -1, -1]]
    tokens = [draw_tokens(row, prompt[-1]) for row, prompt in zip(parents, prompts, strict=True)]
    tree = nr.DraftTree.from_parents(tokens, parents)
    target.cache.reserve(2, bucket_length(80))
    for row, prompt in enumerate(prompts):
        target.prefill(row, prompt[:-1])
    inputs = target.upload(tree, [len(prompt) - 1 for prompt in prompts])
    clean = target.verify(inputs)
    for storage in target.cache.storages:
        for row, prompt in enumerate(prompts):
            storage[:, row, len(prompt) - 1 :] = 1e6
    assert torch.equal(target.verify(inputs), clean)
    for row, prompt in enumerate(prompts):
        plain = path_logits(tiny.shared(name), prompt, tokens[row], parents[row], 2)
        torch.testing.assert_close(clean[row, 2], plain, rtol=1e-4, atol=1e-4 * plain.abs().max().item())


def test_numbers_gone_wrong_stay_in_their_request():
    """Overflow in one text (NaN keys and values) must not reach the next one in its row: 0 times NaN is NaN."""
    model = tiny.build("llama")
    target, prompt = nr.Target(model), [5, 6, 7]
    expected = tiny.hf_greedy(model, prompt, 8)
    model.model.embed_tokens.weight[9] = float("nan")
    nr.generate(target, None, [9] * 30, max_new_tokens=4)
    (result,) = nr.generate(target, None, prompt, max_new_tokens=8, draft=nr.DraftConfig(num_draft_tokens=1))
    assert result.token_ids == expected


def test_tree_attention_mask_against_loops():
    rng = np.random.default_rng(0)
    for _ in range(20):
        bs, n, length = 3, int(rng.integers(1, 7)), 16
        parents = [[-1, *(int(rng.integers(-1, node)) for node in range(1, n))] for _ in range(bs)]
        mask = torch.from_numpy(np.stack([ancestors(row) for row in parents]))
        seq_lens = torch.from_numpy(rng.integers(0, length - n + 1, size=bs))
        expected = torch.zeros(bs, n, length, dtype=torch.bool)
        for row in range(bs):
            start = int(seq_lens[row])
            for node in range(n):
                expected[row, node, :start] = True
                for other in range(n):
                    expected[row, node, start + other] = mask[row, node, other]
        assert torch.equal(tree_attention_mask(mask, seq_lens, length), expected)


def ancestors(parents: list[int]) -> np.ndarray:
    mask = np.eye(len(parents), dtype=bool)
    for node, parent in enumerate(parents):
        if parent >= 0:
            mask[node] |= mask[parent]
    return mask


# The cache

LAYERS = [
    LayerShape((2, 3), (2, 3)),
    LayerShape((1, 4), (1, 5)),
    LayerShape((2, 3), (2, 5)),
    LayerShape((1, 5), (2, 3)),
]


def filled_cache(rows: int, slots: int) -> WindowedCache:
    """A cache in which every number is another one."""
    cache = WindowedCache(LAYERS, torch.float64, torch.device("cpu"))
    cache.reserve(rows, slots)
    for index, storage in enumerate(cache.storages):
        storage.copy_(torch.arange(storage.numel(), dtype=torch.float64).view(storage.shape) + 1e6 * index)
    return cache


def contents(cache: WindowedCache) -> list[torch.Tensor]:
    return [part.clone() for index in range(len(LAYERS)) for part in cache.layer(index)]


def test_layers_have_their_shapes_and_share_nothing():
    cache = filled_cache(3, 8)
    parts = contents(cache)
    shapes = [shape for layer in LAYERS for shape in (layer.key, layer.value)]
    assert [part.shape for part in parts] == [(3, 8, *shape) for shape in shapes]
    assert len({value for part in parts for value in part.flatten().tolist()}) == sum(part.numel() for part in parts)


def test_commit_moves_exactly_the_path():
    rng = np.random.default_rng(0)
    for _ in range(50):
        rows, bs, n = 4, int(rng.integers(1, 5)), int(rng.integers(1, 9))
        cache = filled_cache(rows, 24)
        before = contents(cache)
        seq_lens = rng.integers(0, 24 - n + 1, size=bs)
        paths = [[0, *sorted(rng.permutation(np.arange(1, n))[: rng.integers(0, n)].tolist())] for _ in range(bs)]
        accept_index = torch.tensor([path + [-1] * (n - len(path)) for path in paths])
        cache.commit(torch.from_numpy(seq_lens), accept_index)
        for old, new in zip(before, contents(cache), strict=True):
            expected = old.clone()
            for row, path in enumerate(paths):
                start = int(seq_lens[row])
                for place, node in enumerate(path):
                    expected[row, start + place] = old[row, start + node]
                # Behind the path the window's content is nobody's.
                expected[row, start + len(path) : start + n] = new[row, start + len(path) : start + n]
            assert torch.equal(new, expected)


def test_reserve_keeps_contents_and_never_shrinks():
    cache = filled_cache(2, 8)
    before = contents(cache)
    for rows, slots in ((1, 4), (3, 8), (3, 20), (2, 30)):
        cache.reserve(rows, slots)
        for old, new in zip(before, contents(cache), strict=True):
            assert torch.equal(new[:2, :8], old)
    assert (cache.num_rows, cache.num_slots) == (3, 30)


def test_move_row_copies_one_row():
    cache = filled_cache(3, 8)
    before = contents(cache)
    cache.move_row(2, 0)
    for old, new in zip(before, contents(cache), strict=True):
        assert torch.equal(new, old[[2, 1, 2]])


def test_update_without_a_window_is_an_error():
    cache = WindowedCache(LAYERS, torch.float64, torch.device("cpu"))
    with pytest.raises(RuntimeError, match=r"WindowedCache\.open"):
        cache.layers[0].update(torch.zeros(1, 2, 1, 3), torch.zeros(1, 2, 1, 3))


def test_bucket_length():
    buckets = [bucket_length(length) for length in range(1, 70_000)]
    assert all(bucket >= length and bucket % 64 == 0 for length, bucket in enumerate(buckets, start=1))
    assert buckets == sorted(buckets)
    assert all(bucket_length(bucket) == bucket for bucket in set(buckets))
    assert all(bucket < length + 64 or bucket <= 1.25 * length for length, bucket in enumerate(buckets, start=1))
    assert len(set(buckets)) < 50
