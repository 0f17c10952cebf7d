"""Tokenizers that end every text with the end-of-sequence token, as Tevatron's --append_eos_token does."""

from __future__ import annotations

from typing import Any

from starbucks_retrieval.errors import UserError


def append_eos(tokenizer: Any) -> None:
    """Let a fast tokenizer end every text with its end-of-sequence token; truncated texts end with it, too.

    A tokenizer that ends texts with a special token, as BERT's does, stays as it is.

    Args:
        tokenizer: A fast tokenizer of transformers. Its post-processor is changed, and saved with it.

    Raises:
        UserError: It has no end-of-sequence token.
    """
    from tokenizers import processors

    bare = tokenizer("a", add_special_tokens=False)["input_ids"]
    ids = tokenizer("a")["input_ids"]
    start = next(i for i in range(len(ids) + 1) if ids[i : i + len(bare)] == bare)
    if ids[start + len(bare) :]:
        return
    eos = tokenizer.eos_token
    if eos is None:
        raise UserError("the tokenizer has no end-of-sequence token", "leave --append_eos_token out")
    # One template for both ends: a second one after it would treat a first token such as <s> as a text of its own.
    first = tokenizer.convert_ids_to_tokens(ids[:start])
    single, pair = [*first, "$A", eos], [*first, "$A", eos, *first, "$B", eos]
    special = [(token, tokenizer.convert_tokens_to_ids(token)) for token in dict.fromkeys([*first, eos])]
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=single, pair=pair, special_tokens=special
    )
