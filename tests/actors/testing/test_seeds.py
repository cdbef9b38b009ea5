"""Many seeds of one supervision scenario with every fault: the runtime keeps its promises."""

from __future__ import annotations

import pytest
from simulated_zoo import supervised_traffic

from ringcast.actors.testing import explore

pytestmark = pytest.mark.usefixtures("leak_oracle")


@pytest.mark.parametrize("ring_bytes", [4096, 1 << 16])
def test_two_hundred_seeds_with_every_fault_break_no_promise(ring_bytes: int) -> None:
    assert explore(supervised_traffic, range(200), ring_bytes=ring_bytes) == 200
