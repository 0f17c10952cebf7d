"""quickstart(): documents to a search in three steps, which a killed quickstart resumes."""

from __future__ import annotations

import dataclasses
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from starbucks_retrieval.cli.dry_run import duration
from starbucks_retrieval.cli.words import command, short_path
from starbucks_retrieval.clock import now, seconds_since
from starbucks_retrieval.data import Passage, Query, open_corpus
from starbucks_retrieval.quickstart import QuickstartArguments
from starbucks_retrieval.quickstart.documents import Documents, write_lines
from starbucks_retrieval.quickstart.plan import QuickstartPlan, no_text, plan_quickstart
from starbucks_retrieval.sizes import Size, Sizes
from starbucks_retrieval.steps import Steps
from starbucks_retrieval.version import __version__

log = logging.getLogger(__name__)

_OUTPUTS = {"documents": ["corpus.jsonl"], "fit": ["model"], "encode": ["passages"]}
_SHARD = 4096  # rows: a killed quickstart loses the shard that it was encoding
_SAMPLE = 200  # passages, by whose lengths the time is estimated
# Flags that change nothing that is written.
_NOT_INPUTS = ("output", "queries", "hits", "device")


def quickstart(arguments: QuickstartArguments, documents: Documents | None = None) -> dict[str, Any]:
    """Read documents, split them, fit small sizes of a model on them, and encode them. All goes into one folder.

    Finished steps of an earlier call with the same documents and flags are kept.

    Args:
        arguments: The flags of `starbucks quickstart`.
        documents: The documents, if they were opened before.

    Returns:
        Figures: output, model, corpus, passage_reps, sizes (smallest first), documents, passages, empty documents, found
        (the files or columns that were read), fit and encode (the figures of these stages; fit is None without it),
        commands (those that the steps stand for), next (commands to type next) and seconds.

    Raises:
        UserError: The documents or the model cannot be read, or the output folder holds something else.

    Example:
        >>> quickstart(QuickstartArguments("docs.csv"))["sizes"]  # doctest: +SKIP
        ['0:32', '1:32', '1:64', '5:32', '6:64', '6:384']
    """
    from starbucks_retrieval.search.engines.exact import import_faiss

    began = now()
    import_faiss()  # says how to install it before anything is computed
    plan = plan_quickstart(arguments, documents)
    flags = dataclasses.asdict(arguments)
    inputs = {
        "version": __version__,
        "flags": {name: value for name, value in flags.items() if name not in _NOT_INPUTS},
        "model": plan.model.name,
        "documents": plan.documents.state(),
    }
    log.info("%s: %s", plan.documents.path, plan.documents.told)
    with Steps.open(arguments.folder, _OUTPUTS, inputs, "quickstart") as steps:
        figures = _run(steps, plan)
    return figures | {"seconds": round(seconds_since(began), 1)}


def _run(steps: Steps, plan: QuickstartPlan) -> dict[str, Any]:
    from starbucks_retrieval.encode import EncodeArguments, encode
    from starbucks_retrieval.fit import FitArguments, fit

    folder = plan.arguments.folder
    corpus, model, reps = (short_path(folder / _OUTPUTS[step][0]) for step in _OUTPUTS)
    read = steps.run("documents", "[1/3] reading the documents, and splitting long ones", lambda: _write(plan))
    log.info(
        "%d passages of at most %d tokens in %s%s",
        *(read["passages"], read["passage_max_len"], corpus),
        f"; {read['split']} longer documents were split, at paragraphs and sentences" if read["split"] else "",
    )
    log.info("fitting and encoding: %s", duration(read["estimated_seconds"]))
    if read["empty"]:
        log.info("%d documents without text were left out", read["empty"])
    base = short_path(Path(plan.model.name)) if Path(plan.model.name).exists() else plan.model.name
    device = {"device": plan.arguments.device}
    commands: list[str] = []

    def stage(name: str, title: str, flags: dict[str, Any], work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        commands.append(command(name, flags))
        return steps.run(name, f"{title}\n$ {commands[-1]}", work, resumes=True)

    fitted = None
    if read["fit_texts"]:
        fit_flags: dict[str, Any] = {"model_name_or_path": base, "dataset_path": [corpus], "output_dir": model}
        fit_flags |= {"max_texts": read["fit_texts"], "dtype": "auto", "overwrite_output_dir": True, **device}
        title = f"[2/3] fitting small sizes on {read['fit_texts']} passages"
        fitted = stage("fit", title, fit_flags, lambda: fit(FitArguments(**fit_flags)))
    else:
        log.info("\n[2/3] no small sizes are fitted: %s", read["reason"])
        model = base
    encode_flags: dict[str, Any] = {"model_name_or_path": model, "dataset_path": corpus, "encode_output_path": reps}
    encode_flags |= {"shard_size": _SHARD, **device}
    title = f"[3/3] encoding {read['passages']} passages"
    encoded = stage("encode", title, encode_flags, lambda: encode(EncodeArguments(**encode_flags)))
    sizes = [str(size) for size in sorted(map(Size.parse, encoded["sizes"]))]
    figures = {
        "output": str(folder),
        "model": model,
        "corpus": corpus,
        "passage_reps": reps,
        "sizes": sizes,
        **{name: read[name] for name in ("documents", "passages", "empty", "found")},
        "fit": fitted,
        "encode": encoded,
        "commands": commands,
    }
    return figures | {"next": next_lines(figures, plan.arguments.device)}


def _write(plan: QuickstartPlan) -> dict[str, Any]:
    """Write the corpus, and decide how many passages the fit reads: a resumed one must read as many."""
    counts: Counter[str] = Counter()
    sample: list[Passage] = []

    def rows() -> Iterator[dict[str, Any]]:
        for passages in plan.passages():
            counts["empty"] += not passages
            counts["split"] += len(passages) > 1
            sample.extend(passages[: _SAMPLE - len(sample)])
            for passage in passages:
                yield {"_id": passage.docid, "title": passage.title, "text": passage.text}

    count = write_lines(plan.arguments.folder / "corpus.jsonl", rows())
    if not count:
        (plan.arguments.folder / "corpus.jsonl").unlink()
        raise no_text(plan.documents)
    seconds = plan.seconds_per_passage(sample)
    texts, reason = plan.fit_texts(count, seconds)
    return {
        "documents": plan.documents.count,
        "passages": count,
        "empty": counts["empty"],
        "split": counts["split"],
        "found": plan.documents.told,
        "passage_max_len": plan.length,
        "fit_texts": texts,
        "reason": reason,
        "estimated_seconds": round((texts + count) * seconds, 1),
    }


def next_lines(figures: dict[str, Any], device: str | None, queries: list[Query] | None = None) -> list[dict[str, str]]:
    """Return commands to type after a quickstart.

    Args:
        figures: What `quickstart` returns.
        device: The flag.
        queries: Queries that were written to the output folder as queries.jsonl.

    Returns:
        Mappings with `what`, the purpose, and `command`, the command line.
    """
    folder, sizes = Path(figures["output"]), Sizes(map(Size.parse, figures["sizes"]))
    ask = {"model_name_or_path": figures["model"], "passage_reps": figures["passage_reps"]}
    shown = {"corpus_path": figures["corpus"], "device": device}
    full, small = sizes[-1], small_size(sizes)
    text = queries[0].text if queries else _first_words(figures["corpus"])
    lines: list[tuple[str, str, dict[str, Any]]] = [
        ("ask more, at the full size", "search", {**ask, "size": full, **shown, "interactive": True}),
    ]
    if small != full:
        what = f"one query at {small}: {small.layer} of {full.layer} layers, {small.dim} of {full.dim} numbers"
        lines.append((what, "search", {**ask, "size": small, **shown, "query": text}))
    if queries:
        encoded, run = short_path(folder / "queries"), short_path(folder / "answers.trec")
        named = {"model_name_or_path": figures["model"], "dataset_path": short_path(folder / "queries.jsonl")}
        lines.append(
            (
                "encode the queries, and",
                "encode",
                {**named, "encode_is_query": True, "encode_output_path": encoded, "device": device},
            )
        )
        reps = {"query_reps": encoded, "passage_reps": figures["passage_reps"]}
        lines.append(("write their hits as a run", "search", {**reps, "size": full, "save_ranking_to": run}))
    return [{"what": what, "command": command(stage, flags)} for what, stage, flags in lines]


def small_size(sizes: Sizes) -> Size:
    """Return the largest size of at most half the layers of the full size; the smallest size if there is none.

    Example:
        >>> str(small_size(Sizes.parse("0:32,1:64,2:64,5:32,6:384")))
        '2:64'
    """
    return max((size for size in sizes if 2 * size.layer <= sizes[-1].layer), default=sizes[0])


def _first_words(corpus: str) -> str:
    first = next(iter(open_corpus(corpus)))
    return " ".join((first.text or first.title).split()[:8])
