"""The page of a groups file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from atroposlib.envs import groups_page
from atroposlib.envs.groups_page import write_page


def groups_file(folder: Path, count: int, content: str = "answer") -> Path:
    group = {
        "tokens": [[1, 2], [3]],
        "scores": [1.0, 0.5],
        "messages": [[{"role": "user", "content": content}], [{"role": "user", "content": "other"}]],
    }
    path = folder / "groups.jsonl"
    path.write_text((json.dumps(group) + "\n") * count)
    return path


def test_page_shows_every_rollout_with_score_and_messages(tmp_path: Path) -> None:
    page = write_page(groups_file(tmp_path, 2)).read_text()
    assert page.count("<section>") == 4
    assert "score 0.5, 1 tokens" in page
    assert "answer" in page


def test_text_of_a_model_is_never_markup(tmp_path: Path) -> None:
    page = write_page(groups_file(tmp_path, 1, "<script>alert(1)</script>")).read_text()
    assert "<script>" not in page
    assert "&lt;script&gt;" in page


def test_group_without_messages_is_shown_by_its_scores(tmp_path: Path) -> None:
    path = tmp_path / "groups.jsonl"
    path.write_text(json.dumps({"tokens": [[1]], "scores": [0.25], "messages": None}))
    assert "score 0.25" in write_page(path).read_text()


def test_long_file_is_cut_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups_page, "MOST_GROUPS", 3)
    page = write_page(groups_file(tmp_path, 5)).read_text()
    assert page.count("<details") == 3
    assert "first 3 groups" in page
