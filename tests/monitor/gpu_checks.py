"""What must hold of the monitor on a GPU: the training is the same bit for bit, also in the compiler's CUDA graphs.

Plain functions, so that a machine without pytest can run them too: python tests/monitor/gpu_checks.py [CHECK ...]
"""

import copy
import sys
import warnings
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1]))
from support.gpu import run_named
from support.watched import same

import oversmooth
from oversmooth.monitor import MonitorWarning

STEPS, EVERY = 13, 4
LOOKS = [1, 4, 8, 12]


class Encoder(nn.Module):
    """torch's own blocks and a head."""

    def __init__(self, dropout=0.1, width=32):
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.head = nn.Linear(width, 4)

    def forward(self, x):
        return self.head(self.encoder(x).mean(1))


def batches(steps=STEPS, tokens=(9,)):
    generator = torch.Generator().manual_seed(1)
    for step in range(steps):
        x = torch.randn(6, tokens[step % len(tokens)], 32, generator=generator)
        yield x.cuda(), torch.randint(4, (6,), generator=generator).cuda()


def by_hand(model, x):
    """Mean cosine, HFC/LFC and stable rank after every block of the eager model, in float64 on a CPU."""
    kept = []
    handles = [
        model.encoder.layers[0].register_forward_pre_hook(lambda _m, args: kept.append(args[0])),
        *(one.register_forward_hook(lambda _m, _a, out: kept.append(out)) for one in model.encoder.layers),
    ]
    with torch.no_grad():
        model(x)
    for handle in handles:
        handle.remove()
    rows = {"cos": [], "hfc_lfc": [], "stable_rank": []}
    for tokens in (one.double().cpu() for one in kept):
        n = tokens.shape[1]
        unit = tokens / tokens.norm(dim=-1, keepdim=True)
        rows["cos"].append(float(((unit @ unit.mT).sum((1, 2)) - n).div(n * (n - 1)).mean()))
        mean = tokens.mean(1, keepdim=True)
        high, low = (tokens - mean).norm(dim=(1, 2)), (mean * n**0.5).norm(dim=(1, 2))
        rows["hfc_lfc"].append(float((high / low).log().mean().exp()))
        first = tokens[:4]
        largest = torch.stack([torch.linalg.matrix_norm(one, 2) for one in first])
        rows["stable_rank"].append(float((first.norm(dim=(1, 2)) / largest).square().mean()))
    return rows


def near(row, expected):
    for name, values in expected.items():
        for ours, theirs in zip(row[name], values, strict=True):
            assert abs(ours - theirs) < 2e-3 * max(1.0, abs(theirs)), (name, row[name], values)


def fitted(watch, *, mode="reduce-overhead", dropout=0.1, tokens=(9,), oracle=False):
    """(losses, the model, the monitor, what is seen by hand at the steps that are looked at)."""
    torch.compiler.reset()
    torch.manual_seed(0)
    model = Encoder(dropout).cuda()
    monitor = None if watch is None else watch(model)
    run = torch.compile(model, mode=mode) if mode else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses, seen = [], {}
    for step, (x, y) in enumerate(batches(tokens=tokens), 1):
        if oracle and step in LOOKS:
            seen[step] = by_hand(copy.deepcopy(model), x)
        loss = F.cross_entropy(run(x), y)
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
        if monitor is not None:
            monitor.step()
    return losses, model, monitor, seen


def passing(model):
    return oversmooth.Monitor(model, every=EVERY, use_training_batch=True, tokens=("cos", "hfc_lfc", "stable_rank"))


def probing(model):
    x, _ = next(batches(1))
    return oversmooth.Monitor(model, probe=x, every=EVERY, spectra=1)


def without_looks(model):
    """The same program as that of `passing`, which looks once, at the first step."""
    return oversmooth.Monitor(model, every=10**6, use_training_batch=True, tokens=("cos", "hfc_lfc", "stable_rank"))


def check_training_in_the_compilers_cuda_graphs_is_the_same():
    """A GPU's compiler chooses how reductions are cut up by timing them, for each program by itself, and with that the
    last bits. The passing batch is watched by an operator in the program: bit for bit the same is the training by
    that very program, whatever is looked at; and to rounding the one by the program without it. A probe leaves the
    program alone.
    """
    from torch._dynamo.utils import counters

    for mode in (None, "reduce-overhead"):
        losses, model, *_ = fitted(None, mode=mode)
        again, other, *_ = fitted(None, mode=mode)
        assert losses == again, (mode, "two trainings without a monitor differ", losses, again)
        assert same(model, other), (mode, "the weights of two trainings without a monitor differ")
        for watch in (passing, probing):
            counters.clear()
            with warnings.catch_warnings():
                warnings.simplefilter("error", MonitorWarning)
                watched_losses, watched_model, monitor, _ = fitted(watch, mode=mode)
            assert [row["step"] for row in monitor.history.rows] == LOOKS
            assert not counters["inductor"]["cudagraph_skips"], (mode, watch.__name__, "graphs are skipped")
            assert not counters["graph_break"], (mode, watch.__name__, counters["graph_break"])
            expected, own = losses, model
            if mode and watch is passing:
                expected, own, *_ = fitted(without_looks, mode=mode)
                furthest = max(abs(a - b) for a, b in zip(losses, expected, strict=True))
                print(f"    losses with the operator in the program, from those without: {furthest:.2g} at most")
                assert furthest < 1e-5, (mode, losses, expected)
            assert expected == watched_losses, (mode, watch.__name__, "losses", expected, watched_losses)
            assert same(own, watched_model), (mode, watch.__name__, "weights")


def check_what_passes_in_the_compilers_cuda_graphs_is_seen():
    for mode in (None, "reduce-overhead"):
        with warnings.catch_warnings():
            warnings.simplefilter("error", MonitorWarning)
            _, _, monitor, seen = fitted(passing, mode=mode, dropout=0.0, oracle=True)
        for row in monitor.history.rows:
            near(row, seen[row["step"]])


def check_batches_of_two_lengths_in_cuda_graphs():
    """Each length has its own graph, and none writes where another's samples were."""
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always", MonitorWarning)
        _, _, monitor, seen = fitted(passing, dropout=0.0, tokens=(9, 7), oracle=True)
    for row in monitor.history.rows:
        expected = {name: values for name, values in seen[row["step"]].items() if name in row}
        assert {"cos", "hfc_lfc"} <= expected.keys(), row
        near(row, expected)


def check_a_graph_of_the_users_own_is_refused():
    """Its replays call no hook: nothing is recorded, and one sentence says so."""
    torch.manual_seed(0)
    model = Encoder(dropout=0.0).cuda()
    monitor = passing(model)
    still, _ = next(batches(1))
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side), torch.no_grad():
        model(still)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), torch.no_grad():
        model(still)
    for sentence in ("a CUDA graph was captured", "replays a CUDA graph of its own"):
        graph.replay()
        assert monitor.snapshot(1) is None
        assert sentence in monitor.failures[-1], monitor.failures
        monitor.recorder.arm(True)


CHECKS = [value for name, value in list(globals().items()) if name.startswith("check_")]

if __name__ == "__main__":
    run_named(CHECKS)
