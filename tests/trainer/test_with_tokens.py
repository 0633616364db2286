"""Our clients and our API with tokens: each gets in with its own, and is told when it has none."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import pytest

from atroposlib.api.tokens import Token
from atroposlib.config.env import BaseEnvConfig
from atroposlib.envs.api_client import TrajectoryApi
from atroposlib.envs.registration import register
from atroposlib.envs.sender import Sender
from atroposlib.errors import ApiError
from atroposlib.trainer.client import TrainerClient
from tests.api.support import ApiClient, registration, serving
from tests.trainer.support import ids_of, make_groups


@pytest.fixture(scope="module")
def api() -> Iterator[ApiClient]:
    roles: list[Any] = ["env", "trainer"]
    tokens = [
        Token(name=role, role=role, sha256=hashlib.sha256(f"{role}-secret".encode()).hexdigest())
        for role in roles
    ]
    with serving(tokens=tokens) as client:
        yield client


async def test_environment_and_trainer_work_with_their_tokens(
    api: ApiClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = TrainerClient(api.url, token="trainer-secret")
    trainer.register(registration(batch_size=4), "me")
    assert trainer.lease(wait_s=0) is None
    monkeypatch.setenv("ATROPOS_TOKEN", "env-secret")
    environment = TrajectoryApi(api.url)
    answer = await register(environment, BaseEnvConfig(), "maths", "me")
    dropped: list[Any] = []
    sender = Sender(environment, lambda group, reason: dropped.append(reason))

    async def sent(group: Any) -> None:
        return None

    (group,) = make_groups(1)
    await sender.deliver([{**group, "env_id": answer["env_id"]}], as_list=False, on_sent=sent)
    await environment.close()
    assert dropped == []
    batch = trainer.lease(wait_s=10)
    assert batch is not None
    assert ids_of(batch.groups) == ["group-0-0"]
    trainer.ack(batch)
    trainer.close()


def test_a_trainer_without_a_token_is_told_how_to_get_in(
    api: ApiClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ATROPOS_TOKEN", raising=False)
    client = TrainerClient(api.url)
    with pytest.raises(ApiError, match="ATROPOS_TOKEN") as caught:
        client.register(registration(), "me")
    client.close()
    assert caught.value.code == "api.unauthorized"


async def test_an_environment_with_another_role_is_refused_and_waits_for_nothing(
    api: ApiClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATROPOS_TOKEN", "trainer-secret")
    client = TrajectoryApi(api.url)
    with pytest.raises(ApiError, match="does not allow") as caught:
        await register(client, BaseEnvConfig(), "maths", "me")
    await client.close()
    assert "secret" not in str(caught.value)
