"""Libraries that are not there, or do not fit one another: one sentence that names the remedy."""

import os

import pytest
import torch
from support import timm_models
from support.interpreters import python
from support.nightly import NIGHTLY, nightly, some


def said(tmp_path, *arguments, beside=()):
    """What the command line says in an interpreter that sees these folders as well."""
    path = os.pathsep.join([*map(str, beside), os.environ.get("PYTHONPATH", "")])
    done = python("-m", "oversmooth", *arguments, cwd=tmp_path, PYTHONPATH=path, HF_HUB_OFFLINE=1)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    *lines, sentence = done.stderr.strip().splitlines()
    assert all(line.endswith("so far") for line in lines)  # progress, where the machine is slow
    return sentence


@pytest.fixture
def unfit(tmp_path):
    """A torchvision of another torch: found, and an error on import."""
    folder = tmp_path / "unfit"
    (folder / "torchvision").mkdir(parents=True)
    (folder / "torchvision" / "__init__.py").write_text(
        'raise RuntimeError("operator torchvision::nms does not exist")\n'
    )
    (folder / "torchvision-0.1.dist-info").mkdir()
    (folder / "torchvision-0.1.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: torchvision\nVersion: 0.28.0\n"
    )
    return folder


@nightly
@pytest.mark.skipif(timm_models.installed(), reason="timm is installed")
def test_timm_has_an_extra_of_its_own(tmp_path):
    for name in some(("vit_tiny_patch16_224", "timm/vit_tiny_patch16_224"), 2):
        assert "needs timm, which is not installed; install oversmooth[timm]" in said(tmp_path, "diagnose", name)


def test_a_torchvision_that_does_not_fit_is_one_sentence(tmp_path, unfit):
    from transformers import ViTConfig, ViTForImageClassification

    (tmp_path / "beside" / "timm").mkdir(parents=True)
    (tmp_path / "beside" / "timm" / "__init__.py").write_text("import torchvision\n")
    sizes = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16)
    ViTForImageClassification(ViTConfig(**sizes, image_size=16, patch_size=4)).save_pretrained(tmp_path / "vit")
    remedy = f"install the torchvision that belongs to torch {torch.__version__}"
    reason = "which cannot be imported (RuntimeError: operator torchvision::nms does not exist)"
    for name in some(("timm/vit_tiny_patch16_224", "vit_tiny_patch16_224"), 2):
        text = said(tmp_path, "diagnose", name, beside=(unfit, tmp_path / "beside"))
        assert f"needs timm, {reason}; {remedy}" in text
    if NIGHTLY:
        text = said(tmp_path, "diagnose", "vit", "--inputs", 1, beside=(unfit,))
        assert f"needs transformers, {reason}; {remedy}" in text
