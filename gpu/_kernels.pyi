"""Types of the native module; see native/module.cpp. Addresses are what ``tensor.data_ptr()`` gives."""

CacheView = tuple[int, int, int, int, int, int]
PackedWeight = tuple[int, int, int, int]
Lists = tuple[int, int]  # starts, values

def best_level() -> int: ...
def norm(
    level: int,
    threads: int,
    x: int,
    weight: int,
    out: int,
    rows: int,
    size: int,
    epsilon: float,
    add: bool,
    dtype: int,
    /,
) -> None: ...
def gather(level: int, x: int, indices: int, out: int, count: int, size: int, /) -> None: ...
def rotary(
    level: int,
    threads: int,
    qkv: int,
    query_norm: int,
    key_norm: int,
    cos_sin: int,
    positions: int,
    slots: int,
    queries: int,
    tokens: int,
    heads: int,
    rotary_dim: int,
    query_scale: float,
    epsilon: float,
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
    window: int,
    softcap: float,
    cache: CacheView,
    dtype: int,
    /,
) -> None: ...
def softcap(level: int, threads: int, values: int, count: int, cap: float, /) -> None: ...
def sample(
    level: int,
    threads: int,
    logits: int,
    rows: int,
    best: int,
    temperature: int,
    top_p: int,
    top_k: int,
    min_p: int,
    seeds: int,
    positions: int,
    out: int,
    draws: int,
    vocab: int,
    /,
) -> None: ...
def adjust(
    threads: int,
    logits: int,
    allowed: Lists,
    word_starts: int,
    words: Lists,
    banned: Lists,
    biased: Lists,
    biases: int,
    history: Lists,
    prompt_tokens: int,
    repetition: int,
    frequency: int,
    presence: int,
    rows: int,
    vocab: int,
    /,
) -> None: ...
def logprobs(
    level: int,
    threads: int,
    logits: int,
    rows: int,
    tokens: int,
    token_ids: int,
    logprobs: int,
    ranks: int,
    count: int,
    vocab: int,
    width: int,
    /,
) -> None: ...
def matmul(
    level: int,
    threads: int,
    x: int,
    rows: int,
    weight: PackedWeight,
    bias: int,
    out: int,
    columns: int,
    dtype: int,
    finish: int,
    /,
) -> None: ...
def embed(level: int, threads: int, ids: int, tokens: int, weight: PackedWeight, out: int, scale: float, /) -> None: ...

class Program:
    """Notes calls down, with the arguments of the functions of the same names, and makes them in `run`."""

    def norm(self, *call: object) -> None: ...
    def rotary(self, *call: object) -> None: ...
    def attention(self, *call: object) -> None: ...
    def matmul(self, *call: object) -> None: ...
    def embed(self, *call: object) -> None: ...
    def gather(self, *call: object) -> None: ...
    def run(
        self,
        level: int,
        token_ids: int,
        positions: int,
        slots: int,
        query_starts: int,
        kv_lengths: int,
        block_tables: int,
        logit_tokens: int,
        tokens: int,
        sequences: int,
        table_stride: int,
        draws: int,
        first: int,
        count: int,
        /,
    ) -> int:
        """Make up to ``count`` calls from number ``first`` on; the number of the next one, 0 behind the last."""
