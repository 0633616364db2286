"""GSM8K with a teacher: the rollouts of gsm8k_server.py, completed with a teacher's top-k logprobs.

    python environments/gsm8k_server_teacher_distill.py serve \\
        --teacher.base_url http://localhost:9003/v1 --teacher.model_name Qwen/Qwen2.5-7B-Instruct \\
        --env.teacher_top_k 20
"""

from __future__ import annotations

from gsm8k_server import GSM8kConfig, GSM8kEnv

from atroposlib.envs.base import APIServerConfig, BaseEnvConfig
from atroposlib.envs.teacher_distillation_env import TeacherDistillationConfig, TeacherDistillationEnv


class GSM8kTeacherDistillConfig(GSM8kConfig, TeacherDistillationConfig):
    """Settings of the problems and of the teacher."""


class GSM8kTeacherDistillEnv(GSM8kEnv, TeacherDistillationEnv):
    """An environment written for BaseEnv becomes a distillation environment by mixing the teacher in."""

    name = "gsm8k_teacher_distill"
    env_config_cls = GSM8kTeacherDistillConfig
    config: GSM8kTeacherDistillConfig

    @classmethod
    def config_init(cls) -> tuple[BaseEnvConfig, list[APIServerConfig]]:
        """GSM8K's defaults, with twenty teacher tokens at each position."""
        config, servers = super().config_init()
        return config.model_copy(update={"teacher_top_k": 20}), servers


if __name__ == "__main__":
    GSM8kTeacherDistillEnv.cli()
