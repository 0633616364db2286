"""The run's state: registration in any order, steps, unknown and silent environments, reset."""

from __future__ import annotations

import json
from pathlib import Path
from unittest.mock import ANY

import pytest

from tests.api.support import ApiClient, env_registration, group, registration, serving


def test_a_post_before_the_trainer_does_no_harm(api: ApiClient) -> None:
    """Defect 2: an early post made every later registration a no-op."""
    api.post("/scored_data", group())
    api.post("/register", registration(batch_size=4))
    assert api.get("/info")["batch_size"] == 4
    assert len(api.get("/batch")["batch"]) == 1
    assert api.add_env() == 0


def test_a_post_after_a_reset_does_no_harm(api: ApiClient) -> None:
    """Defect 2, after /reset_data."""
    api.start()
    api.raw("GET", "/reset_data")
    api.post("/scored_data", group())
    api.start(batch_size=6, wandb_project="next")
    assert api.get("/wandb_info")["project"] == "next"
    assert api.get("/info")["batch_size"] == 6


def test_after_a_reset_everything_is_as_at_the_start(api: ApiClient) -> None:
    """Defect 3: GET /batch after /reset_data was a 500."""
    api.start(starting_step=3)
    api.add_env()
    api.post("/scored_data", group())
    api.raw("GET", "/reset_data")
    assert api.raw("GET", "/reset_data").status_code == 200
    assert api.get("/batch")["status"] == "error"
    assert api.get("/status") == {"current_step": 0, "queue_size": 0}
    assert api.get("/latest_example")["tokens"] == []
    assert api.post("/register-env", env_registration()) == {"status": "wait for trainer to start"}


def test_the_step_counts_delivered_batches(api: ApiClient) -> None:
    """Defect 5: the step jumped by all batches that could be formed."""
    api.start(starting_step=10)
    api.post("/scored_data_list", [group() for _ in range(8)])
    assert api.get("/status")["current_step"] == 10
    for expected in (11, 12):
        assert api.get("/batch")["batch"]
        assert api.get("/status")["current_step"] == expected


def test_batches_come_oldest_first(api: ApiClient) -> None:
    """Defect 6: 0.4.0 delivered (7,8), (5,6), (3,4), (1,2)."""
    api.start()
    api.post("/scored_data_list", [group(token=number) for number in range(1, 9)])
    batches = [api.get("/batch")["batch"] for _ in range(4)]
    order = [[member["tokens"][0][0] for member in batch] for batch in batches]
    assert order == [[1, 2], [3, 4], [5, 6], [7, 8]]


def test_a_second_registration_updates_the_run(api: ApiClient) -> None:
    """Defect 7: other values were ignored with 200."""
    api.start(batch_size=8)
    api.post("/scored_data_list", [group() for _ in range(3)])
    assert api.get("/batch")["batch"]
    api.post("/register", registration(batch_size=4, starting_step=40, num_steps=50))
    assert api.get("/info")["batch_size"] == 4
    assert api.get("/status") == {"current_step": 40, "queue_size": 1}
    assert len(api.get("/batch")["batch"]) == 1
    assert api.post("/register-env", env_registration())["num_steps"] == 50


def test_equal_registrations_are_trainers_of_one_run(api: ApiClient) -> None:
    api.start()
    api.post("/scored_data_list", [group(), group()])
    assert api.get("/batch")["batch"]
    uuids = {api.post("/register", registration())["uuid"] for _ in range(2)}
    assert len(uuids) == 2
    assert api.get("/status")["current_step"] == 1


@pytest.mark.parametrize("env_id", [0, 7, -1, 10**30])
def test_an_unknown_environment_is_told_figures_it_can_go_on_with(api: ApiClient, env_id: int) -> None:
    """Defect 10: 500 for an unknown id and before registration; a negative id was the last environment."""
    fields = {
        "current_step": 0,
        "queue_size": 0,
        "unallocated_fraction": 1.0,
        "self_queue_size": 0,
        "max_group_size": 1,
        "env_weight": 1.0,
    }
    assert api.get("/status-env", {"env_id": env_id}) == fields
    api.start()
    assert api.get("/status-env", {"env_id": env_id}) == fields
    api.add_env()
    assert api.post("/disconnect-env", {"env_id": -1})["status"] == "failure"


@pytest.mark.parametrize(
    "changes", [{"weight": 0.0}, {"weight": -1.0}, {"group_size": 0}, {"max_token_length": 0}]
)
def test_odd_registrations_are_told_finite_figures(api: ApiClient, changes: dict[str, float]) -> None:
    """Defect 10: all weights 0, weight -1 and group size 0 were divisions by zero."""
    api.start()
    env_id = api.add_env(**changes)
    api.post("/scored_data", group(env_id=env_id))
    assert api.get("/status-env", {"env_id": env_id})["env_weight"] == 1.0


@pytest.mark.parametrize("value", ["NaN", "Infinity", "1e400", "1e300"])
def test_a_weight_that_breaks_the_arithmetic_is_refused(api: ApiClient, value: str) -> None:
    api.start()
    body = json.dumps(env_registration(weight="?")).replace('"?"', value)
    assert api.raw("POST", "/register-env", body.encode()).status_code == 422


def test_environments_that_left_or_fell_silent_lose_their_weight(api: ApiClient) -> None:
    """Defect 18: a finished environment kept its share for ever."""
    api.start()
    left, silent, working = (api.add_env(weight=weight) for weight in (1.0, 2.0, 1.0))

    def weight(env_id: int) -> float:
        return float(api.get("/status-env", {"env_id": env_id})["env_weight"])

    assert [weight(env_id) for env_id in (left, silent, working)] == [0.25, 0.5, 0.25]
    api.post("/disconnect-env", {"env_id": left})
    assert weight(working) == pytest.approx(1 / 3)
    api.clock.now += 61.0
    assert weight(working) == 1.0
    assert [env["connected"] for env in api.get("/v1/status")["envs"]] == [False, False, True]
    # A silent one that calls again is back; one that left is not.
    assert weight(silent) == pytest.approx(2 / 3)
    assert weight(working) == pytest.approx(1 / 3)


@pytest.mark.parametrize("batch_size", [0, -5, 2**31])
def test_a_batch_size_that_is_none_is_refused(api: ApiClient, batch_size: int) -> None:
    body = registration(batch_size=batch_size)
    answer = api.raw("POST", "/register", json.dumps(body).encode())
    assert (answer.status_code, answer.json()["detail"][0]["loc"]) == (422, ["body", "batch_size"])
    answer = api.raw("POST", "/v1/trainers", json.dumps({"trainer_id": "t", "run": body}).encode())
    assert (answer.status_code, answer.json()["where"]) == (422, "run.batch_size")


@pytest.mark.parametrize("name", ["\ud800", "x" * 5000])
def test_a_name_that_no_answer_can_carry_is_refused(api: ApiClient, name: str) -> None:
    api.start()
    for path, body in (
        ("/register", registration(wandb_group=name)),
        ("/register", registration(checkpoint_dir=name)),
        ("/register-env", env_registration(desired_name=name)),
    ):
        assert api.raw("POST", path, json.dumps(body).encode()).status_code == 422
    assert api.get("/wandb_info")["group"] == "group"


def test_names_are_numbered(api: ApiClient) -> None:
    api.start()
    names = [api.post("/register-env", env_registration(desired_name=name))["wandb_name"] for name in "aab"]
    assert names == ["a_0", "a_1", "b_0"]


def test_groups_of_a_disconnected_environment_are_still_taken(api: ApiClient) -> None:
    api.start(batch_size=4)
    env_id = api.add_env()
    api.post("/disconnect-env", {"env_id": env_id})
    api.post("/scored_data", group(env_id=env_id))
    assert len(api.get("/batch")["batch"]) == 1


def test_the_status_tells_who_takes_part_and_where_groups_are(api: ApiClient) -> None:
    api.start()
    env_id = api.add_env(desired_name="math")
    api.post("/scored_data_list", [group(env_id=env_id, group_id=str(number)) for number in range(3)])
    assert api.get("/batch")["batch"]
    size = len(api.raw("GET", "/latest_example").content)
    api.clock.now += 5.0
    assert api.get("/v1/status") == {
        "step": 1,
        "batch_size": 8,
        "waiting": [],
        "queue": {"groups": 1, "sequences": 4},
        "groups": {
            "received": 3,
            "queued": 1,
            "leased": 0,
            "trained": 2,
            "dropped": {},
            "dead": 0,
            "duplicates": 0,
            "refused": 0,
        },
        "uncommitted": 0,
        "held_bytes": size,
        "envs": [
            {
                "env_id": env_id,
                "name": "math_0",
                "connected": True,
                "groups_received": 3,
                "seconds_since_seen": 5.0,
            }
        ],
        "trainer": {"registered": True, "seconds_since_seen": 5.0},
        "trainers": [
            {
                "trainer_id": "atropos",
                "seconds_since_seen": 5.0,
                "last_committed": ANY,
                "leased": 0,
                "acked": 0,
            }
        ],
        "store": ANY,
    }


def test_the_status_names_the_store(tmp_path: Path) -> None:
    with serving() as api:
        assert api.get("/v1/status")["store"] == {"engine": "memory", "durability": "none"}
    with serving(f"sqlite:///{tmp_path / 'queue.sqlite3'}", durability="full") as api:
        assert api.get("/v1/status")["store"] == {"engine": "sqlite", "durability": "full"}


def test_repeated_posts_are_no_new_groups_of_their_environment(api: ApiClient) -> None:
    api.start(batch_size=8)
    busy, repeating = api.add_env(), api.add_env(min_batch_allocation=0.5)
    repeated = group(2, env_id=repeating, group_id="same")
    api.post("/scored_data_list", [repeated, group(env_id=busy), group(env_id=busy)])
    api.clock.now += 31.0
    api.post("/scored_data", repeated)
    assert [env["groups_received"] for env in api.get("/v1/status")["envs"]] == [2, 1]
    # Idle for 31 s in spite of the repeated post, so its minimum holds up nobody.
    assert api.get("/batch")["batch"]


def test_the_status_before_any_trainer(api: ApiClient) -> None:
    status = api.get("/v1/status")
    assert (status["step"], status["batch_size"], status["envs"]) == (0, None, [])
    assert status["trainer"] == {"registered": False, "seconds_since_seen": None}


def test_health_and_readiness(api: ApiClient) -> None:
    assert api.get("/healthz") == api.get("/readyz") == {"status": "ok"}
