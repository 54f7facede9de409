"""How fast a diagnosis is, and how much memory it takes: ratios from one run, each beside what it is compared with.

    python benchmarks/diagnose.py [--data DIR] [--json FILE] [--only tokens,full,bert,llama]

DIR (or the environment variable OVERSMOOTH_DATA) holds weights/deit-tiny and data/imagenet-val-1k; rows that want them
are left out without it, and so is WeightWatcher where that is not installed. Each row runs in a process
of its own, so that peaks of memory are its own. The BERT-base and Llama-shaped checkpoints are random, written for the
run and removed. Nothing here is asserted.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from measuring import Rows, arguments, once, seconds

IMAGES, BATCH = 64, 32


def peak() -> float:
    """MiB, the most this process ever held; ru_maxrss would include what its parent held when it began."""
    return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) / 1024


def deit(data: str, eager: bool = False) -> tuple[Any, list[dict[str, torch.Tensor]]]:
    from oversmooth.models import load

    loaded = load(f"{data}/weights/deit-tiny")
    if eager:
        loaded.model.set_attn_implementation("eager")
    inputs = loaded.inputs(Path(data) / "data" / "imagenet-val-1k", count=IMAGES, batch=BATCH)
    return loaded.model, [batch.inputs for batch in inputs]


# Workers: each runs alone in a process and gives back numbers.


@torch.no_grad()
def forward(data: str) -> dict[str, float]:
    model, batches = deit(data)
    return {"seconds": seconds(lambda: [model(**b) for b in batches]), "peak": peak()}


@torch.no_grad()
def observed(data: str, ranks: int) -> dict[str, float]:
    from oversmooth import trace

    model, batches = deit(data)
    plan = trace.plan(model, batches[0])

    def run() -> None:
        trace.run(model, batches, plan, [trace.TokenMetrics(plan, ranks)])

    # In turn with the plain pass, so that both meet the same machine.
    plain = lambda: [model(**b) for b in batches]  # noqa: E731
    seconds(plain), run()
    pairs = [(once(plain), once(run)) for _ in range(3)]
    ratio = statistics.median(b / a for a, b in pairs)
    return {"seconds": statistics.median(b for _, b in pairs), "ratio": ratio, "peak": peak()}


@torch.no_grad()
def obvious(data: str) -> dict[str, float]:
    """Eager attention, output_attentions, dense eigenvalues of every head's A, all pairs with those of H."""
    from oversmooth.anatomy import locate

    model, batches = deit(data, eager=True)
    layers = locate(model).layers
    start = time.perf_counter()
    spectral = 0.0
    smoothing = cases = 0
    for batch in batches:
        out = model(**batch, output_attentions=True, output_hidden_states=True)
        for x in out.hidden_states:
            mean = x.mean(1, keepdim=True)
            ((x - mean).norm(dim=(1, 2)) / (mean.norm(dim=(1, 2)) * x.shape[1] ** 0.5)).tolist()
        begin = time.perf_counter()
        for layer, A in zip(layers, out.attentions, strict=True):
            lam = torch.linalg.eigvals(layer.W_O @ layer.W_V)  # without the zeros, as the rule is
            t = torch.linalg.eigvals(A)
            order = (t - 1).abs().argsort(-1)
            t = t.gather(-1, order)
            mu = (1 + t[..., :, None] * lam[None, :, None, :]).abs().amax(-1)
            smoothing += int((mu[..., 0] > mu[..., 1:].amax(-1)).sum())
            cases += mu[..., 0].numel()
        spectral += time.perf_counter() - begin
    return {"seconds": time.perf_counter() - start, "spectral": spectral, "share": smoothing / cases, "peak": peak()}


@torch.no_grad()
def ours(data: str) -> dict[str, float]:
    """The whole diagnosis, and within it the time of dominance per head."""
    from oversmooth import diagnose
    from oversmooth.trace.reducers import heads

    model, batches = deit(data)
    spent = [0.0]
    every = heads.HeadSpectra

    def timed(of: Any, sign: int) -> Any:
        def run(*args: Any) -> None:
            begin = time.perf_counter()
            of(*args)
            spent[0] += sign * (time.perf_counter() - begin)

        return run

    # On a CPU all heads jointly are taken within the call.
    every.call, every._jointly = timed(every.call, 1), timed(every._jointly, -1)  # type: ignore[method-assign]
    diagnose(model, [{k: v[:2] for k, v in batches[0].items()}], depth=0)  # warm-up
    spent[0] = 0.0
    start = time.perf_counter()
    found = diagnose(model, batches)
    whole = time.perf_counter() - start
    return {"seconds": whole, "spectral": spent[0], "share": found.smoothing_share or 0.0, "peak": peak()}


def spectrum(path: str, joined: bool) -> dict[str, float]:
    from oversmooth.anatomy import locate
    from oversmooth.diagnosis.weights import diagnose_weights

    torch.linalg.eigvals(torch.eye(4))
    before = peak()
    start = time.perf_counter()
    diagnose_weights("benchmark", locate(path), joined=joined)
    return {"seconds": time.perf_counter() - start, "peak": peak() - before}


def weightwatcher(path: str) -> dict[str, float]:
    import transformers
    import weightwatcher as ww

    before = peak()
    model = transformers.BertModel.from_pretrained(path)
    start = time.perf_counter()
    ww.WeightWatcher(model=model).analyze()
    return {"seconds": time.perf_counter() - start, "peak": peak() - before}


def read_once(path: str) -> dict[str, float]:
    start = time.perf_counter()
    for file in sorted(Path(path).glob("*.safetensors")):
        with file.open("rb", buffering=0) as stream:
            while stream.read(1 << 24):
                pass
    return {"seconds": time.perf_counter() - start}


WORKERS = {f.__name__: f for f in (forward, observed, obvious, ours, spectrum, weightwatcher, read_once)}


def worker(name: str, *args: Any) -> dict[str, float]:
    command = [sys.executable, __file__, "--worker", json.dumps([name, *args])]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{name} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])  # type: ignore[no-any-return]


# Checkpoints of the right shape, with random weights.


def write_bert(folder: Path) -> None:
    from safetensors.torch import save_file

    g = torch.Generator().manual_seed(0)
    weights = {"embeddings.word_embeddings.weight": torch.randn(30522, 768, generator=g) * 0.02}
    for i in range(12):
        for name, (rows, columns) in {
            "attention.self.query": (768, 768),
            "attention.self.key": (768, 768),
            "attention.self.value": (768, 768),
            "attention.output.dense": (768, 768),
            "intermediate.dense": (3072, 768),
            "output.dense": (768, 3072),
        }.items():
            weights[f"encoder.layer.{i}.{name}.weight"] = torch.randn(rows, columns, generator=g) * 0.02
            weights[f"encoder.layer.{i}.{name}.bias"] = torch.zeros(rows)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(
        json.dumps(
            {"model_type": "bert", "architectures": ["BertModel"], "num_attention_heads": 12, "num_hidden_layers": 12}
        )
    )


def write_llama(folder: Path, layers: int = 26, width: int = 2560) -> tuple[float, float]:
    """About 5 GB of bf16 in as many shards as layers, 32 heads of 80 over 8 value heads; its size in bytes, and that of
    what spectra need.
    """
    from safetensors.torch import save_file

    g = torch.Generator().manual_seed(0)
    noise = torch.randn(1 << 22, generator=g).bfloat16()

    def random(rows: int, columns: int) -> torch.Tensor:
        return noise.repeat(-(-rows * columns // len(noise)))[: rows * columns].view(rows, columns) * 0.02

    places, total, needed = {}, 0.0, 0.0
    for i in range(layers):
        p = f"model.layers.{i}."
        weights = {
            p + "self_attn.q_proj.weight": random(width, width),
            p + "self_attn.k_proj.weight": random(width // 4, width),
            p + "self_attn.v_proj.weight": torch.randn(width // 4, width, generator=g).bfloat16() * 0.02,
            p + "self_attn.o_proj.weight": torch.randn(width, width, generator=g).bfloat16() * 0.02,
            p + "mlp.gate_proj.weight": random(4 * width, width),
            p + "mlp.up_proj.weight": random(4 * width, width),
            p + "mlp.down_proj.weight": random(width, 4 * width),
            p + "input_layernorm.weight": torch.ones(width).bfloat16(),
            p + "post_attention_layernorm.weight": torch.ones(width).bfloat16(),
        }
        name = f"model-{i + 1:05d}-of-{layers:05d}.safetensors"
        save_file({k: v.contiguous() for k, v in weights.items()}, folder / name, {"format": "pt"})
        places |= dict.fromkeys(weights, name)
        total += (folder / name).stat().st_size
        needed += sum(w.nbytes for key, w in weights.items() if key.split(".")[-2] in ("v_proj", "o_proj"))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    (folder / "config.json").write_text(
        json.dumps(
            {"model_type": "llama", "num_attention_heads": 32, "num_key_value_heads": 8, "num_hidden_layers": layers}
        )
    )
    return total, needed


ROWS = Rows()
row = ROWS.add


def tokens_rows(data: str) -> None:
    plain = worker("forward", data)
    for ranks, reach in ((0, "at most 1.25 ×, memory 1.1 ×"), (4, "at most 1.5 ×, memory 1.1 ×")):
        seen = worker("observed", data, ranks)
        extra = "without ranks" if ranks == 0 else f"with exact ranks of {ranks} inputs"
        row(
            f"token metrics after every sub-layer, DeiT-Tiny, {IMAGES} images, {extra}",
            "the same forward pass",
            reach,
            f"{seen['ratio']:.2f} ×, memory {seen['peak'] / plain['peak']:.2f} ×",
            f"{seen['seconds']:.2f} s; peak {seen['peak']:.0f} against {plain['peak']:.0f} MiB",
        )


def full_row(data: str) -> None:
    slow, fast = worker("obvious", data), worker("ours", data)
    row(
        f"full diagnosis, DeiT-Tiny, {IMAGES} images",
        "eager attention, output_attentions, dense eigvals per head",
        "3 × in all, 10 × for the spectral part",
        f"{slow['seconds'] / fast['seconds']:.1f} ×, spectral part {slow['spectral'] / fast['spectral']:.1f} ×",
        f"{fast['seconds']:.1f} against {slow['seconds']:.1f} s; spectral {fast['spectral']:.1f} against "
        f"{slow['spectral']:.1f} s; smoothing share {fast['share']:.3f} and {slow['share']:.3f}; ours also has ranks "
        "of 4 inputs, all heads together for 1, and the extrapolation",
    )


def bert_row() -> None:
    with tempfile.TemporaryDirectory() as name:
        write_bert(Path(name))
        joined, heads = worker("spectrum", name, True), worker("spectrum", name, False)
        ours = f"{joined['seconds']:.2f} and {heads['seconds']:.2f} s, {joined['peak']:.0f} and {heads['peak']:.0f} MiB"
        try:
            theirs = worker("weightwatcher", name)
        except SystemExit as error:
            why = str(error).splitlines()[-1][:100]
            row("oversmooth spectrum, BERT-base size", "WeightWatcher analyze()", "", "not run", f"{ours}; {why}")
            return
    row(
        "oversmooth spectrum, BERT-base size",
        "WeightWatcher analyze() on the same weights",
        "8 × joined, 50 × heads only; half the memory",
        f"{theirs['seconds'] / joined['seconds']:.1f} × joined, "
        f"{theirs['seconds'] / heads['seconds']:.0f} × heads only",
        f"{ours} beyond imports, against {theirs['seconds']:.1f} s, {theirs['peak']:.0f} MiB",
    )


def llama_row() -> None:
    with tempfile.TemporaryDirectory() as name:
        size, needed = write_llama(Path(name))
        reads, scans = [], []
        for _ in range(3):  # in turn, so that both meet the same machine
            _drop_cache(Path(name))
            reads.append(read_once(name)["seconds"])
            _drop_cache(Path(name))
            scans.append(worker("spectrum", name, False))
    read, scan = statistics.median(reads), statistics.median(one["seconds"] for one in scans)
    row(
        f"oversmooth spectrum --heads-only, Llama-shaped, {size / 1e9:.1f} GB in shards",
        "reading the files once",
        "within 1.3 ×, under 1 GiB over the import",
        f"{scan / read:.2f} ×, {max(one['peak'] for one in scans):.0f} MiB",
        f"medians of 3: {scan:.1f} s against {read:.1f} s; it reads {needed / size:.0%} of the files",
    )


def _drop_cache(folder: Path) -> None:
    """So that both readers find the files on the disk, not in memory."""
    for file in folder.glob("*.safetensors"):
        handle = os.open(file, os.O_RDONLY)
        os.fsync(handle)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(handle)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--data", default=os.environ.get("OVERSMOOTH_DATA"))
    parser.add_argument("--only", default="tokens,full,bert,llama")
    parser.add_argument("--worker")
    options = parser.parse_args()
    if options.worker:
        name, *args = json.loads(options.worker)
        print(json.dumps(WORKERS[name](*args)))
        return
    cores = len(os.sched_getaffinity(0))
    where = f"{platform.machine()}, {cores} CPU cores, torch {torch.__version__}"
    print(where)
    wanted = options.only.split(",")
    if options.data is None:
        print("rows on DeiT-Tiny are left out: give --data or OVERSMOOTH_DATA")
        wanted = [w for w in wanted if w not in ("tokens", "full")]
    for name, work in {
        "tokens": lambda: tokens_rows(options.data),
        "full": lambda: full_row(options.data),
        "bert": bert_row,
        "llama": llama_row,
    }.items():
        if name in wanted:
            work()
    ROWS.end(where, options.json)


if __name__ == "__main__":
    main()
