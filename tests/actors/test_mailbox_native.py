"""The native message and the native figures of a mailbox, by themselves."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringcast.actors._native import BUCKETS, Incoming, MeterCore
from ringcast.actors.call_context import EMPTY


class Origin:
    """Something that messages can hold and that holds them."""

    message: object = None


def message(*more: Any) -> Incoming:
    origin: Any = Origin()
    return Incoming(7, "double", [1], {"x": 2}, origin, 100, EMPTY, *more)


def test_a_message_is_what_it_was_made_of() -> None:
    incoming = message(True, False)
    assert (incoming.call_id, incoming.method, incoming.args, incoming.kwargs) == (7, "double", [1], {"x": 2})
    assert (incoming.size_bytes, incoming.context, incoming.is_stream, incoming.quiet) == (100, EMPTY, True, False)
    assert (incoming.arrived_at, incoming.began_at) == (0.0, 0.0)
    assert (message().is_stream, message().quiet, message(False, True).quiet) == (False, False, True)
    incoming.arrived_at = 1.5
    assert incoming.arrived_at == 1.5
    with pytest.raises(AttributeError):
        incoming.method = "other"  # type: ignore[misc]


def test_wrong_arguments_are_refused() -> None:
    make: Any = Incoming
    for given_, text in (
        ((1, "m"), "7 to 9 arguments, all by position, not 2"),
        ((1, "m", (), {}, None, "large", EMPTY), "integer"),
        ((1, "m", (), {}, None, 1, EMPTY, False, False, None), "not 10"),
    ):
        with pytest.raises(TypeError, match=text):
            make(*given_)
        with pytest.raises(TypeError, match=text):
            make.__new__(make, *given_)
    for call in (lambda: make(1, "m", (), {}, None, 1, context=EMPTY), lambda: make.__new__(make, context=EMPTY)):
        with pytest.raises(TypeError, match="by position"):
            call()


def test_a_message_that_holds_itself_is_collected() -> None:
    incoming = message()
    origin: Any = incoming.origin
    origin.message = incoming
    gone = weakref.ref(origin)
    del incoming, origin
    gc.collect()
    assert gone() is None


@given(st.lists(st.floats(0, 1e15), max_size=20))
def test_figures_are_counted_as_told(times: list[float]) -> None:
    meter = MeterCore()
    buckets = [0] * BUCKETS
    total_s = 0.0
    for seconds in times:
        meter.took(seconds, 0.0)
        meter.handled_since(seconds, 0.0)
        total_s += seconds
        buckets[min(int(seconds * 1e6).bit_length(), BUCKETS - 1)] += 1
    assert meter.queue_histogram == meter.handling_histogram == buckets
    assert meter.queue_time_s == meter.handling_time_s == total_s
    assert (meter.handled, meter.peak_depth, meter.taken_at) == (len(times), 0, times[-1] if times else 0.0)


def test_times_are_never_negative_and_must_be_numbers() -> None:
    meter = MeterCore()
    meter.took(1.0, 2.0)
    assert (meter.queue_time_s, meter.taken_at, meter.queue_histogram[0]) == (0.0, 1.0, 1)
    wrong: Any = meter
    with pytest.raises(TypeError, match="took takes 2 arguments, not 1"):
        wrong.took(1.0)
    with pytest.raises(TypeError, match="real number"):
        wrong.handled_since(1.0, "then")
    assert meter.handled == 0
