"""Any bytes in place of a file that is read, of ours or of others: a result, or an InputError."""

import io
import json
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from safetensors.torch import save, save_file
from support.families import FAMILIES
from support.fuzzing import PIXELS, Letters, any_json, as_parquet, damaged, fuzz, held, one_entry_changed
from support.pictures import encoded
from support.report_example import example

from oversmooth import Diagnosis, load_steered, models
from oversmooth.anatomy import locate
from oversmooth.demo.smiles import smiles_tokenizer
from oversmooth.diagnosis.finished import Finished
from oversmooth.diagnosis.weights import layer_spectrum
from oversmooth.inputs.images import image_inputs
from oversmooth.inputs.preprocessing import Preprocessing
from oversmooth.inputs.text import text_inputs
from oversmooth.models.trained_file import trained_file
from oversmooth.results.parts import Spectrum
from oversmooth.steering import NeuTRENO, steer, steering_of


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("fuzz")


# One file alone: what stands in its place, and what reads it

LLAMA = FAMILIES["Llama"].make()
WEIGHTS = {name: value.contiguous() for name, value in LLAMA.state_dict().items()}
SAFETENSORS = save(WEIGHTS, {"format": "pt", "recipe": "{}"})
DIAGNOSIS = json.loads(example("tiny", layers=1, heads=1, head_dim=2, inputs=1).to_json())


def weights(path):
    for layer in locate(path, heads=4):
        held(lambda layer=layer: (layer.W_V, layer.W_O, layer.keep))


def images(path):
    return list(image_inputs(Preprocessing(size=(8, 8)), path, count=2, batch=2))


def pieces(path, lines=False):
    return list(text_inputs(Letters(), path, count=2, length=4, batch=2, lines=lines))


def lines(path):
    return pieces(path, lines=True)


def diagnosis(path):
    found = Diagnosis.load(path)
    return found.name, found.smoothing_share, found.negative_share, found.real_parts, found.to_json(), repr(found)


def as_torch(zipped):
    content = io.BytesIO()
    held = {"layers.0.self_attn.v_proj.weight": torch.eye(4), "step": 3}
    torch.save(held, content, _use_new_zipfile_serialization=zipped)
    return content.getvalue()


def as_npz(save=np.savez_compressed, **arrays):
    content = io.BytesIO()
    save(content, **arrays)
    return content.getvalue()


PICTURES = dict(images=PIXELS, labels=np.arange(4))
TOKENS = dict(input_ids=np.ones((3, 4), int), attention_mask=np.ones((3, 4), int))
TABLE = as_parquet(image=[encoded(PIXELS[0])] * 3, label=[1, 2, 3], text=["some", "words", None])
FORMATS = ("PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF")
TEXT = "Some wörds, in a line\nand anöther. ".encode() * 20
FILES = {
    "a.safetensors": (damaged(SAFETENSORS[: SAFETENSORS.index(b"}}") + 60]), [weights, trained_file]),
    "a.pt": (
        st.one_of(damaged(as_torch(True)), damaged(as_torch(False)), damaged(pickle.dumps({"a": [1, "b", None]}))),
        [weights],
    ),
    "d.json": (any_json(DIAGNOSIS), [diagnosis]),
    "pictures.npz": (st.one_of(damaged(as_npz(np.savez, **PICTURES)), damaged(as_npz(**PICTURES))), [images]),
    "tokens.npz": (damaged(as_npz(**TOKENS)), [pieces]),
    "a.txt": (damaged(TEXT), [pieces, lines]),
    "a.parquet": (damaged(TABLE), [images, pieces, lines]),
    "a.png": (
        st.one_of([damaged(encoded(PIXELS[0], k)) for k in ("PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF")]),
        [images],
    ),
    "vocab.txt": (damaged(b"[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nC\n"), [smiles_tokenizer]),
}


@pytest.mark.parametrize("name", FILES)
@fuzz(50)
@given(data=st.data())
@pytest.mark.filterwarnings("ignore")
def test_files(place, name, data):
    contents, readers = FILES[name]
    (place / name).write_bytes(data.draw(contents))
    for read in readers:
        held(read, place / name)


# A file beside others

CONFIG = json.loads(LLAMA.config.to_json_string())
INDEX = {"metadata": {"total_size": 1}, "weight_map": dict.fromkeys(WEIGHTS, "one.safetensors")}


@pytest.mark.parametrize(
    ("beside", "name", "whole", "read"),
    [
        ("model.safetensors", "config.json", CONFIG, weights),
        ("one.safetensors", "model.safetensors.index.json", INDEX, weights),
        (
            "model.safetensors",
            "config.json",
            {k: v for k, v in CONFIG.items() if k not in ("id2label", "label2id")},
            lambda folder: models.load(str(folder)),
        ),
    ],
    ids=["configuration of weights", "index", "configuration of a model"],
)
@fuzz(16)
@given(data=st.data())
def test_checkpoints(tmp_path_factory, beside, name, whole, read, data):
    folder = tmp_path_factory.mktemp("checkpoint")
    (folder / beside).write_bytes(SAFETENSORS)
    (folder / name).write_bytes(data.draw(any_json(whole)))
    held(read, folder)


@fuzz(12)
@given(st.data())
def test_metadata_of_steered_models(place, data):
    path = place / "steered.safetensors"
    settings = steering_of(steer(FAMILIES["BERT"].make(), NeuTRENO(0.5))).settings()
    metadata = one_entry_changed(data, {"oversmooth": settings, "aliases": {"y": "x"}})
    save_file({"x": torch.zeros(1)}, path, metadata)
    held(load_steered, path, FAMILIES["BERT"].make())


def tokenizer_files():
    from tokenizers import Tokenizer
    from tokenizers import models as kinds

    ids = {letter: i for i, letter in enumerate("?abcdefgh")}
    tokenizer = json.loads(Tokenizer(kinds.WordLevel(ids, unk_token="?")).to_str())
    return {"tokenizer.json": tokenizer, "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast"}}


@fuzz(8)
@given(st.data())
def test_tokenizers(place, data):
    from transformers import GPT2Config, GPT2Model

    folder = place / "gpt"
    if not folder.is_dir():
        sizes = dict(n_embd=8, n_layer=1, n_head=2, vocab_size=9, n_positions=16, bos_token_id=0, eos_token_id=0)
        GPT2Model(GPT2Config(**sizes)).save_pretrained(folder)
    for name, content in one_entry_changed(data, tokenizer_files()).items():
        (folder / name).write_text(content, encoding="utf-8", errors="surrogatepass")
    loaded = held(models.load, str(folder))
    if loaded is not None:
        held(lambda: list(loaded.inputs(count=2, length=8)))


@fuzz(40)
@given(st.data())
def test_caches_of_spectra(place, data):
    memory = Finished(place, "spectrum", b"key", Spectrum)
    memory.path.unlink(missing_ok=True)
    memory.add("a", layer_spectrum(locate(LLAMA).layers[0], verdicts=True))
    whole = json.loads(memory.path.read_text())
    memory.path.write_bytes(b"\n" + data.draw(any_json(whole)) + b"\n")
    assert all(isinstance(name, str) for name in memory.read())


PROCESSOR = {
    "image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": 8}, "crop_size": {"height": 8, "width": 8},
    "do_center_crop": True, "resample": 3, "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5],
    "rescale_factor": 0.5, "do_resize": True, "do_normalize": True,
}  # fmt: skip
TIMM = {"pretrained_cfg": {"input_size": [3, 8, 8], "crop_pct": 0.9, "interpolation": "bicubic", "mean": [0.5] * 3}}
STATED = {
    "preprocessor_config.json": PROCESSOR,
    "processor_config.json": {"image_processor": PROCESSOR},
    "config.json": TIMM,
}


@fuzz(80)
@given(st.data())
def test_preprocessing(place, data):
    name = data.draw(st.sampled_from(list(STATED)))
    folder = place / name.removesuffix(".json")
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(data.draw(any_json(STATED[name])))
    found = held(Preprocessing.from_folder, folder, image_size=8)
    if found is not None and max(*found.size, *(found.resize_size or (1, 1))) < 100:
        assert found(Image.fromarray(PIXELS[0])).shape[1:] == found.size
