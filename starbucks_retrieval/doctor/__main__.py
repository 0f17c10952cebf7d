"""The command `doctor`: a report on the installation and the machine, for a terminal or as JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from starbucks_retrieval.cli import CommonArguments, exit_command, finish, flag, parse_flags, setup_logging
from starbucks_retrieval.doctor import EnvironmentReport, examine
from starbucks_retrieval.doctor.probes import CPU_FLAGS
from starbucks_retrieval.errors import UserError

_SHOWN = ("torch", "transformers", "tokenizers", "datasets", "accelerate", "numpy")


@dataclass
class DoctorArguments:
    """Checks"""

    online: bool = flag(False, "check that the hub answers; without this flag no network is used")
    thorough: bool = flag(False, "import the packages of installed extras too, which takes longer")
    strict: bool = flag(False, "exit with status 2 if there is a problem; notes do not count")


def as_text(report: EnvironmentReport) -> str:
    """Return a report as text for a terminal.

    Args:
        report: The report, as `examine` returns it.

    Returns:
        Lines of facts, each heading once, and after them the problems with their remedies.
    """
    lines, last = [], ""
    for heading, line in _facts(report):
        lines.append(f"{heading if heading != last else '':13}{line}")
        last = heading
    whole_words = textwrap.TextWrapper(110, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
    for problem in report.problems:
        kind = "problem" if problem.serious else "note"
        lines += map(whole_words.fill, (f"{kind}: {problem.what}", f"  try: {problem.remedy}"))
    return "\n".join(lines if report.problems else [*lines, "no problems found"])


def _facts(report: EnvironmentReport) -> Iterator[tuple[str, str]]:
    """Yield the heading and the line of every known fact."""
    facts = {name: fact for name, fact in report.facts.items() if fact is not None}
    torch, faiss = (report.imports.get(name) or {} for name in ("torch", "faiss"))
    if here := facts.get("installation"):
        git = f" ({here['git'][:10]})" if here["git"] else ""
        yield "version", f"starbucks_retrieval {here['starbucks_retrieval']}{git} in {here['folder']}"
        yield "version", f"Python {here['python']} at {here['executable']}, {here['platform']}"
    versions = {need.name: need.version for need in report.required if need.name in _SHOWN} | facts.get("faiss", {})
    yield "packages", ", ".join(f"{name} {version}" for name, version in versions.items() if version)
    if faiss.get("ok"):
        yield "packages", f"FAISS is built for {faiss['options']}, and finds {faiss['gpus']} GPUs"
    for number, gpu in enumerate(torch.get("gpus", [])):
        free = f"{_gb(gpu['free_bytes'])} of {_gb(gpu['bytes'])} free"
        bf16 = ", bf16" if torch["gpu_bf16"] else ""
        yield "devices", f"GPU {number}: {gpu['name']}, {free}, capability {gpu['capability']}{bf16}"
    if torch.get("ok") and not torch["gpus"]:
        yield "devices", "GPU: Apple's, through MPS" if torch["mps"] else "PyTorch finds no GPU"
    if cpu := facts.get("processor"):
        flags = ", ".join(CPU_FLAGS[flag] for flag in cpu["flags"]) or "no vector instructions known"
        yield "devices", f"CPU: {cpu['name']}, {cpu['cores']} cores, {cpu['usable']:g} usable; {flags}"
    if torch.get("ok"):
        speed = f"bf16 multiplication is {torch['bf16_speedup']:.1f} times as fast as fp32 on this CPU"
        yield "devices", f"{speed}: --dtype auto selects {torch['dtype']}"
    if memory := facts.get("memory"):
        free = "" if memory["free_bytes"] is None else f", {_gb(memory['free_bytes'])} free"
        yield "memory", _gb(memory["bytes"]) + free
    for name, disk in facts.get("disks", {}).items():
        yield "disk", f"{_gb(disk['free_bytes'])} free at {disk['path']} ({name})"
    if hub := facts.get("hub"):
        state = "offline by environment variable" if hub["offline"] else f"online by setting ({hub['endpoint']})"
        tried = {None: "not checked (use --online)", True: "answers", False: "does not answer"}[hub["reachable"]]
        token = "a token" if hub["token"] else "no token (public models need none)"
        yield "hub", f"{state}; network {tried}; {hub['cached_models']} models in the cache; {token}"
    if java := facts.get("java"):
        fits = "recent enough for pyserini" if java["fits"] else "too old for pyserini"
        yield "Java", f"{java['version']}, {fits}" if java["version"] else "not found; only pyserini needs it"
    for extra in report.extras:
        yield "extras", f"{extra['name']:10}{extra['state']:10}{extra['gives']}"
        if extra["lacks"]:
            partly = f"   # lacks {', '.join(extra['lacks'])}" if extra["state"] == "partly" else ""
            yield "extras", f"{'':20}{extra['command']}{partly}"


def _gb(count: float) -> str:
    return f"{count / 1e9:.1f} GB"


def main(argv: Sequence[str]) -> None:
    """Parse the flags and print the report."""
    (arguments, common), _ = parse_flags(
        [DoctorArguments, CommonArguments],
        argv,
        "starbucks doctor",
        "Report versions, devices, disk space and extras of this installation, and its problems with remedies.",
        ("starbucks doctor", "starbucks doctor --online --thorough"),
    )
    setup_logging(common)
    report = examine(online=arguments.online, thorough=arguments.thorough)
    if not common.json:
        print(as_text(report), flush=True)
    serious = [problem for problem in report.problems if problem.serious]
    summary = f"{len(serious)} problems, {len(report.problems) - len(serious)} notes, {report.seconds:.1f} s"
    finish(common, summary, report.to_json())
    if arguments.strict and serious:
        raise UserError(f"{len(serious)} problems, the first: {serious[0].what}", serious[0].remedy)


if __name__ == "__main__":
    exit_command(main)
