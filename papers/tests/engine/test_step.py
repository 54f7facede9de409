"""A training step against a loop written out by hand, and a failed step."""

from dataclasses import replace

import pytest
import torch
from support.train_example import RECIPE, blobs, by_hand, plain, step_of

from oversmooth_papers.tasks.images.build import model_of

CPU = torch.device("cpu")


@pytest.mark.parametrize("variant", ["plain", "smooth", "sharpen", "neutreno:strength=0.5"])
@pytest.mark.parametrize("recipe", [plain(clip=0.5), RECIPE])
def test_three_steps_are_those_of_a_plain_loop(recipe, variant):
    recipe, images = replace(recipe, variant=variant, seed=3), blobs(40, 0)
    expected, losses = by_hand(recipe, images, 3)
    model = model_of(recipe)
    step = step_of(recipe, model, images, CPU)
    step.begin_epoch()
    for _ in range(3):
        step.run()
    torch.testing.assert_close(model.state_dict(), expected.state_dict(), rtol=0, atol=1e-6)
    assert step.losses[:3].tolist() == pytest.approx(losses, abs=1e-6)
    assert step.done == int(step.position) == 3


def test_the_state_is_all_there_is_to_a_step():
    recipe, images = RECIPE, blobs(40, 0)
    one = step_of(recipe, model_of(recipe), images, CPU)
    one.begin_epoch()
    for _ in range(3):
        one.run()
    other = step_of(recipe, model_of(replace(recipe, seed=9)), images, CPU)
    other.load(one.state())
    for step in (one, other):
        step.run()
        step.run()
        step.begin_epoch()
        step.run()
    ours, theirs = one.state(), other.state()
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        assert torch.equal(value, theirs[name]), name


def test_the_first_step_of_the_warm_up_has_rate_zero_and_changes_nothing():
    recipe = plain()
    model = model_of(recipe)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    step = step_of(recipe, model, blobs(40, 0), CPU)
    step.begin_epoch()
    step.run()
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)


def test_a_step_that_is_not_finite_changes_no_weight_nor_do_those_after_it():
    recipe = plain(warmup=0)
    model = model_of(recipe)
    step = step_of(recipe, model, blobs(40, 0), CPU)
    step.begin_epoch()
    step.run()
    with torch.no_grad():
        model.head.bias[0] = torch.nan
    before = {name: value.clone() for name, value in model.state_dict().items()}
    step.run()
    step.run()
    assert int(step.failed) == 1
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0, equal_nan=True)


def test_what_fused_adamw_is_told_leaves_weights_and_moments_alone():
    """On a GPU a failed step is skipped through found_inf; the fused optimiser of the CPU takes it too."""
    parameter = torch.nn.Parameter(torch.ones(3))
    optimiser = torch.optim.AdamW([parameter], lr=0.1, fused=True)
    parameter.grad = torch.full((3,), 2.0)
    optimiser.found_inf = torch.tensor(0.0)
    optimiser.step()
    moved = parameter.detach().clone()
    assert not torch.equal(moved, torch.ones(3))
    state = {name: value.clone() for name, value in optimiser.state[parameter].items()}
    parameter.grad.fill_(torch.nan)
    optimiser.found_inf = torch.tensor(1.0)
    optimiser.step()
    assert torch.equal(parameter.detach(), moved)
    assert all(torch.equal(value, optimiser.state[parameter][name]) for name, value in state.items())


def test_another_attempt_draws_other_numbers():
    """Whatever bits of a seed a generator looks at."""
    step = step_of(RECIPE, model_of(RECIPE), blobs(40, 0), CPU)
    drawn = []
    for attempt in (0, 1, 2):
        step.draw_anew(attempt)
        step.begin_epoch()
        step.feed.draw(step.draws.augment)
        drawn.append((step.feed.order.tolist(), step.feed.draws.uniform[:8].tolist()))
    assert drawn[0] != drawn[1] != drawn[2] != drawn[0]
    assert all(one != other for one, other in zip(drawn[0], drawn[1], strict=True))


def test_fewer_images_than_a_batch_are_refused():
    from oversmooth.safety.errors import InputError

    with pytest.raises(InputError, match="less than one batch of 8"):
        step_of(RECIPE, model_of(RECIPE), blobs(7, 0), CPU)
