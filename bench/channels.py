"""The channels beside multiprocessing.Pipe, pyzmq, iceoryx2 and vLLM's ring: ``python -m bench.channels [--quick]``.

Writes a Markdown page, JSON and a plot. Figures are ratios and medians of one run on one machine, never single numbers.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
import time
from collections.abc import Callable
from typing import Final

from .report import Report, add_out, describe_machine, plot_curves
from .sections import FULL, OURS, PEERS, QUICK, TINY, Bench, Transport, fan_out, latency, quiet, slow, throughput, wake
from .workers import Cores, WorkerFailed

METHOD: Final = (
    "Two processes for each transport, connected once, each pinned to a core of its own together with its library's "
    "threads. One pair measures at a time, the others sleep.",
    "Within a repetition all transports run one after another, so that what disturbs the machine disturbs all. "
    "Cells are medians over the repetitions, in brackets their quartiles; ratios are taken repetition by repetition.",
    "Everything is sent by Python and received by Python, as bytes of the reader's own. Loops are warmed up first.",
    "Latencies contain one call of the clock (timer_ns).",
)
SECTIONS: Final = ("latency", "wake", "throughput", "fan-out", "quiet", "slow-reader")


def main(arguments: list[str] | None = None) -> None:
    """Measure what is asked for and write the report."""
    options = _parse(arguments)
    plan = TINY if options.tiny else QUICK if options.quick else FULL
    cores = Cores.choose(not options.no_pin)
    remarks: list[str] = []
    transports = _transports(options, remarks)
    facts = {"cores_used": f"{cores.near} and {cores.far}", "timer_ns": round(_timer_ns()), "plan": str(plan)}
    if options.vllm_python:
        facts["vllm_python"] = options.vllm_python
    machine = describe_machine(("ringcast", "uvloop", "pyzmq", "iceoryx2"), facts)
    if cores.near is None:
        remarks.append("the processes were not pinned: figures vary more")
    report = Report("channels", METHOD, machine, remarks)
    bench = Bench(plan, cores, transports, report, _say)

    failed = _measure(bench, options)
    machine["load_average_at_end"] = os.getloadavg()[0]
    page, data = report.write(options.out)
    print(page.read_text())
    _say(f"written: {page}, {data}")
    if failed:
        sys.exit("\n".join(failed))


def _measure(bench: Bench, options: argparse.Namespace) -> list[str]:
    """Measure section by section; of those that failed, and are left out of the report, what happened."""
    measures: dict[str, Callable[[], object]] = {
        "latency": lambda: _measure_latency(bench, options),
        "wake": lambda: wake.measure(bench),
        "throughput": lambda: throughput.measure(bench),
        "fan-out": lambda: fan_out.measure(bench),
        "quiet": lambda: quiet.measure(bench),
        "slow-reader": lambda: slow.measure(bench),
    }
    failed = []
    for name, measure in measures.items():
        if name not in options.sections:
            continue
        try:
            measure()
        except WorkerFailed as failure:
            failed.append(f"section {name} ended early: {failure}")
            bench.report.remarks.append(f"without the section {name}: it ended early")
    return failed


def _measure_latency(bench: Bench, options: argparse.Namespace) -> None:
    curves = latency.measure(bench)
    if importlib.util.find_spec("matplotlib"):
        title = "One-way latency, Python to Python (medians, quartiles)"
        plot_curves(options.out / "channels-latency.png", title, "message size", "microseconds", curves)
    else:
        bench.report.remarks.append("without a plot: matplotlib is not installed (pip install 'ringcast[bench]')")


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.channels", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="about a minute instead of several")
    parser.add_argument("--tiny", action="store_true", help="only to see that it runs: the figures mean nothing")
    parser.add_argument(
        "--sections", nargs="+", choices=SECTIONS, default=SECTIONS, metavar="NAME", help=", ".join(SECTIONS)
    )
    parser.add_argument("--only-ours", action="store_true", help="leave the peers out")
    parser.add_argument("--vllm-python", metavar="PATH", help="an interpreter that has vLLM: adds its ring")
    parser.add_argument("--no-pin", action="store_true", help="leave the processes where the system puts them")
    add_out(parser)
    return parser.parse_args(arguments)


def _is_installed(package: str) -> bool:
    """Whether it can be imported; a mere folder of that name somewhere on the path does not count."""
    spec = importlib.util.find_spec(package)
    return spec is not None and spec.origin is not None


def _transports(options: argparse.Namespace, remarks: list[str]) -> tuple[Transport, ...]:
    """Ours and every peer that is here; who is missing gets a remark."""
    if options.only_ours:
        return (OURS,)
    found = [OURS]
    for peer in PEERS:
        if peer.package is None or _is_installed(peer.package):
            found.append(peer)
        else:
            remarks.append(f"without {peer.label}: it is not installed (pip install 'ringcast[bench]')")
    if options.vllm_python:
        vllm = "bench.transports.vllm_ring:VllmEndpoint"
        found.append(Transport("vLLM MessageQueue", vllm, None, False, None, options.vllm_python))
    return tuple(found)


def _timer_ns(calls: int = 20_000) -> float:
    now = time.perf_counter
    start = now()
    for _ in range(calls):
        now()
    return (now() - start) / calls * 1e9


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
