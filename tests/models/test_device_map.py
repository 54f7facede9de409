"""Models that accelerate distributes: weights that are offloaded between calls are read where they are needed."""

import json

import pytest
from support.families import FAMILIES

from oversmooth import InputError, diagnose
from oversmooth.models import load

pytest.importorskip("accelerate")
MAPS = {
    "Llama": {"embed_tokens": "disk", "layers.0": "cpu", "layers.1": "disk", "norm": "cpu", "rotary_emb": "cpu"},
    "BERT": {"embeddings": "cpu", "encoder.layer.0": "disk", "encoder.layer.1": "disk", "pooler": "cpu"},
}


def numbers(diagnosis):
    found = json.loads(diagnosis.to_json())
    for name in ("created", "seconds"):
        found["provenance"].pop(name)
    return found


@pytest.mark.parametrize("name", MAPS)
def test_offloaded_weights_change_no_number(name, tmp_path):
    family = FAMILIES[name]
    model = family.make()
    model.save_pretrained(tmp_path)
    apart = type(model).from_pretrained(tmp_path, device_map=MAPS[name], offload_folder=tmp_path / "off").eval()
    assert all(p.is_meta for p in apart.get_submodule(family.block.format(1)).parameters())
    how = dict(name="it", joined=2, ranks=2)
    whole = load(str(tmp_path)).model
    assert numbers(diagnose(apart, family.inputs(), **how)) == numbers(diagnose(whole, family.inputs(), **how))


def test_a_device_map_by_name(tmp_path):
    FAMILIES["Llama"].make().save_pretrained(tmp_path)
    loaded = load(str(tmp_path), device_map="auto")
    how = dict(name="it", depth=0)
    expected = diagnose(load(str(tmp_path)).model, FAMILIES["Llama"].inputs(), **how)
    assert numbers(diagnose(loaded.model, FAMILIES["Llama"].inputs(), **how)) == numbers(expected)
    with pytest.raises(InputError, match="device_map cannot be combined with device, stream or random"):
        load(str(tmp_path), device_map="auto", device="cpu")
    with pytest.raises(InputError, match="could not be loaded"):
        load(str(tmp_path), device_map="somewhere")
