"""transformers' Trainer with a log of the parts of the loss; saving, and the model card, at the end of a run."""

from __future__ import annotations

import contextlib
import logging
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import TrainerCallback
from transformers.trainer_callback import PrinterCallback, ProgressCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.files import atomic_path, write_text
from starbucks_retrieval.models import projections, unpadded
from starbucks_retrieval.models.attention import use_plain_attention
from starbucks_retrieval.models.card import CardScore, base_model_text, front_matter
from starbucks_retrieval.models.sentence_modules import remove_modules
from starbucks_retrieval.trainer import NOT_UPLOADED
from starbucks_retrieval.trainer.callbacks import Bar, Checkpoints, CheckpointTrainer, LogLines
from starbucks_retrieval.trainer.distributed import world

log = logging.getLogger(__name__)

Writer = Callable[[Any], None]
_STATE = ("trainer_state", "text-position", "model.safetensors.index")  # of training, and of weights


class PartsTrainer(CheckpointTrainer):
    """Trains a module that returns a loss and its parts, and logs the parts' means over steps and processes.

    The module's `step` is set to (seed, step, micro-step) before each forward pass. Random choices are seeded by it, so
    they are the same in all processes and in a resumed run.

    Attributes:
        card: Writes README.md into the output folder before a push; None writes none.
    """

    card: Writer | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.args.bf16 and self.args.device.type == "cpu":
            use_plain_attention(self.model)
        self._parts: dict[str, torch.Tensor] = {}
        self._parts_count = 0
        self._micro_step = (-1, 0)
        self.remove_callback(PrinterCallback)
        if self.pop_callback(ProgressCallback) is not None:
            self.add_callback(Bar())
        self.add_callback(LogLines())
        self.add_callback(Checkpoints())
        self.add_callback(_CompletePush(self))

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **_: Any) -> Any:
        """Return the loss of a batch, and keep its parts for the next log line.

        Args:
            model: The module, possibly wrapped for several processes. It returns a dictionary of `loss`, a scalar, and
                `parts`, {name: scalar}.
            inputs: The arguments of the module.
            return_outputs: Return (loss, the module's dictionary).
        """
        step = self.state.global_step
        self._micro_step = (step, self._micro_step[1] + 1 if self._micro_step[0] == step else 0)
        self.model.step = (self.args.seed, *self._micro_step)
        outputs = model(**inputs)
        for name, part in outputs["parts"].items():
            self._parts[name] = self._parts.get(name, 0) + part
        self._parts_count += 1
        return (outputs["loss"], outputs) if return_outputs else outputs["loss"]

    def _run_epoch(self, *args: Any, **kwargs: Any) -> None:
        # transformers would train another step after resuming from the checkpoint of the last one.
        if self.state.global_step >= self.state.max_steps:
            self.control.should_training_stop = True
            return
        super()._run_epoch(*args, **kwargs)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add the mean parts of the steps since the last line, over all processes.

        Args:
            logs: The numbers of a line, to which the parts are added in place if it has a `loss`.
            start_time: As of transformers' Trainer.
        """
        if "loss" in logs and self._parts_count:
            values = torch.stack([part.float() for part in self._parts.values()]) / self._parts_count
            if world() > 1:
                torch.distributed.all_reduce(values)
                values = values / world()
            logs |= dict(zip(self._parts, values.tolist()))
            self._parts, self._parts_count = {}, 0
        super().log(logs, start_time)

    def init_hf_repo(self, *args: Any, **kwargs: Any) -> None:
        """Create the repository of `--push_to_hub`. Raises UserError if the hub refuses or cannot be reached."""
        try:
            super().init_hf_repo(*args, **kwargs)
        except Exception as error:  # a dozen types: no permission, no network, a name that the hub does not allow
            line = " ".join(f"{type(error).__name__}: {error}".split())
            hint = "check the network, `hf auth login` and --hub_model_id, or drop --push_to_hub"
            raise UserError(f"no repository for --push_to_hub: {line}", hint) from None

    def upload(self) -> None:
        """Push the output folder to the hub; transformers' own push would replace the model card."""
        from huggingface_hub import HfApi

        self._finish_current_push()
        HfApi().upload_folder(
            repo_id=str(self.hub_model_id),
            folder_path=str(self.args.output_dir),
            commit_message="End of training",
            token=self.args.hub_token,
            revision=self.args.hub_revision,
            ignore_patterns=list(NOT_UPLOADED),
        )


class _CompletePush(TrainerCallback):
    """Adds to a push of a checkpoint what transformers leaves out: all but weights and config.json, and the card."""

    def __init__(self, trainer: PartsTrainer) -> None:
        self.trainer = trainer

    def on_push_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        output = Path(str(args.output_dir))
        copy_settings(output / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}", output)
        if self.trainer.card is not None:
            with _warn_on_error(f"{output}/README.md was not written", "it is written again at the end of training"):
                self.trainer.card(None)


def copy_settings(checkpoint: Path, output: Path) -> None:
    """Copy what a checkpoint has besides its weights: settings, tokenizer, projections, and modules.

    Args:
        checkpoint: The checkpoint. The state of training is left there.
        output: The output folder of the run. Modules that an earlier model left are removed.
    """
    remove_modules(output)
    found = [path.name for path in checkpoint.iterdir() if path.suffix in (".json", ".txt", ".model", ".jinja")]
    found = [name for name in found if not name.startswith(_STATE)]
    found += [f"{path.parent.name}/{path.name}" for path in checkpoint.glob("[0-9]*_*/*") if path.is_file()]
    found += [projections.FILE] * (checkpoint / projections.FILE).is_file()
    for name in found:
        (output / name).parent.mkdir(exist_ok=True)
        with atomic_path(output / name) as temporary:
            shutil.copyfile(checkpoint / name, temporary)


def train_and_save(trainer: PartsTrainer, resume: str | None, record: Writer, card: Writer) -> Any:
    """Train, write the weights, the record and the model card, and push them if `--push_to_hub` is given.

    If the record, the card or the push fails, a warning names the remedy and the run succeeds. If training fails after
    the last step, as in a dev score or a report, the weights, the record and the card are written before the error is
    raised.

    Args:
        trainer: The trainer, ready to train.
        resume: The checkpoint to resume from, or None.
        record: Writes training.json. It is called in the first process, with what `Trainer.train` returned.
        card: Writes README.md, in the same way, and with None before a checkpoint is pushed.

    Returns:
        What `Trainer.train` returned.
    """
    trainer.card = card
    try:
        result = trainer.train(resume_from_checkpoint=resume)
    except Exception:
        # Sharded weights can only be gathered by all processes, and one of them may have failed alone.
        sharded = trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled
        if 0 < trainer.state.max_steps <= trainer.state.global_step and not sharded:
            _save(trainer, None, record, card)
            log.warning("the last step was done before this error: the model is in %s", trainer.args.output_dir)
        raise
    _save(trainer, result, record, card)
    if trainer.args.push_to_hub and trainer.args.process_index == 0:
        output = trainer.args.output_dir
        hint = f"check the network and `hf auth login`, then: hf upload {trainer.hub_model_id} {output}"
        with _warn_on_error(f"{output} was not pushed", hint):
            trainer.upload()
    return result


def _save(trainer: PartsTrainer, result: Any, record: Writer, card: Writer) -> None:
    output = Path(str(trainer.args.output_dir))
    try:
        trainer.save_model(_internal_call=True)  # does not push: record and card are not written yet
    finally:
        if trainer.args.process_index == 0:
            hint = "the weights are complete; keep this log beside them"
            with _warn_on_error(f"{output}/training.json was not written", hint):
                record(result)
            hint = "no program reads it; write it by hand from training.json"
            with _warn_on_error(f"{output}/README.md was not written", hint):
                card(result)


@contextlib.contextmanager
def _warn_on_error(problem: str, hint: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        log.warning("%s: %s: %s\n  try: %s", problem, type(error).__name__, " ".join(str(error).split()), hint)
        log.debug("traceback:", exc_info=True)


@dataclass(frozen=True)
class ModelCard:
    """The README.md of a trained model.

    Attributes:
        library: The library that loads the model.
        task: The model's task, in the hub's words.
        tags: Tags on the hub.
        title: The heading.
        about: Lines about the model, above the section on its use.
        use: Lines of Markdown that show its use.
        data: The kind of the training data, such as "Text", and the collections' names.
        recipe: The entries of the section on training.
        scores: Scores of the model.
    """

    library: str
    task: str
    tags: Sequence[str]
    title: str
    about: Sequence[str]
    use: Sequence[str]
    data: tuple[str, Sequence[str]]
    recipe: Mapping[str, Any]
    scores: Sequence[CardScore] = ()

    def write(self, folder: Path, base: str) -> None:
        """Write the card.

        Args:
            folder: The model folder.
            base: The model that training began with: a folder, or a name on the hub.
        """
        kind, names = self.data
        name = folder.resolve().name
        head = front_matter(name, base, self.library, self.task, self.tags, names, self.scores)
        lines = [
            *("---", head, "---"),
            *(f"# {self.title}", "", *self.about, "", "## Use", "", *self.use, "", "## Training", ""),
            f"Base model: {base_model_text(base)}. {kind}: {', '.join(f'`{Path(name).name}`' for name in names)}.",
            *("", *(f"- {name}: {value}" for name, value in self.recipe.items()), ""),
        ]
        write_text(folder / "README.md", "\n".join(lines))


class GradientCheckpointing(nn.Module):
    """A module whose `hf_model` can recompute its layers, under both names that transformers' Trainer calls.

    Attributes:
        recomputing: Whether layers are recomputed; other code that keeps activations should then do the same.
    """

    recomputing = False

    @property
    def hf_model(self) -> Any:
        """The model whose layers are recomputed."""
        raise NotImplementedError

    def activation_checkpointing_enable(
        self, activation_checkpointing_kwargs: dict[str, Any] | None = None, **others: Any
    ) -> None:
        """Recompute each layer in the backward pass instead of keeping its activations.

        Raises:
            UserError: The architecture does not support it.
        """
        model = self.hf_model
        if not model.supports_gradient_checkpointing:
            raise UserError(
                f"{model.config.model_type!r} has no gradient checkpointing", "drop --gradient_checkpointing"
            )
        # The re-entrant kind runs layers without a graph, and would cut the hidden states of lower layers from theirs.
        ours = {"context_fn": unpadded.checkpoint_contexts} if unpadded.is_enabled(model) else {}
        kwargs = {**(activation_checkpointing_kwargs or {}), **ours, "use_reentrant": False}
        # transformers before 5.23 has the older name only.
        enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
        enable(kwargs, **others)
        self.recomputing = True

    def gradient_checkpointing_enable(
        self, gradient_checkpointing_kwargs: dict[str, Any] | None = None, **others: Any
    ) -> None:
        """Call `activation_checkpointing_enable`, under its older name."""
        self.activation_checkpointing_enable(gradient_checkpointing_kwargs, **others)
