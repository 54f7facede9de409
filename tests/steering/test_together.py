"""Steering beside what else people do at once: compiling while checkpointing, and generating with a cache."""

import warnings

import pytest
import torch
from support.families import FAMILIES, GQA, randomise, run, tensors
from support.nightly import nightly, some

from oversmooth import steer
from oversmooth.steering import Laplacian, NeuTRENO, Spectral, ValueResidual


@nightly
@pytest.mark.parametrize("method", some([Spectral("sharpen", start="cold"), NeuTRENO(0.4)], 2), ids=str)
def test_compiled_and_checkpointed_at_once(method):
    torch._dynamo.reset()
    model, given = FAMILIES["ViT"].make(), FAMILIES["ViT"].inputs()
    steer(model, method)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    model.train()

    def gradients(of):
        model.zero_grad()
        tensors(run(of, given))[0].square().sum().backward()
        return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}

    plain = gradients(model)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # dynamo's own, about what it leaves uncompiled
        both = gradients(torch.compile(model, backend="aot_eager"))
    assert plain.keys() <= both.keys()
    for name, gradient in both.items():  # one graph gives zeros where nothing depends on a parameter
        torch.testing.assert_close(gradient, plain.get(name, torch.zeros_like(gradient)), msg=name)


@pytest.mark.parametrize(
    "method", [NeuTRENO(0.4), ValueResidual(0.5), Laplacian(0.3), Spectral("sharpen")], ids=lambda m: type(m).__name__
)
def test_generating_with_a_cache_gives_what_generating_without_does(method):
    import transformers

    torch.manual_seed(0)
    model = randomise(transformers.LlamaForCausalLM(transformers.LlamaConfig(**GQA))).eval()
    steer(model, method)
    ids = torch.randint(5, 60, (2, 6))
    settings = dict(max_new_tokens=8, do_sample=False, pad_token_id=0, attention_mask=torch.ones_like(ids))
    with torch.no_grad():
        assert torch.equal(
            model.generate(ids, use_cache=True, **settings), model.generate(ids, use_cache=False, **settings)
        )
