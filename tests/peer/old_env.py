"""An environment in Atropos's style, run as a script by the real 0.4.0 and by ours; needs no model server.

Item n makes a group whose tokens, masks, logprobs and teacher targets all tell n, so that whoever gets it can
say what should be in it.
"""

# ruff: noqa: UP006, UP035, UP045 - their style is what is tested

import os
from typing import Dict, List, Optional, Tuple

from atroposlib.envs.base import APIServerConfig, BaseEnv, BaseEnvConfig, ScoredDataGroup
from atroposlib.type_definitions import Item

GROUP_SIZE = 2
LENGTH = 6
PROMPT = 2


def group_of(number: int) -> ScoredDataGroup:
    """The group of item ``number``."""
    tokens = [[number % 250, 1, *range(2 + side, LENGTH + side)] for side in range(GROUP_SIZE)]
    logprobs = [[1.0] * PROMPT + [-0.25 * (side + 1)] * (LENGTH - PROMPT) for side in range(GROUP_SIZE)]
    group = ScoredDataGroup()
    group["tokens"] = tokens
    group["masks"] = [[-100] * PROMPT + row[PROMPT:] for row in tokens]
    group["scores"] = [float(number), -float(number) - 1.0]
    group["inference_logprobs"] = logprobs
    group["distill_token_ids"] = [[[token, token + 1] for token in row] for row in tokens]
    group["distill_logprobs"] = [[[-0.5, -1.5 - number / 64]] * LENGTH for _ in tokens]
    group["group_overrides"] = {"number": number}
    return group


class OldEnv(BaseEnv):
    """Counts upwards."""

    name = "old"

    @classmethod
    def config_init(cls) -> Tuple[BaseEnvConfig, List[APIServerConfig]]:
        config = BaseEnvConfig(
            tokenizer_name=os.environ["OLD_ENV_TOKENIZER"],
            rollout_server_url=os.environ["OLD_ENV_API"],
            group_size=GROUP_SIZE,
            use_wandb=False,
            wandb_name="old",
            total_steps=int(os.environ["OLD_ENV_STEPS"]),
            steps_per_eval=1000,
            max_batches_offpolicy=2,
        )
        # Nobody listens there, and nobody is asked.
        server = APIServerConfig(
            model_name="none", base_url="http://127.0.0.1:9/v1", api_key="x", health_check=False
        )
        return config, [server]

    async def setup(self):
        self.number = 0

    async def get_next_item(self):
        self.number += 1
        return (self.number,)

    async def collect_trajectories(self, item: Item) -> Tuple[Optional[ScoredDataGroup], List[Item]]:
        return group_of(item[0]), []

    async def evaluate(self, *args, **kwargs):
        pass

    async def wandb_log(self, wandb_metrics: Optional[Dict] = None):
        pass


if __name__ == "__main__":
    OldEnv.cli()
