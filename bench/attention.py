"""Claims: plain attention trains faster than the fused one in bf16 on a CPU; MPNet's shared bias encodes faster.

The first compares a forward and a backward pass of attention alone, by torch's fused kernel and by plain products. The
second compares a forward pass of an MPNet with random weights, as transformers computes it and as this package does.
"""

from __future__ import annotations

import common
import torch
from torch.nn import functional
from transformers import MPNetConfig, MPNetModel

from starbucks_retrieval.models.attention import attend, share_bias


def main() -> None:
    flags = common.parser(__doc__)
    flags.add_argument("--texts", type=int, default=32, help="texts of a batch")
    flags.add_argument("--tokens", type=int, default=128, help="tokens of a text")
    flags.add_argument("--layers", type=int, default=6, help="layers of the MPNet, 768 wide")
    settings = flags.parse_args()
    report = common.Report("attention", settings)
    torch.manual_seed(settings.seed)

    shape = settings.texts, 12, settings.tokens, 32
    mask = torch.ones(settings.texts, 1, settings.tokens, settings.tokens, dtype=torch.bool)
    mask[:, :, :, settings.tokens - 7 :] = False
    bias = torch.zeros(mask.shape, dtype=torch.bfloat16).masked_fill(~mask, float("-inf"))

    def step(attention: object) -> None:
        query, key, value = (torch.randn(shape, dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
        attention(query, key, value).sum().backward()  # type: ignore[operator]

    seconds = common.interleaved(
        {
            "fused": lambda _: step(lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)),
            "plain": lambda _: step(lambda q, k, v: attend(q, k, v, bias, 0.0)),
        },
        settings.rounds,
        settings.clock,
    )
    meaning = "time of torch's fused kernel / of plain products, forward and backward in bf16; higher is better"
    report.line("fused over plain attention", meaning, **common.ratio(seconds["fused"], seconds["plain"]))

    theirs = MPNetModel(MPNetConfig(num_hidden_layers=settings.layers), add_pooling_layer=False).eval()
    ours = MPNetModel(theirs.config, add_pooling_layer=False).eval()
    share_bias(ours)
    ids = torch.randint(5, 30000, (settings.texts, settings.tokens))
    for name, enabled in (("bf16", True), ("fp32", False)):

        def encode(model: MPNetModel, enabled: bool = enabled) -> None:
            with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=enabled):
                model(input_ids=ids, attention_mask=torch.ones_like(ids))

        seconds = common.interleaved(
            {"theirs": lambda _: encode(theirs), "ours": lambda _: encode(ours)}, settings.rounds, settings.clock
        )
        meaning = "time of transformers' MPNet / of ours, a forward pass; higher is better"
        report.line(f"MPNet in {name}", meaning, **common.ratio(seconds["theirs"], seconds["ours"]))


if __name__ == "__main__":
    main()
