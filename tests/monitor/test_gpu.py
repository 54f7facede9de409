"""The monitor on a GPU, where there is one; gpu_checks.py has the checks."""

import importlib.util
from pathlib import Path

import pytest
import torch

_spec = importlib.util.spec_from_file_location("monitor_gpu_checks", Path(__file__).with_name("gpu_checks.py"))
gpu_checks = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(gpu_checks)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("check", gpu_checks.CHECKS, ids=lambda check: check.__name__)
def test_on_a_gpu(check):
    check()
