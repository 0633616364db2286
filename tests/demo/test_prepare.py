"""What can be wrong before anything starts is one clear line; what is right becomes a plan."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from atroposlib.config.demo import DemoSettings
from atroposlib.config.teacher import TeacherConfig
from atroposlib.config.trainer import TrainerSettings
from atroposlib.demo.children import RUN_MARKER, children
from atroposlib.demo.configs import environment_config, trainer_settings
from atroposlib.demo.environment import environment_file, held_out_prompts
from atroposlib.demo.files import new_run
from atroposlib.demo.pairing import has_chat_template
from atroposlib.demo.plan import shared_threads
from atroposlib.demo.prepare import prepare, serving, student_of
from atroposlib.demo.resolve import model_directory
from atroposlib.errors import AtroposError, TeacherUnreachable, UsageError
from tests.demo.plans import make_plan
from tests.support.tiny_teacher import write_other_model

TOY_ENVIRONMENT = """
def held_out_prompts(count):
    return [[{"role": "user", "content": f"Question {index}?"}] for index in range(min(count, 3))]
"""


@pytest.fixture
def settings(tiny_model_dir: Path, tmp_path: Path) -> DemoSettings:
    (tmp_path / "toy.py").write_text(TOY_ENVIRONMENT)
    return DemoSettings(
        teacher=str(tiny_model_dir),
        environment=tmp_path / "toy.py",
        out=tmp_path / "run",
        eval_prompts=3,
        steps=2,
    )


def refused(settings: DemoSettings) -> AtroposError:
    with pytest.raises(AtroposError) as caught:
        prepare(settings, lambda line: None)
    assert "\n" not in str(caught.value)
    return caught.value


def test_a_plan_has_everything_the_parts_need(settings: DemoSettings, tmp_path: Path) -> None:
    plan = prepare(settings, lambda line: None)
    assert plan.models.student == plan.models.teacher_tokenizer == tmp_path / "run" / "student"
    assert "pruned copy of the teacher (1 of 2 layers)" in plan.models.student_origin
    assert [messages[0]["content"] for messages in plan.prompts] == [f"Question {n}?" for n in range(3)]
    assert [spec.name for spec in children(plan)] == [
        "api",
        "student",
        "teacher",
        "evaluator",
        "trainer",
        "environment",
    ]
    document = yaml.safe_load(plan.files.config.read_text())
    assert document["demo"]["steps"] == 2
    for name in ("environment.yaml", "trainer.yaml"):
        part = yaml.safe_load(plan.files.part_config(name).read_text())
        assert document[name.removesuffix(".yaml")] == part
    assert json.loads(plan.files.part_config("evaluator.json").read_text()) == document["evaluator"]


def test_a_given_student_is_not_pruned(settings: DemoSettings, tiny_model_dir: Path) -> None:
    plan = prepare(settings.model_copy(update={"student": str(tiny_model_dir)}), lambda line: None)
    assert plan.models.student == tiny_model_dir
    assert "as given" in plan.models.student_origin
    # The environment is to compare the tokenizers of two models that came from anywhere.
    assert plan.models.teacher_tokenizer == plan.models.teacher
    assert not plan.files.student.exists()


@pytest.fixture
def across(settings: DemoSettings, tiny_model_dir: Path, tmp_path: Path) -> DemoSettings:
    """A teacher with another tokenizer, which has a chat template of its own."""
    teacher = write_other_model(tmp_path / "other")
    return settings.model_copy(update={"teacher": str(teacher), "student": str(tiny_model_dir)})


def test_a_teacher_with_another_tokenizer_is_one_that_the_trainer_knows_the_tokenizer_of(
    across: DemoSettings,
) -> None:
    plan = prepare(across, lambda line: None)
    teacher = str(plan.models.teacher)
    assert not plan.models.same_tokenizer
    assert not plan.models.teacher_is_base
    assert plan.unit == "safe cut"
    assert "with another tokenizer than its teacher" in plan.models.student_origin
    environment = environment_config(plan)
    assert "teacher" not in environment
    own = environment["teachers"]["teacher"]
    assert (own["tokenizer_name"], own["chat_template"]) == (teacher, "auto")
    assert TeacherConfig.model_validate(own).servers()[0].base_url == f"{plan.teacher_url}/v1"
    trainer = TrainerSettings.model_validate(
        yaml.safe_load(plan.files.part_config("trainer.yaml").read_text())
    )
    assert trainer.teachers["teacher"].tokenizer == teacher
    assert [loss.name for loss in trainer.loss] == ["auto"]
    assert json.loads(plan.files.part_config("evaluator.json").read_text())["same_tokenizer"] is False


def test_a_teacher_without_a_chat_template_reads_plain_text(across: DemoSettings) -> None:
    file = Path(across.teacher) / "tokenizer_config.json"
    config = json.loads(file.read_text())
    del config["chat_template"]
    file.write_text(json.dumps(config))
    plan = prepare(across, lambda line: None)
    assert plan.models.teacher_is_base
    assert environment_config(plan)["teachers"]["teacher"]["chat_template"] is None


def test_a_pruned_student_learns_faster_than_a_whole_one(
    settings: DemoSettings, across: DemoSettings, tmp_path: Path
) -> None:
    rates = [
        trainer_settings(prepare(one.model_copy(update={"out": tmp_path / name}), lambda line: None))
        for name, one in (("pruned", settings), ("whole", across))
    ]
    assert [rate.learning_rate for rate in rates] == [8e-4, 2e-4]
    asked = across.model_copy(update={"out": tmp_path / "asked", "learning_rate": 1e-3})
    assert trainer_settings(prepare(asked, lambda line: None)).learning_rate == 1e-3


@pytest.mark.parametrize("name", ["chat_template.jinja", "chat_template.json"])
def test_a_chat_template_in_a_file_of_its_own_is_one(tmp_path: Path, name: str) -> None:
    assert not has_chat_template(tmp_path)
    (tmp_path / name).write_text("")
    assert has_chat_template(tmp_path)


@pytest.mark.parametrize(
    ("changes", "student"),
    [
        ({"teacher": "gemma"}, "smollm2-135m-instruct"),
        ({"teacher": "gemma", "student": "./mine"}, "./mine"),
        ({"teacher": "gemma", "keep_layers": [0, 1]}, None),
        ({}, None),
    ],
)
def test_the_default_student_is_the_packaged_teachers_own_or_a_pruned_copy(
    changes: dict[str, Any], student: str | None
) -> None:
    assert student_of(DemoSettings(**changes)) == student


def test_the_trainers_settings_are_valid_and_never_name_the_teacher(tmp_path: Path) -> None:
    plan = make_plan(tmp_path / "run")
    settings = trainer_settings(plan)
    assert TrainerSettings.model_validate(settings.model_dump()) == settings
    assert str(plan.models.teacher) not in settings.model_dump_json()
    trainer = next(spec for spec in children(plan) if spec.name == "trainer")
    assert str(plan.models.teacher) not in " ".join([*trainer.command, *trainer.environment.values()])
    opened = [spec.name for spec in children(plan) if str(plan.models.teacher) in " ".join(spec.command)]
    assert opened == ["teacher"]


def test_the_environments_settings_are_valid(tmp_path: Path) -> None:
    from atroposlib.config.env import TeacherDistillationConfig
    from atroposlib.config.server import APIServerConfig

    document = environment_config(make_plan(tmp_path / "run", teacher_top_k=7))
    own = {"max_completion_tokens", "seed"}
    assert own <= document["env"].keys()
    shared = {name: value for name, value in document["env"].items() if name not in own}
    config = TeacherDistillationConfig.model_validate(shared)
    assert config.teacher_enabled
    assert config.teacher_top_k == 7
    assert APIServerConfig.model_validate(document["teacher"]).base_url != document["openai"][0]["base_url"]


def test_every_child_is_marked_and_bypasses_proxies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "intranet")
    plan = make_plan(tmp_path / "run")
    for spec in children(plan):
        assert spec.environment[RUN_MARKER] == str(plan.files.root)
        assert spec.environment["NO_PROXY"] == "intranet,127.0.0.1,localhost"


@pytest.mark.parametrize(("cores", "threads"), [(1, 1), (2, 1), (4, 2), (16, 8)])
def test_cores_are_shared(cores: int, threads: int) -> None:
    assert shared_threads(cores) == threads


def test_a_teacher_url_without_a_server_is_exit_3(settings: DemoSettings) -> None:
    error = refused(settings.model_copy(update={"teacher": "http://127.0.0.1:9/v1"}))
    assert isinstance(error, TeacherUnreachable)
    assert error.exit_code == 3
    assert "http://127.0.0.1:9/v1" in str(error)


@pytest.mark.parametrize("option", ["teacher", "student"])
def test_a_directory_that_does_not_exist_is_named(settings: DemoSettings, option: str) -> None:
    error = refused(settings.model_copy(update={option: "./no/such/model"}))
    assert error.exit_code == 2
    assert f"--{option} ./no/such/model" in str(error)


def test_a_directory_without_a_model_is_named(settings: DemoSettings, tmp_path: Path) -> None:
    error = refused(settings.model_copy(update={"teacher": str(tmp_path)}))
    assert "this is no model directory" in str(error)


def test_a_name_that_no_hub_gives_is_told_with_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    def unreachable(name: str, **options: object) -> str:
        raise huggingface_hub.errors.LocalEntryNotFoundError("no connection\nand more")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", unreachable)
    with pytest.raises(UsageError, match=r"no connection.*smollm2-135m-instruct") as caught:
        model_directory("smollm2-135m", "--teacher")
    assert "\n" not in str(caught.value)


def test_results_are_not_mixed(settings: DemoSettings, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "summary.json").write_text("{}")
    assert "not empty" in str(refused(settings))


def test_a_directory_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"cannot be made.*usage\.file"):
        new_run(tmp_path / "file" / "run")


def test_the_environment_that_comes_with_the_package_has_held_out_prompts() -> None:
    file = environment_file(None)
    prompts = held_out_prompts(file, 12)
    assert len({messages[-1]["content"] for messages in prompts}) == 12


def test_an_environment_without_held_out_prompts_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bare.py").write_text("")
    with pytest.raises(UsageError, match="held_out_prompts"):
        held_out_prompts(tmp_path / "bare.py", 1)
    (tmp_path / "toy.py").write_text(TOY_ENVIRONMENT)
    with pytest.raises(UsageError, match=r"too few.*got 3, expected 5"):
        held_out_prompts(tmp_path / "toy.py", 5)


def test_an_environment_file_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        environment_file(tmp_path / "nothing.py")


def test_a_password_in_the_teachers_url_is_refused_and_not_told() -> None:
    with pytest.raises(UsageError) as refused:
        serving("http://user:s3cret@127.0.0.1:9/v1")
    assert "s3cret" not in str(refused.value)


def test_settings_that_do_not_fit_together_are_refused() -> None:
    with pytest.raises(ValueError, match="does not divide"):
        DemoSettings(group_size=3)
    with pytest.raises(ValueError, match="keep_layers"):
        DemoSettings(student="x", keep_layers=[0])
