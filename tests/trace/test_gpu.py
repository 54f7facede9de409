"""A trace on a GPU, where there is one; gpu_checks.py has the checks."""

import pytest
import torch
from support.gpu import checks_beside


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("check", checks_beside(__file__), ids=lambda check: check.__name__)
def test_on_a_gpu(check):
    check()
