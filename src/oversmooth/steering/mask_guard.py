"""Checks of a steered layer while it runs: attention hides no valid token from another, and only weights values.

A method that averages over tokens acts only where the recorded masks show every valid token to every other; where no
call was recorded it is refused. Compiled code and CUDA graphs cannot read masks: there such a method acts where an
eager forward pass showed all tokens before, or where attention is known to be bidirectional.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensor
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _disable_current_modes

from oversmooth.anatomy.calls import ATTENTION_MASK, KEY_PADDING_MASK
from oversmooth.anatomy.layer import AttentionLayer
from oversmooth.safety.errors import InputError
from oversmooth.steering.attention_calls import AttentionCalls, may_be_masked, values_unreadable
from oversmooth.steering.forward_state import ForwardStates
from oversmooth.trace.valid import valid_tokens

_TOLERANCE = 0.02  # for half precision, which models use inside where they return float32


class MaskGuard:
    """The checks of one layer.

    Args:
        index: of the layer in the stack.
        layer: its attention.
        states: of the steered model.
        averaging: the methods that average over tokens, in words; empty: none.
        weighting: the methods that rely on attention being a weighted mean of values, in words; empty: none, or
            attention is known to be one.
    """

    def __init__(
        self, index: int, layer: AttentionLayer, states: ForwardStates, averaging: str, weighting: str
    ) -> None:
        self.index, self.layer, self.states = index, layer, states
        self.averaging, self.weighting = averaging, weighting
        self.projections: dict[str, tuple[nn.Module, nn.Module]] = {}
        """The modules of its values and its output where methods rely on them, by name, with those that hold them."""
        self.shown: dict[bool, int] = {}  # most tokens of a call that hid nothing, by whether it had what may be a mask
        self.compared = False  # whether a forward pass was a weighted mean

    def hook(self, modules: dict[str, nn.Module]) -> list[Any]:
        """Register the hooks, and return their handles; every module by its name.

        No hook is put before others (prepend=True): code that torch 2.11 compiles finds hooks in the order they came.
        """
        attention = modules[self.layer.name]
        # What only holds projections is never called.
        runs = modules[self.layer.block] if type(attention).forward is nn.Module.forward else attention
        handles: list[Any] = [runs.register_forward_pre_hook(self._enter, with_kwargs=True)]
        handles.append(runs.register_forward_hook(self._leave, always_call=True))
        if self.weighting:
            value, output = self.layer.value_module[0], self.layer.output_module[0]
            self.projections = {n: (modules[n.rpartition(".")[0]], modules[n]) for n in (value, output)}
            handles.append(modules[value].register_forward_hook(self._record_values))
            handles.append(modules[output].register_forward_pre_hook(self._check_weighted_mean))
        return handles

    def check_projections(self) -> None:
        """Refuse projections that were replaced, as adapters do.

        Raises:
            InputError: a steered projection is another module now.
        """
        for name, (holder, module) in self.projections.items():
            now = holder._modules.get(name.rpartition(".")[2])
            if now is not module:
                raise InputError(
                    f"{name} was steered and is another module now ({type(now).__module__}.{type(now).__name__}), "
                    f"which {self.weighting} does not know; unsteer the model, merge the new module into the weights, "
                    "and steer again"
                )

    def _enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> None:
        state, kwargs = self.states.current(), kwargs or {}
        if self.averaging and state is not None and not state.has_mask:
            # The model around it may have another name for the mask.
            padding = kwargs.get("key_padding_mask") if isinstance(module, nn.MultiheadAttention) else None
            pairs = None if isinstance(module, nn.MultiheadAttention) else kwargs.get(ATTENTION_MASK)
            state.mask = valid_tokens(key_padding_mask=padding, pairs=pairs)
        if values_unreadable():
            if self.averaging:
                self._check_compiled(module, args, kwargs)
            return
        self.check_projections()
        if self.averaging or not self.compared:
            AttentionCalls(self, may_be_masked(module, args, kwargs)).__enter__()  # type: ignore[no-untyped-call]

    def _leave(self, *_: Any) -> None:
        if not values_unreadable() and (recorded := self._recorded()) is not None:
            recorded.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def _recorded(self) -> AttentionCalls | None:
        """The calls of the current run of this layer in this thread."""
        modes = reversed(_get_current_function_mode_stack())
        return next((mode for mode in modes if isinstance(mode, AttentionCalls) and mode.owner is self), None)

    def averaged_over(self, x: Tensor, tokens: torch.Size) -> Tensor | None:
        """``(batch, n)``: the valid tokens, over which methods average; None: all.

        Args:
            x: what is averaged.
            tokens: its ``(batch, n)``, or ``(n,)``.

        Raises:
            InputError: attention hid some of them from others, or no call was recorded.
        """
        state, n = self.states.current(), tokens[-1]
        mask = None if state is None else state.valid_for(tokens)
        if n < 2 or x.is_meta or isinstance(x, FakeTensor):  # which have shapes but no values
            return mask
        if values_unreadable():
            # Of longer inputs a window, where there may be one, hides more.
            if self.layer.causal is not False and (not self.shown or any(most < n for most in self.shown.values())):
                raise self._unknown("it is compiled")
            return mask
        recorded = self._recorded()
        if recorded is None or not recorded.calls or any(call.shape[-2:] != (n, n) for call in recorded.calls):
            raise self._unknown("no softmax over its tokens, and no scaled_dot_product_attention")
        settled = not recorded.masked and self.shown.get(False, 0) >= n
        known = None if state is None else state.unrestrictive_mask  # most models use one mask for all layers
        for call in recorded.calls:
            checked = call.mask is None or settled or (call.A is None and call.mask is known)
            if call.causal or not checked:
                with torch.no_grad(), _disable_current_modes():
                    self._check_pairs(call.pairs(tokens[:-1].numel(), x.device), mask)
                if state is not None:
                    state.unrestrictive_mask = call.mask
        self.shown[recorded.masked] = max(n, self.shown.get(recorded.masked, 0))
        return mask

    def _check_pairs(self, pairs: Tensor | None, mask: Tensor | None) -> None:
        """Refuse attention whose pairs ``(batch, n, n)`` hide valid tokens ``(batch, n)`` from each other."""
        if pairs is None:
            raise self._unknown("its inputs are not those of its values")
        hidden = ~pairs if mask is None else ~pairs & mask[..., None, :] & mask[..., :, None]
        if bool(hidden.any()):
            raise self._masked()

    def _check_compiled(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Compiled code runs with masks whose entries cannot be read."""
        if isinstance(module, nn.MultiheadAttention) and kwargs.get("attn_mask") is not None:
            raise self._masked()
        masked = may_be_masked(module, args, kwargs)
        if masked not in self.shown and (masked or self.layer.causal is not False):
            raise self._unknown("it is compiled")

    def _refused(self, hides: str, remedy: str) -> InputError:
        where = f"layer {self.index} ({self.layer.name})"
        return InputError(
            f"{self.averaging} averages over all tokens, and {where} hides {hides}; {remedy} or use NeuTRENO, "
            "ValueResidual or Laplacian"
        )

    def _masked(self) -> InputError:
        padding = f"padding that no {ATTENTION_MASK} or {KEY_PADDING_MASK} names"
        return self._refused(
            f"some of them from others, as a window does, or {padding}", "leave it out, name the mask,"
        )

    def _unknown(self, why: str) -> InputError:
        remedy = "run one batch through the model as it is, before it is compiled or wrapped,"
        return self._refused(f"an unknown set of tokens ({why})", remedy)

    def _record_values(self, _module: nn.Module, _args: Any, out: Tensor) -> None:
        if isinstance(out, Tensor) and not values_unreadable() and (recorded := self._recorded()) is not None:
            recorded.V = self.layer.split(out, -1)[1]

    def _check_weighted_mean(self, _module: nn.Module, args: tuple[Any, ...]) -> None:
        """Compare the input of the output projection with values weighted by attention, until that is settled."""
        if not args or values_unreadable() or self.compared:
            return
        recorded = self._recorded()
        if recorded is None or recorded.V is None:
            return
        V, U = recorded.V, args[0].unflatten(-1, (self.layer.heads, self.layer.head_dim))
        if V.shape[:-2] != U.shape[:-2] or U.is_meta or isinstance(U, FakeTensor):
            return
        with torch.no_grad(), _disable_current_modes():
            V, U = (x.reshape(-1, *x.shape[-3:]) for x in (V, U))
            found = [call.distance(V, U) for call in recorded.calls if call.A is None or not recorded.dropped]
        distances = [distance for distance in found if distance is not None]
        if distances and min(distances) > _TOLERANCE:
            raise InputError(
                f"{self.weighting} cannot act on layer {self.index} ({self.layer.name}): attention is not a weighted "
                f"mean of its values (relative error {min(distances):.2g}, limit {_TOLERANCE}); unsteer the model"
            )
        self.compared = bool(distances)
