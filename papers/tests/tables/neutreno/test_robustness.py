"""Robustness of trained models: cells that are kept, added to and never replaced; the command and its table."""

import json
import re
import shutil
from dataclasses import replace

import pytest
import torch
from support.commands import refusal, run
from support.train_example import blobs, plain

from oversmooth.safety.errors import InputError
from oversmooth_papers.engine.saved_model import save_model
from oversmooth_papers.tables.filling import Running
from oversmooth_papers.tables.neutreno import robustness
from oversmooth_papers.tables.neutreno.robustness import (
    CURVE,
    RADII,
    RobustnessSettings,
    measure,
    named,
    standard_error,
)
from oversmooth_papers.tasks.images.build import augment_of, load_vit, model_of
from oversmooth_papers.tasks.images.corruptions import KINDS, corrupt

SMALL = RobustnessSettings(images=16, steps=3, severities=(1, 4))


def trained(folder, variant="plain", seed=0, noise=0.1):
    """A model file whose weights are large enough to tell images apart."""
    recipe = plain(variant=variant, seed=seed)
    model = model_of(recipe)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(noise * torch.randn_like(parameter))
    path = folder / f"{variant.partition(':')[0]}{seed}.safetensors"
    save_model(model, recipe, path)
    return path


def of_cifar(path, seed=0):
    """A model file for CIFAR-100's images."""
    recipe = plain(data="cifar100", seed=seed)
    recipe = replace(recipe, shape=replace(recipe.shape, image=32, patch=8, classes=100))
    path.parent.mkdir(exist_ok=True)
    save_model(model_of(recipe), recipe, path)


def measured(paths, results, settings=SMALL, **running):
    return measure(named(paths), blobs(24, 1), results, settings, Running(device="cpu", **running))


@pytest.fixture(scope="module")
def one_cell(tmp_path_factory):
    """A model file and results with its cell, measured once for many tests."""
    folder = tmp_path_factory.mktemp("robustness")
    path = trained(folder)
    measured([path], folder / "results")
    return path, folder / "results"


@pytest.fixture
def kept(one_cell, tmp_path):
    """The model file, results that a test may change, and the cell in them."""
    path, results = one_cell
    copied = shutil.copytree(results, tmp_path / "results")
    (file,) = (copied / "neutreno" / "robustness").glob("*.json")
    return path, copied, file


def fgsm_by_hand(path, radius, images, labels):
    """Accuracy of one step, written out: all parameters have gradients too, and the loss is a mean."""
    model, recipe = load_vit(path)
    augment, x = augment_of(recipe), (images.float() / 255).requires_grad_()
    torch.nn.functional.cross_entropy(clean := model(augment.normalise(255 * x)), labels).backward()
    with torch.no_grad():
        moved = model(augment.normalise(255 * (x + radius * x.grad.sign()).clamp(0, 1)))
    return float(((clean.argmax(1) == labels) & (moved.argmax(1) == labels)).float().mean())


@pytest.mark.parametrize("variant", ["plain", "neutreno:strength=0.6", "sharpen"])
def test_a_cell_against_the_attack_and_the_corruptions_written_out(tmp_path, variant):
    path = trained(tmp_path, variant)
    test = blobs(24, 1)
    images, labels = test.images[:16], test.labels[:16]
    (cell,) = measured([path], tmp_path / "results").values()
    model, recipe = load_vit(path)
    normalise = augment_of(recipe).normalise
    with torch.no_grad():
        assert cell["accuracy"] == float((model(normalise(images.float())).argmax(1) == labels).float().mean())
        for kind in ("gaussian_noise", "frost"):
            answers = [model(normalise(corrupt(images, kind, severity).float())).argmax(1) for severity in (1, 4)]
            assert cell["kinds"][kind] == [float((answer == labels).float().mean()) for answer in answers]
    assert list(cell["kinds"]) == list(KINDS)
    assert cell["mean"][1] == pytest.approx(sum(row[1] for row in cell["kinds"].values()) / 15)
    for radius, name in zip(RADII, ("1/255", "4/255"), strict=True):
        assert cell["attacks"]["fgsm"][name] == fgsm_by_hand(path, radius, images, labels)
    assert cell["attacks"].keys() == {"fgsm", "pgd"}
    assert cell["attacks"]["pgd"].keys() == {"1/255", "4/255"}


def test_cells_are_written_once_and_added_to(tmp_path, monkeypatch):
    paths, results = [trained(tmp_path), trained(tmp_path, seed=1)], tmp_path / "results"
    first = measured(paths[:1], results)
    (file,) = (results / "neutreno" / "robustness").glob("*.json")
    assert file.stem == next(iter(first)).key
    assert json.loads(file.read_text())["attacks"] == next(iter(first.values()))["attacks"]
    calls, attack = [], robustness.under_attack
    monkeypatch.setattr(
        robustness, "under_attack", lambda *given, **more: (calls.append(list(given[4])), attack(*given, **more))[1]
    )
    written = file.read_bytes()
    assert [*measured(paths[:1], results).values()] == [json.loads(written)]
    assert calls == []
    assert file.read_bytes() == written
    # Another model is run, and the first is not.
    both = measured(paths, results)
    assert len(both) == 2
    assert calls == [[0.0], list(RADII), list(RADII)]
    # A curve adds its radii, and keeps what is there.
    calls.clear()
    monkeypatch.setattr(robustness, "under_corruption", None)  # not again
    (curve,) = measured(paths[:1], results, replace(SMALL, radii=CURVE)).values()
    assert calls == [[0.5 / 255, 2 / 255, 8 / 255]] * 2
    before = next(iter(first.values()))["attacks"]
    assert all(curve["attacks"][name].items() >= row.items() for name, row in before.items())
    assert list(curve["attacks"]["pgd"]) == ["1/255", "4/255", "0.5/255", "2/255", "8/255"]
    # The narrower question is answered by the wider cell.
    calls.clear()
    assert next(iter(measured(paths[:1], results).values()))["attacks"] == curve["attacks"]
    assert calls == []


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (dict(images=8), "was measured with images 16 and is asked for with 8; name other --results, or remove it"),
        (dict(images=1000), "with images 16 and is asked for with 24"),
        (dict(steps=4), "with steps 3 and is asked for with 4"),
        (dict(restarts=2), "with restarts 1 and is asked for with 2"),
        (dict(severities=(1,)), r"with severities \[1, 4\] and is asked for with \[1\]"),
    ],
)
def test_a_cell_measured_otherwise_is_refused_and_kept(kept, tmp_path, changes, sentence):
    path, results, file = kept
    written = file.read_bytes()
    with pytest.raises(InputError, match=sentence):
        measured([trained(tmp_path, seed=1), path], results, replace(SMALL, **changes))
    with pytest.raises(InputError, match="was measured with weights"):
        measured([trained(tmp_path, noise=0.2)], results)
    assert file.read_bytes() == written
    assert [*file.parent.iterdir()] == [file]  # nothing of the other model: refused before it was run


def test_what_fails_leaves_no_cell(tmp_path, monkeypatch):
    def fails(*_given, **_more):
        raise RuntimeError("broken on purpose")

    monkeypatch.setattr(robustness, "under_attack", fails)
    with pytest.raises(RuntimeError, match="on purpose"):
        measured([trained(tmp_path)], tmp_path / "results")
    assert not [*(tmp_path / "results").rglob("*.json")]


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda cell: cell["attacks"].pop("pgd"), "damaged"),
        (lambda cell: cell["attacks"]["pgd"].update({"1/255": 1.5}), "damaged"),
        (lambda cell: cell.pop("settings"), "damaged"),
        (lambda cell: cell["settings"].update(severities=3), "with severities 3"),
        (lambda cell: cell["mean"].clear(), "damaged"),
    ],
)
def test_a_damaged_cell_is_told(kept, spoil, sentence):
    path, results, file = kept
    cell = json.loads(file.read_text())
    spoil(cell)
    file.write_text(json.dumps(cell))
    with pytest.raises(InputError, match=rf"{sentence}.*remove it"):
        measured([path], results)


def test_two_files_of_one_recipe_are_refused(tmp_path):
    path = trained(tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "model.safetensors").write_bytes(path.read_bytes())
    assert named([tmp_path / "run"])[0].recipe == named([path])[0].recipe  # as oversmooth train leaves it
    with pytest.raises(InputError, match="are of one recipe"):
        named([path, tmp_path / "run"])


def test_the_error_is_that_of_coins():
    draws = torch.rand(4000, 200, generator=torch.Generator().manual_seed(0)) < 0.3
    assert standard_error(0.3, 200) == pytest.approx(float(draws.float().mean(1).std()), rel=0.03)
    assert standard_error(0.0, 10) == 0


def test_the_command_writes_cells_and_a_table(tmp_path, monkeypatch, capsys, cifar):
    for seed in (0, 1):
        of_cifar(tmp_path / f"run{seed}" / "model.safetensors", seed)
    given = ("reproduce", "neutreno", "robustness", "--trained", tmp_path / "run0" / "model.safetensors")
    given = (*given, "--trained", tmp_path / "run1", "--data", cifar, "--results", tmp_path / "r", "--device", "cpu")
    assert run(monkeypatch, *given, "--quick", "-o", tmp_path / "table.md") == 0
    shown = re.sub(r"\s+", " ", capsys.readouterr().out)
    assert "quick: a few images" in shown
    lines = (tmp_path / "table.md").read_text().splitlines()
    heading = "| model | clean | FGSM 1/255 | FGSM 4/255 | PGD 1/255 | PGD 4/255 | corrupted | images |"
    assert lines[0] == heading
    assert len([line for line in lines if "seed" in line]) == 2
    assert re.search(r"\d+\.\d ± \d+\.\d", lines[2])
    assert len([*(tmp_path / "r" / "neutreno" / "robustness-quick").glob("*.json")]) == 2
    assert run(monkeypatch, *given, "--quick", "--curve", "-o", tmp_path / "curve.md") == 0
    assert "| PGD 0.5/255 | PGD 1/255 | PGD 2/255 | PGD 4/255 | PGD 8/255 |" in (tmp_path / "curve.md").read_text()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--trained", "nowhere.safetensors"), "nowhere.safetensors is no trained model; give a file"),
        (("--trained", ".."), ".. is no trained model"),
        ((), "--trained"),
        (("--images", 0), "--images"),
        (("-o", "table.txt"), "choose one of .md"),
        (("--official", "nowhere"), "does not exist"),
        (("--data", "nowhere"), "is no folder and no known data set"),
        (("--restarts", 0), "--restarts"),
    ],
)
def test_bad_options_are_one_sentence(tmp_path, monkeypatch, capsys, cifar, options, sentence):
    monkeypatch.chdir(tmp_path)
    of_cifar(tmp_path / "model.safetensors")
    model = () if not options or "--trained" in options else ("--trained", "model.safetensors")
    data = () if "--data" in options else ("--data", cifar)
    given = ("reproduce", "neutreno", "robustness", *model, *data, "--quick", "--device", "cpu", *options)
    assert sentence in refusal(monkeypatch, capsys, *given)
    assert not [*tmp_path.rglob("*.json")]


def test_images_of_another_data_set_are_refused(tmp_path, monkeypatch, capsys, cifar):
    given = ("reproduce", "neutreno", "robustness", "--trained", trained(tmp_path), "--data", cifar, "--quick")
    said = refusal(monkeypatch, capsys, *given, "--results", tmp_path / "r")
    assert "the recipe is for blobs and the data are cifar100" in said
