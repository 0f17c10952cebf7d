from pathlib import Path

import pytest

from . import commands


@pytest.fixture(scope="session")
def runs(tmp_path_factory, tiny_bert) -> dict[str, commands.Run]:
    """One small run of every command, by name."""
    return commands.make_inputs(tmp_path_factory.mktemp("inputs"), tiny_bert)


@pytest.fixture
def clean(runs, name, tmp_path) -> Path:
    """The outputs of a run that nothing disturbs."""
    folder = tmp_path / "clean"
    runs[name].prepare(folder)
    assert runs[name](folder) == 0
    return folder
