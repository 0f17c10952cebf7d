"""The funnel: a shortlist at a small size, rescored at larger ones; the encoder makes all sizes in one pass.

Source: the cascade of adaptive retrieval over nested embeddings (arXiv 2205.13147, section 4.3), here over layers too.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise

from starbucks_retrieval.cli import log
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.search.pairs import cut_query_size
from starbucks_retrieval.sizes import Size, Sizes, pair_name

_SYNTAX = (
    "write layer:dim@passages for every step, for example 2:32@1000,6:128@100,12:768; 12:128/int4@200,12:768 scans 4-bit "
    "numbers first; 1:32/6:32@1000,1:128/6:128 is for queries at layer 1"
)

# Bits for each number. FAISS scans the 4-bit codes of product quantizers with tables in registers, many times faster than
# SQ4, its own 4-bit numbers.
CODES: dict[str, Callable[[int], str]] = {
    "int8": lambda dim: "SQ8",
    "int4": lambda dim: f"PQ{dim}x4fs",
    "int2": lambda dim: f"PQ{dim // 2}x4fs",  # 4 bits for two numbers
    "int1": lambda dim: f"PQ{dim // 4}x4fs",  # 4 bits for four
    "binary": lambda dim: "Binary",
}
NUMBERS = {"int2": 2, "int1": 4}  # that share a code
INDEX = "index"  # instead of a code: the first step asks an index that was built over the store


@dataclass(frozen=True)
class FunnelStep:
    """One size of a funnel.

    Args:
        size: The size of queries and passages; of the passages, if `query_size` is given.
        keep: How many passages of each query it keeps; None, for the last step, leaves that to the depth.
        query_size: The size of the queries, if their layer is another one.
        code: A name of `CODES` where quantised vectors are scanned instead of the stored ones; `INDEX` where a built
            index is searched instead.

    Raises:
        UserError: The two sizes differ in dim, or there is no such code for this dim.

    Example:
        >>> print(FunnelStep(Size(6, 32), 1000, Size(1, 32)), FunnelStep(Size(6, 64), 200, code="int4"))
        1:32/6:32@1000 6:64/int4@200
    """

    size: Size
    keep: int | None = None
    query_size: Size | None = None
    code: str | None = None

    def __post_init__(self) -> None:
        if self.query_size is not None and self.query_size.dim != self.size.dim:
            raise UserError(f"the step {self} compares {self.query_size.dim} with {self.size.dim} dimensions", _SYNTAX)
        if self.code is not None and self.code not in (*CODES, INDEX):
            raise UserError(
                f"{self.code!r} is no code for {self.size}", f"the codes are {', '.join(CODES)}; {INDEX} asks an index"
            )
        group = NUMBERS.get(self.code or "", 1)
        if self.size.dim % group:
            raise UserError(f"{self}: a code is for {group} numbers", f"use a dim that {group} divides")

    def __str__(self) -> str:
        name = str(self.size) if self.query_size is None else pair_name(self.query_size, self.size)
        name += f"/{self.code}" if self.code else ""
        return name if self.keep is None else f"{name}@{self.keep}"

    @property
    def factory(self) -> str | None:
        """The FAISS factory of the codes; None without."""
        return CODES[self.code](self.size.dim) if self.code in CODES else None


@dataclass(frozen=True)
class Funnel:
    """Steps of growing size and shrinking lists; a single step is a plain search.

    Args:
        steps: Neither layers nor dims shrink from step to step, and each keeps no more passages than the one before. The
            first may scan quantised vectors or ask an index, of the size of the next one too.

    Raises:
        UserError: The steps are of another form.

    Example:
        >>> funnel = Funnel.parse("2:32@1000,6:128@100,12:768")
        >>> funnel.last, funnel.depth
        (Size(layer=12, dim=768), None)
        >>> print(funnel.at_depth(10))
        2:32@1000,6:128@100,12:768@10
    """

    steps: tuple[FunnelStep, ...]

    def __post_init__(self) -> None:
        if not self.steps:
            raise UserError("the funnel has no steps", _SYNTAX)
        sizes = [step.size for step in self.steps if not step.code]
        self._check_codes()
        for size in sizes:
            if sizes.count(size) > 1:
                raise UserError(f"the funnel {self} scores at {size} twice", "name each size once")
        for step in self.steps[:-1]:
            if step.keep is None:
                raise UserError(f"the funnel {self} does not say how many passages {step} keeps", _SYNTAX)
        for step in self.steps:
            if step.keep is not None and step.keep < 1:
                raise UserError(f"the funnel {self} keeps {step.keep} passages at {step.size}", "keep at least one")
        for first, second in pairwise(self.steps):
            if not grows(first.size, second.size) and not (first.code and first.size == second.size):
                raise UserError(
                    f"the funnel {self} shrinks from {first.size} to {second.size}: a funnel grows in cost",
                    "put the cheapest size first; neither layers nor dims may shrink from step to step",
                )
            if first.keep is not None and second.keep is not None and second.keep > first.keep:
                raise UserError(
                    f"the funnel {self} keeps {second.keep} passages at {second.size}, of {first.keep} before",
                    "keep no more than the step before does",
                )

    def _check_codes(self) -> None:
        for position, step in enumerate(self.steps):
            if step.code is None:
                continue
            if position:
                raise UserError(
                    f"{step} is not the first step of the funnel {self}", "only the first has a code or an index"
                )
            if len(self.steps) == 1:
                hint = f"score the passages that it keeps, for example {step.size}/{step.code}@200,{step.size}"
                raise UserError(f"the funnel {self} has approximate scores only", hint)

    @classmethod
    def parse(cls, text: str) -> Funnel:
        """Read `2:32@1000,6:128@100,12:768`; the last step may name a number of passages too, else the depth decides.

        A first step such as `12:128/int4@200` scans quantised vectors, `12:128/index@200` asks an index. A step may
        name queries of another layer before its passages: `1:32/6:32@1000,1:128/6:128`.
        """
        steps = []
        for step in text.split(","):
            scanned, at, keep = step.strip().partition("@")
            if at and not re.fullmatch(r"-?\d+", keep):
                raise UserError(f"cannot read the step {step.strip()!r} of the funnel {text}", _SYNTAX)
            try:
                steps.append(_parse_step(scanned, int(keep) if at else None))
            except UserError as error:
                raise UserError(f"{error.what}, in the funnel {text!r}", _SYNTAX) from None
        return cls(tuple(steps))

    def __str__(self) -> str:
        return ",".join(map(str, self.steps))

    @property
    def sizes(self) -> Sizes:
        """The sizes of the steps, in order, each once."""
        return Sizes(dict.fromkeys(step.size for step in self.steps))

    @property
    def query_sizes(self) -> dict[Size, Size]:
        """{size of a step: size of its queries}, for the steps that name one."""
        return {step.size: step.query_size for step in self.steps if step.query_size is not None}

    def with_queries_at(self, query_size: Size | None) -> Funnel:
        """Return the funnel with queries of one layer in all steps that do not name their queries.

        Args:
            query_size: The layer, and the dims that the queries have; None changes nothing.

        Raises:
            UserError: A step has more dims.

        Example:
            >>> print(Funnel.parse("6:32@1000,6:128").with_queries_at(Size(1, 128)))
            1:32/6:32@1000,1:128/6:128
        """
        if query_size is None:
            return self
        steps = []
        for step in self.steps:
            if step.query_size is None:
                step = replace(step, query_size=cut_query_size(query_size, step.size))
            steps.append(step)
        return Funnel(tuple(steps))

    @property
    def last(self) -> Size:
        """The size whose scores the results have."""
        return self.steps[-1].size

    @property
    def depth(self) -> int | None:
        """How many passages the last step keeps; None if the funnel does not say."""
        return self.steps[-1].keep

    def at_depth(self, depth: int | None = None, default: int = 1000) -> Funnel:
        """Return the funnel with a number of passages for its last step.

        Args:
            depth: Passages to keep; None: what the last step names.
            default: Passages to keep if the funnel does not say. If the step before keeps fewer, these are kept, with a
                warning.

        Raises:
            UserError: The depth is below 1 or contradicts the funnel.
        """
        named = self.depth
        if depth is not None and check_depth(depth) != (named or depth):
            raise UserError(
                f"--depth {depth} contradicts the funnel {self}, which ends with @{named}", "give one of them"
            )
        wanted = depth or named or default
        before = self.steps[-2].keep if len(self.steps) > 1 else None
        if before is not None and wanted > before:
            log.warning("the funnel %s passes on %d passages: each query gets these, not %d", self, before, wanted)
            wanted = before
        return Funnel((*self.steps[:-1], replace(self.steps[-1], keep=wanted)))


def check_depth(depth: int) -> int:
    """Return the number of passages per query. Raises UserError if it is below 1."""
    if depth < 1:
        raise UserError(f"--depth {depth} is below 1", "give at least 1 passage per query")
    return depth


def grows(first: Size, second: Size) -> bool:
    """Return whether a funnel may go from one size to another: more layers or dims, and fewer of neither.

    Example:
        >>> grows(Size(2, 32), Size(6, 32)), grows(Size(2, 128), Size(6, 32)), grows(Size(2, 32), Size(2, 32))
        (True, False, False)
    """
    return first != second and first.layer <= second.layer and first.dim <= second.dim


def _parse_step(text: str, keep: int | None) -> FunnelStep:
    """Read `6:64`, `6:64/int4`, `1:64/6:64` or `1:64/6:64/int4`."""
    *names, last = text.split("/")
    code = last if names and ":" not in last else None
    sizes = [*names, last] if code is None else names
    if len(sizes) > 2:
        raise UserError(f"cannot read the step {text!r}", _SYNTAX)
    query_size = Size.parse(sizes[0]) if len(sizes) == 2 else None
    return FunnelStep(Size.parse(sizes[-1]), keep, query_size, code)
