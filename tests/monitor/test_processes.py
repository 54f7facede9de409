"""Two real processes: DDP and FSDP2 train as without the monitor, every rank looks, and nobody waits in vain."""

import json

import pytest
from support import two_processes

pytestmark = pytest.mark.xdist_group("monitor/test_processes.py")  # one pair of processes

SCRIPT = """
import json, warnings
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
import oversmooth
from oversmooth.monitor import MonitorWarning
from support import watched

def train(ranks, make, watch, sharded=False, buffers=False):
    torch.manual_seed(0)
    model = make()
    before = watch(model) if watch is not None and watch.early else None
    if sharded:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
        mesh = init_device_mesh("cpu", (2,))
        for layer in model.encoder.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        run = model
    else:
        run = DDP(model, broadcast_buffers=buffers) if ranks.world > 1 else model
    monitor = before or (None if watch is None else watch(run))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    torch.manual_seed(10 + int(dist.get_rank()))
    losses = []
    for _ in range(4):
        x, y = torch.randn(4, 5, 16), torch.randint(4, (4,))
        loss = nn.functional.cross_entropy(run(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if monitor is not None:
            monitor.step()
    def whole(p):
        return p.full_tensor() if hasattr(p, "full_tensor") else p
    weights = [float(whole(p).detach().double().square().sum()) for p in model.parameters()]
    flat = torch.cat([whole(p).detach().flatten() for p in model.parameters()])
    rows = None if monitor is None else monitor.history.rows
    return {"losses": losses, "weights": flat.tolist(), "rows": rows,
            "failures": None if monitor is None else monitor.failures}

class Watch:
    def __init__(self, early=False, only=None, **settings):
        self.early, self.only, self.settings = early, only, settings
    def __call__(self, model):
        if self.only is not None and dist.get_rank() != self.only:
            class Nothing:
                history, failures = type("H", (), {"rows": []}), []
                def step(self): pass
            return Nothing()
        return oversmooth.Monitor(model, every=2, **self.settings)

def work(ranks, name):
    if ranks.world == 1:
        return
    probe = watched.probe()
    ways = {
        "probe": Watch(probe=probe, spectra=1, parts=1),
        "together": Watch(probe=probe + dist.get_rank(), together=True),
        "first alone": Watch(probe=probe, only=0),
        "passing": Watch(early=True, use_training_batch=True, together=True),
        "joined": Watch(probe=probe, joined=1, dominance=1, together=True),
    }
    found = {}
    for kind, sharded in (("ddp", False), ("fsdp", True)):
        found[kind] = {"without": train(ranks, watched.Known, None, sharded)}
        for way, watch in ways.items():
            if sharded and way == "first alone":
                continue
            found[kind][way] = train(ranks, watched.Known, watch, sharded)
    found["buffers"] = {
        way: train(ranks, watched.Own, watch, buffers=True)
        for way, watch in (("without", None), ("probe", Watch(probe=probe, blocks="layers.*")))
    }
    (folder / f"{name}.json").write_text(json.dumps(found))
"""


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    folder = two_processes.run(SCRIPT, lambda: tmp_path_factory.mktemp("watched"))
    return [json.loads((folder / f"two{rank}.json").read_text()) for rank in (0, 1)]


CASES = [
    ("ddp", "probe"), ("ddp", "together"), ("ddp", "first alone"), ("ddp", "passing"), ("ddp", "joined"),
    ("buffers", "probe"), ("fsdp", "probe"), ("fsdp", "together"), ("fsdp", "passing"), ("fsdp", "joined"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "way"), CASES)
def test_bit_for_bit_in_two_processes(two, kind, way):
    for rank in two:
        plain, seen = rank[kind]["without"], rank[kind][way]
        assert seen["losses"] == plain["losses"]
        assert seen["weights"] == plain["weights"]
        assert seen["failures"] == []
    assert [row["step"] for row in two[0][kind][way]["rows"]] == [1, 2, 4]


@pytest.mark.parametrize(
    ("kind", "way"),
    [
        ("ddp", "together"),
        ("ddp", "passing"),
        ("ddp", "joined"),
        ("fsdp", "probe"),
        ("fsdp", "passing"),
        ("fsdp", "joined"),
    ],
)
def test_every_rank_has_the_same_numbers(two, kind, way):
    assert two[0][kind][way]["rows"] == two[1][kind][way]["rows"]


def test_spectra_of_sharded_weights_are_those_of_the_whole(two):
    """FSDP's and DDP's models begin alike; after one step of AdamW they are equal up to rounding."""
    whole, sharded = two[0]["ddp"]["probe"]["rows"][0], two[0]["fsdp"]["probe"]["rows"][0]
    for name in ("negative_share", "rho_smooth", "asymmetry", "cos", "change_attention"):
        assert sharded[name] == pytest.approx(whole[name], rel=1e-3, abs=1e-4)


def test_joined_spectra_of_sharded_weights_are_those_of_the_whole(two):
    whole, sharded = (two[0][kind]["joined"]["rows"] for kind in ("ddp", "fsdp"))
    for name in ("joined_rho_smooth", "joined_rho_rough"):
        assert len(whole[0][name]) == 2
        assert all(value > 0 for value in whole[0][name])
        assert sharded[0][name] == pytest.approx(whole[0][name], rel=1e-3)
    assert sharded[0]["smoothing_share"] == whole[0]["smoothing_share"]
