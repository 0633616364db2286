"""Training on shards: every group once a pass, in an order that goes on where a checkpoint stands."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from atroposlib.config.trainer import TrainerSettings
from atroposlib.errors import UsageError, WireError
from atroposlib.trainer.files import FileBatches, open_data
from atroposlib.trainer.leases import LeasedBatch
from atroposlib.trainer.run import run
from tests.api.support import serving
from tests.trainer.runs import events, make_settings
from tests.trainer.shards import write_data
from tests.trainer.support import ids_of, make_groups


def leased(batches: FileBatches) -> LeasedBatch:
    batch = batches.lease()
    assert batch is not None
    return batch


def names(batch: LeasedBatch) -> list[Any]:
    return ids_of(batch.groups)


def batches_of(
    directory: Path, size: int = 8, seed: int | None = None, after: str | None = None
) -> FileBatches:
    return FileBatches(open_data(directory), size, seed, after)


def test_without_a_seed_the_order_is_the_input_s(tmp_path: Path) -> None:
    groups = make_groups(5)
    batches = batches_of(write_data(tmp_path / "data", [None, *groups[:3], None, *groups[3:]]))
    found = [names(leased(batches)) for _ in range(6)]
    own = ids_of_lists(groups)
    # Eight sequences are two groups, and a batch ends with the pass.
    assert found == [own[:2], own[2:4], own[4:]] * 2


def ids_of_lists(groups: list[Any]) -> list[str]:
    return [group["group_id"] for group in groups]


def test_groups_come_out_as_they_were_written(tmp_path: Path) -> None:
    (group,) = make_groups(1)
    (read,) = leased(batches_of(write_data(tmp_path / "data", [group]))).groups
    assert [tokens.tolist() for tokens in read.tokens] == group["tokens"]
    assert [mask.tolist() for mask in read.masks] == group["masks"]
    assert read.targets is not None
    assert read.targets.ids[0].tolist() == group["distill_token_ids"][0][3]


@pytest.mark.parametrize("size", [1, 3, 4, 9, 100])
def test_every_pass_holds_every_group_once_in_another_order(tmp_path: Path, size: int) -> None:
    groups = [group for count in (1, 2, 4) for group in make_groups(4, sequences=count, seed=count)]
    batches = batches_of(write_data(tmp_path / "data", groups), size, seed=3)
    passes = []
    for _ in range(2):
        order: list[str] = []
        while len(order) < len(groups):
            batch = leased(batches)
            sequences = sum(len(group.tokens) for group in batch.groups)
            assert sequences <= size or len(batch.groups) == 1
            order += names(batch)
        passes.append(order)
    assert [Counter(order) for order in passes] == [Counter(ids_of_lists(groups))] * 2
    assert passes[0] != passes[1] != ids_of_lists(groups)


def test_a_batch_id_is_the_place_to_go_on_from(tmp_path: Path) -> None:
    data = write_data(tmp_path / "data", make_groups(7))
    whole = batches_of(data, seed=1)
    expected = [leased(whole) for _ in range(9)]
    assert len({batch.batch_id for batch in expected}) == 9
    for place, batch in enumerate(expected[:-1]):
        later = batches_of(data, seed=1, after=batch.batch_id)
        follower = leased(later)
        assert (follower.batch_id, names(follower)) == (
            expected[place + 1].batch_id,
            names(expected[place + 1]),
        )


@pytest.mark.parametrize("change", ["seed", "order", "data", "api"])
def test_a_checkpoint_of_other_data_is_not_gone_on_with(tmp_path: Path, change: str) -> None:
    data = write_data(tmp_path / "data", make_groups(4))
    other = write_data(tmp_path / "other", make_groups(4))
    batch_id = leased(batches_of(data, seed=1)).batch_id
    given = {
        "seed": (data, 2, batch_id),
        "order": (data, None, batch_id),
        "data": (other, 1, batch_id),
        "api": (data, 1, "batch-7"),
    }
    directory, seed, after = given[change]
    with pytest.raises(UsageError, match="trained on other data"):
        batches_of(directory, seed=seed, after=after)


def test_the_steps_of_so_many_passes_are_told_beforehand(tmp_path: Path) -> None:
    groups = [group for count in (1, 3, 4) for group in make_groups(5, sequences=count, seed=count)]
    batches = batches_of(write_data(tmp_path / "data", groups), 8, seed=5)
    count, taken = batches.batches_in(3), 0
    for _ in range(count):
        taken += len(leased(batches).groups)
    assert taken == 3 * len(groups)


def test_nothing_comes_after_a_stop(tmp_path: Path) -> None:
    batches = batches_of(write_data(tmp_path / "data", make_groups(2)))
    batches.close()
    assert batches.lease() is None


def test_data_that_cannot_be_trained_on_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no data"):
        open_data(tmp_path)
    with pytest.raises(UsageError, match="holds no group"):
        open_data(write_data(tmp_path / "empty", [None, None]))
    with pytest.raises(UsageError, match="holds no group"):
        open_data(write_data(tmp_path / "nothing", []))
    data = write_data(tmp_path / "data", make_groups(5))
    manifest = data / "shards" / "00000001.json"
    text = manifest.read_bytes()
    manifest.write_bytes(text[:-9])
    with pytest.raises(UsageError, match="a shard cannot be read"):
        open_data(data)
    manifest.unlink()
    with pytest.raises(UsageError, match=r"not finished \(got 1 of 2 shards\)"):
        open_data(data)
    manifest.write_bytes(text)
    with (data / "shards" / "00000001.frames").open("ab") as file:
        file.write(b"x")
    with pytest.raises(UsageError, match="a shard cannot be read"):
        open_data(data)
    (data / "job.json").write_text('{"format": "other"}')
    with pytest.raises(UsageError, match="of another format"):
        open_data(data)


def test_a_damaged_frame_is_told_and_not_trained(tmp_path: Path) -> None:
    data = write_data(tmp_path / "data", make_groups(1))
    file = data / "shards" / "00000000.frames"
    content = bytearray(file.read_bytes())
    content[80:120] = bytes(40)
    file.write_bytes(content)
    with pytest.raises(WireError):
        batches_of(data).lease()


def file_settings(data: Path, model: Path, work: Path, **changes: Any) -> TrainerSettings:
    usual = make_settings("http://unused", model, work).model_dump(exclude_unset=True)
    del usual["api_url"], usual["total_steps"]
    return TrainerSettings(**(usual | {"data": data} | changes))


def test_a_run_on_files_takes_the_steps_of_a_run_on_the_api(tiny_model_dir: Path, tmp_path: Path) -> None:
    groups = make_groups(6)
    files, online = tmp_path / "files", tmp_path / "api"
    run(
        file_settings(
            write_data(tmp_path / "data", groups), tiny_model_dir, files, total_steps=3, shuffle=False
        )
    )
    with serving() as api:
        api.post("/scored_data_list", groups)
        run(make_settings(api.url, tiny_model_dir, online, total_steps=3))
    keys = ("step", "loss", "group_ids", "target_tokens")
    ours = [[step[key] for key in keys] for step in events(files, "step")]
    assert ours == [
        [step["step"], pytest.approx(step["loss"], abs=1e-6), step["group_ids"], step["target_tokens"]]
        for step in events(online, "step")
    ]
    (end,) = events(files, "end")
    assert (end["reason"], end["groups_trained"], end["groups_unused"]) == ("finished", 6, 0)


def test_epochs_say_where_a_run_ends(tiny_model_dir: Path, tmp_path: Path) -> None:
    data = write_data(tmp_path / "data", make_groups(5))
    run(file_settings(data, tiny_model_dir, tmp_path, epochs=2))
    steps = events(tmp_path, "step")
    trained = Counter(name for step in steps for name in step["group_ids"])
    assert trained == dict.fromkeys(ids_of_lists(make_groups(5)), 2)
    assert len(steps) == 6
    assert (tmp_path / "checkpoints" / "step-6").is_dir()


def test_a_run_goes_on_at_the_place_of_its_checkpoint(tiny_model_dir: Path, tmp_path: Path) -> None:
    data = write_data(tmp_path / "data", make_groups(8))
    whole, first, second = (tmp_path / name for name in ("whole", "first", "second"))
    run(file_settings(data, tiny_model_dir, whole, total_steps=6, seed=4))
    run(file_settings(data, tiny_model_dir, first, total_steps=2, seed=4, trainer_id="t"))
    run(file_settings(data, first / "checkpoints" / "step-2", second, total_steps=6, seed=4, trainer_id="t"))
    expected = [step["group_ids"] for step in events(whole, "step")]
    assert [step["group_ids"] for work in (first, second) for step in events(work, "step")] == expected
    assert [step["step"] for step in events(second, "step")] == [3, 4, 5, 6]
    assert all(math.isfinite(step["loss"]) for step in events(second, "step"))


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"data": "d", "api_url": "http://h"}, "give one of them"),
        ({"epochs": 2}, "which is not given"),
        ({"data": "d", "epochs": 2, "total_steps": 5}, "give one of them"),
        ({"data": "d", "epochs": 0}, "epochs"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(changes: dict[str, Any], what: str) -> None:
    with pytest.raises(ValidationError, match=what):
        TrainerSettings(model="m", output_dir="o", **changes)
