"""transformers' Trainer with our data order and checkpoints, and with dev sets that are scored at every size."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from starbucks_retrieval.data import check_qrels, join_text, open_corpus, open_pairs, open_queries, read_qrels
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.metrics.measures import parse_measures, score
from starbucks_retrieval.models import NestedEncoder
from starbucks_retrieval.sizes import Size, Sizes
from starbucks_retrieval.train.data import MixtureSampler
from starbucks_retrieval.train.mixture import Mixture
from starbucks_retrieval.train.module import TrainingModule
from starbucks_retrieval.train.plan import TrainPlan
from starbucks_retrieval.train.save import load_model, save_model
from starbucks_retrieval.trainer import complete_checkpoints
from starbucks_retrieval.trainer.callbacks import damaged_checkpoint
from starbucks_retrieval.trainer.distributed import world
from starbucks_retrieval.trainer.trainer import PartsTrainer

log = logging.getLogger(__name__)
_DEPTH = 100  # passages of a ranking that dev measures see


class DevSet(Protocol):
    """A dev set."""

    def score(self, encoder: NestedEncoder, sizes: Sizes, precision: torch.dtype | None = None) -> dict[str, float]:
        """Score an encoder.

        Args:
            encoder: The encoder in training.
            sizes: The sizes to score.
            precision: The type of autocast, or None.

        Returns:
            Every measure's mean over the sizes (`nDCG@10`), and its value at each size (`nDCG@10/6:128`).
        """
        ...


class DevRetrieval:
    """The judged queries of a BEIR folder, searched in its corpus or in a sample of it.

    Args:
        folder: The BEIR folder.
        split: The split of its judgements.
        measures: Measures separated by spaces.
        max_passages: Search only the judged passages and random others up to this number; None means all passages.
        seed: Seed of the sample.

    Raises:
        UserError: No query is judged, or a file cannot be read.
    """

    def __init__(self, folder: str, split: str, measures: str, max_passages: int | None, seed: int) -> None:
        self.measures = parse_measures(measures)
        self.qrels = read_qrels(folder, split=split)
        queries = [query for query in open_queries(folder) if query.query_id in self.qrels]
        if not queries:
            raise UserError(f"no query of {folder} is judged in its {split} qrels", "check --eval_dataset_split")
        self.query_ids = [query.query_id for query in queries]
        self.queries = [query.text for query in queries]
        passages = list(open_corpus(folder))
        check_qrels(self.qrels, None, {passage.docid for passage in passages}, f"{folder}, split {split}")
        if max_passages is not None and max_passages < len(passages):
            judged = {docid for query_id in self.query_ids for docid in self.qrels[query_id]}
            others = [i for i, passage in enumerate(passages) if passage.docid not in judged]
            spare = max(0, max_passages - (len(passages) - len(others)))
            kept = set(np.random.default_rng(seed).permutation(others)[:spare].tolist())
            passages = [p for i, p in enumerate(passages) if p.docid in judged or i in kept]
        # trec_eval ranks equal scores by docid, descending; a stable sort over this order does the same.
        passages.sort(key=lambda passage: passage.docid, reverse=True)
        self.docids = [passage.docid for passage in passages]
        self.passages = passages
        log.info("dev set %s: %d queries, %d passages", folder, len(queries), len(passages))

    def score(self, encoder: NestedEncoder, sizes: Sizes, precision: torch.dtype | None = None) -> dict[str, float]:
        """Implement `DevSet.score`."""
        config = encoder.config
        texts = [join_text(p, config.passage_field_separator, config.passage_prefix) for p in self.passages]
        passage_sizes = Sizes(sorted({config.passage_size(size) for size in sizes}))
        passages = encoder.embed(encoder.tokenize(texts, encoder.max_length(False)), passage_sizes, dtype=precision)
        queries = encoder.encode(self.queries, sizes, is_query=True, dtype=precision)
        values = {
            size: score(self.qrels, self._run(queries[size], passages[config.passage_size(size)]), self.measures).mean
            for size in sizes
        }
        return _with_means(values)

    def _run(self, queries: np.ndarray, passages: np.ndarray) -> dict[str, dict[str, float]]:
        scores = queries @ passages.T  # [queries, passages]
        top = np.argsort(-scores, axis=1, kind="stable")[:, :_DEPTH]
        return {
            query_id: {self.docids[i]: float(scores[row, i]) for i in top[row]}
            for row, query_id in enumerate(self.query_ids)
        }


class DevPairs:
    """Scored pairs: Spearman's correlation of their cosines with their scores.

    Args:
        name: A file, a folder or a name on the hub.
        split: Its split.

    Raises:
        UserError: There are fewer than three pairs.
    """

    def __init__(self, name: str, split: str) -> None:
        pairs = list(open_pairs(name, split=split))
        if len(pairs) < 3:
            raise UserError(f"{name} ({split}) has {len(pairs)} scored pairs", "a correlation needs three or more")
        self.sentences = [pair.sentence1 for pair in pairs], [pair.sentence2 for pair in pairs]
        self.scores = [pair.score for pair in pairs]
        log.info("dev set %s: %d scored pairs", name, len(pairs))

    def score(self, encoder: NestedEncoder, sizes: Sizes, precision: torch.dtype | None = None) -> dict[str, float]:
        """Implement `DevSet.score`."""
        from scipy.stats import spearmanr

        first, second = (encoder.encode(texts, sizes, dtype=precision) for texts in self.sentences)
        values = {}
        for size in sizes:
            a, b = (side[size] / np.linalg.norm(side[size], axis=1, keepdims=True) for side in (first, second))
            values[size] = {"spearman": float(spearmanr((a * b).sum(1), self.scores).statistic)}
        return _with_means(values)


def open_dev_set(plan: TrainPlan) -> DevSet | None:
    """Read the dev set that is scored during training, which the flags name that begin with `eval`.

    Returns:
        The dev set: pairs for `--task sts`, else queries and passages; None if no dev set is given.

    Raises:
        UserError: It cannot be read, or does not fit `--eval_measures`.
    """
    arguments = plan.arguments
    path, split = arguments.eval_dataset_path, arguments.eval_dataset_split
    if not path:
        return None
    if arguments.task == "sts":
        if arguments.dev_measures != "spearman":
            problem = f"--eval_measures {arguments.dev_measures}: similarity is measured by spearman"
            raise UserError(problem, "drop the flag")
        return DevPairs(path, split)
    return DevRetrieval(path, split, arguments.dev_measures, arguments.eval_max_passages, plan.settings.seed)


def _with_means(values: dict[Size, dict[str, float]]) -> dict[str, float]:
    names = list(next(iter(values.values())))
    means = {name: float(np.mean([at_size[name] for at_size in values.values()])) for name in names}
    return means | {f"{name}/{size}": at_size[name] for size, at_size in values.items() for name in names}


class StarbucksTrainer(PartsTrainer):
    """Trains a TrainingModule: logs the parts of its loss, scores a dev set at every size, saves plain model folders.

    Args:
        args: Arguments of transformers' Trainer.
        mixture: Which rows each epoch has, and their order.
        dev: The dev set that `evaluate` scores; None without one. It takes the place of `eval_dataset`.
        projection_learning_rate: The learning rate of the projections; None: that of the backbone.
        kwargs: Further arguments of transformers' Trainer.
    """

    model: TrainingModule

    def __init__(
        self,
        *args: Any,
        mixture: Mixture,
        dev: DevSet | None = None,
        projection_learning_rate: float | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, eval_dataset=dev, **kwargs)
        self.mixture = mixture
        self.dev = dev
        self.projection_learning_rate = projection_learning_rate

    def create_optimizer(self, *args: Any, **kwargs: Any) -> torch.optim.Optimizer:
        """Give the projections groups of their own, with their own learning rate."""
        is_new = self.optimizer is None
        optimizer = super().create_optimizer(*args, **kwargs)
        projections = self.model.encoder.projections
        if is_new and projections is not None and self.projection_learning_rate is not None:
            separate_group(optimizer, projections.parameters(), self.projection_learning_rate)
        return optimizer

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        return MixtureSampler(self.mixture, self.args.seed, lambda: int(self.state.epoch or 0))

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **_: Any) -> Any:
        """Return the loss of a batch.

        Args:
            model: The module, possibly wrapped for several processes.
            inputs: A batch of the collator. `query_ids` is taken out of it; the rest are the arguments of the module.
            return_outputs: Return (loss, the module's dictionary).

        Raises:
            UserError: The loss is NaN or infinite; the message names the step and the queries of the batch.
        """
        query_ids = inputs.pop("query_ids")
        outputs = super().compute_loss(model, inputs, return_outputs)
        loss = (outputs[0] if return_outputs else outputs).detach()
        if not torch.isfinite(loss).all():
            raise self._not_finite(loss.item(), query_ids)
        return outputs

    def _not_finite(self, loss: float, query_ids: list[str]) -> UserError:
        checkpoints = complete_checkpoints(Path(self.args.output_dir or ""))
        last = f"the last complete checkpoint is {checkpoints[-1]}" if checkpoints else "there is no checkpoint yet"
        names = ", ".join(query_ids[:8]) + (f" and {len(query_ids) - 8} more" if len(query_ids) > 8 else "")
        return UserError(
            f"the loss is {loss} at step {self.state.global_step + 1}, in the batch of queries {names}; {last}",
            "lower --learning_rate, train with --bf16 instead of --fp16, or check the texts of these queries",
        )

    def evaluate(self, *_: Any, metric_key_prefix: str = "eval", **__: Any) -> dict[str, float]:
        """Score the dev set: eval_<measure>/<size> at every size, and eval_<measure>, the mean over the sizes."""
        assert self.dev is not None
        # Sharded weights need all processes in every layer; otherwise only the first process scores.
        sharded = self.is_deepspeed_enabled or self.is_fsdp_enabled
        scores: list[dict[str, float]] = [{}]
        if sharded or self.args.process_index == 0:
            was_training = self.model.training
            self.model.eval()
            precision = torch.bfloat16 if self.args.bf16 else None
            scores = [self.dev.score(self.model.encoder, self.model.objective.sizes, precision)]
            self.model.train(was_training)
        if world() > 1 and not sharded:
            torch.distributed.broadcast_object_list(scores, src=0)
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in scores[0].items()}
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)  # type: ignore[has-type]
        return metrics

    def _save(self, output_dir: str | None = None, state_dict: dict | None = None) -> None:
        if self.args.should_save:  # called in every process; one of them writes
            save_model(self.model, Path(output_dir or self.args.output_dir or ""), state_dict)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        with damaged_checkpoint(resume_from_checkpoint):
            load_model(self.model, Path(resume_from_checkpoint))

    def _load_best_model(self) -> None:
        assert self.state.best_model_checkpoint is not None
        log.info("best checkpoint: %s (%.4f)", Path(self.state.best_model_checkpoint).name, self.state.best_metric)
        if self.is_deepspeed_enabled:  # its engine reads the checkpoints that it wrote
            super()._load_best_model()
            return
        load_model(self.model, Path(self.state.best_model_checkpoint))


def separate_group(
    optimizer: torch.optim.Optimizer, weights: Iterable[torch.nn.Parameter], learning_rate: float
) -> None:
    """Move weights of an optimizer that has not stepped yet into groups with another learning rate, in place.

    Args:
        optimizer: The optimizer.
        weights: The weights; they keep the weight decay of their groups.
        learning_rate: Their learning rate.
    """
    moved = {id(weight) for weight in weights}
    for group in list(optimizer.param_groups):
        chosen = [weight for weight in group["params"] if id(weight) in moved]
        if chosen:
            group["params"] = [weight for weight in group["params"] if id(weight) not in moved]
            optimizer.add_param_group({**group, "params": chosen, "lr": learning_rate})
