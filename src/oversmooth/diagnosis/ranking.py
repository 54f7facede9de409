"""Which depth to embed with: vectors of different inputs compared at every depth, with errors, and labels beside them.

Errors are those of a delete-a-group jackknife. A bootstrap repeats inputs, which lowers ranks and raises cosines.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from oversmooth.anatomy import locate
from oversmooth.anatomy.live import check_finite
from oversmooth.diagnosis.provenance import input_kind
from oversmooth.diagnosis.source import opened
from oversmooth.inputs.batches import Batch, Inputs
from oversmooth.metrics.across import FEWEST_PER_FEATURE, anisotropy, anisotropy_by_feature, linear_cka
from oversmooth.metrics.rank import effective_rank
from oversmooth.results.facts import Number, plain
from oversmooth.results.ranking import MEASURES, Agreement, Column, LayerRanking
from oversmooth.safety import arguments
from oversmooth.safety.errors import InputError
from oversmooth.safety.model_state import in_its_own_mode
from oversmooth.trace import ONE_AT_A_TIME, Plan, Trace
from oversmooth.trace.feed import ModelInput, OnProgress, Runner, batches_for, first_of
from oversmooth.trace.reducers.vectors import DepthVectors, Pool, PooledVectors

if TYPE_CHECKING:
    from oversmooth.models import Loaded

GROUPS = 20
"""Of the jackknife; fewer where there are fewer than 40 inputs or pairs."""
_FEWEST = 8  # inputs, or pairs of them
_PENALTIES = [10.0**power for power in range(-5, 3)]  # of the probe, times the mean eigenvalue of the covariance


def layers(
    model: nn.Module | Loaded | str | Path,
    inputs: ModelInput | Iterable[ModelInput] | None = None,
    labels: Sequence[float] | Tensor | None = None,
    *,
    pool: Pool = "mean",
    name: str | None = None,
    stack: str | None = None,
    seed: int = 0,
    progress: OnProgress | None = None,
) -> LayerRanking:
    """Compare the vectors of different inputs at every depth, and rank depths by them.

    Args:
        model: a module; a name or path, loaded with the matching library; or the result of `models.load`.
        inputs: as of `diagnose`; a few hundred, and 4 per feature for RankMe.
        labels: a class per input, for a linear probe; or a similarity per pair of inputs (0 and 1, 2 and 3, …). None:
            those of the inputs, if they have any.
        pool: how an input becomes one vector: the "mean" of its valid tokens, the "last" of them, or its "first" token.
        name: of the model in reports.
        stack: for `anatomy.locate`.
        seed: of the jackknife's groups.
        progress: as of `diagnose`.

    Returns:
        Every measure by depth with its standard error, and the depths that it ranks first.

    Raises:
        InputError: an argument is wrong, or the model cannot be located or run.
    """
    arguments.choice(pool, "pool", ("mean", "last", "first"))
    seed = arguments.seed(seed)
    source = opened(model, inputs, name, count=64)
    inside, inputs = source.model, source.inputs
    if inputs is None:
        raise InputError("there are no inputs; give a few hundred")
    check_finite(inside)
    anatomy = locate(inside, stack=stack)
    plan = Plan.of_names(anatomy.blocks)
    found: list[Tensor | None] = []
    vectors, run = PooledVectors(pool), Runner(inside, anatomy)
    first, batches = first_of(batches_for(inside, inputs))
    with ONE_AT_A_TIME, torch.no_grad(), in_its_own_mode(inside), Trace(inside, plan, [vectors]) as trace:
        for batch, _ in trace.over(run, batches, inputs, progress):
            found.append(batch.labels if isinstance(batch, Batch) else None)
    given, remarks = None if labels is None else _labels(labels, trace.facts.inputs), []
    if labels is None and all(one is not None for one in found):
        try:
            given = _labels(torch.cat([one for one in found if one is not None]), trace.facts.inputs)
        except InputError as error:  # nobody asked for them
            remarks = [f"the labels of the data are not used: {error}"]
    is_text = input_kind(inputs, first) == "text"
    ranking = _ranked(vectors.result, given, seed, sequences=is_text)
    ranking.remarks += remarks
    ranking.model, ranking.pool = source.name, pool
    ranking.data = inputs.what if isinstance(inputs, Inputs) else "your own inputs"
    ranking.depths = ["embedding", *(block.block for block in plan.blocks)]
    return ranking


@dataclass(frozen=True)
class _Labels:
    """What inputs are labelled with: classes ``(N,)``, or similarities of pairs ``(N/2,)``."""

    values: Tensor
    pairs: bool


def _labels(labels: Sequence[float] | Tensor, inputs: int) -> _Labels:
    given = arguments.tensor(labels, "labels", "a class per input, or a number per pair", least=1, floating=False)
    if given.shape not in ((inputs,), (inputs / 2,)):
        raise InputError(
            f"labels have shape {tuple(given.shape)} for {inputs} inputs; give a class per input, ({inputs},), or a "
            f"similarity per pair, ({inputs // 2},)"
        )
    values, pairs = given.cpu().double(), len(given) != inputs
    if not bool(values.isfinite().all()):
        raise InputError("labels have NaN or infinity; leave those inputs out")
    kinds = len(values.unique())
    if kinds < 2:
        raise InputError("all labels are equal; give at least two different ones")
    if not pairs and kinds > inputs // 2:
        raise InputError(
            f"labels have {kinds} different values for {inputs} inputs; give classes, or similarities of pairs"
        )
    return _Labels(values, pairs)


def _ranked(depths: list[DepthVectors], labels: _Labels | None, seed: int, *, sequences: bool) -> LayerRanking:
    inputs, width = depths[0].pooled.shape
    each = 2 if labels is not None and labels.pairs else 1
    units = inputs // each
    if units < _FEWEST:
        raise InputError(f"there are {units} {'pairs of ' * (each > 1)}inputs; give at least {_FEWEST}")
    groups = min(GROUPS, units // 2)
    group = torch.randperm(units, generator=torch.Generator().manual_seed(seed)) % groups
    group = group.repeat_interleave(each)
    remarks = []
    if inputs < FEWEST_PER_FEATURE * width:
        enough = f"{FEWEST_PER_FEATURE} per feature, {FEWEST_PER_FEATURE * width:,}"
        remarks.append(f"RankMe is left out: N too small ({inputs:,} inputs; it needs {enough})")
    statistics = _statistics(depths, labels, sequences=sequences, ranks=not remarks)
    columns, replicates = {}, {}
    for name, statistic in statistics.items():
        whole = statistic(torch.ones(inputs, dtype=torch.bool))
        replicates[name] = torch.stack([statistic(group != left_out) for left_out in range(groups)])
        columns[name] = _column(whole, replicates[name], MEASURES[name].higher)
    cka = [[plain(linear_cka(one.pooled, other.pooled), 4) for other in depths] for one in depths]
    columns["cka_previous"] = Column([None, *(cka[i][i - 1] for i in range(1, len(depths)))], [None] * len(depths))
    ranking = LayerRanking(
        "", "", inputs, width, "", [], {name: columns[name] for name in MEASURES if name in columns}, cka,
        [_largest_feature(depth.pooled) for depth in depths], groups, remarks=remarks,
    )  # fmt: skip
    if (score := ranking.score) is not None:
        for name, column in ranking.measures.items():
            if column.best is not None and name != score:
                ranking.agreement[name] = _agreement(name, column, columns[score], replicates[score])
    return ranking


Statistic = Callable[[Tensor], Tensor]
"""Of the inputs that are kept, ``(N,)``: a number per depth, ``(depths,)``."""


def _statistics(
    depths: list[DepthVectors], labels: _Labels | None, *, sequences: bool, ranks: bool
) -> dict[str, Statistic]:
    def of(function: Callable[[DepthVectors, Tensor], Any]) -> Statistic:
        return lambda keep: torch.stack([torch.as_tensor(function(one, keep)).double() for one in depths])

    found = {
        "anisotropy_tokens": of(lambda one, keep: anisotropy(one.tokens[keep])),
        "anisotropy_tokens_centred": of(lambda one, keep: anisotropy(one.tokens[keep], centred=True)),
        "anisotropy": of(lambda one, keep: anisotropy(one.pooled[keep][:, None])),
        "anisotropy_centred": of(lambda one, keep: anisotropy(one.pooled[keep][:, None], centred=True)),
        "token_entropy": of(lambda one, keep: one.entropy[keep].nanmean()),
    }
    if ranks:
        found["rankme"] = of(lambda one, keep: effective_rank(one.pooled[keep]))
    if sequences:
        found["curvature"] = of(lambda one, keep: one.curvature[keep].nanmean())
    if labels is not None and labels.pairs:
        cosines = [torch.cosine_similarity(one.pooled[::2], one.pooled[1::2], dim=-1) for one in depths]
        found["similarity"] = lambda keep: torch.stack(
            [spearman(cosine[keep[::2]], labels.values[keep[::2]]) for cosine in cosines]
        )
    elif labels is not None:
        right = [probe(one.pooled, labels.values) for one in depths]
        found["probe"] = lambda keep: torch.stack([one[keep].double().mean() for one in right])
    return found


def _column(whole: Tensor, replicates: Tensor, higher: bool | None) -> Column:
    """replicates: ``(groups, depths)``: each without one group of inputs."""
    values = [plain(value) for value in whole.tolist()]
    column = Column(values, [plain(error, 4) for error in jackknife(replicates).tolist()])
    if higher is None or not bool(whole.isfinite().any()):
        return column
    worst = -math.inf if higher else math.inf
    ranks = whole.nan_to_num(worst) * (1 if higher else -1)
    column.best = int(ranks.argmax())
    behind = ranks[column.best] - ranks
    margin = _t(len(replicates) - 1) * jackknife(replicates - replicates[:, column.best, None])
    column.as_good = [depth for depth in range(len(whole)) if bool(behind[depth] <= margin[depth])]
    return column


def jackknife(replicates: Tensor) -> Tensor:
    """Standard error of a statistic, from its values without each of g groups: ``(g, ...) -> (...)``.

    >>> jackknife(torch.tensor([1.0, 2.0, 3.0]))
    tensor(1.1547)
    """
    groups = len(replicates)
    return ((groups - 1) / groups * (replicates - replicates.mean(0)).square().sum(0)).sqrt()


def _t(freedom: int) -> float:
    """The 97.5% quantile of Student's t, by its expansion about the normal one: 1% off with 3 degrees of freedom.

    >>> round(_t(19), 2), round(_t(7), 2)
    (2.09, 2.36)
    """
    z = 1.959964
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def _agreement(name: str, column: Column, score: Column, replicates: Tensor) -> Agreement:
    assert column.best is not None
    assert score.best is not None
    sign = 1 if MEASURES[name].higher else -1
    both = [(sign * a, b) for a, b in zip(column.values, score.values, strict=True) if a is not None and b is not None]
    one, other = torch.tensor(both, dtype=torch.float64).unbind(-1)
    loss = (score.values[score.best] or 0.0) - (score.values[column.best] or 0.0)
    error = jackknife(replicates[:, score.best] - replicates[:, column.best])
    return Agreement(plain(spearman(one, other), 4), float(f"{loss:.4g}"), plain(error, 4))


def _largest_feature(pooled: Tensor) -> Number:
    """The largest share of one feature in the mean cosine; None where that is not positive."""
    parts = anisotropy_by_feature(pooled[:, None])
    total = float(parts.sum())
    return plain(parts.max() / total, 4) if total > 0.05 else None


def spearman(x: Tensor, y: Tensor) -> Tensor:
    """Rank correlation of two lists ``(n,)``, ties with their mean rank; NaN where one is constant.

    >>> spearman(torch.tensor([1.0, 2.0, 5.0, 5.0]), torch.tensor([0.1, 0.3, 0.2, 0.9]))
    tensor(0.6325, dtype=torch.float64)
    """
    a, b = (_ranks(one) for one in (x, y))
    return (a @ b) / (a.square().sum() * b.square().sum()).sqrt()


def _ranks(x: Tensor) -> Tensor:
    """Ranks less their mean."""
    _, inverse, counts = x.unique(return_inverse=True, return_counts=True)
    rank = (counts.cumsum(0) - (counts - 1) / 2.0).double()[inverse]
    return rank - rank.mean()


def probe(x: Tensor, classes: Tensor) -> Tensor:
    """Whether each input's class is right by a linear probe that is fitted to all others, ``(N, d), (N,) -> (N,)``.

    Ridge regression on the classes; leaving one out is exact, from the diagonal of its hat matrix. Its penalty is the
    one of eight with the least error of left-out inputs.
    """
    _, target = classes.unique(return_inverse=True)
    y = torch.nn.functional.one_hot(target).double()
    x = x.double() - x.double().mean(0)
    u, s, _ = torch.linalg.svd(x, full_matrices=False)
    mean, of_y = y.mean(0), u.mT @ y
    best, chosen = math.inf, y
    for penalty in _PENALTIES:
        shrunk = s.square() / (s.square() + penalty * s.square().mean())
        leverage = 1 / len(x) + (u.square() * shrunk).sum(-1, keepdim=True)
        left_out = y - (y - mean - u @ (shrunk[:, None] * of_y)) / (1 - leverage)
        if (error := float((y - left_out).square().sum())) < best:
            best, chosen = error, left_out
    return chosen.argmax(-1) == target
