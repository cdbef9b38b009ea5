"""Promises of the codec: dataclasses, NamedTuples and Enums travel by name, and arrive whole or not at all."""

from __future__ import annotations

import dataclasses
import functools
from collections import namedtuple
from collections.abc import Iterator
from dataclasses import InitVar, dataclass, field
from enum import Enum, Flag, IntEnum, IntFlag, StrEnum, auto
from typing import ClassVar, Generic, NamedTuple, TypeVar

import msgpack
import numpy as np
import pytest

from ringcast.channels import Codec, DecodeError, EncodeError, message

T = TypeVar("T")


class Colour(Enum):
    RED = "r"
    CRIMSON = "r"  # noqa: PIE796 (an alias)
    BLUE = ("b", 1)


class Level(IntEnum):
    LOW = 1


class Word(StrEnum):
    HI = "hi"


class Access(Flag):
    READ = auto()
    WRITE = auto()


class Mode(IntFlag):
    A = 1
    B = 2


@dataclass(frozen=True, slots=True)
class Point:
    x: float
    y: float = 0.0


@dataclass(kw_only=True)
class Settings:
    name: str
    at: tuple[int, tuple[int, int]] = (0, (0, 0))
    extra: dict[str, object] = field(default_factory=dict)
    total: ClassVar[int] = 0
    scale: InitVar[int] = 2
    started: int = field(init=False, default=0)

    def __post_init__(self, scale: int) -> None:
        Settings.total += 1
        self.started = scale * 10


@dataclass
class Tree:
    value: object
    children: list[Tree] = field(default_factory=list)

    @functools.cached_property
    def size(self) -> int:
        return 1 + sum(child.size for child in self.children)


@dataclass
class Box(Generic[T]):
    item: T


class Base:
    __slots__ = ("__hidden", "noted")

    def hide(self, value: int) -> None:
        self.__hidden = value

    def shown(self) -> int:
        return self.__hidden


@dataclass
class Noted(Base):
    x: int


class Pair(NamedTuple):
    left: object
    right: object = None


Old = namedtuple("Old", "a b")


class Subclass(Old):
    pass


@message
@dataclass
class Untagged:
    x: int


@dataclass
class Rows(dict):
    name: str


def through(value: object) -> object:
    codec = Codec()
    return codec.decode(codec.encode(value))


VALUES = [
    *[
        Colour.RED,
        Colour.CRIMSON,
        Colour.BLUE,
        Level.LOW,
        Word.HI,
        Access.READ | Access.WRITE,
        Access(0),
        Mode.A,
        Mode(9),
    ],
    *[Point(1.0), Point(x=1, y=2), Pair(1, [2]), Pair((1, 2)), Old(1, Pair(2)), Untagged(3)],
    *[Box([1]), Box[int](1), Tree(1, [Tree(2), Tree(3, [Tree(4)])])],
    {Point(1): {Level.LOW}, Colour.BLUE: [Pair(1)]},
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_instances_and_members_arrive_as_their_class(value: object) -> None:
    arrived = through(value)
    assert arrived == value and type(arrived) is type(value)
    if isinstance(value, Enum) and value.name in type(value).__members__:
        assert arrived is value


def test_fields_are_restored_without_running_the_class_s_code_again() -> None:
    sent = Settings(name="a", at=(1, (2, 3)), scale=4)
    before = Settings.total
    arrived = through(sent)
    assert (arrived, arrived.started, Settings.total) == (sent, 40, before)
    assert arrived.at == (1, (2, 3))


def test_attributes_beside_the_fields_arrive_and_what_is_computed_is_computed_again() -> None:
    tree = Tree(1, [Tree(2)])
    assert tree.size == 2
    tree.note = "n"
    assert through(tree).__dict__ == {"value": 1, "children": [Tree(2)], "note": "n"}
    noted = Noted(1)
    noted.noted = {"k"}
    noted.hide(7)
    arrived = through(noted)
    assert (arrived.x, arrived.noted, arrived.shown()) == (1, {"k"}, 7)
    one = Subclass(1, 2)
    one.more = [3]
    assert through(one) == one and through(one).more == [3]


def test_a_class_is_named_once_in_a_message_and_again_in_the_next() -> None:
    codec = Codec()
    name = f"{Point.__module__}:Point".encode()
    data = codec.encode([Point(n) for n in range(50)])
    assert data.count(name) == 1 and codec.encode(Point(1)).count(name) == 1
    assert codec.decode(data) == [Point(n) for n in range(50)]


def test_arrays_in_fields_lie_behind_the_message() -> None:
    codec = Codec()
    array = np.arange(5000)
    parts = codec.encode_parts([Box(array), {3: Pair(array)}])
    assert np.shares_memory(np.frombuffer(parts[1], "i8"), array)
    (box, pairs) = codec.decode(b"".join(parts))
    assert (box.item == array).all() and (pairs[3].left == array).all()


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (Pair(1, Box(Point(object()))), r"^\.right\.item\.x: a value of type object"),
        ([Tree(1, [Tree(lambda: 0)])], r"^\[0\]\.children\[0\]\.value: "),
        (Settings(name="a", at=(1, object())), r"^\.at\[1\]: "),
        (Rows("n"), "more than its fields"),
        (Colour, "EnumType|EnumMeta|type"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_fields_that_cannot_travel_are_named(value: object, named: str) -> None:
    with pytest.raises(EncodeError, match=named):
        Codec().encode(value)


def test_a_field_that_is_not_set_is_named() -> None:
    broken = object.__new__(Point)
    object.__setattr__(broken, "x", 1)
    with pytest.raises(EncodeError, match="AttributeError.*'y'"):
        Codec().encode(broken)


def described(*parts: object) -> bytes:
    """An instance of a class as it is described: number, name, definition, fields."""
    cls = msgpack.ExtType(10, msgpack.packb(list(parts)))
    return msgpack.packb(msgpack.ExtType(9, msgpack.packb([cls, 1, 2])))


HERE = __name__


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (described(0, f"{HERE}:Point", b"", ["x", "z"]), r"Point came with the fields x, z, but has x, y here"),
        (described(0, f"{HERE}:Point", b"", ["x"]), r"Point came with the fields x, but has x, y here"),
        (described(0, f"{HERE}:Nothing", b"", ["x"]), "no class 'Nothing'"),
        (described(0, "no_such_module:Point", b"", ["x"]), "no_such_module"),
        (described(0, "os:system", b"", ["x"]), "os:system is no dataclass"),
        (described(0, "os:stat_result", b"", ["x"]), "is no dataclass"),
        (described(0, "subprocess:Popen", b"", ["x"]), "is no dataclass"),
        (described(0, f"{HERE}:Colour", b"", None), "not 1|no member|too many"),
        (described(0, f"{HERE}:Point", b"junk", ["x", "y"]), "DecodeError|cannot decode"),
        (described("0", f"{HERE}:Point", b"", ["x", "y"]), "names no class"),
        (msgpack.packb(msgpack.ExtType(9, msgpack.packb([0, 1]))), "no instance of a class"),
        (msgpack.packb(msgpack.ExtType(9, b"\xc0")), "no instance of a class"),
        (msgpack.packb(msgpack.ExtType(11, b"\xc0")), "unknown message tag 11"),
    ],
)
def test_what_is_no_instance_is_a_decode_error(data: bytes, named: str) -> None:
    codec = Codec()
    with pytest.raises(DecodeError, match=named):
        codec.decode(data)
    assert codec.decode(codec.encode(Point(1))) == Point(1)


@pytest.fixture
def other_fields() -> Iterator[None]:
    """The class has another field where messages arrive."""
    before = Point

    @dataclass(frozen=True, slots=True)
    class Newer:
        x: float
        z: float

    Newer.__qualname__ = "Point"
    globals()["Point"] = Newer
    yield
    globals()["Point"] = before


def test_a_class_that_has_changed_where_it_arrives_is_found_out_each_time(request: pytest.FixtureRequest) -> None:
    codec = Codec()
    data = codec.encode(Point(1))
    assert codec.decode(data) == Point(1)
    request.getfixturevalue("other_fields")
    with pytest.raises(DecodeError, match=r"Point came with the fields x, y, but has x, z here"):
        codec.decode(data)


def test_untagged_message_is_the_class_itself() -> None:
    """A17: ``@message`` without a tag works, and a class that cannot be a message is refused at the decorator."""
    assert isinstance(Untagged, type) and dataclasses.is_dataclass(Untagged)
    with pytest.raises(TypeError, match="put @message above @dataclass"):

        @message
        class Plain:
            pass

    with pytest.raises(TypeError, match="takes a tag"):
        message("8")  # type: ignore[call-overload]
