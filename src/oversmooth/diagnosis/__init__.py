"""What is known about a model: the result (`result`), how it is made (`diagnose`), and what it says (`verdict`)."""

from oversmooth.diagnosis.result import Diagnosis

__all__ = ["Diagnosis"]
