"""BaseEnv: what an environment author subclasses, and what the rest of this package drives."""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from atroposlib.config.env import BaseEnvConfig, EvalHandlingEnum
from atroposlib.config.server import APIServerConfig, ServerBaseline
from atroposlib.envs import limits, managers
from atroposlib.envs.checkpoint import checkpoint_path, read_checkpoint, write_checkpoint
from atroposlib.envs.collect import gather_group
from atroposlib.envs.delivery import prepare, record, record_sent
from atroposlib.envs.evaluation_log import log_evaluation
from atroposlib.envs.groups_file import free_path
from atroposlib.envs.lazy_servers import ServerManager
from atroposlib.envs.metrics import completion_metrics, counter_metrics
from atroposlib.envs.registration import register, trainer_info
from atroposlib.envs.runtime import Runtime
from atroposlib.envs.tasks import all_of
from atroposlib.envs.tokenizer import load_tokenizer
from atroposlib.errors import ConfigError
from atroposlib.types import Item, ScoredDataGroup, ScoredDataItem

if TYPE_CHECKING:
    from atroposlib.config.runner import Cmd
    from atroposlib.config.yaml_file import YamlFile

__all__ = [
    "APIServerConfig",
    "BaseEnv",
    "BaseEnvConfig",
    "EvalHandlingEnum",
    "Item",
    "OpenaiConfig",
    "ScoredDataGroup",
    "ScoredDataItem",
    "ServerBaseline",
]

OpenaiConfig = APIServerConfig
ServerConfigs = ServerBaseline | APIServerConfig | list[APIServerConfig]
Groups = ScoredDataGroup | Sequence[ScoredDataGroup | None] | None

logger = logging.getLogger(__name__)


class BaseEnv(ABC):
    """An environment: gives items, rolls them out, scores them.

    A subclass implements :meth:`setup`, :meth:`get_next_item`, :meth:`evaluate`, and one of
    :meth:`collect_trajectory` and :meth:`collect_trajectories`; ``MyEnv.cli()`` runs it.

    Args:
        config: Settings of the environment.
        server_configs: Student servers.
        slurm: Find the servers by the Slurm environment variables.
        testing: Start no servers.
    """

    name: ClassVar[str | None] = None
    env_config_cls: ClassVar[type[BaseEnvConfig]] = BaseEnvConfig
    server_cls: ClassVar[Any] = None

    def __init__(
        self,
        config: BaseEnvConfig,
        server_configs: ServerConfigs,
        slurm: bool = False,
        testing: bool = False,
    ) -> None:
        self.config = config
        self.server = ServerManager(server_configs, slurm=slurm, testing=testing)
        self.tokenizer = load_tokenizer(config.tokenizer_name)
        self.runtime = Runtime(config)
        self.max_num_workers = config.max_num_workers
        if self.max_num_workers == -1:
            self.max_num_workers = config.max_num_workers_per_node * max(1, len(self.server.servers))
        self.env_id: int | None = None
        self.curr_step = 0
        self.status_dict: dict[str, Any] = {}
        self.max_token_len = -1
        self.checkpoint_dir = ""
        self.checkpoint_interval = -1
        self.eval_runner: asyncio.Task[Any] | None = None
        self.eval_workers: set[asyncio.Task[Any]] = set()
        self.last_completed_item: Item = None
        self.items_sent_this_step = 0
        self.completion_lengths: list[int] = []
        self.rollouts_for_wandb: list[list[tuple[Any, ...]]] = []
        self.wandb: Any = None
        self.wandb_project: str | None = None
        self.wandb_group: str | None = None
        self.wandb_prepend: str | None = None
        self.n_groups_to_process = 0
        self.group_size_to_process = config.group_size
        self.process_mode = False
        if config.data_path_to_save_groups is not None:
            path = free_path(Path(config.data_path_to_save_groups))
            path.parent.mkdir(parents=True, exist_ok=True)
            config.data_path_to_save_groups = str(path)

    # What authors write.

    @classmethod
    def config_init(cls) -> tuple[BaseEnvConfig, ServerConfigs]:
        """Default settings of the environment and of its student servers."""
        return cls.env_config_cls(), ServerBaseline()

    async def setup(self) -> None:
        """Load data; awaited once before anything else."""
        raise ConfigError("setup() is not implemented", where=type(self).__name__)

    @abstractmethod
    async def get_next_item(self) -> Item:
        """The next item to roll out, or None when there is nothing to do now."""

    @abstractmethod
    async def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        """Evaluate the student; runs every ``steps_per_eval`` trainer steps."""

    async def collect_trajectory(self, item: Item) -> tuple[Any, list[Item]]:
        """One scored rollout of an item (or None), and items for the backlog."""
        raise ConfigError(
            "neither collect_trajectory() nor collect_trajectories() is implemented",
            where=type(self).__name__,
        )

    async def collect_trajectories(self, item: Item) -> tuple[Any, list[Item]]:
        """A group of an item, a list of groups, or None; and items for the backlog.

        By default ``group_size`` concurrent calls of :meth:`collect_trajectory`.
        """
        return await gather_group(self, item)

    async def postprocess_histories(self, trajectories: Any) -> Any:
        """Groups as they are to be sent; called with what :meth:`collect_trajectories` gave."""
        return trajectories

    async def cleanup(self) -> None:  # noqa: B027 - a hook, empty by default
        """Called after every item."""

    # What the environment offers.

    @property
    def derived_batch_size(self) -> int:
        """Sequences of a batch that fall to this environment; -1 while the batch size is unknown."""
        return limits.derived_batch_size(self.config, self.status_dict)

    @property
    def is_evaluating(self) -> bool:
        """Whether an evaluation runs."""
        return self.eval_runner is not None and not self.eval_runner.done()

    @property
    def env_name(self) -> str:
        """The name to register under: ``wandb_name``, else the class's."""
        return self.config.wandb_name or self.name or type(self).__name__

    @property
    def drops_equal_scores(self) -> bool:
        """Whether groups whose scores are all equal are dropped."""
        return self.config.ensure_scores_are_not_same

    async def handle_send_to_api(
        self,
        scored_data: Groups,
        item: Item = None,
        do_send_to_api: bool = True,
        abort_on_any_max_length_exceeded: bool = True,
    ) -> None:
        """Filter groups, complete them (teachers), and hand them over to the trajectory API.

        Args:
            scored_data: A group or a list of groups; None groups are left out.
            item: The item they come from, for :meth:`add_rollouts_for_wandb`.
            do_send_to_api: False only records them (groups file, rollout table).
            abort_on_any_max_length_exceeded: Drop groups with a sequence as long as the trainer's limit.
        """
        as_list = isinstance(scored_data, list)
        groups: Sequence[Any] = scored_data if isinstance(scored_data, list) else [scored_data]
        limit = self.max_token_len if abort_on_any_max_length_exceeded else -1
        prepared = await all_of(prepare(self, group, limit) for group in groups if group is not None)
        ready = [group for group in prepared if group is not None]
        if not ready:
            return
        for group in ready:
            self.runtime.settle(group)
        if do_send_to_api:
            on_sent = partial(record_sent, self, item=item)
            await self.runtime.sender.deliver(ready, as_list=as_list, on_sent=on_sent)
        else:
            for group in ready:
                await record(self, group, item)

    async def complete_group(self, group: ScoredDataGroup) -> ScoredDataGroup | None:
        """Hook for what is worth doing only for groups that passed the filters; None drops the group.

        Who returns None counts the drop with ``self.runtime.drop``, or asks for the group to come back later
        with ``self.runtime.requeue``.
        """
        return group

    async def wandb_log(self, wandb_metrics: dict[str, Any] | None = None) -> None:
        """Log metrics, the student servers' and the rollout table to wandb, when it is used."""
        metrics = dict(wandb_metrics or {})
        metrics |= completion_metrics(self.completion_lengths, self.max_token_len)
        metrics |= counter_metrics(self.runtime.counters)
        if self.wandb is not None:
            metrics = await self.create_rollout_table(metrics)
            prefix = f"{self.wandb_prepend}_" if self.wandb_prepend else ""
            self.wandb.log({prefix + key: value for key, value in metrics.items()}, step=self.curr_step)
        self.rollouts_for_wandb = []
        self.completion_lengths = []

    async def create_rollout_table(self, wandb_metrics: dict[str, Any]) -> dict[str, Any]:
        """Add the kept rollouts as a table of text and score."""
        if self.rollouts_for_wandb:
            rows = [list(row[:2]) for group in self.rollouts_for_wandb for row in group]
            wandb_metrics["train/rollouts"] = self.wandb.Table(columns=["text", "score"], data=rows)
        return wandb_metrics

    async def add_rollouts_for_wandb(self, scored_data: Any, item: Item = None) -> None:
        """Keep some rollouts of a group for the table."""
        keep = self.config.num_rollouts_per_group_for_logging
        shown = len(scored_data["tokens"]) if keep == -1 else keep
        pairs = zip(scored_data["tokens"][:shown], scored_data["scores"][:shown], strict=True)
        self.rollouts_for_wandb.append([(self.tokenizer.decode(ids), score) for ids, score in pairs])
        del self.rollouts_for_wandb[: -self.config.num_rollouts_to_keep]

    def save_checkpoint(self, step: int, data: dict[str, Any] | None = None) -> None:
        """Write the environment's state at a trainer step; nothing when there is none."""
        if data is not None:
            write_checkpoint(checkpoint_path(self.checkpoint_dir, self._checkpoint_name, step), data)

    def load_checkpoint(self) -> None:
        """Set the attributes that the checkpoint of the current step holds, when there is one."""
        data = read_checkpoint(checkpoint_path(self.checkpoint_dir, self._checkpoint_name, self.curr_step))
        for name, value in data.items():
            setattr(self, name, value)

    async def evaluate_log(
        self,
        metrics: dict[str, Any],
        task_name: str | None = None,
        model_name: str | None = None,
        start_time: float | None = None,
        end_time: float | None = None,
        generation_parameters: dict[str, Any] | None = None,
        samples: list[dict[str, Any]] | None = None,
        verbose: bool = True,
    ) -> None:
        """Log evaluation metrics and write them to ``data_dir_to_save_evals`` when that is set."""
        end = time.time() if end_time is None else end_time
        await log_evaluation(
            metrics,
            task_name=task_name or f"{self.name or type(self).__name__}_eval",
            model_name=model_name or managers.first_model_name(self),
            seconds=end - (end if start_time is None else start_time),
            generation_parameters={
                "max_new_tokens": self.config.max_token_length,
                **(generation_parameters or {}),
            },
            samples=samples,
            directory=self.config.data_dir_to_save_evals,
            verbose=verbose,
        )

    async def register_env(self) -> None:
        """Register with the trajectory API; waits for it and for the trainer."""
        answer = await register(self.runtime.api, self.config, self.env_name, self.runtime.identity)
        first_time = self.env_id is None
        self.env_id = answer["env_id"]
        self.wandb_prepend = answer["wandb_name"]
        self.curr_step = answer["starting_step"]
        self.checkpoint_dir = answer["checkpoint_dir"]
        self.checkpoint_interval = answer["checkpoint_interval"]
        if self.config.total_steps == -1:
            self.config.total_steps = answer["num_steps"]
        if first_time and self.curr_step > 0:
            self.load_checkpoint()

    async def get_server_info(self) -> None:
        """Take over the trainer's batch size and longest sequence.

        Raises:
            ConfigError: A group does not fit into a batch.
        """
        info = await trainer_info(self.runtime.api)
        if info["batch_size"] != -1:
            self.config.batch_size = info["batch_size"]
        if info["max_token_len"] != -1:
            self.max_token_len = info["max_token_len"]
        if self.config.batch_size != -1 and self.config.group_size > self.config.batch_size:
            raise ConfigError(
                "a group does not fit into the trainer's batch",
                where="env.group_size",
                got=self.config.group_size,
                expected=f"at most batch_size {self.config.batch_size}",
            )

    async def check_servers(self) -> None:  # noqa: B027 - a hook, empty by default
        """Hook for checks before any work starts; raises what the user should see."""

    async def close_servers(self) -> None:
        """Close the sessions to the model servers."""
        await self.server.close()

    # Running.

    async def env_manager(self) -> None:
        """Serve: roll out until the trainer has reached ``total_steps``."""
        await managers.serve(self)

    async def process_manager(self) -> None:
        """Write ``n_groups_to_process`` groups to a file, without a trainer."""
        await managers.process(self)

    @classmethod
    def cli(cls) -> NoReturn:
        """Run the command line: serve, process or evaluate."""
        from atroposlib.envs.commands import run_cli

        run_cli(cls)

    @classmethod
    def get_cli_serve_config_cls(cls) -> type[Cmd]:
        """The ``serve`` command."""
        from atroposlib.envs.commands import command_class

        return command_class(cls, "serve")

    @classmethod
    def get_cli_process_config_cls(cls) -> type[Cmd]:
        """The ``process`` command."""
        from atroposlib.envs.commands import command_class

        return command_class(cls, "process")

    @classmethod
    def get_cli_evaluate_config_cls(cls) -> type[Cmd]:
        """The ``evaluate`` command."""
        from atroposlib.envs.commands import command_class

        return command_class(cls, "evaluate")

    @classmethod
    def server_namespaces(cls) -> tuple[str, ...]:
        """Option namespaces for servers beside the student's."""
        return ()

    @classmethod
    def server_families(cls) -> Mapping[str, type[APIServerConfig]]:
        """Option namespaces for servers of any name, ``--<namespace>.NAME.<field>``, with their settings."""
        return {}

    @classmethod
    def from_options(
        cls, config: Any, server_configs: Any, yaml: YamlFile, flags: dict[str, Any], **kwargs: Any
    ) -> BaseEnv:
        """The environment as the command line builds it, from its settings and all that was given."""
        return cls(config=config, server_configs=server_configs, **kwargs)

    # Inside.

    @property
    def _checkpoint_name(self) -> str:
        return self.wandb_prepend or self.env_name
