"""Refuses a system while a child process loads its actor's class: a module that starts its program when it is imported
would start processes that import it, and so on without end.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from .errors import ActorError

_loading: list[str] = []  # what this process imports for its actor, now


@contextmanager
def loading(what: str) -> Iterator[None]:
    """In a child process: user code is imported."""
    _loading.append(what)
    try:
        yield
    finally:
        _loading.remove(what)


def check_not_loading() -> None:
    """`ActorError` while a child process loads what its actor needs."""
    if _loading:
        raise ActorError(
            f"a child process cannot start a system while it imports {_loading[0]}: a module that the actor needs "
            'starts the program when it is imported. Put that behind `if __name__ == "__main__":`'
        )
