"""What tracing a large model costs: each row as a multiple of the plain forward pass of the same run, with its memory.

    python benchmarks/large.py [--rows 8b,8b-diagnosis,long,vit,training,small,small-diagnosis,streamed] [--json FILE]

On a GPU: an 8B-shaped decoder (4 texts of 4,096 tokens, and 1 of 131,072) in bfloat16, a ViT-L-shaped encoder (64
images) in float32; `training` is a snapshot of a monitor (1 text of 2,048 tokens) over 50 training steps with the same
text. On a CPU: a decoder of 30 blocks, 576 wide (8 texts of 256 tokens). Weights are random, which makes
attention easier than trained attention: queries and keys are scaled until the median a_ii of a decoder is that of
stories15m, and the median contraction of the encoder that of DeiT-Tiny; both are printed. The plan is fitted once and
is a row of its own. Nothing is asserted.

`streamed` writes a checkpoint of random weights in bfloat16 (`benchmarks/checkpoint.py`; on a GPU 20 blocks of a 70B
shape, 34 GB, with 12 GB of its memory; on a CPU 5 GB), and is a multiple of reading its files once. Files are dropped
from the page cache before each row. On a CPU the memory is the most that was not backed by files (RssAnon).
"""

from __future__ import annotations

import gc
import shutil
import statistics
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from checkpoint import drop_from_cache, read_once, write
from measuring import DEVICE, HARDWARE, ON_GPU, arguments, memory, once, save
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from oversmooth import Monitor, diagnose, trace
from oversmooth.models import load
from oversmooth.trace.reducers.sinks import Sinks

A_II = 0.07
"""Median of the diagonal of attention over layers, heads and tokens of stories15m on 256 tokens of WikiText-2."""
CONTRACTION = 0.4
"""Median of ‖(PA)⁴‖^¼ over layers and heads of DeiT-Tiny; of random weights it is 0.05, and Arnoldi has no work."""
QUERIES_AND_KEYS = ("q_proj", "k_proj", "attention.query", "attention.key")


def seconds(run: Callable[[], object], repeats: int = 2) -> tuple[float, float]:
    """(the median after one warm-up, GiB at the peak of the last)."""
    times, most = [], 0.0
    for _ in range(repeats + 1):
        if ON_GPU:
            torch.cuda.reset_peak_memory_stats()
        times.append(once(run))
        most = torch.cuda.max_memory_allocated() / 2**30 if ON_GPU else 0.0
    return statistics.median(times[1:]), most


class Sharpness(trace.Reducer):
    """Medians over layers and heads of what says how hard attention is: a_ii, or ‖(PA)⁴‖^¼ of the first input."""

    attention = True

    def __init__(self, causal: bool) -> None:
        self.causal, self.medians = causal, []  # type: ignore[var-annotated]

    def attend(self, _call: int, _block: Any, A: Any) -> None:
        if self.causal:
            values = A.diagonal()[..., 1:].float()
        else:
            M = A.select(torch.zeros(1, dtype=torch.long, device=A.device)).dense().A
            M = M - M.mean(-2, keepdim=True)
            values = largest(M @ M @ M @ M) ** 0.25
        self.medians.append(values.median())

    def finish(self, _facts: Any) -> None:
        self.result = float(torch.stack(self.medians).median())


def largest(M: Tensor, iterations: int = 50) -> Tensor:
    """σ₁ of each matrix, by power iteration: batched SVDs of this size take a GPU minutes."""
    x = torch.ones_like(M[..., :1])
    for _ in range(iterations):
        x = M.mT @ (M @ x)
        x = x / x.norm(dim=-2, keepdim=True)
    return (M @ x).norm(dim=-2)[..., 0]


def sharpened(model: nn.Module, given: Tensor, wanted: float) -> None:
    """Scale queries and keys until the median is that of a trained model; a decoder's are made alike before."""
    causal, plan = wanted == A_II, trace.plan(model, given, attention=True)

    def sharpness() -> float:
        trace.run(model, given, plan, [reducer := Sharpness(causal)])
        return float(reducer.result)

    before, low, high = sharpness(), 0.02, 50.0
    for layer in model.model.layers if causal else ():  # type: ignore[union-attr]
        q, k = layer.self_attn.q_proj.weight.data, layer.self_attn.k_proj.weight.data
        shared = k.unflatten(0, (-1, layer.self_attn.head_dim)).repeat_interleave(len(q) // len(k), 0).flatten(0, 1)
        q.mul_(0.5).add_(shared)
    weights = [module.weight.data for name, module in model.named_modules() if name.endswith(QUERIES_AND_KEYS)]
    own = [weight.clone() for weight in weights]
    for _ in range(14):
        scale = (low * high) ** 0.5
        for weight, given_weight in zip(weights, own, strict=True):
            weight.copy_(given_weight * scale)
        low, high = (scale, high) if sharpness() < wanted else (low, scale)
    print(f"  median {before:.3g} -> {sharpness():.3g} (trained: {wanted}); queries and keys scaled by {scale:.3g}")


def decoder(layers: int, width: int, heads: int, shared: int, inner: int, positions: int) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=width, intermediate_size=inner, num_hidden_layers=layers, num_attention_heads=heads,
        num_key_value_heads=shared, vocab_size=32_000, max_position_embeddings=positions,
    )  # fmt: skip
    torch.manual_seed(0)
    with torch.device(DEVICE):
        model = LlamaForCausalLM(config)
    return model.to(torch.bfloat16 if ON_GPU else torch.float32).eval()


class Bench:
    """Rows of one model on one batch."""

    def __init__(self, what: str, model: nn.Module, given: dict[str, Tensor]) -> None:
        self.what, self.model, self.given, self.rows = what, model, given, []  # type: ignore[var-annotated]
        print(f"  {what}", flush=True)
        with torch.no_grad():
            self.plain, self.memory = seconds(lambda: model(**given))
        self.repeats = 1 if self.plain > 5 else 2
        self.add("plain forward pass", self.plain, self.memory)
        for attention in (False, True):
            took, most = seconds(lambda attention=attention: trace.plan(model, given, attention=attention), 1)
            self.add(f"the plan, {'with' if attention else 'without'} attention", took, most)
        self.plan = trace.plan(model, given, attention=True)

    def add(self, work: str, took: float, most: float) -> None:
        ratio, memory = took / self.plain, most / self.memory if self.memory else 0.0
        self.rows.append(dict(what=self.what, work=work, seconds=took, ratio=ratio, gib=most, memory=memory))
        print(f"  {work}: {took:.3f} s, {ratio:.2f} ×" + (f", memory {memory:.2f} ×" if memory else ""), flush=True)

    def traced(self, work: str, make: Callable[[], list[trace.Reducer]]) -> None:
        try:
            self.add(work, *seconds(lambda: trace.run(self.model, self.given, self.plan, make()), self.repeats))
        except torch.OutOfMemoryError as error:
            print(f"  {work}: {str(error)[:90]}", flush=True)

    def tokens(self, work: str, **how: Any) -> None:
        self.traced(work, lambda: [trace.TokenMetrics(self.plan, **how)])

    def everything(self, **how: Any) -> None:
        settings = ", ".join(f"{name}={value}" for name, value in how.items()) or "default settings"
        self.add(f"a diagnosis, {settings}", *seconds(lambda: diagnose(self.model, self.given, **how), 1))


def moments_to_ranks(bench: Bench) -> None:
    bench.tokens("moments", ranks=0, absolute=False)
    bench.tokens("tokens", ranks=0, absolute=False, directions=True)
    bench.tokens("tokens and |cos|", ranks=0, directions=True)
    bench.tokens("tokens, |cos|, effective rank of one input", ranks=1, directions=True)


def heads(bench: Bench) -> None:
    def reducers() -> list[trace.Reducer]:
        tokens = trace.TokenMetrics(bench.plan, ranks=0, absolute=False, directions=True)
        return [tokens, trace.HeadSpectra(bench.plan, trace.SpectraSettings(joined=0))]

    bench.traced("tokens, spectra and dominance of every head", reducers)
    bench.traced("the same and sinks", lambda: [*reducers(), Sinks(bench.plan)])


def eight_billion(whole: bool = True) -> Bench:
    model = decoder(32, 4096, 32, 8, 14_336, 4096)
    sharpened(model, torch.randint(32_000, (1, 1024), device=DEVICE), A_II)
    bench = Bench("8B shape, 4 × 4,096", model, {"input_ids": torch.randint(32_000, (4, 4096), device=DEVICE)})
    if whole:
        moments_to_ranks(bench)
        heads(bench)
    bench.everything()
    return bench


def training() -> Bench:
    """A snapshot with default settings over 50 steps of AdamW in bfloat16."""
    model = decoder(32, 4096, 32, 8, 14_336, 4096).train()
    model.gradient_checkpointing_enable()  # type: ignore[operator]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=ON_GPU)
    text = torch.randint(32_000, (1, 2048), device=DEVICE)
    bench = Bench("8B shape, training, 1 × 2,048", model, {"input_ids": text})

    def step() -> None:
        model(input_ids=text, labels=text).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    took, most = seconds(step, 4)
    bench.plain, bench.memory = 50 * took, most
    bench.add("50 training steps", 50 * took, most)
    monitor = Monitor(model, probe={"input_ids": text}, every=1)
    times = []
    for _ in range(4):  # the first warms up
        step()
        times.append(once(monitor.step))
    assert not monitor.failures, monitor.failures
    bench.add("a monitor's snapshot", statistics.median(times[1:]), most)
    return bench


def long() -> Bench:
    model = decoder(32, 4096, 32, 8, 14_336, 131_072).model
    bench = Bench("8B shape, 1 × 131,072", model, {"input_ids": torch.randint(32_000, (1, 131_072), device=DEVICE)})
    bench.tokens("tokens", ranks=0, absolute=False, directions=True)
    heads(bench)
    return bench


def vit() -> Bench:
    from transformers import ViTConfig, ViTModel

    torch.manual_seed(0)
    config = ViTConfig(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096)
    model = ViTModel(config, add_pooling_layer=False).to(DEVICE).eval()
    sharpened(model, torch.randn(2, 3, 224, 224, device=DEVICE), CONTRACTION)
    bench = Bench("ViT-L shape, 64 images", model, {"pixel_values": torch.randn(64, 3, 224, 224, device=DEVICE)})
    moments_to_ranks(bench)
    heads(bench)
    bench.everything()
    return bench


def small(whole: bool = True) -> Bench:
    model = decoder(30, 576, 9, 3, 1536, 2048)
    sharpened(model, torch.randint(32_000, (1, 256), device=DEVICE), A_II)
    bench = Bench("30 blocks, 576 wide, 8 × 256", model, {"input_ids": torch.randint(32_000, (8, 256), device=DEVICE)})
    if whole:
        moments_to_ranks(bench)
        heads(bench)
    bench.everything()
    return bench


class Peak(threading.Thread):
    """The most memory of this process that no file backs, in GiB."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.most, self.over = 0.0, threading.Event()
        self.start()

    def run(self) -> None:
        while not self.over.wait(0.02):
            self.most = max(self.most, memory("RssAnon") / 2**30)

    def stop(self) -> float:
        self.over.set()
        self.join()
        return torch.cuda.max_memory_allocated() / 2**30 if ON_GPU else self.most


def streamed() -> SimpleNamespace:
    folder = Path(tempfile.mkdtemp(prefix="oversmooth-"))
    shape = (20, 8192, 64, 8, 28_672) if ON_GPU else (34, 2560, 20, 4, 6912)
    what = f"{shape[0]} blocks, {shape[1]} wide, 2 × {2048 if ON_GPU else 128}"
    given = {"input_ids": torch.randint(32_000, (2, 2048 if ON_GPU else 128))}
    how = dict(device="cuda", dtype="bfloat16", max_memory="12GB") if ON_GPU else {}
    rows: list[dict[str, Any]] = []

    def row(work: str, run: Callable[[], object]) -> None:
        drop_from_cache(folder)
        if ON_GPU:
            torch.cuda.reset_peak_memory_stats()
        peak = Peak()
        took, most = once(run), peak.stop()
        ratio = took / rows[0]["seconds"] if rows else 1.0
        rows.append(dict(what=what, work=work, seconds=took, ratio=ratio, gib=most, memory=0.0))
        print(f"  {work}: {took:.1f} s, {ratio:.2f} ×, {most:.2f} GiB", flush=True)

    def diagnosis(**settings: Any) -> None:
        settings = dict(depth=0, joined=0, ranks=0, example=False) | settings
        diagnose(load(str(folder), stream=True, **how), given, **settings)  # type: ignore[arg-type]

    try:
        size = write(folder, *shape)
        print(f"  {what}: {size / 1e9:.1f} GB in {len(list(folder.glob('*.safetensors')))} files", flush=True)
        row("reading the files once", lambda: read_once(folder))
        row("tokens, streamed", lambda: diagnosis(spectra=False))
        row("tokens and dominance, streamed", diagnosis)
    finally:
        shutil.rmtree(folder)
    return SimpleNamespace(rows=rows)


ROWS: dict[str, Callable[[], Any]] = {
    "8b": eight_billion,
    "8b-diagnosis": lambda: eight_billion(whole=False),
    "long": long,
    "vit": vit,
    "training": training,
    "small": small,
    "small-diagnosis": lambda: small(whole=False),
    "streamed": streamed,
}


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--rows", default="8b,long,vit" if ON_GPU else "small")
    options = parser.parse_args()
    where = HARDWARE if ON_GPU else f"{HARDWARE}, {torch.get_num_threads()} threads"
    print(f"{where}, torch {torch.__version__}")
    rows = []
    for name in options.rows.split(","):
        print(name)
        rows += ROWS[name]().rows
        save(options.json, {"where": where, "rows": rows})
        gc.collect()  # what one model held must not count in the next one's memory
        if ON_GPU:
            torch.cuda.empty_cache()
    table = Table("model", "work", "seconds", "× plain", "memory ×")
    for row in rows:
        table.add_row(row["what"], row["work"], f"{row['seconds']:.3f}", f"{row['ratio']:.2f}", f"{row['memory']:.2f}")
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
