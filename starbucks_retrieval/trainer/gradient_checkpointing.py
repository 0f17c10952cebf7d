"""Gradient checkpointing of the Hugging Face model inside a module that is trained."""

from __future__ import annotations

from typing import Any

from torch import nn

from starbucks_retrieval.errors import UserError


class GradientCheckpointing(nn.Module):
    """A module whose `hf_model` can recompute its layers, under both names that transformers' Trainer calls.

    `recomputing` says whether it does; what else keeps activations should then follow.
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

        Raises UserError for an architecture that cannot.
        """
        model = self.hf_model
        if not model.supports_gradient_checkpointing:
            raise UserError(
                f"{model.config.model_type!r} has no gradient checkpointing", "drop --gradient_checkpointing"
            )
        # The re-entrant kind runs layers without a graph, and would cut states below the last from theirs.
        kwargs = {**(activation_checkpointing_kwargs or {}), "use_reentrant": False}
        # The older name is the only one of transformers before 5.23.
        enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
        enable(kwargs, **others)
        self.recomputing = True

    def gradient_checkpointing_enable(
        self, gradient_checkpointing_kwargs: dict[str, Any] | None = None, **others: Any
    ) -> None:
        """The older name of `activation_checkpointing_enable`."""
        self.activation_checkpointing_enable(gradient_checkpointing_kwargs, **others)
