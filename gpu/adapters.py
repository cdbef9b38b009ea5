"""Recognises adapters of the PEFT library, which are no models. Imports no torch and reads no files.

The checkpoint calls it, and the frontend before it starts anything.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from .errors import UnsupportedModelError

_PREFIX = "base_model.model."
_PARTS = (".lora_A.", ".lora_B.", ".lora_embedding_A", ".base_layer.", ".modules_to_save.")


def refuse_adapter(folder: Path, names: Iterable[str] = ()) -> None:
    """`UnsupportedModelError` if ``folder`` is a PEFT adapter, or one of its tensors' ``names`` is of one."""
    found = "adapter_config.json" if (folder / "adapter_config.json").is_file() else None
    if found is None:
        named = (name for name in names if name.startswith(_PREFIX) or any(part in name for part in _PARTS))
        found = next((f"tensor {name}" for name in named), None)
    if found is not None:
        raise UnsupportedModelError(
            f"{folder}: it holds a PEFT adapter ({found}), which is not supported: merge it into its base model "
            "(merge_and_unload and save_pretrained of the peft library) and give the folder of the result"
        )
