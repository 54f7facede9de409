"""A vision model by its hub id, from a cache such as the hub's own library keeps, without a network."""

import json
import os
import subprocess
import sys

import pytest
import torch

MEAN, STD = [0.1, 0.2, 0.3], [0.4, 0.5, 0.6]
PROCESSOR = dict(image_processor_type="ViTImageProcessor", size={"height": 20, "width": 20}, resample=3) | dict(
    image_mean=MEAN, image_std=STD
)
ASK = """
import json, sys
from oversmooth import models
loaded = models.load("someone/vit")
if len(sys.argv) > 1:
    from pathlib import Path
    models.save(loaded, Path(sys.argv[1]))
p = loaded.preprocessing
print(json.dumps([p.size, p.interpolation, p.mean, p.std, p.note, loaded.remarks]))
"""


@pytest.fixture
def cache(tmp_path):
    """A cache with one model in it, and the folder of its files."""
    from transformers import ViTConfig, ViTForImageClassification

    repository = tmp_path / "hub" / "models--someone--vit"
    snapshot = repository / "snapshots" / ("0" * 40)
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("0" * 40)
    sizes = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16)
    torch.manual_seed(0)
    ViTForImageClassification(ViTConfig(**sizes, image_size=20, patch_size=4)).save_pretrained(snapshot)
    return tmp_path / "hub", snapshot


def asked(hub, *arguments, ask=ASK, **more):
    environment = os.environ | {"HF_HUB_CACHE": str(hub), "HF_HUB_OFFLINE": "1"} | more
    done = subprocess.run(
        [sys.executable, "-c", ask, *arguments], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("file", ["preprocessor_config.json", "processor_config.json"])
def test_a_hub_id_gets_its_processors_file(cache, tmp_path, file):
    hub, snapshot = cache
    content = PROCESSOR if file.startswith("pre") else {"image_processor": PROCESSOR}
    (snapshot / file).write_text(json.dumps(content))
    assert asked(hub, str(tmp_path / "saved")) == [[20, 20], "bicubic", MEAN, STD, "", []]
    assert (tmp_path / "saved" / file).read_text() == (snapshot / file).read_text()


def test_a_hub_id_without_one_is_told_by_its_name(cache):
    hub, _ = cache
    size, _, mean, _, note, remarks = asked(hub)
    assert (size, mean) == ([20, 20], [0.5] * 3)
    assert note.startswith("someone/vit has no preprocessor_config.json")
    assert remarks == [note]


NOWHERE = "/dev/null/nowhere"
"""A place in which nothing can be written or made, whoever asks."""


def test_a_home_that_cannot_be_written_to_is_no_reason_to_stop(cache):
    """As in a container, or on a machine whose home directories are mounted to be read only."""
    hub, snapshot = cache
    (snapshot / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))
    homes = dict.fromkeys(("HOME", "HF_HOME", "XDG_CACHE_HOME", "HF_MODULES_CACHE", "OVERSMOOTH_CACHE"), NOWHERE)
    assert asked(hub, **homes)[0] == [20, 20]


STEERED = """
import json
from oversmooth.steering import steering_of
from oversmooth import models
loaded = models.load("someone/vit")
print(json.dumps([steering_of(loaded.model).settings()["methods"][0]["strength"], loaded.remarks]))
"""


@pytest.mark.parametrize("shards", ["10KB", "1GB"])
def test_a_steered_model_by_its_hub_id(cache, shards):
    """Its weights have a name that transformers does not look for."""
    from transformers import ViTForImageClassification

    from oversmooth.steering import NeuTRENO, steer
    from oversmooth.steering.saving import rename_weights

    hub, snapshot = cache
    model = steer(ViTForImageClassification.from_pretrained(snapshot), NeuTRENO(0.35))
    for file in snapshot.iterdir():
        file.unlink()
    model.save_pretrained(snapshot, max_shard_size=shards)
    rename_weights(snapshot)
    (snapshot / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))
    assert asked(hub, ask=STEERED) == [0.35, []]
