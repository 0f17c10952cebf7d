"""Self-contained HTML pages from the Jinja2 templates of this package, in one theme.

Templates escape all values (autoescape). A page loads nothing: styles and the script are inside it, and its content
security policy allows only the script whose hash it names.
"""

from __future__ import annotations

import base64
import functools
import hashlib
from importlib import resources
from typing import Any

import jinja2
from markupsafe import Markup


def render_template(name: str, **context: Any) -> str:
    """Return a page as text.

    Args:
        name: A file in `templates/`, such as `report.html`. It sets `style` and `script`, files there too.
        context: What the template shows. Values are escaped unless they are `markupsafe.Markup`.

    Raises:
        jinja2.UndefinedError: The template needs a value that `context` lacks.

    Example:
        >>> page = render_template("browse.html")
        Traceback (most recent call last):
        ...
        jinja2.exceptions.UndefinedError: 'page' is undefined
    """
    return _environment().get_template(name).render(**context)


def signed(value: float, digits: int = 3) -> str:
    """Return a difference with its sign, the minus as wide as the plus.

    Example:
        >>> signed(0.12), signed(-0.12)
        ('+0.120', '−0.120')
    """
    return f"{value:+.{digits}f}".replace("-", "−")


@functools.cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(__name__),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {"asset": _asset, "script_hash": _script_hash}
    environment.filters |= {"signed": signed, "thousands": "{:,}".format}
    return environment


@functools.cache
def _asset(name: str) -> Markup:
    """Return a style sheet or script of `templates/`, which is trusted."""
    return Markup(resources.files(__name__).joinpath("templates", name).read_text(encoding="utf-8"))  # noqa: S704 - a file of this package


def _script_hash(name: str) -> str:
    """Return the hash by which a content security policy allows a script."""
    return "sha256-" + base64.b64encode(hashlib.sha256(_asset(name).encode()).digest()).decode()
