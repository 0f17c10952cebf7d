"""The command `export`."""

from __future__ import annotations

from collections.abc import Sequence

from starbucks_retrieval.cli import exit_command, finish, parse_command
from starbucks_retrieval.cli.checks import check_depth
from starbucks_retrieval.cli.dry_run import DryRunArguments
from starbucks_retrieval.export import ExportArguments

_EXAMPLES = (
    "starbucks export --model_name_or_path model --size 2:32 --to sentence-transformers --output_dir small",
    "starbucks export --model_name_or_path model --size 6:128 --to onnx --output_dir small-onnx",
)


def main(argv: Sequence[str]) -> None:
    """Run the command, and print a summary."""
    arguments, dry_run_args, common = parse_command(
        [ExportArguments, DryRunArguments],
        argv,
        "starbucks export",
        "Write one size of a model as a folder that sentence-transformers, transformers, ONNX Runtime or OpenVINO loads.",
        _EXAMPLES,
    )
    check_depth(arguments.model_name_or_path, arguments.size)
    from starbucks_retrieval.export.api import export, preview

    if dry_run_args.dry_run:
        preview(arguments).show(common)
        return

    figures = export(arguments)
    kept, total = figures["parameters_kept"], figures["parameters_total"]
    summary = (
        f"size {figures['size']} for {figures['to']}: {kept:,} of {total:,} parameters, "
        f"{len(figures['files'])} files, {figures['bytes'] / 1e6:.1f} MB; in {figures['output']}"
    )
    if figures["hub"]:
        summary += f", and at {figures['hub']}"
    finish(common, summary, figures)


if __name__ == "__main__":
    exit_command(main)
