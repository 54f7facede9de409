"""A model traced while it runs: a plan of its residual stream, one pass, and reducers that make numbers of it.

``plan`` learns from one input which arrays are the stream and how attention enters them; ``run`` hands every site of
later inputs to reducers. The model's outputs are what they would be without it, bit for bit (torch's own encoder layers
run without their fast path).
"""

from oversmooth.trace.feed import ONE_AT_A_TIME as ONE_AT_A_TIME
from oversmooth.trace.plans import Plan as Plan
from oversmooth.trace.plans import Site as Site
from oversmooth.trace.reducers import DepthMetrics as DepthMetrics
from oversmooth.trace.reducers import HeadSpectra as HeadSpectra
from oversmooth.trace.reducers import Reducer as Reducer
from oversmooth.trace.reducers import SpectraSettings as SpectraSettings
from oversmooth.trace.reducers import TokenMetrics as TokenMetrics
from oversmooth.trace.rerouting import Rerouting as Rerouting
from oversmooth.trace.study import plan as plan
from oversmooth.trace.study import study as study
from oversmooth.trace.tracing import Trace as Trace
from oversmooth.trace.tracing import run as run
