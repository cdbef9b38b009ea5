"""Types of the native module; see native/module.cpp. Addresses are what ``tensor.data_ptr()`` gives."""

CacheView = tuple[int, int, int, int, int, int]

def best_level() -> int: ...
def norm(
    level: int,
    threads: int,
    delta: int,
    residual: int,
    weight: int,
    out: int,
    rows: int,
    size: int,
    epsilon: float,
    dtype: int,
    /,
) -> None: ...
def gate(level: int, threads: int, gate_up: int, out: int, rows: int, size: int, dtype: int, /) -> None: ...
def rotary(
    level: int,
    threads: int,
    qkv: int,
    cos_sin: int,
    positions: int,
    slots: int,
    queries: int,
    tokens: int,
    heads: int,
    cache: CacheView,
    dtype: int,
    /,
) -> None: ...
def attention(
    level: int,
    threads: int,
    queries: int,
    out: int,
    block_tables: int,
    query_starts: int,
    kv_lengths: int,
    sequences: int,
    table_stride: int,
    heads: int,
    cache: CacheView,
    dtype: int,
    /,
) -> None: ...
def sample(
    threads: int,
    logits: int,
    rows: int,
    temperature: int,
    top_p: int,
    top_k: int,
    seeds: int,
    positions: int,
    out: int,
    draws: int,
    vocab: int,
    /,
) -> None: ...
