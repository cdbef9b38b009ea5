"""Generated tokens per second, beside transformers, vLLM and llama.cpp: ``python -m bench.throughput [--quick]``.

Ours runs through the public `LLM`, peers if an interpreter that has them is given; all take the same weights, and
within a repetition all engines run one after another.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ringcast.frontend.model_source import resolve_model
from ringcast.gpu import Checkpoint

from .engines import Engine, Task
from .engines.hf_folder import write_hf_folder
from .report import Curve, Figure, Report, Table, Target, add_out, describe_machine, plot_curves

METHOD: Final = (
    "Each engine is a process that loads the model once; one runs at a time, the others wait for their task.",
    "Within a repetition all engines run every task, one after another. Cells are medians over the repetitions, in "
    "brackets their quartiles; ratios are taken repetition by repetition.",
    "Streams: prompts of 12 tokens, 64 new tokens each, greedy, all sent at once; tokens are the generated ones, the "
    "time is that of the whole call. Prefill: one prompt of 800 tokens that was not seen before, one new token.",
    "Weights: the GGUF file (Q4_1, its embedding Q8_0), dequantised to bfloat16 or kept packed; peers load the same "
    "numbers from an HF folder, llama.cpp the file itself.",
)
STREAMS: Final = (1, 8, 16, 32, 64)
PROMPT_TOKENS, NEW_TOKENS, PREFILL_TOKENS = 12, 64, 800
BF16, PACKED, HF, VLLM, LLAMACPP = "ringcast bf16", "ringcast packed", "transformers bf16", "vLLM bf16", "llama.cpp"
# Issue D: ours, task, peer, peer's task, at least this many times the peer.
TARGETS: Final = (
    (BF16, "1", VLLM, "1", 2.0), (BF16, "8", VLLM, "8", 2.0), (BF16, "32", VLLM, "32", 1.6),
    (PACKED, "1", LLAMACPP, "1", 1.3), (PACKED, "16", LLAMACPP, "1", 4.0),
    (PACKED, "prefill", LLAMACPP, "prefill", 4.0),
)  # fmt: skip


def main(arguments: list[str] | None = None) -> None:
    """Measure and write the report."""
    options = _parse(arguments)
    model = options.model or resolve_model("smollm2").path
    remarks: list[str] = []
    engines = _engines(options, model, remarks)
    machine = describe_machine(("ringcast", "torch", "transformers"), {"model": model.name, "threads": options.threads})
    try:
        for engine in engines:
            _say(f"loading {engine.label}")
            engine.start(options.threads)
            machine["packages"] |= engine.facts
        rates = _measure(engines, options.streams, options.repetitions)
    finally:
        for engine in engines:
            engine.stop()
    machine["load_average_at_end"] = os.getloadavg()[0]
    report = Report("throughput", METHOD, machine, remarks)
    _fill(report, engines, rates, [str(streams) for streams in options.streams])
    page, data = report.write(options.out)
    plot(options.out / "throughput.png", curves(engines, rates, options.streams))
    print(page.read_text())
    _say(f"written: {page}, {data}")


def curves(engines: Sequence[Engine], rates: dict[tuple[str, str], Figure], streams: Sequence[int]) -> list[Curve]:
    """A line for each engine that can run more than one stream."""
    return [
        Curve(engine.label, tuple((count, rates[engine.label, str(count)]) for count in streams))
        for engine in engines
        if engine.most_streams > 1
    ]


def plot(path: Path, lines: Sequence[Curve]) -> None:
    """Draw them."""
    title = "Generated tokens per second (median, quartiles)"
    plot_curves(path, title, "streams", "tokens/s", lines, x_text=lambda x: f"{x:g}")


def _measure(engines: Sequence[Engine], streams: Sequence[int], repetitions: int) -> dict[tuple[str, str], Figure]:
    """Tokens per second by engine and task; a first repetition warms up and is not counted."""
    found: dict[tuple[str, str], list[float]] = {}
    for repetition in range(repetitions + 1):
        _say(f"repetition {repetition} of {repetitions}")
        for engine in engines:
            for count in streams:
                if count > engine.most_streams:
                    continue
                task = Task([_prompt(PROMPT_TOKENS, 100 * repetition + i) for i in range(count)], NEW_TOKENS)
                found.setdefault((engine.label, str(count)), []).append(count * NEW_TOKENS / engine.run(task))
            task = Task([_prompt(PREFILL_TOKENS, repetition)], 1)
            found.setdefault((engine.label, "prefill"), []).append(PREFILL_TOKENS / engine.run(task))
    return {key: Figure(tuple(values[1:]), "") for key, values in found.items()}


def _prompt(tokens: int, number: int) -> list[int]:
    """Token ids, different for every ``number`` from the first one on, so that no cache of prefixes helps."""
    return [1000 + (31 * number + 7 * index * (index + 3)) % 40_000 for index in range(tokens)]


def _fill(
    report: Report, engines: Sequence[Engine], rates: dict[tuple[str, str], Figure], streams: Sequence[str]
) -> None:
    tasks = (*streams, "prefill")
    rows = tuple((e.label, *(rates.get((e.label, task)) or "–" for task in tasks)) for e in engines)
    columns = ("engine", *(f"{count} stream{'s' * (count != '1')}" for count in streams), "prefill of 800")
    report.tables.append(Table("Tokens per second", columns, rows))
    for peer in engines[2:]:
        shared = [task for task in tasks if (peer.label, task) in rates]
        ratios = tuple(
            (ours, *(rates[ours, task].ratio_to(rates[peer.label, task]) for task in shared)) for ours in (BF16, PACKED)
        )
        report.tables.append(Table(f"Beside {peer.label}", ("engine", *shared), ratios))
    for ours, task, peer_label, peer_task, limit in TARGETS:
        if (peer_label, peer_task) in rates and (ours, task) in rates:
            ratio = rates[ours, task].ratio_to(rates[peer_label, peer_task])
            name = f"{ours}, {task}, beside {peer_label}, {peer_task}"
            report.targets.append(Target(name, ratio, limit, at_least=True))


def _engines(options: argparse.Namespace, model: Path, remarks: list[str]) -> list[Engine]:
    """Ours in both forms, then every peer whose interpreter was given; who is missing gets a remark."""
    engines = [Engine(BF16, "ringcast", model, ("none",)), Engine(PACKED, "ringcast", model, ("gguf",))]
    peers = ((HF, "hf", options.hf_python), (VLLM, "vllm", options.vllm_python))
    for label, driver, python in peers:
        if python:
            folder = write_hf_folder(Checkpoint.open(model), options.out / f"{model.stem}-bf16")
            engines.append(Engine(label, driver, folder, python=python))
        else:
            remarks.append(f"without {label}: give --{driver}-python")
    if options.llamacpp_python:
        engines.append(Engine(LLAMACPP, "llamacpp", model, python=options.llamacpp_python, most_streams=1))
    else:
        remarks.append(f"without {LLAMACPP}: give --llamacpp-python")
    return engines


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.throughput", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two repetitions instead of five")
    parser.add_argument("--repetitions", type=int, help="how often everything is measured")
    parser.add_argument("--streams", type=int, nargs="+", default=STREAMS, help="requests at the same time")
    parser.add_argument("--model", type=Path, help="a .gguf file of a Llama (default: the built-in smollm2)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="of every engine")
    parser.add_argument("--hf-python", metavar="PATH", help="an interpreter that has transformers")
    parser.add_argument("--vllm-python", metavar="PATH", help="an interpreter that has vLLM")
    parser.add_argument("--llamacpp-python", metavar="PATH", help="an interpreter that has llama-cpp-python")
    add_out(parser)
    options = parser.parse_args(arguments)
    options.repetitions = options.repetitions or (2 if options.quick else 5)
    return options


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
