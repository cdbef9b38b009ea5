"""Which KV blocks hold which tokens: full blocks, found by the tokens from the sequence's start to the block's end.

`KVManager` asks it and tells it when a block is written or reused. It knows no requests and no free list.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from .errors import AccountError
from .events import KVEventLog

_ROOT = b"ringcast kv blocks 1"  # a constant: the same tokens have the same hashes after a restart
_NO_PARENT = 0


def sha256(data: bytes) -> bytes:
    """The hash of a block: collisions are for all practical purposes impossible, and harmless besides."""
    return hashlib.sha256(data).digest()


@dataclass(slots=True)
class Chain:
    """A sequence's full blocks: what the cache remembers of a request between two looks.

    The hash of a block is that of (hash of the block before, its tokens); the first one's "before" is a root made of
    the salt. Hashes depend on tokens and salt only, ``serial`` and ``num_recorded`` on what the cache holds.
    """

    salt: str | None = None
    hashes: list[bytes] = field(default_factory=list)
    contents: list[bytes] = field(default_factory=list)  # the blocks' token ids as int32
    serial: int = _NO_PARENT  # of the entry of the last recorded block
    num_recorded: int = 0  # the first so many blocks have entries, or had

    def restart(self) -> None:
        """The request gave its blocks back; its tokens are still what they were."""
        self.serial = _NO_PARENT
        self.num_recorded = 0


@dataclass(slots=True)  # not frozen: that would double what recording a block costs
class CachedBlock:
    """An entry: this block holds the keys and values of these tokens behind those of its parent. Never changed."""

    block_id: int
    hash: bytes
    serial: int  # unique for ever
    parent_serial: int
    content: bytes
    salt: str | None


class PrefixCache:
    """Entries by hash. A match is verified against tokens, salt and the identity of the parent entry.

    So a hit never depends on the hash being free of collisions. Where two blocks hold the same, the earlier one has
    the entry. An entry whose parent is gone cannot be found; the next block of the same hash takes its place.
    """

    def __init__(self, block_size: int, events: KVEventLog, hash_function: Callable[[bytes], bytes] = sha256) -> None:
        self._block_size = block_size
        self._events = events
        self._hash = hash_function
        self._by_hash: dict[bytes, CachedBlock] = {}
        self._by_block: dict[int, CachedBlock] = {}
        self._last_serial = _NO_PARENT

    def __len__(self) -> int:
        return len(self._by_block)

    def find(self, chain: Chain, tokens: Sequence[int], max_blocks: int) -> list[CachedBlock]:
        """The longest run of entries, from the first block on, at most ``max_blocks``. O(tokens)."""
        self._extend(chain, tokens, max_blocks)
        found: list[CachedBlock] = []
        parent_serial = _NO_PARENT
        for index in range(max_blocks):
            entry = self._by_hash.get(chain.hashes[index])
            if entry is None or not _is(entry, chain, index, parent_serial):
                break
            found.append(entry)
            parent_serial = entry.serial
        return found

    def adopt(self, chain: Chain, found: list[CachedBlock]) -> None:
        """The request of the chain holds the blocks that were found."""
        chain.num_recorded = len(found)
        chain.serial = found[-1].serial if found else _NO_PARENT

    def record(self, chain: Chain, tokens: Sequence[int], block_ids: Sequence[int]) -> None:
        """Make the full blocks of a request findable: ``block_ids`` are all of them, the recorded ones too."""
        self._extend(chain, tokens, len(block_ids))
        for index in range(chain.num_recorded, len(block_ids)):
            entry = self._by_hash.get(chain.hashes[index])
            if entry is None or not _is(entry, chain, index, chain.serial):
                if entry is not None:  # its parent is gone, or the hash collides
                    self.forget(entry.block_id)
                entry = self._enter(chain, index, block_ids[index])
            chain.serial = entry.serial
            chain.num_recorded = index + 1

    def holds(self, block_id: int) -> bool:
        """Whether the block has an entry."""
        return block_id in self._by_block

    def forget(self, block_id: int) -> None:
        """The block is about to hold something else."""
        entry = self._by_block.pop(block_id)
        del self._by_hash[entry.hash]
        self._events.removed(block_id, entry.hash)

    def clear(self) -> None:
        """Forget everything."""
        self._by_hash.clear()
        self._by_block.clear()
        self._events.cleared()

    def _enter(self, chain: Chain, index: int, block_id: int) -> CachedBlock:
        if block_id in self._by_block:
            raise AccountError(f"block {block_id} is written, but the prefix cache still has an entry for it")
        self._last_serial += 1
        block_hash, content = chain.hashes[index], chain.contents[index]
        entry = CachedBlock(block_id, block_hash, self._last_serial, chain.serial, content, chain.salt)
        self._by_hash[block_hash] = self._by_block[block_id] = entry
        self._events.stored(block_id, block_hash, chain.hashes[index - 1] if index else None, content)
        return entry

    def _extend(self, chain: Chain, tokens: Sequence[int], num_blocks: int) -> None:
        size = self._block_size
        for index in range(len(chain.hashes), num_blocks):
            content = array("i", tokens[index * size : (index + 1) * size]).tobytes()
            parent = chain.hashes[-1] if chain.hashes else self._hash(_root_of(chain.salt))
            chain.hashes.append(self._hash(parent + content))
            chain.contents.append(content)


def _is(entry: CachedBlock, chain: Chain, index: int, parent_serial: int) -> bool:
    return entry.parent_serial == parent_serial and entry.content == chain.contents[index] and entry.salt == chain.salt


def _root_of(salt: str | None) -> bytes:
    # No salt and the empty salt are different worlds.
    return _ROOT if salt is None else _ROOT + b" salt " + salt.encode("utf-8", "surrogatepass")
