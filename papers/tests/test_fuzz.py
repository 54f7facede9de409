"""Any bytes in place of what a training reads and writes: recipes, cells, logs, checkpoints, models, data sets."""

import gzip
import json
import pickle
import shutil
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from support.fuzzing import PIXELS, any_json, as_parquet, damaged, fuzz, held, one_entry_changed
from support.pictures import encoded
from support.train_example import RECIPE

from oversmooth_papers.engine import checkpoint, logs
from oversmooth_papers.engine import saved_model as saved
from oversmooth_papers.tables import cells
from oversmooth_papers.tasks.images.data import load
from oversmooth_papers.tasks.images.recipe import Recipe
from oversmooth_papers.tasks.images.vit import ViT
from oversmooth_papers.tasks.registry import load_trained

pytestmark = pytest.mark.filterwarnings("ignore")  # libraries warn of damage as they like


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("fuzz")


CELL = {"recipe": RECIPE.to_dict(), "title": "a", "accuracy": 0.5, "hardware": "b", "day": "c", "seconds": 1.0}
LINES = st.lists(st.one_of(any_json({"epoch": 1, "loss": 0.5}), st.just(b'{"epoch": 2}')), max_size=4)
FILES = {
    "recipe.json": (any_json(RECIPE.to_dict()), lambda path: Recipe.from_json(path.read_text(errors="replace"))),
    f"{RECIPE.key}.json": (any_json(CELL), cells.read),
    "log.jsonl": (LINES.map(lambda lines: b"\n".join(lines) + b"\n"), logs.read),
}


@pytest.mark.parametrize("name", FILES)
@fuzz(50)
@given(data=st.data())
def test_files(place, name, data):
    contents, read = FILES[name]
    (place / name).write_bytes(data.draw(contents))
    held(read, place / name)


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
    path = place / "model.safetensors"
    entries = {"recipe": RECIPE.to_dict(), "notes": {"accuracy": 0.5, "seconds": 1.0}, "aliases": {}}
    save_file(ViT(RECIPE.shape).state_dict(), path, one_entry_changed(data, entries))
    for read in (load_trained, saved.recipe_of, saved.notes_of):
        held(read, path)


IDX = {
    "train-images-idx3-ubyte": bytes([0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0, 2]) + bytes(8),
    "train-labels-idx1-ubyte": bytes([0, 0, 8, 1, 0, 0, 0, 2]) + bytes(2),
}
BATCH = pickle.dumps({b"data": [1], b"fine_labels": [1, 2], b"coarse_labels": [0, 0]}, 2)
LAYOUTS = [
    IDX,
    {f"{name}.gz": gzip.compress(content) for name, content in IDX.items()},
    {"train.bin": bytes(2 * 3074)},
    {"train": BATCH, "meta": pickle.dumps({b"fine_label_names": [b"a", b"b"]}, 2)},
    {"train-0.parquet": as_parquet(img=[encoded(PIXELS[0])] * 2, fine_label=[0, 1])},
]


@fuzz(80)
@given(st.data())
def test_data_sets(place, data):
    files = data.draw(st.sampled_from(LAYOUTS))
    folder = place / Path(next(iter(files))).name.replace(".", "-")
    folder.mkdir(exist_ok=True)
    broken = data.draw(st.sampled_from(list(files)))
    for name, content in files.items():
        (folder / name).write_bytes(data.draw(damaged(content)) if name == broken else content)
    held(load, folder, "train", cache=False)
