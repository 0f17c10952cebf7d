"""reproduce(): a table of a paper, from its rows to a page with measured and published scores."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from starbucks_retrieval.cli.command import readable
from starbucks_retrieval.clock import now, seconds_since
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.files import atomic_writer, write_text
from starbucks_retrieval.report import ReportArguments, report
from starbucks_retrieval.reproduce import ReproduceArguments
from starbucks_retrieval.reproduce.claims import judge
from starbucks_retrieval.reproduce.estimate import estimate
from starbucks_retrieval.reproduce.layout import make_table, shown_columns, to_markdown
from starbucks_retrieval.reproduce.made import make_data
from starbucks_retrieval.reproduce.plan import Plan, make_plan
from starbucks_retrieval.reproduce.precision import keep_precision
from starbucks_retrieval.reproduce.reading import find_table, read_scale, read_table
from starbucks_retrieval.reproduce.results import collect, write_row
from starbucks_retrieval.reproduce.run import Stopped, run_jobs

log = logging.getLogger(__name__)


def plan_reproduction(arguments: ReproduceArguments) -> Plan:
    """Read the file of a table and return the jobs behind it.

    Args:
        arguments: The flags of the command.

    Raises:
        UserError: The table, its rows, its published scores or the data are wrong, or --only names no row.
    """
    path = find_table(arguments.table)
    table = read_table(path)
    scale = read_scale(arguments.scale, table, path)
    names = [row.name for row in table.rows]
    for name in arguments.only:
        if name not in names:
            raise UserError(f"{path}: no row is called {name!r}", f"--only takes {', '.join(names)}")
    root = Path(arguments.output_dir).expanduser().absolute()
    data_dir = Path(arguments.data_dir).expanduser() if scale.child else root / "made"
    return make_plan(table, scale, arguments.seeds, data_dir, root)


def reproduce(arguments: ReproduceArguments) -> dict[str, Any]:
    """Run the rows of a table that are missing, and write the table with measured and published scores.

    Finished jobs of earlier calls are kept, also those of other tables.

    Args:
        arguments: The flags of the command.

    Returns:
        Figures: output (the folder of the table), markdown (its text), verdicts ({claim: verdict}), missing ({row or row
        and set: reason}), complete (whether all jobs of the table are finished) and seconds.

    Raises:
        UserError: As `plan_reproduction`, or a stage failed.

    Example:
        >>> reproduce(ReproduceArguments("starbucks/table2"))["verdicts"]  # doctest: +SKIP
        {'d': 'not testable here'}
    """
    began = now()
    root = Path(arguments.output_dir).expanduser().absolute()
    plan = plan_reproduction(arguments)  # a mistake is told before anything is written
    if not plan.scale.child and make_data(root / "made"):
        plan = plan_reproduction(arguments)  # the names of jobs have digests of their data
    if plan.precision:
        keep_precision(root, plan.precision)
    complete = True
    try:
        run_jobs(plan.jobs(arguments.only), root, plan.scale.child, arguments.minutes)
    except Stopped:
        complete = False
        log.info("stopped after %g minutes; the same command goes on from there", arguments.minutes or 0)
    figures = write_tables(plan, arguments, root)
    return figures | {"complete": complete, "seconds": round(seconds_since(began), 1)}


def write_tables(plan: Plan, arguments: ReproduceArguments, root: Path) -> dict[str, Any]:
    """Write the table, the verdicts and the page from the jobs that are finished.

    Args:
        plan: The plan of the table.
        arguments: The flags of `reproduce`.
        root: The output folder of all tables.

    Returns:
        As `reproduce`, without `complete` and `seconds`.
    """
    scores, missing = collect(plan, root)
    path = find_table(arguments.table)
    name = f"{path.parent.name}-{path.stem}" if arguments.table == f"{path.parent.name}/{path.stem}" else path.stem
    folder = root / arguments.scale / name
    folder.mkdir(parents=True, exist_ok=True)
    table = make_table(plan, name, scores, missing)
    columns = [(column.dataset, column.measure) for column in shown_columns(plan)]
    verdicts = judge(plan, scores, columns)
    markdown = to_markdown(table, verdicts)
    for file, text in (table.to_files() | {f"{name}.md": markdown}).items():
        with atomic_writer(folder / file) as out:
            out.write(text.encode())
    rows = [row for row in plan.table.rows if row.name in scores]
    runs = max((count for row in scores.values() for count in row.seeds.values()), default=1)
    inputs = []
    for number, row in enumerate(rows):
        inputs += write_row(folder / "rows", number, row.label or row.name, scores[row.name], 1 if row.train else runs)
    if inputs:
        baseline = next((row.label or row.name for row in rows if row.name == plan.table.baseline), None)
        notes = [f"Measured at this scale: {plan.about}.", *map(str, verdicts)]
        sizes = None if plan.table.sizes == "grid" else str(plan.sizes)
        measured = {measure for row in scores.values() for _, measure, _, _ in row.cells}
        page = ReportArguments(
            inputs,
            str(folder / "page"),
            sizes=sizes,
            baseline=baseline,
            correlation_test="williams",  # as the table
            seeds=runs > 1,
            measures=sorted(measured.intersection(measure for _, measure in columns)),  # not all that the jobs measure
            title=plan.table.title,
            note=notes,
        )
        report(page)
    write_text(folder / "commands.txt", "".join(f"{job.command(root)}\n" for job in plan.jobs(arguments.only)))
    return {
        "output": str(folder),
        "markdown": markdown,
        "verdicts": {one.claim.id: one.verdict for one in verdicts},
        "missing": {" on ".join(filter(None, key)): reason for key, reason in missing.items()},
    }


def preview(arguments: ReproduceArguments) -> tuple[list[list[str]], dict[str, Any]]:
    """Estimate the jobs of a table.

    Returns:
        The rows of a text table with its header first; and `summary` in one line, `jobs` (number), `hours` and
        `bytes` of those that are not finished, and `not_run`, {"row on set": reason}.
    """
    root = Path(arguments.output_dir).expanduser().absolute()
    plan = plan_reproduction(arguments)
    jobs = plan.jobs(arguments.only)
    found = estimate(jobs, plan.scale, root)
    rows = [["job", "state", "hours", "writes", "what"]]
    for job, one in zip(jobs, found.jobs, strict=True):
        state = "finished" if one.finished else "missing"
        rows.append([job.id, state, f"{one.hours:.2f}", readable(one.bytes), one.what])
    waiting = [one for one in found.jobs if not one.finished]
    hours, size = sum(one.hours for one in waiting), sum(one.bytes for one in waiting)
    total = f"{len(jobs)} jobs, {len(waiting)} to run: {hours:.2f} hours, {readable(size)}"
    total += f"; in {plan.precision}" if plan.precision else ""
    total += f"; {found.basis}" if found.basis else ""
    blocked = {" on ".join(filter(None, key)): reason for key, reason in plan.not_run.items()}
    return rows, {"summary": total, "hours": hours, "bytes": size, "jobs": len(jobs), "not_run": blocked}
