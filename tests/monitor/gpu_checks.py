"""What must hold of the monitor on a GPU: the training is the same bit for bit, and CUDA graphs obey the looks.

Plain functions, so that a machine without pytest can run them too: python tests/monitor/gpu_checks.py [CHECK ...]
"""

import copy
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1]))
from support import language_example as language
from support.gpu import run_named
from support.train_example import RECIPE, splits
from support.watched import same

import oversmooth
from oversmooth.monitor import MonitorWarning
from oversmooth_papers.engine import loop
from oversmooth_papers.engine.result import WatchSettings
from oversmooth_papers.engine.smoothing import MonitorWatcher, SmoothingProbe
from oversmooth_papers.tasks.images.task import ImagesTask

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
    return oversmooth.Monitor(model, every=EVERY, passing=True, tokens=("cos", "hfc_lfc", "stable_rank"))


def probing(model):
    x, _ = next(batches(1))
    return oversmooth.Monitor(model, probe=x, every=EVERY, spectra=1)


def without_looks(model):
    """The same program as that of `passing`, which looks once, at the first step."""
    return oversmooth.Monitor(model, every=10**6, passing=True, tokens=("cos", "hfc_lfc", "stable_rank"))


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


def check_a_graph_of_the_users_own_obeys_the_looks():
    """Captured by hand: steps that are not looked at change nothing, those that are show their own batch."""
    torch.manual_seed(0)
    model = Encoder(dropout=0.0).cuda()
    monitor = passing(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    still, target = (one.clone() for one in next(batches(1)))

    def step():
        optimizer.zero_grad(set_to_none=False)
        F.cross_entropy(model(still), target).backward()
        optimizer.step()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
        monitor.step()  # the first look
        step()
        monitor.step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for number, (x, y) in enumerate(batches(10), 3):
        still.copy_(x)
        target.copy_(y)
        expected = by_hand(copy.deepcopy(model), x)
        graph.replay()
        monitor.step()
        if number % EVERY == 0:
            row = monitor.history.rows[-1]
            assert row["step"] == number, (row["step"], number)
            near(row, expected)
    assert [row["step"] for row in monitor.history.rows] == LOOKS
    assert not monitor.failures, monitor.failures


def check_our_trainer_is_the_same_with_looks():
    """By a graph of its own, and by the monitor, which looks eagerly between replays of the step."""
    tasks = {
        "images": lambda: ImagesTask(replace(RECIPE, variant="neutreno:strength=0.4"), splits()),
        "sharpened images": lambda: ImagesTask(replace(RECIPE, variant="sharpen"), splits()),
        "language": lambda: language.task_of(language.RECIPE),  # with dropout
    }
    for name, task in tasks.items():
        # Compiled code adds up an embedding's gradients in any order: two language runs without looks differ as well.
        compiled = name != "language"

        def trained(every, watcher=SmoothingProbe, task=task, compiled=compiled):
            watch = WatchSettings(monitor=every, evaluate=0, watcher=watcher)
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always", MonitorWarning)
                result = loop.train(task(), device="cuda", compiled=compiled, watch=watch)
            failed = [str(one.message) for one in said if one.category is MonitorWarning]
            assert not failed, failed
            return result

        plain = trained(0)
        for watcher in (SmoothingProbe, MonitorWatcher):
            often, seldom = trained(1, watcher), trained(3, watcher)
            assert len(often.smoothing) == often.steps, (name, watcher.__name__)
            assert len(often.smoothing) > len(seldom.smoothing) > 0
            for other in (often, seldom):
                assert same(plain.model, other.model), (name, watcher.__name__)
                losses = [[row["loss"] for row in one.epochs] for one in (plain, other)]
                assert losses[0] == losses[1], (name, watcher.__name__)
        rows = often.smoothing
        assert all("rank_one_distance" in row for row in rows), name
        assert [row["step"] for row in rows if "rho_smooth" in row] == list(range(1, often.steps + 1, 10)), name


CHECKS = [value for name, value in list(globals().items()) if name.startswith("check_")]

if __name__ == "__main__":
    run_named(CHECKS)
