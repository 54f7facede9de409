"""Which tokens are valid: the one reader of masks for that, whatever their form and whoever receives them.

A mask may be an argument of the model, known by its name, or what attention itself used. Libraries write it per token
or per pair of tokens, as truth values, as zeros and ones, or as numbers that are added to scores. A pair is *allowed*
where its query may attend to its key. A token is *valid* where a valid query may attend to it; `ValidTokens` leaves
special tokens out as well, and calls *visible* all that attention sees.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from oversmooth.anatomy.calls import ATTENTION_MASK, DECODER_ATTENTION_MASK, KEY_PADDING_MASK
from oversmooth.safety import arguments
from oversmooth.safety.errors import InputError
from oversmooth.theory.operators import AttentionOperator, DenseAttention, SoftmaxAttention
from oversmooth.trace.layout import around

MASKS = (ATTENTION_MASK, KEY_PADDING_MASK)
"""Names of arguments that say what is padding."""
_DECODER_KEY_PADDING_MASK = "tgt_key_padding_mask"  # torch's decoder: True where a token is padding
# Scores this low, and this far below the largest of their row, are masked by hand: no model computes such. Which pairs
# receive any weight is another question, for which `steering.attention_calls` has a bound that models' scores do reach.
_MASKED, _BELOW = -5e3, 1e3


class UnknownPaddingError(InputError):
    """The padding mask is that of other tokens."""


def valid_tokens(attention_mask: Any = None, key_padding_mask: Any = None, pairs: Any = None) -> Tensor | None:
    """``(batch, n)``: the valid tokens by the first mask with an answer; None where none has one.

    Nothing here waits for the device, so compiled code and CUDA graphs can run it.

    Args:
        attention_mask: ``(batch, n)``: not 0 where a token is valid, or what is added to its scores; or as ``pairs``.
        key_padding_mask: ``(batch, n)`` or ``(n,)``: True, or −inf, where a token is padding.
        pairs: ``(batch, heads or 1, queries or 1, n)``: who may see whom, or what is added to scores.
    """
    if isinstance(attention_mask, Tensor) and attention_mask.ndim == 2:
        if not attention_mask.is_floating_point():
            return attention_mask != 0
        # 1 for valid tokens and 0 for others, or added to scores: 0 for valid tokens and negative for others.
        added = (attention_mask < 0).any() | (attention_mask == 0).all()
        return torch.where(added, attention_mask >= 0, attention_mask != 0)
    if isinstance(key_padding_mask, Tensor) and key_padding_mask.ndim in (1, 2):
        return (key_padding_mask[None] if key_padding_mask.ndim == 1 else key_padding_mask) == 0
    for mask in (attention_mask, pairs):
        if isinstance(mask, Tensor) and mask.ndim == 4:
            allowed = allowed_pairs(mask, alone=True) if mask.is_floating_point() else mask != 0
            if mask.shape[-2] not in (1, mask.shape[-1]):  # queries that follow on a cache
                return allowed.any((1, 2))
            return valid_of_pairs(allowed)
    return None


def allowed_pairs(scores: Tensor, *, alone: bool = False) -> Tensor:
    """The pairs that a mask added to the scores ``(..., n, n)`` allows; alone: given the mask itself, in which a row
    that is masked whole is far below the others.

    Libraries mask with −inf, with the most negative number of some type, or with −1e9 or −1e4 by hand. A row that is
    masked whole stays masked in the first two ways.
    """
    low = torch.finfo(scores.dtype).min / 2
    top = scores.amax((-2, -1) if alone else -1, keepdim=True)
    return (scores > low) & ((scores > _MASKED) | (scores >= top - _BELOW))


def valid_of_pairs(allowed: Tensor, argument_mask: Tensor | None = None) -> Tensor:
    """``(b, n)``: the valid tokens, those that a valid query may see.

    Queries that see nothing do not vote, nor do those whose row was masked whole and unmasked again, as some kernels
    need: they see everything, and nobody whose row is as the mask meant it sees them. argument_mask: ``(b, n)``, the
    tokens that are no padding by an argument of the model, decides what rows leave open; without it such tokens are
    valid at the end of a text.
    """
    allowed = allowed.any(-3)  # seen in any head
    given = None
    if argument_mask is not None and argument_mask.shape[-1] == allowed.shape[-1]:
        given = argument_mask.to(allowed.device) != 0
    sees_all = allowed.all(-1)
    votes = allowed.any(-1) & ~sees_all
    seen = (allowed & votes[..., None]).any(-2)
    strangers = sees_all & ~seen
    # The last token of a causal text sees all and no other sees it; so does padding whose rows were unmasked.
    valid = seen | (strangers & (strangers.flip(-1).cummin(-1).values.flip(-1) if given is None else given))
    valid = valid | (valid & sees_all).any(-1, keepdim=True)  # what a valid token sees is valid
    unrestricted = ~votes.any(-1, keepdim=True)  # nobody's view is narrowed: all who see anything are valid
    valid = torch.where(unrestricted, sees_all, valid)
    if given is None:
        return valid
    # Padding that sees itself or other padding, and that no token sees, is not valid.
    noticed = (allowed & given[..., None] & ~given[..., None, :]).any((-2, -1))
    return torch.where((noticed | ~(valid & given).any(-1))[..., None], valid, valid & given)


@dataclass(frozen=True)
class Pairs:
    """What a mask of pairs does."""

    allowed: Tensor | None = None
    """``(b, h, n, n)`` or broadcastable: who may see whom; None: all see all, or all that came before."""
    valid: Tensor | None = None  # (b, n); None: all
    causal: bool = False
    plain: bool = True  # whether hiding padding, and later tokens where it is causal, is all that it does
    added: Tensor | None = None  # as allowed: what is added to the scores of the pairs that are allowed
    several: bool = False  # whether in some input no token sees all valid tokens, so that it may hold several texts

    @property
    def bias(self) -> Tensor | None:
        """As ``allowed``: what is added to scores, where the mask is not plain."""
        if self.plain or self.allowed is None:
            return None
        bias = torch.zeros((), device=self.allowed.device) if self.added is None else self.added.float()
        bias = torch.where(self.allowed, bias, -torch.inf)
        # The query of a token that is not valid may look anywhere.
        return bias if self.valid is None else bias.masked_fill(~self.valid[:, None, :, None], 0.0)

    def segments(self) -> Tensor | None:
        """``(b, n)``: the number of the text that each token is part of, −1 for padding; None: one text an input."""
        if not self.several or self.allowed is None:
            return None
        allowed = self.allowed.any(1)
        valid = torch.ones_like(allowed[:, 0]) if self.valid is None else self.valid
        labels = torch.stack([_connected(one & v[:, None] & v) for one, v in zip(allowed, valid, strict=True)])
        first = torch.where(valid, labels, allowed.shape[-1]).amin(-1, keepdim=True)
        return torch.where(valid, labels, -1) if bool((valid & (labels != first)).any()) else None


def _connected(linked: Tensor) -> Tensor:
    """``(n,)``: for each token the first of those that it is connected with, ``(n, n)``."""
    n = len(linked)
    linked = linked | linked.mT | torch.eye(n, dtype=torch.bool, device=linked.device)
    labels = torch.arange(n, device=linked.device)
    while True:
        reached = torch.where(linked, labels, n).amin(-1)
        reached = reached[reached]
        if torch.equal(reached, labels):
            return labels
        labels = reached


MasksRead = dict[Any, tuple[Any, Pairs]]
"""Masks that were read, with what they do."""


def read_once(mask: Tensor, inputs: int, argument_mask: Tensor | None, known: MasksRead) -> Pairs:
    """What a mask does, as it is used or added to scores, read once however many layers receive it."""
    key = (id(mask), None if mask.is_inference() else mask._version, inputs, id(argument_mask))
    if key not in known:
        if len(known) > 1:  # some models have one mask for windows and one without
            known.clear()
        pairs = mask.reshape((1,) * (4 - mask.ndim) + tuple(mask.shape))
        added = pairs if mask.is_floating_point() else None
        allowed = pairs if added is None else allowed_pairs(added, alone=True)
        # Masks are held, so that their ids stay theirs.
        known[key] = ((mask, argument_mask), read_pairs(allowed, inputs, argument_mask, added))
    return known[key][1]


def read_pairs(allowed: Tensor, inputs: int, argument_mask: Tensor | None, added: Tensor | None = None) -> Pairs:
    """What a mask does; the device is waited for once.

    allowed: ``(b, h, n, n)`` or broadcastable: who may see whom; b is ``inputs``. argument_mask: of `valid_of_pairs`.
    added: the mask, where it is added to scores.
    """
    n = allowed.shape[-1]
    allowed = allowed.expand(inputs, -1, n, n)
    valid = valid_of_pairs(allowed, argument_mask)
    valid = valid | ~valid.any(-1).all()  # nobody sees anybody: no mask that can be read
    queries, keys = valid[:, None, :, None], valid[:, None, None, :]
    lower = keys.expand(-1, 1, n, n).tril()
    sees_all = (allowed.any(1) | ~valid[:, None]).all(-1) & valid
    nothing = torch.zeros((), dtype=torch.bool, device=allowed.device)
    every, all_valid, of_padding, of_later, adds, sees_later, several = torch.stack(
        [
            allowed.all(),
            valid.all(),
            ~((allowed != keys) & queries).any(),
            ~((allowed != lower) & queries).any(),
            nothing if added is None else (torch.where(allowed & queries, added, 0.0) != 0).any(),
            (allowed & queries).triu(1).any(),
            ~sees_all.any(-1).all(),
        ]
    ).tolist()
    if every and not adds:
        return Pairs()
    plain = not adds and (of_padding or of_later)
    causal = not (of_padding if plain else sees_later)
    return Pairs(allowed, None if all_valid else valid, causal, plain, added if adds else None, several)


@dataclass
class ValidTokens:
    """The valid tokens of one batch, and how to take packed texts apart so that each is measured by itself."""

    mask: Tensor | None  # (b, n); None: all
    segments: Tensor | None = None
    """``(b, n)``: the number of the text that each token is part of, −1 for padding; None: no texts are packed."""
    visible: Tensor | None = None  # (b, n): all that attention sees, special or left out as well; None: all
    special: Tensor | None = None  # (b, n): those that the mask leaves out as special; None: none

    @classmethod
    def of(
        cls,
        pairs: Pairs | None,
        argument_mask: Tensor | None = None,
        special: Tensor | None = None,
        left_out: Tensor | None = None,
        *,
        packed: bool = True,
    ) -> ValidTokens:
        """Those that attention's mask shows or, where it shows none, that arguments name; without special ones, unless
        an input has no others, and without those left out in any case. packed: an input may hold several texts.
        """
        visible = mask = argument_mask if pairs is None else pairs.valid
        segments = pairs.segments() if pairs is not None and packed else None
        some_masked = special is None and left_out is None and pairs is not None  # as was seen when it was read
        if special is not None:
            every = torch.ones_like(special, dtype=torch.bool) if mask is None else mask
            mask = every & ~special.to(every.device)
            # An input of special tokens alone is measured with them, rather than not at all.
            mask = mask | (~mask.any(-1, keepdim=True) & every)
            special = every & ~mask
            special = special if bool(special.any()) else None
        if left_out is not None:
            mask = ~left_out if mask is None else mask & ~left_out.to(mask.device)
        return cls(mask if mask is None or some_masked or not bool(mask.all()) else None, segments, visible, special)

    @cached_property
    def _texts(self) -> tuple[Tensor, Tensor, Tensor] | None:
        """The row of the batch that each text is in ``(texts,)``, the positions of its tokens there, padded with 0
        ``(texts, longest)``, and which of those are not padding.
        """
        if self.segments is None:
            return None
        texts = [(row, label) for row, labels in enumerate(self.segments) for label in labels.unique() if label >= 0]
        places = [(self.segments[row] == label).nonzero()[:, 0] for row, label in texts]
        rows = torch.tensor([row for row, _ in texts], device=self.segments.device)
        inside = pad_sequence([torch.ones_like(p, dtype=torch.bool) for p in places], batch_first=True)
        return rows, pad_sequence(places, batch_first=True), inside

    @property
    def valid(self) -> Tensor | None:
        """``(inputs, n)``: the mask of what `apart` returns; None: all."""
        return self.mask_apart(self.mask)

    def mask_apart(self, mask: Tensor | None) -> Tensor | None:
        """``(inputs, n)``: a mask ``(b, n)`` of what `apart` returns; None: all."""
        if self._texts is None:
            return mask
        rows, positions, inside = self._texts
        return inside if mask is None else inside & mask.to(inside.device)[rows[:, None], positions]

    def apart(self, x: Tensor) -> Tensor:
        """Tokens ``(b, n, d)`` as ``(inputs, n, d)``: as they are, or one row per text."""
        if self._texts is None:
            return x
        rows, positions, _ = (part.to(x.device) for part in self._texts)
        return x[rows[:, None], positions]

    def cross(self, allowed: Tensor | None) -> bool:
        """Whether some token may see one of another text, ``(b, h, n, n)`` or broadcastable; None: all see all."""
        if self.segments is None:
            return False
        one, other = self.segments[:, :, None], self.segments[:, None]
        others = (one != other) & (one >= 0) & (other >= 0)
        return bool((others if allowed is None else others & allowed.any(1).to(others.device)).any())

    def operators(self, A: AttentionOperator) -> AttentionOperator:
        """Attention of each text by itself."""
        if self._texts is None:
            return A
        rows, positions, inside = (part.to(A.device) for part in self._texts)

        def pairs(M: Tensor) -> Tensor:  # (b, h, n, n)
            return M[rows[:, None, None, None], torch.arange(M.shape[1], device=A.device)[:, None, None],
                     positions[:, None, :, None], positions[:, None, None, :]]  # fmt: skip

        if not isinstance(A, SoftmaxAttention):
            return DenseAttention(pairs(A.dense().A), mask=inside)
        q, k = (self.apart(x.transpose(1, 2)).transpose(1, 2) for x in (A.q, A.k))
        # Padding of a text sees itself, so that its row is not empty.
        bias = None if A.bias is None else pairs(A.bias).masked_fill(~inside[:, None, :, None], 0.0)
        apart = SoftmaxAttention(q, k, scale=A.scale, mask=inside, bias=bias, causal=A.causal)
        apart.lse = None if A.lse is None else self.apart(A.lse.mT).mT
        return apart


@dataclass(frozen=True)
class LeftOut:
    """Tokens that the caller leaves out of token metrics, by position in the residual stream: registers, [CLS], …"""

    positions: tuple[int, ...]  # negative ones count from the end
    length: int | None = None  # of the mask they come from, which fits streams of that many tokens only

    @classmethod
    def of(cls, special: Any) -> LeftOut | None:
        """Of positions, or of booleans ``(n,)`` that are True for what is left out; None or no tokens: None."""
        if special is None:
            return None
        special = list(special) if isinstance(special, range) else special
        given = arguments.tensor(special, "special", "token positions, or a boolean mask (n,)", least=1, floating=False)
        if not given.numel():
            return None
        if given.ndim != 1 or given.is_floating_point():
            raise InputError(
                f"special has shape {tuple(given.shape)} and dtype {given.dtype}; give token positions, such as "
                "[0, 1, -1], or a boolean mask (n,)"
            )
        if given.dtype == torch.bool:
            return cls(tuple(given.nonzero()[:, 0].tolist()), len(given)) if bool(given.any()) else None
        return cls(tuple(dict.fromkeys(given.tolist())))

    def mask(self, x: Tensor) -> Tensor:
        """``(b, n)``: True for the tokens of ``x`` ``(b, n, d)`` that are left out."""
        n = x.shape[1]
        if self.length not in (None, n):
            raise InputError(f"special is a mask of {self.length} tokens, but blocks receive {n}; give positions")
        if outside := [place for place in self.positions if not -n <= place < n]:
            raise InputError(f"special names token {outside[0]}, but blocks receive {n} tokens; give {-n} to {n - 1}")
        left_out = torch.zeros(n, dtype=torch.bool, device=x.device)
        left_out[list(self.positions)] = True
        if n - int(left_out.sum()) < 2:
            raise InputError(f"special leaves fewer than two of {n} tokens; leave out fewer")
        return left_out.expand(x.shape[:2])


class Padding:
    """Finds the mask among the arguments of one module; that of its encoder is not that of a decoder, if it
    ``decodes``.
    """

    def __init__(self, module: nn.Module, decodes: bool) -> None:
        try:
            parameters = inspect.signature(module.forward).parameters
        except (TypeError, ValueError):
            parameters = {}  # type: ignore[assignment]
        self.names = list(parameters)
        """Of all that the module takes, in order."""
        pairs = ((DECODER_ATTENTION_MASK, ATTENTION_MASK), (_DECODER_KEY_PADDING_MASK, KEY_PADDING_MASK))
        # Where a module takes the masks of both, each stack has its own. Wrappers take whatever comes.
        both = bool(getattr(getattr(module, "config", None), "is_encoder_decoder", False))
        both = both and any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values())
        self.attention_mask, self.key_padding_mask = (
            own if decodes and (own in self.names or both) else other for own, other in pairs
        )

    def of(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensor | None:
        """``(batch, n)``: the valid tokens among these arguments; None where no mask says."""
        passed = {**dict(zip(self.names, args, strict=False)), **kwargs}
        return valid_tokens(passed.get(self.attention_mask), passed.get(self.key_padding_mask), passed.get("attn_mask"))


class PassArguments:
    """What the modules around a model's blocks are called with in a pass: which tokens are valid, how arrays lie."""

    def __init__(self, model: nn.Module, names: Sequence[str]) -> None:
        self.modules = around(model, names)  # the outermost first
        self._readers = [Padding(module, decodes(names)) for module in self.modules]
        self.new = False  # whether no block has run since
        self.shapes: list[torch.Size] = []  # of the arrays that the outermost was called with
        # The masks of the outermost and the innermost module that has one.
        self._outer: Tensor | None = None
        self._inner: Tensor | None = None
        # Whether the innermost was called with a mask, and of what size are those that it knows by other names.
        self._reaches, self._sizes = False, set[int]()

    def receive(self, index: int, args: Any, kwargs: Any, *, begins: bool) -> None:
        """A module is called, with which a pass may begin; compiled code may run this."""
        if begins:
            self.forget()
            if not torch.compiler.is_compiling():
                self.shapes = [value.shape for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
        self.new = True
        mask = self._readers[index].of(args, kwargs)
        if mask is not None:
            self._outer, self._inner = mask if self._outer is None else self._outer, mask
        arrays = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor) and value.ndim]
        self._reaches = mask is not None
        self._sizes = {value.shape[-1] for value in arrays if not value.is_floating_point()}

    def forget(self) -> None:
        self._outer = self._inner = None

    def mask(self, x: Tensor, *, strict: bool = False, readable: bool = True) -> Tensor | None:
        """``(batch, n)``: the valid tokens of the pass that runs, for what enters a block, ``(batch, n, d)``; None:
        all.

        UnknownPaddingError where the mask is of other tokens; strict: even where it cannot reach the blocks by a known
        name. readable: whether the device may be waited for.
        """
        shape = x.shape[:2]
        mask = self._outer if self._outer is not None and self._outer.shape == shape else self._inner
        if mask is None or mask.shape == shape:
            return mask_of(x, mask)
        # A mask of another shape that does not reach the innermost is of other tokens: a text's, beside pictures.
        if not (strict or self._reaches or x.shape[1] in self._sizes):
            return None
        if not readable:  # where it masks any, no token is valid, so that the numbers are NaN
            return (mask != 0).all().expand(shape).to(x.device)
        return mask_of(x, mask)


def mask_of(x: Tensor, mask: Tensor | None) -> Tensor | None:
    """The mask of the model's inputs ``(batch, n)`` for an array ``(batch, n, d)``, on its device; None where it masks
    nothing and is of another shape: the model may cut, join or add to its inputs. UnknownPaddingError where it masks.
    """
    if mask is None or mask.shape == x.shape[:2]:
        return None if mask is None else mask.to(x.device)
    if bool((mask != 0).all()):
        return None
    raise UnknownPaddingError(
        f"the padding mask has shape {tuple(mask.shape)} but the blocks receive {tuple(x.shape[:2])} tokens; pass "
        "inputs of equal length, or pass a matching mask to the module that runs the blocks"
    )


def decodes(names: Sequence[str]) -> bool:
    """Whether blocks of these names are those of a decoder."""
    return bool(names) and all("decoder" in name for name in names)
