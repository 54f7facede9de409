"""The same from Python: every argument of every public function, with what it cannot take."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Container, Iterator
from typing import Any

from adversary.inputs.attacks import diagnoses
from adversary.inputs.case import Case

SCALARS: dict[str, Any] = {
    "None": None, "text": "\x1b[31mred[/b]", "-1": -1, "0": 0, "10^9": 10**9, "10^30": 10**30, "NaN": float("nan"),
    "inf": float("inf"), "0.5": 0.5, "True": True, "a list": [], "an object": {"a": 1}, "5000 letters": "x" * 5000,
}  # fmt: skip
FEW = {label: SCALARS[label] for label in ("None", "text", "-1", "0", "10^9", "10^30", "NaN", "an object")}
EVERY: Any = type("Every", (), {"__contains__": lambda _self, _label: True})()


def cases() -> Iterator[Case]:
    yield from _functions()
    yield from _methods()
    yield from _models()
    yield from _inputs_of_models()
    yield from _settings()
    yield from _paths()
    yield from _diagnoses()


def _call(label: str, call: Callable[[], Any], expected: Any = "either") -> Case:
    return Case(f"api/{label}", lambda _place: call(), expected, api=True)


def _each(
    name: str, call: Callable[[Any], Any], values: dict[str, Any], refused: Container[str] = ()
) -> Iterator[Case]:
    """A call with each of these values, in a process of its own. refused: which of them must be."""
    for label, value in values.items():
        yield _call(f"{name}: {label})", lambda v=value: call(v), "refused" if label in refused else "either")


def _tensors() -> dict[str, Any]:
    """What is given where a tensor belongs."""
    import numpy as np
    import torch

    x = torch.randn(2, 3, 4)
    return {
        "None": None, "text": "\x1b[31mred[/b]", "a number": 3, "an empty list": [], "lists": [[1.0, 2.0], [3.0, 4.0]],
        "an array of numpy's": np.ones((3, 4)), "integers": x.long(), "booleans": x.bool(),
        "complex": x.to(torch.complex64), "NaN": x * float("nan"), "inf": x * float("inf"), "1e38": x * 1e38,
        "1e-44": x * 1e-44, "zeros": x * 0, "one number": torch.tensor(1.0), "a row": torch.ones(4),
        "no tokens": x[:, :0], "no features": x[..., :0], "no batch": x[:0], "nothing": torch.ones(0),
        "nine dimensions": torch.ones(1, 1, 1, 1, 1, 1, 1, 2, 3), "float16": x.half(),
        "float8": x.to(torch.float8_e4m3fn), "meta": x.to("meta"), "sparse": x.to_sparse(),
        "another shape": torch.randn(5, 7, 11), "10^12 numbers that are one": torch.ones(1, 1).expand(10**6, 10**6),
    }  # fmt: skip


def _good() -> dict[Any, dict[str, Any]]:
    """Functions with arguments that will do."""
    import torch

    from oversmooth import metrics, theory
    from oversmooth.theory import shifted
    from oversmooth.theory.weights import repeat_shared_heads

    x, A = torch.randn(2, 3, 4), torch.randn(2, 5, 5).softmax(-1)
    weights = {"W_V": torch.randn(2, 6, 3), "W_O": torch.randn(2, 3, 6)}
    of_tokens = (
        "cosine", "effective_rank", "hfc", "input_convergence", "lfc", "rank_one_distance", "sigma_ratio",
        "singular_values", "stable_rank", "summary",
    )  # fmt: skip
    of_weights = ("head_spectrum", "joined_spectrum", "head_verdicts", "centre_features")
    of_attention = ("attention_spectrum", "flip_threshold", "is_causal", "is_row_stochastic", "DenseAttention")
    return {
        **{getattr(metrics, name): {"x": x} for name in of_tokens},
        **{getattr(theory, name): weights for name in of_weights},
        **{getattr(theory, name): {"A": A} for name in of_attention},
        metrics.ranks_of: {"s": torch.rand(2, 3)},
        theory.dominance: {"A": A, **weights},
        shifted.shifted_dominance: {"A": A, **weights, "shifts": [0.0, 0.5, 1.0]},
        theory.simulate: {"X": torch.randn(5, 6), "A": A, **weights, "layers": 3},
        theory.fold_norm: {"W_V": weights["W_V"], "gamma": torch.ones(6)},
        repeat_shared_heads: {"W_V": weights["W_V"], "heads": 4},
        theory.SoftmaxAttention: {"q": torch.randn(2, 5, 3), "k": torch.randn(2, 5, 3)},
    }


TENSORS = ("x", "A", "W_V", "W_O", "X", "mask", "s", "q", "k", "gamma", "beta", "bias")
LATER = ("None", "text", "an empty list", "integers", "NaN", "1e38", "one number", "nothing", "another shape", "zeros")
"""For the arguments after the first."""
NUMBERS_TOO = ("gamma", "beta", "bias", "neutreno")


def _functions() -> Iterator[Case]:
    from oversmooth import theory
    from oversmooth.theory.radii import Settings

    tensors = _tensors()
    for function, good in _good().items():
        name = f"{function.__module__.split('.')[1]}.{function.__name__}"
        yield _call(f"{name}, as it should be", lambda f=function, g=good: f(**g), "fine")
        rare = {theory.dominance: Settings.of}.get(function)
        named = [*inspect.signature(function).parameters, *(inspect.signature(rare).parameters if rare else ())]
        for place, argument in enumerate(named):
            if argument in ("progress", "change", "search", "settings", "dtype"):
                continue
            values = {label: value for label, value in tensors.items() if place == 0 or label in LATER}
            values = values if argument in TENSORS else {}
            values |= FEW if argument not in TENSORS or argument in NUMBERS_TOO else {}
            sure = ("text", "an object", *(["None"] if argument in good else []))
            spoilt = lambda v, f=function, g=good, a=argument: f(**{**g, a: v})  # noqa: E731
            yield from _each(f"{name}({argument}", spoilt, values, sure)


def _methods() -> Iterator[Case]:
    """Settings of every steering method."""
    from oversmooth import steering
    from oversmooth.steering.methods.registry import method_from

    for name, method in steering.METHODS.items():
        for argument in inspect.signature(method).parameters:
            given = lambda v, method=method, argument=argument: method(**{argument: v})  # noqa: E731
            yield from _each(f"steering.{name}({argument}", given, FEW, ("text", "an object"))
    settings: dict[str, Any] = {
        "nothing": {}, "None": None, "text": "x", "no method": {"strength": 1},
        "an unknown method": {"method": "\x1b[31mred"},
        "a method of another kind": {"method": 3}, "a method that is private": {"method": "__class__"},
        "an unknown setting": {"method": "NeuTRENO", "colour": 1}, "a list": [1], "a list as a name": {"method": ["x"]},
    }  # fmt: skip
    yield from _each("steering.method_from(", method_from, settings, EVERY)


def _model(width: int = 8, fill: float | None = None) -> Any:
    """A small transformer of torch's own. fill: what all its weights are."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(width, min(width, 2), 16, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    with torch.no_grad():
        for parameter in model.parameters() if fill is not None else ():
            parameter.fill_(fill)
    return model


def _models() -> Iterator[Case]:
    """Functions that take a model, with what is none or does not work."""
    import torch
    from torch import nn

    import oversmooth
    from oversmooth.steering import Spectral

    class Raises(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = _model()

        def forward(self, _x: Any) -> Any:
            raise RuntimeError("\x1b[31mred\n" * 100)

    class Nothing(Raises):
        def forward(self, x: Any) -> Any:
            return x

    no_module: dict[str, Any] = {
        "None": None, "text": "\x1b[31mred", "a number": 3, "a class": nn.Linear, "a function": len,
        "parameters alone": dict(_model().state_dict()),
    }  # fmt: skip
    no_layers = {"a linear layer": nn.Linear(8, 8), "no layers": nn.ModuleList()}
    broken = {
        "a path that lacks": "/nowhere/at/all", "one that raises": Raises(), "one that runs nothing": Nothing(),
        "on meta": _model().to("meta"), "NaN": _model(fill=float("nan")),
    }  # fmt: skip
    odd = {
        "huge": _model(fill=1e30), "zero": _model(fill=0.0), "float16": _model().half(), "float64": _model().double(),
        "in training": _model().train(), "of a width of 1": _model(width=1),
    }  # fmt: skip

    def diagnosed(model: Any) -> Any:
        weight = next(model.parameters(), torch.ones(8)) if isinstance(model, nn.Module) else torch.ones(8)
        width = 1 if weight.shape[-1] == 1 else 8
        dtype = torch.float64 if weight.dtype == torch.float64 else torch.float32
        return oversmooth.diagnose(model, torch.randn(2, 5, width, dtype=dtype), depth=2)

    models = {**no_module, **no_layers, **broken, **odd}
    yield from _each("diagnose(model", diagnosed, models, {**no_module, **no_layers, **broken})
    steered = lambda model: oversmooth.steer(model, Spectral("sharpen"))  # noqa: E731
    yield from _each("steer(model", steered, models, {**no_module, **no_layers})
    yield from _each("anatomy.locate(model", oversmooth.anatomy.locate, models, {**no_module, **no_layers})
    others = {
        "unsteer": oversmooth.unsteer,
        "fold": oversmooth.fold,
        "verify": oversmooth.steering.verify,
        "ramp": oversmooth.steering.ramp,
        "suggest": lambda m: oversmooth.steering.suggest(m, torch.randn(2, 5, 8), strengths=[0, 1]),
        "save_steered": lambda m: oversmooth.save_steered(m, "out-steered"),
    }
    for name, call in others.items():
        yield from _each(f"{name}(model", call, models, no_module)


def _inputs_of_models() -> Iterator[Case]:
    import torch

    import oversmooth

    x = torch.randn(2, 5, 8)
    fine: dict[str, Any] = {
        "one token": x[:, :1], "numpy's": x.numpy(), "batches of other kinds": [x, {"src": x}],
        "a mask of nothing": {"src": x, "src_key_padding_mask": torch.ones(2, 5).bool()},
        "float16": x.half(),  # brought to the model's precision
    }  # fmt: skip
    bad: dict[str, Any] = {
        "text": "\x1b[31mred", "a number": 3, "an empty list": [], "a list of None": [None], "an empty dict": {},
        "a dict of text": {"src": "x"}, "another argument": {"\x1b[31mred": x}, "NaN": x * float("nan"),
        "inf": x * float("inf"), "huge": torch.full((2, 5, 8), 1e38), "integers": x.long(),
        "another width": torch.randn(2, 5, 9), "no tokens": x[:, :0], "no inputs": x[:0],
        "one number": torch.tensor(1.0), "five dimensions": x[None, None], "on meta": x.to("meta"),
        "batches of other widths": [x, torch.randn(2, 5, 9)], "batches that stop": iter([]), "a set": {1, 2},
        "without end": iter(lambda: None, 1),
    }  # fmt: skip
    calls = {
        "diagnose": lambda inputs: oversmooth.diagnose(_model(), inputs, depth=2),
        "suggest": lambda inputs: oversmooth.steering.suggest(_model(), inputs, strengths=[0, 1]),
    }
    for name, call in calls.items():
        yield from _each(f"{name}(inputs", call, fine | bad, bad)


def _settings() -> Iterator[Case]:
    """All other arguments of what takes a model."""
    import torch

    import oversmooth
    from oversmooth.monitor import MonitorConfig
    from oversmooth.steering import NeuTRENO, ramp, suggest, verify

    x = torch.randn(2, 5, 8)
    calls: dict[str, tuple[Callable[..., Any], Any]] = {
        "ramp": (lambda **given: ramp(oversmooth.steer(_model(), NeuTRENO(0.1)), **given), ("to", "steps", "method")),
        "suggest": (
            lambda **given: suggest(_model(), x, **{"strengths": [0, 1], **given}),
            ("strengths", "stack", "heads", "seed"),
        ),
        "diagnose": (
            lambda **given: oversmooth.diagnose(_model(), x, **{"depth": 2, **given}),
            [*inspect.signature(oversmooth.diagnose).parameters][2:],
        ),
        "anatomy.locate": (lambda **given: oversmooth.anatomy.locate(_model(), **given), ("stack", "heads", "norm")),
        "Monitor": (
            lambda **given: oversmooth.Monitor(**{"model": _model(), **given}),
            inspect.signature(oversmooth.Monitor).parameters | inspect.signature(MonitorConfig).parameters,
        ),
    }
    for name, (call, names) in calls.items():
        for argument in names:
            if argument not in ("progress", "tokenizer"):
                given = lambda v, call=call, argument=argument: call(**{argument: v})  # noqa: E731
                yield from _each(f"{name}({argument}", given, SCALARS)
    layers = SCALARS | {
        "beyond": [5], "below": [-9], "text within": ["x"], "twice": [0, 0], "NaN within": [float("nan")],
        "10^30 within": [10**30], "booleans": [True, False],
        "a range without end": range(10**12), "a range of 10^7": range(10**7),
    }  # fmt: skip
    yield from _each("steer(layers", lambda v: oversmooth.steer(_model(), NeuTRENO(), v), layers)
    methods = SCALARS | {"a class": NeuTRENO, "two of one kind": [NeuTRENO(), NeuTRENO()], "a dict": {}}
    yield from _each("steer(method", lambda v: oversmooth.steer(_model(), v), methods, EVERY)
    register: dict[str, dict[str, Any]] = {
        "nothing": {"value": "", "output": ""},
        "numbers": {"value": 3, "output": 4},
        "an unknown packing": {"value": "a.weight", "output": "b.weight", "packing": "\x1b[31mred"},
        "one weight": {"value": "a.weight", "output": "a.weight"},
        "None": {"value": None, "output": None},
        "patterns": {"value": "(((", "output": "***"},
    }
    yield from _each("anatomy.register(", lambda v: oversmooth.anatomy.register("x", **v), register)
    steered = lambda: oversmooth.steer(_model(), NeuTRENO())  # noqa: E731
    yield _call("steer twice", lambda: oversmooth.steer(steered(), NeuTRENO()), "refused")
    yield _call("fold NeuTRENO", lambda: oversmooth.fold(steered()), "refused")
    yield _call("verify, not steered", lambda: verify(_model()), "refused")
    yield _call("fold, not steered", lambda: oversmooth.fold(_model()))
    yield _call("unsteer, not steered", lambda: oversmooth.unsteer(_model()))
    raising: dict[str, Callable[[], Any]] = {
        "steer(layers: a function that raises)": lambda: oversmooth.steer(_model(), NeuTRENO(), lambda *_: 1 / 0),
        "diagnose(inputs: a generator that raises)": lambda: oversmooth.diagnose(_model(), (1 / 0 for _ in range(3))),
    }
    for label, call in raising.items():
        yield _call(label, lambda call=call: _passes_on(call), "fine")


def _passes_on(call: Callable[[], Any]) -> None:
    """What a user's own function raises is the user's to see, as it is."""
    try:
        call()
    except ZeroDivisionError:
        return
    raise AssertionError("what the user's own function raised was swallowed")


def _paths() -> Iterator[Case]:
    import oversmooth
    from oversmooth import models

    paths: dict[str, Any] = {
        "None": None, "a number": 3, "nothing": "", "a folder": ".", "what lacks": "/nowhere/x.json",
        "text": "\x1b[31mred",
        "5000 letters": "x" * 5000, "a zero byte": "a\x00b", "bytes": b"x.json", "/dev/zero": "/dev/zero", "a list": [],
    }  # fmt: skip
    calls: dict[str, Callable[[Any], Any]] = {
        "Diagnosis.load": oversmooth.Diagnosis.load,
        "load_steered": oversmooth.load_steered,
        "anatomy.locate": oversmooth.anatomy.locate,
        "diagnose": oversmooth.diagnose,
        "models.load": models.load,
    }
    for name, call in calls.items():
        yield from _each(f"{name}(path", call, paths, EVERY)


def _diagnoses() -> Iterator[Case]:
    from oversmooth import Diagnosis

    found = diagnoses.example()
    texts = SCALARS | {"bytes": b"{}"}
    yield from _each("Diagnosis.from_dict(", Diagnosis.from_dict, texts, EVERY)
    yield from _each("Diagnosis.from_json(", Diagnosis.from_json, texts, EVERY)
    yield from _each("Diagnosis.curve(", lambda v: Diagnosis.from_dict(found).curve(v), SCALARS, EVERY)
    outputs: dict[str, Any] = {
        "None": None, "a number": 3, "nothing": "", "a folder": ".", "below nothing": "/proc/x/y",
        "another ending": "x.exe",
        "5000 letters": "x" * 5000, "a zero byte": "a\x00b", "/dev/full": "/dev/full",
    }  # fmt: skip
    for name in ("save", "to_html"):
        yield from _each(
            f"Diagnosis.{name}(", lambda v, n=name: getattr(Diagnosis.from_dict(found), n)(v), outputs, EVERY
        )
