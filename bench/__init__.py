"""Benchmarks: ratios measured side by side in one run. Run one with ``python -m bench.NAME`` from the repository's root."""
