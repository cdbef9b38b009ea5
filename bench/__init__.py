"""Benchmarks: ratios measured side by side in one run. ``python -m bench.NAME``, from the repository's root."""
