"""Smoothing watched while people train their own model, in their own loop, with their own logger.

monitor = Monitor(model, probe=batch, every=100)      looks every hundred steps
monitor.step()                                        after each step of the optimiser
monitor.history.to_pandas(), monitor.to_html(path)    what was seen
"""

from oversmooth.monitor.alarm import Alarm
from oversmooth.monitor.history import History
from oversmooth.monitor.monitor import Monitor
from oversmooth.monitor.sinks import JSONLines, TensorBoard, WandB
from oversmooth.monitor.warning import MonitorWarning

__all__ = ["Alarm", "History", "JSONLines", "Monitor", "MonitorWarning", "TensorBoard", "WandB"]
