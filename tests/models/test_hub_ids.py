"""Vision models by their hub ids, from a cache such as the hub's own library keeps, without a network."""

import json
import os
import subprocess
import sys

import pytest
import torch
from huggingface_hub import constants
from support.nightly import nightly

from oversmooth import models
from oversmooth.steering import NeuTRENO, steer, steering_of
from oversmooth.steering.saving import rename_weights

MEAN, STD = (0.1, 0.2, 0.3), (0.4, 0.5, 0.6)
PROCESSOR = dict(image_processor_type="ViTImageProcessor", size={"height": 20, "width": 20}, resample=3) | dict(
    image_mean=list(MEAN), image_std=list(STD)
)
FILES = {"preprocessor": PROCESSOR, "processor": {"image_processor": PROCESSOR}}
"""By the names of their models, and of the files less _config.json."""
SHARDS = ("10KB", "1GB")


def model():
    from transformers import ViTConfig, ViTForImageClassification

    sizes = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16)
    torch.manual_seed(0)
    return ViTForImageClassification(ViTConfig(**sizes, image_size=20, patch_size=4))


def snapshot(home, name):
    """The folder of a model's files, in a cache."""
    repository = home / "hub" / f"models--someone--{name}"
    folder = repository / "snapshots" / ("0" * 40)
    folder.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0" * 40)
    return folder


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A cache with models in it that differ in their files."""
    home = tmp_path_factory.mktemp("home")
    for name in ("without", *FILES):
        folder = snapshot(home, name)
        model().save_pretrained(folder)
        if name in FILES:
            (folder / f"{name}_config.json").write_text(json.dumps(FILES[name]))
    for shards in SHARDS:
        folder = snapshot(home, shards)
        steer(model(), NeuTRENO(0.35)).save_pretrained(folder, max_shard_size=shards)
        rename_weights(folder)
        (folder / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))
    return home


@pytest.fixture(scope="module")
def said(home):
    """What is known of each once it is loaded. Those that are not steered are saved again."""
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(constants, "HF_HUB_CACHE", str(home / "hub"))
        patch.setattr(constants, "HF_HUB_OFFLINE", True)
        for name in ("without", *FILES, *SHARDS):
            loaded = models.load(f"someone/{name}")
            p, steering = loaded.preprocessing, steering_of(loaded.model)
            found[name] = dict(size=p.size, interpolation=p.interpolation, mean=p.mean, std=p.std, note=p.note)
            strength = steering and steering.settings()["methods"][0]["strength"]
            found[name] |= dict(remarks=loaded.remarks, steering=strength)
            if steering is None:
                models.save(loaded, home / "saved" / name)
    return found


@pytest.mark.parametrize("file", FILES)
def test_a_hub_id_gets_its_processors_file(home, said, file):
    plain = dict(note="", remarks=[], steering=None)
    assert said[file] == dict(size=(20, 20), interpolation="bicubic", mean=MEAN, std=STD, **plain)
    assert json.loads((home / "saved" / file / f"{file}_config.json").read_text()) == FILES[file]


def test_a_hub_id_without_one_is_told_by_its_name(said):
    found = said["without"]
    assert (found["size"], found["mean"]) == ((20, 20), (0.5,) * 3)
    assert found["note"].startswith("someone/without has no preprocessor_config.json")
    assert found["remarks"] == [found["note"]]


@pytest.mark.parametrize("shards", SHARDS)
def test_a_steered_model_by_its_hub_id(said, shards):
    """Its weights have a name that transformers does not look for."""
    assert (said[shards]["steering"], said[shards]["remarks"]) == (0.35, [])


NOWHERE = "/dev/null/nowhere"
"""A place in which nothing can be written or made, whoever asks."""


@nightly
def test_a_home_that_cannot_be_written_to_is_no_reason_to_stop(home):
    """As in a container, or on a machine whose home directories are mounted to be read only."""
    homes = dict.fromkeys(("HOME", "HF_HOME", "XDG_CACHE_HOME", "HF_MODULES_CACHE", "OVERSMOOTH_CACHE"), NOWHERE)
    code = f"from oversmooth import models; print(models.load('someone/{SHARDS[0]}').preprocessing.size)"
    environment = os.environ | {"HF_HUB_CACHE": str(home / "hub"), "HF_HUB_OFFLINE": "1"} | homes
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert done.stdout.strip() == "(20, 20)", done.stderr
