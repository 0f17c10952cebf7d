"""Pre-training with transformers' Trainer: an endless stream, checkpoints, skipped steps, saving, and the model card."""

from __future__ import annotations

import dataclasses
import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import torch
from annotated_types import Interval
from torch import Tensor
from transformers import TrainerCallback

from starbucks_retrieval.cli.tables import markdown_table
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.files import atomic_writer, umask_permissions, write_json
from starbucks_retrieval.models.loading import quiet_transformers
from starbucks_retrieval.models.sentence_modules import remove_modules
from starbucks_retrieval.parsing import Count, read_json
from starbucks_retrieval.pretrain import PRETRAIN_OBJECTIVES
from starbucks_retrieval.pretrain.module import PretrainingModule
from starbucks_retrieval.trainer.callbacks import damaged_checkpoint
from starbucks_retrieval.trainer.trainer import ModelCard, PartsTrainer

if TYPE_CHECKING:
    from starbucks_retrieval.pretrain import PretrainArguments

log = logging.getLogger(__name__)

DECODER_FILE = Path("decoder") / "decoder.safetensors"
_MODEL, _DECODER = "model.", "decoder."


def save_backbone(module: PretrainingModule, folder: Path, state: dict[str, Tensor] | None = None) -> None:
    """Write backbone and head as transformers does, tokenizer, starbucks.json, and the decoder.

    Args:
        module: What is saved.
        folder: The model folder, created if needed.
        state: The module's weights if they were gathered from several processes.
    """
    from safetensors.torch import save

    state = module.state_dict() if state is None else state
    folder.mkdir(parents=True, exist_ok=True)
    remove_modules(folder)  # of an encoder that this backbone replaces
    if module.decoder is not None:
        with atomic_writer(folder / DECODER_FILE) as file:
            file.write(save({name: weight.cpu().contiguous() for name, weight in _part(state, _DECODER).items()}))
    weights = _part(state, _MODEL)
    for tied in module.model.all_tied_weights_keys:
        weights.pop(tied, None)
    with quiet_transformers(), umask_permissions(folder):
        module.model.save_pretrained(folder, state_dict=weights)
    if module.tokenizer is not None:
        module.tokenizer.save_pretrained(folder)
    module.encoder_config.save(folder)


def write_card(
    folder: Path,
    arguments: PretrainArguments,
    module: PretrainingModule,
    recipe: dict[str, Any],
    history: Sequence[dict[str, Any]],
) -> None:
    """Write README.md: the method, the first and last losses, how to fine-tune the backbone, and how it was trained.

    Args:
        folder: The model folder.
        arguments: Flags of `pretrain`.
        module: The pre-trained module.
        recipe: Further entries of the section on training.
        history: The log of transformers' Trainer, whose first and last losses are shown.
    """
    about = (
        f"A masked language model pre-trained by {PRETRAIN_OBJECTIVES[arguments.objective].title}, to be fine-tuned "
        "before its embeddings are useful. Only a resumed run reads the folder `decoder`."
    )
    use = f"starbucks train --model_name_or_path {folder.name} --dataset_path my-training-groups --output_dir my-model"
    options = {f"option {name}": value for name, value in dataclasses.asdict(module.options).items()}
    ModelCard(
        library="transformers",
        task="fill-mask",
        tags=["starbucks"],
        title=f"{folder.name}, a backbone for embeddings of many sizes",
        about=[about, *_losses(history)],
        use=["```bash", use, "```"],
        data=("Text", arguments.collections),
        recipe=recipe | options,
    ).write(folder, arguments.model_name_or_path)


def _losses(history: Sequence[dict[str, Any]]) -> list[str]:
    logged = [entry for entry in history if "loss" in entry]
    if not logged:
        return []
    kinds = ("enc/", "dec/", "ctr")
    # In the order of sizes: a checkpoint keeps the names in alphabetical order.
    numbered = sorted(logged[0], key=lambda name: [int(number) for number in re.findall(r"\d+", name)])
    names = [name for kind in kinds for name in numbered if name.startswith(kind)]
    values = [[name, f"{logged[0][name]:.4f}", f"{logged[-1].get(name, float('nan')):.4f}"] for name in names]
    return ["", *markdown_table([["loss", "first logged", "last logged"], *values])]


def load_backbone_and_decoder(module: PretrainingModule, folder: Path) -> None:
    """Load the files of `save_backbone` into a module.

    Args:
        module: A module with the same options; its weights are replaced.
        folder: The model folder or the checkpoint.

    Raises:
        UserError: The module has a decoder, and the folder has none.
    """
    from safetensors.torch import load_file
    from transformers import AutoModelForMaskedLM

    with quiet_transformers():
        model = AutoModelForMaskedLM.from_pretrained(folder, dtype=torch.float32, use_safetensors=True)
    module.model.load_state_dict(model.state_dict())
    if module.decoder is not None:
        if not (folder / DECODER_FILE).is_file():
            raise UserError(f"{folder} has no {DECODER_FILE}", "resume from a checkpoint that was made with a decoder")
        module.decoder.load_state_dict(load_file(folder / DECODER_FILE))


def _part(state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    # Weights are stored in float32 whatever the precision of training.
    return {name.removeprefix(prefix): value.float() for name, value in state.items() if name.startswith(prefix)}


class PretrainingTrainer(PartsTrainer):
    """Trains a PretrainingModule on PretrainingData.

    Args:
        max_skipped_steps: Number of steps with NaN or infinite gradients after which training stops.
        args, kwargs: As for transformers' Trainer.
    """

    model: PretrainingModule

    def __init__(self, *args: Any, max_skipped_steps: int = 100, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.data_state: list[int] | None = None
        self.tokens = 0
        self._resumed_from: str | None = None
        self.skipper = SkipNonFinite(max_skipped_steps)
        self.add_callback(self.skipper)

    def get_train_dataloader(self) -> Any:
        """The stream, which yields whole batches of this process already."""
        workers = min(1, self.args.dataloader_num_workers)
        return torch.utils.data.DataLoader(self.train_dataset, batch_size=None, num_workers=workers)

    def train(self, resume_from_checkpoint: Any = None, **kwargs: Any) -> Any:
        """Train; a resumed run continues with the random state and the counts of its checkpoint."""
        self._resumed_from = resume_from_checkpoint
        if resume_from_checkpoint:
            position = read_text_position(Path(resume_from_checkpoint), self.args.process_index)
            self.data_state = position["state"]
            self.tokens, self.skipper.skipped = position["tokens"], position["skipped"]
        return super().train(resume_from_checkpoint, **kwargs)

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **_: Any) -> Any:
        """Return the loss of a batch, and keep its position in the stream for the next checkpoint."""
        if self._resumed_from:  # transformers restores it only if it skips data itself
            self._load_rng_state(self._resumed_from)
            self._resumed_from = None
        self.data_state = inputs.pop("state").tolist()
        self.tokens += int(inputs["attention_mask"].sum())
        return super().compute_loss(model, inputs, return_outputs)

    def _save_rng_state(self, output_dir: str) -> None:
        super()._save_rng_state(output_dir)
        # Every process writes its position; trainer_state.json, which completes a checkpoint, is written afterwards.
        counts = {"tokens": self.tokens, "skipped": self.skipper.skipped}
        write_json(text_position_file(Path(output_dir), self.args.process_index), {"state": self.data_state} | counts)

    def _save(self, output_dir: str | None = None, state_dict: dict | None = None) -> None:
        if self.args.should_save:
            save_backbone(self.model, Path(output_dir or self.args.output_dir or ""), state_dict)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        with damaged_checkpoint(resume_from_checkpoint):
            load_backbone_and_decoder(self.model, Path(resume_from_checkpoint))


def text_position_file(checkpoint: Path, process: int) -> Path:
    """Return the file of a checkpoint that keeps the position of a process in the text."""
    return checkpoint / f"text-position-{process}.json"


def read_text_position(checkpoint: Path, process: int) -> dict[str, Any]:
    """Return {"state": the position in the text at which a checkpoint was made, "tokens", "skipped": counts so far}.

    Args:
        checkpoint: The checkpoint's folder.
        process: The number of the process, from 0; each process reads its own part of the text.

    Raises:
        UserError: The checkpoint has no position of this process, or its file is damaged.
    """
    path = text_position_file(checkpoint, process)
    if not path.is_file():
        raise UserError(f"{checkpoint} lacks {path.name}", "resume with the same number of processes as at the start")
    hint = "resume from an earlier checkpoint"
    found = read_json(path, _TextPosition, hint)
    if len(found.state) < 3 or min(found.state[:3]) < 0:
        raise UserError(f"{path} has no position", hint)
    return vars(found)


@dataclasses.dataclass(frozen=True)
class _TextPosition:
    state: list[Annotated[int, Interval(ge=-1, le=2**48)]]
    tokens: Count = 0  # checkpoints of version 0.1 have no counts
    skipped: Count = 0


class SkipNonFinite(TrainerCallback):
    """Skips steps whose gradient is NaN or infinite, and stops the run when there are more than `limit` of them.

    Args:
        limit: The number of steps that may be skipped.

    Attributes:
        skipped: The number of steps that were skipped.

    Raises:
        UserError: More steps had such a gradient.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.skipped = 0

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if args.fp16:  # the gradient scaler handles overflows itself
            return
        parameters = [p for p in kwargs["model"].parameters() if p.grad is not None]
        if not parameters or bool(torch.isfinite(torch.nn.utils.get_total_norm([p.grad for p in parameters]))):
            return
        for parameter in parameters:
            parameter.grad = None
        self.skipped += 1
        log.warning("step %d has NaN or infinite gradients: skipped (%d so far)", state.global_step + 1, self.skipped)
        if self.skipped > self.limit:
            raise UserError(
                f"{self.skipped} steps had NaN or infinite gradients, the last one was step {state.global_step + 1}",
                "lower --learning_rate, train in fp32, or raise --max_skipped_steps",
            )
