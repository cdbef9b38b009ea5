"""Promises of the codec: values survive, what cannot travel is named, no bytes do worse than DecodeError."""

from __future__ import annotations

import contextlib
import gc
import math
from dataclasses import dataclass, field

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringcast.channels import Codec, DecodeError, EncodeError, message


@message(108)
@dataclass(frozen=True, slots=True)
class Point:
    x: int
    y: int = 5


@message(109)
@dataclass(frozen=True)
class Tree:
    name: str
    children: list[object] = field(default_factory=list)


@message(110)
@dataclass
class Nothing:
    pass


@message(111)
@dataclass
class Even:
    number: int

    def __post_init__(self) -> None:
        if self.number % 2:
            raise ValueError(f"{self.number} is odd")


@message(113)
@dataclass
class Counted:
    number: int
    calls = 0

    def __init__(self, number: int) -> None:
        Counted.calls += 1
        self.number = number


@message(114)
@dataclass
class Guarded:
    number: int

    def __setattr__(self, name: str, value: object) -> None:
        object.__setattr__(self, name, -1)


class Ref:
    def __init__(self, number: int, home: str) -> None:
        self.number, self.home = number, home


class SpecialRef(Ref):
    pass


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"]))
    | st.binary()
)


def containers(inner):
    return (
        st.lists(inner, max_size=5)
        | st.dictionaries(st.text(max_size=5) | st.integers(0, 9), inner, max_size=5)
        | st.builds(Point, st.integers(0, 9), st.integers(0, 9))
        | st.builds(Tree, st.just("t"), st.lists(inner, max_size=3))
    )


PLAIN = st.recursive(SCALARS, containers, max_leaves=20)


@given(PLAIN)
def test_values_survive(value):
    codec = Codec()
    assert codec.decode(codec.encode(value)) == value
    assert codec.decode(memoryview(codec.encode(value))) == value


@given(st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(SCALARS, inner), max_leaves=20))
def test_plain_values_are_the_same_bytes_as_msgpacks(value):
    data = msgpack.packb(value)
    assert Codec().encode(value) == data
    assert Codec().decode(data) == msgpack.unpackb(data, strict_map_key=False)


EDGES = [0, 1, 15, 16, 17, 31, 32, 33, 255, 256, 65535, 65536]


@pytest.mark.parametrize("size", EDGES)
def test_lengths_around_every_border_of_the_format(size):
    codec = Codec()
    for value in ("x" * size, "é" * size, b"x" * size, [None] * size, {i: None for i in range(size)}):
        data = msgpack.packb(value)
        assert codec.encode(value) == data
        assert codec.decode(data) == value
    tree = Tree("x" * size, [Point(1)])
    body = msgpack.packb(["x" * size, [msgpack.ExtType(108, msgpack.packb([1, 5]))]])
    assert codec.encode(tree) == msgpack.packb(msgpack.ExtType(109, body))
    assert codec.decode(codec.encode(tree)) == tree


@pytest.mark.parametrize("bits", [5, 6, 7, 8, 15, 16, 31, 32, 63, 64])
def test_numbers_around_every_border_of_the_format(bits):
    codec = Codec()
    for number in (2**bits - 1, 2**bits, -(2**bits), -(2**bits) - 1):
        if -(2**63) <= number < 2**64:
            assert codec.encode(number) == msgpack.packb(number)
            assert codec.decode(codec.encode(number)) == number
    assert codec.decode(msgpack.packb(0.5, use_single_float=True)) == 0.5


def test_buffers_of_bytes_arrive_as_bytes():
    codec = Codec()
    assert codec.decode(codec.encode([bytearray(b"b"), memoryview(b"m")])) == [b"b", b"m"]


def test_messages_arrive_as_their_class_nested_in_anything():
    codec = Codec()
    value = Tree("root", [Point(1, 2), Tree("leaf", [{"at": Point(3)}]), Nothing(), [Even(2)]])
    assert codec.decode(codec.encode(value)) == value


def test_tuples_arrive_as_lists_and_lists_stay_lists():
    codec = Codec()
    assert codec.decode(codec.encode((1, [2, (3,)], []))) == [1, [2, [3]], []]


def test_message_travels_as_its_tag_and_the_list_of_its_fields():
    assert Codec().encode(Point(1, 2)) == msgpack.packb(msgpack.ExtType(108, msgpack.packb([1, 2])))


def test_last_fields_with_defaults_may_be_missing():
    assert Codec().decode(msgpack.packb(msgpack.ExtType(108, msgpack.packb([1])))) == Point(1, 5)


def test_nan_and_infinities_survive():
    codec = Codec()
    nan, up, down = codec.decode(codec.encode([math.nan, math.inf, -math.inf]))
    assert math.isnan(nan) and (up, down) == (math.inf, -math.inf)


def test_types_with_context_are_packed_by_their_functions_and_so_are_subclasses():
    codec = Codec({Ref: (1, lambda ref: str(ref.number).encode(), lambda data: Ref(int(data), "here"))})
    one, two = codec.decode(codec.encode([Ref(7, "there"), Tree("t", [SpecialRef(8, "there")])]))
    assert (type(one), one.number, one.home) == (Ref, 7, "here")
    assert two.children[0].number == 8
    with pytest.raises(DecodeError, match="unknown message tag 1"):
        Codec().decode(codec.encode(Ref(1, "")))


def test_code_of_a_class_that_makes_its_instances_is_run():
    codec = Codec()
    data = codec.encode(Counted(4))
    before = Counted.calls
    assert codec.decode(data).number == 4 and Counted.calls == before + 1
    assert codec.decode(codec.encode(Guarded(5))).number == -1
    assert codec.decode(codec.encode(Even(6))) == Even(6)


def test_decoded_messages_are_ordinary_instances():
    codec = Codec()
    point, tree = codec.decode(codec.encode([Point(1, 2), Tree("t")]))
    with pytest.raises(AttributeError):
        point.x = 5  # frozen, with slots
    assert hash(point) == hash(Point(1, 2)) and repr(point) == repr(Point(1, 2))
    assert tree.__dict__ == {"name": "t", "children": []}
    assert gc.is_tracked(tree)


def test_packing_that_encodes_something_else_meanwhile_disturbs_nothing():
    codec = Codec({Ref: (1, lambda ref: codec.encode([ref.number, "x" * 1000]), lambda data: codec.decode(data)[0])})
    value = [Tree("t" * 500, [Ref(i, "") for i in range(20)]), "end"]
    tree, end = codec.decode(codec.encode(value))
    assert (tree.children, end) == (list(range(20)), "end")


@pytest.mark.parametrize("container", [list, dict])
def test_container_that_changes_while_it_is_encoded_is_an_error(container):
    def pack(ref):
        target.clear()
        return b""

    codec = Codec({Ref: (1, pack, lambda data: None)})
    target = [Ref(1, ""), 2, 3] if container is list else {1: Ref(1, ""), 2: 2}
    with pytest.raises(EncodeError, match="changed its size"):
        codec.encode(target)


def test_bad_result_of_a_packing_function_is_an_error():
    with pytest.raises(EncodeError):
        Codec({Ref: (1, lambda ref: "text", lambda data: None)}).encode(Ref(1, ""))
    with pytest.raises(EncodeError, match="ZeroDivisionError"):
        Codec({Ref: (1, lambda ref: 1 / 0, lambda data: None)}).encode(Ref(1, ""))
    codec = Codec({Ref: (1, lambda ref: b"", lambda data: 1 / 0)})
    with pytest.raises(DecodeError, match="ZeroDivisionError"):
        codec.decode(codec.encode([Ref(1, "")]))


def test_interrupts_pass_through():
    def interrupt(_):
        raise KeyboardInterrupt

    codec = Codec({Ref: (1, interrupt, interrupt)})
    with pytest.raises(KeyboardInterrupt):
        codec.encode([Ref(1, "")])
    with pytest.raises(KeyboardInterrupt):
        codec.decode(msgpack.packb(msgpack.ExtType(1, b"")))


def test_cause_of_an_error_is_kept():
    with pytest.raises(EncodeError) as encoding:
        Codec().encode("\ud800")
    assert isinstance(encoding.value.__cause__, UnicodeEncodeError)
    with pytest.raises(DecodeError) as decoding:
        Codec().decode(packed(111, msgpack.packb([3])))
    assert isinstance(decoding.value.__cause__, ValueError)


def nested_lists(depth):
    value: list[object] = []
    for _ in range(depth):
        value = [value]
    return value


def nested_trees(depth):
    value = Tree("leaf")
    for _ in range(depth):
        value = Tree("t", [value])
    return value


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (object(), "builtins.object|of type object"),
        ([1, {"k": Ref(1, "")}], "Ref"),
        (Tree("t", [{1, Ref(1, "")}]), r"^.children\[0\] \(a member\): a value of type .*Ref"),
        ("\ud800", "str"),
        (Tree("\ud800"), "Tree"),
        (nested_lists(5000), "list"),
        (nested_trees(64), "nested deeper than 64"),
        (lambda: 0, "function"),
        ([{"inner": {(1, (2, lambda: 0)): 3}}], r"^\[0\]\['inner'\].keys\(\)\[1\]\[1\]: .*function"),
    ],
)
def test_what_cannot_travel_is_named_and_the_codec_goes_on(value, named):
    codec = Codec()
    with pytest.raises(EncodeError, match=named):
        codec.encode(value)
    assert codec.decode(codec.encode(Tree("next", [Point(1)]))) == Tree("next", [Point(1)])


def packed(tag, data):
    return msgpack.packb(msgpack.ExtType(tag, data))


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (b"", "0 bytes"),
        (b"\xc1", "1 bytes"),
        (b"\x01\x02", "2 bytes: it ends after 1"),
        (b"\xdd\xff\xff\xff\xff", "5 bytes"),
        (b"\xc6\xff\xff\xff\xff", "5 bytes"),
        (b"\xa1\xff", "UnicodeDecodeError"),
        (b"\x91" * 5000 + b"\x01", "5001 bytes"),
        (b"\x81\x91\x01\x02", "unhashable"),
        (packed(99, b""), "unknown message tag 99"),
        (packed(108, b""), "bytes"),
        (packed(108, b"\x05"), "Point came as a int"),
        (packed(108, b"\xdd\xff\xff\xff\xff"), "more elements than there are bytes"),
        (packed(108, msgpack.packb([1, 2]) + b"\x01"), "bytes follow the fields"),
        (packed(108, b"\x92\x01\xa5"), "end within a value"),
        (b"\xd4\xff\x01", "unknown message tag -1"),
        (b"\xdf\x7f\xff\xff\xff\x01\x01", "more elements than there are bytes"),
        (packed(108, msgpack.packb([])), "Point do not fit"),
        (packed(108, msgpack.packb([1, 2, 3])), "Point do not fit"),
        (packed(111, msgpack.packb([3])), "3 is odd"),
    ],
)
def test_undecodable_bytes_are_a_decode_error(data, named):
    codec = Codec()
    with pytest.raises(DecodeError, match=named):
        codec.decode(data)
    assert codec.decode(codec.encode(Point(1))) == Point(1)


def test_a_bomb_of_nested_messages_is_a_decode_error():
    data = msgpack.packb([])
    for _ in range(3000):
        data = packed(109, b"\x91" + data)
    with pytest.raises(DecodeError, match="deeper than 64"):
        Codec().decode(data)


STARTS = st.sampled_from([b"\xc7\x10\x6c", b"\xd8\x6d", b"\x92"])  # of extensions 108 and 109, of a list


@given(st.binary(max_size=200) | st.builds(bytes.__add__, STARTS, st.binary()))
def test_no_bytes_do_worse_than_decode_error(data):
    codec = Codec()
    with contextlib.suppress(DecodeError):
        codec.decode(data)
    assert codec.decode(codec.encode(Point(1))) == Point(1)


@given(PLAIN, st.integers(0, 10_000), st.integers(0, 255))
def test_one_changed_byte_does_no_worse_than_decode_error(value, position, byte):
    codec = Codec()
    data = bytearray(codec.encode(value))
    data[position % len(data)] = byte
    with contextlib.suppress(DecodeError):
        codec.decode(bytes(data))


def test_registration_is_checked():
    with pytest.raises(ValueError, match="taken by Point"):

        @message(108)
        @dataclass
        class Other:
            pass

    with pytest.raises(ValueError, match=r"1\.\.127"):
        message(128)(Point)
    with pytest.raises(TypeError, match="not a dataclass"):
        message(112)(Ref)
    with pytest.raises(TypeError, match="field hidden"):

        @message(112)
        @dataclass
        class Odd:
            hidden: int = field(init=False)

    message(108)(Point)  # the same class again, as when a module is reloaded
