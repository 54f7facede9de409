"""Table 1 under every rule that counts cases, for a trained ViT; the three notions, and prediction beside measurement.

What Dovonon et al. call a case was not published. Five readings:

* heads: one maximum over all pairs of eigenvalues of A and of a head's H, per image, layer and head;
* joined: all heads of a layer together (the multi-head theorem), per image and layer;
* real: as heads, with real parts alone; folded: as heads, with the norm before attention folded into H;
* unnormalised: as heads, with A computed from tokens that skipped that norm, as the authors' early code has it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from oversmooth.diagnosis.diagnose import diagnose
from oversmooth.diagnosis.result import Diagnosis
from oversmooth.results.findings import agreement
from oversmooth.steering import fold, steering_of
from oversmooth.theory import SoftmaxAttention, dominance
from oversmooth_papers.tables.table1 import WORDS, shares
from oversmooth_papers.tasks.images.build import augment_of
from oversmooth_papers.tasks.images.recipe import Recipe
from oversmooth_papers.tasks.images.vit import Attention, ViT

NOTIONS = ("hfc_lfc", "cos", "effective_rank")
_BATCH = 8


def measure(
    model: ViT,
    recipe: Recipe,
    images: Tensor,
    *,
    joined: int,
    progress: Callable[[int, int, str], None] = lambda *_: None,
) -> dict[str, Any]:
    """Counts by rule, tokens by depth, and where prediction and measurement agree.

    images: ``(n, c, h, w)`` bytes. joined: how many of them are counted with all heads together, which takes long.
    """
    if steering_of(model) is not None:
        fold(model)  # rules on real parts know plain weights alone
    device = next(model.parameters()).device
    x = augment_of(recipe).to(device).normalise(images.to(device).float())
    batches, few = list(x.split(_BATCH)), list(x[:joined].split(_BATCH))
    settings: dict[str, dict[str, Any]] = {
        "heads": {"ranks": joined},
        "joined": {"joined": joined},
        "real": {"rule": "real"},
        "folded": {"variant": "folded"},
    }
    diagnoses, counts = dict[str, Diagnosis](), dict[str, Sequence[int]]()
    for number, (rule, own) in enumerate(settings.items()):
        progress(number, len(settings) + 1, rule)
        inputs = few if rule == "joined" else batches
        diagnoses[rule] = diagnose(model, inputs, **{"ranks": 0, "depth": 0, "joined": 0, **own})
        counts[rule] = shares(diagnoses[rule], joined=rule == "joined")
    progress(len(settings), len(settings) + 1, "unnormalised")
    counts["unnormalised"] = unnormalised(model, batches)
    agree, apart = agreement(diagnoses["joined"].layers[1:])
    curves = {name: diagnoses["heads"].curve(name) for name in NOTIONS}
    return {
        "images": len(images),
        "joined_images": joined,
        "rules": {rule: dict(zip(WORDS, own, strict=True)) for rule, own in counts.items()},
        "notions": {name: [v if v is None else float(f"{v:.5g}") for v in curve] for name, curve in curves.items()},
        "negative_share": diagnoses["heads"].negative_share,
        "prediction": {"agree": agree, "apart": list(apart)},
    }


@torch.no_grad()
def unnormalised(model: ViT, batches: Sequence[Tensor]) -> tuple[int, ...]:
    """Cases by verdict, attention computed from what enters a block and not from its norm; the model is as it is."""
    verdicts: list[str] = []

    def entering(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        attention: Attention = module.attn  # type: ignore[assignment]
        heads, width = attention.num_heads, attention.proj.in_features
        q, k, _ = attention.qkv(args[0]).unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)
        W_V = attention.qkv.weight[2 * width :].unflatten(0, (heads, -1)).mT
        W_O = attention.proj.weight.mT.unflatten(0, (heads, -1))
        counted = dominance(SoftmaxAttention(q, k, scale=q.shape[-1] ** -0.5), W_V, W_O, per_head=True)
        verdicts.extend(word for row in counted.verdict for word in row)

    handles = [block.register_forward_pre_hook(entering) for block in model.blocks]
    try:
        for batch in batches:
            model(batch)
    finally:
        for handle in handles:
            handle.remove()
    return tuple(verdicts.count(word) for word in WORDS)
