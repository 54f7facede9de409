"""Smoothing recorded while people train their own model, in their own loop, with their own logger.

monitor = Monitor(model, probe=batch, every=100)      a snapshot every hundred steps
monitor.step()                                        after each step of the optimiser
monitor.history.to_pandas(), monitor.to_html(path)    what was recorded
"""

from oversmooth.monitor.alarm import Alarm
from oversmooth.monitor.config import MonitorConfig
from oversmooth.monitor.history import History
from oversmooth.monitor.monitor import Monitor
from oversmooth.monitor.sinks import JSONLines, TensorBoard, WandB
from oversmooth.monitor.warning import MonitorWarning

__all__ = ["Alarm", "History", "JSONLines", "Monitor", "MonitorConfig", "MonitorWarning", "TensorBoard", "WandB"]
