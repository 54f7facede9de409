"""Models whose weights two processes share (FSDP2), or that are replicated (DDP): the numbers of one process."""

import json
import sys

import pytest
from support import two_processes

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes are forked and joined by gloo")
SCRIPT = """
import json
from support.families import FAMILIES
import oversmooth
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

family = FAMILIES["Llama"]
family.make()  # what it imports need not be imported in every process

def numbers(model):
    found = json.loads(oversmooth.diagnose(model, family.inputs(), name="it", ranks=2, joined=2).to_json())
    found["model"].pop("class")
    for name in ("created", "seconds"):
        found["provenance"].pop(name)
    return {name: value for name, value in found.items() if name not in ("notes", "remarks")}

def tokens(model):
    found = oversmooth.diagnose(model, family.inputs(), blocks="layers.*", spectra=False)
    return [layer.tokens["hfc_lfc"] for layer in found.layers]

def work(ranks, name):
    model = family.make()
    if ranks.world == 1:
        found = {"one": numbers(model), "tokens": tokens(model)}
    else:
        found = {"DDP": numbers(DistributedDataParallel(model))}
        mesh = init_device_mesh("cpu", (2,))
        for block in model.layers:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        assert hasattr(model.layers[0].self_attn.v_proj.weight, "full_tensor")
        found["FSDP2"] = numbers(model)
        found |= tensor_parallel(family.make(), mesh)
    (folder / f"{name}.json").write_text(json.dumps(found))

def tensor_parallel(model, mesh):
    columns = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj")
    how = {f"layers.*.{part}": ColwiseParallel() for part in columns}
    how |= {f"layers.*.{part}": RowwiseParallel() for part in ("self_attn.o_proj", "mlp.down_proj")}
    parallelize_module(model, mesh, how)
    found = {"parallel": tokens(model)}
    try:
        oversmooth.diagnose(model, family.inputs())
    except oversmooth.InputError as error:
        found["said"] = str(error)
    return found
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = two_processes.run(SCRIPT, lambda: tmp_path_factory.mktemp("sharded"))
    return [json.loads((folder / f"{name}.json").read_text()) for name in ("one", "two0", "two1")]


def test_tensor_parallel_models_have_tokens_and_one_sentence_for_the_rest(found):
    one, *two = found
    for each in two:
        assert each["parallel"] == pytest.approx(one["tokens"], rel=1e-5)
        assert "is tensor-parallel, and no process has whole heads; diagnose it in one process" in each["said"]


def test_sharded_and_replicated_models_have_the_numbers_of_one_process(found):
    one, *two = found
    for each in two:
        assert (each["DDP"], each["FSDP2"]) == (one["one"], one["one"])
