"""Which Python code of this machine is read: found by name, never imported."""

from __future__ import annotations

import importlib.util
import sys
import sysconfig
from pathlib import Path

# Installed by this package's own requirements or by its demo and dev extras; those that are not there are left out.
_PACKAGES = (
    "PIL accelerate anyio click datasets dateutil dill faiss filelock fontTools fsspec huggingface_hub hypothesis "
    "importlinter ir_measures jinja2 matplotlib mpmath multiprocess networkx numpy packaging pandas pip psutil pyarrow "
    "pygments pytest rich safetensors scipy sentence_transformers setuptools sklearn sympy tokenizers torch tqdm "
    "transformers yaml"
)


def find_modules() -> list[Path]:
    """The top-level modules to read, each a package folder or a .py file, in a fixed order."""
    return [*_standard_library(), *filter(None, map(_installed, _PACKAGES.split()))]


def _standard_library() -> list[Path]:
    root = Path(sysconfig.get_paths()["stdlib"])
    names = sorted(name for name in sys.stdlib_module_names if not name.startswith("_"))
    return [path for name in names for path in (root / name, root / f"{name}.py") if path.exists()]


def _installed(name: str) -> Path | None:
    try:
        spec = importlib.util.find_spec(name)  # of a top-level name, this reads folders and runs nothing
    except (ImportError, ValueError):
        return None
    if spec is None or not spec.origin or not spec.origin.endswith(".py"):
        return None
    origin = Path(spec.origin)
    return origin.parent if origin.name == "__init__.py" else origin
