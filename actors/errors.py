"""Errors of the actor runtime. Each docstring says whose fault it is and what the caller may do."""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import indent
from typing import Any

from ringcast.channels.codec import message


class ActorError(Exception):
    """Base of everything that a call, a spawn or a system raises. All of them can be pickled and copied."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (type(self), self.args, dict(self.__dict__))


def _again(cls: type[ActorError], args: tuple[Any, ...], attributes: dict[str, Any]) -> ActorError:
    """A copy of an error, which is not made by its constructor: that takes other arguments than ``args``."""
    error = cls.__new__(cls)
    error.args = args
    error.__dict__.update(attributes)
    if isinstance(error, RemoteError):
        error.show_traceback()
    return error


@message(16)
@dataclass(frozen=True, slots=True)
class Cause:
    """Why an actor is gone, as far as its supervisor could find out.

    ``exit_code`` is the process's (negative: the signal that killed it), None for an actor in the host's process.
    ``stderr_tail`` are the last lines that its process wrote. ``from_outside``: its process was ended by a SIGKILL or
    SIGTERM that neither its supervisor sent nor the kernel for want of memory; what the actor did is not the cause.
    """

    summary: str
    exit_code: int | None = None
    last_phase: str = ""
    last_handler: str = ""
    traceback: str = ""
    stderr_tail: str = ""
    from_outside: bool = False

    def __str__(self) -> str:
        where = f", last phase {self.last_phase!r}" if self.last_phase else ""
        where += f", in handler {self.last_handler!r}" if self.last_handler else ""
        detail = self.traceback or self.stderr_tail
        return f"{self.summary}{where}" + (f"\n{detail.rstrip()}" if detail else "")

    def error_line(self) -> str:
        """The error that the actor ended with: the last line of the traceback; empty if there is none."""
        return next((line for line in reversed(self.traceback.splitlines()) if line and not line[0].isspace()), "")

    def one_line(self) -> str:
        """How it ended, and the error that it ended with."""
        error = self.error_line()
        return f"{self.summary}: {error}" if error and error not in self.summary else self.summary


class ActorDied(ActorError):
    """The callee's death: it ended before it answered, or is not there now. ``cause`` says why.

    The runtime never repeats a call: the method may or may not have run. A restarted actor can be called again.
    """

    def __init__(self, name: str, cause: Cause) -> None:
        super().__init__(f"actor {name!r} died: {cause}")
        self.name = name
        self.cause = cause


class RemoteError(ActorError):
    """The callee's handler raised. Type name, message and traceback are the callee's; it lives on.

    If the callee is in another process, its traceback is a note of this error, so that Python prints it if nobody
    catches the error. In the same process the handler's exception is the ``__cause__``. If the callee's handler failed
    because another actor's did, the text names both actors and the traceback holds both tracebacks.
    """

    def __init__(self, name: str, type_name: str, text: str, traceback: str) -> None:
        super().__init__(f"{type_name} in actor {name!r}: {text}")
        self.name = name
        self.type_name = type_name
        self.text = text
        self.traceback = traceback

    def show_traceback(self) -> None:
        """Add the traceback there as a note, once."""
        if self.traceback and not getattr(self, "__notes__", None):
            self.add_note(f"In actor {self.name!r}:\n{indent(self.traceback.rstrip(), '  | ')}")


class CallCancelled(ActorError):
    """The callee cancelled its own handler, or it stopped before the handler ended."""


class StartFailed(ActorError):
    """An actor did not become READY: its constructor, import or on_start raised, or its process ended."""

    def __init__(self, name: str, cause: Cause) -> None:
        super().__init__(f"actor {name!r} did not start: {cause}")
        self.name = name
        self.cause = cause


class ResourcesExhausted(StartFailed):
    """Not the actor's fault: the machine had no descriptor, memory, process or place for it when it was started.

    A restart that fails so is tried again later, and counts against no budget.
    """


class DeadlineExceeded(ActorError, TimeoutError):
    """Nobody's fault, or everybody's: the caller's deadline passed. ``where`` says how far the call had come."""

    def __init__(self, where: str) -> None:
        super().__init__(f"the deadline passed {where}")
        self.where = where


class CallCycle(ActorError):
    """The actors' design: a handler asked an actor that itself waits for this handler. It would have hung.

    Use a cast, or mark the handler that is asked ``@rt.call(concurrent=True)``.
    """


class MailboxFull(ActorError):
    """The callee is slower than its callers: its mailbox holds as much as it declared. Wait or drop."""


class NotInSystem(ActorError):
    """The caller's mistake: a reference was used outside the system that made it, or after it stopped."""
