"""The two papers: what trains their models, and every table and figure, ours beside the published ones.

Uses the library `oversmooth` as anybody would, and adds the commands `train`, `reproduce` and `tune` to it.
"""

from oversmooth_papers import tasks as tasks  # whose recipes files may hold
