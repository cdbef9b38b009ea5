"""Exhaustive exploration of the channels' protocol on weak memory: `python -m explorer` in tests/channels.

machine     a thread as a step machine: a generator that yields loads, stores, swaps, fences, system calls
store_buffers, views    what memory may do: TSO and PSO, and the release/acquire fragment of C11 with data races
search      all interleavings of a configuration, with crashes at each step; promises, deadlocks, livelocks
protocol, membership, spill    docs/channels.md as programs
configurations, mutations      the small worlds, and what must break when a line of the protocol is missing
"""
