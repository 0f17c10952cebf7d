"""The page of faults is the one that the record of the attack gives."""

from attack import faults


def test_the_page_has_the_recorded_counts():
    entries = faults.read()
    assert faults.PAGE.read_text(encoding="utf-8") == faults.page(entries), "run python tests/attack/faults.py"
    assert {entry["part"] for entry in entries} <= faults.PARTS.keys()


def test_entries_are_added_up_and_replaced(tmp_path, monkeypatch):
    path = tmp_path / "faults.json"
    monkeypatch.setenv("ATTACK_RECORD", str(path))
    faults.record("kills", "mine", 1, 9)
    faults.record("kills", "mine", 2, 2000, ["killed at 3"])
    faults.record("kills", "mine", 1, 10)
    faults.record("disk", "mine", 0, 4, refused=3, completed=1)
    entries = faults.read(path)
    entries[-1]["mended"] = ["killed at 4"]
    page = faults.page(entries)
    assert f"| {faults.PARTS['kills'][0]} | 2,010 | 2,008 | 2 | 1 | " in page
    assert "| mine | 4 | 4 | 0 | 0 | 1 completed, 3 refused |" in page and "seeds 1, 2." in page
    monkeypatch.delenv("ATTACK_RECORD")
    faults.record("kills", "mine", 3, 1)
    assert len(faults.read(path)) == 3
