"""What a pass is reduced to, while it runs: small tensors that stay on the device until the pass has ended."""

from oversmooth.trace.reducers.base import Reducer as Reducer
from oversmooth.trace.reducers.heads import EachAttention as EachAttention
from oversmooth.trace.reducers.heads import HeadSpectra as HeadSpectra
from oversmooth.trace.reducers.heads import SpectraSettings as SpectraSettings
from oversmooth.trace.reducers.tokens import DepthMetrics as DepthMetrics
from oversmooth.trace.reducers.tokens import TokenMetrics as TokenMetrics
