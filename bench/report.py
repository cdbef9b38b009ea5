"""Figures of a benchmark: medians with quartiles, tables, a JSON file, plots, and the machine they were taken on.

Every benchmark builds a `Report` and writes it once. Nothing here measures.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, Final

BUSY_LOAD: Final = 0.5  # of the machine, when a run begins: above it the report says that its figures are no good
ROOT: Final = Path(__file__).resolve().parent.parent


def add_out(parser: argparse.ArgumentParser) -> None:
    """The option ``--out`` of every benchmark: a folder, made and known to be writable before anything is measured."""
    # A default that is a text is checked, too; one that is a Path would not be.
    default = str(ROOT / "build" / "bench")
    parser.add_argument("--out", type=_writable_folder, default=default, help="folder for the results")


def _writable_folder(text: str) -> Path:
    folder = Path(text)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise argparse.ArgumentTypeError(f"cannot write to {folder}: {error.strerror}; give another folder") from error
    return folder


@dataclass(frozen=True, slots=True)
class Figure:
    """One quantity over several repetitions of a run: never a single number."""

    values: tuple[float, ...]  # one a repetition, in the order of the repetitions
    unit: str

    def __post_init__(self) -> None:
        if not self.values:
            raise ValueError(f"a figure in {self.unit} without any repetition: measure at least once")

    @property
    def median(self) -> float:
        """The figure to quote."""
        return statistics.median(self.values)

    @property
    def quartiles(self) -> tuple[float, float]:
        """Between these lies the middle half of the repetitions; the extremes if there are fewer than four."""
        if len(self.values) < 4:
            return min(self.values), max(self.values)
        first, _, third = statistics.quantiles(self.values, n=4, method="inclusive")
        return first, third

    def ratio_to(self, base: Figure) -> Figure:
        """Repetition by repetition, so that what disturbed one repetition of both cancels."""
        if len(self.values) != len(base.values):
            raise ValueError(f"{len(self.values)} repetitions against {len(base.values)}: pair them in one run")
        return Figure(tuple(a / b for a, b in zip(self.values, base.values, strict=True)), "x")

    def scaled(self, factor: float, unit: str) -> Figure:
        """The same in another unit."""
        return Figure(tuple(value * factor for value in self.values), unit)

    def __str__(self) -> str:
        low, high = self.quartiles
        unit = "x" if self.unit == "x" else f" {self.unit}" if self.unit else ""
        if f"{low:.3g}" == f"{high:.3g}":
            return f"{number_text(self.median)}{unit}"
        return f"{number_text(self.median)}{unit} ({number_text(low)}–{number_text(high)})"

    def to_json(self) -> dict[str, Any]:
        """Median, quartiles and every repetition."""
        low, high = self.quartiles
        return {"unit": self.unit, "median": self.median, "quartiles": [low, high], "values": list(self.values)}


Cell = str | Figure


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of equal length under named columns; the first column names the row."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"table {self.title!r}: row {row[0]!r} has {len(row)} of {len(self.columns)} cells")

    def to_markdown(self) -> str:
        """A pipe table under a heading, padded so that it reads as plain text too."""
        lines = [list(self.columns)] + [[str(cell) for cell in row] for row in self.rows]
        widths = [max(len(line[i]) for line in lines) for i in range(len(self.columns))]
        padded = [" | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines]
        rule = "|".join("-" * (width + 2) for width in widths)
        body = [f"| {padded[0]} |", f"|{rule}|", *(f"| {line} |" for line in padded[1:])]
        note = [self.note, ""] if self.note else []
        return "\n".join([f"## {self.title}", "", *note, *body, ""])

    def to_json(self) -> dict[str, Any]:
        """Rows as objects by column name."""
        rows = [
            {
                name: cell.to_json() if isinstance(cell, Figure) else cell
                for name, cell in zip(self.columns, row, strict=True)
            }
            for row in self.rows
        ]
        return {"title": self.title, "note": self.note, "rows": rows}


@dataclass(frozen=True, slots=True)
class Target:
    """What an issue promised, beside what this run showed."""

    name: str
    measured: Figure
    limit: float
    at_least: bool = False  # else at most

    @property
    def reached(self) -> bool:
        """Whether the median is on the right side of the limit."""
        return self.measured.median >= self.limit if self.at_least else self.measured.median <= self.limit

    def row(self) -> tuple[Cell, ...]:
        """As a row of the table of targets."""
        sign = "≥" if self.at_least else "≤"
        return (self.name, self.measured, f"{sign} {number_text(self.limit)}", "yes" if self.reached else "NO")


@dataclass(frozen=True, slots=True)
class Curve:
    """One line of a plot: a figure for each x."""

    label: str
    points: tuple[tuple[float, Figure], ...]


@dataclass(slots=True)
class Report:
    """Everything that one run of a benchmark has to say."""

    name: str
    method: tuple[str, ...]  # how it was measured: one sentence each
    machine: dict[str, Any]
    remarks: list[str] = field(default_factory=list)  # what was left out in this run, and why
    tables: list[Table] = field(default_factory=list)
    targets: list[Target] = field(default_factory=list)

    def __post_init__(self) -> None:
        load = self.machine.get("load_average_at_start", 0.0)
        if load > BUSY_LOAD:
            self.remarks.append(f"the machine was busy (load {load:.2f}): do not quote these figures")

    def to_markdown(self) -> str:
        """The page: method, machine, tables, targets."""
        parts = [f"# {self.name}", "", *(f"- {line}" for line in self.method), ""]
        parts += [f"- {key.replace('_', ' ')}: {_fact_text(value)}" for key, value in self.machine.items()]
        parts += ["", *(f"- **{line}**" for line in self.remarks), *([""] if self.remarks else [])]
        tables = [*self.tables]
        if self.targets:
            rows = tuple(target.row() for target in self.targets)
            tables.append(Table("Targets", ("what", "measured", "target", "reached"), rows))
        return "\n".join([*parts, *(table.to_markdown() for table in tables)])

    def write(self, folder: Path) -> tuple[Path, Path]:
        """``NAME.md`` and ``NAME.json`` in the folder, which is made if need be. See `add_out`."""
        folder.mkdir(parents=True, exist_ok=True)
        page, data = folder / f"{self.name}.md", folder / f"{self.name}.json"
        page.write_text(self.to_markdown())
        content = {
            "name": self.name,
            "method": self.method,
            "machine": self.machine,
            "remarks": self.remarks,
            "tables": [table.to_json() for table in self.tables],
            "targets": [
                {"name": t.name, "measured": t.measured.to_json(), "limit": t.limit, "reached": t.reached}
                for t in self.targets
            ],
        }
        data.write_text(json.dumps(content, indent=1))
        return page, data


def number_text(value: float) -> str:
    """Three significant digits, without an exponent."""
    if value == 0:
        return "0"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) >= 0.001 else f"{value:.4f}"


def size_text(size_bytes: int) -> str:
    """64 B, 16 KiB, 24 MiB."""
    for unit, factor in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size_bytes >= factor and size_bytes % factor == 0:
            return f"{size_bytes // factor} {unit}"
    return f"{size_bytes} B"


def describe_machine(packages: Sequence[str], facts: Mapping[str, Any]) -> dict[str, Any]:
    """What figures depend on; ``facts`` are the benchmark's own. Missing packages are said to be missing."""
    return {
        "taken": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "commit": _commit(),
        "processor": _processor(),
        "cores_allowed": sorted(os.sched_getaffinity(0)),
        "load_average_at_start": os.getloadavg()[0],
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "python": sys.version.split()[0],
        "packages": {name: _version(name) for name in packages},
        **facts,
    }


def plot_curves(
    path: Path,
    title: str,
    x_label: str,
    y_label: str,
    curves: Sequence[Curve],
    x_text: Callable[[float], str] = lambda x: size_text(round(x)),
) -> None:
    """A log-log plot: one labelled line per curve, quartiles as a band. ``x_text`` writes an x; default: as bytes."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import FuncFormatter, LogLocator

    figure, axes = pyplot.subplots(figsize=(9, 5.5), layout="constrained")
    ends = []
    for index, curve in enumerate(curves):
        xs = [x for x, _ in curve.points]
        medians = [figure_.median for _, figure_ in curve.points]
        lows, highs = zip(*(figure_.quartiles for _, figure_ in curve.points), strict=True)
        colour = f"C{index}"
        axes.plot(xs, medians, marker="o", markersize=4, color=colour, linewidth=2.2 if index == 0 else 1.5)
        axes.fill_between(xs, lows, highs, color=colour, alpha=0.15, linewidth=0)
        ends.append((medians[-1], curve.label, colour, xs[-1]))
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    for (_, label, colour, x), y in zip(sorted(ends), _spread([end[0] for end in sorted(ends)]), strict=True):
        axes.annotate(label, (x, y), xytext=(8, 0), textcoords="offset points", va="center", color=colour)
    axes.set_xticks(sorted({x for curve in curves for x, _ in curve.points}))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: x_text(x)))
    axes.yaxis.set_major_locator(LogLocator(base=10, subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
    axes.minorticks_off()
    axes.spines[["top", "right"]].set_visible(False)
    axes.set(title=title, xlabel=x_label, ylabel=y_label)
    axes.grid(True, alpha=0.25)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def _spread(values: Sequence[float], factor: float = 1.25) -> list[float]:
    """The sorted values, moved apart so that labels at their heights do not touch."""
    placed: list[float] = []
    for value in values:
        placed.append(max(value, placed[-1] * factor) if placed else value)
    return placed


def _fact_text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {part}" for name, part in value.items())
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith(("model name", "Model")):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _commit() -> str:
    try:
        command = ["git", "describe", "--always", "--dirty"]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown: not a git checkout"
