"""How fast the spectra are: ratios against the obvious way, from one run, on the CPU and, if there is one, on the GPU.

    python benchmarks/spectra.py [--data DIR] [--json FILE]

DIR (or the environment variable OVERSMOOTH_DATA) holds weights/deit-tiny and data/imagenet-val-1k; without it the rows
on real attention are left out and said to be. Each row names what it is compared with; nothing here is asserted.
"""

from __future__ import annotations

import io
import os
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from measuring import DEVICE, HARDWARE, ON_GPU, Rows, arguments, memory, seconds
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from oversmooth.theory import DenseAttention, SoftmaxAttention, attention_spectrum, dominance, head_spectrum
from oversmooth.theory.dominance import JOINT_STEPS

N, WIDTH, HEADS, LAYERS = 197, 192, 3, 12
ROWS = Rows()
row = ROWS.add


def deit(folder: Path, images: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Attention ``(images, layers, heads, n, n)`` of DeiT-Tiny on ImageNet images, and its W_V and W_O."""
    import pyarrow.parquet as parquet
    from PIL import Image
    from safetensors.torch import load_file
    from transformers import ViTForImageClassification

    path = folder / "weights" / "deit-tiny"
    model = ViTForImageClassification.from_pretrained(path, attn_implementation="eager").eval().to(device)
    pictures = []
    for entry in parquet.read_table(next((folder / "data" / "imagenet-val-1k").glob("*.parquet")))["image"].to_pylist()[
        :images
    ]:
        picture = Image.open(io.BytesIO(entry["bytes"])).convert("RGB").resize((224, 224), Image.Resampling.BICUBIC)
        pictures.append(torch.frombuffer(bytearray(picture.tobytes()), dtype=torch.uint8).view(224, 224, 3))
    pixels = torch.stack(pictures).permute(0, 3, 1, 2).to(device) / 255
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    pixels = (pixels - mean.to(device).view(3, 1, 1)) / std.to(device).view(3, 1, 1)
    with torch.no_grad():
        attentions = [model(p, output_attentions=True).attentions for p in pixels.split(32)]
    A = torch.cat([torch.stack(part, dim=1) for part in attentions])
    state = load_file(path / "model.safetensors")
    name = "vit.encoder.layer.{}.attention.{}.weight"
    V = [state[name.format(i, "attention.value")].T.unflatten(1, (HEADS, -1)).transpose(0, 1) for i in range(LAYERS)]
    O = [state[name.format(i, "output.dense")].T.unflatten(0, (HEADS, -1)) for i in range(LAYERS)]  # noqa: E741
    return A, torch.stack(V).to(device), torch.stack(O).to(device)


def gaussian(images: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """The same shapes from Gaussian queries, keys and weights: spectra without outliers, the hard case for Arnoldi."""
    g = torch.Generator().manual_seed(0)
    k = WIDTH // HEADS
    q, key = (torch.randn(images, LAYERS, HEADS, N, k, generator=g).to(device) for _ in range(2))
    V = torch.randn(LAYERS, HEADS, WIDTH, k, generator=g) * WIDTH**-0.5 * 0.7
    O = torch.randn(LAYERS, HEADS, k, WIDTH, generator=g) * WIDTH**-0.5 * 0.7  # noqa: E741
    return torch.softmax(q @ key.mT / k**0.5, dim=-1), V.to(device), O.to(device)


def exact_radii(A: Tensor, W_V: Tensor, W_O: Tensor) -> tuple[Tensor, Tensor]:
    """(ρ_smooth, ρ_rough) per head by dense eigenvalues in float64, on every core of the CPU."""
    lam = head_spectrum(W_V.double().cpu(), W_O.double().cpu()).expand(*A.shape[:-2], -1).flatten(0, -2)
    matrices = A.double().cpu().flatten(0, -3)
    cores = len(os.sched_getaffinity(0))
    with ThreadPoolExecutor(cores) as pool:
        values = torch.cat(list(pool.map(torch.linalg.eigvals, matrices.tensor_split(max(1, len(matrices) // 8)))))
    order = (values - 1).abs().argsort(-1)
    t = values.gather(-1, order)[:, 1:]
    rough = [(1 + a[:, None] * b).abs().max() for a, b in zip(t, lam, strict=True)]
    return (1 + lam).abs().amax(-1), torch.stack(rough)


def heads_row(kind: str, A: Tensor, W_V: Tensor, W_O: Tensor, reach: str, baseline: int, **settings: float) -> None:
    """Dominance of every head against `torch.linalg.eigvals` of as many matrices (timed on `baseline` of them)."""
    count = A.shape[:-2].numel()
    operator = DenseAttention(A)
    fast = seconds(lambda: dominance(operator, W_V, W_O, per_head=True, **settings), rounds=3) / count
    some = A.flatten(0, -3)[:: max(1, count // baseline)][:baseline].contiguous()
    slow = seconds(lambda: torch.linalg.eigvals(some), rounds=1 if A.is_cuda else 3) / len(some)
    found = dominance(operator, W_V, W_O, per_head=True, **settings)
    smooth, rough = exact_radii(A, W_V, W_O)
    error = (found.rho_rough.double().cpu().flatten() - rough).abs()
    clear = (smooth - rough).abs() > 1e-3
    same = (found.smoothing.cpu().flatten() == (smooth > rough))[clear].double().mean().item()
    how = "".join(f", {name} {value:g}" for name, value in settings.items())
    row(
        f"dominance of {count:,} heads, n = {N}, {kind}{how}",
        "torch.linalg.eigvals",
        reach,
        f"{slow / fast:,.0f} ×" if slow / fast > 20 else f"{slow / fast:.1f} ×",
        f"{1e3 * fast:.3f} against {1e3 * slow:.1f} ms a matrix; radius within {error.max():.0e} "
        f"({(error < 1e-3).double().mean():.1%} within 1e-3); same verdict in {same:.2%} of {int(clear.sum()):,} "
        "with margin over 1e-3",
    )


def weights_row(device: torch.device) -> None:
    g = torch.Generator().manual_seed(0)
    W_V, W_O = torch.randn(12, 768, 64, generator=g).to(device), torch.randn(12, 64, 768, generator=g).to(device)
    fast = seconds(lambda: head_spectrum(W_V, W_O), rounds=5)
    products = W_V @ W_O
    slow = seconds(lambda: torch.linalg.eigvals(products), rounds=1)
    row(
        "per-head spectra of one layer, d = 768, 12 heads",
        "eigvals of the d by d products",
        "50 ×",
        f"{slow / fast:,.0f} ×",
        f"{1e3 * fast:.1f} ms against {slow:.2f} s",
    )


def causal_row(device: torch.device) -> None:
    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 1, 16384, 64, generator=g).to(device) for _ in range(3))
    A = SoftmaxAttention(q, k, causal=True)
    fast = seconds(lambda: attention_spectrum(A), rounds=3)
    call = seconds(lambda: scaled_dot_product_attention(q, k, v, is_causal=True), rounds=3)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        attention_spectrum(A)
        peak = (torch.cuda.max_memory_allocated() - before) / 2**20
    else:
        # In a process of its own: the peak of this one was set by other rows.
        code = (
            f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import spectra; spectra.causal_memory()"
        )
        peak = float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
    row(
        "exact causal spectrum, n = 16,384, one head",
        "one fused attention call; the matrix would take 1 GiB",
        "under 200 MiB, about one call",
        f"{fast / call:.2f} calls",
        f"{1e3 * fast:.1f} ms against {1e3 * call:.1f} ms, {peak:.0f} MiB",
    )


def causal_memory() -> None:
    """Print how far the causal spectrum of 16,384 tokens raises this process's peak memory, in MiB."""
    q, k = torch.randn(1, 1, 16384, 64), torch.randn(1, 1, 16384, 64)
    attention_spectrum(SoftmaxAttention(q[..., :64, :], k[..., :64, :], causal=True))
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak that importing torch left
    before = memory("VmRSS")
    attention_spectrum(SoftmaxAttention(q, k, causal=True))
    print((memory() - before) / 2**20)


def joined_row(kind: str, A: Tensor, W_V: Tensor, W_O: Tensor) -> None:
    times, residuals = [], []
    for layer in range(LAYERS):
        operator = DenseAttention(A[0, layer])
        times.append(seconds(lambda: dominance(operator, W_V[layer], W_O[layer], limit=False), rounds=3))  # noqa: B023
        residuals.append(dominance(operator, W_V[layer], W_O[layer], limit=False).residual.item())
    row(
        f"multi-head ρ_rough, n = {N}, d = {WIDTH}, {HEADS} heads, {kind}",
        "dense 37,824 by 37,824: impossible",
        "under 0.5 s, residual below 1e-4",
        f"{statistics.median(times):.2f} s",
        f"slowest of {LAYERS} layers {max(times):.2f} s; residual at most {max(residuals):.0e}",
    )


def causal_joined_row(device: torch.device) -> None:
    """A layer of a 135 M decoder: 9 heads on 3 value heads, 576 features, 256 tokens."""
    g = torch.Generator().manual_seed(0)
    heads, shared, n, d, k = 9, 3, 256, 576, 64
    key = torch.randn(1, heads, n, k, generator=g)
    q = 0.35 * key + 0.2 * torch.randn(1, heads, n, k, generator=g)  # tokens see themselves, as in trained decoders
    V = (torch.randn(shared, d, k, generator=g) * d**-0.5).repeat_interleave(heads // shared, 0)
    O = torch.randn(heads, k, d, generator=g) * d**-0.5  # noqa: E741
    A, V, O = SoftmaxAttention(q.to(device), key.to(device), causal=True).dense(), V.to(device), O.to(device)  # noqa: E741
    within = dominance(A, V, O, limit=False, steps=JOINT_STEPS)
    fast = seconds(lambda: dominance(A, V, O, limit=False, steps=JOINT_STEPS), rounds=3)
    blocks = torch.einsum("hi,hdk,hke->ide", A.diagonal()[0], V, O)[1:] + torch.eye(d, device=device)
    some = blocks[:: n // 16].contiguous()
    slow = seconds(lambda: torch.linalg.eigvals(some), rounds=1) / len(some) * len(blocks)
    exact = torch.linalg.eigvals(blocks.double().cpu()).abs().max()
    row(
        f"multi-head ρ_rough, causal, n = {n}, d = {d}, {heads} heads on {shared}, within {JOINT_STEPS} products",
        "torch.linalg.eigvals of every token's block",
        "40 ×",
        f"{slow / fast:,.0f} ×",
        f"{fast:.2f} against {slow:.0f} s; median a_ii {A.diagonal().median():.2f}; radius within "
        f"{abs(float(within.rho_rough) - float(exact)):.0e}, stated error {float(within.error):.0e}",
    )


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--data", type=Path, default=os.environ.get("OVERSMOOTH_DATA"))
    parser.add_argument("--images", type=int, default=128, help="images on the GPU: 36 matrices each")
    options = parser.parse_args()
    where = f"{HARDWARE}, {len(os.sched_getaffinity(0))} CPU cores, torch {torch.__version__}"
    print(where, flush=True)

    kinds = {"Gaussian": gaussian}
    if options.data and Path(options.data).is_dir():
        kinds["DeiT-Tiny"] = lambda images, device: deit(Path(options.data), images, device)
    else:
        print("no data folder: the rows on DeiT-Tiny's attention are left out (--data, OVERSMOOTH_DATA)")
    for kind, make in kinds.items():
        A, W_V, W_O = make(options.images if ON_GPU else 2, DEVICE)
        if ON_GPU:
            heads_row(kind, A, W_V, W_O, "500 ×", baseline=16)
            heads_row(kind, A, W_V, W_O, "500 ×", baseline=16, tolerance=1e-3)
        else:
            reach = "10 ×" if kind == "DeiT-Tiny" else "6 × (the prototype's)"
            heads_row(kind, A, W_V, W_O, reach, baseline=64)
            heads_row(kind, A, W_V, W_O, reach, baseline=64, steps=24 if kind == "DeiT-Tiny" else 48)
        joined_row(kind, A, W_V, W_O)
    weights_row(DEVICE)
    causal_row(DEVICE)
    causal_joined_row(DEVICE)

    ROWS.end(where, options.json)


if __name__ == "__main__":
    main()
