"""`starbucks <stage> …` and `python -m starbucks_retrieval <stage> …` run the command of a stage."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from types import ModuleType

from starbucks_retrieval.cli import exit_command
from starbucks_retrieval.cli.help import terminal_width, wrap_command, wrap_item
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.version import __version__

# In pipeline order.
STAGES = {
    "pretrain": "pre-train a backbone on text, for better embeddings at small sizes (SMAE, RetroMAE)",
    "mine": "mine hard negatives for training queries, from BM25, a model or a run",
    "fit": "make small sizes of any encoder good in minutes, without labels (a linear map per layer)",
    "train": "train one encoder for every size (SRL), or with another method of the papers",
    "encode": "write the embeddings of a corpus or of queries, all sizes in one pass",
    "search": "find the nearest passages of every query; write a TREC run, or answer a query on the command line",
    "store": "verify, describe, slice, merge, export and import embedding stores",
    "export": "export one size of a model to sentence-transformers, transformers, ONNX or OpenVINO",
    "convert": "convert a published checkpoint, pickled weights or LoRA adapters, to a safe model folder",
    "evaluate": "validate runs and score them against qrels; significance tests",
    "sts": "Spearman's correlation on similarity sets at every size, from one encoding pass",
    "transfer": "classifiers on frozen embeddings at every size (MR, CR, SUBJ, MPQA, SST2, TREC, MRPC)",
    "grid": "score every layer and dim of a model on retrieval or similarity sets, from one encoding pass",
    "choose": "choose the best size for a budget, the Pareto front, or a size list for the next training",
    "report": "tables and figures in the papers' layouts, and one page, from result files",
    "browse": "show queries and passages of two or more runs side by side in one page",
    "doctor": "report the installation, this machine's devices, and problems with their remedies",
    "completion": "print a script that completes stages and flags in bash, zsh, fish or tcsh",
    "reproduce": "a table or figure of the papers from one command, measured beside published scores",
    "quickstart": "search your own csv, jsonl or tsv file, or a folder of texts, in minutes: all stages at once",
    "demo": "the whole pipeline on this machine's own Python documentation, offline",
}

_EXAMPLES = (
    "starbucks quickstart docs.csv",
    "starbucks fit --model_name_or_path sentence-transformers/all-MiniLM-L6-v2 --dataset_path corpus.jsonl --output_dir model",
    "starbucks encode --model_name_or_path model --dataset_path corpus.jsonl --sizes 2:64 --encode_output_path passages",
    "starbucks search --model_name_or_path model --passage_reps passages --corpus_path corpus.jsonl --interactive",
)


def _main(argv: Sequence[str]) -> None:
    if not argv or argv[0] in ("-h", "--help", "help"):
        print("usage: starbucks <stage> [flags]\n       python -m starbucks_retrieval.<stage> [flags]\n\nExamples:")
        print(*(wrap_command(example, terminal_width()) for example in _EXAMPLES), sep="\n")
        print("\nStages, in the order of their use:")
        print(*(wrap_item(name, line, terminal_width()) for name, line in STAGES.items()), sep="\n")
        print("\nstarbucks <stage> --help has examples and the stage's flags.")
        return
    if argv[0] in ("-V", "--version"):
        print(__version__)
        return
    if argv[0] not in STAGES:
        raise UserError(f"unknown stage {argv[0]!r}", f"the stages are {', '.join(STAGES)}")
    stage_module(argv[0]).main(argv[1:])


def stage_module(name: str) -> ModuleType:
    """Import the module with a stage's `main`: the `__main__` of a package, or the module of a single file."""
    spec = importlib.util.find_spec(f"starbucks_retrieval.{name}")
    is_package = spec is not None and spec.submodule_search_locations is not None
    return importlib.import_module(f"starbucks_retrieval.{name}" + (".__main__" if is_package else ""))


def main() -> None:
    """Entry point of the console script."""
    exit_command(_main)


if __name__ == "__main__":
    main()
