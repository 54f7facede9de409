import math
import os
import sys
import tempfile

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from support.nightly import nightly
from support.oracles import normal

from oversmooth import InputError
from oversmooth.metrics import Average, input_convergence, stable_rank


def test_uneven_batches_give_the_mean_over_all_data():
    x = normal(11, 6, 4)
    average = Average(input_convergence, norm="spectral")
    for batch in x.split([5, 1, 3, 2]):
        average.update(batch)
    values = input_convergence(x, norm="spectral").numpy()
    found = average.compute()
    assert found.mean == pytest.approx(values.mean())
    assert found.spread == pytest.approx(values.std(ddof=1))
    assert (found.count, found.undefined) == (11, 0)


def test_masks_reach_the_metric_and_reset_forgets():
    x, mask = normal(4, 6, 3), torch.ones(4, 6, dtype=torch.bool)
    mask[:, 4:] = False
    average = Average(stable_rank)
    average.update(x, mask=mask)
    assert average.compute().mean == pytest.approx(stable_rank(x[:, :4]).mean().item())
    average.reset()
    assert math.isnan(average.compute().mean)
    assert average.compute().count == 0


def test_undefined_values_are_told():
    x = torch.stack([torch.eye(3), torch.zeros(3, 3), torch.ones(3, 3)])
    strict, lenient = Average(stable_rank), Average(stable_rank, skip_undefined=True)
    for average in (strict, lenient):
        average.update(x)
        average.update(torch.zeros(1, 3, 3))
    assert math.isnan(strict.compute().mean)
    found = lenient.compute()
    assert (found.mean, found.count, found.undefined) == (pytest.approx(2), 2, 2)


def test_values_far_from_zero_keep_their_spread():
    values = 1e8 + np.array([0.0, 1.0, 2.0, 3.0])
    average = Average(lambda x, **_: x[..., 0, 0])
    for v in values:
        average.update(torch.full((1, 1, 1), v, dtype=torch.float64))
    assert average.compute().spread == pytest.approx(values.std(ddof=1), rel=1e-6)


def test_one_array_is_not_a_batch():
    with pytest.raises(InputError, match=r"\(3, 3\)"):
        Average(stable_rank).update(torch.eye(3))


SHARES = ([7, 3], [10, 0])


def _process(rank, store, results):
    if sys.platform == "linux":
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"  # whatever names and networks the machine has
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    for shares in SHARES:
        average = Average(input_convergence)
        for batch in normal(10, 6, 4).split(shares)[rank].split(2):
            average.update(batch)
        results.put(average.compute())
    dist.destroy_process_group()


@nightly
def test_two_processes_with_uneven_data_agree_with_one():
    values = input_convergence(normal(10, 6, 4)).numpy()
    context = mp.get_context("spawn")
    results = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(_process, args=(f"{folder}/store", results), nprocs=2)
    for _ in range(2 * len(SHARES)):
        found = results.get(timeout=600)
        assert found.mean == pytest.approx(values.mean())
        assert found.spread == pytest.approx(values.std(ddof=1))
        assert found.count == 10
