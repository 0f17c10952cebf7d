"""The base model in a card: a name that others can find, or none."""

import pytest

from starbucks_retrieval.models.card import base_model, base_model_text


def test_a_hub_name_is_the_base_model():
    assert base_model("google/bert") == {"base_model": "google/bert"}
    assert base_model_text("bert-base-uncased") == "`bert-base-uncased`"


def test_a_folder_of_the_hubs_cache_has_its_name(tmp_path):
    folder = tmp_path / "models--org--a-model" / "snapshots" / "0123abcd"
    folder.mkdir(parents=True)
    assert base_model(str(folder)) == {"base_model": "org/a-model"}
    assert base_model_text(str(folder)) == "`org/a-model`"


@pytest.mark.parametrize(
    ("card", "expected"),
    [
        ("---\nbase_model: org/base\ntags: [a]\n---\n# Text\n", "org/base"),
        ("---\r\nbase_model: org/base\r\n---\r\n# Text\r\n", "org/base"),
        ("---\nbase_model:\n- org/a\n- org/b\n---\n", ["org/a", "org/b"]),
        ("---\nbase_model: ./my-bert\n---\n", None),
        ("---\nbase_model: /data/bert\n---\n", None),
        ("---\nbase_model: [\n---\n", None),
        ("---\n- base_model\n---\n", None),
        ("# Text\n\nbase_model: org/base\n", None),
        ("---\ntags: []\n---\n", None),
        (None, None),
    ],
)
def test_another_folder_has_the_base_that_its_card_records(tmp_path, card, expected):
    folder = tmp_path / "bert-base"
    folder.mkdir()
    if card is not None:
        (folder / "README.md").write_bytes(card.encode())
    assert base_model(str(folder)) == ({"base_model": expected} if expected else {})
    assert base_model_text(str(folder)).startswith("a local folder, `bert-base`")
    assert ("org/a" in base_model_text(str(folder))) == isinstance(expected, list)


def test_a_card_that_is_not_utf8_is_ignored(tmp_path):
    (tmp_path / "README.md").write_bytes(b"---\nbase_model: \xff\n---\n")
    assert base_model(str(tmp_path)) == {}
