"""Errors on the command line: one clear line on stderr and an exit code; a traceback only with --debug."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer

import ringcast.actors as rt
from ringcast.gpu.errors import GpuError
from ringcast.scheduler.errors import SchedulerError

from ..errors import FrontendError
from .streams import READER_GONE, discard_output, tell

FAILED, INTERRUPTED = 1, 130


@contextmanager
def one_line_errors(debug: bool) -> Iterator[None]:
    """Turn exceptions into lines and exit codes: 1 for a failure, 130 for Ctrl-C, 141 when nobody reads stdout."""
    logging.basicConfig(
        level=logging.DEBUG if debug else logging.ERROR, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr
    )
    try:
        yield
    except (typer.Exit, typer.Abort, typer.BadParameter):
        raise
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    except BrokenPipeError:
        discard_output()
        raise typer.Exit(READER_GONE) from None
    except (FrontendError, SchedulerError, GpuError, rt.ActorError, OSError) as error:
        if debug:
            raise
        fail(_line(error))
    except Exception as error:
        if debug:
            raise
        fail(f"internal error: {type(error).__name__}: {error}; --debug shows the traceback")


def _line(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror is not None:  # without [Errno 2] and quotes
        return f"{'cannot write the result' if error.filename is None else error.filename}: {error.strerror}"
    return " ".join(str(error).split())  # all of it: of a library's message the remedy is often the last line


def fail(line: str) -> None:
    """Print a line for the user and exit with 1."""
    tell(line)
    raise typer.Exit(FAILED)
