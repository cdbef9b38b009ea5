"""Promises of messages: classes of scripts, notebooks and functions travel by value, as one class."""

from __future__ import annotations

import functools
import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest

import ringcast.actors as rt
from ringcast.channels import Codec, DecodeError, EncodeError, by_value, message

SCRIPT = """
import asyncio
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple
import ringcast.actors as rt
from ringcast.channels import message

class Colour(Enum):
    RED = 1

@message(101)
@dataclass(frozen=True)
class Tagged:
    x: int

@message
@dataclass
class Untagged:
    x: Tagged
    colour: Colour = Colour.RED
    made: int = field(default=0, init=False)

class Pair(NamedTuple):
    a: object
    b: object

class Unused(NamedTuple):
    a: int

class Worker(rt.Actor):
    def __init__(self, first):
        assert type(first) is Tagged and first == Tagged(1)

    @rt.call
    async def look(self, value):
        assert type(value) is Pair, type(value)
        assert type(value.a) is Tagged and isinstance(value.b, Untagged) and value.b.colour is Colour.RED
        return Untagged(value.a)

    @rt.call
    async def back(self, value):
        return value

    @rt.call
    async def ask(self, other):
        answer = await other.look(Pair(Tagged(5), Untagged(Tagged(6))))
        assert type(answer) is Untagged
        return answer

async def main():
    before = {cls: dict(vars(cls)) for cls in (Tagged, Untagged, Pair, Colour)}
    async with rt.System() as system:
        one = await system.spawn(rt.spec(Worker, Tagged(1)), where=rt.process())
        two = await system.spawn(rt.spec(Worker, Tagged(1)), where=rt.process())
        for _ in range(2):
            answer = await one.look(Pair(Tagged(3), Untagged(Tagged(4))))
            assert type(answer) is Untagged and answer == Untagged(Tagged(3)) and answer.colour is Colour.RED
            assert type(await two.ask(one)) is Untagged
            assert type(await two.back(Unused(1))) is Unused
            assert type(await one.back({Tagged(1): Colour.RED})) is dict
    for cls, attributes in before.items():
        assert {k: v for k, v in vars(cls).items() if k in attributes} == attributes, cls
    print("fine")

if __name__ == "__main__":
    asyncio.run(main())
"""


def test_messages_of_a_script_travel_with_it(tmp_path: Path) -> None:
    """C43: tagged or not, they are one class in every process, and here the script's own, unchanged."""
    (tmp_path / "app.py").write_text(SCRIPT)
    result = subprocess.run([sys.executable, "app.py"], cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert (result.stdout, result.returncode) == ("fine\n", 0), result.stderr


MODULE = """
from dataclasses import dataclass
import ringcast.actors as rt
from ringcast.channels import message

@message(102)
@dataclass
class Note:
    text: str

def helper(note):
    return Note(note.text * 2)

class Reader(rt.Actor):
    @rt.call
    async def read(self, note):
        assert type(note) is Note
        return helper(note)
"""


@pytest.fixture
def plugin(tmp_path: Path) -> Iterator[ModuleType]:
    """A module that no import finds: it was loaded from its path."""
    path = tmp_path / "plugin_102.py"
    path.write_text(MODULE)
    spec = importlib.util.spec_from_file_location("plugin_102", path)
    assert spec is not None and spec.loader is not None
    module = sys.modules["plugin_102"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules["plugin_102"]


async def test_a_class_of_a_module_that_cannot_be_imported_travels_by_value(plugin: Any) -> None:
    """C42: the actor's class, what its module defines beside it, and its messages."""
    async with rt.System() as system:
        reader = await system.spawn(rt.spec(plugin.Reader), where=rt.process())
        answer = await reader.read(plugin.Note("ab"))
    assert type(answer) is plugin.Note and answer == plugin.Note("abab")


async def test_a_module_that_cannot_be_imported_beside_one_that_can(plugin: Any) -> None:
    """C42: also where a class that can be imported meets it in a message."""

    class Echo(rt.Actor):
        @rt.call
        async def echo(self, value: Any) -> Any:
            return value

    async with rt.System() as system:
        echo = await system.spawn(rt.spec(Echo), where=rt.process())
        assert await echo.echo([plugin.Note("a"), Path("x")]) == [plugin.Note("a"), Path("x")]


def local_classes() -> tuple[Any, Any, Any]:
    class Colour(Enum):
        RED = 1

    @message(103)
    @dataclass(frozen=True, slots=True)
    class Point:
        x: int

    class Pair(NamedTuple):
        a: object

    return Colour, Point, Pair


def test_classes_of_functions_are_their_own_where_they_were_defined() -> None:
    colour, point, pair = local_classes()
    value = [pair(point(1)), colour.RED, {point(2): 1}]
    data = Codec().encode(value)
    arrived = Codec().decode(data)
    assert arrived == value and type(arrived[0].a) is point and arrived[1] is colour.RED
    assert len(data) < len(Codec().encode([*value, *value])) < len(data) + 200  # one definition each


def test_a_definition_that_cannot_travel_is_an_error_that_says_so() -> None:
    lock = __import__("threading").Lock()

    @dataclass
    class Locked:
        x: int

        def hold(self) -> object:
            return lock

    with pytest.raises(EncodeError, match="Locked cannot be imported by another process.*lock.*Move it into a module"):
        Codec().encode(Locked(1))


def test_no_other_definition_is_loaded_into_an_instance() -> None:
    class Plain:
        pass

    named = [0, "m:Plain", by_value.dump(Plain), ["x"]]
    msgpack = pytest.importorskip("msgpack")
    cls = msgpack.ExtType(10, msgpack.packb(named))
    with pytest.raises(DecodeError, match="m:Plain is no dataclass"):
        Codec().decode(msgpack.packb(msgpack.ExtType(9, msgpack.packb([cls, 1]))))


def caching_class() -> Any:
    @functools.cache
    def fibonacci(n: int) -> int:
        return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)

    class Caching(rt.Actor):
        @functools.cached_property
        def made(self) -> list[int]:
            return [1]

        @functools.lru_cache(maxsize=7, typed=True)  # noqa: B019  # it is what users write
        def squared(self, x: int) -> int:
            return x * x

        @functools.singledispatchmethod
        def kind(self, value: object) -> str:
            return "other"

        @kind.register
        def _(self, value: int) -> str:
            return "int"

        @rt.call
        async def look(self) -> list[object]:
            assert self.made is self.made
            parameters = type(self).squared.cache_parameters()
            return [
                self.made,
                self.squared(3),
                parameters,
                self.kind(1),
                self.kind(""),
                fibonacci(50),
                fibonacci.__name__,
            ]

    return Caching


async def test_wrappers_of_functools_travel_with_their_class() -> None:
    """They hold locks and caches, which the other process makes for itself."""
    async with rt.System() as system:
        caching = await system.spawn(rt.spec(caching_class()), where=rt.process())
        expected = [[1], 9, {"maxsize": 7, "typed": True}, "int", "other", 12586269025, "fibonacci"]
        assert await caching.look() == expected
