"""The record of versions that output files carry."""

from starbucks_retrieval.provenance import describe, versions


def test_further_packages_are_recorded():
    assert "pytest" in describe(packages=("pytest", "a-package-that-is-not-installed"))["packages"]


def test_a_record_with_further_packages_leaves_later_records_as_they_were():
    before = describe()
    describe(packages=("pytest",))["packages"]["pip"] = "0"
    assert describe() == before and "pytest" not in versions()
