"""What must hold on a GPU, where there is one: the checks are plain functions in gpu_checks.py of each folder."""

import pytest
import torch
from support.gpu import checks_beside
from support.places import TESTS

CHECKS = [check for folder in ("monitor", "safety", "trace") for check in checks_beside(TESTS / folder / "test_gpu.py")]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_on_a_gpu(check):
    check()
