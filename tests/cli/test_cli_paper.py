"""`cutaway bench paper` as it is called."""

from __future__ import annotations


def test_prints_a_table_or_json(cutaway):
    made = cutaway("bench", "paper", "--only", "gqa,mla", "--json")
    assert made.code == 0
    rows = made.json["rows"]
    assert [row["value"] for row in rows if row["section"] == "gqa"] == [4.0, 32.0]
    assert all(row["source"] for row in rows)
    shown = cutaway("bench", "paper", "--only", "mla")
    assert shown.code == 0
    assert "93.34 %" in shown.out and "arXiv 2405.04434" in shown.out
    assert "mla ..." in shown.err


def test_refuses_an_unknown_section(cutaway):
    ended = cutaway("bench", "paper", "--only", "glue")
    assert ended.code != 0
    assert '"glue"' in ended.err and "quantization" in ended.err
