"""Errors of the scheduler layer. Each docstring says whose fault it is."""


class SchedulerError(Exception):
    """Base of everything that the scheduler layer raises."""


class ConfigError(SchedulerError, ValueError):
    """The user's fault: a setting is out of range, or does not fit the model or the machine."""


class RequestRefused(SchedulerError):
    """The user's fault: a request that could never be run. Its text is one line for the user."""


class AccountError(SchedulerError):
    """A defect of ours: a block has two owners or none, or a step was planned or reported out of turn."""


class ResultError(SchedulerError):
    """The worker's fault: a result that does not answer the plan in flight."""


class NotAttached(SchedulerError):
    """The frontend's fault: it sent requests under a client number that this engine core never gave it."""


class EngineFailed(SchedulerError):
    """The worker's fault: it failed again and again, so the engine core ends and its supervisor decides."""
