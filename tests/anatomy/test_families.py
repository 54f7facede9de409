"""Anatomy of every family: what is found, against the models themselves and against their checkpoints."""

import pytest
import torch
from adversary.numbers import family_columns
from adversary.numbers.family_cases import CASES
from support import family_checks as checks
from support.families import FAMILIES, usable
from support.nightly import some

from oversmooth.anatomy import locate

pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated"),  # DeBERTa
    pytest.mark.filterwarnings("ignore:Support for mismatched key_padding_mask"),  # WavLM
]
MORE = [name for name in family_columns.usable() if CASES[name].on_disk and name not in FAMILIES]
# How weights are stored does not depend on the family: a few of them show it, and all of them at night.
SAVED = pytest.mark.parametrize("name", some([name for name in usable() if checks.has_config(name)], 5))


CELLS = [(checks.check_located, name) for name in usable()]
CELLS += [(check, name) for check in (checks.check_weights, checks.check_disk) for name in [*usable(), *some(MORE, 2)]]


@pytest.mark.parametrize(("check", "name"), CELLS, ids=[f"{name}-{check.__name__}" for check, name in CELLS])
def test_what_is_found_is_what_the_model_and_its_checkpoint_hold(check, name):
    check(name)


@SAVED
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_checkpoint_in_half_precision(name, dtype, tmp_path):
    model = FAMILIES[name].make(dtype)
    model.save_pretrained(tmp_path)
    disk = locate(tmp_path)
    checks.same_anatomy(locate(model), disk)
    assert disk.layers[0].W_V.dtype == dtype


@SAVED
def test_a_checkpoint_in_shards(name, tmp_path):
    model = FAMILIES[name].make()
    model.save_pretrained(tmp_path, max_shard_size="12KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    checks.same_anatomy(locate(model), locate(tmp_path))
    checks.same_anatomy(locate(model), locate(tmp_path / "model.safetensors.index.json"))


@SAVED
@pytest.mark.parametrize("zipped", [True, False])
def test_a_torch_file_with_a_configuration(name, zipped, tmp_path):
    model = FAMILIES[name].make()
    model.config.save_pretrained(tmp_path)
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin", _use_new_zipfile_serialization=zipped)
    checks.same_anatomy(locate(model), locate(tmp_path))


def test_the_heads_of_models_with_a_head_on_top(tmp_path):
    """Names on disk begin with the base model's there."""
    import transformers
    from support.families import GQA, randomise

    model = randomise(transformers.LlamaForCausalLM(transformers.LlamaConfig(**GQA))).eval()
    model.save_pretrained(tmp_path)
    assert locate(model).stack == locate(tmp_path).stack == "model.layers.*.self_attn"
    checks.same_anatomy(locate(model), locate(tmp_path))
