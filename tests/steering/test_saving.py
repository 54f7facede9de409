"""Files of steered models: what is in them, and what is refused with the model left as it was."""

import json

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from support import conformance
from support.conformance_methods import make, outputs, steered
from support.families import FAMILIES, TRANSFORMERS
from torch import nn

from oversmooth import InputError, fold, load_steered, unsteer
from oversmooth.steering import NeuTRENO, Spectral, save_steered, steer, steering_of

pytestmark = pytest.mark.filterwarnings("ignore:mkldnn_matmul")  # processors without bfloat16
FAMILY = FAMILIES["BERT"]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "steered.safetensors"
    save_steered(steered("BERT", "Spectral: sharpen"), path)
    return path


def deeper(layers=4):
    from transformers import BertConfig, BertModel

    sizes = dict(hidden_size=32, num_hidden_layers=layers, num_attention_heads=4, intermediate_size=48, vocab_size=64)
    return BertModel(BertConfig(**sizes)).eval()


def test_settings_are_in_the_metadata(file):
    with safe_open(file, "pt") as opened:
        settings = json.loads(opened.metadata()["oversmooth"])
    assert settings["methods"][0]["method"] == "Spectral"
    assert settings["layers"] == [0, 1]
    assert settings == steering_of(load_steered(file, make("BERT"))).settings()


def test_files_are_written_whole_or_not_at_all(tmp_path, monkeypatch):
    model = steered("BERT", "Spectral: sharpen")
    path = tmp_path / "steered.safetensors"
    path.write_text("before")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("safetensors.torch.save_file", full)
    with pytest.raises(InputError, match="No space left"):
        save_steered(model, path)
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_a_stock_file(untouched, tmp_path):
    path = tmp_path / "stock.safetensors"
    save_file({name: value.clone() for name, value in untouched.state_dict().items()}, path)
    with pytest.raises(InputError, match="has no settings of a steered model"):
        load_steered(path, untouched)


WHOLE = {
    "version": 1,
    "methods": [{"method": "NeuTRENO", "strength": 0.5}],
    "layers": [0, 1],
    "stack": "",
    "heads": None,
}


@pytest.mark.parametrize("aliases", [{"y": "nothing"}, {"y": 5}, {"y": None}, {"y": ["x"]}])
def test_names_that_stand_for_nothing(untouched, tmp_path, aliases):
    path = tmp_path / "a.safetensors"
    save_file({"x": torch.zeros(1)}, path, {"oversmooth": json.dumps(WHOLE), "aliases": json.dumps(aliases)})
    with pytest.raises(InputError, match=r"y stands for .*, which is not in it; it is damaged"):
        load_steered(path, untouched)


@pytest.mark.parametrize("settings", [5, "text", [1], {"methods": 5}, {"methods": [], "layers": {}, "stack": ""}])
def test_damaged_settings_in_a_configuration(tmp_path, settings):
    steered("BERT", "NeuTRENO").save_pretrained(tmp_path / "model")
    file = tmp_path / "model" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"oversmooth": settings}))
    with pytest.raises(InputError, match="the settings of the steered model cannot be read"):
        load_steered(tmp_path / "model")


@pytest.mark.parametrize("name", ["ViT", "Llama", "torch encoder (Pre-LN)"])
def test_a_file_of_another_family(untouched, tmp_path, name):
    path = tmp_path / "other.safetensors"
    save_steered(steered(name, "NeuTRENO"), path)
    with pytest.raises(InputError, match=r"there is no stack|is of another model|does not fit"):
        load_steered(path, untouched)


@pytest.mark.parametrize(
    "method", [NeuTRENO(0.5), Spectral(), Spectral(form="general"), Spectral(orthogonal="exp")], ids=str
)
@pytest.mark.parametrize("layers", ["all", [0, 1]])
def test_a_file_of_a_deeper_model(untouched, tmp_path, method, layers):
    path = tmp_path / "other.safetensors"
    save_steered(steer(deeper(), method, layers=layers), path)
    with pytest.raises(InputError, match=r"layer 2 does not exist|give the model it was saved from"):
        load_steered(path, untouched)


def test_a_file_of_a_wider_model(untouched, tmp_path):
    from transformers import BertConfig, BertModel

    wide = BertModel(
        BertConfig(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, vocab_size=64)
    )
    for i, method in enumerate((NeuTRENO(0.5), Spectral())):
        path = tmp_path / f"wide{i}.safetensors"
        save_steered(steer(wide, method), path)
        with pytest.raises(InputError, match="does not fit; give the model it was saved from"):
            load_steered(path, untouched)
        unsteer(wide)


def test_names_that_will_not_do(tmp_path):
    model = steered("torch encoder (Pre-LN)", "NeuTRENO")
    with pytest.raises(InputError, match=r"give NAME\.safetensors"):
        save_steered(model, tmp_path / "folder")
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="cannot be written"):
        save_steered(model, tmp_path / "file" / "a.safetensors")
    save_steered(model, tmp_path / "new" / "a.safetensors")
    assert (tmp_path / "new" / "a.safetensors").is_file()
    bert = steered("BERT", "NeuTRENO")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="is not empty"):
        save_steered(bert, tmp_path / "full")
    assert [p.name for p in (tmp_path / "full").iterdir()] == ["notes.txt"]


def test_a_directory_that_lacks_what_was_learned(tmp_path):
    """Plain weights beside settings of a steered model: refused, and not filled with random numbers."""
    model = steered("BERT", "Spectral: sharpen")
    model.save_pretrained(tmp_path / "steered")
    settings = (tmp_path / "steered" / "config.json").read_text()
    make("BERT").save_pretrained(tmp_path / "mixed")
    (tmp_path / "mixed" / "config.json").write_text(settings)
    with pytest.raises(InputError, match="lacks"):
        load_steered(tmp_path / "mixed")


def test_what_was_loaded_has_no_weights_of_before(file):
    model = load_steered(file, make("BERT"))
    expected = outputs(model, FAMILY)
    with pytest.raises(InputError, match="without its original weights; fold it instead"):
        unsteer(model)
    assert steering_of(model) is not None
    fold(model)
    for a, b in zip(outputs(model, FAMILY), expected, strict=True):
        torch.testing.assert_close(a, b)


def test_loaded_hooks_can_be_taken_off(tmp_path):
    path = tmp_path / "neutreno.safetensors"
    save_steered(steered("BERT", "NeuTRENO: learned by head"), path)
    model = make("BERT")
    before = conformance.snapshot(model)
    unsteer(load_steered(path, model))
    conformance.same_snapshot(conformance.snapshot(model), before)


def test_shared_arrays_are_written_once(tmp_path):
    """Tied weights, as language models have them, come back tied."""
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=32, vocab_size=64)).eval()
    stock = GPT2LMHeadModel(model.config).eval()
    steer(model, [Spectral(), NeuTRENO(0.4, learned=True)])
    ids = torch.arange(6)[None]
    expected = model(ids).logits
    for path in (tmp_path / "a.safetensors", tmp_path / "folder"):
        save_steered(model, path)
        loaded = load_steered(path, stock if path.suffix else None)
        loaded.eval()
        assert torch.equal(loaded(ids).logits, expected)
        assert loaded.lm_head.weight is loaded.transformer.wte.weight


def test_half_precision_survives(tmp_path):
    model = steered("BERT", "Spectral: smooth, bounded, Cayley, cold").bfloat16()
    save_steered(model, tmp_path / "half.safetensors")
    loaded = load_steered(tmp_path / "half.safetensors", make("BERT").bfloat16())
    for a, b in zip(outputs(model, FAMILY), outputs(loaded, FAMILY), strict=True):
        assert torch.equal(a, b)


def test_a_part_of_a_model_that_is_steered_is_saved_with_it(tmp_path):
    """The model given to steer may be part of what is saved."""

    class Classifier(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = make("attention alone (Pre-LN)"), nn.Linear(32, 3)

        def forward(self, x):
            return self.head(self.body(x).mean(1))

    model, x = Classifier(), FAMILIES["attention alone (Pre-LN)"].inputs()
    steer(model, NeuTRENO(0.5, learned=True))
    save_steered(model, tmp_path / "whole.safetensors")
    loaded = load_steered(tmp_path / "whole.safetensors", Classifier())
    assert torch.equal(loaded(x), model(x))


def saved_under_another_name(name, folder, was, now):
    """A directory as another version of transformers, with other names for modules, would write its settings."""
    save_steered(steered(name, "Spectral: sharpen"), folder)
    config = json.loads((folder / "config.json").read_text())
    assert was in config["oversmooth"]["stack"]
    config["oversmooth"]["stack"] = config["oversmooth"]["stack"].replace(was, now)
    (folder / "config.json").write_text(json.dumps(config))


def test_a_directory_of_another_version_of_transformers(tmp_path):
    """4 calls a ViT's blocks encoder.layer, 5 layers."""
    names = ["encoder.layer.*", "layers.*"] if TRANSFORMERS == 4 else ["layers.*", "encoder.layer.*"]
    saved_under_another_name("ViT", tmp_path / "s", *names)
    loaded = load_steered(tmp_path / "s").eval()
    assert steering_of(loaded).stack.startswith(names[0])
    for a, b in zip(
        outputs(loaded, FAMILIES["ViT"]), outputs(steered("ViT", "Spectral: sharpen"), FAMILIES["ViT"]), strict=True
    ):
        assert torch.equal(a, b)


def test_one_of_several_stacks_is_not_guessed(tmp_path):
    saved_under_another_name("Whisper (encoder)", tmp_path / "s", "encoder.layers", "encoder.blocks")
    with pytest.raises(InputError, match=r"there is no stack 'encoder\.blocks"):
        load_steered(tmp_path / "s")


def test_a_weight_and_its_transpose_in_one_memory(tmp_path):
    """Of one address and one shape, and not one array."""

    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
            self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.way = nn.Parameter(torch.randn(16, 16))
            self.back = nn.Parameter(self.way.data.T)

        def forward(self, x):
            return self.encoder(x @ self.way) @ self.back

    model, x = steer(Tied().eval(), NeuTRENO(0.5)), torch.randn(2, 5, 16)
    save_steered(model, tmp_path / "tied.safetensors")
    again = load_steered(tmp_path / "tied.safetensors", Tied().eval())
    with torch.no_grad():
        torch.testing.assert_close(again(x), model(x), rtol=0, atol=1e-6)
