"""torch's own attention, made to give the weights of every head."""

import inspect
from collections.abc import Callable
from typing import Any

from torch import Tensor


def with_weights_of_heads(attend: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
    """`F.multi_head_attention_forward` as called, but with A of every head, ``(batch, heads, n, n)``.

    Callers give `need_weights` by name or by its place among the arguments.
    """
    call = inspect.signature(attend).bind(*args, **kwargs)
    call.arguments.update(need_weights=True, average_attn_weights=False)
    return attend(*call.args, **call.kwargs)
