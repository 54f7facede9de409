"""A run: its steps, checkpoints, logs, processes, and how it stops and goes on."""
