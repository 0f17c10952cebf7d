"""The templates: values are escaped, the only script is the one that the policy allows, a missing value is an error."""

from __future__ import annotations

import base64
import hashlib
import re

import jinja2
import pytest

from starbucks_retrieval.pages import render_template, signed
from starbucks_retrieval.report import Report

HOSTILE = "</title><script>alert(1)</script>\"'&"


def page(title: str) -> str:
    return Report(title, title, [], [title], [], [], [], [title]).to_html()


def test_values_are_escaped():
    html = page(HOSTILE)
    assert "<script>alert" not in html
    assert html.count("&lt;script&gt;alert(1)&lt;/script&gt;&#34;&#39;&amp;") == 5  # title, heading, and three texts


def test_the_policy_allows_the_script_of_the_page_alone():
    html = page("title")
    (script,) = re.findall(r"<script>(.*?)</script>", html, re.S)
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', html)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy and "default-src 'none'" in policy
    assert script.count("{") == script.count("}")


def test_every_page_has_the_theme():
    assert html_style(page("title")).startswith(":root { color-scheme: light dark;")


def html_style(html: str) -> str:
    (style,) = re.findall(r"<style>(.*?)</style>", html, re.S)
    return style


def test_a_missing_value_is_an_error():
    with pytest.raises(jinja2.UndefinedError):
        render_template("report.html")


def test_signed_numbers():
    assert [signed(0.5), signed(-0.25, 2), signed(0.0)] == ["+0.500", "−0.25", "+0.000"]
