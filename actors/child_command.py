"""How a child process is started: the executable, the interpreter's flags, the bootstrap and the parent's import path.

A child runs with the flags of this interpreter and has its import path before it imports anything.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from typing import Final

from .errors import ActorError

EXECUTABLE_VARIABLE: Final = "RINGCAST_EXECUTABLE"
PROBE_TIMEOUT_S: Final = 10.0
BEGAN: Final = b"began"  # the bootstrap's first message on its lane

# The lane holds one message: what kind of Python we are, our import path, and where our packages lie. The finder makes
# the child import the same ringcast as we did, however we found it.
BOOTSTRAP: Final = f"""\
import os, sys
from importlib.machinery import ModuleSpec, SourceFileLoader
link, parent, lane = map(int, sys.argv[1:])
kind, path, packages = eval(os.read(lane, 1 << 20))
os.write(lane, {BEGAN!r})
if kind != (sys.implementation.cache_tag, sys.abiflags):
    sys.exit("{{}} is another kind of Python than its parent: {{}} instead of {{}}".format(
        sys.executable, (sys.implementation.cache_tag, sys.abiflags), kind))
sys.path[:] = path
class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name not in packages:
            return None
        file, folders = packages[name]
        spec = ModuleSpec(name, SourceFileLoader(name, file), origin=file, is_package=True)
        spec.submodule_search_locations[:] = folders
        spec.has_location = True
        return spec
sys.meta_path.insert(0, Finder)
from ringcast.actors.child import main
main(link, parent, lane)
"""

_PROBE = "import sys; sys.stdout.write(repr((sys.implementation.cache_tag, sys.abiflags)))"
REMEDY: Final = (
    f"name a Python of this version with rt.set_executable(path) or the environment variable {EXECUTABLE_VARIABLE}"
)

_chosen: str | None = None


def set_executable(path: str | os.PathLike[str] | None) -> None:
    """Start child processes with this Python instead of ``sys.executable``; None goes back to that.

    It is needed where ``sys.executable`` is no Python: in a frozen app, or in a server that embeds the interpreter. The
    setting is this process's and goes before the environment variable RINGCAST_EXECUTABLE. The Python must be of the
    same version and be able to import what the actors need; the child gets this process's ``sys.path``.

    Raises:
        ValueError: ``path`` cannot be executed, or is no Python of this version.
    """
    global _chosen
    if path is not None:
        try:
            _probe(os.fspath(path))
        except ActorError as error:
            raise ValueError(f"set_executable: {error}") from error
    _chosen = None if path is None else os.fspath(path)


def executable() -> str:
    """The Python that runs children. `ActorError` if there is none that could."""
    chosen = _chosen or os.environ.get(EXECUTABLE_VARIABLE)
    if chosen:
        _probe(chosen)
        return chosen
    if getattr(sys, "frozen", False):
        raise ActorError(f"this program is a frozen app, whose executable {sys.executable!r} is no Python: {REMEDY}")
    if not sys.executable:
        raise ActorError(f"sys.executable is {sys.executable!r}, so there is no Python to run a child with: {REMEDY}")
    if not os.path.basename(sys.executable).startswith(("python", "pypy")):
        _probe(sys.executable)
    return sys.executable


def arguments(link_fd: int, lane_fd: int) -> list[str]:
    """What the executable of a child that inherits these descriptors is given."""
    return [*interpreter_flags(), "-c", BOOTSTRAP, str(link_fd), str(os.getpid()), str(lane_fd)]


def first_message() -> bytes:
    """What the bootstrap reads from its lane."""
    return ascii((_kind(), import_path(), _packages())).encode()


def import_path() -> list[str]:
    """``sys.path``, independent of the working directory."""
    entries = [entry for entry in sys.path if isinstance(entry, str)]
    try:
        return [os.path.abspath(entry) for entry in entries]
    except FileNotFoundError:  # there is no working directory: nothing can be imported relative to it
        return [entry for entry in entries if os.path.isabs(entry)]


def interpreter_flags() -> list[str]:
    """The command-line flags that give a child the settings of this interpreter.

    ``-P`` and ``-u`` always: nothing is imported from the working directory before the child has our import path, and
    its output reaches us as it is written.
    """
    flags = sys.flags
    given = ["-P", "-u"]
    for letter, number in (
        ("I", flags.isolated),
        ("E", flags.ignore_environment),
        ("s", flags.no_user_site),
        ("S", flags.no_site),
        ("d", flags.debug),
        ("v", flags.verbose),
        ("b", flags.bytes_warning),
        ("O", flags.optimize),
        ("B", sys.dont_write_bytecode),
    ):
        if number:
            given.append("-" + letter * int(number))
    for name, value in sys._xoptions.items():
        given += ["-X", name if value is True else f"{name}={value}"]
    for option in sys.warnoptions:
        given += ["-W", option]
    return given


def _kind() -> tuple[str | None, str]:
    return sys.implementation.cache_tag, sys.abiflags


def _packages() -> dict[str, tuple[str, list[str]]]:
    """Where our packages were found: the file and the folders of each."""
    names = [name for name in sys.modules if name == "ringcast" or name.startswith("ringcast.")]
    return {name: place for name in names if (place := _place_of(name)) is not None}


@functools.cache
def _place_of(name: str) -> tuple[str, list[str]] | None:
    """The file and the folders of a package; None for a module, or what is in an archive."""
    file, folders = (getattr(sys.modules[name], attribute, None) for attribute in ("__file__", "__path__"))
    if file is None or folders is None or not file.endswith(".py") or not os.path.isfile(file):
        return None
    return os.path.abspath(file), [os.path.abspath(folder) for folder in folders]


@functools.cache
def _probe(path: str) -> None:
    """Run it once. `ActorError` if it is no Python that can run our children."""
    try:
        answer = subprocess.run(
            [path, "-I", "-S", "-c", _PROBE], stdin=subprocess.DEVNULL, capture_output=True, timeout=PROBE_TIMEOUT_S
        )
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise ActorError(f"{path!r} cannot run child processes ({error}): {REMEDY}") from error
    if answer.stdout.decode("utf-8", "replace").strip() != repr(_kind()):
        raise ActorError(f"{path!r} is no Python {sys.version_info[0]}.{sys.version_info[1]} as this one: {REMEDY}")
