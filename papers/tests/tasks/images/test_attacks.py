"""FGSM and PGD: against Foolbox, against closed forms of a linear model in numpy, against finite differences."""

import contextlib
import copy
import itertools
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.nightly import some
from torch import nn

from oversmooth.safety.errors import InputError
from oversmooth.steering import GatedAttention, NeuTRENO, OrthogonalUpdate, Spectral, steer
from oversmooth_papers.tasks.images.attacks import AttackSettings, fgsm, pgd, shown_radius, under_attack
from oversmooth_papers.tasks.images.recipe import Shape
from oversmooth_papers.tasks.images.vit import ViT

SHAPE = Shape(image=8, patch=4, classes=5, width=16, depth=2, heads=2)
MEAN, STD = torch.tensor([0.5, 0.4, 0.3])[:, None, None], torch.tensor([0.2, 0.25, 0.3])[:, None, None]
METHODS = {
    "plain": None,
    "neutreno": NeuTRENO(strength=0.6),
    "sharpen": Spectral(mode="sharpen"),
    "gatedattention": GatedAttention(),
    "orthogonalupdate": OrthogonalUpdate(),
}


def normalise(pixels):
    return (pixels - MEAN.to(pixels)) / STD.to(pixels)


def make_vit(name="plain", dtype=torch.float32, broken=False):
    """Weights are large enough for logits to differ and for steering to have an effect; broken: one is NaN."""
    torch.manual_seed(1)
    model = ViT(SHAPE)
    if METHODS[name] is not None:
        steer(model, METHODS[name])
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.15 * torch.randn_like(parameter))
        if broken:
            model.head.weight[0, 0] = float("nan")
    return model.to(dtype).eval()


def make_images(count=6, dtype=torch.float32):
    draw = torch.Generator().manual_seed(2)
    images = torch.rand(count, 3, 8, 8, generator=draw, dtype=torch.float64)
    images[0, :, :2] = 0.0  # at the edge of what a pixel can be
    images[0, :, 2:4] = 1.0
    return images.to(dtype), torch.randint(5, (count,), generator=draw)


def own_labels(model, images):
    """Those that the model gives, so that every image is right."""
    with torch.no_grad():
        return model(normalise(images)).argmax(1)


@pytest.fixture(scope="module")
def foolbox():
    with warnings.catch_warnings(action="ignore"):  # its imports of scipy's old names
        return pytest.importorskip("foolbox", reason="Foolbox is the oracle; it is in the extra `test`")


def as_foolbox(foolbox, model):
    settings = dict(mean=MEAN.flatten().to(next(model.parameters())), std=STD.flatten().to(next(model.parameters())))
    return foolbox.PyTorchModel(model, bounds=(0, 1), device="cpu", preprocessing=dict(**settings, axis=-3))


@pytest.mark.parametrize("dtype", some([torch.float64, torch.float32], 2), ids=str)
@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize(("epsilon", "steps", "step"), [(8 / 255, 1, 8 / 255), (4 / 255, 6, 1 / 255)])
def test_images_are_foolboxs(foolbox, name, epsilon, steps, step, dtype):
    model, (images, labels) = make_vit(name, dtype), make_images(dtype=dtype)
    if steps == 1:
        attack = foolbox.attacks.LinfFastGradientAttack(random_start=False)
        ours = fgsm(model, images, labels, epsilon, normalise=normalise)
        assert float((ours - images).abs().max()) == pytest.approx(epsilon, rel=1e-4)
    else:
        attack = foolbox.attacks.LinfProjectedGradientDescentAttack(abs_stepsize=step, steps=steps, random_start=False)
        ours = pgd(model, images, labels, epsilon, steps, step, random_start=False, normalise=normalise)
    theirs = attack.run(as_foolbox(foolbox, model), images, foolbox.criteria.Misclassification(labels), epsilon=epsilon)
    assert ours.dtype == dtype
    assert float((ours - theirs).abs().max()) < 1e-6


def test_accuracy_under_attack_is_foolboxs(foolbox):
    model, (images, _) = make_vit("neutreno"), make_images(40)
    labels = own_labels(model, images)
    labels[::4] = (labels[::4] + 1) % 5  # wrong before any attack
    radii = [0.5 / 255, 2 / 255, 8 / 255]
    attack = foolbox.attacks.LinfProjectedGradientDescentAttack(steps=4, rel_stepsize=0.625, random_start=False)
    *_, fooled = attack(as_foolbox(foolbox, model), images, labels, epsilons=radii)
    settings = AttackSettings(steps=4, random_start=False)
    ours = under_attack(model, normalise, images, labels, radii, "pgd", settings, batch=17)
    assert list(ours.values()) == pytest.approx([1 - float(row.float().mean()) for row in fooled])
    assert 0.75 >= ours[radii[0]] > ours[radii[2]]


class Linear(nn.Module):
    """Softmax regression: the gradient by the pixels is Σ_c (p_c − y_c) w_c."""

    def __init__(self, weights):
        super().__init__()
        self.weight = nn.Parameter(torch.from_numpy(weights))

    def forward(self, x):
        return x.flatten(1) @ self.weight.T


def numpy_pgd(weights, images, labels, epsilon, steps, step):
    """By hand, an image and a step at a time."""
    out = []
    for image, label in zip(images, labels, strict=True):
        start = image.reshape(-1)
        x = start.copy()
        for _ in range(steps):
            scores = weights @ x
            p = np.exp(scores - scores.max())
            p /= p.sum()
            p[label] -= 1
            x = x + step * np.sign(p @ weights)
            x = np.minimum(np.maximum(x, np.maximum(start - epsilon, 0)), np.minimum(start + epsilon, 1))
        out.append(x.reshape(image.shape))
    return np.stack(out)


@given(
    seed=st.integers(0, 1000),
    classes=st.integers(2, 5),
    epsilon=st.floats(0, 0.3),
    steps=st.integers(1, 6),
    share=st.floats(0.1, 3),
)
def test_a_linear_model_by_hand(seed, classes, epsilon, steps, share):
    draw = np.random.default_rng(seed)
    weights, images = draw.normal(size=(classes, 12)), draw.random((4, 3, 2, 2))
    labels = draw.integers(classes, size=4)
    model, given_images, given_labels = Linear(weights), torch.from_numpy(images), torch.from_numpy(labels)
    step = share * epsilon / steps
    ours = pgd(model, given_images, given_labels, epsilon, steps, step, random_start=False)
    np.testing.assert_allclose(ours.numpy(), numpy_pgd(weights, images, labels, epsilon, steps, step), atol=1e-12)
    one = fgsm(model, given_images, given_labels, epsilon)
    np.testing.assert_allclose(one.numpy(), numpy_pgd(weights, images, labels, epsilon, 1, epsilon), atol=1e-12)


def test_two_classes_have_a_closed_form():
    """The sign never changes: every PGD that can cross the ball ends where FGSM does, and no point is worse."""
    draw = np.random.default_rng(3)
    weights, images = draw.normal(size=(2, 12)), draw.uniform(0.2, 0.8, (200, 3, 2, 2))
    margin = images.reshape(200, -1) @ (weights[0] - weights[1])
    labels, epsilon = (margin < 0).astype(np.int64), 0.05
    survives = float(np.mean(np.abs(margin) > epsilon * np.abs(weights[0] - weights[1]).sum()))
    assert 0.1 < survives < 0.9
    model, given_images, given_labels = Linear(weights), torch.from_numpy(images), torch.from_numpy(labels)
    for attack, settings in (("fgsm", {}), ("pgd", {}), ("pgd", dict(restarts=3)), ("pgd", dict(random_start=False))):
        how = AttackSettings(**settings)
        accuracies = under_attack(model, None, given_images, given_labels, [0, epsilon], attack, how, batch=33)
        assert accuracies == {0: 1.0, epsilon: pytest.approx(survives)}
    worst = pgd(model, given_images, given_labels, epsilon, generator=torch.Generator().manual_seed(5))
    torch.testing.assert_close(worst, fgsm(model, given_images, given_labels, epsilon))


def test_bytes_are_pixels_times_255_and_the_default_step_is_as_said():
    model, labels = make_vit(), torch.tensor([0, 1])
    images = torch.randint(256, (2, 3, 8, 8), dtype=torch.uint8)
    settings = dict(random_start=False, normalise=normalise)
    ours = pgd(model, images, labels.to(torch.int32), 0.02, 5, **settings)
    assert torch.equal(ours, pgd(model, images.float() / 255, labels, 0.02, 5, 2.5 * 0.02 / 5, **settings))


@pytest.mark.parametrize("name", ["plain", "sharpen"])
def test_more_restarts_never_leave_more_right(name):
    """Image by image, and so in all; a single step from a random point makes restarts differ."""
    model, (images, _) = make_vit(name), make_images(60)
    labels = own_labels(model, images)

    def loss_and_right(restarts):
        draws = torch.Generator().manual_seed(4)
        x = pgd(model, images, labels, 0.02, 1, 0.004, restarts, generator=draws, normalise=normalise)
        assert 0 <= float(x.min()) <= float(x.max()) <= 1
        assert 0.01 < float((x - images).abs().max()) <= 0.02 + 1e-7
        logits = model(normalise(x))
        return nn.functional.cross_entropy(logits, labels, reduction="none"), logits.argmax(1) == labels

    outcomes = [loss_and_right(restarts) for restarts in (1, 2, 5)]
    for (loss, right), (more_loss, more_right) in itertools.pairwise(outcomes):
        assert not bool((more_right & ~right).any())
        same = right == more_right
        assert bool((more_loss[same] >= loss[same]).all())
    assert bool((outcomes[2][0] > outcomes[0][0]).any())
    accuracies = []
    for restarts in (1, 2, 5):
        settings = AttackSettings(steps=1, step_size=0.004, restarts=restarts)
        accuracies += under_attack(model, normalise, images, labels, [0.02], settings=settings).values()
    assert accuracies == sorted(accuracies, reverse=True)


def test_batches_change_nothing_and_progress_is_reported():
    model, (images, _) = make_vit(), make_images(20)
    labels, radii, reports = own_labels(model, images), [0.005, 0.02], []

    def accuracies(**more):
        settings = AttackSettings(steps=2, restarts=2, seed=7)
        return under_attack(model, normalise, images, labels, radii, settings=settings, **more)

    assert accuracies(batch=20) == accuracies() == accuracies(batch=8, progress=lambda *now: reports.append(now))
    assert [now[:2] for now in reports] == [(8, 40), (16, 40), (20, 40), (28, 40), (36, 40), (40, 40)]
    assert reports[0][2] == f"ε {shown_radius(0.005)}"


class Delicate(nn.Module):
    """Has dropout, flags that differ and a norm with statistics; fails when told to."""

    def __init__(self):
        super().__init__()
        self.inside = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(12), nn.Dropout(0.5), nn.Linear(12, 3))
        self.calls, self.fails_at = 0, None

    def forward(self, x):
        self.calls += 1
        if self.calls == self.fails_at:
            raise RuntimeError("broken on purpose")
        assert not any(module.training for module in self.modules())
        assert not torch.is_autocast_enabled("cpu")
        assert torch.get_float32_matmul_precision() == "highest"
        assert not torch.backends.cudnn.allow_tf32
        logits = self.inside(x)
        assert logits.dtype == torch.float32
        return logits


@pytest.mark.parametrize("fails_at", [None, 3])
@pytest.mark.parametrize("surrounding", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_the_model_and_the_settings_are_left_alone(fails_at, surrounding):
    model = Delicate().train()
    model.inside[1].eval()
    model.inside[3].bias.requires_grad_(False)
    model.inside[3].weight.grad = torch.full((3, 12), 7.0)
    model.fails_at = fails_at
    flags = [module.training for module in model.modules()]
    before = copy.deepcopy(model.state_dict())
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        with surrounding(), torch.autocast("cpu", torch.bfloat16):
            images, labels = torch.full((4, 3, 2, 2), 0.5), torch.tensor([0, 1, 2, 0])
            with pytest.raises(RuntimeError, match="on purpose") if fails_at else contextlib.nullcontext():
                pgd(model, images, labels, 0.1, 3, restarts=2)
                fgsm(model, images, labels, 0.1)
                under_attack(model, None, images, labels, [0.1], settings=AttackSettings(steps=2))
            assert torch.is_autocast_enabled("cpu")
            assert torch.is_inference_mode_enabled() == (surrounding is torch.inference_mode)
        assert torch.get_float32_matmul_precision() == "high"
        assert torch.backends.cudnn.allow_tf32
    finally:
        torch.set_float32_matmul_precision(precision)
    assert [module.training for module in model.modules()] == flags
    assert [parameter.requires_grad for parameter in model.parameters()] == [True, True, True, False]
    assert torch.equal(model.inside[3].weight.grad, torch.full((3, 12), 7.0))
    assert [p.grad is None for p in model.parameters()] == [True, True, False, True]
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


class Pair(nn.Module):
    """Returns its logits in a tuple, as many models do."""

    def forward(self, x):
        return (x.flatten(1)[:, :5],)


IMAGES, LABELS = torch.full((2, 3, 8, 8), 0.5), torch.tensor([0, 1])


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (dict(epsilon=-0.1), r"epsilon is -0\.1; give a radius from 0 to 1"),
        (dict(epsilon=8), r"epsilon is 8; give a radius from 0 to 1, such as 4 / 255"),
        (dict(images=IMAGES[0]), r"images has shape \(3, 8, 8\).*give \(n, channels, height, width\)"),
        (dict(images=3 * IMAGES), r"values from 1\.5 to 1\.5; give .* bytes or pixels from 0 to 1"),
        (dict(images=IMAGES * float("nan")), "values from nan to nan"),
        (dict(labels=torch.tensor([0, 1, 2])), r"labels has shape \(3,\) .* for 2 images; give one class"),
        (dict(labels=torch.tensor([0.0, 1.0])), "dtype torch.float32 for 2 images; give one class, a whole number"),
        (dict(labels=torch.tensor([0, 5])), r"the model returns shape \(2, 5\); .* for labels to 5"),
        (dict(model=nn.Flatten(0)), r"the model returns shape \(384,\); give one with logits"),
        (dict(model=Pair()), "the model returns a tuple; give one with logits"),
        (dict(model=make_vit(broken=True)), "logits are not finite; check its weights"),
    ],
)
def test_bad_input_is_one_sentence(change, sentence):
    asked = dict(model=make_vit(), images=IMAGES, labels=LABELS, epsilon=0.01) | change
    with pytest.raises(InputError, match=sentence):
        pgd(**asked, steps=2)
    with pytest.raises(InputError, match=sentence):
        under_attack(asked["model"], None, asked["images"], asked["labels"], [asked["epsilon"]])


def test_radii_may_be_repeated_and_attacks_have_names():
    model, (images, _) = make_vit(), make_images(5)
    labels, radii = own_labels(model, images), [0.0, 0.01, 0.0]
    once = under_attack(model, normalise, images, labels, radii[:2], "fgsm")
    assert once[0.0] == 1
    assert once == under_attack(model, normalise, images, labels, iter(radii), "fgsm")
    with pytest.raises(InputError, match="attack is 'cw'; choose 'fgsm' or 'pgd'"):
        under_attack(model, normalise, images, labels, radii, "cw")
