"""What must hold of a trace on a GPU: nothing waits for it, outputs are the model's, numbers are those of float64.

Plain functions, so that a machine without pytest can run them too: python tests/trace/gpu_checks.py [CHECK ...]
"""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from support.gpu import run_named

from oversmooth import trace
from oversmooth.metrics.moments import product, scaled
from oversmooth.trace.reducers import sketch
from oversmooth.trace.reducers.sites import SiteMetrics


class Diagonals(trace.Reducer):
    """How far a_ii of any layer is from float64's."""

    attention = True

    def __init__(self):
        self.errors = []

    def attend(self, _call, _block, A):
        exact = A.to(torch.float64).dense().A.diagonal(dim1=-2, dim2=-1)
        self.errors.append((A.diagonal().double() - exact).abs().max())

    def finish(self, _facts):
        self.result = float(torch.stack(self.errors).max())


class Attention(trace.Reducer):
    """Asks for attention, and does nothing with it."""

    attention = True


def models():
    """(name, model, its arguments) by precision: a decoder with shared heads, a vision encoder."""
    from transformers import LlamaConfig, LlamaModel, ViTConfig, ViTModel

    torch.manual_seed(0)
    sizes = dict(num_hidden_layers=3, intermediate_size=512)
    llama = LlamaConfig(hidden_size=256, num_attention_heads=8, num_key_value_heads=2, vocab_size=999, **sizes)
    vit = ViTConfig(hidden_size=192, num_attention_heads=3, **sizes)
    ids, pixels = torch.randint(999, (3, 200)).cuda(), torch.randn(4, 3, 224, 224).cuda()
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        yield f"decoder, {dtype}", LlamaModel(llama).cuda().to(dtype).eval(), {"input_ids": ids}
        encoder = ViTModel(vit, add_pooling_layer=False).cuda().to(dtype).eval()
        yield f"encoder, {dtype}", encoder, {"pixel_values": pixels.to(dtype)}


def check_no_pass_waits_and_outputs_are_the_models():
    for name, model, given in models():
        plan = trace.plan(model, given, attention=True)
        reducers = [trace.TokenMetrics(plan, ranks=0, directions=True), Attention()]
        with torch.no_grad():
            plain = model(**given).last_hidden_state
            with trace.Trace(model, plan, reducers) as traced:
                traced.begin()
                torch.cuda.set_sync_debug_mode("error")
                try:
                    out = model(**given).last_hidden_state
                finally:
                    torch.cuda.set_sync_debug_mode("default")
        assert torch.equal(plain, out), name


def check_the_diagonal_of_attention_is_float64s():
    for name, model, given in models():
        plan = trace.plan(model, given, attention=True)
        trace.run(model, given, plan, [found := Diagonals()])
        assert found.result < 1e-6, (name, found.result)


def check_products_of_16_bits_have_float32s_digits():
    torch.manual_seed(0)
    x, v = torch.randn(2, 300, 200).cuda().bfloat16(), torch.randn(2, 200, 16).cuda()
    error = (product(x, v).double() - x.double() @ v.double()).abs() / (x.double().abs() @ v.double().abs())
    assert float(error.max()) < 2**-16, float(error.max())


def check_numbers_of_a_site_are_those_of_a_cpu():
    """The second table of tolerances, of arrays whose singular values fall as trained ones do."""
    torch.manual_seed(0)
    n, d = 1100, 1200
    left, right = (torch.linalg.qr(torch.randn(2, side, 400)).Q for side in (n, d))
    x = (left * (1 + torch.arange(400)) ** -0.7) @ right.mT + 0.002 * torch.randn(2, n, d) + 0.02 * torch.randn(1, 1, d)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        given = x.to(dtype)
        on_gpu, on_cpu = SiteMetrics(ranks=2), SiteMetrics(ranks=2, exact=True)
        for site in range(3):
            on_gpu.update(site, given.cuda())
        on_cpu.update(0, given.float())
        ours, theirs = on_gpu.finish()[2], on_cpu.finish()[0]
        near = {"log_hfc_lfc": 1e-4, "cos": 1e-4, "abs_cos": 1e-3, "stable_rank": 1e-3, "sigma_ratio": 1e-3}
        near["effective_rank"] = sketch.SKETCH_ERROR
        for name, tolerance in near.items():
            error = float(
                ((ours.tokens[name] - theirs.tokens[name]) / theirs.tokens[name].abs().clamp(min=1e-3)).abs().max()
            )
            print(f"    {dtype}, {name}: {error:.1e}")
            assert error < tolerance, (dtype, name, error)


def check_quick_products_leave_no_range():
    """Tokens near the end of float16's and bfloat16's range."""
    for dtype, size in ((torch.float16, 6e4), (torch.bfloat16, 1e38)):
        tokens = scaled((torch.randn(1, 50, 64).clamp(-1, 1) * size).to(dtype).cuda())
        assert bool(tokens.quick.isfinite().all())


CHECKS = [check for name, check in list(globals().items()) if name.startswith("check_")]

if __name__ == "__main__":
    run_named(CHECKS)
