"""`starbucks <stage> …` and `python -m starbucks_retrieval <stage> …`: opens the stage's own door."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType

from starbucks_retrieval.cli import run_command
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.version import __version__

# In pipeline order.
STAGES = {
    "pretrain": "pre-train a backbone on text, so that its small sizes carry more of it (SMAE, RetroMAE)",
    "mine": "give training queries hard negatives, from BM25, a model or a run",
    "train": "train one encoder for every size (SRL), or by any method of the papers",
    "encode": "write the embeddings of a corpus or of queries, all sizes in one pass",
    "search": "find the nearest passages of every query; write a TREC run, or answer a typed query",
    "store": "verify, describe, slice, merge, export and import embedding stores",
    "export": "one size of a model for sentence-transformers, transformers, ONNX or OpenVINO",
    "evaluate": "score runs against qrels, and check that they can be trusted; significance",
    "sts": "Spearman's correlation on similarity sets at every size, from one encoding pass",
    "transfer": "classifiers on frozen embeddings at every size (MR, CR, SUBJ, MPQA, SST2, TREC, MRPC)",
    "grid": "every layer and dim of a model on retrieval or similarity sets, from one encoding pass",
    "choose": "the best size for a budget, the front of quality and cost, a ladder for the next training",
    "report": "tables and figures in the papers' layouts, and one page, from result files",
    "browse": "a page of queries and passages, runs side by side: what a bigger size gained and lost",
    "doctor": "what is installed, what this machine can do, what is wrong and how to mend it",
    "completion": "print a script that completes stages and flags in bash, zsh, fish or tcsh",
    "demo": "the whole pipeline on this machine's own Python documentation, offline",
}


def _main(argv: Sequence[str]) -> None:
    if not argv or argv[0] in ("-h", "--help", "help"):
        print("usage: starbucks <stage> [flags]   (the same as python -m starbucks_retrieval.<stage>)\n")
        for name, line in STAGES.items():
            print(f"  {name:10} {line}")
        print("\nstarbucks <stage> --help lists a stage's flags.")
        return
    if argv[0] in ("-V", "--version"):
        print(__version__)
        return
    if argv[0] not in STAGES:
        raise UserError(f"no stage is called {argv[0]!r}", f"the stages are {', '.join(STAGES)}")
    stage_module(argv[0]).main(argv[1:])


def stage_module(name: str) -> ModuleType:
    """Import the module with a stage's `main`: its package's `__main__`, or the module itself where it is one file."""
    spec = importlib.util.find_spec(f"starbucks_retrieval.{name}")
    is_package = spec is not None and spec.submodule_search_locations is not None
    return importlib.import_module(f"starbucks_retrieval.{name}" + (".__main__" if is_package else ""))


def main() -> None:
    """Entry point of the console script."""
    sys.exit(run_command(_main))


if __name__ == "__main__":
    main()
