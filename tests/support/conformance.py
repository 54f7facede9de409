"""What must hold for every method on every family that can take it. Each raises AssertionError with what is wrong.

The tests run some of these, and `conformance_table.py` runs all of them and writes docs/steering-table.md. Formulas and
places are in `conformance_oracle` and `conformance_methods`, by routes that share nothing with what is checked.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from adversary.numbers import family_oracle as oracle
from support.conformance_methods import (
    METHODS,
    REASONS,
    KeepDouble,
    all_close,
    close,
    counted,
    free_parameters,
    gradients,
    input_error,
    loss,
    make,
    norms,
    output_weight,
    outputs,
    places,
    refused,
    same_gradients,
    seeded,
    steered,
    value_weight,
)
from support.conformance_oracle import free_of, put, spectral_weights, written
from support.families import FAMILIES, HEADS, WIDTH, Family, run, tensors
from support.family_checks import same_bits, with_dropout
from torch import Tensor, nn

from oversmooth import InputError, load_steered
from oversmooth.steering import NeuTRENO, ValueResidual, fold, save_steered, steer, steering_of, unsteer, verify

# Strength 0


def check_zero(name: str, method: str) -> None:
    """With strength 0 the same bits come out, in eval and in train mode, and the same random numbers follow."""
    family = FAMILIES[name]
    for fixed, zeros in zip((True, False), METHODS[method].zeros, strict=False):
        if not zeros:
            continue
        # A learned strength wants what the fused encoder layer of torch hides: it is held against the plain one.
        slow = family.library == "torch" and not fixed
        model = steer(make(name), list(zeros))
        with _no_fast_path() if slow else contextlib.nullcontext():
            for train, grad in ((False, True), (False, False), (True, True)):
                if train:
                    with_dropout(model)
                expected, after = _plain(name, train, grad, slow)
                with torch.set_grad_enabled(grad):
                    got = seeded(3, lambda model=model: outputs(model, family))
                what = f"{'fixed' if fixed else 'learned'}, {'train' if train else 'eval'}: "
                for a, b in zip(got, expected, strict=True):
                    assert torch.equal(a, b), what + f"off by {(a - b).abs().max():.2g}"
                assert torch.equal(torch.get_rng_state(), after), what + "other random numbers come next"


@functools.lru_cache(8)
def _plain(name: str, train: bool, grad: bool, _slow: bool) -> tuple[list[Tensor], Tensor]:
    """What the stock model gives, and the state of chance afterwards. _slow: remembered apart."""
    plain = make(name)
    if train:
        with_dropout(plain)
    with torch.set_grad_enabled(grad):
        found = seeded(3, lambda: outputs(plain, FAMILIES[name]))
    return [out.detach() for out in found], torch.get_rng_state()


@contextlib.contextmanager
def _no_fast_path() -> Iterator[None]:
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


# The written formula


def check_formula(name: str, method: str) -> None:
    """What comes out is the written formula, in float64."""
    family, tested = FAMILIES[name], METHODS[method]
    model = steered(name, method, torch.float64)
    with KeepDouble():
        got = outputs(model, family)
        plain = outputs(make(name, torch.float64), family)
    assert (got[0] - plain[0]).abs().max() > 1e-3, "nothing changed"
    if tested.norms:
        expected = _with_scaled_norms(family)
    else:
        spectral = tested.spectral is not None
        expected = _check_weights(family, method, model) if spectral else written(family, tested, model)
    all_close(got, expected, 1e-9)


def _with_scaled_norms(family: Family) -> list[Tensor]:
    """A stock model whose γ and β are divided by √ℓ by hand."""
    stock = make(family.name, torch.float64)
    offset = 1.0 if family.name.startswith("Gemma") else 0.0  # what these norms add to their weight
    with torch.no_grad():
        for place in places(family)[1:]:
            for name in norms(family, place):
                norm, root = stock.get_submodule(name), np.sqrt(place + 1)
                norm.weight.copy_((norm.weight + offset) / root - offset)
                if getattr(norm, "bias", None) is not None:
                    norm.bias.copy_(norm.bias / root)
    with KeepDouble():
        return outputs(stock, family)


def _check_weights(family: Family, method: str, model: nn.Module) -> list[Tensor]:
    """The weights a reparametrized model uses; returns what a stock model with the written ones gives."""
    tested = METHODS[method]
    stock, plain = make(family.name, torch.float64), make(family.name, torch.float64)
    modules, stock_modules = dict(model.named_modules()), dict(stock.named_modules())
    plain_modules = dict(plain.named_modules())
    start = steered(family.name, method, torch.float64, stirred=False) if tested.spectral.start == "warm" else plain
    start_modules = dict(start.named_modules())
    for place in places(family):
        free, psi, base = free_of(modules, family, place)
        assert base is None or torch.allclose(base @ base.T, torch.eye(WIDTH, dtype=base.dtype), atol=1e-9)
        W_V, W_O, L = spectral_weights(family, tested, free, psi, base)
        put(stock_modules, family, place, W_V, W_O)
        _check_bias(family, modules, stock_modules, plain_modules, start_modules, place)
        for module, weight in (value_weight(family, place), output_weight(family, place)):
            live = getattr(modules[module], weight)
            close(live, getattr(stock_modules[module], weight), 1e-10, f"{module}.{weight}")
            _same_beside_values(family, module, weight, live, getattr(plain_modules[module], weight))
        _check_spectra(family, method, W_V, W_O, L)
    with KeepDouble():
        return outputs(stock, family)


def _check_bias(
    family: Family, modules: Any, stock_modules: Any, plain_modules: Any, start_modules: Any, place: int
) -> None:
    """What value biases add to every token, ``Σ_h b_V^h W_O^h``, survives a warm start: the output bias makes it up.

    Put into the stock model; all other biases are as they were.
    """
    b_V = oracle.value_weight(family, plain_modules, place)[1]
    old, b_O = oracle.output_weight(family, plain_modules, place)
    if b_V is None:
        return
    if b_O is not None:
        new, _ = oracle.output_weight(family, start_modules, place)
        b_O = b_O + sum(b_V[h] @ (old[h] - new[h]) for h in range(HEADS))
        close(oracle.output_weight(family, modules, place)[1], b_O, 1e-9, "output bias")
        module, weight = output_weight(family, place)
        getattr(stock_modules[module], weight.replace("weight", "bias")).data.copy_(b_O)
    assert torch.equal(oracle.value_weight(family, modules, place)[1], b_V), "value bias"


def _same_beside_values(family: Family, module: str, weight: str, live: Tensor, plain: Tensor) -> None:
    """Queries and keys, where they share the weight: the very bits they were."""
    if not any(value_weight(family, place) == (module, weight) for place in places(family)):
        return
    live, plain = live.detach().clone(), plain.detach().clone()
    for W in (live, plain):
        oracle.value_rows(family, W).zero_()
    same_bits([live], [plain])


def _check_spectra(family: Family, method: str, W_V: Tensor, W_O: Tensor, L: Tensor) -> None:
    """Of dense d by d products: the promised signs and ranges, and for the paper's wiring Λ itself."""
    spectral = METHODS[method].spectral
    assert spectral is not None
    group = HEADS // family.kv_heads
    sign = -1 if spectral.mode == "sharpen" else 1
    together = np.zeros((WIDTH, WIDTH))
    for h in range(HEADS):
        product = (W_V[h // group] @ W_O[h]).numpy()
        together += product
        values = np.linalg.eigvals(product)
        assert abs(values.imag).max() < 1e-6
        assert (sign * values.real).min() > -1e-8, f"head {h}: an eigenvalue of the wrong sign"
        if spectral.wiring == "paper":
            largest = np.sort(values.real * sign)[-family.head_dim :]
            close(torch.from_numpy(largest), (L[h] * sign).sort().values, 1e-6, f"head {h}: its eigenvalues")
    values = np.linalg.eigvals(together)
    assert (sign * values.real).min() > -1e-8, "all heads together: an eigenvalue of the wrong sign"
    if spectral.bounded or spectral.form == "general":
        assert abs(values).max() < 1 + 1e-8, "all heads together: an eigenvalue beyond 1"


# Gradients


def check_gradients(name: str, method: str) -> None:
    """With respect to what enters the first block and to everything that steering learns, by finite differences."""
    family = FAMILIES[name]
    model = steered(name, method, torch.float64)
    for p in model.parameters():
        p.requires_grad_(False)
    free = free_parameters(model, family)
    with KeepDouble():
        entering: list[Tensor] = []
        block = model.get_submodule(family.block.format(family.runs[0]))
        handle = block.register_forward_pre_hook(lambda _, a, k: entering.append(_stream(a, k)), with_kwargs=True)
        run(model, family.inputs(torch.float64))
        handle.remove()
        shift = torch.zeros_like(entering[0], requires_grad=True)
        caller = _Caller(model, block)
        start = [p.detach().clone().requires_grad_() for p in free.values()]

        def call(shift: Tensor, *values: Tensor) -> Tensor:
            named = {f"model.{key}": value for key, value in zip(free, values, strict=True)}
            caller.shift = shift
            out = torch.func.functional_call(caller, named, (family.inputs(torch.float64),))
            return counted(family, tensors(out)[0])

        _, *used = torch.autograd.grad(call(shift, *start).square().sum(), (shift, *start), allow_unused=True)
        lost = [key for key, grad in zip(free, used, strict=True) if grad is None]
        assert not lost, f"{lost[0]} gets no gradient"
        # The fast mode scales its absolute tolerance with the sizes of inputs and outputs, hundreds of entries here.
        assert torch.autograd.gradcheck(call, (shift, *start), fast_mode=True, atol=1e-10, rtol=1e-4)


class _Caller(nn.Module):
    """A model whose first block gets a little more than what enters it."""

    def __init__(self, model: nn.Module, block: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.shift: Tensor | None = None
        block.register_forward_pre_hook(self._add, with_kwargs=True, prepend=True)

    def _add(self, _: nn.Module, args: Any, kwargs: Any) -> Any:
        x = _stream(args, kwargs)
        args = tuple(x + self.shift if a is x else a for a in args)
        return args, {key: x + self.shift if a is x else a for key, a in kwargs.items()}

    def forward(self, given: Any) -> Any:
        return run(self.model, given)


def _stream(args: Any, kwargs: Any) -> Tensor:
    return next(v for v in (*args, *kwargs.values()) if isinstance(v, Tensor) and v.is_floating_point())


# Precision


def check_bf16(name: str, method: str) -> None:
    """In bfloat16 the result is of that type, finite, and near float32's; under autocast weights stay float32."""
    family = FAMILIES[name]
    exact, model = steered(name, method), steered(name, method).bfloat16()
    with torch.no_grad():
        expected, got = outputs(exact, family), outputs(model, family, family.inputs(torch.bfloat16))
        plain = outputs(make(name), family)
        rounded = outputs(make(name, torch.bfloat16), family, family.inputs(torch.bfloat16))
    for e, g, p, r in zip(expected, got, plain, rounded, strict=True):
        assert g.dtype == r.dtype, f"{g.dtype}"
        assert g.isfinite().all()
        # What the precision does to the model that is not steered is no fault of steering.
        off, own = ((g.float() - e).norm() / e.norm()).item(), ((r.float() - p).norm() / p.norm()).item()
        assert off < 5e-2 + 3 * own, f"off by {off:.2g}; the stock model by {own:.2g}"
    with torch.autocast("cpu", torch.bfloat16):
        out = outputs(exact, family)
        loss([o.float() for o in out]).backward()
    assert all(o.isfinite().all() for o in out)
    assert all(g.isfinite().all() for g in gradients(exact).values())
    if METHODS[method].spectral is not None:
        result = verify(exact)
        assert result.layers
        assert not any("overlap" in problem for problem in result.problems)


# Compilation


def check_compile(name: str, method: str, backend: str = "aot_eager") -> None:
    """torch.compile gives what eager gives, gradients too; in one graph, where the stock model is one."""
    family = FAMILIES[name]
    model = steered(name, method)
    _check_compiled(family, model, backend, fullgraph=_one_graph(name))


def check_inductor(name: str, method: str) -> None:
    """The same through machine code."""
    check_compile(name, method, "inductor")


@functools.cache
def _one_graph(name: str) -> bool:
    """Whether the stock model compiles as a whole."""
    torch._dynamo.reset()
    try:
        _called(torch.compile(_runs(make(name)), backend="eager", fullgraph=True), FAMILIES[name].inputs())
    except Exception:
        return False
    return True


def _runs(model: nn.Module) -> nn.Module:
    """What is called: the encoder, of a model that has a decoder as well."""
    both = getattr(getattr(model, "config", None), "is_encoder_decoder", False)
    return model.get_encoder() if both else model


def _called(compiled: Any, given: Any) -> Any:
    return compiled(given) if isinstance(given, Tensor) else compiled(**given)


def _check_compiled(family: Family, model: nn.Module, backend: str, fullgraph: bool) -> None:
    torch._dynamo.reset()
    loss(outputs(model, family)).backward()
    expected, expected_grads = [o.detach() for o in outputs(model, family)], gradients(model)
    model.zero_grad()
    compiled = torch.compile(_runs(model), backend=backend, fullgraph=fullgraph)
    for _ in range(2):
        model.zero_grad()
        got = [counted(family, out) for out in tensors(_called(compiled, family.inputs()))]
        loss(got).backward()
    all_close([o.detach() for o in got], expected, 1e-4, "compiled")
    same_gradients(gradients(model), expected_grads, 1e-4)
    torch._dynamo.reset()


# Activation checkpointing


def checkpoint(model: nn.Module, family: Family, *, reentrant: bool = False) -> None:
    """As users of each library turn it on; the model is in train mode then."""
    from torch.distributed.algorithms._checkpoint import checkpoint_wrapper as wrapper

    if family.library == "transformers" and model.supports_gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
    elif family.library == "timm" and not reentrant:
        model.set_grad_checkpointing(True)
    else:
        how = wrapper.CheckpointImpl.REENTRANT if reentrant else wrapper.CheckpointImpl.NO_REENTRANT
        for place in places(family):
            stack, _, key = family.block.format(place).rpartition(".")
            holder = model.get_submodule(stack)
            holder._modules[key] = wrapper.checkpoint_wrapper(holder._modules[key], checkpoint_impl=how)


def _two_inputs(family: Family) -> tuple[Any, Any]:
    """Other tokens each, and padding in both."""
    first, second = family.inputs(), family.inputs()
    if isinstance(second, Tensor):
        return first, second.flip(0) + 0.5
    for key, value in second.items():
        if value.is_floating_point():
            second[key] = value.flip(-1) + 0.5
        elif "mask" not in key:
            second[key] = (value - 5 + 11) % 55 + 5
    return first, second


def _in_flight(name: str, model: nn.Module, givens: tuple[Any, Any]) -> dict[str, Tensor]:
    """Gradients of two passes, both forward before either goes back, with dropout."""
    with_dropout(model)
    family = FAMILIES[name]
    torch.manual_seed(3)
    losses = [loss(outputs(model, family, _requiring(given))) for given in givens]
    for one in losses:
        one.backward()
    found = gradients(model)
    model.zero_grad()
    return {_unwrapped(key): value for key, value in found.items()}


def _unwrapped(key: str) -> str:
    return key.replace("_checkpoint_wrapped_module.", "")


def _requiring(given: Any) -> Any:
    """Blocks that get the input itself want a gradient there, for reentrant checkpointing to begin."""
    if isinstance(given, Tensor):
        return given.clone().requires_grad_()
    return {k: v.clone().requires_grad_() if v.is_floating_point() else v for k, v in given.items()}


def check_checkpointing(name: str, method: str) -> None:
    """Gradients with recomputed blocks are those without, two passes in flight."""
    family = FAMILIES[name]
    givens = _two_inputs(family)
    expected = _in_flight(name, steered(name, method), givens)
    model = steered(name, method)
    checkpoint(model, family)
    same_gradients(_in_flight(name, model, givens), expected)


def check_reentrant(name: str, method: str) -> None:
    """Reentrant checkpointing, which recomputes on other tensors: right, or refused with what to do."""
    family = FAMILIES[name]
    givens = _two_inputs(family)
    expected = _in_flight(name, steered(name, method), givens)
    model = steered(name, method)
    checkpoint(model, family, reentrant=True)
    try:
        got = _in_flight(name, model, givens)
    except InputError as error:
        if "use_reentrant=False" not in str(error):
            raise
        return
    assert not METHODS[method].has(NeuTRENO, ValueResidual), "V⁰ of another pass was taken"
    same_gradients(got, expected)


# Files


def check_saved(name: str, method: str) -> None:
    """Saved and loaded, everything that was learned included: the same bits come out."""
    family = FAMILIES[name]
    model = steered(name, method)
    with torch.no_grad():
        expected = outputs(model, family)
    settings = steering_of(model).settings()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "steered.safetensors"
        save_steered(model, file)
        loaded = load_steered(file, _drawn_anew(make(name)))
        _same_model(loaded, model, family, expected, settings)
        if family.library == "transformers":
            model.save_pretrained(Path(folder) / "pretrained")
            loaded = load_steered(Path(folder) / "pretrained")
            assert type(loaded) is type(model)
            _attend_alike(loaded.eval(), model)
            _same_model(loaded, model, family, expected, settings)
        size = file.stat().st_size
        file.write_bytes(file.read_bytes()[: size // 2])
        stock = make(name)
        before = snapshot(stock)
        assert "cannot be read" in input_error(lambda: load_steered(file, stock))
        same_snapshot(snapshot(stock), before)


def _attend_alike(loaded: Any, model: Any) -> Any:
    """transformers 4 loads every model with fused attention, Gemma 2 too, whose scores that does not cap."""
    loaded.set_attn_implementation(model.config._attn_implementation)
    return loaded


def _drawn_anew(model: nn.Module) -> nn.Module:
    with torch.no_grad():
        for p in model.parameters():
            p.normal_()
    return model


def _same_model(loaded: nn.Module, model: nn.Module, family: Family, expected: list[Tensor], settings: Any) -> None:
    with torch.no_grad():
        same_bits(outputs(loaded, family), expected)
    assert steering_of(loaded).settings() == settings
    mine, theirs = model.state_dict(), loaded.state_dict()
    assert list(mine) == list(theirs)
    for key, value in mine.items():
        assert torch.equal(value, theirs[key]), f"{key} differs"
    assert all(p.requires_grad for p in free_parameters(loaded, family).values())


# As it was


def snapshot(model: nn.Module) -> dict[str, Any]:
    """All that steering might leave behind."""
    modules = dict(model.named_modules(remove_duplicate=False))
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_state_dict_hooks")
    config = getattr(model, "config", None)
    return {
        "keys": list(model.state_dict()),
        "values": {key: value.clone() for key, value in model.state_dict().items()},
        "parameters": {key: (id(p), p.requires_grad) for key, p in model.named_parameters(remove_duplicate=False)},
        "modules": {key: type(module) for key, module in modules.items()},
        "attributes": {key: sorted(vars(module)) for key, module in modules.items()},
        "hooks": {key: [len(getattr(module, h)) for h in hooks] for key, module in modules.items()},
        "training": {key: module.training for key, module in modules.items()},
        "nested": {key: getattr(module, "use_nested_tensor", None) for key, module in modules.items()},
        "config": config.to_dict() if hasattr(config, "to_dict") else None,
    }


def same_snapshot(now: dict[str, Any], before: dict[str, Any], *, values: bool = True, identity: bool = True) -> None:
    for key in ("keys", "modules", "attributes", "hooks", "training", "nested", "config"):
        assert now[key] == before[key], f"{key} differ: {_difference(now[key], before[key])}"
    if values:
        for key, value in before["values"].items():
            assert torch.equal(now["values"][key], value), f"{key} differs"
    if identity:
        assert now["parameters"] == before["parameters"], "a parameter is another object"


def _difference(a: Any, b: Any) -> Any:
    if isinstance(a, dict) and isinstance(b, dict):
        return [(key, a.get(key), b.get(key)) for key in {**a, **b} if a.get(key) != b.get(key)][:2]
    return [x for x in a if x not in b][:2], [x for x in b if x not in a][:2]


def check_unsteer(name: str, method: str) -> None:
    """Everything as it was, after training, of a copy, and after steering that failed."""
    family = FAMILIES[name]
    model = make(name)
    before = snapshot(model)
    with torch.no_grad():
        expected = outputs(model, family)
    assert "does not exist" in input_error(
        lambda: steer(model, list(METHODS[method].methods), layers=[len(family.runs)])
    )
    same_snapshot(snapshot(model), before)
    steer(model, list(METHODS[method].methods))
    assert "is already steered" in input_error(lambda: steer(model, list(METHODS[method].methods)))
    copied = copy.deepcopy(model)
    loss(outputs(model, family)).backward()
    with torch.no_grad():
        for p in free_parameters(model, family).values():
            # Not evenly: a gate that is the same for all features is lost in a norm that follows.
            p.add_(0.1 * torch.arange(p.numel()).cos().view(p.shape))
        moved = outputs(model, family)
    unsteer(model)
    for p in model.parameters():
        p.grad = None
    same_snapshot(snapshot(model), before)
    with torch.no_grad():
        same_bits(outputs(model, family), expected)
        assert steering_of(copied) is not None
        if free_parameters(copied, family):  # the copy did not take part in the training, nor in what ended it
            assert (outputs(copied, family)[0] - moved[0]).abs().max() > 1e-4
    unsteer(copied)
    same_snapshot(snapshot(copied), before, identity=False)
    assert "is not steered" in input_error(lambda: unsteer(model))


def check_fold(name: str, method: str) -> None:
    """A stock model that computes the same; where weights alone cannot, a reason, and the model as it is."""
    family = FAMILIES[name]
    plain, model = make(name), steered(name, method)
    before = snapshot(plain)
    with torch.no_grad():
        expected = outputs(model, family)
    if not METHODS[method].norms and METHODS[method].spectral is None:
        steered_before = snapshot(model)
        assert "cannot be folded" in input_error(lambda: fold(model))
        same_snapshot(snapshot(model), steered_before)
        with torch.no_grad():
            same_bits(outputs(model, family), expected)
        return
    fold(model)
    same_snapshot(snapshot(model), before, values=False, identity=False)
    assert steering_of(model) is None
    with torch.no_grad():
        all_close(outputs(model, family), expected, 1e-5, "folded")
    for key, p in model.named_parameters():
        assert p.requires_grad == plain.get_parameter(key).requires_grad
        assert p.is_contiguous()
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        if family.library == "transformers":
            model.save_pretrained(folder)
            again = _attend_alike(type(plain).from_pretrained(folder).eval(), model)
        else:
            plain.load_state_dict(model.state_dict())
            again = plain
        same_bits(outputs(again, family), outputs(model, family))


# Training


def check_optimiser(name: str, method: str) -> None:
    """As many parameters to train as the formula says, and each gets a gradient."""
    family, tested = FAMILIES[name], METHODS[method]
    plain, model = make(name), steered(name, method)
    inner, layers = family.kv_heads * family.head_dim, len(places(family))
    count = {key: p.numel() for key, p in model.named_parameters() if p.requires_grad}
    stock = sum(p.numel() for p in plain.parameters() if p.requires_grad)
    if tested.spectral is not None:
        free = WIDTH * (WIDTH - 1) // 2 if tested.spectral.orthogonal != "qr" else WIDTH * inner
        taken = inner * WIDTH + HEADS * family.head_dim * WIDTH  # the value and output weights
        expected = stock + layers * (free + HEADS * family.head_dim - taken)
    else:
        expected = stock + sum(_learned(tested, family, place) for place in places(family))
    assert sum(count.values()) == expected, f"{sum(count.values())} parameters where {expected} are expected"
    loss(outputs(model, family)).backward()
    used = {key for key, p in model.named_parameters() if p.grad is not None}
    loss(outputs(plain, family)).backward()
    unused = {key for key, p in plain.named_parameters() if p.grad is None}
    assert not set(count) - used - unused, f"{sorted(set(count) - used - unused)[0]} gets no gradient"


def _learned(tested: Any, family: Family, place: int) -> int:
    """Numbers that the methods of one layer learn. Where V⁰ comes from, nothing is added and nothing learned."""
    numbers = {
        "Inversion": 2 * WIDTH * HEADS, "GatedAttention": WIDTH * HEADS * family.head_dim, "FeatScale": 2 * WIDTH,
        "AttnScale": HEADS, "Centred": HEADS, "Laplacian": HEADS,
    }  # fmt: skip
    is_source = place == family.runs[0] and family.runs.count(place) == 1
    total = 0
    for method in tested.methods:
        kind = type(method).__name__
        learned = getattr(method, "learned", kind in ("Inversion", "GatedAttention"))
        if learned and not (is_source and kind in ("NeuTRENO", "ValueResidual")):
            total += HEADS if getattr(method, "per", "") == "head" else numbers.get(kind, 1)
    return total


@_no_fast_path()  # a hook closes it in the last layer
def check_threads(name: str, method: str) -> None:
    """Two passes at once, each halfway through when the other begins: each gives its own result."""
    family = FAMILIES[name]
    model = steered(name, method)
    givens = _two_inputs(family)
    expected = []
    for given in givens:
        with torch.no_grad():
            expected.append(outputs(model, family, given))
    barrier, seen = threading.Barrier(2, timeout=300), threading.local()
    last = model.get_submodule(family.block.format(places(family)[-1]))

    def wait(*_: Any) -> None:
        if not getattr(seen, "waited", False):
            seen.waited = True
            barrier.wait()

    def work(given: Any) -> list[Tensor]:
        try:
            with torch.no_grad():
                return outputs(model, family, given)
        except Exception:
            barrier.abort()
            raise

    handle = last.register_forward_pre_hook(wait)
    with ThreadPoolExecutor(2) as pool:
        for result, alone in zip(pool.map(work, givens), expected, strict=True):
            same_bits(result, alone)
    handle.remove()


def check_refused(name: str, method: str) -> None:
    """Refused with the reason, and the model left as it was."""
    why = refused(name, method)
    assert why is not None
    model = make(name)
    before = snapshot(model)
    message = input_error(lambda: steer(model, list(METHODS[method].methods)))
    assert REASONS[why] in message, message
    assert message.count("\n") == 0
    same_snapshot(snapshot(model), before)


Check = Callable[[str, str], None]
CHECKS: dict[str, Check] = {
    "zero": check_zero,
    "formula": check_formula,
    "gradients": check_gradients,
    "bf16": check_bf16,
    "checkpointing": check_checkpointing,
    "reentrant": check_reentrant,
    "saved": check_saved,
    "unsteer": check_unsteer,
    "fold": check_fold,
    "optimiser": check_optimiser,
    "threads": check_threads,
}
"""What every method must pass on every family."""


def outcome(check: Check, name: str, method: str) -> Exception | None:
    try:
        check(name, method)
    except Exception as error:
        return error
    return None
