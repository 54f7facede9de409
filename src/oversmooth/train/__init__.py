"""Training: an engine that knows steps, checkpoints and processes, and the tasks that it trains for."""

from oversmooth.train import tasks as tasks  # whose recipes files may hold
