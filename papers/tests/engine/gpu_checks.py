"""What must hold on a GPU: the graph's step is the eager one, failures are found and runs go on.

Plain functions, so that a machine without pytest can run them too: python papers/tests/engine/gpu_checks.py [CHECK ...]
"""

import gc
import os
import sys
import tempfile
import warnings
from dataclasses import replace
from pathlib import Path

import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[3] / "tests"))
from support import language_example as language
from support import train_example
from support.gpu import run_named
from support.runs import assert_same_models, train_task
from support.train_example import RECIPE, blobs, plain, splits, step_of, train
from support.watched import same

from oversmooth.monitor import MonitorWarning
from oversmooth.safety.errors import InputError
from oversmooth.steering.ramps import hold_strengths
from oversmooth_papers import compiling, cuda_graphs
from oversmooth_papers.engine import logs, loop
from oversmooth_papers.engine.result import WatchSettings
from oversmooth_papers.engine.smoothing import MonitorWatcher, SmoothingProbe
from oversmooth_papers.tables.neutreno.methods import METHODS
from oversmooth_papers.tasks.images import data, task
from oversmooth_papers.tasks.images.build import model_of
from oversmooth_papers.tasks.images.data import Splits
from oversmooth_papers.tasks.images.evaluate import Evaluator
from oversmooth_papers.tasks.images.recipe import PAPER
from oversmooth_papers.tasks.images.task import ImagesTask

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # for the check that is bit for bit
CPU = torch.device("cpu")
EXACT = replace(RECIPE, precision="float32")


def gpu():
    return torch.device("cuda", 0)


def made(recipe, compiled=False):
    return step_of(recipe, model_of(recipe).to(gpu()), blobs(40, 0).to(gpu()), gpu(), compiled=compiled)


def close(ours, theirs, tolerance=1e-4):
    for name, value in ours.items():
        difference = (value.float().cpu() - theirs[name].float().cpu()).abs().max()
        assert difference < tolerance, f"{name} differs by {difference:g}"


def refusal(function):
    try:
        function()
    except InputError as error:
        return str(error)
    return "nothing was refused"


def by_hand(recipe, steps, over=0):
    return train_example.by_hand(recipe, blobs(40, 0).to(gpu()), steps, over)[0]


def stepped(step, count):
    """After so many steps of the first epoch."""
    step.begin_epoch()
    for _ in range(count):
        step.run()
    return step


def check_the_graph_is_a_plain_loop():
    """Compiled too, and in half precision."""
    for variant, precision, compiled, tolerance in (
        ("plain", "float32", False, 1e-4),
        ("sharpen", "float32", False, 1e-4),
        ("plain", "float32", True, 1e-3),
        ("smooth", "float32", True, 1e-3),
        ("sharpen", "bf16", False, 0.02),
    ):
        recipe = replace(EXACT, variant=variant)
        step = stepped(made(replace(recipe, precision=precision), compiled), 4)
        close(step.model.state_dict(), by_hand(recipe, 4).state_dict(), tolerance)
        assert int(step.position) == step.done == 4


def check_every_method_compiled_is_what_it_is():
    """Of both precisions compiled gradients are no further from float32 than eager ones are. All weights are drawn, so
    that every part acts; the code of middle blocks differs from that of the first and the last. Evaluation is never
    compiled, and not looked at: the orthogonal update's can be wrong (docs/neutreno.md).
    """
    far = []
    for name, variant in METHODS.items():
        recipe = replace(PAPER, variant=variant, shape=replace(PAPER.shape, depth=4))
        model = model_of(recipe).to(gpu())
        hold_strengths(model)
        generator = torch.Generator(gpu()).manual_seed(0)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn(parameter.shape, generator=generator, device=gpu()), alpha=0.05)
        x = torch.randn(64, 3, 32, 32, generator=generator, device=gpu())
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):  # eager convolutions are coarser
            exact = gradients(model, model, x, half=False)
            for half in (False, True):
                ours = gradients(compiling.compiled(model), model, x, half)
                theirs = gradients(model, model, x, half)
                noise, error = (rms(one - exact) / rms(exact) for one in (theirs, ours))
                if not error < 2 * noise + 1e-4:
                    far.append(f"{name}, {'bf16' if half else 'float32'}: {error:.2g}, eager {noise:.2g}")
        torch._dynamo.reset()
    assert not far, "; ".join(far)


def check_the_papers_runs_are_compiled():
    """The check of compiled gradients raises no false alarm where runs are long; with 48 blocks too."""
    for variant, depth in (("plain", 12), ("smooth", 12), ("sharpen", 12), ("sharpen", 48)):
        recipe = replace(PAPER, variant=variant, data="noise", shape=replace(PAPER.shape, depth=depth))
        generator = torch.Generator().manual_seed(0)
        pixels = torch.randint(256, (192, 3, 32, 32), generator=generator, dtype=torch.uint8)
        noise = data.Images(pixels, torch.arange(192) % 100, [str(i) for i in range(100)], "noise").to(gpu())
        step = step_of(recipe, model_of(recipe).to(gpu()), noise, gpu())
        assert not step.remarks, f"{variant}, {depth} blocks: {step.remarks}"
        torch._dynamo.reset()


def gradients(forward, model, x, half):
    """In training, as one array; forward: the model, compiled or as it is."""
    model.train()
    with torch.autocast(gpu().type, torch.bfloat16, enabled=half):
        loss = F.cross_entropy(forward(x), torch.arange(len(x), device=gpu()))
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    own = torch.autograd.grad(loss, parameters, allow_unused=True)
    return torch.cat([one.float().flatten() for one in own if one is not None])


def rms(x):
    return float(x.double().square().mean().sqrt())


def check_strengths_rise_inside_the_graph():
    """As in a plain loop with `steering.ramp`; each step meets its own, and a state that goes on has it too."""
    recipe = replace(EXACT, variant="neutreno:strength=0.6", ramp=0.3)  # 6 of 20 steps
    expected = by_hand(replace(recipe, variant="plain", ramp=0.0), 4, over=6).state_dict()
    for compiled in (False, True):
        step = made(recipe, compiled=compiled)
        step.begin_epoch()
        for done in range(4):
            assert strengths(step.model) == [0.6 * (done / 6)], strengths(step.model)
            step.run()
        assert strengths(step.model) == [0.6 * (4 / 6)]
        close(step.model.state_dict(), expected, 1e-3 if compiled else 1e-4)
        other = made(recipe, compiled=compiled)
        other.load(step.state())
        assert strengths(other.model) == strengths(step.model)
        for one in (step, other):
            one.run()
            one.begin_epoch()
            one.run()
        assert strengths(step.model) == strengths(other.model) == [0.6]
        close(step.state(), other.state(), 1e-6)


def strengths(model):
    return [float(value) for name, value in model.named_buffers() if name.endswith(".strength")]


def check_a_failed_step_changes_nothing():
    step = stepped(made(replace(plain(warmup=0), precision="float32")), 1)
    with torch.no_grad():
        step.model.head.bias[0] = torch.nan
    before = step.state()
    step.run()
    step.run()
    after = step.state()
    assert int(step.failed) == 1, int(step.failed)
    for name in before:
        if name.startswith(("model.", "exp_avg", "step.")):
            assert torch.equal(before[name].nan_to_num(), after[name].nan_to_num()), name


def check_a_state_goes_on():
    one = stepped(made(EXACT), 3)
    other = made(replace(EXACT, seed=0))
    other.load(one.state())
    for step in (one, other):
        step.run()
        step.run()
        step.begin_epoch()
        step.run()
    close(one.state(), other.state(), 1e-6)


def check_the_graph_of_a_language_model_is_its_plain_loop():
    for base in (language.RECIPE, language.masked_recipe()):
        for variant in ("plain", "neutreno:strength=0.4", "sharpen"):
            shape = replace(base.shape, dropout=0.0)
            recipe = replace(base, variant=variant, precision="float32", shape=shape)
            graph = stepped(language.step_of(recipe, gpu(), compiled=False), 4)
            eager = language.step_of(recipe, gpu(), compiled=False)
            eager._replay = None
            stepped(eager, 4)
            close(graph.model.state_dict(), eager.model.state_dict())


def check_dropout_in_a_graph_is_decided_by_the_step():
    """Two runs draw the same; one that goes on from a state draws what the other drew; steps differ."""
    recipe = replace(language.RECIPE, precision="float32", lr=1e-12, warmup=0)
    torch.cuda.manual_seed(5)
    before = torch.rand(2, device="cuda").tolist()
    torch.cuda.manual_seed(5)
    for compiled in (False, True):
        one = stepped(language.step_of(recipe, gpu(), compiled=compiled), 4)
        other = stepped(language.step_of(recipe, gpu(), compiled=compiled), 2)
        third = language.step_of(recipe, gpu(), compiled=compiled)
        third.load(other.state())
        third.run()
        third.run()
        assert torch.allclose(one.losses[:4], third.losses[:4], atol=1e-5), (one.losses, third.losses)
        again = one.task.feed(gpu(), one.ranks, compiled=False)
        assert again.examples == one.feed.examples
        one.load({**one.state(), "position": one.position.cpu() * 0})
        first = one.losses[0].item()
        one.recipe = replace(recipe, seed=1)  # the same batch, other dropout
        one.run()
        assert abs(one.losses[0].item() - first) > 1e-6, "other seeds drop alike"
    assert torch.rand(2, device="cuda").tolist() == before, "the caller's numbers were drawn"


def check_perplexity_is_that_of_a_cpu():
    recipe = replace(language.RECIPE, precision="float32")
    task, model = language.task_of(recipe), language.task_of(recipe).model()
    there = task.evaluation(model, CPU).scores(final=True)
    here = task.evaluation(model.to(gpu()), gpu()).scores(final=True)
    for name, value in there.items():
        assert abs(here[name] - value) < 2e-3 * value, (name, value, here[name])


def check_evaluation_and_monitoring_are_those_of_a_cpu():
    recipe = replace(EXACT, variant="smooth")
    model, images = model_of(recipe), blobs(300, 3).images
    moved = model_of(recipe).to(gpu())
    ours = Evaluator(recipe, moved, gpu(), batch=128).predicted(images.to(gpu())).cpu()
    theirs = Evaluator(recipe, model, CPU, batch=128).predicted(images)
    assert (ours == theirs).float().mean() > 0.97
    watched = ImagesTask(recipe, Splits(blobs(40, 0), blobs(24, 1)))
    here = SmoothingProbe(watched, moved, gpu()).snapshot(1)
    there = SmoothingProbe(watched, model, CPU).snapshot(1)
    for name, values in here.items():
        assert all(abs(a - b) < 2e-3 for a, b in zip(values, there[name], strict=True)), (name, values, there[name])


def check_a_run_is_cut_and_goes_on():
    with tempfile.TemporaryDirectory() as name:
        watch = loop.WatchSettings(evaluate=1, monitor=3, save=0)
        given = dict(device="cuda", folder=Path(name) / "run", resume=True, watch=watch, compiled=False)
        for minutes in (0, 0, None):
            result = train(RECIPE, splits(), minutes=minutes, **given)
            assert result.finished == (minutes is None)
        assert len(result.epochs) == 4
        assert "accuracy" in result.scores


def check_a_run_resumes_bit_for_bit():
    """With kernels that add in a fixed order, a run that was cut ends as the one that was not.

    Where OVERSMOOTH_DATA has CIFAR-100: the paper's model on 10 % of it for 100 epochs, about a minute a run.
    """
    folder = Path(os.environ.get("OVERSMOOTH_DATA", "/")) / "cifar-100"
    if folder.is_dir():
        resumes_bit_for_bit(replace(PAPER, share=0.1, epochs=95), data.load_splits(folder), True, (0.5, 0.7, None))
    else:
        for compiled in (False, True):
            resumes_bit_for_bit(RECIPE, splits(), compiled, (0, 0, None))


def resumes_bit_for_bit(recipe, images, compiled, cuts):
    """cuts: minutes after which the second run is stopped, each time; None at last."""
    torch.use_deterministic_algorithms(True)
    reuse = loop.Reuse()  # both runs have the same compiled code, whose tuning differs between compilations
    try:
        with tempfile.TemporaryDirectory() as name:
            whole, cut = Path(name) / "whole", Path(name) / "cut"
            given = dict(device="cuda", resume=True, compiled=compiled, reuse=reuse)
            train(recipe, images, folder=whole, **given)
            for minutes in cuts:
                result = train(recipe, images, folder=cut, minutes=minutes, **given)
                assert result.finished == (minutes is None), "the run ended before it was cut"
            losses = [[row["loss"] for row in logs.read(one / logs.EPOCHS)] for one in (whole, cut)]
            differ = [row for row, (one, other) in enumerate(zip(*losses, strict=True)) if one != other]
            assert not differ, f"compiled={compiled}: losses of {len(differ)} epochs differ, first {differ[0]}"
            assert_same_models(whole, cut)
            reached = f"{len(losses[0])} epochs alike, {recipe.describe(result.scores)}"
            print(f"   {recipe.title}, compiled={compiled}: {reached}")
    finally:
        torch.use_deterministic_algorithms(False)


def check_a_second_seed_takes_the_graph_over():
    _take_over([replace(RECIPE, seed=seed) for seed in (0, 1, 0)])


def check_another_strength_takes_the_graph_over():
    for ramp in (0.0, 0.7):
        recipe = replace(RECIPE, variant="neutreno", ramp=ramp)
        _take_over([replace(recipe, variant=f"neutreno:strength={strength}") for strength in (0.4, 1.5, 0.4)])


def _take_over(recipes):
    data, reuse = splits(), loop.Reuse()
    together = [
        {name: value.cpu() for name, value in train(one, data, device="cuda", reuse=reuse).model.state_dict().items()}
        for one in recipes
    ]
    assert reuse.reused == 2
    for recipe, arrays in zip(recipes[:2], together, strict=False):
        alone = train(recipe, data, device="cuda").model.state_dict()
        assert all(torch.equal(arrays[name], value.cpu()) for name, value in alone.items()), recipe.title
    assert all(torch.equal(value, together[2][name]) for name, value in together[0].items())
    assert any(not torch.equal(value, together[1][name]) for name, value in together[0].items())


def check_a_graph_in_a_circle_does_not_end_a_capture():
    """As that of a run which is over; collected while the next one is captured, it would."""

    class Holder:
        pass

    def function():
        if torch.cuda.is_current_stream_capturing():
            for _ in range(gc.get_threshold()[0] * 400):  # collects all generations, if any
                holder = Holder()
                holder.itself = holder
        x.add_(1)

    x = torch.zeros(1, device=gpu())
    gc.disable()
    over = Holder()
    over.replay, over.itself = cuda_graphs.captured(lambda: x.add_(1)), over
    del over
    gc.enable()
    before = float(x)
    replay = cuda_graphs.captured(function)
    assert gc.isenabled()
    replay()
    assert float(x) == before + 4, "three warm-ups and one replay"


def check_a_loss_that_is_not_finite_names_its_layer():
    made_before = task.ImagesTask.model_of

    def huge(recipe):
        model = made_before(recipe)
        with torch.no_grad():
            model.blocks[1].mlp.fc1.weight.fill_(1e38)
        return model

    task.ImagesTask.model_of = staticmethod(huge)
    try:
        said = refusal(lambda: train(replace(EXACT, warmup=0), splits(), device="cuda", compiled=False))
    finally:
        task.ImagesTask.model_of = staticmethod(made_before)
    assert "step 1 " in said, said
    assert "blocks.1.mlp.fc1" in said, said


def check_a_batch_that_does_not_fit_is_said():
    recipe = replace(PAPER, batch=4096, data="noise")
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (4096, 3, 32, 32), generator=generator, dtype=torch.uint8)
    noise = data.Images(images, torch.arange(4096) % 100, [str(i) for i in range(100)], "noise")
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(min(1.0, 6 * 2**30 / total))
    try:
        said = refusal(lambda: train(recipe, Splits(noise, noise), device="cuda", compiled=False))
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    print("  ", said)
    assert "does not fit" in said, said


def check_V_is_orthonormal_inside_a_graph():
    """Θ is written over between replays: on the wall det Θ = 0 and beside it; forward and backward."""
    from oversmooth.steering.methods import orthogonal

    generator = torch.Generator().manual_seed(0)
    theta = torch.randn(4, 192, 192, generator=generator).div(14).to(gpu()).requires_grad_()
    weight = torch.randn(4, 192, 192, generator=generator).to(gpu())
    out, grad = torch.zeros_like(theta), torch.zeros_like(theta)

    def body():
        V = orthogonal.orthonormal(theta)
        out.copy_(V.detach())
        grad.copy_(torch.autograd.grad((V * weight).sum(), theta)[0])

    replay = cuda_graphs.captured(body)
    start = theta.detach().clone()
    for kind in ("as drawn", "0.0", "1e-12", "1e-8", "1e-6", "scaled"):
        changed = start.clone()
        if kind == "scaled":
            changed *= torch.logspace(-30, 30, 192, device=gpu())
        elif kind != "as drawn":
            changed[..., -1] = changed[..., :-1].sum(-1) + float(kind) * changed[..., -1]
        with torch.no_grad():
            theta.copy_(changed)
        replay()
        excess = (out.double().mT @ out.double() - torch.eye(192, device=gpu())).abs().max()
        assert excess < 1e-6, (kind, float(excess))
        assert grad.isfinite().all(), kind
        on_cpu = changed.cpu().requires_grad_()
        V = orthogonal.orthonormal(on_cpu)
        close({kind: out}, {kind: V.detach()}, 1e-4)


def check_our_trainer_is_the_same_with_looks():
    """By a graph of its own, and by the monitor, which looks eagerly between replays of the step."""
    tasks = {
        "images": lambda: ImagesTask(replace(RECIPE, variant="neutreno:strength=0.4"), splits()),
        "sharpened images": lambda: ImagesTask(replace(RECIPE, variant="sharpen"), splits()),
        "language": lambda: language.task_of(language.RECIPE),  # with dropout
    }
    for name, made in tasks.items():
        # Compiled code adds up an embedding's gradients in any order: two language runs without looks differ as well.
        compiled = name != "language"

        def trained(every, watcher=SmoothingProbe, made=made, compiled=compiled):
            watch = WatchSettings(monitor=every, evaluate=0, watcher=watcher)
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always", MonitorWarning)
                result = train_task(made(), device="cuda", compiled=compiled, watch=watch)
            failed = [str(one.message) for one in said if one.category is MonitorWarning]
            assert not failed, failed
            return result

        plain = trained(0)
        for watcher in (SmoothingProbe, MonitorWatcher):
            often, seldom = trained(1, watcher), trained(3, watcher)
            assert len(often.smoothing) == often.steps, (name, watcher.__name__)
            assert len(often.smoothing) > len(seldom.smoothing) > 0
            for other in (often, seldom):
                assert same(plain.model, other.model), (name, watcher.__name__)
                losses = [[row["loss"] for row in one.epochs] for one in (plain, other)]
                assert losses[0] == losses[1], (name, watcher.__name__)
        rows = often.smoothing
        assert all("rank_one_distance" in row for row in rows), name
        assert [row["step"] for row in rows if "rho_smooth" in row] == list(range(1, often.steps + 1, 10)), name


CHECKS = [value for name, value in list(globals().items()) if name.startswith("check_")]

if __name__ == "__main__":
    run_named(CHECKS)
