"""Who counts as a token, and which tokens belong together: what the mask says that attention itself used."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from oversmooth.theory.operators import AttentionOperator, DenseAttention, SoftmaxAttention

# Scores this low, and this far below the largest of their row, are hidden by hand: nothing of them is left.
_HIDDEN, _BELOW = -5e3, 1e3


def may_see(scores: Tensor, *, alone: bool = False) -> Tensor:
    """Which pairs a mask that was added to the scores leaves.

    Libraries hide with −inf, with the most negative number of some type, or with −1e9 or −1e4 by hand. A row that is
    hidden whole stays hidden in the first two ways.

    Args:
        scores: ``(..., n, n)``: masked scores, or the mask itself.
        alone: whether it is the mask itself, in which a row that is hidden whole is far below the others.
    """
    low = torch.finfo(scores.dtype).min / 2
    top = scores.amax((-2, -1) if alone else -1, keepdim=True)
    return (scores > low) & ((scores > _HIDDEN) | (scores >= top - _BELOW))


def counted(allowed: Tensor, named: Tensor | None = None, rounds: int | None = None) -> Tensor:
    """The tokens that count: those that a query that counts may see.

    Queries that see nothing do not vote, nor do those whose row was hidden whole and opened again, as some kernels
    need: they see everything, and nobody whose row is as the mask meant it sees them.

    Args:
        allowed: ``(b, h, n, n)`` or broadcastable: True where the query sees the key.
        named: ``(b, n)``: a mask given under its usual name; decides what rows leave open. Without it such tokens count
            at the end of a text.
        rounds: how often the tokens that count vote, for code that is compiled; None: until nothing changes.

    Returns:
        ``(b, n)``
    """
    allowed = allowed.any(-3) if allowed.ndim == 4 else allowed  # seen in any head
    n = allowed.shape[-1]
    sees_all = allowed.all(-1)
    votes = allowed.any(-1) & ~sees_all
    seen = (allowed & votes[..., None]).any(-2)
    strangers = sees_all & ~seen
    named = None if named is None or named.shape[-1] != n else named.to(allowed.device)
    # The last token of a causal text sees all and no other sees it; the same holds for padding whose rows were opened.
    counts = seen | (strangers & (strangers.flip(-1).cummin(-1).values.flip(-1) if named is None else named))
    for _ in itertools.count() if rounds is None else range(rounds):  # every token that counts votes
        more = counts | (allowed & counts[..., None]).any(-2)
        if rounds is None and torch.equal(more, counts):
            break
        counts = more
    plain = ~votes.any(-1, keepdim=True)  # nobody's view is narrowed: all who see anything count
    counts = torch.where(plain, sees_all, counts)
    if named is None:
        return counts
    # Padding that sees itself or other padding, and that no token sees, does not count.
    noticed = (allowed & named[..., None] & ~named[..., None, :]).any((-2, -1))
    return torch.where((noticed | ~(counts & named).any(-1))[..., None], counts, counts & named)


def sequences(allowed: Tensor, tokens: Tensor) -> list[Tensor] | None:
    """Texts packed into one input, or None where all tokens are connected.

    Args:
        allowed: ``(h, n, n)`` or broadcastable: who may see whom.
        tokens: ``(n,)``: the tokens that count.

    Returns:
        ``(length,)`` per text: the positions of its tokens.
    """
    positions = tokens.nonzero()[:, 0]
    linked = allowed.any(0)[positions][:, positions]
    if bool(linked.all(-1).any()) or len(positions) < 2:
        return None  # someone sees all
    linked = linked | linked.mT | torch.eye(len(positions), dtype=torch.bool, device=linked.device)
    labels = torch.arange(len(positions), device=linked.device)
    while True:
        reached = torch.where(linked, labels, len(positions)).amin(-1)
        reached = reached[reached]
        if torch.equal(reached, labels):
            break
        labels = reached
    parts = [positions[labels == label] for label in labels.unique()]
    return parts if len(parts) > 1 else None


@dataclass
class Tokens:
    """The tokens of one batch: which count, and how to take packed texts apart so that each is measured by itself."""

    counted: Tensor | None
    """``(inputs, n)``; None: all."""
    rows: Tensor | None = None
    """``(texts,)``: the row of the batch that each packed text is in; None: no texts are packed."""
    positions: Tensor | None = None
    """``(texts, longest)``: the positions of its tokens in that row, padded with 0."""
    inside: Tensor | None = None
    """``(texts, longest)``: which of those positions are not padding."""

    def apart(self, x: Tensor) -> Tensor:
        """Tokens ``(b, n, d)`` as ``(inputs, n, d)``: themselves, or one row per text."""
        if self.rows is None or self.positions is None:
            return x
        return x[self.rows[:, None].to(x.device), self.positions.to(x.device)]

    def cross(self, n: int, allowed: Tensor | None) -> bool:
        """Whether some token may see one of another text.

        Args:
            n: tokens per input.
            allowed: ``(b, h, n, n)`` or broadcastable: who may see whom.
        """
        if self.rows is None or self.positions is None or self.inside is None:
            return False
        rows = self.rows[:, None].expand_as(self.positions)
        which = torch.arange(len(self.rows), device=self.rows.device)
        text = torch.full((int(self.rows.max()) + 1, n), -1, device=self.rows.device)
        text[rows[self.inside], self.positions[self.inside]] = which[:, None].expand_as(self.positions)[self.inside]
        others = (text[:, :, None] != text[:, None]) & (text[:, :, None] >= 0) & (text[:, None] >= 0)
        return bool((others if allowed is None else others & allowed.any(1).to(others.device)).any())

    def operators(self, A: AttentionOperator) -> AttentionOperator:
        """Attention of each text by itself."""
        if self.rows is None or self.positions is None:
            return A
        rows, positions, mask = (t.to(A.device) for t in (self.rows, self.positions, self.inside) if t is not None)

        def pairs(M: Tensor) -> Tensor:  # (b, h, n, n)
            return M[rows[:, None, None, None], torch.arange(M.shape[1], device=A.device)[:, None, None],
                     positions[:, None, :, None], positions[:, None, None, :]]  # fmt: skip

        if isinstance(A, SoftmaxAttention):
            q, k = (x.transpose(1, 2)[rows[:, None], positions].transpose(1, 2) for x in (A.q, A.k))
            bias = None if A.bias is None else pairs(A.bias)
            # Padding of a text sees itself, so that its row is not empty.
            bias = None if bias is None else bias.masked_fill(~mask[:, None, :, None], 0.0)
            return SoftmaxAttention(q, k, scale=A.scale, mask=mask, bias=bias, causal=A.causal)
        return DenseAttention(pairs(A.dense().A), mask=mask)


def tokens_of(
    shape: torch.Size, tokens: Tensor | None, allowed: Tensor | None, special: Tensor | None, *, packed: bool
) -> Tokens:
    """Which tokens of a batch count, and where packed texts are.

    Args:
        shape: ``(b, n, ...)``: of the stream.
        tokens: ``(b, n)``: tokens that count; None: all.
        allowed: ``(b, h, n, n)`` or broadcastable: who may see whom.
        special: ``(b, n)``: tokens that are not counted unless an input has no others.
        packed: whether to look for packed texts.
    """
    b, n = shape[:2]
    shown = tokens
    if special is not None:
        every = torch.ones(b, n, dtype=torch.bool, device=special.device) if tokens is None else tokens
        shown = every & ~special.to(every.device)
        # An input of special tokens alone is measured with them, rather than not at all.
        shown = shown | (~shown.any(-1, keepdim=True) & every)
    if shown is not None and bool(shown.all()):
        shown = None
    if not packed or allowed is None:
        return Tokens(shown)
    allowed = allowed.expand(b, *allowed.shape[1:])
    every = torch.ones(b, n, dtype=torch.bool, device=allowed.device) if tokens is None else tokens.to(allowed.device)
    texts = [
        (row, part) for row in range(b) for part in sequences(allowed[row], every[row]) or [every[row].nonzero()[:, 0]]
    ]
    if len(texts) == b:
        return Tokens(shown)
    longest = max(len(part) for _, part in texts)
    positions = torch.stack([pad(part, (0, longest - len(part))) for _, part in texts])
    inside = torch.stack([torch.arange(longest, device=positions.device) < len(part) for _, part in texts])
    rows = torch.tensor([row for row, _ in texts], device=positions.device)
    show = inside if shown is None else inside & shown.to(positions.device)[rows[:, None], positions]
    return Tokens(show, rows, positions, inside)
