"""What must hold of precision on a GPU: what is computed of a model does not depend on whether TF32 is allowed.

Plain functions, so that a machine without pytest can run them too: python tests/safety/gpu_checks.py [CHECK ...]
"""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from support import watched
from support.gpu import run_named

import oversmooth
from oversmooth.steering import Spectral, steer, verify


def looked_at():
    """What a model of usual width gives on the GPU, and all numbers of a diagnosis, a monitor's look and a check of it
    when steered.
    """
    torch.manual_seed(0)
    width = 256
    model, probe = watched.Known(depth=2, width=width).cuda().eval(), watched.probe(4, 32, width).cuda()
    output = model(probe)
    diagnosis = oversmooth.diagnose(model, probe).to_dict()
    del diagnosis["provenance"]  # the time of day
    monitor = oversmooth.Monitor(model, probe=probe, spectra=1, dominance=1)
    row = monitor.snapshot(1)
    assert not monitor.failures, monitor.failures
    steer(model, Spectral("sharpen"))
    return output, repr(diagnosis), repr(row), repr(verify(model))


def check_what_is_seen_of_a_model_is_the_same_where_tf32_is_allowed():
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("highest")
        exact, *expected = looked_at()
        torch.set_float32_matmul_precision("high")
        rough, *seen = looked_at()
    finally:
        torch.set_float32_matmul_precision(before)
    assert not torch.equal(exact, rough), "this GPU does not round to TF32: nothing was checked"
    for name, ours, theirs in zip(("diagnose", "Monitor", "verify"), seen, expected, strict=True):
        assert ours == theirs, f"{name} differs where TF32 is allowed"


CHECKS = [value for name, value in list(globals().items()) if name.startswith("check_")]

if __name__ == "__main__":
    run_named(CHECKS)
