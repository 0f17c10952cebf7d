"""The reader of YAML that people write: plain values only, within limits of depth and repetition."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.parsing import shown

if TYPE_CHECKING:
    import yaml

_YAML_LEVELS = 50
_YAML_NODES = 100_000  # with repetitions through aliases
_YAML_TAGS = ("null", "bool", "int", "float", "str", "seq", "map")


def parse_yaml(text: str, name: str | Path, hint: str = "correct the file's syntax") -> Any:
    """Read YAML (JSON is YAML) of plain values: null, booleans, numbers, texts, lists and mappings.

    Dates and sizes such as 2:32 are read as text, where YAML 1.1 would read a date, and a number to base 60.

    Args:
        text: The YAML.
        name: The file, for messages.
        hint: The remedy if it cannot be read.

    Raises:
        UserError: It is malformed, nested too deeply or repeats too much, has a tag of another type, or a value that
            does not fit its tag.

    Example:
        >>> parse_yaml("sizes: 2:32\\nday: 2001-01-01", "a.yaml")
        {'sizes': '2:32', 'day': '2001-01-01'}
    """
    import yaml

    loader = None
    try:
        loader = _loader()(text)
        node = loader.get_single_node()
        if node is None:
            return None
        _check_yaml(node)
        return loader.construct_document(node)
    except RecursionError:
        raise UserError(f"{name}: nested more than {_YAML_LEVELS} deep", hint) from None
    except yaml.YAMLError as error:
        message = " ".join(str(error).replace('in "<unicode string>", ', "at ").split())
        raise UserError(f"{name}: {message}", hint) from None
    finally:
        if loader is not None:
            loader.dispose()


def _check_yaml(root: yaml.Node) -> None:
    """Raise YAMLError for nodes that are nested too deeply, are inside themselves, are too many, or have another tag."""
    import yaml

    sizes: dict[int, int] = {}
    inside: set[int] = set()

    def visit(node: yaml.Node, depth: int) -> int:
        if id(node) in inside or depth > _YAML_LEVELS:
            raise yaml.YAMLError(f"nested more than {_YAML_LEVELS} deep\n{node.start_mark}")
        if id(node) not in sizes:
            if node.tag.removeprefix("tag:yaml.org,2002:") not in (*_YAML_TAGS, "merge", "value"):
                raise yaml.YAMLError(f"the tag {shown(node.tag)} is not supported\n{node.start_mark}")
            inside.add(id(node))
            children = node.value if isinstance(node, yaml.SequenceNode) else []
            if isinstance(node, yaml.MappingNode):
                children = [each for pair in node.value for each in pair]
            sizes[id(node)] = 1 + sum(visit(child, depth + 1) for child in children)
            inside.remove(id(node))
        if sizes[id(node)] > _YAML_NODES:
            raise yaml.YAMLError(f"more than {_YAML_NODES:,} values\n{node.start_mark}")
        return sizes[id(node)]

    visit(root, 0)


@cache
def _loader() -> type[yaml.SafeLoader]:
    import yaml

    class Loader(yaml.SafeLoader):
        """The safe loader without dates and numbers to base 60, whose errors all have a place."""

        def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
            reason = ""
            try:
                value = super().construct_object(node, deep)
                if not isinstance(value, int) or abs(value) < 2**63:
                    return value
            except (yaml.YAMLError, RecursionError):
                raise
            except Exception as error:  # the constructors of PyYAML do not check the text that they convert
                reason = f" ({type(error).__name__})"
            kind = node.tag.rpartition(":")[2]
            problem = f"not a value of type {kind} that can be read{reason}"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)

    def adapted(tag: str, form: re.Pattern) -> tuple[str, re.Pattern]:
        is_number = tag.endswith(("int", "float"))
        return tag, re.compile(f"(?!.*:)(?:{form.pattern})", re.X) if is_number else form

    Loader.yaml_implicit_resolvers = {
        first: [adapted(tag, form) for tag, form in forms if not tag.endswith("timestamp")]
        for first, forms in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    return Loader
