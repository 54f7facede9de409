"""What steering costs: a training step and inference of a steered ViT-Ti beside the plain one, in one run.

python benchmarks/steer.py [--json FILE] [--quick]

On a GPU: patch 2, batch 96, bf16 autocast, compiled, forward, backward, clipping and AdamW in one CUDA graph. Without
one: the same model with patch 4, small batches, in float32, eagerly; the ratios then say little about GPUs.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from measuring import DEVICE, HARDWARE, arguments, interleaved, save
from torch import Tensor, nn

from oversmooth.steering import FeatScale, Method, NeuTRENO, Spectral, fold, steer, steering_of, verify
from oversmooth_papers.cuda_graphs import captured
from oversmooth_papers.tasks.images.recipe import Shape
from oversmooth_papers.tasks.images.vit import ViT

_ALONE = "the plain model"
TRAINED: dict[str, Method | None] = {
    _ALONE: None,
    "Spectral, QR": Spectral("sharpen", start="cold"),
    "Spectral, QR, bounded": Spectral("sharpen", bounded=True, start="cold"),
    "Spectral, Cayley": Spectral("sharpen", orthogonal="cayley", start="cold"),
    "Spectral, general": Spectral("sharpen", form="general", start="cold"),
    "NeuTRENO": NeuTRENO(0.6),
    "FeatScale": FeatScale(),
}


def make(method: Method | None, device: str) -> nn.Module:
    torch.manual_seed(0)
    model = ViT(Shape() if device == "cuda" else Shape(patch=4)).to(device)
    return model if method is None else steer(model, method)


def training_step(model: nn.Module, batch: int, device: str) -> Callable[[], None]:
    """One optimiser step as a function; on a GPU a replay of its graph."""
    size = model.shape.image
    images, labels = torch.randn(batch, 3, size, size, device=device), torch.randint(100, (batch,), device=device)
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimiser = torch.optim.AdamW(
        parameters, lr=1.25e-4, weight_decay=0.05, **({"fused": True, "capturable": True} if device == "cuda" else {})
    )
    run = torch.compile(model) if device == "cuda" else model

    def step() -> None:
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            loss = nn.functional.cross_entropy(run(images), labels, label_smoothing=0.1)
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 5.0, foreach=True)
        optimiser.step()
        optimiser.zero_grad(set_to_none=False)

    return captured(step) if device == "cuda" else step


def inference(model: nn.Module, batch: int, device: str) -> Callable[[], None]:
    images = torch.randn(batch, 3, model.shape.image, model.shape.image, device=device)
    model.eval()
    run = torch.compile(model) if device == "cuda" else model

    def step() -> Tensor:
        with torch.no_grad(), torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            return run(images)

    return captured(step) if device == "cuda" else step


def orthogonality(model: nn.Module) -> float | None:
    """‖VᵀV − I‖, the largest entry over layers."""
    steering = steering_of(model)
    if steering is None or not steering.reparametrized or steering.reparametrized[0].method.form != "symmetric":
        return None
    worst = 0.0
    for layer in steering.reparametrized:
        V = layer.rows()[0].detach().double().flatten(0, 1)
        worst = max(worst, float((V @ V.mT - torch.eye(len(V), device=V.device)).abs().max()))
    return worst


def main() -> None:
    parser = arguments(__doc__, quick="few repetitions")
    parser.add_argument("--only", nargs="*", help="methods by name")
    options = parser.parse_args()
    device = DEVICE.type
    torch.set_float32_matmul_precision("high")
    batch = 96 if device == "cuda" else 8
    rounds, repeats = (3, 5) if options.quick else (9, 50 if device == "cuda" else 2)
    chosen = {n: m for n, m in TRAINED.items() if not options.only or n in options.only or m is None}
    models = {name: make(method, device) for name, method in chosen.items()}
    steps = {name: training_step(model, batch, device) for name, model in models.items()}
    train = interleaved(steps, rounds, repeats)
    rows = []
    for name, milliseconds in train.items():
        ratio = milliseconds / train[_ALONE]
        rows.append({"work": "training step", "method": name, "ms": milliseconds, "ratio": ratio})
        rows[-1]["orthogonality"] = orthogonality(models[name])
        held = models[name] if steering_of(models[name]) is not None else None
        rows[-1]["verified"] = None if held is None else [str(p) for p in verify(held).problems]
        print(
            f"training   {name:24s} {milliseconds:8.3f} ms  {ratio:5.3f} ×  {rows[-1]['orthogonality'] or 0:.1e}",
            flush=True,
        )
    still = {_ALONE: inference(make(None, device), batch, device)}
    still["Spectral, folded"] = inference(fold(make(Spectral("sharpen", start="cold"), device)), batch, device)
    still["NeuTRENO"] = inference(make(NeuTRENO(0.6), device), batch, device)
    infer = interleaved(still, rounds, repeats)
    for name, milliseconds in infer.items():
        ratio = milliseconds / infer[_ALONE]
        rows.append({"work": "inference", "method": name, "ms": milliseconds, "ratio": ratio})
        print(f"inference  {name:24s} {milliseconds:8.3f} ms  {ratio:5.3f} ×", flush=True)
    facts = {
        "device": HARDWARE,
        "torch": torch.__version__,
        "batch": batch,
        "rows": rows,
    }
    save(options.json, facts)


if __name__ == "__main__":
    main()
