"""Errors as OpenAI's clients expect them: a status, and ``{"error": {message, type, param, code}}``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..errors import EngineDead, EngineNotReady, FrontendError, InvalidRequest, UnsupportedParameter
from .request_context import DeadlinePassed

_MOST_MESSAGE = 1200  # characters of an error's message
_MOST_PARAM = 150


class UnknownModel(FrontendError):
    """The client's fault: it asked for a model that is not served here."""


@dataclass(frozen=True, slots=True)
class ErrorReply:
    """What goes to the client."""

    status: int
    message: str
    type: str
    param: str | None = None
    code: str | None = None

    def body(self) -> dict[str, Any]:
        """The JSON body. What came from the client is escaped if it is no Unicode text, and cut if it is long."""
        message = _shortened(self.message, _MOST_MESSAGE)
        param = self.param and _shortened(self.param, _MOST_PARAM)
        return {"error": {"message": message, "type": self.type, "param": param, "code": self.code}}


def _shortened(text: str, most: int) -> str:
    """Without the middle of a long one: what is wrong stands at its beginning, and what helps at its end."""
    if len(text) > most:
        text = f"{text[: most - most // 3]} [...] {text[-(most // 3) :]}"
    return text.encode("utf-8", "backslashreplace").decode()


def invalid(message: str, param: str | None = None, code: str | None = None) -> ErrorReply:
    """A 400."""
    return ErrorReply(400, message, "invalid_request_error", param, code)


def error_reply(error: Exception) -> ErrorReply:
    """The reply for an exception; one that is no `FrontendError` is a defect of ours and tells no details."""
    text = str(error)
    if isinstance(error, UnknownModel):
        return ErrorReply(404, text, "invalid_request_error", "model", "model_not_found")
    if isinstance(error, UnsupportedParameter):
        return invalid(text, error.param, "unsupported_parameter")
    if isinstance(error, InvalidRequest):
        return invalid(text, error.param, "invalid_value")
    if isinstance(error, DeadlinePassed):
        return ErrorReply(504, text, "server_error", None, "deadline_passed")
    if isinstance(error, EngineDead | EngineNotReady):
        return ErrorReply(503, text, "server_error", None, "engine_unavailable")
    if isinstance(error, FrontendError):
        return ErrorReply(500, text, "server_error", None, "engine_error")
    return ErrorReply(500, "internal error: the server's log has the details", "server_error", None, "internal")


def let_go(error: BaseException) -> None:
    """Free what the error's traceback holds, the request's body among it, now: it may hold the error itself."""
    while error.__traceback__ is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__ or error
