"""Errors of the frontend. Each docstring says whose fault it is; messages name the thing and the remedy."""

from __future__ import annotations


class FrontendError(Exception):
    """Base of everything that the frontend raises for its users."""


class InvalidRequest(FrontendError, ValueError):
    """The caller's fault: a prompt or a parameter is outside what is allowed. ``param`` names the field."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class UnsupportedParameter(InvalidRequest):
    """The caller asked for something that ringcast does not support yet. Never ignored in silence."""

    def __init__(self, param: str, value: object, neutral: str) -> None:
        super().__init__(f"{param}={value!r} is not supported yet: leave {param} out, or set it to {neutral}", param)


class ModelNotFound(FrontendError):
    """The caller's fault, or the network's: nothing is to be had under the model's name."""


class ModelUnusable(FrontendError):
    """The model's fault: its files are broken, or need something that ringcast does not support yet."""


class TokenizerFailed(FrontendError):
    """The tokenizer's fault: its native code failed on a text or on token ids. Other requests go on."""


class EngineError(FrontendError):
    """A request failed in the engine; the message is the engine's. Other requests go on."""


class EngineDead(EngineError):
    """The engine died for good while the request ran, or did not answer. The message says which part, and why.

    Restarts are no deaths: requests wait for them and go on.
    """


class EngineNotReady(EngineError):
    """The engine takes no requests now: it starts, restarts or has stopped. Try again when it is ready."""


class EngineStartFailed(EngineError):
    """The engine did not start. The message carries the reason of the part that failed."""
