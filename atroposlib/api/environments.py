"""What both families of routes tell an environment: its place in the run, and how much is wanted of it."""

from __future__ import annotations

from typing import Any

from atroposlib.api.context import ApiContext
from atroposlib.api.sharing import connected, find_env, status_env
from atroposlib.wire.registrations import EnvRegistration

AWAITED = "a trainer"


async def register(context: ApiContext, registration: EnvRegistration) -> dict[str, Any] | None:
    """Let an environment in, with the fields of Atropos's answer; None before a trainer has started."""
    run, now = await context.store.run(), context.clock()
    who = f"environment {registration.desired_name}"
    if run.registration is None or not run.started:
        missing = "registered" if run.registration is None else "asked for a batch"
        context.waits.note(who, AWAITED, f"no trainer has {missing}", now)
        return None
    context.metrics.wait("env", context.waits.end(who, AWAITED, now))
    env = await context.store.register_env(registration, now, context.settings.env_silent_s)
    return {
        "env_id": env.env_id,
        "wandb_name": env.name,
        "checkpoint_dir": run.registration.checkpoint_dir,
        "starting_step": run.step,
        "checkpoint_interval": run.registration.save_checkpoint_interval,
        "num_steps": run.registration.num_steps,
    }


async def figures(context: ApiContext, env_id: int) -> dict[str, float | int]:
    """The answer of GET /status-env; the environment counts as having called."""
    now = context.clock()
    await context.store.see_env(env_id, now)
    run = await context.store.run()
    shares = status_env(
        env_id,
        find_env(run, env_id),
        connected(run, context.settings, now),
        await context.store.stats(),
        run.registration.batch_size if run.registration else 0,
    )
    return {"current_step": run.step, **shares}
