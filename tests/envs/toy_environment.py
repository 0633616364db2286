"""An environment as a script, for tests that start processes: a teacher mixed into the toy environment."""

from __future__ import annotations

from atroposlib.envs import base
from atroposlib.envs.base import APIServerConfig
from atroposlib.envs.teacher_distillation_env import TeacherDistillationConfig, TeacherDistillationEnv
from tests.envs.fakes import ToyConfig, ToyEnv


class ScriptConfig(ToyConfig, TeacherDistillationConfig):
    """Settings of the script."""


class ScriptEnv(ToyEnv, TeacherDistillationEnv):
    """Toy items; evaluation writes one number."""

    name = "script"
    env_config_cls = ScriptConfig

    @classmethod
    def config_init(cls) -> tuple[ScriptConfig, list[APIServerConfig]]:
        """Defaults with a student that nobody asks."""
        student = APIServerConfig(model_name="student", base_url="http://127.0.0.1:9/v1", api_key="sk-secret")
        return ScriptConfig(group_size=2, use_wandb=True), [student]

    async def evaluate(self, *args: object, **kwargs: object) -> None:
        """One metric."""
        await self.evaluate_log({"accuracy": 0.25})


class Bytes:
    """A tokenizer of bytes, loaded at once."""

    name_or_path = "bytes"

    def encode(self, text: str) -> list[int]:
        """Its bytes."""
        return list(text.encode())

    def decode(self, ids: list[int]) -> str:
        """Text of these bytes."""
        return bytes(ids).decode(errors="replace")


if __name__ == "__main__":
    base.load_tokenizer = lambda name: Bytes()  # transformers takes seconds to import
    ScriptEnv.cli()
