"""Frost of the official photographs: against the published steps done one by one, and told from our own."""

import hashlib
import json
import re
import shutil

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from support.commands import run
from support.places import shared
from support.train_example import blobs

from oversmooth.safety.errors import InputError
from oversmooth_papers.engine.saved_model import save_model
from oversmooth_papers.tables.filling import Running
from oversmooth_papers.tables.neutreno import robustness
from oversmooth_papers.tables.table3 import Table3
from oversmooth_papers.tasks.images.build import model_of
from oversmooth_papers.tasks.images.corruptions import CONSTANTS, SEVERITIES, corrupt, kinds, official, read_frost
from oversmooth_papers.tasks.images.corruptions.draws import CorruptionDraws
from oversmooth_papers.tasks.images.corruptions.official import fifth
from oversmooth_papers.tasks.images.evaluate import Corruptions, corruptions_made

NAMES = ("frost1.png", "frost2.png", "frost3.png", "frost4.jpg", "frost5.jpg")
SIZES = ((300, 250), (201, 333), (199, 344), (350, 202), (263, 188))


def bilinear(pixels, factor):
    """A resize with half-pixel centres, one pixel at a time, in float64; edges are repeated."""
    height, width = (round(side * factor) for side in pixels.shape[:2])
    out = np.zeros((height, width, 3))
    for row in range(height):
        for column in range(width):
            y, x = (row + 0.5) / factor - 0.5, (column + 0.5) / factor - 0.5
            top, left = int(np.floor(y)), int(np.floor(x))
            for down, across in ((0, 0), (0, 1), (1, 0), (1, 1)):
                weight = (1 - abs(y - top - down)) * (1 - abs(x - left - across))
                here = pixels[min(max(top + down, 0), len(pixels) - 1), min(max(left + across, 0), pixels.shape[1] - 1)]
                out[row, column] += weight * here
    return np.rint(out).astype(np.uint8)


@given(st.integers(3, 40), st.integers(3, 40), st.integers(0, 9))
def test_a_fifth_is_what_bilinear_sampling_gives(height, width, seed):
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    assert np.array_equal(fifth(pixels), bilinear(pixels, 0.2))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Five pictures that pass for the official ones."""
    home = tmp_path / "frost"
    home.mkdir()
    draw = np.random.default_rng(0)
    for name, (height, width) in zip(NAMES, SIZES, strict=True):
        pixels = draw.integers(0, 256, (height, width, 3), dtype=np.uint8)
        mode = Image.fromarray(pixels).convert("RGBA") if name.endswith("png") else Image.fromarray(pixels)
        mode.save(home / name)
    digests = {name: hashlib.sha256((home / name).read_bytes()).hexdigest() for name in NAMES}
    monkeypatch.setattr(official, "_DIGESTS", digests)
    return home


@pytest.mark.parametrize("severity", SEVERITIES)
def test_the_published_steps_one_by_one(folder, severity):
    kept, strength = CONSTANTS["frost"][severity - 1]
    images = torch.from_numpy(np.random.default_rng(1).integers(0, 256, (40, 3, 32, 32), dtype=np.uint8))
    ours = corrupt(images, "frost", severity, frost_from=read_frost(folder))
    # The same random numbers, used as the published script uses its own.
    draw = CorruptionDraws(f"0/frost/{severity}", 0, 40, torch.device("cpu"))
    which, down, right = (draw.uniform().numpy() for _ in range(3))
    used = set()
    for i, image in enumerate(images.numpy().transpose(0, 2, 3, 1)):
        name = NAMES[int(which[i] * 5)]
        used.add(name)
        with Image.open(folder / name) as opened:
            pane = bilinear(np.asarray(opened.convert("RGB")), 0.2) if i < 4 else None
            pane = np.asarray(opened.convert("RGB"))[2::5, 2::5] if pane is None else pane
        top, left = int(down[i] * (pane.shape[0] - 32)), int(right[i] * (pane.shape[1] - 32))
        pane = pane[top : top + 32, left : left + 32]
        theirs = np.clip(kept * image + strength * pane + 1e-6, 0, 255).astype(np.uint8)
        assert np.array_equal(ours[i].permute(1, 2, 0).numpy(), theirs)
    assert used == set(NAMES)


def test_cutting_into_batches_changes_nothing_and_large_images_are_refused(folder):
    pictures, images = read_frost(folder), blobs(30, 0).images.repeat(1, 1, 4, 4)
    whole = corrupt(images, "frost", 3, frost_from=pictures)
    parts = [corrupt(images[i : i + 7], "frost", 3, start=i, frost_from=pictures) for i in range(0, 30, 7)]
    assert torch.equal(torch.cat(parts), whole)
    assert not torch.equal(whole, corrupt(images, "frost", 3))
    with pytest.raises(InputError, match="images of 64 by 64 pixels do not fit into frost of 53 by 38"):
        corrupt(torch.zeros(1, 3, 64, 64, dtype=torch.uint8), "frost", 1, frost_from=pictures)


def test_which_frost_it_was_is_recorded(folder, tmp_path):
    assert corruptions_made(None, None) == {"corruptions": "made on the spot, seed 0", "frost": "textures of our own"}
    assert corruptions_made(None, folder)["frost"] == "official pictures"
    assert corruptions_made(folder, None) == {"corruptions": "official files", "frost": "official files"}
    with pytest.raises(InputError, match="leave out --frost"):
        Corruptions(blobs(4, 0), torch.device("cpu"), official=tmp_path, frost=folder)
    recipe = Table3(share=0.1).recipes()[0]
    assert Table3(share=0.1).folder(recipe) == "table3"
    assert Table3(share=0.1, frost=folder).folder(recipe) == "table3-frost"
    assert "frost by textures of our own" in Table3(share=0.1).notes()[0]
    assert "frost by the official pictures" in Table3(share=0.1, frost=folder).notes()[0]


def test_robustness_keeps_the_two_apart(folder, tmp_path):
    from support.train_example import plain

    recipe = plain()
    save_model(model_of(recipe), recipe, tmp_path / "model.safetensors")
    models, test, results = robustness.named([tmp_path / "model.safetensors"]), blobs(8, 1), tmp_path / "r"
    settings = robustness.RobustnessSettings(images=8, steps=1, severities=(5,), radii=(1 / 255,))
    (cell,) = robustness.measure(models, test, results, settings, Running(device="cpu")).values()
    assert cell["settings"]["frost"] == "textures of our own"
    (file,) = (results / "neutreno" / "robustness").glob("*.json")
    # A cell of an earlier version does not say, and was made with our own.
    content = json.loads(file.read_text())
    del content["settings"]["frost"]
    file.write_text(json.dumps(content))
    assert len(robustness.measure(models, test, results, settings, Running(device="cpu"))) == 1
    with_pictures = robustness.RobustnessSettings(images=8, steps=1, severities=(5,), radii=(1 / 255,), frost=folder)
    with pytest.raises(InputError, match="with frost 'textures of our own' and is asked for with 'official pictures'"):
        robustness.measure(models, test, results, with_pictures, Running(device="cpu"))
    (cell,) = robustness.measure(models, test, tmp_path / "other", with_pictures, Running(device="cpu")).values()
    assert cell["settings"]["frost"] == "official pictures"
    assert "frost by official pictures" in robustness.notes(with_pictures)[0]


def test_what_is_missing_or_another_picture_is_told(folder, tmp_path, monkeypatch):
    monkeypatch.delenv("OVERSMOOTH_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    for missing in (tmp_path / "nowhere", "imagenet-c-frost"):
        with pytest.raises(InputError, match=r"frost1\.png cannot be read .* give the folder imagenet_c/frost"):
            read_frost(missing)
    monkeypatch.setenv("OVERSMOOTH_DATA", str(tmp_path / "shared"))
    for inside in ("", "data"):
        home = tmp_path / "shared" / inside / "imagenet-c-frost"
        shutil.copytree(folder, home)
        assert len(read_frost("imagenet-c-frost").pictures) == 5
        shutil.rmtree(home)
    (folder / "frost3.png").write_bytes((folder / "frost2.png").read_bytes())
    with pytest.raises(InputError, match=r"frost3\.png is not the official picture"):
        read_frost(folder)
    (folder / "frost1.png").unlink()
    with pytest.raises(InputError, match=r"frost1\.png cannot be read"):
        read_frost(folder)


def test_the_command_refuses_a_folder_without_pictures(tmp_path, monkeypatch, capsys, cifar):
    given = ("reproduce", "table3", "--quick", "--data", cifar, "--results", tmp_path / "r", "--device", "cpu")
    assert run(monkeypatch, *given, "--frost", tmp_path) == 2
    assert "frost1.png cannot be read" in re.sub(r"\s+", " ", capsys.readouterr().err)


@pytest.mark.realdata
def test_the_official_pictures():
    pictures, sizes = read_frost(shared("data", "imagenet-c-frost"))
    assert sizes.tolist() == [[120, 180], [63, 112], [63, 112], [70, 105], [99, 132]]
    # The means that the textures of our own were made to have were measured on them.
    measured = pictures.double().sum(dim=(2, 3)) / sizes.prod(dim=1, keepdim=True)
    assert (measured - torch.tensor([mean for mean, _ in kinds._PANES])).abs().max() < 0.1
