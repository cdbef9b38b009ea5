"""Each section of the channel benchmark runs in its tiny form and reports the rows it should. Nothing is timed here."""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench import throughput
from bench.report import Figure, Report, add_out

ROOT = Path(__file__).parents[2]
HAS_ZMQ, HAS_ICEORYX, HAS_MATPLOTLIB = (
    importlib.util.find_spec(name) is not None for name in ("zmq", "iceoryx2", "matplotlib")
)
PEERS = ["multiprocessing.Pipe", *(["pyzmq"] if HAS_ZMQ else []), *(["iceoryx2"] if HAS_ICEORYX else [])]


def _run(section: str, folder: Path, *options: str) -> dict[str, Any]:
    """The JSON that a tiny run of one section writes."""
    command = [sys.executable, "-m", "bench.channels", "--tiny", "--sections", section, "--out", str(folder), *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    page = (folder / "channels.md").read_text()
    assert page in done.stdout
    report: dict[str, Any] = json.loads((folder / "channels.json").read_text())
    for table in report["tables"]:
        assert f"## {table['title']}" in page
    return report


def _rows(report: dict[str, Any], title: str) -> dict[str, dict[str, Any]]:
    """Rows of a table by their first cell."""
    (table,) = [table for table in report["tables"] if table["title"] == title]
    return {next(iter(row.values())): row for row in table["rows"]}


def test_latency_compares_all_transports_and_draws_them(tmp_path: Path) -> None:
    report = _run("latency", tmp_path)
    rows = _rows(report, "One-way latency")
    assert list(rows) == ["ringcast", *PEERS, "a shared word, no bytes"]
    del rows["a shared word, no bytes"]
    for row in rows.values():
        for size in ("64 B", "1 KiB", "16 KiB"):
            assert row[size]["unit"] == "µs"
            assert row[size]["median"] > 0
    assert (tmp_path / "channels-latency.png").exists() == HAS_MATPLOTLIB
    assert len(report["targets"]) == 2
    assert report["machine"]["cores_allowed"]


def test_wake_up_stands_beside_bare_eventfds(tmp_path: Path) -> None:
    rows = _rows(_run("wake", tmp_path), "Waking a sleeper")
    assert {
        "ringcast, thread",
        "bare eventfd, thread in read",
        "ringcast, uvloop",
        "bare eventfd, uvloop add_reader",
        "multiprocessing.Pipe",
    } <= set(rows)
    assert rows["bare eventfd, thread in read"]["against bare eventfd"]["median"] == 1


def test_throughput_reports_rates_of_all_transports(tmp_path: Path) -> None:
    rows = _rows(_run("throughput", tmp_path), "Throughput one way")
    assert list(rows) == ["ringcast", "ringcast, records in a buffer", *PEERS]
    assert rows["ringcast"]["64 B, batches of 64"]["median"] > 0
    assert rows["multiprocessing.Pipe"]["16 KiB"]["unit"] == "GB/s"


def test_fan_out_counts_one_eventfd_write_for_each_sleeper(tmp_path: Path) -> None:
    report = _run("fan-out", tmp_path)
    assert set(_rows(report, "Fan-out to awake readers")) > {"ringcast, a flush each", *PEERS}
    sleeping = _rows(report, "Sleeping readers")
    assert {asleep: row["eventfd writes"] for asleep, row in sleeping.items()} == {n: n for n in "01248"}
    assert list(_rows(report, "24 MiB to 4 readers")) == ["ringcast", *PEERS, "memcpy into fresh 4 KiB pages"]


def test_quiet_reports_system_calls_and_idle_readers(tmp_path: Path) -> None:
    report = _run("quiet", tmp_path, "--only-ours")
    steady = _rows(report, "Steady state")
    assert list(steady) == ["ringcast, ping-pong of 1,000", "ringcast, stream of 1,000"]
    assert list(_rows(report, "Idle")) == ["ringcast, thread", "ringcast, uvloop"]


def test_a_stopped_reader_misses_nothing_and_under_spill_stops_nobody(tmp_path: Path) -> None:
    report = _run("slow-reader", tmp_path)
    rows = _rows(report, "A stopped reader")
    assert list(rows) == ["wait", "spill"]
    for row in rows.values():
        assert row["the stopped one received"] == "32,000 of 32,000 in order"


@pytest.mark.skipif(not HAS_MATPLOTLIB, reason="without matplotlib nothing is drawn")
def test_throughput_is_drawn_over_streams_and_tabulated_beside_its_peers(tmp_path: Path) -> None:
    """All of the report but the measuring, with rates that were made up."""
    engines = [throughput.Engine(label, "none", tmp_path) for label in (throughput.BF16, throughput.PACKED)]
    engines.append(throughput.Engine(throughput.LLAMACPP, "none", tmp_path, most_streams=1))
    rates = {(e.label, task): Figure((10.0, 12.0), "") for e in engines for task in ("1", "16", "prefill")}
    del rates[throughput.LLAMACPP, "16"]
    found = Report("throughput", throughput.METHOD, {})
    throughput._fill(found, engines, rates, ["1", "16"])
    assert [target.reached for target in found.targets] == [False, False, False]  # as fast is not fast enough
    assert found.write(tmp_path)[0].read_text().count("1x") >= 4
    curves = throughput.curves(engines, rates, [1, 16])
    assert [curve.label for curve in curves] == [throughput.BF16, throughput.PACKED]
    throughput.plot(tmp_path / "throughput.png", curves)
    assert (tmp_path / "throughput.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("wrong", [["--sections", "nothing"], ["--vllm-python"]])
def test_wrong_options_are_refused(wrong: list[str]) -> None:
    done = subprocess.run([sys.executable, "-m", "bench.channels", *wrong], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert "usage: python -m bench.channels" in done.stderr


def test_a_folder_that_cannot_be_written_is_told_before_anything_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parser = argparse.ArgumentParser()
    add_out(parser)
    (tmp_path / "file").write_text("")
    for folder, why in ((tmp_path / "file" / "x", "Not a directory"), (Path("/proc/no"), "No such file or directory")):
        with pytest.raises(SystemExit):
            parser.parse_args(["--out", str(folder)])
        assert f"argument --out: cannot write to {folder}: {why}; give another folder" in capsys.readouterr().err
    assert parser.parse_args(["--out", str(tmp_path / "new")]).out == tmp_path / "new"
    assert list((tmp_path / "new").iterdir()) == []


def test_a_failing_interpreter_is_named_and_costs_its_section_alone(tmp_path: Path) -> None:
    if importlib.util.find_spec("vllm"):
        pytest.skip("this interpreter has vLLM")
    options = ["--tiny", "--sections", "latency", "wake", "--vllm-python", sys.executable, "--out", str(tmp_path)]
    done = subprocess.run([sys.executable, "-m", "bench.channels", *options], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode != 0
    assert "VllmEndpoint" in done.stderr
    assert "No module named 'vllm'" in done.stderr
    page = (tmp_path / "channels.md").read_text()
    assert "without the section latency: it ended early" in page
    assert "## Waking" in page and "One-way" not in page
