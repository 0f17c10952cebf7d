"""The command `convert`."""

from __future__ import annotations

from collections.abc import Sequence

from starbucks_retrieval.cli import exit_command, finish, parse_command
from starbucks_retrieval.convert import ConvertArguments

_EXAMPLES = (
    "starbucks convert --model_name_or_path checkpoint --output_dir model",
    "starbucks convert --model_name_or_path base --lora_name_or_path adapters --output_dir model",
)


def main(argv: Sequence[str]) -> None:
    """Convert, and print a summary."""
    arguments, common = parse_command(
        [ConvertArguments],
        argv,
        "starbucks convert",
        "Convert a published checkpoint to a folder that every command reads: safetensors, tokenizer and configuration. "
        "Only tensors are read from pickles; no code of the checkpoint is run.",
        _EXAMPLES,
    )
    from starbucks_retrieval.convert.api import convert

    figures = convert(arguments)
    dropped = figures["left_out"]
    summary = (
        f"{figures['tensors']} tensors, {figures['parameters']:,} parameters as {figures['architecture']} in {figures['dtype']}"
        + (f", {len(dropped)} left out such as {dropped[0]}" if dropped else "")
        + f"; {figures['settings']}; in {figures['output']}"
    )
    finish(common, summary, figures)


if __name__ == "__main__":
    exit_command(main)
