"""The bench of the front end's cost runs in a tiny form: every token of every stream arrives. Nothing is timed here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_a_stub_engine_s_tokens_all_arrive(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bench.frontend_cost", "--offered", "2000", "--seconds", "0.1", "--streams", "4"]
    command += ["--repetitions", "1", "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "frontend_cost.json").read_text())
    (row,) = report["tables"][0]["rows"]
    assert row["tokens/s"]["median"] > 0
    assert 0 < row["pieces"]["median"] <= 1
    assert row["processor time"]["unit"] == "µs"
    assert len(report["targets"]) == 1
