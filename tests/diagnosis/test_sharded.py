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
from torch.nn.parallel import DistributedDataParallel

def numbers(model, family):
    found = json.loads(oversmooth.diagnose(model, family.inputs(), name="it", ranks=2, joined=2).to_json())
    found["model"].pop("class")
    for name in ("created", "seconds"):
        found["provenance"].pop(name)
    return {name: value for name, value in found.items() if name not in ("notes", "remarks")}

def work(ranks, name):
    family = FAMILIES["Llama"]
    model = family.make()
    if ranks.world == 1:
        found = {"one": numbers(model, family)}
    else:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
        found = {"DDP": numbers(DistributedDataParallel(model), family)}
        mesh = init_device_mesh("cpu", (2,))
        for block in model.layers:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        assert hasattr(model.layers[0].self_attn.v_proj.weight, "full_tensor")
        found["FSDP2"] = numbers(model, family)
    (folder / f"{name}.json").write_text(json.dumps(found))
"""
TENSOR_PARALLEL = """
import json
from support.families import FAMILIES
import oversmooth

def tokens(model):
    given = FAMILIES["Llama"].inputs()
    found = oversmooth.diagnose(model, given, blocks="layers.*", spectra=False)
    return [layer.tokens["hfc_lfc"] for layer in found.layers]

def work(ranks, name):
    model = FAMILIES["Llama"].make()
    found = {"tokens": tokens(model)}
    if ranks.world == 2:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
        columns = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj")
        how = {f"layers.*.{part}": ColwiseParallel() for part in columns}
        how |= {f"layers.*.{part}": RowwiseParallel() for part in ("self_attn.o_proj", "mlp.down_proj")}
        parallelize_module(model, init_device_mesh("cpu", (2,)), how)
        found["parallel"] = tokens(model)
        try:
            oversmooth.diagnose(model, FAMILIES["Llama"].inputs())
        except oversmooth.InputError as error:
            found["said"] = str(error)
    (folder / f"{name}.json").write_text(json.dumps(found))
"""


def test_tensor_parallel_models_have_tokens_and_one_sentence_for_the_rest(tmp_path):
    folder = two_processes.run(TENSOR_PARALLEL, lambda: tmp_path)
    for rank in (0, 1):
        found = json.loads((folder / f"two{rank}.json").read_text())
        assert found["parallel"] == pytest.approx(found["tokens"], rel=1e-5)
        assert "is tensor-parallel, and no process has whole heads; diagnose it in one process" in found["said"]


def test_sharded_and_replicated_models_have_the_numbers_of_one_process(tmp_path):
    folder = two_processes.run(SCRIPT, lambda: tmp_path)
    alone = json.loads((folder / "one.json").read_text())["one"]
    for rank in (0, 1):
        both = json.loads((folder / f"two{rank}.json").read_text())
        assert both == {"DDP": alone, "FSDP2": alone}
