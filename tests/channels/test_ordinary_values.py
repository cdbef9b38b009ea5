"""Promises of the codec: Python's ordinary types arrive as themselves, equal and of their type; others are refused."""

from __future__ import annotations

import math
import pathlib
from collections import Counter, OrderedDict, UserDict, defaultdict, deque
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from fractions import Fraction
from uuid import UUID
from zoneinfo import ZoneInfo

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringcast.channels import Codec, DecodeError, EncodeError

WHEN = datetime(2024, 2, 29, 23, 59, 58, 999_999)
ZONE = ZoneInfo("Europe/Berlin")

VALUES = [
    WHEN,
    WHEN.replace(tzinfo=UTC),
    WHEN.replace(tzinfo=ZONE, fold=1),
    WHEN.replace(tzinfo=timezone(timedelta(hours=-3, seconds=7), "odd")),
    WHEN.date(),
    time(1, 2, 3, 4, fold=1),
    time(1, tzinfo=timezone(timedelta(minutes=90))),
    timedelta(days=-1, microseconds=1),
    timedelta.min,
    UTC,
    ZONE,
    Decimal("-0.10"),
    Decimal("1E+400"),
    Decimal("-Infinity"),
    Fraction(-7, 3),
    UUID("12345678123456781234567812345678"),
    pathlib.Path("/tmp/a b"),
    pathlib.PurePosixPath("x/../y"),
    pathlib.PureWindowsPath(r"C:\a"),
    pathlib.Path("/tmp/\udcff"),
    set(),
    {1, "a", None, (1, (2, "x")), b"b", 2.5, frozenset({3})},
    frozenset({(1, 2)}),
    1 - 2j,
    range(10, 0, -3),
    slice(1, None, 2),
    2**64,
    -(2**63) - 1,
    10**400,
    -(10**400),
    OrderedDict([("b", 1), ("a", [2])]),
    Counter({"x": 2, "y": -1}),
    defaultdict(list, {"k": [1]}),
    defaultdict(None, {"k": 1}),
    deque([1, [2], "x"], maxlen=5),
    deque(),
    {b"k": 1, 5: 2, (1, "a"): 3, True: 4, None: 5, (1, (2, 3)): 6, 1.5: 7, frozenset({1}): 8, date(2024, 1, 1): 9},
]


def through(value: object) -> object:
    codec = Codec()
    assert codec.decode(b"".join(codec.encode_parts(value))) == value
    return codec.decode(codec.encode(value))


@pytest.mark.parametrize("value", VALUES, ids=[f"{type(v).__name__}-{n}" for n, v in enumerate(VALUES)])
def test_ordinary_values_arrive_as_themselves_alone_and_within_others(value: object) -> None:
    for sent, arrived in ((value, through(value)), (value, through({"k": [value]})["k"][0])):
        assert arrived == sent and type(arrived) is type(sent)
    if isinstance(value, (datetime, time)):
        arrived = through(value)
        assert (arrived.fold, arrived.tzinfo, str(arrived)) == (value.fold, value.tzinfo, str(value))
    if isinstance(value, deque):
        assert through(value).maxlen == value.maxlen
    if isinstance(value, defaultdict):
        assert through(value).default_factory is value.default_factory
    if isinstance(value, dict):
        assert [type(key) for key in through(value)] == [type(key) for key in value]


def test_nan_of_a_decimal_and_of_a_complex_survive() -> None:
    assert Codec().decode(Codec().encode(Decimal("-sNaN12"))).compare_total(Decimal("-sNaN12")) == 0
    arrived = Codec().decode(Codec().encode(complex(math.nan, 1)))
    assert math.isnan(arrived.real) and arrived.imag == 1


HASHABLE = st.recursive(
    st.integers()
    | st.text(st.characters(exclude_categories=["Cs"]))
    | st.binary()
    | st.none()
    | st.decimals(allow_nan=False),
    lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(HASHABLE, st.sets(HASHABLE, max_size=4), max_size=4))
def test_whatever_is_hashable_and_travels_can_be_a_key_and_a_member(value: object) -> None:
    through(value)


@given(st.datetimes(timezones=st.timezones() | st.none()))
def test_every_datetime_survives(value: datetime) -> None:
    arrived = Codec().decode(Codec().encode(value))
    assert arrived.isoformat() == value.isoformat() and arrived.fold == value.fold


class Text(str):
    pass


class Number(int):
    pass


class Stamp(datetime):
    pass


class Rows(dict):
    pass


class OwnZone(tzinfo):
    def utcoffset(self, when):
        return timedelta(0)


class Users(UserDict):
    pass


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (Text("x"), "Text cannot travel in a message: it would arrive as a plain str"),
        ([Number(3)], r"^\[0\]: .*plain int"),
        (Stamp(2024, 1, 1), "plain datetime.datetime"),
        (Rows(a=1), "plain dict"),
        (datetime(2024, 1, 1, tzinfo=OwnZone()), r"^\.tzinfo: .*OwnZone"),
        (defaultdict(lambda: 1), "built-in type or None"),
        (OrderedDict(k=object()), r"^\['k'\]: "),
        (Counter({object(): 1}), r"^\.keys\(\): "),
        (deque([1, object()]), r"^\[1\]: "),
        ({"a": [1, {2: object()}]}, r"^\['a'\]\[1\]\[2\]: "),
        (ValueError("x"), "send its text"),
        (lambda: 0, "send data"),
        (Users(), "make its class a dataclass"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_would_change_is_refused_with_its_place_and_a_remedy(value: object, named: str) -> None:
    with pytest.raises(EncodeError, match=named):
        Codec().encode(value)


def test_errors_of_values_deep_inside_show_the_beginning_of_their_path() -> None:
    value: object = object()
    for _ in range(100):
        value = [value]
    with pytest.raises(EncodeError, match=r"^(\[0\]){16}\.\.\.: a value of type object") as error:
        Codec().encode(value)
    assert len(error.value.path) == 100


@pytest.mark.parametrize(
    "packed",
    [
        *[[], [99], [-1, 0], ["x"], None, 5, [0], [0, "x"], [5, [1]], [7, 0, None, 1], [7, 0, 5, 2024, 1, 1]],
        *[[10, 2**60, 0, 0], [12, "../../etc/passwd"], [12, "No/Zone"], [13, "junk"], [15, b"short"], [16, 3]],
        *[[19, "a"], [21, "eval"]],
    ],
    ids=repr,
)
def test_packed_values_that_make_no_sense_are_a_decode_error(packed: object) -> None:
    with pytest.raises(DecodeError):
        Codec().decode(msgpack.packb(msgpack.ExtType(8, msgpack.packb(packed))))


def test_numpy_scalars_that_are_floats_and_texts_stay_numpys() -> None:
    for value in (np.float64(1.5), np.str_("x"), np.str_(""), np.bytes_(b"")):
        arrived = Codec().decode(Codec().encode(value))
        assert arrived == value and type(arrived) is type(value)
