"""``ringcast pull`` and ``ringcast models``: what there is to run, and getting it."""

from __future__ import annotations

from pathlib import Path

from ..builtin_models import BUILTIN_MODELS, find_builtin
from ..model_source import resolve_model
from ..progress import download_progress


def pull(name: str) -> None:
    """Fetch a model's files; prints where they are."""
    with download_progress() as progress:
        source = resolve_model(name, progress)
    print(source.path)


def models() -> None:
    """The built-in names and the hub models in the hub's cache."""
    for model in BUILTIN_MODELS.values():
        path = find_builtin(model)
        where = str(path) if path else "not here yet: fetched at first use, or by `ringcast pull`"
        print(f"{model.name}\t{model.description}\t{where}")
    for name, folder in _hub_models():
        print(f"{name}\tin the hub's cache\t{folder}")


def _hub_models() -> list[tuple[str, Path]]:
    from huggingface_hub import CacheNotFound, scan_cache_dir

    try:
        cache = scan_cache_dir()
    except CacheNotFound:
        return []
    return sorted((repo.repo_id, repo.repo_path) for repo in cache.repos if repo.repo_type == "model")
