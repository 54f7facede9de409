"""What a pass is reduced to: metrics of tokens, dominance in heads, or anything of one's own."""

from oversmooth.trace.reducers.base import Reducer as Reducer
from oversmooth.trace.reducers.heads import EachAttention as EachAttention
from oversmooth.trace.reducers.heads import HeadSpectra as HeadSpectra
from oversmooth.trace.reducers.heads import Settings as Settings
from oversmooth.trace.reducers.tokens import TokenMetrics as TokenMetrics
