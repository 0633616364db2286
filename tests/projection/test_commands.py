"""`atropos projection build` and `inspect` from the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from atroposlib.cli.main import main
from atroposlib.projection.build import BuildOptions, build
from atroposlib.projection.files import load
from atroposlib.projection.rows import NO_ID
from atroposlib.projection.speller import Speller

Output = pytest.CaptureFixture[str]
FamilyDir = Callable[[str], Path]


def built(family_dir: FamilyDir, tmp_path: Path, *options: str) -> Path:
    file = tmp_path / "p.safetensors"
    argv = ["projection", "build", "--student", str(family_dir("byte_level"))]
    argv += ["--teacher", str(family_dir("gemma_like")), "--output", str(file), *options]
    assert main(argv) == 0
    return file


def test_build_writes_what_the_builder_makes(family_dir: FamilyDir, tmp_path: Path, capsys: Output) -> None:
    file = built(family_dir, tmp_path, "--top_k", "2", "--no-exact_map")
    student, teacher = Speller(family_dir("byte_level")), Speller(family_dir("gemma_like"))
    rows = build(student, teacher, BuildOptions(top_k=2, exact_map=False))
    found = load(file)
    assert len(found.cells.student) == int((rows.indices != NO_ID).sum())
    assert found.facts.student_fingerprint == student.vocabulary.fingerprint
    assert found.facts.teacher_fingerprint == teacher.vocabulary.fingerprint
    assert found.facts.settings == {
        "top_k": 2,
        "reverse_pass": True,
        "special_tokens": True,
        "exact_map": False,
        "scale_trick": False,
    }
    assert capsys.readouterr().out.startswith(f"{file}: 262 rows, ")


def test_inspect_counts_the_rows(family_dir: FamilyDir, tmp_path: Path, capsys: Output) -> None:
    file = built(family_dir, tmp_path)
    capsys.readouterr()
    argv = ["projection", "inspect", "--file", str(file), "--json", "--examples", "3"]
    argv += ["--student", str(family_dir("byte_level")), "--teacher", str(family_dir("gemma_like"))]
    assert main(argv) == 0
    told = json.loads(capsys.readouterr().out)
    # All bytes are exact, and so is the end of a turn; three merged pieces and two added words are not.
    counts = {name: told["figures"][name] for name in ("rows", "exact", "several", "empty", "off_rows")}
    assert counts == {"rows": 262, "exact": 257, "several": 5, "empty": 0, "off_rows": 0}
    assert told["figures"]["least_sum"] == pytest.approx(1.0)
    assert told["notes"] == []
    assert [example["student"] for example in told["examples"]] == ["256 'th'", "258 '\\\\xc3a'", "261 'éé'"]
    tokens = [entry["token"] for entry in told["examples"][0]["teacher"]]
    assert [token.split(maxsplit=1)[1] for token in tokens] == ["'t'", "'h'"]


def test_inspect_tells_in_words(family_dir: FamilyDir, tmp_path: Path, capsys: Output) -> None:
    file = built(family_dir, tmp_path)
    capsys.readouterr()
    assert (
        main(["projection", "inspect", "--file", str(file), "--teacher", str(family_dir("llama_like"))]) == 0
    )
    out = capsys.readouterr().out
    assert "all rows sum to 1" in out
    assert "exact rows            257 (98.1%)" in out
    assert "empty rows            0 (0.0%)" in out
    assert "made for another tokenizer than this teacher" in out
    assert "made for another tokenizer than this student" not in out
    assert "\n  256 -> " in out


def test_inspect_tells_which_rows_do_not_sum_to_one(tmp_path: Path, capsys: Output) -> None:
    content = {
        "indices": torch.tensor([[0, -1], [1, 2]]),
        "likelihoods": torch.tensor([[0.8, 0.2], [0.5, 0.5]]),
    }
    torch.save(content, tmp_path / "p.pt")
    assert main(["projection", "inspect", "--file", str(tmp_path / "p.pt")]) == 0
    assert "0.8000 to 1.0000: 1 rows do not sum to 1" in capsys.readouterr().out


def test_an_empty_projection_is_told(tmp_path: Path, capsys: Output) -> None:
    content = {"indices": torch.full((3, 2), -1), "likelihoods": torch.zeros(3, 2)}
    torch.save(content, tmp_path / "p.pt")
    assert main(["projection", "inspect", "--file", str(tmp_path / "p.pt")]) == 0
    out = capsys.readouterr().out
    assert "empty rows            3 (100.0%)" in out
    assert "row sums              0.0000 to 0.0000" in out


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--top_k", "0"], "--top_k"),
        (["--top_k", "33"], "--top_k"),
        (["--top_k", "1", "--scale_trick"], "scale_trick keeps a column of its own"),
    ],
)
def test_a_build_that_cannot_be_is_refused(options: list[str], told: str, capsys: Output) -> None:
    assert main(["projection", "build", "--student", "x", "--teacher", "y", *options]) == 2
    assert told in capsys.readouterr().err
