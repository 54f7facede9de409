"""A masked language model with a linear answer on the mean of its tokens."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from oversmooth_papers.tasks.language.model import LanguageModel
from oversmooth_papers.tasks.language.settings import Shape


class GlueModel(nn.Module):
    """``(b, choices, n), (b, choices) -> (b, outputs)``; of several choices ``(b, choices)``.

    The mean of all tokens that are no padding answers: pretraining has no task for a first token to learn.
    """

    def __init__(self, shape: Shape, outputs: int) -> None:
        super().__init__()
        self.encoder = LanguageModel(shape)
        self.dropout = nn.Dropout(shape.dropout)
        self.head = nn.Linear(shape.width, outputs)
        nn.init.normal_(self.head.weight, std=0.02)
        nn.init.zeros_(self.head.bias)

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        """ids ``(b, choices, n)``; lengths ``(b, choices)``: tokens that are no padding."""
        rows, counts = ids.flatten(0, 1), lengths.flatten()
        counted = torch.arange(rows.shape[1], device=rows.device) < counts[:, None]
        # Through its call, not past it: what steers it prepares all weights as a pass begins.
        x = self.encoder(rows, seen=self.encoder.seen(counted), features=True)
        weight = counted.to(x.dtype)[..., None]
        mean = (x * weight).sum(1) / weight.sum(1).clamp(min=1)
        answers: Tensor = self.head(self.dropout(mean))
        return answers.view(ids.shape[:2]) if ids.shape[1] > 1 else answers
