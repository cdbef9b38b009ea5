"""The examples do what their first lines say."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

EXAMPLES = Path(__file__).parent.parent / "examples"
pytestmark = pytest.mark.usefixtures("leak_oracle")


def output_of(name: str) -> str:
    command = [sys.executable, str(EXAMPLES / name)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


def test_hello() -> None:
    assert output_of("hello.py") == "hello, world\n"


def test_crash_and_recover() -> None:
    lines = output_of("crash_and_recover.py").splitlines()
    assert lines[0] == "done by incarnation 1"
    assert "SIGKILL" in lines[1]
    assert lines[-2:] == ["event: Ready", "done by incarnation 2"]


def test_pipeline() -> None:
    assert output_of("pipeline.py").split() == [str(k * k) for k in range(11)]


def test_wsgi_counter() -> None:
    assert output_of("wsgi_counter.py") == "[1, 2, 3, 4, 5]\n"


def test_pool() -> None:
    lines = output_of("pool.py").splitlines()
    assert lines[0] == "1 result of 40 jobs"
    assert [line.partition(":")[0] for line in lines[1:]] == [f"cruncher-{rank}" for rank in range(4)]


def test_fastapi_pool() -> None:
    spec = importlib.util.spec_from_file_location("fastapi_pool", EXAMPLES / "fastapi_pool.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["fastapi_pool"] = module
    sys.path.insert(0, str(EXAMPLES))
    try:
        spec.loader.exec_module(module)
        with TestClient(module.app) as client:
            assert client.get("/crunch/10").json() == {"result": 285}
            pids = client.portal.call(client.app.state.system.pids)  # type: ignore[attr-defined, union-attr]
            for pid in pids.values():
                os.kill(pid, signal.SIGKILL)
            statuses = set()
            deadline = time.monotonic() + 10
            while 200 not in statuses and time.monotonic() < deadline:
                statuses.add(client.get("/crunch/10").status_code)
            assert statuses <= {200, 503}
            assert 200 in statuses
    finally:
        sys.path.remove(str(EXAMPLES))
        del sys.modules["fastapi_pool"]
