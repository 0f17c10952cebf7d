"""Train a row with a loss of sentence-transformers and its trainer, for the processor time that another row's training took.

`python -m starbucks_retrieval.reproduce.sentence_transformers` is a job of `reproduce`. Data, batch size, learning rate and
its schedule, lengths, pooling and temperature are those of the other row. What differs is the library's: every judged
passage of a query is a pair, queries may be as long as passages, and a loss keeps its own defaults.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from starbucks_retrieval.cli import CommonArguments, exit_command, finish, flag, parse_flags, setup_logging
from starbucks_retrieval.data import join_text, open_corpus, open_groups
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.files import atomic_folder, write_json
from starbucks_retrieval.parsing import read_json
from starbucks_retrieval.reproduce.jobs import LIBRARY, RECORDS

Loss = Literal["Matryoshka2dLoss", "AdaptiveLayerLoss"]
LOSSES: tuple[str, ...] = get_args(Loss)
_WARMUP = 0.1  # of the time, as the presets that the rows are compared with
_MAX_STEPS = 10**6  # the time ends the training


@dataclasses.dataclass
class SentenceTransformersArguments:
    """Training."""

    model_name_or_path: str = flag("", "model folder or hub name", required=True)
    output_dir: str = flag("", "folder for the model", required=True)
    loss: Loss = flag("Matryoshka2dLoss", "the loss around MultipleNegativesRankingLoss, with its own defaults")
    minutes: float | None = flag(None, "processor time of the training")
    as_long_as: str | None = flag(None, "a model that reproduce trained: take as much processor time as its whole job")
    dataset_path: list[str] = flag(help="training groups, as for train", factory=list)
    dataset_name: str | None = flag(None, "training groups by their name on the hub, as for train")
    dataset_config: str | None = flag(None, "its configuration")
    train_group_size: int = flag(1, "a positive and this many less one hard negatives of each query")
    train_dims: str = flag("", "dims of Matryoshka2dLoss")
    per_device_train_batch_size: int = flag(32, "queries of a batch")
    learning_rate: float = flag(1e-4, "rises over a tenth of the time, then falls linearly to 0")
    temperature: float = flag(0.05, "divides scores")
    passage_max_len: int = flag(128, "tokens of a query or passage")
    pooling: str | None = flag(None, "pooling of sentence-transformers (default: the model's)")
    normalize: bool = flag(True, "compare cosines, not dot products")
    dropout: float | None = flag(None, "replaces the model's dropout")
    bf16: bool = flag(False, "bf16")

    def __post_init__(self) -> None:
        if (self.minutes is None) == (self.as_long_as is None):
            raise UserError("the time of the training is not clear", "give --minutes or --as_long_as, one of the two")
        if self.loss == "Matryoshka2dLoss" and not self.train_dims:
            raise UserError("Matryoshka2dLoss needs dims", "name them with --train_dims 32,64,128")


def train(arguments: SentenceTransformersArguments, seed: int = 42, began: float | None = None) -> dict[str, Any]:
    """Train a model with sentence-transformers until its processor time is over, and save it in that library's format.

    Args:
        arguments: The flags.
        seed: Seed of the trainer.
        began: The processor time of this process from which the time counts (default: the call's).

    Returns:
        Figures: steps and output_dir.

    Raises:
        UserError: The data are wrong, or the job of `as_long_as` has no record.
    """
    end = (time.process_time() if began is None else began) + _seconds(arguments)
    import torch
    from datasets import Dataset
    from sentence_transformers import SentenceTransformerTrainer
    from sentence_transformers.training_args import SentenceTransformerTrainingArguments
    from transformers import TrainerCallback

    model = _model(arguments)
    loss = _loss(model, arguments)
    begin = time.process_time()

    def used() -> float:
        return (time.process_time() - begin) / max(1e-9, end - begin)

    class Stop(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
            control.should_training_stop = used() >= 1

    class Trainer(SentenceTransformerTrainer):
        def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
            self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(
                optimizer or self.optimizer, lambda step: min(used() / _WARMUP, max(0.0, 1 - used()) / (1 - _WARMUP))
            )
            return self.lr_scheduler

    with atomic_folder(Path(arguments.output_dir)) as folder:
        options = SentenceTransformerTrainingArguments(
            output_dir=str(folder),
            max_steps=_MAX_STEPS,
            per_device_train_batch_size=arguments.per_device_train_batch_size,
            learning_rate=arguments.learning_rate,
            bf16=arguments.bf16,
            use_cpu=not torch.cuda.is_available(),
            save_strategy="no",
            logging_strategy="no",
            report_to=[],
            disable_tqdm=True,
            seed=seed,
        )
        data = Dataset.from_list([*_rows(arguments)])
        trainer = Trainer(model, options, train_dataset=data, loss=loss, callbacks=[Stop()])
        trainer.train()
        model.save(str(folder), create_model_card=False)
        figures = {"steps": trainer.state.global_step, "output_dir": arguments.output_dir}
        write_json(folder / "training.json", dataclasses.asdict(arguments) | figures)
    return figures


def _model(arguments: SentenceTransformersArguments) -> Any:
    """Return the model of the flags, with the pooling and the length of the row that it follows."""
    import torch
    from sentence_transformers import SentenceTransformer, models

    if arguments.pooling:
        modules = [models.Transformer(arguments.model_name_or_path, max_seq_length=arguments.passage_max_len)]
        modules.append(models.Pooling(modules[0].auto_model.config.hidden_size, arguments.pooling))
        modules += [models.Normalize()] if arguments.normalize else []
        model = SentenceTransformer(modules=modules, similarity_fn_name="cosine" if arguments.normalize else "dot")
    else:
        model = SentenceTransformer(arguments.model_name_or_path)
        model.max_seq_length = arguments.passage_max_len
    for module in model.modules():
        if arguments.dropout is not None and isinstance(module, torch.nn.Dropout):
            module.p = arguments.dropout
    return model


def _loss(model: Any, arguments: SentenceTransformersArguments) -> Any:
    """Return the library's loss around its MultipleNegativesRankingLoss."""
    from sentence_transformers import losses, util

    similarity = util.cos_sim if arguments.normalize else util.dot_score
    inner = losses.MultipleNegativesRankingLoss(model, 1 / arguments.temperature, similarity)
    if arguments.loss == "Matryoshka2dLoss":
        dims = sorted(map(int, arguments.train_dims.split(",")), reverse=True)
        return losses.Matryoshka2dLoss(model, inner, dims)
    return losses.AdaptiveLayerLoss(model, inner)


def _seconds(arguments: SentenceTransformersArguments) -> float:
    """Return the processor time that the training may take."""
    if arguments.minutes is not None:
        return 60 * arguments.minutes
    record = Path(arguments.as_long_as or "").parent / RECORDS / "train.json"
    try:
        return float(read_json(record)["figures"]["processor_seconds"])
    except (KeyError, TypeError, ValueError):
        raise UserError(f"{record} has no processor time", "train that model again with reproduce") from None


def _rows(arguments: SentenceTransformersArguments) -> Iterator[dict[str, str]]:
    """Yield the texts of each positive of each query with hard negatives, in the columns that sentence-transformers expects."""
    count = arguments.train_group_size - 1
    named = [(arguments.dataset_name, arguments.dataset_config)] if arguments.dataset_name else []
    for path, config in [*((path, None) for path in arguments.dataset_path), *named]:
        corpus = None
        for group in open_groups(path, config=config):
            if group.passages is None and corpus is None:
                corpus = {passage.docid: passage for passage in open_corpus(path)}
            texts = group.passages or corpus or {}
            negatives = [join_text(texts[docid]) for docid in group.negative_ids[:count]]
            for docid in group.positive_ids if len(negatives) == count else ():
                row = {"anchor": group.query, "positive": join_text(texts[docid])}
                yield row | {f"negative_{number}": text for number, text in enumerate(negatives, 1)}


def main(argv: Sequence[str], began: float | None = None) -> None:
    """Parse the flags and train; `began` as for `train`."""
    (arguments, common), _ = parse_flags(
        [SentenceTransformersArguments, CommonArguments],
        argv,
        f"python -m starbucks_retrieval.{LIBRARY}",
        "Train a model with a loss of sentence-transformers over layers, for a given processor time.",
    )
    setup_logging(common)
    figures = train(arguments, common.seed, began)
    finish(common, f"{figures['steps']} steps; model in {figures['output_dir']}", figures)


if __name__ == "__main__":
    exit_command(lambda argv: main(argv, 0.0))  # imports count too, as they do in the other job
