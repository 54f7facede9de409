"""Reducers: what turns the tokens of a site into a few numbers that stay on the device until the pass has ended."""

from oversmooth.trace.reducers.base import fetch, fetch_rows
from oversmooth.trace.reducers.directions import Directions, ranks_of_directions
from oversmooth.trace.reducers.tokens import SiteNumbers, TokenNumbers

__all__ = ["Directions", "SiteNumbers", "TokenNumbers", "fetch", "fetch_rows", "ranks_of_directions"]
