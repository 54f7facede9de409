"""Any bytes in place of a file that is read, of ours or of others: a result, or an InputError.

OVERSMOOTH_FUZZ=2000 runs as many examples of each, others every time; by default few and always the same.
"""

import copy
import gzip
import io
import json
import os
import pickle
import shutil
import warnings
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from safetensors.torch import save, save_file
from support.families import FAMILIES
from support.report_example import example
from support.train_example import RECIPE

from oversmooth import Diagnosis, InputError, load_steered, models
from oversmooth.anatomy import locate
from oversmooth.demo.smiles import smiles_tokenizer
from oversmooth.diagnosis.weights import Memory, layer_spectrum
from oversmooth.inputs.images import image_inputs
from oversmooth.inputs.preprocessing import Preprocessing
from oversmooth.inputs.text import text_inputs
from oversmooth.steering import NeuTRENO, save_steered, steer
from oversmooth_papers.engine import checkpoint, logs
from oversmooth_papers.engine import saved_model as saved
from oversmooth_papers.tables import cells
from oversmooth_papers.tasks.images.data import load
from oversmooth_papers.tasks.images.recipe import Recipe
from oversmooth_papers.tasks.images.vit import ViT
from oversmooth_papers.tasks.registry import load_trained

EXAMPLES = int(os.environ.get("OVERSMOOTH_FUZZ", "0"))
pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # libraries warn of damage as they like
]


def fuzz(few=25):
    return settings(
        max_examples=EXAMPLES or few,
        derandomize=not EXAMPLES,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


# What is put in the place of files

NUMBERS = st.one_of(
    st.integers(-3, 40),
    st.sampled_from([2**31, 2**60, 2**64, -(2**63), 10**9, 10**18, 10**400]),
    st.floats(allow_nan=True, allow_infinity=True),
)
VALUES = st.recursive(
    st.one_of(
        st.none(), st.booleans(), NUMBERS, st.text(max_size=8), st.sampled_from(["../x", "/etc/passwd", "\x1b[31m"])
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=8), inner, max_size=4)),
    max_leaves=8,
)
ODD = st.sampled_from(
    [b"", b"\0" * 100, b"\xff\xfe", b"[" * 50_000, b'{"a":' * 5000, b"9" * 6000, b"null", b"[]", b"{}"]
)


def places(value, path=()):
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in list(items)[:40]:
        yield from places(inner, (*path, key))


def one_changed(whole):
    """JSON with something else in one place, or with one place gone."""

    def make(change):
        path, value, gone = change
        changed = [copy.deepcopy(whole)]
        at = changed
        way = [0, *path]
        for key in way[:-1]:
            at = at[key]
        if gone and path:
            del at[way[-1]]
        else:
            at[way[-1]] = value
        return json.dumps(changed[0] if changed else None).encode()

    return st.tuples(st.sampled_from(list(places(whole))), VALUES, st.booleans()).map(make)


def damaged(whole):
    """Bytes with some cut out, put in or changed, or nothing but what one likes."""

    def make(changes):
        content = bytearray(whole)
        for share, gone, new in changes:
            at = int(share * len(content))
            content[at : at + gone] = new
        return bytes(content)

    change = st.tuples(st.floats(0, 1), st.sampled_from([0, 1, 4, 8, 10**9]), st.binary(max_size=8))
    return st.one_of(st.lists(change, min_size=1, max_size=4).map(make), st.binary(max_size=60), ODD)


def any_json(whole):
    return st.one_of(one_changed(whole), one_changed(whole), damaged(json.dumps(whole).encode()))


def held(call, *arguments, **settings):
    """The result, or None where it was refused in a sentence."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return call(*arguments, **settings)
    except InputError as error:
        said = str(error)
    assert " ()" not in said
    assert len(said) < 2000  # what is printed is made shorter
    return None


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("fuzz")


def folder_with(place, **files):
    place.mkdir(exist_ok=True)
    for name, content in files.items():
        (place / name.replace("__", ".")).write_bytes(content)
    return place


# Checkpoints

LLAMA = FAMILIES["Llama"].make()
WEIGHTS = {name: value.contiguous() for name, value in LLAMA.state_dict().items()}
SAFETENSORS = save(WEIGHTS, {"format": "pt", "recipe": "{}"})
CONFIG = json.loads(LLAMA.config.to_json_string())
INDEX = {"metadata": {"total_size": 1}, "weight_map": dict.fromkeys(WEIGHTS, "one.safetensors")}


def weights_of(path):
    for layer in locate(path, heads=4):
        held(lambda layer=layer: (layer.W_V, layer.W_O, layer.keep))


@fuzz()
@given(any_json(CONFIG))
def test_configurations_of_weights(place, content):
    folder = folder_with(place / "config", model__safetensors=SAFETENSORS)
    (folder / "config.json").write_bytes(content)
    held(weights_of, folder)


@fuzz()
@given(any_json(INDEX))
def test_indices_of_shards(place, content):
    folder = folder_with(place / "index", one__safetensors=SAFETENSORS)
    (folder / "model.safetensors.index.json").write_bytes(content)
    held(weights_of, folder)


@fuzz()
@given(damaged(SAFETENSORS[: SAFETENSORS.index(b"}}") + 60]))
def test_safetensors(place, content):
    (place / "a.safetensors").write_bytes(content)
    held(weights_of, place / "a.safetensors")
    held(saved.trained_file, place / "a.safetensors")


def as_torch(zipped):
    content = io.BytesIO()
    torch.save(
        {"layers.0.self_attn.v_proj.weight": torch.eye(4), "step": 3}, content, _use_new_zipfile_serialization=zipped
    )
    return content.getvalue()


@fuzz()
@given(st.one_of(damaged(as_torch(True)), damaged(as_torch(False)), damaged(pickle.dumps({"a": [1, "b", None]}))))
def test_files_of_torch(place, content):
    (place / "a.pt").write_bytes(content)
    held(weights_of, place / "a.pt")


@fuzz(12)
@given(any_json({k: v for k, v in CONFIG.items() if k not in ("id2label", "label2id")}))
def test_configurations_of_models(place, content):
    folder = folder_with(place / "model", model__safetensors=SAFETENSORS, config__json=content)
    held(models.load, str(folder))


STEERED = steer(FAMILIES["BERT"].make(), NeuTRENO(0.5))


@fuzz(12)
@given(st.data())
def test_metadata_of_steered_models(place, data):
    path = place / "steered.safetensors"
    save_steered(STEERED, path)
    settings = {"methods": [{"method": "NeuTRENO", "strength": 0.5}], "layers": [0, 1], "stack": "", "heads": None}
    entries = {"oversmooth": settings, "aliases": {"y": "x"}}
    key = data.draw(st.sampled_from(list(entries)))
    content = data.draw(any_json(entries[key])).decode("utf-8", "replace")
    whole = {name: json.dumps(value) for name, value in entries.items()}
    save_file({"x": torch.zeros(1)}, path, whole | {key: content})
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

    folder, files = place / "gpt", tokenizer_files()
    if not folder.is_dir():
        sizes = dict(n_embd=8, n_layer=1, n_head=2, vocab_size=9, n_positions=16, bos_token_id=0, eos_token_id=0)
        GPT2Model(GPT2Config(**sizes)).save_pretrained(folder)
    name = data.draw(st.sampled_from(list(files)))
    for file, whole in files.items():
        (folder / file).write_text(json.dumps(whole))
    (folder / name).write_bytes(data.draw(any_json(files[name])))
    loaded = held(models.load, str(folder))
    if loaded is not None:
        held(lambda: list(loaded.inputs(count=2, length=8)))


# What we write ourselves

DIAGNOSIS = json.loads(example("tiny", layers=1, heads=1, head_dim=2, inputs=1).to_json())


@fuzz(60)
@given(any_json(DIAGNOSIS))
def test_diagnoses(place, content):
    (place / "d.json").write_bytes(content)
    found = held(Diagnosis.load, place / "d.json")
    if found is not None:
        _ = found.name, found.smoothing_share, found.negative_share, found.real_parts, found.to_json(), repr(found)


def kept(place):
    memory = Memory(place, "key")
    memory.path.unlink(missing_ok=True)
    memory.add("a", layer_spectrum(locate(LLAMA).layers[0], verdicts=True))
    return memory, json.loads(memory.path.read_text())


@fuzz(40)
@given(st.data())
def test_caches_of_spectra(place, data):
    memory, whole = kept(place)
    memory.path.write_bytes(b"\n" + data.draw(any_json(whole)) + b"\n")
    assert all(isinstance(name, str) for name in memory.read())


@fuzz(60)
@given(any_json(RECIPE.to_dict()))
def test_recipes(content):
    held(Recipe.from_json, content.decode("utf-8", "replace"))


CELL = {"recipe": RECIPE.to_dict(), "title": "a", "accuracy": 0.5, "hardware": "b", "day": "c", "seconds": 1.0}


@fuzz(60)
@given(any_json(CELL))
def test_cells(place, content):
    path = place / f"{RECIPE.key}.json"
    path.write_bytes(content)
    held(cells.read, path)


@fuzz(40)
@given(st.lists(st.one_of(any_json({"epoch": 1, "loss": 0.5}), st.just(b'{"epoch": 2}')), max_size=4))
def test_logs(place, lines):
    (place / "log.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    held(logs.read, place / "log.jsonl")


@fuzz(40)
@given(st.data())
def test_checkpoints_of_runs(place, data):
    folder = place / "run"
    shutil.rmtree(folder, ignore_errors=True)
    generator = torch.Generator().get_state()
    arrays = {"position": torch.tensor(3), "losses": torch.zeros(5), "failed": torch.zeros(1)}
    arrays |= {"generator.order": generator, "generator.augment": generator.clone(), "model.x": torch.zeros(3)}
    folder.mkdir()
    checkpoint.save(folder, RECIPE, arrays, {"seconds": 1.0})
    file = data.draw(st.sampled_from(sorted(path for path in folder.rglob("*") if path.is_file())))
    whole = file.read_bytes()
    changes = any_json(json.loads(whole)) if file.suffix == ".json" else damaged(whole[:600])
    file.write_bytes(data.draw(changes))
    held(checkpoint.load, folder, RECIPE)
    held(checkpoint.recipe_of, folder)
    held(checkpoint.how_far, folder)


@fuzz(20)
@given(st.data())
def test_metadata_of_trained_models(place, data):
    path, model = place / "model.safetensors", ViT(RECIPE.shape)
    entries = {"recipe": RECIPE.to_dict(), "notes": {"accuracy": 0.5, "seconds": 1.0}, "aliases": {}}
    key = data.draw(st.sampled_from(list(entries)))
    content = data.draw(any_json(entries[key])).decode("utf-8", "replace")
    save_file(model.state_dict(), path, {name: json.dumps(value) for name, value in entries.items()} | {key: content})
    for read in (load_trained, saved.recipe_of, saved.notes_of):
        held(read, path)


# Data

STEPS = Preprocessing(size=(8, 8))


def as_npz(compressed, **arrays):
    content = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(content, **arrays)
    return content.getvalue()


PIXELS = np.arange(4 * 4 * 4 * 3, dtype=np.uint8).reshape(4, 4, 4, 3)
NPZ = [as_npz(packed, images=PIXELS, labels=np.arange(4)) for packed in (False, True)]


def looked_at(path):
    return list(image_inputs(STEPS, path, count=2, batch=2))


@fuzz(60)
@given(st.one_of(*map(damaged, NPZ)))
def test_npz_of_pictures(place, content):
    (place / "a.npz").write_bytes(content)
    held(looked_at, place / "a.npz")


class Letters:
    """A tokenizer of letters, as far as it is asked."""

    is_fast, pad_token_id, eos_token_id, all_special_ids = True, 0, 0, ()

    def num_special_tokens_to_add(self):
        return 0

    def __len__(self):
        return 128

    def __call__(self, text, *, max_length, **_):
        pieces = [text[i : i + max_length] for i in range(0, len(text), max_length)]
        zeros = [[0] * len(piece) for piece in pieces]
        return {"input_ids": zeros, "special_tokens_mask": zeros, "attention_mask": zeros}


def read_text(path, lines):
    return list(text_inputs(Letters(), path, count=2, length=4, batch=2, lines=lines))


@fuzz(60)
@given(damaged(as_npz(True, input_ids=np.ones((3, 4), int), attention_mask=np.ones((3, 4), int))))
def test_npz_of_tokens(place, content):
    (place / "a.npz").write_bytes(content)
    held(read_text, place / "a.npz", False)


@fuzz(60)
@given(damaged("Some wörds, in a line\nand anöther. ".encode() * 20), st.booleans())
def test_texts(place, content, lines):
    (place / "a.txt").write_bytes(content)
    held(read_text, place / "a.txt", lines)


def as_parquet(**columns):
    content = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(columns), content)
    return content.getvalue()


def as_picture(kind):
    content = io.BytesIO()
    Image.fromarray(PIXELS[0]).save(content, kind)
    return content.getvalue()


TABLES = as_parquet(image=[as_picture("png")] * 3, label=[1, 2, 3], text=["some", "words", None])


@fuzz(60)
@given(damaged(TABLES), st.booleans())
def test_parquet(place, content, lines):
    (place / "a.parquet").write_bytes(content)
    held(looked_at, place / "a.parquet")
    held(read_text, place / "a.parquet", lines)


@fuzz(60)
@given(st.one_of(*(damaged(as_picture(kind)) for kind in ("png", "jpeg", "gif", "webp", "bmp", "tiff"))))
def test_pictures(place, content):
    (place / "a.png").write_bytes(content)
    held(looked_at, place / "a.png")


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


@fuzz()
@given(damaged(b"[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nC\n"))
def test_vocabularies(place, content):
    (place / "vocab.txt").write_bytes(content)
    held(smiles_tokenizer, place / "vocab.txt")


# Data of training

IDX = {
    "train-images-idx3-ubyte": bytes([0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0, 2]) + bytes(8),
    "train-labels-idx1-ubyte": bytes([0, 0, 8, 1, 0, 0, 0, 2]) + bytes(2),
}
BATCH = pickle.dumps({b"data": [1], b"fine_labels": [1, 2], b"coarse_labels": [0, 0]}, 2)
SETS = {
    **{f"{name}.gz": gzip.compress(content) for name, content in IDX.items()},
    "train.bin": bytes(2 * 3074),
    "train": BATCH,
    "meta": pickle.dumps({b"fine_label_names": [b"a", b"b"]}, 2),
    "train-0.parquet": as_parquet(img=[as_picture("png")] * 2, fine_label=[0, 1]),
}
LAYOUTS = [
    list(IDX),
    [f"{name}.gz" for name in IDX],
    ["train.bin"],
    ["train", "meta"],
    ["train-0.parquet"],
]


@fuzz(80)
@given(st.data())
def test_data_sets(place, data):
    names = data.draw(st.sampled_from(LAYOUTS))
    folder = place / Path(names[0]).name.replace(".", "-")
    folder.mkdir(exist_ok=True)
    for name in names:
        (folder / name).write_bytes((SETS | IDX)[name])
    broken = data.draw(st.sampled_from(names))
    (folder / broken).write_bytes(data.draw(damaged((SETS | IDX)[broken])))
    held(load_split, folder)


def load_split(folder):
    return load(folder, "train", cache=False)
